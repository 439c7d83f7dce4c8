"""Replace files and folders atomically: new ones are written to a scratch folder, then renamed.

An error undoes what was done, and so does Ctrl-C, which waits in the command while a scratch folder is made or deleted
(in a notebook, one at that moment can leave the folder). If a process was killed, the next one that writes to the same
place does. Only a machine that stops between two renames can leave a mixture; the old files are then in the scratch
folder.
"""

import ctypes
import errno
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from .digests import file_digest, is_unchanged
from .errors import GraphcutError, LeftoverWarning, RecordError, UsageError
from .records import as_json, read_record
from .units import size

_SUFFIX: Final = ".tmp-graphcut"
_AT_FDCWD: Final = -100  # linux/fcntl.h
_RENAME_NOREPLACE: Final = 1  # linux/fs.h
_RENAME_EXCL: Final = 4  # sys/stdio.h of macOS


Content = bytes | Path | dict[str, Any] | Callable[[Path], object]
"""What is written into a file: bytes, a copy of a file, JSON, or what a function writes when it is given the path."""

WRITTEN: Final = "written.json"
"""The file in a folder that `write_folder` made that lists the others: nothing else in it is ever replaced."""


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `WRITTEN`."""

    format: Literal["graphcut.written/1"] = "graphcut.written/1"  #: `graphcut.written/1`.
    kind: str  #: what the files are together, such as `an export to js`.
    files: dict[str, str]  #: the digests of the files, by their paths in the folder.


_finished: Final[list[tuple[Path, int]]] = []  #: outputs of this process, each with the inode of its last file.


class _Moves(msgspec.Struct):
    """What `replace_files` is about to rename."""

    folder: str  #: where the files are to be, relative to the folder that has the scratch folder.
    last: str  #: the file that is renamed last: once it is, all is done.
    new: dict[str, tuple[int, int, int]]  #: the other new files, each with its `_identity`.


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder in `parent`, so on the same file system, for writing `name`; deleted at the end.

    One process at a time has it: it is locked. What a killed process left there is undone and deleted first, with a
    `LeftoverWarning`. A UsageError if another process has it, or a file is in the way of one that is to be put back.
    """
    home = _home(parent, name)
    lock, scratch = _lock(home), home / "files"
    try:
        if scratch.exists():
            _clear(scratch)
            warnings.warn(f"removed {home}, which a killed run had left", LeftoverWarning, stacklevel=3)
        scratch.mkdir()
        yield scratch
    finally:
        try:
            _clear(scratch)
            with suppress(OSError):  # another process has found it, and waits for the lock
                (home / "lock").unlink()
                home.rmdir()
        finally:
            os.close(lock)


def mend(parent: Path, name: str) -> None:
    """Undo and delete what a killed process left of `scratch_folder(parent, name)`, whose errors it raises.

    Every writer calls it before its work. A UsageError if there is no folder `parent`: none is made by mistake.
    """
    if not parent.is_dir():
        raise UsageError(f"there is no folder {parent}", hint="make it first, or choose another")
    if _home(parent, name).exists():
        with scratch_folder(parent, name):
            pass


def _home(parent: Path, name: str) -> Path:
    return parent.resolve() / f".{name}{_SUFFIX}"


def _lock(home: Path) -> int:
    """Make the folder, and lock a file in it. The lock ends when the process ends, in whatever way."""
    import fcntl  # not on Windows, where what only reads works without it

    hint = f"wait until it has ended; if none is running, move {home} away"
    busy = UsageError(f"another run is writing {home.with_name(home.name[1:].removesuffix(_SUFFIX))}", hint=hint)
    while True:
        is_new = False
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)
            is_new = True
        if home.is_symlink():  # what it leads to is not ours
            raise busy
        with suppress(FileNotFoundError), ExitStack() as unless_locked:  # whoever had it has deleted it just now
            lock = os.open(home / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            unless_locked.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # some file systems have no locks
                if isinstance(error, BlockingIOError) or not is_new:
                    raise busy from None
            if os.path.samestat(os.fstat(lock), (home / "lock").stat()):
                unless_locked.pop_all()
                return lock


@contextmanager
def write_errors(path: str | Path, hint: str = "nothing was changed") -> Iterator[None]:
    """Make a GraphcutError of an OSError of what writes `path` atomically."""
    try:
        yield
    except OSError as error:
        if f"{_SUFFIX}/" in str(path):  # a step of a larger output, whose name is said
            raise
        raise GraphcutError(f"writing {path} failed: {error.strerror or error}", hint=hint) from error


def check_space(folder: Path, needed_bytes: int, what: str, hint: str) -> None:
    """Raise a GraphcutError if the disk of a folder has fewer bytes free. `what` says who needs them."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise GraphcutError(f"{what}, but {folder} has {size(free_bytes)} free", hint=hint)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to. At the end the file replaces `path`, or the file that the link `path` points to.

    A UsageError if `path` is a folder, a device or a pipe, or another process is writing it.
    """
    target = path.resolve() if path.is_symlink() else path.absolute()
    if target.exists() and not target.is_file():
        raise UsageError(f"{path} is not a regular file and can't be replaced", hint="choose another name")
    with scratch_folder(target.parent, target.name) as scratch:
        yield scratch / "new"
        finish(scratch / "new", target, os.replace)


def write_file(path: str | Path, content: bytes, hint: str = "nothing was changed") -> None:
    """Write a file, completely or not at all. A GraphcutError with the hint if it can't be written."""
    with write_errors(path, hint), replacing(Path(path)) as new:
        new.write_bytes(content)


def finish(new: Path, target: Path, move: Callable[[Path, Path], None]) -> None:
    """Move the last file of an output, or its folder, to its place."""
    _finished.append((target, new.lstat().st_ino))
    move(new, target)


def finished() -> list[Path]:
    """The outputs that this process has written and that are there, for whoever is interrupted."""
    return [path for path, inode in _finished if os.path.lexists(path) and path.lstat().st_ino == inode]


def replace_files(
    scratch: Path, folder: Path, *, last: str, old: Iterable[Path] = (), check: Callable[[], None] | None = None
) -> None:
    """Move the files `old` away, if they are there, then those of `scratch / "new"` into `folder`, `last` at the end.

    `scratch` is a scratch folder in `folder` or beside it. Leaving it undoes all moves unless `last` was moved. `check`
    is called when the old files are in `scratch / "old"`, to look at them once more, and may raise an error. Another
    file that has the name of a new one is not replaced: a UsageError.
    """
    new, backup = scratch / "new", scratch / "old"
    backup.mkdir()
    names = sorted(file.name for file in new.iterdir() if file.name != last)
    where = folder.resolve().relative_to(scratch.parent.parent)
    exchange = _Moves(str(where), last, {name: _identity(new / name) for name in names})
    (scratch / "moves.new").write_bytes(msgspec.json.encode(exchange))
    os.replace(scratch / "moves.new", scratch / "moves")  # a part of it would be no use
    for file in dict.fromkeys(old):
        if os.path.lexists(file):
            os.replace(file, backup / file.name)
    if check is not None:
        check()
    for name in names:
        rename(new / name, folder / name)
    finish(new / last, folder / last, rename)


def write_folder(folder: str | Path, files: Mapping[str, Content], *, kind: str, force: bool) -> list[Path]:
    """Write files, by their paths in the folder, in their order; returns all that are there, sorted.

    The folder is new, or with `force` one that this function wrote, which is replaced as a whole. `kind` is what the
    files are together. A UsageError if `folder` exists, or contains what was not written so (`check_target`); a
    GraphcutError if writing fails, and then nothing was changed.
    """
    folder = Path(folder)
    place = (folder.absolute().parent, folder.name)
    mend(*place)
    check = partial(check_target, folder, kind=kind, force=force)
    check(folder)
    with write_errors(folder), scratch_folder(*place) as scratch:
        new = scratch / "new" / folder.name
        for name, content in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, new / name)
            elif isinstance(content, bytes | dict):
                (new / name).write_bytes(as_json(content) if isinstance(content, dict) else content)
            else:
                content(new / name)
        made = {name: file_digest(new / name) for name in _files_in(new)}
        (new / WRITTEN).write_bytes(as_json(_Written(kind=kind, files=made)))
        moved = scratch / "old" / folder.name
        replace_files(scratch, place[0], last=folder.name, old=[folder.absolute()], check=partial(check, moved))
    return [folder / name for name in _files_in(folder)]


def _files_in(folder: Path) -> list[str]:
    """The paths of all in a folder and below that are no folders, sorted."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in sorted(found)]


def check_target(folder: Path, place: Path, *, kind: str, force: bool) -> None:
    """Raise a UsageError if `folder`, which may have been moved to `place`, can't be replaced as a whole.

    With `force` it can if each file in it was written by `write_folder` for the same `kind`, and was not changed.
    """
    if place.exists() and not place.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder with `output`")
    existing, own = _files_in(place), dict[str, str]()
    if (place / WRITTEN).is_file():
        with suppress(RecordError):  # it is another's
            record = read_record(place / WRITTEN, _Written, "graphcut.written/1", "", "")
            own = {**record.files, WRITTEN: ""} if record.kind == kind else {}
    for name in existing:
        file = place / name
        is_changed = force and name != WRITTEN and (file.is_symlink() or not is_unchanged(file, own.get(name, "")))
        if name not in own or is_changed:
            why = "was changed since it was written" if name in own else f"is not a file of {kind}"
            hint = f"choose a new folder with `output`: only files that {WRITTEN} there lists are replaced"
            raise UsageError(f"{folder} contains {name!r}, which {why}", hint=hint)
    if existing and not force:
        raise UsageError(f"{folder} already exists", hint="choose another folder with `output`, or add `force=True`")


def cache_folder() -> Path:
    """The folder for what can be made again.

    `$XDG_CACHE_HOME/graphcut`; by default `~/.cache/graphcut`, on macOS `~/Library/Caches/graphcut`.
    """
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "graphcut"


def _clear(scratch: Path) -> None:
    """Delete the scratch folder, but first undo a `replace_files` that was not completed."""
    if (scratch / "moves").exists():
        _undo(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _undo(scratch: Path) -> None:
    unknown = GraphcutError(f"{scratch} is not what graphcut leaves", hint="see what it is, and move it away")
    try:
        exchange = msgspec.json.decode((scratch / "moves").read_bytes(), type=_Moves)
    except msgspec.DecodeError:
        raise unknown from None
    folder, backup = scratch.parent.parent / exchange.folder, scratch / "old"
    if any(path.resolve() != path for path in (folder, backup)):  # made by others, to lead to files elsewhere
        raise unknown
    if not (scratch / "new" / exchange.last).exists():
        return
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name in exchange.new and _identity(file) == exchange.new[file.name]:
            file.unlink()
    for file in backup.iterdir():
        rename(file, folder / file.name)


def _identity(file: Path) -> tuple[int, int, int]:
    """What stays the same when a file is renamed, and tells it from a later file of the same name."""
    found = file.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def rename(source: Path, target: Path) -> None:
    """Rename a file or a folder. Unlike `os.rename`, it replaces nothing: a UsageError if `target` exists."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    code = errno.ENOSYS
    if sys.platform == "darwin":
        code = libc.renamex_np(*names, _RENAME_EXCL) and ctypes.get_errno()
    elif hasattr(libc, "renameat2"):
        code = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) and ctypes.get_errno()
    if code in {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}:  # the system or the file system lacks it
        code = errno.EEXIST if os.path.lexists(target) else 0
        if not code:
            source.rename(target)
    if code == errno.EEXIST:
        raise UsageError(f"{target} was made by another program meanwhile", hint="move it away, and try again")
    if code:
        raise OSError(code, os.strerror(code), str(source), None, str(target))
