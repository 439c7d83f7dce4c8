"""External data: the files with the values of weights, and copying ranges of them without loading them."""

import errno
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self

from onnx import TensorProto

from ..core.digests import BLOCK_BYTES, BUFFER_BYTES, Digest, hashing_threads
from ..core.errors import ModelError

Progress = Callable[[int], None]
"""Called with the number of bytes just written."""

_PAGE: Final = 4096
PADDING_SHARE: Final = 256
"""At most 1/256 of a data file is padding."""
ALIGNED_BYTES: Final = PADDING_SHARE * _PAGE
"""From this size on a range is aligned, by padding of less than a page."""
_FICLONERANGE: Final = 0x4020940D  # linux/fs.h


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """A range of bytes in a file."""

    file: Path  #: the path of the file.
    offset: int  #: index of the first byte.
    length: int  #: number of bytes.


def resolve_location(model: Path, location: str, *, tensor: str) -> Path:
    """The file that a model gives as the location of external data.

    It must be a regular file in the folder of the model, or below. An absolute path is refused, and a path that leaves
    the folder by `..` or a symbolic link (CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34447). If the model
    itself is a symbolic link, the data may also be in the folder of the real file, as in the Hugging Face cache.

    Args:
        model: the path of the model.
        location: as the model gives it.
        tensor: the tensor with this location, for messages.

    Raises:
        ModelError: `location` is refused, or there is no such file.
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
        raise ModelError(
            f"{refused}, but there is no such file in the folder of {model.name}",
            hint="a model with external data has two files or more: copy them together",
        )
    if not path.is_file():
        raise ModelError(f"{refused}, which is not a regular file", hint=hint)
    return path


def check_inside(span: ByteRange, *, file_bytes: int, tensor: str) -> None:
    """Raise a ModelError if a range is not inside its file, which has `file_bytes` bytes (CVE-2024-27319)."""
    if span.offset < 0 or span.length < 0 or span.offset + span.length > file_bytes:
        raise ModelError(
            f"the weights of {tensor!r} are bytes {span.offset:,} to {span.offset + span.length:,} of "
            f"{span.file.name}, which has {file_bytes:,}",
            hint="the file is truncated or belongs to another model; copy it again",
        )


def merge_ranges(spans: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes as the smallest number of ranges: sorted, with overlapping and adjacent ones joined."""
    merged: list[ByteRange] = []
    for span in sorted(set(spans)):
        last = merged[-1] if merged else None
        if last is not None and last.file == span.file and span.offset <= last.offset + last.length:
            end = max(last.offset + last.length, span.offset + span.length)
            merged[-1] = ByteRange(last.file, last.offset, end - last.offset)
        else:
            merged.append(span)
    return merged


@dataclass(frozen=True)
class FileLayout:
    """A new data file, made of ranges of other files."""

    copies: tuple[tuple[ByteRange, int], ...]  #: the ranges and their offsets in the new file, both ascending.
    file_bytes: int  #: size of the new file.

    def offset_of(self, span: ByteRange) -> int:
        """The offset of `span` in the new file."""
        last_of_start = ByteRange(span.file, span.offset, 1 << 63)
        source, offset = self.copies[bisect_right(self.copies, last_of_start, key=itemgetter(0)) - 1]
        return offset + span.offset - source.offset


def lay_out(spans: Iterable[ByteRange]) -> FileLayout:
    """The data file with all bytes of `spans`, each byte once even if several ranges have it.

    A range of 1 MiB or more keeps its offset modulo the page size, so that file systems with reflinks can share its
    whole pages with the source.
    """
    copies: list[tuple[ByteRange, int]] = []
    end = 0
    for span in merge_ranges(spans):
        if span.length >= ALIGNED_BYTES:
            end += (span.offset - end) % _PAGE
        copies.append((span, end))
        end += span.length
    return FileLayout(tuple(copies), end)


def write_data(layout: FileLayout, target: Path, *, progress: Progress | None = None) -> Digest:
    """Write the data file that `layout` describes, and return its digest.

    Whole pages are shared with the source if the file system can (reflink). Otherwise disk space is reserved. Then
    threads take block after block: each reads into a buffer of 256 KiB, hashes it and writes it.

    Raises:
        OSError: reading or writing failed (no space left, a file that can't be read).
    """
    opened: dict[Path, int] = {}
    output = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        for span, _ in layout.copies:
            if span.file not in opened:
                opened[span.file] = os.open(span.file, os.O_RDONLY)
        blocks = _pieces_of_blocks(layout, opened, output)
        os.truncate(output, layout.file_bytes)
        ends = [min((i + 1) * BLOCK_BYTES, layout.file_bytes) for i in range(len(blocks))]
        digests = []
        with hashing_threads() as threads:
            for copied, digest in threads.map(lambda pieces, end: _copy(pieces, end, output), blocks, ends):
                digests.append(digest)
                if progress is not None:
                    progress(copied)
    finally:
        for handle in (*opened.values(), output):
            os.close(handle)
    return Digest(ranges=((0, layout.file_bytes),), blocks=tuple(digests))


class _Piece(NamedTuple):
    """Bytes of a source file for a new file."""

    source: ByteRange
    handle: int  #: of the source file.
    offset: int  #: in the new file.
    is_written: bool  #: whether the new file has them already, by a reflink.

    def part(self, start: int, length: int, *, is_written: bool) -> Self:
        """`length` bytes of this piece, from its byte `start` on."""
        source = ByteRange(self.source.file, self.source.offset + start, length)
        return self._replace(source=source, offset=self.offset + start, is_written=is_written)


def _pieces_of_blocks(layout: FileLayout, opened: Mapping[Path, int], output: int) -> list[list[_Piece]]:
    """Reflinks or reserves what `layout` has, and returns the pieces of each block of the new file."""
    blocks: list[list[_Piece]] = [[] for _ in range(0, layout.file_bytes, BLOCK_BYTES)]
    for span, offset in layout.copies:
        whole = _Piece(span, opened[span.file], offset, is_written=False)
        cloned = _clone_pages(whole.handle, span, output, offset)
        if cloned is None and span.length and hasattr(os, "posix_fallocate"):
            _reserve(output, offset, span.length)
        first, last = cloned or (span.length, span.length)
        done = 0
        while done < span.length:
            index, within = divmod(offset + done, BLOCK_BYTES)
            border = next(end for end in (first, last, span.length) if done < end)
            length = min(border - done, BLOCK_BYTES - within)
            blocks[index].append(whole.part(done, length, is_written=first <= done < last))
            done += length
    return blocks


def _copy(pieces: Iterable[_Piece], end: int, output: int) -> tuple[int, str]:
    """Copy the pieces of a block that ends at `end`. Returns their size and the block's digest."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER_BYTES))
    start, total = (end - 1) // BLOCK_BYTES * BLOCK_BYTES, 0
    for piece in pieces:
        digest.update(bytes(piece.offset - start))  # padding
        length, done = piece.source.length, 0
        while done < length:
            copied = os.preadv(piece.handle, [buffer[: min(len(buffer), length - done)]], piece.source.offset + done)
            if copied == 0:
                raise OSError(errno.EIO, "the file ended early", str(piece.source.file))
            digest.update(buffer[:copied])
            written = copied if piece.is_written else 0
            while written < copied:
                written += os.pwrite(output, buffer[written:copied], piece.offset + done + written)
            done += copied
        start, total = piece.offset + length, total + length
    digest.update(bytes(end - start))
    return total, f"sha256:{digest.hexdigest()}"


def _reserve(file: int, offset: int, length: int) -> None:
    """Reserve disk space, if the file system can."""
    try:
        os.posix_fallocate(file, offset, length)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise


def _clone_pages(source: int, span: ByteRange, output: int, offset: int) -> tuple[int, int] | None:
    """Share the whole pages of `span` with the new file. Returns the first and the last byte, or None if impossible."""
    first = -span.offset % _PAGE
    last = span.length - (span.offset + span.length) % _PAGE
    if first >= last or (span.offset - offset) % _PAGE:
        return None
    import fcntl
    import struct

    request = struct.pack("qQQQ", source, span.offset + first, last - first, offset + first)
    with suppress(OSError):
        fcntl.ioctl(output, _FICLONERANGE, request)
        return first, last
    return None


def same_bytes(a: ByteRange, b: ByteRange) -> bool:
    """Whether both ranges have the same bytes. A range is not compared with itself."""
    if a == b or a.length != b.length:
        return a == b
    with a.file.open("rb") as first, b.file.open("rb") as second:
        first.seek(a.offset)
        second.seek(b.offset)
        for done in range(0, a.length, BUFFER_BYTES):
            size = min(BUFFER_BYTES, a.length - done)
            chunk = first.read(size)
            if len(chunk) < size or chunk != second.read(size):
                return False
    return True


def read_bytes(span: ByteRange) -> bytes:
    """The bytes of a small range."""
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


def read_values(tensor: TensorProto, span: ByteRange) -> None:
    """Put the values of an external tensor into its message."""
    tensor.raw_data = read_bytes(span)
    del tensor.external_data[:]
    tensor.ClearField("data_location")
