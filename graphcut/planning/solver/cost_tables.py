"""What the part between two rungs costs: seconds it keeps a device busy, bytes it takes there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...costs.device import Device
from ..cluster import Cluster
from ..goals import Counted
from ..instance import Bools, Floats, Workload, exact, quantum_for
from .boundaries import BoundaryTables


@dataclass(frozen=True)
class DeviceClass:
    """Devices that are alike.

    Attributes:
        devices: the devices.
        memory_bytes: what one of them holds; `inf` for no limit.
        s_per_byte: what it takes to receive or to send a byte.
        latency_s: what it takes until the first byte is received.
    """

    devices: tuple[Device, ...]
    memory_bytes: float
    s_per_byte: float
    latency_s: float


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """The kinds among the devices, in the order they first appear: alike in all but their names.

    A device with a direct link is a kind of its own; it counts with the rate of the best of its links.
    """
    alike: dict[tuple[object, ...], list[Device]] = {}
    direct = {name for link in cluster.links for name in link.between}
    for device in cluster.devices:
        fields = tuple(getattr(device, field) for field in device.__struct_fields__ if field != "name")
        alike.setdefault((device.name if device.name in direct else "", *fields), []).append(device)
    return tuple(_kind(tuple(devices), cluster) for devices in alike.values())


def _kind(devices: tuple[Device, ...], cluster: Cluster) -> DeviceClass:
    device = devices[0]
    links = [link for link in cluster.links if device.name in link.between]
    return DeviceClass(
        devices,
        np.inf if device.memory_bytes is None else float(device.memory_bytes),
        1 / max([device.link_bytes_per_s, *(link.bytes_per_s for link in links)]),
        min([device.latency_s, *(link.latency_s for link in links)]),
    )


def time_quantum(load: Workload, kinds: Sequence[DeviceClass]) -> float:
    """The grain of all times of a workload on these kinds, whatever the ladder, such that their sums are exact."""
    work = float(load.work[np.isfinite(load.work)].sum())
    sent = float(load.tensor_bytes.sum()) * max(kind.s_per_byte for kind in kinds)
    late = load.groups * max(kind.latency_s for kind in kinds)
    return quantum_for(4 * (work + sent + late))


def busy_s(ladder: BoundaryTables, number: int, kind: DeviceClass, grain: float) -> Floats:
    """Seconds that a part keeps a device busy, of the kind of that number: receiving, computing, sending, in turn.

    Each tensor is received once and sent once, however many nodes here and devices there read it (Tarnawski et al.,
    NeurIPS 2020). `inf` where no part lies between two rungs.
    """
    seconds = ladder.work(number) + (ladder.received + ladder.sent) * kind.s_per_byte
    seconds += (ladder.received > 0) * kind.latency_s
    return np.where(ladder.fits, exact(seconds, grain), np.inf)


def received_bytes(ladder: BoundaryTables) -> Floats:
    """Bytes that a part receives from others, each tensor once."""
    return np.where(ladder.fits, ladder.received, np.inf)


def memory_bytes(ladder: BoundaryTables, counting: Collection[Counted]) -> Floats:
    """Bytes that a part takes: its files, and what else is counted."""
    held = ladder.held + ladder.shared + ladder.declared + ladder.load.part_bytes
    if "inputs" in counting:
        held = held + ladder.received
    if "activations" in counting:
        held = held + ladder.peak
    return np.where(ladder.fits, held, np.inf)


def fits_in(ladder: BoundaryTables, counting: Collection[Counted], memory: Sequence[float]) -> list[Bools]:
    """For each of some sizes of memory, which parts fit it. The peak is looked at only where it decides."""
    needed = memory_bytes(ladder, [what for what in counting if what != "activations"])
    if "activations" in counting:
        roof = needed + ladder.peak_roof
        if any(((needed <= size) & (roof > size)).any() for size in memory):
            needed = needed + ladder.peak
    return [np.asarray(needed <= size) for size in memory]


def allowed_by(ladder: BoundaryTables, pins: Mapping[int, int]) -> Callable[[int], Bools] | None:
    """For a number of parts, which rungs can be reached with so many when pinned groups stand in theirs."""
    if not pins:
        return None
    below = np.stack([ladder.below(rung) for rung in range(ladder.height)])[:, list(pins)]
    homes = np.array(list(pins.values()))
    return lambda parts: np.asarray((below == (homes < parts)).all(axis=1))
