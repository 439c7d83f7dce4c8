"""The command `graphcut demo`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ..core.arguments import FloatType
from ..core.text import shell_word
from ..demos import DEMOS, options_of, write
from .application import check_apply, given_options
from .common_options import Place
from .output import check_output, say, say_next

LEGEND: Final = {"Demos": DEMOS}


@dataclass(frozen=True)
class LlmOptions:
    """What the demo `llm` can be like."""

    hidden: int = 64
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    intermediate: int | None = None
    vocab: int = 256
    dtype: FloatType = "float32"
    tied: bool = False


def demo(
    ctx: typer.Context,
    name: Annotated[str, {"autocompletion": lambda: list(DEMOS.items())}],
    llm: LlmOptions,
    output: Place = None,
    external: bool | None = None,
    force: bool = False,
) -> None:
    """Write an example model with random weights.

    Examples:
        graphcut demo llm
        graphcut demo unet
        graphcut demo llm -o wide.onnx --hidden 128 --layers 4
    """
    path = output or Path(f"{name}.onnx")
    check_output(path, force=force)
    options = {one.name: max(one.opts, key=len) for one in ctx.command.params}
    given = {one: value for one, value in asdict(llm).items() if options[one] in given_options(ctx)}
    unknown = [options[one] for one in given if one not in options_of(name)]
    check_apply(unknown, unknown, f"the demo {name}")
    write(name, path, external=external, **given)
    say(f"wrote {path}")
    say_next(f"graphcut analyze {shell_word(str(path))}")
