"""Folders that processes lock while they use them: for shared memory, and for received part files.

Those for shared memory are removed by their processes. If all of them were killed, a later run removes the folder:
nobody has locked it.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..core.errors import RunError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only private folders are made in it

_NAME: Final = re.compile(r"graphcut-\d+-\w+")
#: younger folders are never removed: one is locked only after it was made, so it may not be locked yet.
_MIN_AGE_S: Final = 60.0


class ShmFolders:
    """Private folders for shared memory: one in /dev/shm where that exists, and one among the temporary files."""

    def __init__(self) -> None:
        """Make and lock the folders."""
        self.paths: list[str] = []  #: the first one that has room is used.
        self._locks: list[int] = []
        parents = dict.fromkeys(path for path in (SHARED_MEMORY, Path(tempfile.gettempdir())) if path.is_dir())
        for parent in parents:
            with suppress(OSError):
                self.paths.append(tempfile.mkdtemp(prefix=f"graphcut-{os.getpid()}-", dir=parent))
                self._locks.append(lock_folder(self.paths[-1]))
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


def lock_folder(path: str | Path) -> int:
    """Lock a folder for use, and remove abandoned folders beside it.

    The lock is held until the returned file descriptor is closed or this process ends. A FileNotFoundError if another
    process removes the folder before it is locked.
    """
    file = _lock(path, fcntl.LOCK_SH)
    for other in Path(path).parent.glob("graphcut-*"):
        with suppress(OSError):
            if _NAME.fullmatch(other.name) and time.time() - other.stat().st_mtime > _MIN_AGE_S:
                remove_unused(other)
    return file


def remove_unused(folder: Path) -> None:
    """Remove a folder that no process has locked."""
    with suppress(OSError):
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(path: str | Path, kind: int) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, kind)
        if not os.path.samestat(os.fstat(file), Path(path).stat()):  # removed meanwhile, and made anew
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except OSError:
        os.close(file)
        raise
    return file
