"""A folder of files that an export writes as a whole, or not at all."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..core.atomic_files import mend, replace_files, scratch_folder
from ..core.errors import GraphcutError, UsageError


def write_folder(
    folder: str | Path, files: Mapping[str, bytes | Path], *, is_own: Callable[[str], bool], what: str, force: bool
) -> list[Path]:
    """Write files into a folder: bytes, or a copy of a file.

    Args:
        folder: a new folder, or with `force` one with such files, which is replaced as a whole.
        files: the content of each file, by its path in the folder.
        is_own: whether a file with this path may be replaced.
        what: what these files are, for messages.
        force: replace an existing folder.

    Returns:
        The files, sorted by name.

    Raises:
        UsageError: `folder` exists, or contains other files.
        GraphcutError: writing failed; nothing was changed.
    """
    folder = Path(folder)
    place = (folder.absolute().parent, folder.name)
    mend(*place)
    check_target = partial(_check_target, folder, is_own=is_own, what=what, force=force)
    check_target(folder)
    try:
        with scratch_folder(*place) as scratch:
            new = scratch / "new" / folder.name
            for name, content in files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copyfile(content, new / name)
                else:
                    (new / name).write_bytes(content)
            check = partial(check_target, scratch / "old" / folder.name)
            replace_files(scratch, place[0], last=folder.name, old=[folder.absolute()], check=check)
    except OSError as error:
        raise GraphcutError(
            f"writing {folder} failed: {error.strerror or error}", hint="nothing was changed"
        ) from error
    return [folder / name for name in sorted(files)]


def _check_target(folder: Path, place: Path, *, is_own: Callable[[str], bool], what: str, force: bool) -> None:
    """Check what is in `folder`, which may have been moved to `place`."""
    if place.exists() and not place.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder with -o")
    existing = sorted(path.relative_to(place).as_posix() for path in place.rglob("*")) if place.is_dir() else []
    for name in existing:
        if not is_own(name):
            raise UsageError(f"{folder} contains {name!r}, which is not {what}", hint="choose a new folder with -o")
    if existing and not force:
        raise UsageError(f"{folder} already exists", hint="choose another folder with -o, or add --force")
