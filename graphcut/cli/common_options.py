"""The words that commands share: the command itself, arguments that several of them take, and what these name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..loading.model import Model

_ORDER: Final = (
    *("demo", "analyze", "plan", "split", "verify", "show"),
    *("run", "generate", "bench", "simulate", "merge", "cost-model"),
)
"""Commands as one comes to need them."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer has no public name for its type
        return sorted(self.commands, key=_ORDER.index)


app = typer.Typer(
    cls=_InOrder,
    name="graphcut",
    help="Cut an ONNX model into parts that together do what it did, and prove it.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: right in every terminal and pipe, and there in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file; its external data lie beside it.")]
CascadePlace = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a cascade, or its manifest file.")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="A number for a symbolic dimension, for sizes only. Repeatable."),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", metavar="INPUT=OUTPUT", help="An output that becomes that input at the next step. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything, as JSON on stdout.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace what stands there already.")]
Inputs = Annotated[
    list[Path] | None,
    typer.Option("--inputs", metavar="FILE", help="A .npz file, or an ONNX test-data folder. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and what was asked for.")]


def load(path: Path, dim: Sequence[str] | None, state: Sequence[str] | None = None) -> Model:
    """The model that a command line names."""
    from ..core.states import parse_state_pairs
    from ..loading.model import load

    return load(path, dims=dims(dim), states=parse_state_pairs(state or ()))


def dims(dim: Sequence[str] | None) -> dict[str, int]:
    """The numbers that --dim gives to symbolic dimensions."""
    dims: dict[str, int] = {}
    for text in dim or ():
        name, found, number = text.rpartition("=")
        if not (found and name and number.isascii() and number.isdigit()):
            raise UsageError(f"--dim {text} does not say NAME=N", hint="write it like --dim seq=128")
        dims[name] = int(number)
    return dims


def open_(place: Path) -> Cascade:
    """The cascade that a command line names."""
    from ..core.manifest import open_cascade
    from ..drawing.opening import is_plan

    if place.suffix == ".onnx" and place.is_file():
        hint = f"`graphcut analyze {shlex.quote(str(place))}` shows where it can be cut"
        raise UsageError(f"{place} is a model, not a cascade", hint=hint)
    if is_plan(place):
        hint = f"`graphcut split MODEL --plan {shlex.quote(str(place))}` makes one"
        raise UsageError(f"{place} is a plan, not a cascade", hint=hint)
    return open_cascade(place)


def shortest(cascade: Cascade) -> Path:
    """The folder where that is enough to find the manifest, else the manifest."""
    return cascade.path.parent if cascade.path.name == "cascade.json" else cascade.path


def check_goal_file(output: Path | None, *, force: bool, option: str = "-o") -> None:
    """What can be known of a file to write before the work is done."""
    if output is None:
        return
    if output.exists() and not force:
        raise UsageError(f"{output} stands there already", hint=f"choose another name with {option}, or add --force")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", hint=f"make it first, or choose another with {option}")
