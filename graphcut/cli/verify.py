"""The command `graphcut verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..core.errors import UsageError
from .common_options import AsJson, Inputs, Optimized, OriginalOptions, load, open_
from .input_files import read_given
from .output import print_, print_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .. import FileVerification, Verification


def verify(
    cascade_path: Annotated[Path, Argument(metavar="DIR", help="A cascade, or a sharded model.")],
    original: OriginalOptions,
    inputs: Inputs = None,
    optimized: Optimized = "none",
    structural: Annotated[bool, Option("--structural", help="Compare graphs and weights; run nothing.")] = False,
    files_only: Annotated[bool, Option("--files", help="Compare files with the manifest, without the model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a cascade or a sharded model equals its model.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed. --files needs no
    model: it compares parts and weights with the digests in the manifest.
    """
    if files_only:
        if inputs or optimized != "none" or structural or original != OriginalOptions():
            raise UsageError("--files compares without the model", hint="leave out --files, or all other options")
        from .. import verify_files
        from ..drawing.terminal.verification import draw_file_verification

        files = verify_files(open_(cascade_path, check_files=False))
        _show(files, lambda console: draw_file_verification(files, console), as_json=as_json)
        return
    from .. import verify as verified
    from ..drawing.path_kinds import kind_of
    from ..drawing.terminal.verification import draw_verification

    cascade = load(cascade_path, None) if kind_of(cascade_path) == "model" else open_(cascade_path)
    source = original.load_original(cascade)  # without the sizes of the manifest, which are to be verified
    feeds = read_given(inputs, source)
    seed = original.seed
    report = verified(
        source, cascade, inputs=feeds, seed=seed, optimized=optimized == "all", structural_only=structural
    )
    _show(report, lambda console: draw_verification(report, cascade, console), as_json=as_json)


def _show(
    result: Verification | FileVerification,
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
