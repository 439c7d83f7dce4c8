"""The command `graphcut compare`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import structs

from ..core.errors import UsageError
from ..core.text import shell_word
from .application import check_apply, given_options
from .common_options import Optimized, Place, Places, SessionOptions, Texts, load, names_in, parsed_dims, say_gap
from .input_files import read_given
from .output import check_output, put_answer, put_text, say, settings

if TYPE_CHECKING:
    from .. import SessionConfig


def compare(
    ctx: typer.Context,
    before: Path,
    after: Path,
    output: Place = None,
    model: Place = None,
    dims: Texts = None,
    inputs: Places = None,
    seed: int = 0,
    tolerance: float | None = None,
    ignore: Texts = None,
    optimize: Optimized = "none",
    provider: list[str] | None = None,
    extract: Place = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Compare two models, or two plans or cascades of a model.

    Models are run on the same inputs, without --inputs on two sets generated from the seed. If nodes of B add an error
    that their types do not explain, the culprits are named; exit code 1. Of plans and cascades it says what changed
    from A to B.

    Examples:
        graphcut compare llm.parts planned.parts
        graphcut compare llm.onnx llm.onnx --optimize all --tolerance 1e-4
    """
    are_models = _are_models(before, after, given_options(ctx))
    ending = "" if output is None else output.suffix.lower()
    is_picture, is_json = ending in {".html", ".htm", ".svg"}, as_json or ending == ".json"
    known = [".txt", ".json", *[".html", ".htm", ".svg"] * (are_models and not as_json)]
    check_output(output, before, after, *(inputs or ()), force=force, suffixes=known)
    if not are_models:
        from ..drawing.changes.differences import changes_between
        from ..drawing.opening import scene_at
        from ..drawing.terminal.changes import draw_changes

        changes = changes_between(*(scene_at(one, model=model, dims=parsed_dims(dims)) for one in (before, after)))
        changes = structs.replace(changes, notes=tuple(map(settings.words, changes.notes)))
        put_answer(changes, partial(draw_changes, changes), output, as_json=is_json)
        return

    from .. import compare_models, write_reproducer

    first, configs = load(before, dims), _configs(provider or (), optimize)
    found = compare_models(
        first,
        after,
        inputs=read_given(inputs, first),
        seed=seed,
        tolerance=tolerance,
        ignore=names_in(ignore or ()),
        config=configs[1],
        model_config=configs[0],
        histograms=is_picture,
    )
    say_gap(before, after)
    if extract is not None and found.culprits:
        write_reproducer(first, after, found, extract, force=force)
        say(f"wrote {extract}: {found.culprits[0].node} in both models")
    if is_picture:
        from ..drawing.comparison_page import comparison_html
        from ..drawing.svg.error_chart import comparison_svg

        title = f"{before.name} and {after.name}"
        put_text(comparison_svg(found, title) if ending == ".svg" else comparison_html(found, title), output)
        raise typer.Exit(0 if found else 1)
    from ..drawing.terminal.verification import draw_model_comparison
    from ..drawing.verification_records import verification_record

    draw, record = partial(draw_model_comparison, found), verification_record(found)
    put_answer(record, draw, output, as_json=is_json, is_yes=found.same)


def _are_models(before: Path, after: Path, given: Collection[str]) -> bool:
    """Whether both are models, not plans or cascades; refuses a model and another kind, and options of the others."""
    from ..drawing.opening import kind_at

    kinds: dict[str, Path] = {kind_at(path): path for path in (before, after)}
    if "model" not in kinds:
        names = ("--inputs", "--seed", "--tolerance", "--ignore", "--optimize", "--provider", "--extract")
        check_apply(given, names, "plans and cascades")
    elif len(kinds) == 1:
        check_apply(given, ("--model",), "models")
    else:
        model = kinds.pop("model")
        ((other, path),) = kinds.items()
        hint = "compare two models, or two plans or cascades of one model"
        if other == "cascade":
            hint = f"`graphcut verify {shell_word(str(path))} --model {shell_word(str(model))}` compares these two"
        raise UsageError(f"{model} is a model, and {path} is a {other}", hint=hint)
    return "model" in kinds


def _configs(providers: Sequence[str], optimize: Optimized) -> tuple[SessionConfig, SessionConfig]:
    """How A and B run."""
    from .. import EXACT

    if len(providers) > 2:
        hint = "give it once for B, or first for A and then for B"
        raise UsageError("--provider is given more than twice", hint=hint)
    sides = [SessionOptions(provider=text).session_config() for text in [None, None, *providers][-2:]]
    first, second = (replace(EXACT, provider=side.provider, options=side.options) for side in sides)
    return first, replace(second, optimize=optimize)
