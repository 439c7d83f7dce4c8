"""The command `graphcut bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from ..benchmarking.ways import WAYS, way_descriptions
from ..core.errors import UsageError
from .common_options import (
    RANDOM,
    AsJson,
    CascadePath,
    Dims,
    OneInput,
    OriginalModel,
    Seed,
    is_random,
    load_original,
    open_,
)
from .input_files import generated_inputs
from .output import print_, print_json, say


def _ways() -> list[tuple[str, str]]:
    return list(way_descriptions().items())


def bench(
    cascade_path: CascadePath,
    model: OriginalModel = None,
    inputs: OneInput = RANDOM,
    dim: Dims = None,
    seed: Seed = 0,
    rounds: Annotated[int, Option(metavar="N", min=1, help="How often each way is measured.")] = 3,
    way: Annotated[
        list[str] | None,
        Option(
            metavar="WAY",
            help="Measure this way only, and the whole model. Repeatable.",
            autocompletion=_ways,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the model and its parts: time, memory, outputs."""
    from ..benchmarking.comparison import compare
    from ..drawing.run_report import draw_benchmark
    from ..inputs.input_files import read_inputs

    cascade = open_(cascade_path)
    if unknown := next((name for name in way or () if name not in WAYS), None):
        raise UsageError(
            f"there is no way {unknown!r} to run a cascade", hint=f"choose from {', '.join(map(repr, WAYS))}"
        )
    if dim and not is_random(inputs):
        raise UsageError("--dim applies to generated inputs", hint="leave out --dim or --inputs")
    whole = load_original(cascade, model, dim)
    if tuple(whole.graph.reads) != tuple(cascade.manifest.reads):
        raise UsageError(
            f"{whole.path} is not the model that was cut: it reads {', '.join(whole.graph.reads) or 'nothing'}, and "
            f"the cascade reads {', '.join(cascade.manifest.reads) or 'nothing'}",
            hint="name the model with --model FILE",
        )
    if is_random(inputs):
        feeds = generated_inputs(whole, seed)
    else:
        feeds = read_inputs(inputs, whole.graph.reads, tensors=whole.tensors)
    results = compare(
        cascade,
        feeds,
        model=whole.path,
        ways=tuple(way or WAYS),
        rounds=rounds,
        progress=lambda title, number: say(f"round {number + 1} of {rounds}: {title}"),
    )
    if as_json:
        print_json({"ways": [asdict(one) for one in results]})
    else:
        print_(lambda console: draw_benchmark(results, console))
