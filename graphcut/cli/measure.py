"""The command `graphcut measure`."""

from __future__ import annotations

from pathlib import Path

import typer

from ..core.units import count, duration, flop, operations
from .application import applying, check_apply, given_options
from .common_options import ProfileText, Texts, load, parsed_profile
from .declaring import Size
from .input_files import RANDOM, read_given
from .output import check_output, print_, print_lines, say


def measure(
    ctx: typer.Context,
    what: str,
    output: Path,
    computed: bool = False,
    rounds: int = 12,
    memory_bytes: Size = None,
    inputs: Path = RANDOM,
    profile: ProfileText = None,
    dims: Texts = None,
    seconds: float = 10.0,
    threads: int = 0,
    insecure: bool = False,
    force: bool = False,
) -> None:
    """Measure what modules cost, or this machine, or a Ray cluster.

    Of a model: parameters, bytes, FLOPs and time of each module, for --cost-model. Of a decoder's config.json the same
    is computed, without times. `machine` is this one: FLOP/s, memory bandwidth and the time to start a node, a device
    for --cluster. `cluster` measures each machine that `ray start --resources` calls a device, its free memory and its
    link. Nothing else should run meanwhile.

    Examples:
        graphcut measure unet.onnx -o costs.csv --rounds 2
        graphcut measure machine -o laptop.toml --seconds 1
        graphcut measure cluster -o measured.toml
    """
    from .. import (
        analyze,
        calibrate_cluster,
        default_dims,
        measure,
        save_cluster,
        save_table,
        table_of,
        table_of_config,
        weigh,
    )
    from ..drawing.terminal.cost_table import draw_cost_table

    kind = _kind_of(what, computed=computed)
    others = [option for option, kinds in applying("measured").items() if kind not in kinds]
    check_apply(given_options(ctx), others, kind)
    is_device = kind in {"this machine", "a cluster"}
    check_output(output, Path(what), force=force, suffixes=[".toml" if is_device else ".csv"])
    match kind:
        case "this machine":
            _measure_machine(output, seconds, threads)
        case "a cluster":
            save_cluster(*calibrate_cluster(seconds, insecure=insecure), output)
            print_lines(*output.read_text(encoding="utf-8").splitlines())
        case "a config.json":
            table = table_of_config(Path(what))
            save_table(table, output)
            print_lines(f"{count(len(table.rows), 'module')}, {sum(row.num_params for row in table.rows):,} parameters")
        case _:
            model = load(Path(what), dims)
            costs = weigh(model, default_dims(analyze(model), None, *parsed_profile(profile)))
            table = table_of(costs)
            if not computed:
                read = next(iter(read_given([inputs], model)), None)
                sized = model.with_dims(costs.dims)
                found = measure(sized, rounds=rounds, inputs=read, memory_bytes=memory_bytes, threads=threads)
                table, costs = found.table, weigh(model.with_dims(found.dims) if read else model, found.dims)
                _say_spread(count(found.rounds, "run"), found.spread)
            save_table(table, output)
            print_(lambda screen: draw_cost_table(table, costs, screen))
    say(f"wrote {output}")


def _kind_of(what: str, *, computed: bool) -> str:
    """What is to be measured, in the words of `applying.toml`."""
    path, words = Path(what), {"machine": "this machine", "cluster": "a cluster"}
    if what in words and not path.is_file():
        return words[what]
    if path.suffix.lower() == ".json":
        return "a config.json"
    return "a model that is not run" if computed else "a model"


def _measure_machine(output: Path, seconds: float, threads: int) -> None:
    from .. import calibrate, save_device

    found = calibrate(seconds=seconds, threads=threads)
    save_device(found, output)
    device = found.device
    rates = f"{flop(device.flops_per_s)}/s, {operations(device.bytes_per_s)}B/s of memory bandwidth"
    print_lines(f"{device.name}: {rates}, {duration(device.dispatch_s)} to start a node")
    _say_spread(count(found.rounds, "round"), found.spread)


def _say_spread(runs: str, spread: float) -> None:
    say(f"measured in {runs}; half of them took up to {spread:.0%} longer than the fastest")
