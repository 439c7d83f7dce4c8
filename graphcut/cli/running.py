"""A cascade at work: run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .telling import say
from .words import CascadePlace, Force, app, open_


@app.command()
def run(
    place: CascadePlace,
    inputs: Annotated[Path, typer.Option(metavar="FILE", help="A .npz file with the model's inputs by name.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .npz file to write.")],
    force: Force = False,
) -> None:
    """Run a cascade, part by part, on the inputs of a file."""
    from ..feeding import read_inputs
    from ..running.saving import save_outputs
    from ..running.sequential import run as run_parts

    if output.exists() and not force:
        raise UsageError(f"{output} stands there already", hint="choose another name with -o, or add --force")
    cascade = open_(place)
    outputs = run_parts(cascade, read_inputs(inputs, cascade.manifest.reads, tensors=cascade.tensors))
    save_outputs(outputs, output)
    for name, value in outputs.items():
        say(f"{name}  {value.dtype}{list(value.shape)}")
    say(f"wrote {output}")
