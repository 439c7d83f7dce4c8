"""The command `graphcut verify`."""

from typing import Annotated

import typer
from typer import Option

from .common_options import AsJson, CascadePath, Inputs, OriginalOptions, open_
from .input_files import is_random
from .output import print_, print_json


def verify(
    cascade_path: CascadePath,
    original: OriginalOptions,
    inputs: Inputs = None,
    optimized: Annotated[bool, Option("--optimized", help="Compare with graph optimizations on.")] = False,
    structural: Annotated[bool, Option("--structural", help="Compare graphs and weights; run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a cascade computes what its model computes.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed.
    """
    from ..drawing.json_records import verification_record
    from ..drawing.terminal.verification import draw_verification
    from ..inputs.input_files import read_inputs
    from ..verifying.verification import verify as verified

    cascade = open_(cascade_path)
    source = original.load(cascade)
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
