"""The command `graphcut export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

from .. import ExportFormat
from ..core.records import table
from .common_options import Place, Texts, parsed_dims, say_gap
from .output import say

if TYPE_CHECKING:
    from ..core.manifest import Cascade

LEGEND: Final = {"Formats": table("cli/formats.json", dict[str, str])}


def export(
    cascade_path: Path,
    to: Annotated[ExportFormat, {"help": f"The format: {', '.join(get_args(ExportFormat))}."}],
    output: Path,
    model: Place = None,
    dims: Texts = None,
    force: bool = False,
) -> None:
    """Write a cascade as another engine reads it.

    Examples:
        graphcut export llm.parts --to js -o web
        graphcut export unet.parts --to triton -o triton
    """
    from ..core.present_parts import open_present

    cascade = open_present(cascade_path)
    for file in exported(cascade, model, output, to=to, dims=parsed_dims(dims), force=force):
        say(f"wrote {file}")
    if cascade.absent:
        say(f"note: not here, nor in {output}: {', '.join(cascade.absent)}")
    say_gap(cascade)


def exported(
    cascade: Cascade, model: Path | None, output: Path, *, to: ExportFormat, dims: Mapping[str, int], force: bool
) -> list[Path]:
    from .. import export

    options: dict[str, object] = {"model": model} if to == "genai" else {}
    if to == "lingualinked":
        from ..drawing.opening import source_of, with_dims

        cascade = with_dims(cascade, dims)
        source = None if model is None else source_of(cascade, model)
        options["sizes"] = None if source is None else source.tensor_bytes
    return export(cascade, output, to=to, force=force, **options)
