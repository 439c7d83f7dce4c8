"""The simulation of a scenario: the scheduler that runs cascades, with a simulated executor."""

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from math import ceil, fsum
from typing import Final

from msgspec.structs import replace as changed

from ..core.errors import RunError, UsageError, check_positive
from ..workers.run_log import RunLog
from ..workers.scheduling.requests import Request, Routing
from ..workers.scheduling.scheduler import Scheduler
from ..workers.scheduling.worker_pool import WorkerState
from .results import DeviceUse, Latency, LinkUse, SimulationResult
from .scenario import Scenario
from .simulated_executor import SimulatedExecutor

REQUESTS: Final = 1000  #: the default number.


def simulate(
    scenario: Scenario,
    *,
    requests: int = REQUESTS,
    rate_per_s: float | None = None,
    window: int | None = None,
    seed: int = 0,
    log: RunLog | None = None,
) -> SimulationResult:
    """Simulate a scenario; the same arguments give the same result.

    If devices can fail, the same requests are simulated again without failures, for comparison.

    Args:
        scenario: what to simulate.
        requests: the number of requests.
        rate_per_s: the mean rate of Poisson arrivals, independent of how many requests wait.
        window: instead of a rate, the number of requests in flight: each answer is followed by a new request. The
            default is two for each device that has a part, as in `stream`, and for a plan for `decode` the number of
            its sequences.
        seed: the random seed.
        log: a log to fill, for as many parts and devices; with tracing it gets every run of a part.

    Raises:
        UsageError: a number is out of range, or both a rate and a window are given.
    """
    if not 1 <= requests < 1 << 31:
        raise UsageError(f"{requests} requests can't be simulated", hint="take 1 or more, and fewer than 2**31")
    if rate_per_s is not None and window is not None:
        raise UsageError("a rate excludes a number of requests in flight", hint="leave out `rate_per_s` or `window`")
    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise UsageError(f"requests can't arrive at {rate_per_s:g} per second", hint="take a rate above 0")
    check_positive(window, f"{window} requests can't be in flight")
    if rate_per_s is None:
        window = window or scenario.in_flight or 2 * sum(bool(parts) for parts in scenario.assignment)
    run = partial(_run, requests=requests, rate_per_s=rate_per_s, window=window, seed=seed)
    result, calm = run(scenario, log=log), scenario.without_failures()
    return result if calm.cluster == scenario.cluster else changed(result, without_failures=run(calm, log=None))


def _run(
    scenario: Scenario, requests: int, rate_per_s: float | None, window: int | None, seed: int, log: RunLog | None
) -> SimulationResult:
    executor = SimulatedExecutor(scenario, seed)
    owned = zip(scenario.cluster.devices, scenario.assignment, strict=True)
    workers = [WorkerState(device.name, device.memory_bytes, parts) for device, parts in owned]
    routing = Routing(scenario.parts, scenario.outputs)
    scheduler = Scheduler(routing, executor, workers, window=window or requests, balanced=True, log=log)
    answered, stopped, arrived_s, delivered_s = 0, "", list[float](), list[float]()
    asked = repeat(Request(dict.fromkeys(scenario.inputs), done=scenario.done), requests)
    try:
        for answer in scheduler.run(_arrivals(executor, asked, rate_per_s, seed, arrived_s)):
            answered += not isinstance(answer, RunError)
            delivered_s.append(executor.now())
    except RunError as error:
        stopped = str(error)
    total_s = delivered_s[-1] if delivered_s and not stopped else executor.now()
    return SimulationResult(
        requests=requests,
        answered=answered,
        failed=scheduler.log.failures,
        stopped=stopped,
        rate_per_s=rate_per_s,
        window=window,
        seed=seed,
        total_s=total_s,
        per_s=answered / total_s if total_s else 0.0,
        latency=latency_of([end - start for start, end in zip(arrived_s, delivered_s, strict=False)]),
        lost=executor.network.lost_messages,
        restarted=scheduler.log.restarts,
        is_exact=scenario.is_exact,
        assumed=dict(scenario.assumed),
        done=scenario.done,
        devices=_device_use(scenario, executor, total_s or 1.0),
        links=_link_use(executor, total_s or 1.0),
    )


def _arrivals(
    executor: SimulatedExecutor, requests: Iterable[Request], rate_per_s: float | None, seed: int, times_s: list[float]
) -> Iterator[Request | None]:
    """Requests at random times, or at once without a rate; None while the next one has not arrived.

    Their times are appended to `times_s`.
    """
    draw = random.Random(f"requests {seed}")  # noqa: S311 - not for security
    time_s = 0.0
    for request in requests:
        if rate_per_s is not None:
            time_s += draw.expovariate(rate_per_s)
        if executor.now() < time_s:
            executor.clock.at(time_s, executor.wake)
        while executor.now() < time_s:
            yield None
        times_s.append(executor.now())
        yield request


def latency_of(seconds: Sequence[float]) -> Latency | None:
    """The mean and the percentiles, without interpolation: each is the latency of a request. None without requests."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p90, p99 = (ordered[max(0, ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9, 0.99))
    return Latency(mean=fsum(ordered) / len(ordered), p50=p50, p90=p90, p99=p99, max=ordered[-1])


def _device_use(scenario: Scenario, executor: SimulatedExecutor, total_s: float) -> tuple[DeviceUse, ...]:
    shares = [{what: seconds / total_s for what, seconds in one.spent_s.items()} for one in executor.devices]
    return tuple(
        DeviceUse(name=one.name, parts=parts, steps=one.steps, failures=one.failures, **used)
        for one, parts, used in zip(executor.devices, scenario.assignment, shares, strict=True)
    )


def _link_use(executor: SimulatedExecutor, total_s: float) -> tuple[LinkUse, ...]:
    links = ((ends, link.carried_bytes, link.bytes_per_s) for ends, link in executor.network.links.items())
    return tuple(
        LinkUse(source=source, target=target, bytes=round(carried), used=carried / bytes_per_s / total_s)
        for (source, target), carried, bytes_per_s in links
    )
