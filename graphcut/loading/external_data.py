"""External data: the files with the values of weights, and copying ranges of them without loading them."""

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Final

from onnx import TensorProto

from ..core.errors import ModelError

Progress = Callable[[int], None]
"""Called with the number of bytes just written."""

BUFFER_BYTES: Final = 256 << 10
"""The fastest of 64 KiB to 8 MiB; from 1 MiB on, writing to ext4 took two to five times as long."""

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


def write_data(layout: FileLayout, target: Path, *, progress: Progress | None = None) -> None:
    """Write the data file that `layout` describes, with a buffer of 256 KiB.

    Whole pages are shared with the source if the file system can (reflink). Otherwise disk space is reserved, and then
    filled by reads and writes: the fastest way measured on ext4 (3.2 GB in 1.1 s; `cp` 1.7 s, `copy_file_range` or
    `sendfile` 1.5 s).

    Raises:
        OSError: reading or writing failed (no space left, a file that can't be read).
    """
    buffer = memoryview(bytearray(min(BUFFER_BYTES, max(1, layout.file_bytes))))
    opened: dict[Path, int] = {}
    output = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        for span, offset in layout.copies:
            if span.file not in opened:
                opened[span.file] = os.open(span.file, os.O_RDONLY)
            _copy(opened[span.file], span, output, offset, buffer, progress)
        os.truncate(output, layout.file_bytes)
    finally:
        for handle in (*opened.values(), output):
            os.close(handle)


def _copy(source: int, span: ByteRange, output: int, offset: int, buffer: memoryview, report: Progress | None) -> None:
    done = 0
    cloned = _clone_pages(source, span, output, offset)
    if cloned is None and span.length and hasattr(os, "posix_fallocate"):
        _reserve(output, offset, span.length)
    while done < span.length:
        if cloned is not None and done == cloned[0]:
            copied = cloned[1] - cloned[0]
        else:
            end = span.length if cloned is None or done >= cloned[1] else cloned[0]
            copied = os.preadv(source, [buffer[: min(len(buffer), end - done)]], span.offset + done)
            if copied == 0:
                raise OSError(errno.EIO, "the file ended early", str(span.file))
            written = 0
            while written < copied:
                written += os.pwrite(output, buffer[written:copied], offset + done + written)
        done += copied
        if report is not None:
            report(copied)


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
