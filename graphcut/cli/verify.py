"""The command `graphcut verify`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from .common_options import AsJson, CascadePath, Inputs, OriginalModel, Seed, is_random, load_original, open_
from .output import print_, print_json


def verify(
    cascade_path: CascadePath,
    model: OriginalModel = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    optimized: Annotated[
        bool, Option("--optimized", help="Compare with ONNX Runtime's graph optimizations on (its default).")
    ] = False,
    structural: Annotated[
        bool, Option("--structural", help="Compare the graphs and weights only; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a cascade computes what its model computes.

    Exit code 1 if it does not. Without --inputs, two sets of inputs are generated from the seed.
    """
    from ..drawing.terminal import draw_verification
    from ..inputs.input_files import read_inputs
    from ..verifying.verification import verify as verified

    cascade = open_(cascade_path)
    source = load_original(cascade, model)
    files = [file for file in inputs or () if not is_random(file)]
    feeds = [read_inputs(file, source.graph.reads, tensors=source.tensors) for file in files]
    report = verified(source, cascade, inputs=feeds, seed=seed, optimized=optimized, structural_only=structural)
    if as_json:
        from ..drawing.json_records import verification_record

        print_json(verification_record(report))
    else:
        print_(lambda console: draw_verification(report, cascade, console))
    if not report:
        raise typer.Exit(1)
