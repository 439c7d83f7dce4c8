"""The command `graphcut demo`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from ..core.text import shell_word
from ..demos import DEMOS, write
from .application import given_options
from .common_options import Force, Output
from .output import check_output, say, say_next


def demo(
    ctx: typer.Context,
    name: Annotated[
        str, Argument(metavar="NAME", help="One of the demos below.", autocompletion=lambda: list(DEMOS.items()))
    ],
    output: Annotated[Path | None, Output(help="The .onnx file.", show_default="NAME.onnx")] = None,
    hidden: Annotated[int, Option(metavar="N", help="llm: hidden size.")] = 64,
    layers: Annotated[int, Option(metavar="N", help="llm: number of layers.")] = 6,
    heads: Annotated[int, Option("--attention-heads", metavar="N", help="llm: attention heads.")] = 4,
    kv_heads: Annotated[int, Option(metavar="N", help="llm: key/value heads.")] = 2,
    intermediate: Annotated[
        int | None, Option(metavar="N", help="llm: width of the MLP.", show_default="8/3 of --hidden")
    ] = None,
    vocab: Annotated[int, Option(metavar="N", help="llm: vocabulary size.")] = 256,
    dtype: Annotated[Literal["float32", "float16"], Option(help="llm: type of weights and cache.")] = "float32",
    tied: Annotated[bool, Option("--tied", help="llm: the output projection is the embedding.")] = False,
    external: Annotated[
        bool | None,
        Option("--external/--inline", help="Weights beside the model, or inside it.", show_default="by size"),
    ] = None,
    force: Force = False,
) -> None:
    """Write an example model with random weights.

    Examples:
        graphcut demo llm
        graphcut demo unet
        graphcut demo llm -o wide.onnx --hidden 128 --layers 4
    """
    path = output or Path(f"{name}.onnx")
    check_output(path, force=force)
    values = {
        "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads,
        "intermediate": intermediate, "vocab": vocab, "dtype": dtype, "tied": tied,
    }  # fmt: skip
    given = {option.removeprefix("--").removeprefix("attention-").replace("-", "_") for option in given_options(ctx)}
    write(name, path, external=external, **{option: value for option, value in values.items() if option in given})
    say(f"wrote {path}")
    say_next(f"graphcut analyze {shell_word(str(path))}")
