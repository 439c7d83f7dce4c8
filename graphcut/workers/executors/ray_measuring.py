"""Measure the machines of a Ray cluster, and the links between them."""

from collections.abc import Callable
from itertools import combinations
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import ray  # noqa: TID251 - a module of the Ray executor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: TID251 - a module of the Ray executor

from ...core.errors import RunError
from ...running.process_memory import available_bytes
from .ray_cluster import RayCluster, alive_machines, devices_of

_STORED_BYTES: Final = 1 << 17  #: what is too large for a message.

Machine = tuple[str, ...]  #: the names of the devices that a machine is; empty if it is none.


class LinkRate(NamedTuple):
    """A link between two machines."""

    bytes_per_s: float
    latency_s: float  #: of a small message, with what its ends do for it.
    store_s: float  #: what a larger tensor takes besides, in the object stores of both ends.


class MeasuredCluster(NamedTuple):
    """What was found on the machines of a cluster."""

    found: dict[str, Any]  #: what was measured on each device, by its name.
    memory_bytes: dict[str, int | None]  #: the memory that each has left.
    links: dict[tuple[Machine, Machine], LinkRate]  #: between two machines; that of this process is named first.
    here: Machine  #: the machine of this process.


class _Probe:
    """An actor on a machine."""

    def __init__(self) -> None:
        # More than caches hold is read between two messages, as weights are.
        self._weights = np.ones(1 << 25, np.uint8).view(np.float32)

    def take(self, _content: object) -> float:
        """Seconds that it computed, as a part does between messages."""
        began = perf_counter()
        while (taken_s := perf_counter() - began) < 3e-3:
            self._weights.sum()
        return taken_s

    def measure(self, function: Callable[[], Any]) -> tuple[Any, int | None]:
        return function(), available_bytes()

    def link_to(self, other: Any) -> LinkRate:  # noqa: ANN401 - Ray's handle of an actor
        def seconds(size: int) -> float:
            # Runs send bytes in messages, and arrays by way of Ray's object store.
            content, _ = np.zeros(size, np.uint8) if size > 1 else b"", self.take(None)
            began = perf_counter()
            computed_s = ray.get(other.take.remote(content))
            return perf_counter() - began - float(computed_s)

        size = 1 << 17
        while seconds(size) < 0.5 and size < 1 << 26:  # a message is made larger until it takes so long
            size *= 2
        taken_s, half_s = (min(seconds(number) for _ in range(3)) for number in (size, size // 2))
        # What both sizes take besides their bytes cancels out.
        bytes_per_s = size / 2 / max(taken_s - half_s, 1e-9)
        there_and_back_s = median(seconds(1) for _ in range(20))
        stored_s = median(seconds(_STORED_BYTES) for _ in range(10))
        store_s = max(stored_s - there_and_back_s - _STORED_BYTES / bytes_per_s, 0.0)
        return LinkRate(bytes_per_s, there_and_back_s / 2, store_s)


def measure_cluster(function: Callable[[], Any], *, insecure: bool = False) -> MeasuredCluster:
    """Call `function` on every device of the cluster at the same time, then measure the links one by one.

    Raises:
        RunError: there is no cluster; unless `insecure`, it requires no token; or none of its machines says which
            device it is.
    """
    cluster = RayCluster(1, insecure=insecure)
    try:
        nodes = {name: str(machine["NodeID"]) for machine in alive_machines() for name in devices_of(machine)}
        if not nodes:
            hint = """start Ray on each machine with --resources='{"dev:NAME": 1}'"""
            raise RunError("no machine of the cluster says which device it is", hint=hint)
        here = str(ray.get_runtime_context().get_node_id())
        origin = next((name for name, node in nodes.items() if node == here), "")
        ends = {origin: here} | nodes
        actor: Any = ray.remote(num_cpus=0)(_Probe)
        place = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in ends.values()}
        probes = {name: actor.options(scheduling_strategy=place[node]).remote() for name, node in ends.items()}
        found = dict(zip(nodes, ray.get([probes[name].measure.remote(function) for name in nodes]), strict=True))
        machines = {node: tuple(name for name in nodes if nodes[name] == node) for node in place}
        one_of = {node: probes[name] for name, node in ends.items()}
        # Of more, only the links to this one: a link takes a few seconds.
        pairs = [pair for pair in combinations(place, 2) if len(place) <= 6 or here in pair]
        links = {(machines[a], machines[b]): ray.get(one_of[a].link_to.remote(one_of[b])) for a, b in pairs}
        memory_bytes = {name: number for name, (_, number) in found.items()}
        return MeasuredCluster({name: one for name, (one, _) in found.items()}, memory_bytes, links, machines[here])
    finally:
        cluster.leave()
