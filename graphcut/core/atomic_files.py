"""Files put in their place all together, or not at all: written into a folder beside, then renamed.

What is undone when something fails is also undone for Ctrl-C. Only a machine that stops between two renames can leave
a half, and then the old files lie in the folder beside.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder in `parent`, so on the same disk; gone at the end, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.tmp-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to; once all went well, the file takes the place of `path`, or of what that links to.

    Raises:
        UsageError: something that is no file stands there: a folder, a device, a pipe.
    """
    goal = path.resolve() if path.is_symlink() else path.absolute()
    if goal.exists() and not goal.is_file():
        raise UsageError(f"{path} is no ordinary file, and can't be replaced", hint="choose another name with -o")
    with scratch_folder(goal.parent, goal.name) as scratch:
        yield scratch / "new"
        os.replace(scratch / "new", goal)


def replace_folder(new: Path, goal: Path, away: Path) -> None:
    """Let `new` be `goal`. A folder that stands there moves to `away`, and back if that fails."""
    if not goal.exists():
        os.replace(new, goal)
        return
    os.replace(goal, away)
    try:
        os.replace(new, goal)
    except BaseException:
        os.replace(away, goal)
        raise


def replace_files(new: Path, goal: Path, *, last: str, old: Iterable[Path], away: Path) -> None:
    """Move all files of `new` into `goal`, the one called `last` at the end, and all of `old` to `away`.

    If that fails, everything is as it was.
    """
    away.mkdir()
    done: list[tuple[Path, Path]] = []
    names = sorted(file.name for file in new.iterdir() if file.name != last)
    moves = [(file, away / file.name) for file in dict.fromkeys(old) if file.exists()]
    moves += [(new / name, goal / name) for name in (*names, last)]
    try:
        for source, target in moves:
            done.append((source, target))
            os.replace(source, target)
    except BaseException:
        for source, target in reversed(done):
            if target.exists() and not source.exists():
                os.replace(target, source)
        raise
