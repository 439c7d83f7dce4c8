"""What came of a simulation."""

from __future__ import annotations

import msgspec

from ..core.product import Product


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the arrival of a request to its answer, which waits for the answers of those that came before.

    Attributes:
        mean: of all that were answered.
        p50: half were answered in so much or less.
        p90: nine of ten.
        p99: 99 of a hundred.
        max: all.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one device did.

    Attributes:
        name: its name.
        parts: the places of the parts that it was to run at the beginning.
        steps: how many steps it did.
        computing: the share of the time in which it computed.
        fetching: the share of the time in which it waited for tensors of a step.
        messaging: the share of the time in which it had nothing to do but a word to it or from it was on its way.
        down: the share of the time in which it was down.
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
    """What one direction of a link did.

    Attributes:
        source: the device that it comes from; None for the router.
        target: the device that it goes to; None for the router.
        bytes: what it carried, again what was lost included.
        used: that as a share of what it could have carried.
    """

    source: str | None
    target: str | None
    bytes: int
    used: float


class SimulationResult(Product, msgspec.Struct, frozen=True, kw_only=True):
    """What came of a simulation.

    Attributes:
        requests: how many were to be answered.
        answered: how many were.
        failed: how many ended their workers too often, and were given up.
        stopped: why it did not go on; empty where it went on to the end.
        rate_per_s: how many requests came in a second on average; None where one came for each that left.
        window: how many were on their way at most; None where they came by themselves.
        seed: what chance followed.
        total_s: from the beginning to the last answer.
        per_s: answers a second, of all that time.
        latency: how long requests took; None where none was answered.
        lost: messages that got lost and were sent again.
        restarted: how often a request began anew since what was made for it had gone with a device.
        devices: what they did.
        links: what these did.
        without_failures: the same without failures of devices; None where there can be none.
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
