"""External data: the files with the values of weights, and copying ranges of them without loading them."""

import errno
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from math import inf
from operator import itemgetter
from pathlib import Path, PurePosixPath
from struct import pack
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from ..core.digests import BLOCK_BYTES, BUFFER_BYTES, Digest, block_digest, hashing_threads, joined, ranges_of_blocks
from ..core.errors import ModelError
from ..core.graph import grouped

Bytes = NDArray[np.uint8]
Report = Callable[[int], None]  #: called with the number of bytes just written.
_PAGE: Final = 4096
_FICLONERANGE: Final = 0x4020940D  # linux/fs.h
COLUMNS_BYTES: Final = 4 << 20  #: columns are cut out of blocks of this size.
PADDING_SHARE: Final = 256  #: at most 1/256 of a data file is padding.
ALIGNED_BYTES: Final = PADDING_SHARE * _PAGE  #: from this size on a range is aligned, by padding of less than a page.


class ByteRange(NamedTuple):
    """A range of bytes in a file."""

    file: Path  #: the path of the file.
    offset: int  #: index of the first byte.
    length: int  #: number of bytes.


class Columns(NamedTuple):
    """Ranges of bytes of each row of a matrix in a file."""

    source: ByteRange  #: the matrix, row after row.
    row_bytes: int  #: the size of one row.
    runs: tuple[tuple[int, int], ...]  #: the ranges of each row, each from its first byte to before its last.

    @property
    def length(self) -> int:
        """How many bytes these are."""
        return self.source.length // self.row_bytes * sum(end - begin for begin, end in self.runs)


def resolve_location(model: Path, location: str, *, tensor: str) -> Path:
    """The file that a model gives as the location of external data of a tensor; a ModelError if it is refused.

    It must be a regular file in the folder of the model, or below. An absolute path is refused, and a path that leaves
    the folder by `..` or a symbolic link (CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34447). If the model
    itself is a symbolic link, the data may also be in the folder of the real file, as in the Hugging Face cache.
    """
    refused = f"the weights of {tensor!r} are in {location!r}"
    hint = "a model may only refer to files in its own folder; move them there, and correct the location"
    if "_ORT_MEM_ADDR_" in location:
        raise ModelError(f"{refused}, an address in the memory of another process", hint="save the model again")
    if not location or "\0" in location:
        raise ModelError(f"{refused}, which is not a file name", hint=hint)
    if PurePosixPath(location).is_absolute() or Path(location).is_absolute():
        raise ModelError(f"{refused}, an absolute path", hint=hint)
    path = model.parent / location
    try:
        is_there = path.exists()
        path.resolve()
    except (OSError, RuntimeError) as error:  # the name is too long, links form a cycle
        raise ModelError(f"{refused}, which can't be a file: {error}", hint=hint) from None
    folders = (model.parent.resolve(), model.resolve().parent)
    # `..` that stays inside (sub/../x) is accepted by every reader of ONNX, so only the resolved path counts.
    if not any(path.resolve().is_relative_to(folder) for folder in folders):
        how = "a path" if ".." in PurePosixPath(location).parts else "a symbolic link"
        raise ModelError(f"{refused}, {how} out of the folder of {model.name}", hint=hint)
    if not is_there:
        message = f"{refused}, but there is no such file in the folder of {model.name}"
        raise ModelError(message, hint="a model with external data has two files or more: copy them together")
    if not path.is_file():
        raise ModelError(f"{refused}, which is not a regular file", hint=hint)
    return path


def check_inside(span: ByteRange, *, file_bytes: int, tensor: str) -> None:
    """Raise a ModelError if a range is not inside its file, which has `file_bytes` bytes (CVE-2024-27319)."""
    if span.offset < 0 or span.length < 0 or span.offset + span.length > file_bytes:
        where = f"bytes {span.offset:,} to {span.offset + span.length:,} of {span.file.name}, which has {file_bytes:,}"
        hint = "the file is truncated or belongs to another model; copy it again"
        raise ModelError(f"the weights of {tensor!r} are {where}", hint=hint)


def merge_ranges(spans: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes as the smallest number of ranges: sorted, with overlapping and adjacent ones joined."""
    ranges = grouped((span.file, (span.offset, span.length)) for span in sorted(spans))
    return [ByteRange(file, *one) for file, own in ranges.items() for one in joined(own)]


@dataclass(frozen=True)
class FileLayout:
    """A new data file, made of ranges of other files."""

    copies: tuple[tuple[ByteRange, int], ...]  #: the ranges and their offsets in the new file, both ascending.
    file_bytes: int  #: size of the new file.
    columns: Mapping[Columns, int] = field(default_factory=dict)  #: what follows the ranges, with its offsets.

    def offset_of(self, span: ByteRange | Columns) -> int:
        """The offset of `span` in the new file."""
        if isinstance(span, Columns):
            return self.columns[span]
        last_of_start = ByteRange(span.file, span.offset, 1 << 63)
        source, offset = self.copies[bisect_right(self.copies, last_of_start, key=itemgetter(0)) - 1]
        return offset + span.offset - source.offset


def lay_out(spans: Iterable[ByteRange | Columns]) -> FileLayout:
    """The data file with all bytes of `spans`, each byte once even if several ranges have it.

    A range of 1 MiB or more keeps its offset modulo the page size, so that file systems with reflinks can share its
    whole pages with the source.
    """
    found = list(dict.fromkeys(spans))
    copies: list[tuple[ByteRange, int]] = []
    end = 0
    for span in merge_ranges(span for span in found if isinstance(span, ByteRange)):
        if span.length >= ALIGNED_BYTES:
            end += (span.offset - end) % _PAGE
        copies.append((span, end))
        end += span.length
    columns: dict[Columns, int] = {}
    for cut in (span for span in found if isinstance(span, Columns)):
        columns[cut] = end + (-end % _PAGE if cut.length >= ALIGNED_BYTES else 0)
        end = columns[cut] + cut.length
    return FileLayout(tuple(copies), end, columns)


def divide(spans: Iterable[ByteRange], most_bytes: int | None) -> list[list[ByteRange]]:
    """The ranges, in order, in groups for data files of at most `most_bytes`; one that is larger is alone."""
    groups: list[list[ByteRange]] = []
    room = 0.0
    for span in sorted(set(spans)):
        needed = span.length + (_PAGE if span.length >= ALIGNED_BYTES else 0)
        if not groups or needed > room:
            groups.append([])
            room = inf if most_bytes is None else most_bytes
        groups[-1].append(span)
        room -= needed
    return groups


def write_data(layout: FileLayout, target: Path, *, progress: Report | None = None, has_digest: bool) -> Digest:
    """Write the data file that `layout` describes, and return its digest, which is empty without `has_digest`.

    Threads take the blocks: each piece is read, written and hashed before the next, so it is read once: another time
    it may not be in memory any more. Only a block with other bytes (padding, columns, shared pages) is read again.
    """
    ranges, report, turn = [(0, layout.file_bytes)], progress or (lambda _: None), Lock()
    steps = grouped(step for span, offset in layout.copies for step in _steps(span, offset))
    with target.open("x+b", buffering=0) as output, hashing_threads() as threads:
        output.truncate(layout.file_bytes)
        _write_columns(layout.columns, output, report)

        def write_block(block: list[tuple[int, int]]) -> tuple[int, str]:
            copies, digest = steps.get(block[0][0], []), hashlib.sha256()
            update = digest.update if has_digest else (lambda _: None)
            hashed = sum(_copy(span, offset, output, turn, update) for span, offset in copies)
            copied, is_again = sum(span.length for span, _ in copies), has_digest and hashed < block[0][1]
            return copied, block_digest(output.fileno(), block) if is_again else f"sha256:{digest.hexdigest()}"

        digests = list[str]()
        for length, digest in threads.map(write_block, ranges_of_blocks(ranges)):
            report(length)
            digests.append(digest)
    return Digest(ranges=tuple(ranges), blocks=tuple(digests)) if has_digest else Digest(ranges=(), blocks=())


def _write_columns(columns: Mapping[Columns, int], output: FileIO, report: Report) -> None:
    """Write columns to their offsets."""
    for group in grouped(((cut.source, cut.row_bytes), cut) for cut in columns).values():
        ends = [columns[cut] for cut in group]
        for i, piece in read_columns(group):
            done = 0
            while done < piece.size:
                done += os.pwrite(output.fileno(), piece[done:].data, ends[i] + done)
            ends[i] += done
            report(done)


def _steps(span: ByteRange, offset: int) -> Iterator[tuple[int, tuple[ByteRange, int]]]:
    """Divide a range at the ends of blocks of the new file; first at the end of a page, since only pages are shared.

    Each piece has its offset, after that of its block.
    """
    start, end = offset, offset + span.length
    while start < end:
        unit = BLOCK_BYTES if start % _PAGE == 0 else _PAGE
        length = min(unit - start % unit, end - start)
        yield start // BLOCK_BYTES * BLOCK_BYTES, (ByteRange(span.file, span.offset + start - offset, length), start)
        start += length


def _copy(span: ByteRange, offset: int, output: FileIO, turn: Lock, update: Callable[[bytes], None]) -> int:
    """Copy a range to `offset`, and call `update` with the bytes; how many it was called with.

    A file system that can (reflink) shares whole pages instead. Linux copies 64 KiB at a time where it is asked to copy
    (`copy_file_range`), which takes longer than a large buffer. Threads write in `turn`: where they wait for the lock
    of the file, they keep a core busy.
    """
    done = shared = 0
    with span.file.open("rb", buffering=0) as source:
        if (whole_pages := span.length // _PAGE * _PAGE) and span.offset % _PAGE == offset % _PAGE == 0:
            with suppress(OSError, ImportError):  # this system or file system can't
                import fcntl

                fcntl.ioctl(output, _FICLONERANGE, pack("qQQQ", source.fileno(), span.offset, whole_pages, offset))
                done = shared = whole_pages
        while done < span.length:
            if not (piece := os.pread(source.fileno(), min(span.length - done, BUFFER_BYTES), span.offset + done)):
                raise OSError(errno.EIO, "the file ended early", str(source.name))
            with turn:
                written = os.pwrite(output.fileno(), piece, offset + done)
            update(piece[:written])
            done += written
    return done - shared


def read_columns(group: Sequence[Columns]) -> Iterator[tuple[int, Bytes]]:
    """The bytes of each of `group`, all of the same matrix, in order; each with the index in `group`.

    A matrix with small rows is read once. The memory of a piece is that of the next one, too.
    """
    source, row_bytes = group[0].source, group[0].row_bytes
    buffer, cut = np.empty(COLUMNS_BYTES, np.uint8), np.empty(COLUMNS_BYTES, np.uint8)
    with source.file.open("rb", buffering=0) as stream:
        for start, size in _pieces(source.length, max(1, COLUMNS_BYTES // row_bytes) * row_bytes):
            if row_bytes <= COLUMNS_BYTES:
                rows = read_at(stream.fileno(), source, start, buffer[:size]).reshape(-1, row_bytes)
                for i, columns in enumerate(group):
                    piece = cut[: columns.length // (source.length // row_bytes) * len(rows)]
                    runs = [rows[:, a:b] for a, b in columns.runs]
                    np.concatenate(runs, axis=1, out=piece.reshape(len(rows), -1))
                    yield i, piece
                continue
            for i, columns in enumerate(group):
                for a, b in columns.runs:
                    for offset, length in _pieces(b - a, COLUMNS_BYTES):
                        yield i, read_at(stream.fileno(), source, start + a + offset, buffer[:length])


def _pieces(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Where each step of a range begins, and its size."""
    return ((start, min(step, size - start)) for start in range(0, size, step))


def read_at(handle: int, span: ByteRange, start: int, target: Bytes) -> Bytes:
    """An array, filled with the bytes of a range from `start` in it."""
    if os.preadv(handle, [target.data], span.offset + start) < target.size:
        raise OSError(errno.EIO, "the file ended early", str(span.file))
    return target


def same_bytes(a: ByteRange, b: ByteRange) -> bool:
    """Whether both ranges have the same bytes, which threads compare. A range is not compared with itself."""
    if a == b or a.length != b.length:
        return a == b
    with a.file.open("rb") as first, b.file.open("rb") as second, hashing_threads() as threads:

        def is_same(start: int, size: int) -> bool:
            left = os.pread(first.fileno(), size, a.offset + start)
            return len(left) == size and left == os.pread(second.fileno(), size, b.offset + start)

        return all(threads.map(lambda piece: is_same(*piece), _pieces(a.length, 4 * BUFFER_BYTES)))


def read_bytes(span: ByteRange | Columns) -> bytes:
    """The bytes of a small range, or of small columns."""
    if isinstance(span, Columns):
        return b"".join(piece.tobytes() for _, piece in read_columns([span]))
    with span.file.open("rb") as stream:
        stream.seek(span.offset)
        return stream.read(span.length)


def refer_to_file(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make `tensor` refer to a range of a file, by the three keys that every reader of ONNX accepts."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = TensorProto.EXTERNAL


def read_values(tensor: TensorProto, span: ByteRange | Columns) -> None:
    """Put the values of an external tensor into its message."""
    tensor.raw_data = read_bytes(span)
    del tensor.external_data[:]
    tensor.ClearField("data_location")
