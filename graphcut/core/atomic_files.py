"""Replace files and folders atomically: new ones are written to a scratch folder, then renamed.

An error, Ctrl-C included, undoes what was done. Only a machine that stops between two renames can leave a mixture; the
old files are then in the scratch folder.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder in `parent`, so on the same file system; deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.tmp-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to. At the end the file replaces `path`, or the file that the link `path` points to.

    Raises:
        UsageError: `path` exists and is not a file: a folder, a device, a pipe.
    """
    target = path.resolve() if path.is_symlink() else path.absolute()
    if target.exists() and not target.is_file():
        raise UsageError(f"{path} is not a regular file and can't be replaced", hint="choose another name with -o")
    with scratch_folder(target.parent, target.name) as scratch:
        yield scratch / "new"
        os.replace(scratch / "new", target)


def replace_folder(new: Path, target: Path, backup: Path) -> None:
    """Rename `new` to `target`. An existing folder moves to `backup`, and back if renaming fails."""
    if not target.exists():
        os.replace(new, target)
        return
    os.replace(target, backup)
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(backup, target)
        raise


def replace_files(new: Path, target: Path, *, last: str, old: Iterable[Path], backup: Path) -> None:
    """Move the files `old` to `backup`, then all files of the folder `new` into `target`, `last` at the end.

    If a move fails, all moves are undone.
    """
    backup.mkdir()
    done: list[tuple[Path, Path]] = []
    names = sorted(file.name for file in new.iterdir() if file.name != last)
    moves = [(file, backup / file.name) for file in dict.fromkeys(old) if file.exists()]
    moves += [(new / name, target / name) for name in (*names, last)]
    try:
        for source, destination in moves:
            done.append((source, destination))
            os.replace(source, destination)
    except BaseException:
        for source, destination in reversed(done):
            if destination.exists() and not source.exists():
                os.replace(destination, source)
        raise
