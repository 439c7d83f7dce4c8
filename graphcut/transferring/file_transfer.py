"""Getting part files to another machine: files that are the same there are used, all others are sent once and kept.

Transport is up to the caller: the driver reads and sends pieces, and the other machine's `PartStore` writes them.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ..core.atomic_files import cache_folder, write_errors
from ..core.digests import DataFile, digest_of, digested, is_unchanged, unchanged_version, wrong_blocks
from ..core.errors import RunError
from ..core.file_checks import check_unchanged
from ..core.manifest import Cascade, Part
from ..core.units import parse_bytes
from .locked_folders import lock_folder, remove_unused

#: Ray asks again for what has not arrived after ten seconds, and then it comes twice. Two pieces arrive in time at
#: 2 Mbit/s.
PIECE_BYTES: Final = 1 << 20
_NO_ROOM: Final = "make room there (XDG_CACHE_HOME of the Ray node sets the place), or use `fetch(...)` there"


class FilePiece(NamedTuple):
    """A range of a file that is sent in one message."""

    name: str
    offset: int
    bytes: int


def files_of(cascade: Cascade, part: Part) -> dict[str, DataFile]:
    """The files of a part, by name, all with digests; files without one in the manifest are read.

    Raises:
        RunError: a file is missing, or was changed after the model was cut.
    """
    check_unchanged(cascade, part.contents)
    known = {name: data for name, data in part.data.items() if data.digest is not None}
    return {name: known.get(name) or digested(cascade.root / name) for name in part.contents}


def times_of(cascade: Cascade, part: Part) -> dict[str, int]:
    """The times of the last change, in ns, of a part's data files that have no digest, as far as they are here.

    Files of equal name, size and time count as equal, as in rsync.
    """
    files = {name: cascade.root / name for name, data in part.data.items() if data.digest is None}
    return {name: file.stat().st_mtime_ns for name, file in files.items() if file.exists()}


def read_pieces(root: Path, pieces: Iterable[FilePiece]) -> Iterator[tuple[FilePiece, bytes]]:
    """The bytes of `pieces`, in pieces of at most `PIECE_BYTES`."""
    for name, start, length in pieces:
        with (root / name).open("rb") as file:
            for offset in range(start, start + length, PIECE_BYTES):
                piece = FilePiece(name, offset, min(PIECE_BYTES, start + length - offset))
                yield piece, os.pread(file.fileno(), piece.bytes, offset)


class PartStore:
    """The files of a cascade on one machine: those at the cascade's own path `root`, and those that were sent.

    What was sent stays for later runs, in one folder for each part, which is named by the digest of its files. Before
    a part comes, those that were not used for the longest time go, until all have at most GRAPHCUT_CACHE_SIZE.

    Attributes:
        part_folders: for each part whose files are complete, the folder that has all of them.
    """

    def __init__(self, root: Path, parts: Sequence[Part]) -> None:
        self.part_folders: dict[int, Path] = {}
        self._root = root
        self._parts = parts
        self._cache = cache_folder() / "parts"
        self._locks: dict[Path, int] = {}

    def has(self, index: int, times: Mapping[str, int]) -> bool:
        """Whether this machine has the files of a part, see `times_of`: then it can be loaded."""
        part = self._parts[index]
        for folder in (self._root, self._folder(part, part.data)):
            with suppress(OSError):  # it is not there, or another run removes it just now
                if folder != self._root:
                    self._lock(folder)
                if all(_is_same(folder / name, content, times.get(name)) for name, content in part.contents.items()):
                    self.part_folders[index] = folder
                    return True
        return False

    def changed(self, index: int) -> str:
        """The first file of a part at the cascade's own path that is not the one that was cut; empty if none is."""
        for name, content in self._parts[index].contents.items():
            with suppress(OSError):  # it is not there, or can't be read
                if unchanged_version(self._root / name, content) is None:
                    return name
        return ""

    def missing(self, index: int, files: Mapping[str, DataFile]) -> list[FilePiece]:
        """What must be sent of `files_of` a part: an earlier attempt may have sent some of it.

        Raises:
            GraphcutError: there is no room, or no file can be written.
        """
        folder, found = self._folder(self._parts[index], files), list[FilePiece]()
        with write_errors(self._cache, _NO_ROOM):
            while folder not in self._locks:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # another run has removed it before it was locked
                    self._lock(folder)
            self.part_folders[index] = folder
            self._make_room(folder, sum(data.bytes for data in files.values()))
            for name, data in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("ab") as file:
                    file.truncate(data.bytes)
                if data.digest is not None:
                    wrong = wrong_blocks(folder / name, data.digest)
                    found += [FilePiece(name, *span) for block in wrong for span in block.ranges]
        return found

    def write(self, index: int, piece: FilePiece, raw: bytes) -> None:
        """Write a piece. Raises as `missing`."""
        with write_errors(self._cache, _NO_ROOM), (self.part_folders[index] / piece.name).open("r+b") as file:
            file.seek(piece.offset)
            file.write(raw)

    def check(self, index: int, files: Mapping[str, DataFile]) -> None:
        """Check a part after its last piece.

        Raises:
            RunError: a file differs from what `files` says.
        """
        folder = self.part_folders[index]
        if changed := next((name for name, data in files.items() if not _is_same(folder / name, data)), None):
            raise RunError(f"{changed} changed while it was sent", hint="don't change a cascade while it runs")

    def _folder(self, part: Part, files: Mapping[str, DataFile]) -> Path:
        data = {name: files[name] for name in part.data}
        return self._cache / digest_of(msgspec.json.encode((part.file, part.sha256, data)))[7:39]

    def _lock(self, folder: Path) -> None:
        if folder not in self._locks:
            self._locks[folder] = lock_folder(folder)
            os.utime(folder)

    def _make_room(self, own: Path, own_bytes: int) -> None:
        room = parse_bytes(os.environ.get("GRAPHCUT_CACHE_SIZE", "10GB")) - own_bytes
        others = [(*_time_and_bytes(folder), folder) for folder in self._cache.iterdir() if folder != own]
        for _, taken_bytes, folder in sorted(others, reverse=True):
            room -= taken_bytes
            if room < 0:
                remove_unused(folder)


def _time_and_bytes(folder: Path) -> tuple[int, int]:
    """When a folder was used last, in ns, and what it takes on the disk; zeros if another run removes it just now."""
    with suppress(FileNotFoundError):
        return folder.stat().st_mtime_ns, sum(file.stat().st_blocks * 512 for file in folder.rglob("*"))
    return 0, 0


def _is_same(file: Path, content: str | DataFile, changed_ns: int | None = None) -> bool:
    return is_unchanged(file, content) and (changed_ns is None or file.stat().st_mtime_ns == changed_ns)
