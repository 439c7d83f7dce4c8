"""The result of a simulation."""

from __future__ import annotations

import msgspec

from ..core.product import Product


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the arrival of a request to its answer: mean, percentiles and maximum. Answers come in order."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a device spent its time, in shares of the total time.

    Attributes:
        name: its name.
        parts: the indices of the parts assigned to it at the start.
        steps: how many steps it ran.
        computing: the share in which it computed.
        fetching: the share in which it waited for the inputs of a step.
        messaging: the share in which it waited because a message to or from the scheduler was in transit.
        down: the share in which it was down.
        failures: how often it failed.
    """

    name: str
    parts: tuple[int, ...]
    steps: int
    computing: float
    fetching: float
    messaging: float
    down: float
    failures: int


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one direction of a link was used.

    Attributes:
        source: the sending device; None for the router.
        target: the receiving device; None for the router.
        bytes: what it carried, retransmissions included.
        used: that as a share of what it could have carried.
    """

    source: str | None
    target: str | None
    bytes: int
    used: float


class SimulationResult(Product, msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation.

    Attributes:
        requests: the number of requests.
        answered: how many were answered.
        failed: how many were given up, since they ended workers too often.
        stopped: why the run stopped early; empty if it did not.
        rate_per_s: the mean arrival rate; None for a closed loop.
        window: the most requests in flight; None for arrivals at a rate.
        seed: the random seed.
        total_s: from the start to the last answer.
        per_s: the throughput: answers per second of the total time.
        latency: the latencies; None if nothing was answered.
        lost: how many messages were lost and sent again.
        restarted: how often a request was restarted, because a device that failed had its tensors.
        devices: the use of each device.
        links: the use of each link direction.
        without_failures: the result of the same run without device failures; None if there can be none.
    """

    requests: int
    answered: int
    failed: int
    stopped: str
    rate_per_s: float | None
    window: int | None
    seed: int
    total_s: float
    per_s: float
    latency: Latency | None
    lost: int
    restarted: int
    devices: tuple[DeviceUse, ...]
    links: tuple[LinkUse, ...]
    without_failures: SimulationResult | None = None
