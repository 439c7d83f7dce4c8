"""A cascade at work that is only reckoned: simulate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import UsageError
from .common_options import AsJson, app
from .output import print_, print_json

if TYPE_CHECKING:
    from ..planning.cluster import ScheduledFailure


@app.command()
def simulate(
    place: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, or the folder of a cascade.")],
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A cluster file. Without it: the cluster that a plan was made for."),
    ] = None,
    requests: Annotated[int, typer.Option(metavar="N", help="How many requests.")] = 1000,
    rate: Annotated[
        str | None, typer.Option(metavar="R/s", help="They come at random, so many a second on average.")
    ] = None,
    closed: Annotated[
        int | None,
        typer.Option(metavar="W", help="So many are on their way at a time. By itself twice the devices at work."),
    ] = None,
    copies: Annotated[int, typer.Option(metavar="N", help="So many clusters like this, side by side.")] = 1,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME@S[+S]", help="A device fails at that second, for so many seconds or for good. Repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="What chance follows.")] = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model of a plan that does not lie beside it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play a plan through on a cluster: throughput, latencies, how busy devices and links are, what failures cost."""
    from ..drawing.opening import scenario_at
    from ..drawing.simulation_report import draw_simulation, simulation_record
    from ..planning.cluster import read_simulated_cluster
    from ..simulating.simulator import simulate as play

    failures, rate_per_s = [_failure(text) for text in fail or ()], None if rate is None else _rate(rate)
    world = None if cluster is None else read_simulated_cluster(cluster)
    scenario = scenario_at(place, world, model=model).copied(copies).with_failures(failures)
    found = play(scenario, requests=requests, rate_per_s=rate_per_s, window=closed, seed=seed)
    if as_json:
        print_json(simulation_record(found, str(place)))
    else:
        print_(lambda console: draw_simulation(found, str(place), console))
    if found.stopped:
        raise typer.Exit(1)


def _rate(text: str) -> float:
    """`20/s`, `0.5`: requests a second."""
    number = _numbers([text.removesuffix("/s")])
    if number is None:
        raise UsageError(f"--rate {text} is no rate", hint="write it like --rate 20/s")
    return number[0]


def _failure(text: str) -> ScheduledFailure:
    """`pi@10`, `pi@10+5`: a device fails at 10 s, for good or for 5 s."""
    from ..planning.cluster import ScheduledFailure

    name, _, times = text.rpartition("@")
    numbers = _numbers(times.split("+"))
    if not name or numbers is None or len(numbers) > 2:
        raise UsageError(
            f"--fail {text} does not say NAME@SECONDS", hint="write it like --fail pi@10, or --fail pi@10+5 for 5 s"
        )
    try:
        return ScheduledFailure(device=name, at_s=numbers[0], for_s=numbers[1] if len(numbers) == 2 else None)
    except ValueError as error:
        raise UsageError(f"--fail {text}: {error}", hint="write it like --fail pi@10, or --fail pi@10+5") from None


def _numbers(words: Sequence[str]) -> list[float] | None:
    try:
        return [float(word) for word in words]
    except ValueError:
        return None
