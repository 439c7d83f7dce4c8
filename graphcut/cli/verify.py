"""The command `graphcut verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..core.errors import UsageError
from .common_options import AsJson, Inputs, OriginalOptions, load, open_
from .input_files import is_random
from .output import print_, print_json

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..loading.model import Model


def verify(
    cascade_path: Annotated[Path, Argument(metavar="DIR", help="A cascade, or a sharded model.")],
    original: OriginalOptions,
    inputs: Inputs = None,
    optimized: Annotated[bool, Option("--optimized", help="Compare with graph optimizations on.")] = False,
    structural: Annotated[bool, Option("--structural", help="Compare graphs and weights; run nothing.")] = False,
    files_only: Annotated[bool, Option("--files", help="Compare files with the manifest, without the model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a cascade or a sharded model equals its model.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed. --files needs no
    model: it compares parts and weights with the digests in the manifest.
    """
    if files_only:
        if inputs or optimized or structural or original != OriginalOptions():
            raise UsageError("--files compares without the model", hint="leave out --files, or all other options")
        _verify_files(open_(cascade_path, check_files=False), as_json=as_json)
        return
    from ..drawing.json_records import verification_record
    from ..drawing.path_kinds import kind_of
    from ..drawing.terminal.verification import draw_verification
    from ..inputs.input_files import read_inputs
    from ..verifying.verification import verify as verified

    cascade: Cascade | Model
    if kind_of(cascade_path) == "model":
        cascade, source = load(cascade_path, None), original.load_unsharded(cascade_path)
    elif (opened := open_(cascade_path)).parts[0].rank is not None:
        cascade, source = opened, original.load_unsharded(opened.source)
    else:
        cascade = opened
        source = original.load(opened, given={})  # what the manifest says is to be verified
    files = [file for file in inputs or () if not is_random(file)]
    feeds = [read_inputs(file, source.graph.reads, tensors=source.tensors) for file in files]
    seed = original.seed
    report = verified(source, cascade, inputs=feeds, seed=seed, optimized=optimized, structural_only=structural)
    if as_json:
        print_json(verification_record(report))
    else:
        print_(lambda console: draw_verification(report, cascade, console))
    if not report:
        raise typer.Exit(1)


def _verify_files(cascade: Cascade, *, as_json: bool) -> None:
    from ..drawing.json_records import file_verification_record
    from ..drawing.terminal.verification import draw_file_verification
    from ..verifying.files import verify_files

    report = verify_files(cascade)
    if as_json:
        print_json(file_verification_record(report))
    else:
        print_(lambda console: draw_file_verification(report, console))
    if not report:
        raise typer.Exit(1)
