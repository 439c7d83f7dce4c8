"""The command `graphcut auto`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from .. import ExportFormat
from ..core.errors import UsageError
from ..core.text import shell_word
from .application import GENERAL, app, check_apply, given_options, option_values
from .common_options import Place, Places, Texts, load, names_in, parsed_dims
from .export import exported
from .input_files import files_of, is_random
from .output import put_answer, say, say_next
from .plan_options import GoalOptions
from .split import cutter
from .text_options import file_of, text_of

if TYPE_CHECKING:
    from .. import Automation, Model

Precision = Literal["fp32", "fp16", "int8-static", "int8-mixed", "int8", "int4-mixed", "int4"]

_OWN: Final = ("--output", "--force", "--keep", "--json", "--replay", *GENERAL)
"""Options that a replay may have."""
_PATHS: Final = ("model", "--cluster", "--plan", "--calibration", "--inputs", "--text")


@dataclass(frozen=True)
class ConversionOptions:
    """Options that say how a model is converted, and how the loss of accuracy is measured and limited."""

    precision: Precision | None = None
    steps: Texts = None
    calibration: Place = None
    inputs: Places = None
    text: str | None = None
    accept: Texts = None

    def automation(self, model: Model, sources: Sequence[Path | None], *, searches: bool, **rest: Any) -> Automation:  # noqa: ANN401
        """What they ask to make of a model, or of the first precision that fits if it `searches`; and other fields."""
        from .. import Automation, read_inputs

        given = files_of([file for file in self.inputs or () if not is_random(file)])
        calibrating = files_of([self.calibration] if self.calibration else [])
        feeds = {f: read_inputs(f, model.graph.reads, tensors=model.tensors) for f in (*given, *calibrating)}
        config, steps = model.path.parent / "config.json", names_in(self.steps or ())  # it says how to fuse
        return Automation(
            model=model,
            precisions=[] if searches and self.precision is None else [self.precision or "fp32"],
            steps=steps,
            limits=self.accept or (),
            inputs=[feeds[file] for file in given],
            calibration=[feeds[file] for file in calibrating],
            text=None if self.text is None else text_of(self.text),
            sources=[
                *(path for path in (*feeds, file_of(self.text), *sources) if path is not None),
                *[config] * ("fuse" in steps and config.is_file()),
            ],
            **rest,
        )


def auto(
    options: GoalOptions,
    conversion: ConversionOptions,
    output: Path,
    model: Place = None,
    plan: Place = None,
    to: ExportFormat | None = None,
    keep: bool = False,
    replay: Place = None,
    dims: Texts = None,
    states: Texts = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Convert a model, cut it and verify the parts, in one go.

    Each step is made by the library that is kept for it, and what it costs in accuracy is measured. If a limit of
    accuracy is not met, nothing is written, with exit code 1. auto.json in the folder says what was done.

    Examples:
        graphcut auto unet.onnx --num-splits 2 -o auto.parts
        graphcut auto unet.onnx --precision fp16 --memory 5MB -o half.parts
    """
    from ..core.manifest import MANIFEST
    from .result_tables import draw_automation

    if replay is not None:
        own = ["--output", str(output), *["--force"] * force, *["--keep"] * keep, *["--json"] * as_json]
        _do_again(replay, model, own, given_options(options.ctx))
        return
    if model is None:
        raise UsageError("no model is named", hint="name an .onnx file, or --replay an auto.json")
    if keep and to == "triton":
        message = "--keep would put a folder into the model repository that Triton takes for a model"
        raise UsageError(message, hint="leave --keep out, or --to: `graphcut export --to triton` comes after it")
    cut = cutter(options, plan)
    record = conversion.automation(
        load(model, dims, states),
        [options.cluster, plan],
        searches=options.num_splits is not None and options.memory is not None,
        cut=cut,
        report=say,
        export=None if to is None else partial(exported, to=to, dims=parsed_dims(dims), force=False),
        keep=keep,
        options=lambda found: [*(_moved(word, Path(), output) for word in _words(options.ctx)), f"--precision={found}"],
        replayed=options.ctx.obj,
    ).make(output, force=force)
    put_answer(record, partial(draw_automation, record), as_json=as_json, is_yes=bool(record.files))
    folder = shell_word(str(output))
    if not as_json and MANIFEST in record.files:
        say_next(f"graphcut verify {folder} --files" if to else f"graphcut run {folder} --inputs FILE -o y.npz")


def _words(ctx: typer.Context) -> Iterator[str]:
    """The words of the command line that decide what is made; the precision may have to be found."""
    decisive = {*given_options(ctx)}.difference(_OWN, ["--precision"])
    return (name if one is True else f"{name}={one}" for name, one in option_values(ctx) if name in decisive)


def _moved(word: str, old: Path, new: Path) -> str:
    """A word with its path relative to another folder."""
    name, mark, value = word.partition("=@" if word.startswith("--text=") else "=")
    is_path = name in _PATHS and not is_random(Path(value))
    return f"{name}{mark}{os.path.relpath((old / value).resolve(), new.resolve())}" if is_path else word


def _do_again(replay: Path, model: Path | None, own: Sequence[str], given: Sequence[str]) -> None:
    """Run the command of a record; the model may be named anew, if it has moved."""
    from .. import read_auto

    check_apply(given, {*given}.difference(_OWN, ["model"]), "--replay, which does what the record says")
    record = read_auto(replay)
    words = [_moved(word, replay.parent, Path()) for word in record.options]
    named = [word.partition("=")[2] for word in words if word.startswith("model=")]
    others = [word for word in words if not word.startswith("model=")]
    if code := app(args=["auto", str(model or named[0]), *others, *own], obj=record, standalone_mode=False):
        raise typer.Exit(code)
