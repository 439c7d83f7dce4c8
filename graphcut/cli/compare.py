"""The command `graphcut compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from ..core.errors import UsageError
from ..core.text import shell_word
from .application import check_apply, given_options
from .common_options import AsJson, Dims, Force, Inputs, Optimized, OriginalModel, Output, Seed, load, parsed_dims
from .input_files import read_given
from .output import check_output, put_drawing, put_text

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console, RenderableType

_OF_MODELS: Final = ("--inputs", "--seed", "--tolerance", "--optimize", "--provider")


def compare(
    ctx: typer.Context,
    before: Annotated[Path, Argument(metavar="A", help="A model, a plan, or the folder or manifest of a cascade.")],
    after: Annotated[Path, Argument(metavar="B", help="Another model; or another plan or cascade of the same model.")],
    output: Annotated[Path | None, Output(help="A text file; with --json or the ending .json a JSON file.")] = None,
    model: OriginalModel = None,
    dim: Dims = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    tolerance: Annotated[
        float, Option(metavar="F", min=0, help="Allowed difference, as a fraction of a tensor's largest value.")
    ] = 0.0,
    optimize: Optimized = "none",
    provider: Annotated[str | None, Option(metavar="NAME", help="Execution provider of model B.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare two models, or two plans or cascades of a model.

    Models are run on the same inputs, without --inputs on two sets generated from the seed. If an output differs, the
    first tensor that does is found; exit code 1. Of plans and cascades it says what changed from A to B.
    """
    from ..drawing.opening import kind_at

    kinds: dict[str, Path] = {kind_at(path): path for path in (before, after)}
    given = given_options(ctx)
    if "model" not in kinds:
        check_apply(given, _OF_MODELS, "plans and cascades")
    elif len(kinds) == 1:
        check_apply(given, ("--model",), "models")
    else:
        raise _mixed(kinds)
    check_output(output, force=force)
    is_json = as_json or (output is not None and output.suffix.lower() == ".json")
    if "model" in kinds:
        from .. import compare_models
        from ..drawing.terminal.verification import draw_model_comparison
        from ..drawing.verification_records import verification_record
        from ..verifying.numerical import EXACT

        first, config = load(before, dim), replace(EXACT, optimize=optimize, provider=provider)
        feeds = read_given(inputs, first)
        found = compare_models(first, after, inputs=feeds, seed=seed, tolerance=tolerance, config=config)
        record = verification_record(found)
        _put(record, lambda console: draw_model_comparison(found, console), output, as_json=is_json)
        if not found:
            raise typer.Exit(1)
    else:
        from ..drawing.changes.differences import changes_between
        from ..drawing.opening import scene_at
        from ..drawing.terminal.changes import draw_changes

        sizes = parsed_dims(dim)
        changes = changes_between(*(scene_at(one, model=model, dims=sizes) for one in (before, after)))
        _put(changes, lambda console: draw_changes(changes, console), output, as_json=is_json)


def _mixed(kinds: Mapping[str, Path]) -> UsageError:
    """The error that a model and another kind can't be compared."""
    model = kinds["model"]
    other, path = next((kind, path) for kind, path in kinds.items() if kind != "model")
    hint = "compare two models, or two plans or cascades of one model"
    if other == "cascade":
        hint = f"`graphcut verify {shell_word(str(path))} --model {shell_word(str(model))}` compares these two"
    return UsageError(f"{model} is a model, and {path} is a {other}", hint=hint)


def _put(
    record: msgspec.Struct, draw: Callable[[Console], RenderableType], output: Path | None, *, as_json: bool
) -> None:
    from ..drawing.json_records import dumps

    if as_json:
        put_text(dumps(record) + "\n", output)
    else:
        put_drawing(draw, output)
