"""The result of a simulation."""

from __future__ import annotations

import msgspec

from ..core.product import Product


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the arrival of a request to its answer: mean, percentiles and maximum. Answers come in order."""

    mean: float  #: the mean.
    p50: float  #: half are within it.
    p90: float  #: 9 of 10 are within it.
    p99: float  #: 99 of 100 are within it.
    max: float  #: the longest.


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a device spent its time, in shares of the total time."""

    name: str  #: its name.
    parts: tuple[int, ...]  #: the indices of the parts assigned to it at the start.
    steps: int  #: how many steps it ran.
    computing: float  #: the share in which it computed.
    fetching: float  #: the share in which it waited for the inputs of a step.
    messaging: float  #: the share in which it waited for the scheduler, or for a message to or from it.
    down: float  #: the share in which it was down.
    failures: int  #: how often it failed.


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one direction of a link was used."""

    source: str | None  #: the sending device; None for the router.
    target: str | None  #: the receiving device; None for the router.
    bytes: int  #: what it carried, retransmissions included.
    used: float  #: that as a share of what it could have carried.


class SimulationResult(Product, msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation."""

    requests: int  #: the number of requests.
    answered: int  #: how many were answered.
    failed: int  #: how many were given up, since they ended workers too often.
    stopped: str  #: why the run stopped early; empty if it did not.
    rate_per_s: float | None  #: the mean arrival rate; None for a closed loop.
    window: int | None  #: the most requests in flight; None for arrivals at a rate.
    seed: int  #: the random seed.
    total_s: float  #: from the start to the last answer.
    per_s: float  #: the throughput: answers per second of the total time.
    latency: Latency | None  #: the latencies; None if nothing was answered.
    lost: int  #: how many messages were lost and sent again.
    restarted: int  #: how often a request was restarted, because a device that failed had its tensors.
    devices: tuple[DeviceUse, ...]  #: the use of each device.
    links: tuple[LinkUse, ...]  #: the use of each link direction.
    is_exact: bool = True  #: whether all tensors have a size; else times are too short, and the throughput too high.
    assumed: dict[str, int] = {}  #: sizes of the inputs that nobody gave.
    #: of a pipeline of models, whose requests are steps, the parts that run once for all steps and are not counted.
    done: tuple[int, ...] = ()
    #: the result of the same run without device failures; None if there can be none.
    without_failures: SimulationResult | None = None
