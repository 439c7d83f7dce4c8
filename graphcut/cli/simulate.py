"""The command `graphcut simulate`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..core.errors import UsageError
from .common_options import TRACES, OriginalOptions, Place, Texts, output_names, parsed_dims
from .output import check_output, put_answer, put_trace

if TYPE_CHECKING:
    from .. import ScheduledFailure

_FAILURE_HINT: Final = "for example --fail pi@10, or --fail pi@10+5 for 5 s"


def _devices(ctx: typer.Context, incomplete: str) -> list[str]:
    """The devices of the cluster file, or else of the plan, that stands on the command line."""
    from .. import read_cluster, read_plan

    if cluster := ctx.params["cluster"]:
        names = [device.name for device in read_cluster(cluster).devices]
    else:
        plan = read_plan(ctx.params["plan"] or ctx.args[0])  # an option without its value ends the parsing early
        names = [part.device.name for part in plan.parts if part.device is not None]
    return [f"{name}@" for name in names if name.startswith(incomplete)]


def simulate(
    plan: Path,
    original: OriginalOptions,
    cluster: Place = None,
    requests: int = 1000,
    rate: str | None = None,
    window: int | None = None,
    copies: int = 1,
    fail: Annotated[Texts, {"autocompletion": _devices}] = None,
    outputs: str | None = None,
    trace: Place = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Simulate a plan on a cluster: throughput, latency, failures.

    Exit code 1 if a failure stops the run.

    Examples:
        graphcut simulate unet.parts --cluster cluster.toml --requests 100
        graphcut simulate unet.parts --cluster cluster.toml --fail board@0.5+1
    """
    from .. import RunLog, read_simulated_cluster
    from .. import simulate as simulated
    from ..drawing.json_records import simulation_record
    from ..drawing.opening import scenario_at
    from ..drawing.terminal.simulation import draw_simulation

    check_output(trace, plan, cluster, original.model, force=force, suffixes=TRACES)
    failures, rate_per_s = [_failure(text) for text in fail or ()], None if rate is None else _rate(rate)
    known, names = None if cluster is None else read_simulated_cluster(cluster), output_names(outputs)
    scenario = scenario_at(plan, known, model=original.model, outputs=names, dims=parsed_dims(original.dims))
    scenario = scenario.copied(copies).with_failures(failures)
    devices = [device.name for device in scenario.cluster.devices]
    log = RunLog(len(scenario.parts), len(devices), is_tracing=trace is not None)
    result = simulated(scenario, requests=requests, rate_per_s=rate_per_s, window=window, seed=original.seed, log=log)
    put_answer(simulation_record(result, str(plan)), partial(draw_simulation, result, plan), as_json=as_json)
    if trace is not None:
        put_trace(log, {part.name: part for part in scenario.parts}, devices, trace)
    if result.stopped:
        raise typer.Exit(1)


def _rate(text: str) -> float:
    """Requests per second, from `20/s` or `0.5`."""
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise UsageError(f"--rate {text}: expected requests per second", hint="for example --rate 20/s") from None


def _failure(text: str) -> ScheduledFailure:
    """A failure from `pi@10` (at 10 s, for good) or `pi@10+5` (for 5 s)."""
    from .. import ScheduledFailure

    if (found := re.fullmatch(r"(.+)@(-?[\d.e]+)(?:\+([\d.e]+))?", text)) is None:
        raise UsageError(f"--fail {text}: expected NAME@SECONDS", hint=_FAILURE_HINT)
    try:
        return ScheduledFailure(device=found[1], at_s=float(found[2]), for_s=float(found[3]) if found[3] else None)
    except ValueError as error:
        raise UsageError(f"--fail {text}: {error}", hint=_FAILURE_HINT) from None
