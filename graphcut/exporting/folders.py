"""A folder of files that an export writes as a whole, or not at all."""

import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from ..core.atomic_files import mend, replace_files, scratch_folder, write_errors
from ..core.errors import CascadeError, UsageError
from ..core.manifest import MANIFEST, Cascade, wrong_sizes

PARTS: Final = "part-*.onnx*"  #: the names of parts and of what belongs to them, as a pattern.
Content = bytes | Path | dict[str, Any] | Callable[[Path], object]
"""What is written into a file: bytes, a copy of a file, JSON, or what a function writes when it is given the path."""


def cascade_files(cascade: Cascade, *, for_each: str = "") -> dict[str, Path]:
    """The manifest, parts, their data files and those of the tokenizer, by their names in the folder that is written.

    A UsageError if the parts share the weights of their model and must not: `for_each` says why. A CascadeError if a
    file is missing or was changed.
    """
    if for_each and cascade.manifest.weights == "share":
        message = f"the parts in {cascade.root} share the weights of their model: {for_each}"
        raise UsageError(message, hint="split the model again with `weights='copy'`")
    files = {MANIFEST: cascade.path}
    for part in cascade.parts:
        for problem in wrong_sizes(cascade, part):
            raise CascadeError(problem, hint="copy the whole cascade, or split the model again")
        files |= {name: cascade.root / name for name in (part.file, *part.data)}
    return files | {name: cascade.root / name for name in cascade.manifest.text_files}


def write_folder(
    folder: str | Path, files: Mapping[str, Content], *, own: Collection[str] = (), what: str, force: bool
) -> list[Path]:
    """Write files, by their paths in the folder, in their order; returns them sorted.

    The folder is new, or with `force` one with such files, which is replaced as a whole. `own` are patterns of other
    paths that may be replaced, too; `what` is what these files are, for messages. A UsageError if `folder` exists, or
    contains other files; a GraphcutError if writing fails, and then nothing was changed.
    """
    folder = Path(folder)
    place = (folder.absolute().parent, folder.name)
    mend(*place)
    check_target = partial(_check_target, folder, own={*files, *own}, what=what, force=force)
    check_target(folder)
    with write_errors(folder), scratch_folder(*place) as scratch:
        new = scratch / "new" / folder.name
        for name, content in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, new / name)
            elif isinstance(content, bytes):
                (new / name).write_bytes(content)
            elif isinstance(content, dict):
                (new / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
            else:
                content(new / name)
        check = partial(check_target, scratch / "old" / folder.name)
        replace_files(scratch, place[0], last=folder.name, old=[folder.absolute()], check=check)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _check_target(folder: Path, place: Path, *, own: Collection[str], what: str, force: bool) -> None:
    """Check what is in `folder`, which may have been moved to `place`."""
    if place.exists() and not place.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder with `output`")
    files = (path for path in place.rglob("*") if path.is_symlink() or not path.is_dir())
    existing = sorted(path.relative_to(place).as_posix() for path in files)
    for name in existing:
        if name not in own and not any(PurePosixPath("/", name).match(f"/{pattern}") for pattern in own):
            raise UsageError(
                f"{folder} contains {name!r}, which is not {what}", hint="choose a new folder with `output`"
            )
    if existing and not force:
        raise UsageError(f"{folder} already exists", hint="choose another folder with `output`, or add `force=True`")
