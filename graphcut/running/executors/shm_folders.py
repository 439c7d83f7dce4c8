"""Private folders for shared memory: one in /dev/shm where that exists, and one among the temporary files."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...core.errors import RunError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only private folders are made in it

_FOLDER_NAME: Final = re.compile(r"graphcut-\d+-\w+")
_MIN_AGE_S: Final = 60.0
"""Younger folders are never removed: one is locked only after it was made, so it may not be locked yet."""


class ShmFolders:
    """Folders that one hub and its workers share.

    The hub removes them at its end, and its workers do if the hub was killed. If all were killed together, the next
    hub does: it removes folders that no process has locked.

    Attributes:
        paths: the folders; the first one that has room is used.
    """

    def __init__(self) -> None:
        """Make and lock the folders.

        Raises:
            RunError: no folder can be made.
        """
        self.paths: list[str] = []
        self._locks: list[int] = []
        parents = [SHARED_MEMORY] if SHARED_MEMORY.is_dir() else []
        if (temporary := Path(tempfile.gettempdir())) != SHARED_MEMORY:
            parents.append(temporary)
        for parent in parents:
            _remove_abandoned(parent)
            with suppress(OSError):
                self.paths.append(tempfile.mkdtemp(prefix=f"graphcut-{os.getpid()}-", dir=parent))
                self._locks.append(_lock(self.paths[-1], fcntl.LOCK_SH))
        if not self.paths:
            where = " nor in ".join(map(str, parents))
            raise RunError(f"no folder can be made in {where}", hint="set TMPDIR to a folder with room")

    def close(self) -> None:
        """Remove the folders with everything in them."""
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self.paths, self._locks = [], []


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of hubs that were killed together with all their workers."""
    for path in parent.glob("graphcut-*"):
        with suppress(OSError):
            if _FOLDER_NAME.fullmatch(path.name) and time.time() - path.stat().st_mtime > _MIN_AGE_S:
                lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: str | Path, kind: int) -> int:
    """Lock a folder. The file descriptor holds the lock, until it is closed or this process ends."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, kind)
    except OSError:
        os.close(file)
        raise
    return file
