"""Getting part files to another machine: files that are the same there are used, all others are sent once.

Transport is up to the caller: the driver reads and sends chunks, and the other machine's `PartStore` writes them.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ...core.digests import file_digest
from ...core.errors import RunError
from ...core.manifest import Cascade, Part
from ...core.units import size
from ..stage import check_unchanged
from .locked_folders import lock_folder

CHUNK_BYTES: Final = 16 << 20


class FileStamp(NamedTuple):
    """What identifies the content of a file."""

    size_bytes: int  #: its length.
    #: the time of its last change. Files of equal name, length and time count as equal, as in rsync: a shared disk has
    #: the same file, and `cp -p` and `rsync -a` keep times.
    changed_ns: int
    sha256: str = ""  #: the digest of its bytes, which decides where times differ; empty until `with_digests`.


def stamps_of(cascade: Cascade, part: Part) -> dict[str, FileStamp]:
    """The stamps of a part's files (its ONNX file and its weights) without digests, by path relative to the manifest.

    Raises:
        RunError: a file is missing, or has another length than the manifest says.
    """
    sizes = {part.file: None, **{name: part.data[name].bytes for name in sorted(part.data)}}
    return {name: _stamp(cascade.root / name, expected) for name, expected in sizes.items()}


def with_digests(cascade: Cascade, part: Part, stamps: Mapping[str, FileStamp]) -> dict[str, FileStamp]:
    """`stamps` with digests, which reads all files once.

    Raises:
        RunError: a file was changed after the model was cut.
    """
    check_unchanged(cascade, part)
    return {name: stamp._replace(sha256=file_digest(cascade.root / name)) for name, stamp in stamps.items()}


def chunks(file: Path) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file in chunks, each with its offset."""
    with file.open("rb") as stream:
        offset = 0
        while chunk := stream.read(CHUNK_BYTES):
            yield offset, chunk
            offset += len(chunk)


class PartStore:
    """The files of a cascade on one machine: those at the cascade's own path `root`, and those that were sent.

    Attributes:
        folder: the folder for received files, made with the first one.
        part_folders: for each part whose files are complete, the folder that has all of them.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._root = root
        self.part_folders: dict[int, Path] = {}
        self._lock: int | None = None

    def missing_files(self, part: int, stamps: Mapping[str, FileStamp]) -> list[str]:
        """The files that must be sent before the part with this index can be loaded.

        All files of a part must be in one folder: the cascade's own folder is used if all of them are the same there.
        """
        for folder in (self._root, self.folder):
            if all(_is_same(folder / name, stamp) for name, stamp in stamps.items()):
                self.part_folders[part] = folder
                if folder == self.folder:
                    self._make_folder()
                return []
        return [name for name, stamp in stamps.items() if not _is_same(self.folder / name, stamp)]

    def write_chunk(self, name: str, offset: int, chunk: bytes) -> None:
        """Write a chunk of a file.

        Raises:
            RunError: there is no room, or the file can't be written.
        """
        try:
            self._make_folder()
            file = self._unfinished(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
                stream.seek(offset)
                stream.write(chunk)
        except OSError as error:
            raise RunError(
                f"{name} can't be sent to {self.folder}: {error.strerror}",
                hint="make room there (TMPDIR of the Ray node sets the place), or put the cascade on a shared path",
            ) from None

    def finish(self, name: str, stamp: FileStamp) -> None:
        """Complete a file after its last chunk.

        Raises:
            RunError: its content differs from `stamp`.
        """
        self._make_folder()
        file = self._unfinished(name)
        if not file.exists():  # an empty file has no chunks
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        if file.stat().st_size != stamp.size_bytes or file_digest(file) != stamp.sha256:
            file.unlink()
            raise RunError(f"{name} changed while it was sent", hint="don't change a cascade while it runs")
        os.utime(file, ns=(stamp.changed_ns, stamp.changed_ns))
        os.replace(file, self.folder / name)

    def _unfinished(self, name: str) -> Path:
        return self.folder / f"{name}.unfinished"

    def _make_folder(self) -> None:
        """Make the folder if it does not exist, and lock it."""
        if self._lock is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock_folder(self.folder)


def _stamp(file: Path, expected_bytes: int | None) -> FileStamp:
    try:
        status = file.stat()
    except OSError as error:
        raise RunError(f"{file} can't be read: {error.strerror}", hint="copy the whole cascade again") from None
    if expected_bytes is not None and status.st_size != expected_bytes:
        raise RunError(
            f"{file} has {size(status.st_size)}, but had {size(expected_bytes)} when the model was cut",
            hint="copy it again, or split the model again",
        )
    return FileStamp(status.st_size, status.st_mtime_ns)


def _is_same(file: Path, stamp: FileStamp) -> bool:
    try:
        status = file.stat()
        if status.st_size != stamp.size_bytes:
            return False
        return status.st_mtime_ns == stamp.changed_ns or (stamp.sha256 != "" and file_digest(file) == stamp.sha256)
    except OSError:
        return False
