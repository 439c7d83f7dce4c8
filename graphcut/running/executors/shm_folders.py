"""Private folders for shared memory: in /dev/shm where there is one, and among the temporary files."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...core.errors import RunError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - private folders are made in it

_NAME: Final = re.compile(r"graphcut-\d+-\w+")
_YOUNG_S: Final = 60.0
"""A folder is locked right after it was made; one that is younger than this may not be locked yet."""


class ShmFolders:
    """Folders that one hub and its workers share.

    The hub removes them at its end, or its workers do when the hub is gone. Where all are killed together, the next hub
    does: a folder whose lock nobody holds belongs to nobody.

    Attributes:
        paths: the folders, the best first.
    """

    def __init__(self) -> None:
        """Make them.

        Raises:
            RunError: no folder can be made.
        """
        self.paths: list[str] = []
        self._locks: list[int] = []
        homes = list(_homes())
        for home in homes:
            _clear_away(home)
            with suppress(OSError):
                self.paths.append(tempfile.mkdtemp(prefix=f"graphcut-{os.getpid()}-", dir=home))
                self._locks.append(_locked(self.paths[-1]))
        if not self.paths:
            raise RunError(
                f"no folder can be made in {' nor in '.join(map(str, homes))}", hint="set TMPDIR to one with room"
            )

    def close(self) -> None:
        """Remove them, with all that lies in them."""
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self.paths, self._locks = [], []


def _homes() -> Iterator[Path]:
    if SHARED_MEMORY.is_dir():
        yield SHARED_MEMORY
    if (temporary := Path(tempfile.gettempdir())) != SHARED_MEMORY:
        yield temporary


def _clear_away(home: Path) -> None:
    """Remove the folders of hubs that were killed together with all their workers."""
    for path in home.glob("graphcut-*"):
        with suppress(OSError):
            if _NAME.fullmatch(path.name) and time.time() - path.stat().st_mtime > _YOUNG_S:
                lock = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: str | Path, kind: int = fcntl.LOCK_SH) -> int:
    """A lock on a folder, which ends with this process at the latest."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, kind)
    except OSError:
        os.close(file)
        raise
    return file
