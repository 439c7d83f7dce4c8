"""The command `graphcut cost-model`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from ..core.units import parse_bytes
from .application import check_applicable, given_options
from .common_options import Dims, Force, ModelPath, OneInput, Output, Profile, Tokens, load
from .input_files import RANDOM, is_random
from .output import check_output, print_, say


def cost_model(
    ctx: typer.Context,
    model: ModelPath,
    output: Annotated[Path, Output(help="The .csv file.")],
    measure: Annotated[bool, Option("--measure", help="Measure time and memory in ONNX Runtime.")] = False,
    rounds: Annotated[int, Option(metavar="N", min=1, help="Number of runs of --measure.")] = 5,
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory limit of --measure, e.g. 2GB.")] = None,
    inputs: OneInput = RANDOM,
    profile: Profile = "prefill",
    tokens: Tokens = 512,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Write what each module costs: parameters, bytes, FLOPs, time."""
    from ..analysis.cut_points import analyze
    from ..costs.tables import save_table, table_of
    from ..costs.weighing import weigh
    from ..drawing.terminal.cost_table import draw_cost_table
    from ..loading.model import load as open_model
    from ..planning.plans import default_dims

    given = given_options(ctx)
    check_applicable(given, dict.fromkeys(("--rounds", "--memory", "--inputs"), "--measure"), given)
    limit = None if memory is None else parse_bytes(memory)
    check_output(output, force=force)
    opened = load(model, dim)
    sizes = profile if "--profile" in given else None, tokens if "--tokens" in given else None
    dims = default_dims(analyze(opened), None, *sizes)
    costs = weigh(opened, dims)
    if measure:
        from ..benchmarking.cost_measurement import measure as measured
        from ..inputs.input_files import read_inputs

        sized = open_model(opened.path, dims={name: n for name, n in dims.items() if name in opened.symbols})
        feeds = read_inputs(inputs, sized.graph.reads, tensors=sized.tensors) if not is_random(inputs) else None
        table = measured(sized, rounds=rounds, inputs=feeds, memory_bytes=limit).table
    else:
        table = table_of(costs)
    save_table(table, output)
    print_(lambda console: draw_cost_table(table, costs, console))
    say(f"wrote {output}")
