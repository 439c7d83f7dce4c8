"""The command `graphcut export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from .application import check_applicable, given_options
from .common_options import CascadePath, Dims, Force, OriginalModel, Output, open_, parsed_dims
from .output import say

Format = Literal["genai", "lingualinked"]


def export(
    ctx: typer.Context,
    cascade_path: CascadePath,
    to: Annotated[Format, Option(help="The format: of ONNX Runtime GenAI, or LinguaLinked's maps.")],
    output: Annotated[Path, Output(help="The folder.")],
    model: OriginalModel = None,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Write a cascade as another engine reads it.

    genai: the parts, `genai_config.json` and the tokenizer, for ONNX Runtime GenAI; the last two come from the folder
    of the model. lingualinked: its maps of what parts send; --dim and --model make sizes known.
    """
    from ..drawing.opening import source_of, with_dims
    from ..exporting.genai import export_genai
    from ..exporting.lingualinked import export_lingualinked

    check_applicable(given_options(ctx), {"--dim": "--to lingualinked"}, [f"--to {to}"])
    cascade = open_(cascade_path)
    if to == "genai":
        files = export_genai(cascade, output, model=model, force=force)
    else:
        cascade = with_dims(cascade, parsed_dims(dim))
        source = None if model is None else source_of(cascade, model)
        sizes = None if source is None else source.tensor_bytes
        files = export_lingualinked(cascade, output, sizes=sizes, force=force)
    for file in files:
        say(f"wrote {file}")
