"""A cascade against the model it was cut from: bench."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from .common_options import AsJson, CascadePlace, app, dims, open_
from .output import print_, print_json, say


@app.command()
def bench(
    place: CascadePlace,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="The model it was cut from, if it moved.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What to run it on: a .npz file. Without it inputs are made up.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=N", help="A size for inputs that are made up. Repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each way is started and measured.")] = 3,
    way: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WAY",
            help="Only this way, besides the whole model: spinning, feeders, mapped, resident, threads, processes, "
            "'in turn', 'in turn, mapped'. Repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole model and its parts every way there is, and compare time, memory and outputs."""
    from ..benchmarking.comparison import compare
    from ..benchmarking.ways import WAYS
    from ..drawing.run_report import draw_benchmark
    from ..inputs.generating import generate
    from ..inputs.input_files import read_inputs
    from ..loading.model import load

    cascade = open_(place)
    strange = next((word for word in way or () if word not in WAYS), None)
    if strange is not None:
        raise UsageError(
            f"there is no way {strange!r} to run a cascade", hint=f"the ways: {', '.join(map(repr, WAYS))}"
        )
    if inputs is not None and dim:
        raise UsageError("--dim is for inputs that are made up", hint="leave out --dim or --inputs")
    source = model or cascade.source
    if not source.is_file():
        raise UsageError(f"the model {source} is not there to compare with", hint="name it with --model FILE")
    whole = load(source, dims={**cascade.manifest.dims, **dims(dim)})
    if tuple(whole.graph.reads) != tuple(cascade.manifest.reads):
        raise UsageError(
            f"{source} is not the model that was cut: it reads {', '.join(whole.graph.reads) or 'nothing'}, and the "
            f"cascade reads {', '.join(cascade.manifest.reads) or 'nothing'}",
            hint="name the model with --model FILE",
        )
    feed = read_inputs(inputs, whole.graph.reads, tensors=whole.tensors) if inputs else generate(whole)
    standings = compare(
        cascade,
        feed,
        model=source,
        ways=tuple(way or WAYS),
        rounds=rounds,
        progress=lambda title, number: say(f"round {number + 1} of {rounds}: {title}"),
    )
    if as_json:
        print_json({"ways": [asdict(one) for one in standings]})
    else:
        print_(lambda console: draw_benchmark(standings, console))
