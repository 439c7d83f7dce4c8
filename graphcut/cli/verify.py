"""The command `graphcut verify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..core.errors import UsageError
from .common_options import AsJson, Inputs, Optimized, OriginalOptions, load, open_
from .input_files import is_random
from .output import print_, print_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..loading.model import Model
    from ..verifying.files import FileVerification
    from ..verifying.two_models import ModelComparison
    from ..verifying.verification import Verification


@dataclass(frozen=True)
class AgainstOptions:
    """Options of a comparison of two models."""

    against: Annotated[
        Path | None, Option(metavar="FILE", help="Compare two models: find the first tensor that differs.")
    ] = None
    tolerance: Annotated[
        float, Option(metavar="F", min=0, help="What --against allows, as a fraction of a tensor's largest value.")
    ] = 0.0
    provider: Annotated[str | None, Option(metavar="NAME", help="Execution provider of the model of --against.")] = None


def verify(
    cascade_path: Annotated[Path, Argument(metavar="DIR", help="A cascade, a sharded model; any for --against.")],
    original: OriginalOptions,
    other: AgainstOptions,
    inputs: Inputs = None,
    optimized: Optimized = "none",
    structural: Annotated[bool, Option("--structural", help="Compare graphs and weights; run nothing.")] = False,
    files_only: Annotated[bool, Option("--files", help="Compare files with the manifest, without the model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a cascade or a sharded model equals its model.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed. --files needs no
    model: it compares parts and weights with the digests in the manifest. --against compares two models where they have
    tensors of the same name; with --optimize all the second one runs with graph optimizations.
    """
    if other != AgainstOptions():
        if structural or files_only or original.model or other.against is None:
            raise UsageError(
                "--against FILE compares two models",
                hint="with --tolerance, --provider, --optimize, --inputs, --dim, --seed and --json",
            )
        from ..drawing.terminal.verification import draw_model_comparison

        found = _compared(cascade_path, other, original, inputs, optimized=optimized == "all")
        _show(found, lambda console: draw_model_comparison(found, console), as_json=as_json)
        return
    if files_only:
        if inputs or optimized != "none" or structural or original != OriginalOptions():
            raise UsageError("--files compares without the model", hint="leave out --files, or all other options")
        from ..drawing.terminal.verification import draw_file_verification
        from ..verifying.files import verify_files

        files = verify_files(open_(cascade_path, check_files=False))
        _show(files, lambda console: draw_file_verification(files, console), as_json=as_json)
        return
    from ..drawing.path_kinds import kind_of
    from ..drawing.terminal.verification import draw_verification
    from ..verifying.verification import verify as verified

    cascade = load(cascade_path, None) if kind_of(cascade_path) == "model" else open_(cascade_path)
    source = original.load_original(cascade)  # without the sizes of the manifest, which are to be verified
    feeds = _read(inputs, source)
    seed = original.seed
    report = verified(
        source, cascade, inputs=feeds, seed=seed, optimized=optimized == "all", structural_only=structural
    )
    _show(report, lambda console: draw_verification(report, cascade, console), as_json=as_json)


def _show(
    result: Verification | FileVerification | ModelComparison,
    draw: Callable[[Console], RenderableType],
    *,
    as_json: bool,
) -> None:
    """Print a result. Exit code 1 if it is false."""
    if as_json:
        from ..drawing.verification_records import verification_record

        print_json(verification_record(result))
    else:
        print_(draw)
    if not result:
        raise typer.Exit(1)


def _read(inputs: Sequence[Path] | None, model: Model) -> list[dict[str, object]]:
    """The inputs in files; none for `random`, since inputs are then generated."""
    from ..inputs.input_files import read_inputs

    files = [file for file in inputs or () if not is_random(file)]
    return [read_inputs(file, model.graph.reads, tensors=model.tensors) for file in files]


def _compared(
    path: Path, other: AgainstOptions, original: OriginalOptions, inputs: Sequence[Path] | None, *, optimized: bool
) -> ModelComparison:
    from ..verifying.numerical import EXACT
    from ..verifying.two_models import compare_models

    model = load(path, original.dim)
    feeds, seed = _read(inputs, model), original.seed
    config = replace(EXACT, optimize="all" if optimized else "none", provider=other.provider)
    against = other.against or path
    return compare_models(model, against, inputs=feeds, seed=seed, tolerance=other.tolerance, config=config)
