"""Export a cascade in the formats of other tools: one module for each, whose `export_of` says the files."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..core.manifest import CascadeLike

ExportFormat = Literal[
    "cpp", "genai", "js", "lingualinked", "mobile", "model-package", "ort-annotations", "qnn", "triton"
]
"""The formats that `export` writes."""


def export(
    cascade: CascadeLike, folder: str | Path, *, to: ExportFormat, force: bool = False, **options: object
) -> list[Path]:
    """Write a cascade as another engine reads it, into a new folder: as a whole, or not at all.

    Args:
        cascade: the cascade or its path.
        folder: the folder to make.
        to: the format; see docs/guides/export.md.
        force: replace a folder that holds such an export and nothing else, each file as it was written.
        options: for `genai` also `model`, the path of the model that was cut, if it has moved; for `lingualinked` also
            `sizes`, the bytes of each tensor (`Model.tensor_bytes`), by default by the manifest.

    Returns:
        The files, sorted.

    Raises:
        UsageError: the folder holds other files, or the format can't hold this cascade, or not some of its parts.
        CascadeError: a file of the cascade is missing or was changed.
        GraphcutError: writing failed; nothing was changed.
    """
    from ..core.atomic_files import write_folder
    from ..core.errors import UsageError, check_word
    from ..core.manifest import MANIFEST
    from ..core.present_parts import open_present
    from .cascade_files import moved_manifest

    check_word(to, ExportFormat, "to")
    cascade, folder = open_present(cascade), Path(folder)
    if cascade.absent and to in {"genai", "lingualinked", "ort-annotations"}:  # these mean nothing for some parts
        message = f"{to} takes all parts, and {cascade.root} lacks {', '.join(cascade.absent)}"
        raise UsageError(message, hint="export the whole cascade")
    if cascade.manifest.loop is not None and to in {"cpp", "js", "triton"}:
        message = f"what {to} writes runs each part once, and {cascade.root} has {cascade.manifest.loop.steps} steps"
        raise UsageError(message, hint="export the cascade of one of its models, and write the loop around it")
    if cascade.converted and to not in {"cpp", "js", "lingualinked"}:
        message = f"{to} takes ONNX models, and {cascade.converted[0]} has no nodes of ONNX"
        raise UsageError(message, hint="export the cascade that it was made from")
    files = import_module(f".{to.replace('-', '_')}", __name__).export_of(cascade, **options)
    for name in files:
        if Path(name).name == MANIFEST:
            files[name] = partial(moved_manifest, cascade, files[name], (folder / name).parent)
    return write_folder(folder, files, kind=f"an export to {to}", force=force)
