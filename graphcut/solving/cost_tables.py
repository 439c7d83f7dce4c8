"""Cost tables: seconds that the part between two boundaries keeps a device busy, and bytes that it takes there."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as changed

from ..core.graph import grouped
from ..costs.cluster import Cluster
from ..costs.device import Counted, Device
from ..costs.device_groups import DeviceGroup
from .boundaries import BoundaryTables
from .instance import Bools, Floats, Workload, exact, quantum_for


class DeviceClass(NamedTuple):
    """Devices that are the same but for their names."""

    devices: tuple[Device, ...]  #: the devices.
    memory_bytes: float  #: memory of one of them; `inf` for no limit.
    s_per_byte: float  #: seconds to receive or to send a byte over its link to the router.
    latency_s: float  #: seconds until the first byte is received over that link.
    members: tuple[int, ...] = ()  #: of a group of devices the class of each rank; empty for single devices.


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """The device classes of a cluster, in the order in which they first occur.

    A device with direct links is a class of its own, and so is the one where the driver is.
    """
    alone = {cluster.driver.name, *(name for link in cluster.links for name in link.between)}
    named = ((device.name if device.name in alone else "", device) for device in cluster.devices)
    alike = grouped(((own_name, changed(device, name="any")), device) for own_name, device in named).items()
    rows = ((tuple(own), float(one.memory_bytes or np.inf), one) for (_, one), own in alike)
    return tuple(DeviceClass(own, room, 1 / one.link_bytes_per_s, one.latency_s) for own, room, one in rows)


def used_devices(classes: Sequence[DeviceClass]) -> list[tuple[int, ...]]:
    """For each class how many devices of each class of single ones a part on it takes."""
    single = range(sum(not c.members for c in classes))
    return [tuple((c.members or (i,)).count(one) for one in single) for i, c in enumerate(classes)]


def assigned_devices(classes: Sequence[DeviceClass], chosen: Iterable[int]) -> list[Device]:
    """The device of each part, or the group, whose classes are `chosen`."""
    unused, found = [list(c.devices) for c in classes if not c.members], list[Device]()
    for c in chosen:
        taken = [unused[member].pop(0) for member in classes[c].members or (c,)]
        found += [group.on(taken) for group in classes[c].devices if isinstance(group, DeviceGroup)] or taken
    return found


@dataclass(frozen=True)
class PairCosts:
    """What a byte and a message take from device class a to b, as `[a, b]`. The driver has the last row and column."""

    received_s: Floats  #: seconds to receive a byte.
    sent_s: Floats  #: seconds that it uses the link of the sender.
    latency_s: Floats  #: seconds until the first byte is there, and of object stores for a tensor that is not small.
    reported_s: Floats  #: for each class the seconds that a byte that a part sends takes first to the driver, at least.
    overhead_s: Floats  #: for each class `Cluster.overhead_s`.

    @cached_property
    def senders(self) -> tuple[int, ...]:
        """For each class the first one from which all receive as they do from this one."""
        rows = [tuple(row) for row in np.concatenate([self.received_s, self.latency_s], axis=1)[:-1].tolist()]
        return tuple(rows.index(row) for row in rows)


def pair_costs(classes: Sequence[DeviceClass], cluster: Cluster, load: Workload) -> PairCosts:
    """The costs by the rules of `request_times`.

    They are exact where all tensors between parts go by way of the driver, or none; else the least of either way.
    """
    driver, in_turn = cluster.driver, cluster.overlap == "none"
    single = [((c.devices[0].name, c.s_per_byte, c.latency_s),) for c in classes if not c.members]
    ends = [*single, *(tuple(single[m][0] for m in c.members) for c in classes[len(single) :])]
    ends.append(((driver.name, 1 / driver.link_bytes_per_s, driver.latency_s),))
    received_s, sent_s, latency_s = np.zeros((3, len(ends), len(ends)))
    for (a, ((sender, sending_s, _), *_)), (b, receivers) in product(enumerate(ends), repeat=2):
        routed = [one for one in receivers if frozenset((sender, one[0])) not in cluster.link_between]
        if len(classes) in {a, b}:  # of two devices of a class each is a machine; the driver may be on a device
            routed = [one for one in routed if one[0] != sender]
        links = [link for one in receivers if (link := cluster.link_between.get(frozenset((sender, one[0]))))]
        ends_s = [receiving_s for _, receiving_s, _ in routed] + [1 / link.bytes_per_s for link in links]
        sent_s[a, b] = len(routed) * sending_s if routed else ends_s[0] if links else 0.0
        received_s[a, b] = max(ends_s, default=0.0) if in_turn else max(sent_s[a, b], *ends_s, 0.0)
        late_s = [late_s for *_, late_s in routed] + [link.latency_s for link in links]
        latency_s[a, b] = max(late_s) + cluster.stored_s(np.inf) if late_s else 0.0
    sizes = [*load.tensor_bytes, *(() if load.replicas is None else load.replicas.tensor_bytes)]
    ways = {cluster.is_small(int(number)) for number in sizes if number}
    if True in ways:
        latency_s[:-1, :-1] = 0.0
        relayed_s = received_s[-1, :-1]
        received_s[:-1, :-1] = np.minimum(received_s[:-1, :-1], relayed_s) if False in ways else relayed_s
    overhead_s = np.array([cluster.overhead_s(name for name, *_ in own) for own in ends[:-1]])
    return PairCosts(received_s, sent_s, latency_s, received_s[:-1, -1] * (ways == {True}), overhead_s)


def best_links(classes: Sequence[DeviceClass], pairs: PairCosts) -> tuple[DeviceClass, ...]:
    """The classes as if each device sent and received over its best link."""
    least_s, soonest_s = pairs.received_s[:-1].min(axis=0), pairs.latency_s[:-1].min(axis=0)
    links = zip(classes, least_s, soonest_s, strict=False)  # the last one is the driver's
    return tuple(c._replace(s_per_byte=min(c.s_per_byte, byte_s), latency_s=late_s) for c, byte_s, late_s in links)


def time_quantum(load: Workload, classes: Sequence[DeviceClass], pairs: PairCosts | None = None) -> float:
    """The quantum to which times are rounded so that float64 sums are exact, for any boundaries of the workload."""
    work = float(load.work[np.isfinite(load.work)].sum())
    s_per_byte, latency_s = max(c.s_per_byte for c in classes), max(c.latency_s for c in classes)
    if pairs is not None:
        s_per_byte = float(np.maximum(pairs.received_s, pairs.sent_s).max())
        latency_s = float(pairs.latency_s.max() + pairs.overhead_s.max())
    answers = sum(number for _, number, _ in load.answers)
    sent = float(load.tensor_bytes.sum() + answers) + load.groups * float(load.input_bytes.sum())
    return quantum_for(4 * (work + sent * s_per_byte + load.groups * latency_s))


def busy_s(tables: BoundaryTables, index: int, device_class: DeviceClass, quantum: float) -> Floats:
    """Seconds that a part keeps a device of a class busy: it receives, computes and sends, one after the other.

    Each tensor is received once and sent once, however many groups and devices read it (Tarnawski et al., NeurIPS
    2020). `inf` where there is no part. `index` is the row of `Workload.work` that belongs to the device class.
    """
    seconds = tables.work(index, device_class.s_per_byte) + (tables.received + tables.sent) * device_class.s_per_byte
    seconds += (tables.received > 0) * device_class.latency_s
    return np.where(tables.nested, exact(seconds, quantum), np.inf)


def received_bytes(tables: BoundaryTables) -> Floats:
    """Bytes that a part receives from other parts, each tensor once; `inf` where there is no part."""
    return np.where(tables.nested, tables.received, np.inf)


def memory_bytes(tables: BoundaryTables, counting: Collection[Counted], most: float = np.inf) -> Floats:
    """Bytes of a part: its files or what is held of them, and what else is counted; `inf` where there is no part.

    Of a part that takes more than `most` any number above that.
    """
    needed = tables.own_bytes + tables.load.part_bytes
    for more in (tables.shared_bytes, tables.declared, *((tables.received,) * ("inputs" in counting))):
        needed += more  # in place: of many boundaries a table takes 30 MiB
    if "activations" in counting:
        opening = tables.opening
        peak = tables.peak if most == np.inf else tables.peak_of(needed <= most)
        needed += np.maximum(peak, opening, out=opening)
    needed[~tables.nested] = np.inf
    return needed


def fits_in(tables: BoundaryTables, counting: Collection[Counted], sizes: Sequence[float | Floats]) -> list[Bools]:
    """For each of some memory sizes (of a device, or what it leaves each part), which parts fit in it.

    Computes the exact peak only where it decides.
    """
    needed = memory_bytes(tables, [what for what in counting if what != "activations"])
    if "activations" in counting:
        opening = tables.opening
        at_most = needed + np.maximum(tables.peak_upper_bound, opening)
        if any(((needed <= size) & (at_most > size)).any() for size in sizes):
            needed += np.maximum(tables.peak, opening)
    return [np.asarray(needed <= size) for size in sizes]


def allowed_by(tables: BoundaryTables, pins: Mapping[int, int]) -> Callable[[int], Bools] | None:
    """For a number of parts, the boundaries that can be reached with that many; None without pins.

    After k parts a boundary must hold the groups pinned to parts 0 to k - 1, and none of the other pinned ones.
    """
    if not pins:
        return None
    inside = tables.inside
    pinned_to = np.array(list(pins.values()))
    return cache(lambda parts: np.asarray((inside[:, list(pins)] == (pinned_to < parts)).all(axis=1)))
