"""A scenario played through: the scheduler that runs cascades, on devices that are only reckoned."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import repeat
from math import ceil, fsum
from typing import Final

from msgspec.structs import replace as changed

from ..core.errors import RunError, UsageError
from ..running.scheduling.assignment import load_balance_of
from ..running.scheduling.requests import Request, Routing
from ..running.scheduling.scheduler import Scheduler
from ..running.scheduling.worker_pool import WorkerState
from .results import DeviceUse, Latency, LinkUse, SimulationResult
from .scenario import Scenario
from .simulated_executor import SimulatedExecutor

REQUESTS: Final = 1000
"""How many are played where nothing is said."""


def simulate(
    scenario: Scenario,
    *,
    requests: int = REQUESTS,
    rate_per_s: float | None = None,
    window: int | None = None,
    seed: int = 0,
) -> SimulationResult:
    """Play a scenario through; the same arguments give the same result.

    Where devices can fail, the same is played once more without failures: the same requests at the same times.

    Args:
        scenario: what is played.
        requests: how many.
        rate_per_s: how many come in a second on average, at random (a Poisson process), however many wait.
        window: instead of that, how many are on their way: for each answer the next comes. By itself two for each
            device that has a part, as `stream` does it.
        seed: what chance follows.

    Raises:
        UsageError: a number is out of its range, or both ways of coming are asked for.
    """
    if requests < 1:
        raise UsageError(f"{requests} requests can't be played", hint="take 1 or more")
    if rate_per_s is not None and window is not None:
        raise UsageError(
            "requests come at a rate, or when one has left, and not both", hint="leave one of --rate and --closed out"
        )
    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise UsageError(f"requests can't come at {rate_per_s:g} a second", hint="take a rate above 0")
    if window is not None and window < 1:
        raise UsageError(f"nothing runs with {window} requests on their way", hint="take 1 or more")
    if rate_per_s is None:
        window = window or 2 * sum(bool(parts) for parts in scenario.owns)
    found = _played(scenario, requests, rate_per_s, window, seed)
    if not scenario.can_fail:
        return found
    return changed(found, without_failures=_played(scenario.without_failures(), requests, rate_per_s, window, seed))


def _played(
    scenario: Scenario, requests: int, rate_per_s: float | None, window: int | None, seed: int
) -> SimulationResult:
    executor = SimulatedExecutor(scenario, seed)
    members = [
        WorkerState(device.name, device.memory_bytes, parts)
        for device, parts in zip(scenario.world.devices, scenario.owns, strict=True)
    ]
    wires = Routing(scenario.units, scenario.outputs)
    balance = load_balance_of(scenario.units, members)
    scheduler = Scheduler(wires, executor, members, window=window or requests, on_error="skip", balance=balance)
    feeds = dict.fromkeys(scenario.reads)
    source: Iterator[Request | None] = (
        repeat(Request(feeds), requests) if rate_per_s is None else _coming(executor, feeds, requests, rate_per_s, seed)
    )
    answered, stopped = 0, ""
    try:
        for answer in scheduler.run(source):
            answered += not isinstance(answer, RunError)
    except RunError as error:
        stopped = str(error)
    log = scheduler.log
    total_s = log.delivered_s[-1] if log.delivered_s and not stopped else executor.now()
    return SimulationResult(
        requests=requests,
        answered=answered,
        failed=log.failures,
        stopped=stopped,
        rate_per_s=rate_per_s,
        window=window,
        seed=seed,
        total_s=total_s,
        per_s=answered / total_s if total_s else 0.0,
        latency=latency_of([left - came for came, left in zip(log.arrived_s, log.delivered_s, strict=False)]),
        lost=executor.network.lost,
        restarted=len(executor.restarted),
        devices=tuple(_devices(scenario, executor, total_s)),
        links=tuple(_links(executor, total_s)),
    )


def _coming(
    executor: SimulatedExecutor, feeds: dict[str, None], requests: int, rate_per_s: float, seed: int
) -> Iterator[Request | None]:
    """Requests at random times; None until the next has come."""
    draw = random.Random(f"requests {seed}")  # noqa: S311 - no secret
    time_s = 0.0
    for _ in range(requests):
        time_s += draw.expovariate(rate_per_s)
        if executor.now() < time_s:
            executor.clock.at(time_s, executor.wake)
        while executor.now() < time_s:
            yield None
        yield Request(feeds)


def latency_of(seconds: Sequence[float]) -> Latency | None:
    """The quantiles that were reached by requests, not between them; None where there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def quantile(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    mean = fsum(ordered) / len(ordered)
    return Latency(mean=mean, p50=quantile(0.5), p90=quantile(0.9), p99=quantile(0.99), max=ordered[-1])


def _devices(scenario: Scenario, executor: SimulatedExecutor, total_s: float) -> Iterator[DeviceUse]:
    unit_s = total_s or 1.0
    for device, parts, machine in zip(scenario.world.devices, scenario.owns, executor.machines, strict=True):
        yield DeviceUse(
            name=device.name,
            parts=parts,
            steps=machine.steps,
            computing=machine.computing_s / unit_s,
            fetching=machine.fetching_s / unit_s,
            messaging=2 * device.latency_s * machine.steps / unit_s,
            down=machine.down_s / unit_s,
            failures=machine.failures,
        )


def _links(executor: SimulatedExecutor, total_s: float) -> Iterator[LinkUse]:
    unit_s = total_s or 1.0
    for link in executor.network.links:
        carried = link.carried_bytes
        yield LinkUse(
            source=link.source,
            target=link.target,
            bytes=round(carried),
            used=carried / link.bytes_per_s / unit_s,
        )
