"""The command `graphcut export`."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer import Option

from .application import check_applicable, given_options
from .common_options import CascadePath, Dims, Force, OriginalModel, Output, open_, parsed_dims
from .output import say

Format = Literal["cpp", "genai", "js", "lingualinked", "mobile", "onnx-ir11", "ort-annotations", "triton"]

FORMATS: Final = {
    "cpp": "parts, and a header that runs them in a C++ program",
    "genai": "a pipeline of ONNX Runtime GenAI: parts, genai_config.json and tokenizer, these from the model's folder",
    "js": "parts, a module that runs them in Node.js and in browsers, and a page",
    "lingualinked": "LinguaLinked's maps of what parts send; --dim and --model make sizes known",
    "mobile": "parts in ORT format, the operators that they need, and whether they suit NNAPI and CoreML",
    "onnx-ir11": "one model, with a pipeline stage for each node",
    "ort-annotations": "one model with `layer_ann` metadata, and the session option that maps parts to devices",
    "triton": "a model repository with an ensemble",
}
"""What each format is, for the help."""


def export(
    ctx: typer.Context,
    cascade_path: CascadePath,
    to: Annotated[Format, Option(help="The format.")],
    output: Annotated[Path, Output(help="The folder.")],
    model: OriginalModel = None,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Write a cascade as another engine reads it."""
    from ..drawing.opening import source_of, with_dims
    from ..exporting import cpp, genai, js, lingualinked, mobile, one_model, triton

    plain = {
        "cpp": cpp.export_cpp,
        "js": js.export_js,
        "mobile": mobile.export_mobile,
        "onnx-ir11": one_model.export_onnx_ir11,
        "ort-annotations": one_model.export_ort_annotations,
        "triton": triton.export_triton,
    }
    owners = {"--dim": "--to lingualinked", **({"--model": "--to genai or lingualinked"} if to in plain else {})}
    check_applicable(given_options(ctx), owners, [f"--to {to}"])
    cascade = open_(cascade_path)
    if to == "genai":
        files = genai.export_genai(cascade, output, model=model, force=force)
    elif to == "lingualinked":
        cascade = with_dims(cascade, parsed_dims(dim))
        source = None if model is None else source_of(cascade, model)
        sizes = None if source is None else source.tensor_bytes
        files = lingualinked.export_lingualinked(cascade, output, sizes=sizes, force=force)
    else:
        files = plain[to](cascade, output, force=force)
    for file in files:
        say(f"wrote {file}")
