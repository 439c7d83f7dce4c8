"""Export a cascade in the formats of other tools, one module for each, with a function `export_NAME`.

Such a function takes a cascade or its path, writes a new folder as a whole or not at all, and returns its files,
sorted. With `force` it replaces a folder that holds such an export and nothing else. Errors: UsageError for a folder
that it may not replace, or a cascade that the format can't hold; CascadeError for a file of the cascade that is
missing; GraphcutError where writing fails.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..core.manifest import CascadeLike

ExportFormat = Literal["cpp", "genai", "js", "lingualinked", "mobile", "ort-annotations", "triton"]
"""The formats that `export` writes."""


def export(
    cascade: "CascadeLike", to: ExportFormat, folder: str | Path, *, force: bool = False, **options: object
) -> list[Path]:
    """Write a cascade as another engine reads it.

    Args:
        cascade: the cascade or its path.
        to: the format; see docs/guides/export.md.
        folder: the folder to make.
        force: replace a folder that holds such an export and nothing else.
        options: for `genai` also `model`, the path of the model that was cut, if it has moved; for `lingualinked` also
            `sizes`, the bytes of each tensor (`Model.tensor_bytes`), by default by the manifest.

    Returns:
        The files, sorted.

    Raises:
        UsageError: the folder holds other files, or the format can't hold this cascade.
        CascadeError: a file of the cascade is missing or was changed.
        GraphcutError: writing failed; nothing was changed.
    """
    name = to.replace("-", "_")
    exporter = getattr(import_module(f".{name}", __name__), f"export_{name}")
    return list(exporter(cascade, folder, force=force, **options))
