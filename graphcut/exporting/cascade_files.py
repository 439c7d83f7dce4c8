"""The files of a cascade, for the folders that exports write."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ..core.atomic_files import Content
from ..core.errors import UsageError
from ..core.file_checks import check_files
from ..core.manifest import MANIFEST, Cascade, read_manifest, save_manifest

Export = dict[str, Content]
"""What an export writes, by the paths in its folder."""


def moved_manifest(cascade: Cascade, write: Callable[[Path], object], home: Path, path: Path) -> None:
    """Write an exported manifest to `path`; it says where the model is, seen from `home`, where it will be."""
    write(path)
    manifest = read_manifest(path)
    place = os.path.relpath(cascade.source.parent.resolve() / cascade.source.name, home.resolve())
    save_manifest(replace(manifest, source=replace(manifest.source, file=Path(place).as_posix())), path)


def fed(cascade: Cascade, names: Iterable[str]) -> list[str]:
    """Those of the tensors that a format can't leave to whoever feeds them: inputs with a default are left out."""
    return [name for name in names if name not in cascade.manifest.optional]


def cascade_files(cascade: Cascade, *, for_each: str = "") -> dict[str, Content]:
    """The manifest, parts, their data files and those of the tokenizer, by their names in the folder that is written.

    A UsageError if the parts share the weights of their model and must not: `for_each` says why. A CascadeError if a
    file is missing or was changed.
    """
    if for_each and cascade.manifest.weights == "share":
        message = f"the parts in {cascade.root} share the weights of their model: {for_each}"
        raise UsageError(message, hint="split the model again with `weights='copy'`")
    check_files(cascade)
    names = [name for part in cascade.parts for name in part.contents]
    files = {name: cascade.root / name for name in (*names, *cascade.manifest.text_files)}
    return {MANIFEST: partial(save_manifest, cascade.manifest), **files}
