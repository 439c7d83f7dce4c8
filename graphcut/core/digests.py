"""Digests of the files of a cascade: of data files block by block; and which versions of files were found unchanged."""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

BLOCK_BYTES: Final = 8 << 20
"""Size of a block, fixed by the format of manifests: the digests of a data file take 1/100,000 of its size."""

BUFFER_BYTES: Final = 256 << 10  #: the buffer of a thread that reads: the fastest of 64 KiB to 8 MiB.
_CLOCK_TICK_NS: Final = 50_000_000
"""File times advance in steps of up to 10 ms, so a younger file could change without another time."""

Range = tuple[int, int]  #: offset and length of a range of bytes in a file.


class Digest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ranges of a file, as digests.

    The bytes of all ranges, one range after the other, are divided into blocks of 8 MiB; the last may be shorter. Each
    block can be checked alone, so that a partial copy can be, too.
    """

    ranges: tuple[Range, ...]  #: offset and length of each range, ascending and without overlap.
    blocks: tuple[str, ...]  #: SHA-256 of each block.

    def fits(self, file_bytes: int) -> bool:
        """Whether the ranges are inside the file, ascending, and make as many blocks as are listed."""
        ends = [0, *(end for offset, length in self.ranges for end in (offset, offset + length)), file_bytes]
        total_bytes = sum(length for _, length in self.ranges)
        return ends == sorted(ends) and len(self.blocks) == -(-total_bytes // BLOCK_BYTES)


class FileBlock(NamedTuple):
    """Bytes of a file that have one digest."""

    ranges: list[Range]  #: where they are.
    expected: str  #: their SHA-256.

    @property
    def bytes(self) -> int:
        """How many they are."""
        return sum(length for _, length in self.ranges)

    def is_in(self, handle: int) -> bool:
        """Whether an open file has them."""
        return block_digest(handle, self.ranges) == self.expected


class DataFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with weights of a part."""

    bytes: int  #: its size.
    #: digest of the bytes that the part reads of it: the whole file, or the part's ranges of a file that the model or
    #: other parts of a rank read, too; None if it was not computed.
    digest: Digest | None


class FileVersion(NamedTuple):
    """What changes when a file is written or replaced."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int


_unchanged: Final[set[tuple[FileVersion, str]]] = set()  #: the versions of files that were read, each with its digest.


def digest_of(raw: bytes) -> str:
    """The SHA-256 of some bytes: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def file_digest(file: Path) -> str:
    """The same of the bytes of a file."""
    with file.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def version_of(file: Path) -> FileVersion:
    """The present version of `file`."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return FileVersion(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def unchanged_version(file: Path, expected: str | DataFile) -> FileVersion | None:
    """The version of `file` if it has the content `expected`, else None. An OSError if the file can't be read.

    `expected` is the digest of the whole file, or a data file: without a digest, only its size counts. The file is read
    once for each of its versions.
    """
    begin_ns, version = time.time_ns(), version_of(file)
    if isinstance(expected, DataFile) and version.bytes != expected.bytes:
        return None
    digest = expected.digest if isinstance(expected, DataFile) else expected
    if digest is None:
        return version
    known = version, digest if isinstance(digest, str) else digest_of(msgspec.json.encode(digest))
    if known not in _unchanged:
        is_same = file_digest(file) == digest if isinstance(digest, str) else not wrong_blocks(file, digest)
        if not is_same or version_of(file) != version:
            return None
        if begin_ns - version.ctime_ns > _CLOCK_TICK_NS:
            _unchanged.add(known)
    return version


def is_unchanged(file: Path, expected: str | DataFile) -> bool:
    """Whether a file can be read, and has the content `expected`."""
    with suppress(OSError):
        return unchanged_version(file, expected) is not None
    return False


def blocks_of(digest: Digest) -> list[FileBlock]:
    """The blocks of a digest."""
    return list(map(FileBlock, ranges_of_blocks(digest.ranges), digest.blocks))


def wrong_blocks(file: Path, digest: Digest) -> list[FileBlock]:
    """The blocks of `digest` that are not in the file."""
    blocks = blocks_of(digest)
    with file.open("rb") as stream, hashing_threads() as threads:
        found = list(threads.map(lambda block: block.is_in(stream.fileno()), blocks))
    return [block for block, is_there in zip(blocks, found, strict=True) if not is_there]


def read_digest(file: Path, ranges: Iterable[Range]) -> Digest:
    """The digest of ranges of a file. A block that is not wholly in the file has the digest of what is there."""
    ranges = tuple(ranges)
    with file.open("rb") as stream, hashing_threads() as threads:
        blocks = tuple(threads.map(lambda block: block_digest(stream.fileno(), block), ranges_of_blocks(ranges)))
    return Digest(ranges=ranges, blocks=blocks)


def digested(file: Path) -> DataFile:
    """A file with weights that is read as a whole."""
    size = file.stat().st_size
    return DataFile(bytes=size, digest=read_digest(file, [(0, size)]))


def ranges_of_blocks(ranges: Iterable[Range]) -> list[list[Range]]:
    """The ranges of each block, see `Digest`: a block takes up ranges until it has 8 MiB."""
    blocks: list[list[Range]] = []
    room = 0
    for start, length in ranges:
        offset, end = start, start + length
        while offset < end:
            if room == 0:
                blocks.append([])
                room = BLOCK_BYTES
            taken = min(end - offset, room)
            blocks[-1].append((offset, taken))
            offset, room = offset + taken, room - taken
    return blocks


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges of a file, ascending; those that overlap or touch are one."""
    found: list[Range] = []
    for start, length in sorted(ranges):
        before = found.pop() if found and start <= sum(found[-1]) else (start, 0)
        found.append((before[0], max(sum(before), start + length) - before[0]))
    return found


def block_digest(handle: int, ranges: Sequence[Range]) -> str:
    """The digest of ranges of an open file, as one."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER_BYTES))
    for start, length in ranges:
        offset, end = start, start + length
        while offset < end and (count := os.preadv(handle, [buffer[: min(len(buffer), end - offset)]], offset)):
            digest.update(buffer[:count])
            offset += count
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def hashing_threads() -> Iterator[Executor]:
    """Threads that hash in parallel: hashing and file access release the GIL. After an error nothing more is begun."""
    threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="graphcut hash")
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)
