"""The command `graphcut cost-model`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from ..core.errors import UsageError
from ..core.units import count, duration, operations, parse_bytes
from .application import check_applicable, given_options
from .common_options import Dims, Force, OneInput, Output, ProfileText, load, parsed_profile
from .input_files import RANDOM, is_random
from .output import check_output, print_, print_line, say

if TYPE_CHECKING:
    from ..benchmarking.cost_measurement import MeasuredCosts
    from ..loading.model import Model

_MEASURING: Final = ("--rounds", "--memory", "--inputs")
_WITHOUT_MODEL: Final = (*_MEASURING, "--measure", "--profile", "--dim")
"""Options that do nothing with --calibrate and --config."""


@dataclass(frozen=True)
class MeasuringOptions:
    """Options that measure what modules take in ONNX Runtime."""

    measure: Annotated[bool, Option("--measure", help="Measure time and memory in ONNX Runtime.")] = False
    rounds: Annotated[int, Option(metavar="N", min=1, help="Number of runs of --measure.")] = 12
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory limit of --measure, e.g. 2GB.")] = None
    inputs: OneInput = RANDOM

    def measured(self, model: Model, dims: Mapping[str, int], threads: int) -> MeasuredCosts | None:
        """What was measured, with these sizes; None without --measure."""
        from ..benchmarking.cost_measurement import measure
        from ..inputs.input_files import read_inputs
        from ..loading.model import load as open_model

        if not self.measure:
            return None
        limit = None if self.memory is None else parse_bytes(self.memory)
        sized = open_model(model.path, dims={name: n for name, n in dims.items() if name in model.symbols})
        read = None if is_random(self.inputs) else read_inputs(self.inputs, sized.graph.reads, tensors=sized.tensors)
        return measure(sized, rounds=self.rounds, inputs=read, memory_bytes=limit, threads=threads)


def cost_model(
    ctx: typer.Context,
    measuring: MeasuringOptions,
    output: Annotated[Path, Output(help="The .csv file; with --calibrate a .toml file.")],
    model: Annotated[
        Path | None,
        Argument(metavar="MODEL", help="An .onnx file, with its external data beside it; none with --calibrate."),
    ] = None,
    calibrate: Annotated[
        bool, Option("--calibrate", help="Instead of a model, measure this machine: a device for --cluster.")
    ] = False,
    config: Annotated[
        Path | None, Option(metavar="FILE", help="Instead of a model, read a decoder's config.json (Hugging Face).")
    ] = None,
    seconds: Annotated[float, Option(metavar="S", min=0, help="How long --calibrate measures.")] = 10.0,
    threads: Annotated[int, Option(metavar="N", min=0, help="Threads for measuring; 0 leaves it to ONNX Runtime.")] = 0,
    profile: ProfileText = None,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Write what each module costs: parameters, bytes, FLOPs, time."""
    given = given_options(ctx)
    if calibrate or config is not None:
        _check_without_model("--calibrate" if calibrate else "--config", model, given)
    elif model is None:
        raise UsageError("no model is named", hint="name an .onnx file; --calibrate measures this machine without one")
    else:
        check_applicable(given, dict.fromkeys((*_MEASURING, "--threads"), "--measure"), given)
        check_applicable(given, {"--seconds": "--calibrate"}, given)
    check_output(output, force=force)
    if config is not None:
        _write_table_of(config, output)
    elif model is None:
        _write_device(output, seconds, threads)
    else:
        from ..analysis.cut_points import analyze
        from ..planning.planner import default_dims

        opened, sizes = load(model, dim), (None, None) if profile is None else parsed_profile(profile)
        dims = default_dims(analyze(opened), None, *sizes)
        _write_costs(opened, dims, measuring.measured(opened, dims, threads), output)


def _write_costs(model: Model, dims: Mapping[str, int], found: MeasuredCosts | None, output: Path) -> None:
    from ..costs.tables import save_table, table_of
    from ..costs.weighing import weigh
    from ..drawing.terminal.cost_table import draw_cost_table

    costs = weigh(model, dims)
    table = found.table if found else table_of(costs)
    save_table(table, output)
    print_(lambda console: draw_cost_table(table, costs, console))
    if found:
        _say_spread(count(found.rounds, "run"), found.spread)
    say(f"wrote {output}")


def _check_without_model(option: str, model: Path | None, given: Collection[str]) -> None:
    if model is not None:
        what = "measures this machine" if option == "--calibrate" else "reads a configuration"
        raise UsageError(f"{option} {what}, not a model", hint=f"leave {model} out")
    others = _WITHOUT_MODEL if option == "--calibrate" else (*_WITHOUT_MODEL, "--seconds", "--threads")
    if unused := [one for one in (*others, "--config") if one in given and one != option]:
        raise UsageError(f"{unused[0]} does not apply to {option}", hint=f"leave {unused[0]} out")


def _write_table_of(config: Path, output: Path) -> None:
    from ..costs.decoder_configs import table_of_config
    from ..costs.tables import save_table

    table = table_of_config(config)
    save_table(table, output)
    print_line(f"{count(len(table.rows), 'module')}, {sum(row.num_params for row in table.rows):,} parameters")
    say(f"wrote {output}")


def _write_device(output: Path, seconds: float, threads: int) -> None:
    from ..benchmarking.calibration import calibrate as measured
    from ..benchmarking.calibration import save_device
    from ..drawing.sentences import flop

    found = measured(seconds=seconds, threads=threads)
    save_device(found, output)
    device = found.device
    print_line(
        f"{device.name}: {flop(device.flops_per_s)}/s, {operations(device.bytes_per_s)}B/s of memory bandwidth, "
        f"{duration(device.dispatch_s)} to start a node"
    )
    _say_spread(count(found.rounds, "round"), found.spread)
    say(f"wrote {output}")


def _say_spread(runs: str, spread: float) -> None:
    say(f"measured in {runs}; half of them took up to {spread:.0%} longer than the fastest")
