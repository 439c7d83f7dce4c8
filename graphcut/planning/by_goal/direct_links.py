"""Direct links between devices: the cost of a plan on them, and the assignment of devices to its parts.

The chain DP knows how much a device sends and receives, but not to and from whom. It counts with the best link of each
device, which gives a lower bound. Here the plan gets its true cost, and devices are exchanged while that improves it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, combinations

import numpy as np

from ...costs.device import Device
from ..cluster import Cluster
from ..goals import Across
from ..instance import Workload
from ..solver.cost_tables import DeviceClass, memory_bytes
from ..solver.order_prefixes import prefix_tables
from ..solver.search import SearchResult

Transfer = tuple[int, int, Sequence[int]]
"""A boundary tensor: its bytes, the part that writes it, the other parts that read it."""


def assign_devices(
    found: SearchResult, devices: tuple[Device, ...], load: Workload, classes: Sequence[DeviceClass], goal: Across
) -> tuple[tuple[Device, ...], float]:
    """The devices of the parts, exchanged while the objective improves, and its true value (a time).

    Two parts exchange their devices, or one part moves to an idle device: a local optimum.
    """
    parts = found.parts
    order = tuple(group for part in parts for group in part)
    tables = prefix_tables(load, order, [0, *accumulate(map(len, parts))])
    indices = range(len(parts))
    memory = memory_bytes(tables, ("activations", "inputs", "cache"))
    needed = [float(memory[i + 1, i]) for i in indices]
    transfers = list(transfers_of(load, parts))
    work = [(device_class, tables.work(c)) for c, device_class in enumerate(classes)]
    work_s = {d.name: [float(table[i + 1, i]) for i in indices] for c, table in work for d in c.devices}

    def value(devices: Sequence[Device]) -> float:
        if any(d.memory_bytes is not None and d.memory_bytes < need for d, need in zip(devices, needed, strict=True)):
            return np.inf
        moving_s = transfer_s(transfers, devices, goal.cluster)
        return _objective(goal, [moving_s[i] + work_s[devices[i].name][i] for i in indices])

    best, least = devices, value(devices)
    while (other := next((d for d in _neighbours(best, goal.cluster) if value(d) < least), None)) is not None:
        best, least = other, value(other)
    return best, least


def transfer_s(transfers: Iterable[Transfer], devices: Sequence[Device], cluster: Cluster | None) -> list[float]:
    """Seconds that the device of each part sends and receives.

    A tensor is sent once over the router, however many devices read it there, and once over each direct link; each
    device receives it once, with the first of its parts that reads it. The greatest latency of a part's links counts
    once if it receives anything. Without a cluster each part is on a device of its own, and there are no direct links.
    """
    links = {} if cluster is None else cluster.link_between
    names = [str(part) if cluster is None else device.name for part, device in enumerate(devices)]
    busy_s = [0.0] * len(devices)
    latency_s = [0.0] * len(devices)
    for number, source, readers in transfers:
        over_router, reached = False, {names[source]}
        for target in sorted(readers):
            if names[target] in reached:
                continue
            reached.add(names[target])
            link = links.get(frozenset((devices[source].name, devices[target].name)))
            over_router = over_router or link is None
            busy_s[target] += number / (devices[target].link_bytes_per_s if link is None else link.bytes_per_s)
            busy_s[source] += 0.0 if link is None else number / link.bytes_per_s
            first_byte_s = devices[target].latency_s if link is None else link.latency_s
            latency_s[target] = max(latency_s[target], first_byte_s if number else 0.0)
        busy_s[source] += number / devices[source].link_bytes_per_s * over_router
    return [busy + latency for busy, latency in zip(busy_s, latency_s, strict=True)]


def transfers_of(load: Workload, parts: Sequence[Sequence[int]]) -> Iterator[Transfer]:
    """The boundary tensors of a workload in parts."""
    home = {group: i for i, part in enumerate(parts) for group in part}
    for tensor, (writer, groups) in enumerate(zip(load.writer.tolist(), load.readers.groups_of_items(), strict=True)):
        if others := {home[group] for group in groups} - {home[writer]}:
            yield int(load.tensor_bytes[tensor]), home[writer], sorted(others)


def _objective(goal: Across, busy_s: Sequence[float]) -> float:
    match goal.objective:
        case "latency" | "devices":
            return sum(busy_s)
        case "decode":
            return max(sum(busy_s) / goal.in_flight, *busy_s)
        case "throughput" | "bytes":
            return max(busy_s)


def _neighbours(devices: tuple[Device, ...], cluster: Cluster) -> Iterator[tuple[Device, ...]]:
    """Assignments in which two parts exchange devices, or one part moves to an idle device."""
    for i, j in combinations(range(len(devices)), 2):
        changed = list(devices)
        changed[i], changed[j] = changed[j], changed[i]
        yield tuple(changed)
    used = {device.name for device in devices}
    for idle in (device for device in cluster.devices if device.name not in used):
        for i in range(len(devices)):
            yield (*devices[:i], idle, *devices[i + 1 :])
