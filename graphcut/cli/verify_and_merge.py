"""Cascade and model held against each other: verify, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common_options import AsJson, CascadePlace, Force, Inputs, app, open_
from .output import print_, print_json, say


@app.command()
def verify(
    place: CascadePlace,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="The model it was cut from, if it moved.")] = None,
    inputs: Inputs = None,
    seed: Annotated[int, typer.Option(help="For inputs that are made up.")] = 0,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Compare with optimisations on, as users run it.")
    ] = False,
    structural: Annotated[
        bool, typer.Option("--structural", help="Prove it from the graphs alone; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a cascade does what its model does. Exit code 1 if it doesn't."""
    from ..drawing.terminal import draw_verification
    from ..inputs.input_files import read_inputs
    from ..loading.model import load
    from ..verifying.verification import find_source
    from ..verifying.verification import verify as compare

    cascade = open_(place)
    source = load(model, dims=cascade.manifest.dims) if model else find_source(cascade)
    fed = [read_inputs(file, source.graph.reads, tensors=source.tensors) for file in inputs or ()]
    report = compare(source, cascade, inputs=fed, seed=seed, optimized=optimized, structural_only=structural)
    if as_json:
        from ..drawing.json_records import verification_record

        print_json(verification_record(report))
    else:
        print_(lambda console: draw_verification(report, cascade, console))
    if not report:
        raise typer.Exit(1)


@app.command()
def merge(
    place: CascadePlace,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .onnx file to write.")],
    force: Force = False,
) -> None:
    """Put the parts of a cascade together again, into one model."""
    from ..loading.fingerprint import graph_digest
    from ..surgery.merging import merge as put_together

    cascade = open_(place)
    whole = put_together(cascade, output, force=force)
    is_original = graph_digest(whole.proto) == cascade.manifest.source.graph
    say(f"wrote {output}: its graph equals that of the model that was cut" if is_original else f"wrote {output}")
