"""How the files of parts get to another machine: used where they lie if they are the same there, else sent, once.

Nothing here knows who carries the bytes. The driver's side reads files; the other
side (`PartStore`) finds or takes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

from ...core.errors import RunError
from ...core.manifest import Cascade, Part
from ...core.units import size
from ..stage import check_unchanged

PREFIX: Final = "graphcut-parts-"
"""How the folders begin that hold what was sent to a machine."""

_CHUNK_BYTES: Final = 16 << 20
_LOCK: Final = "in-use"


class FileStamp(NamedTuple):
    """What tells whether a file is the same elsewhere.

    Attributes:
        size_bytes: how long it is.
        changed_ns: when it was written last. Files of the same name, size and time are taken to be the same, as rsync
            does: on a shared disk it is the same file, and copies that keep times are made by `cp -p` and `rsync -a`.
        sha256: of its bytes, which settles it where times differ; empty while nobody has asked.
    """

    size_bytes: int
    changed_ns: int
    sha256: str = ""


def files_of(part: Part) -> tuple[str, ...]:
    """What a part consists of: its file and those of its weights, relative to the manifest."""
    return (part.file, *sorted(part.data))


def stamps_of(cascade: Cascade, part: Part) -> dict[str, FileStamp]:
    """The stamps of a part's files, without digests.

    Raises:
        RunError: a file is missing, or not as long as it was.
    """
    return {name: _stamp(cascade.root / name, part.data.get(name)) for name in files_of(part)}


def sealed(cascade: Cascade, part: Part, stamps: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
    """`stamps` with digests, which reads the files once.

    Raises:
        RunError: the part's file was changed after the model was cut.
    """
    check_unchanged(cascade, part)
    return {name: stamp._replace(sha256=_sha256(cascade.root / name)) for name, stamp in stamps.items()}


def pieces(file: Path) -> Iterator[tuple[int, bytes]]:
    """A file, piece by piece, each with its place."""
    with file.open("rb") as stream:
        place = 0
        while piece := stream.read(_CHUNK_BYTES):
            yield place, piece
            place += len(piece)


class PartStore:
    """A machine's files of a cascade: those at the cascade's own path, and those that were sent into a folder.

    Attributes:
        folder: where sent files go; made when the first one comes.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        """Nothing is looked at yet.

        Args:
            root: where the cascade lies on the driver's machine, and perhaps here.
            folder: of this run on this machine.
        """
        self.folder = folder
        self._root = root
        self._homes: dict[int, Path] = {}
        self._lock: IO[bytes] | None = None

    def lacking(self, place: int, stamps: Mapping[str, FileStamp]) -> list[str]:
        """The files that would have to be sent before the part at `place` can be loaded here.

        All files of a part must lie in one folder: what is at the cascade's path is used if all of it is the same.
        """
        for home in (self._root, self.folder):
            if all(_is_same(home / name, stamp) for name, stamp in stamps.items()):
                self._homes[place] = home
                return []
        return [name for name, stamp in stamps.items() if not _is_same(self.folder / name, stamp)]

    def home(self, place: int) -> Path:
        """The folder that has the files of a part which is not lacking."""
        return self._homes[place]

    def take(self, name: str, place: int, piece: bytes) -> None:
        """Write a piece of a file.

        Raises:
            RunError: there is no room, or it can't be written.
        """
        try:
            self._open()
            file = self._unfinished(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
                stream.seek(place)
                stream.write(piece)
        except OSError as error:
            raise RunError(
                f"{name} can't be sent to {self.folder}: {error.strerror}",
                hint="make room there (TMPDIR of the Ray node says where), or put the cascade on a path that it shares",
            ) from None

    def finish(self, name: str, stamp: FileStamp) -> None:
        """All pieces of a file are here.

        Raises:
            RunError: it is not what was sent.
        """
        self._open()
        file = self._unfinished(name)
        if not file.exists():  # it has no bytes, so none came
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        if file.stat().st_size != stamp.size_bytes or _sha256(file) != stamp.sha256:
            file.unlink()
            raise RunError(f"{name} changed while it was sent", hint="leave a cascade alone while it runs")
        os.utime(file, ns=(stamp.changed_ns, stamp.changed_ns))
        os.replace(file, self.folder / name)

    def _unfinished(self, name: str) -> Path:
        file = self.folder / name
        return file.with_name(f"{file.name}.unfinished")

    def _open(self) -> None:
        """Make the folder, and hold it: who sweeps leaves alone what a process holds."""
        if self._lock is None:
            sweep(self.folder.parent)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self.folder / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_SH)


def sweep(parent: Path) -> None:
    """Remove folders that were left behind by runs whose machines or drivers were killed."""
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # somebody holds it, it is just being made, or it is another user's
            continue


def remove(folder: str) -> None:
    """Remove what was sent, at the end of a run."""
    shutil.rmtree(folder, ignore_errors=True)


def _stamp(file: Path, expected: int | None) -> FileStamp:
    try:
        found = file.stat()
    except OSError as error:
        raise RunError(f"{file} can't be read: {error.strerror}", hint="copy the whole cascade again") from None
    if expected is not None and found.st_size != expected:
        raise RunError(
            f"{file} has {size(found.st_size)}, and had {size(expected)} when the model was cut",
            hint="copy it again, or split the model again",
        )
    return FileStamp(found.st_size, found.st_mtime_ns)


def _is_same(file: Path, stamp: FileStamp) -> bool:
    try:
        found = file.stat()
        if found.st_size != stamp.size_bytes:
            return False
        return found.st_mtime_ns == stamp.changed_ns or (stamp.sha256 != "" and _sha256(file) == stamp.sha256)
    except OSError:
        return False


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
