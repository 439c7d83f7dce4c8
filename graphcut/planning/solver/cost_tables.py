"""Cost tables: seconds that the part between two boundaries keeps a device busy, and bytes that it takes there."""

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
    """Devices that are the same but for their names."""

    devices: tuple[Device, ...]  #: the devices.
    memory_bytes: float  #: memory of one of them; `inf` for no limit.
    s_per_byte: float  #: seconds to receive or to send a byte.
    latency_s: float  #: seconds until the first byte is received.


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """The device classes of a cluster, in the order in which they first occur.

    A device with direct links is a class of its own, with the bandwidth and the latency of its best link.
    """
    alike: dict[tuple[object, ...], list[Device]] = {}
    linked = {name for link in cluster.links for name in link.between}
    for device in cluster.devices:
        fields = tuple(getattr(device, field) for field in device.__struct_fields__ if field != "name")
        alike.setdefault((device.name if device.name in linked else "", *fields), []).append(device)
    return tuple(_device_class(tuple(devices), cluster) for devices in alike.values())


def _device_class(devices: tuple[Device, ...], cluster: Cluster) -> DeviceClass:
    device = devices[0]
    links = [link for link in cluster.links if device.name in link.between]
    return DeviceClass(
        devices,
        np.inf if device.memory_bytes is None else float(device.memory_bytes),
        1 / max([device.link_bytes_per_s, *(link.bytes_per_s for link in links)]),
        min([device.latency_s, *(link.latency_s for link in links)]),
    )


def time_quantum(load: Workload, classes: Sequence[DeviceClass]) -> float:
    """The quantum to which times are rounded so that float64 sums are exact, for any boundaries of the workload."""
    work = float(load.work[np.isfinite(load.work)].sum())
    transfers = float(load.tensor_bytes.sum()) * max(c.s_per_byte for c in classes)
    latencies = load.groups * max(c.latency_s for c in classes)
    return quantum_for(4 * (work + transfers + latencies))


def busy_s(tables: BoundaryTables, index: int, device_class: DeviceClass, quantum: float) -> Floats:
    """Seconds that a part keeps a device of a class busy: it receives, computes and sends, one after the other.

    Each tensor is received once and sent once, however many groups and devices read it (Tarnawski et al., NeurIPS
    2020). `inf` where there is no part. `index` is the row of `Workload.work` that belongs to the device class.
    """
    seconds = tables.work(index) + (tables.received + tables.sent) * device_class.s_per_byte
    seconds += (tables.received > 0) * device_class.latency_s
    return np.where(tables.nested, exact(seconds, quantum), np.inf)


def received_bytes(tables: BoundaryTables) -> Floats:
    """Bytes that a part receives from other parts, each tensor once; `inf` where there is no part."""
    return np.where(tables.nested, tables.received, np.inf)


def memory_bytes(tables: BoundaryTables, counting: Collection[Counted]) -> Floats:
    """Bytes of a part: its files, and what else is counted; `inf` where there is no part."""
    needed = tables.own_bytes + tables.shared_bytes + tables.declared + tables.load.part_bytes
    if "inputs" in counting:
        needed = needed + tables.received
    if "activations" in counting:
        needed = needed + tables.peak
    return np.where(tables.nested, needed, np.inf)


def fits_in(tables: BoundaryTables, counting: Collection[Counted], sizes: Sequence[float]) -> list[Bools]:
    """For each of some memory sizes, which parts fit in it. Computes the exact peak only where it decides."""
    needed = memory_bytes(tables, [what for what in counting if what != "activations"])
    if "activations" in counting:
        at_most = needed + tables.peak_upper_bound
        if any(((needed <= size) & (at_most > size)).any() for size in sizes):
            needed = needed + tables.peak
    return [np.asarray(needed <= size) for size in sizes]


def allowed_by(tables: BoundaryTables, pins: Mapping[int, int]) -> Callable[[int], Bools] | None:
    """For a number of parts, the boundaries that can be reached with that many; None without pins.

    After k parts a boundary must hold the groups pinned to parts 0 to k - 1, and none of the other pinned ones.
    """
    if not pins:
        return None
    inside = np.zeros((tables.boundary_count, tables.load.groups), dtype=bool)
    for boundary in range(tables.boundary_count):
        inside[boundary, list(tables.groups_between(0, boundary))] = True
    pinned_to = np.array(list(pins.values()))
    return lambda parts: np.asarray((inside[:, list(pins)] == (pinned_to < parts)).all(axis=1))
