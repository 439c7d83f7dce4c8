"""Direct links between devices: what a plan costs on them, and which device should run which part.

The dynamic programs know what a device sends and receives, not to whom. They count with its best link, which gives a
lower bound; here the plan gets its true figures, and devices change places while that makes it better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations

import numpy as np

from ...costs.device import Device
from ..cluster import Cluster
from ..goals import Across
from ..instance import Workload
from ..results import Optimality, Solution, is_same
from ..solver.cost_tables import DeviceClass, memory_bytes
from ..solver.order_prefixes import prefix_tables

Moved = tuple[int, int, Sequence[int]]
"""A tensor that crosses: its bytes, the part that writes it, the other parts that read it."""


def settle(choice: Solution, load: Workload, kinds: Sequence[DeviceClass], goal: Across) -> Solution:
    """`choice` with its true figures on the links of the cluster, its devices where they serve best.

    Devices change places, or with one that is idle, as long as the objective gets better: a local optimum.
    """
    parts, found = choice.found.parts, choice.found
    order = tuple(group for part in parts for group in part)
    ladder = prefix_tables(load, order, [0, *accumulate(len(part) for part in parts)])
    table = memory_bytes(ladder, ("activations", "inputs", "cache"))
    needed = [float(table[i + 1, i]) for i in range(len(parts))]
    steps = range(len(parts))
    crossing = list(moved(load, parts))
    tables = {d.name: ladder.work(number) for number, kind in enumerate(kinds) for d in kind.devices}
    work = {name: [float(table[i + 1, i]) for i in steps] for name, table in tables.items()}

    def value(devices: Sequence[Device]) -> float:
        if any(d.memory_bytes is not None and d.memory_bytes < need for d, need in zip(devices, needed, strict=True)):
            return np.inf
        busy = moving_s(crossing, devices, goal.cluster)
        return _value(goal, [busy[i] + work[devices[i].name][i] for i in steps])

    best, least = choice.devices, value(choice.devices)
    improved = True
    while improved:
        improved = False
        for devices in _neighbours(best, goal.cluster):
            if (number := value(devices)) < least:
                best, least, improved = devices, number, True
                break
    outcome = choice.outcome
    if goal.objective in {"throughput", "latency", "decode"}:
        bound = outcome.value if found.is_optimal else outcome.bound
        if goal.objective == "decode":
            reached = 1 / least if least else np.inf
            is_optimal = is_same(1 / reached if reached else np.inf, 1 / bound if bound else np.inf)
        else:
            reached, is_optimal = least, is_same(least, bound)
        outcome = Optimality(outcome.objective, reached, reached if is_optimal else bound, outcome.unit, is_optimal)
    return replace(choice, devices=best, outcome=outcome)


def moving_s(tensors: Iterable[Moved], devices: Sequence[Device], cluster: Cluster | None) -> list[float]:
    """Seconds that each part's device sends and receives.

    A tensor is sent once over the router, however many devices there read it, and once over each direct link; each
    reader receives it once. The latency counts once for a part that receives anything: the worst of its ways.

    Args:
        tensors: what crosses.
        devices: the device of each part.
        cluster: what links there are besides those to the router.
    """
    links = {} if cluster is None else cluster.link_between
    busy = [0.0] * len(devices)
    late = [0.0] * len(devices)
    for number, source, readers in tensors:
        over_router = False
        for target in readers:
            link = links.get(frozenset((devices[source].name, devices[target].name)))
            over_router = over_router or link is None
            busy[target] += number / (devices[target].link_bytes_per_s if link is None else link.bytes_per_s)
            busy[source] += 0.0 if link is None else number / link.bytes_per_s
            latency = devices[target].latency_s if link is None else link.latency_s
            late[target] = max(late[target], latency if number else 0.0)
        busy[source] += number / devices[source].link_bytes_per_s * over_router
    return [seconds + latency for seconds, latency in zip(busy, late, strict=True)]


def moved(load: Workload, parts: Sequence[Sequence[int]]) -> Iterator[Moved]:
    """The tensors of a workload that cross between parts."""
    home = {group: i for i, part in enumerate(parts) for group in part}
    readers: list[set[int]] = [set() for _ in range(load.readers.number)]
    for tensor, group in zip(load.readers.thing.tolist(), load.readers.group.tolist(), strict=True):
        readers[tensor].add(home[group])
    for tensor, writer in enumerate(load.writer.tolist()):
        if others := readers[tensor] - {home[writer]}:
            yield int(load.tensor_bytes[tensor]), home[writer], sorted(others)


def _value(goal: Across, busy: Sequence[float]) -> float:
    match goal.objective:
        case "latency" | "devices":
            return sum(busy)
        case "decode":
            return max(sum(busy) / goal.in_flight, *busy)
        case "throughput" | "bytes":
            return max(busy)


def _neighbours(devices: tuple[Device, ...], cluster: Cluster) -> Iterator[tuple[Device, ...]]:
    """Two parts change devices, or one part moves to an idle one."""
    for i, j in combinations(range(len(devices)), 2):
        changed = list(devices)
        changed[i], changed[j] = changed[j], changed[i]
        yield tuple(changed)
    used = {device.name for device in devices}
    for idle in (device for device in cluster.devices if device.name not in used):
        for i in range(len(devices)):
            yield (*devices[:i], idle, *devices[i + 1 :])
