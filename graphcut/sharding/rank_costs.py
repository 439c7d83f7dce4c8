"""What the nodes of a model take on groups of devices that divide layers among them.

A group is planned as one device. Its time for a node is that of its slowest rank, and for a node whose result is joined
that of the exchange. So the search over single devices finds pipelines, ranks, and grids of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, NamedTuple

from ..core.graph import Graph, grouped
from ..costs.cluster import Cluster
from ..costs.device import Device
from ..costs.device_groups import DeviceGroup, RankMode, shares_by
from ..costs.held_weights import HeldWeights
from ..costs.part_memory import SESSION_BYTES
from ..costs.weighing import Costs
from .axes.division import Divider, Division

_MOST_REPEATED_BYTES: Final = 1 << 20


def is_repeatable(graph: Graph, node: int) -> bool:
    """Whether each rank repeats a node that is not divided; else, with large weights, only the first has it."""
    weight_bytes = sum(graph.weights[name].bytes for name in graph.weights_of(node))
    return weight_bytes <= _MOST_REPEATED_BYTES and not graph.nodes[node].is_stateful


class RoundInputs(NamedTuple):
    """What ranks receive before a round."""

    first: int  #: the first node of the round before that writes a part of it: it is charged with the messages.
    tensors: list[tuple[int, str]]  #: each with the node that writes it.


@dataclass(frozen=True)
class RankCosts:
    """What the nodes of a model take on groups of devices."""

    costs: Costs
    cluster: Cluster
    mode: RankMode
    seconds: Callable[[Device], Sequence[float]]  #: those of each flowing node on a single device.

    @cached_property
    def division(self) -> Callable[[tuple[int, ...]], Division]:
        """How the model is divided by some shares."""
        return cache(Divider(self.costs.model, self.mode).divide)

    def seconds_of(self, group: DeviceGroup) -> list[float]:
        """Seconds that each flowing node takes: those of the slowest rank, and of the exchange of what it writes."""
        division, flow = self.division(group.shares), self.costs.model.graph.flow
        bound, exchange_s = self._bound(division), self._exchange_s(group, division)
        rows = [(self.seconds(rank.device), rank.device.dispatch_s) for rank in group.ranks]
        found = []
        for i, node in enumerate(flow):
            own_s = [seconds[i] for seconds, _ in rows]
            if node in division.class_of:
                units = division.class_of[node].units
                own_s = [
                    min(seconds[i], dispatch_s) + max(seconds[i] - dispatch_s, 0.0) * number / sum(units)
                    for (seconds, dispatch_s), number in zip(rows, units, strict=True)
                    if number
                ]
            found.append((own_s[0] if node in bound else max(own_s)) + exchange_s.get(node, 0.0))
        return found

    def portions(self, shares: tuple[int, ...]) -> Mapping[int, Sequence[float]]:
        """For each node that is divided the portion of each rank."""
        units = {node: one.units for one in self.division(shares).classes for node in one.factors}
        return {node: [number / sum(own) for number in own] for node, own in units.items()}

    def _bound(self, division: Division) -> frozenset[int]:
        """Nodes that are neither divided nor repeated."""
        return self._unrepeatable - division.class_of.keys()

    @cached_property
    def _unrepeatable(self) -> frozenset[int]:
        graph = self.costs.model.graph
        return frozenset(node for node in graph.flow if not is_repeatable(graph, node))

    @cached_property
    def exchanges(self) -> Callable[[tuple[int, ...]], list[RoundInputs]]:
        """The exchanges of a run with some shares, in order. Between two of them is a round.

        What is not divided is computed by each rank that reads it in the same round. In later rounds it is received
        from the first rank, as what the first rank alone computes.
        """
        return cache(lambda shares: self._exchanges(self.division(shares)))

    def _exchanges(self, division: Division) -> list[RoundInputs]:
        graph, bound = self.costs.model.graph, self._bound(division)
        depth: dict[int, int] = {}
        first_met: dict[tuple[int, str], int] = {}
        for node in graph.flow:
            reads = [(w, name) for name in graph.nodes[node].reads if (w := graph.producer.get(name, -1)) in depth]
            waits = (depth[w] + (name in division.join_of or (w in bound and node not in bound)) for w, name in reads)
            depth[node] = max(waits, default=0)
            sent = [one for one in reads if one[0] not in division.class_of and depth[one[0]] < depth[node]]
            for key in sent:
                first_met[key] = min(depth[node], first_met.get(key, depth[node]))
            joined = (name for name in graph.nodes[node].writes if name in division.join_of)
            first_met |= {(node, name): depth[node] + 1 for name in joined}
        met = grouped((level, key) for key, level in first_met.items())
        firsts = {level: min(w for w, _ in tensors if depth[w] == level - 1) for level, tensors in met.items()}
        return [RoundInputs(firsts[level], met[level]) for level in sorted(met)]

    def _exchange_s(self, group: DeviceGroup, division: Division) -> Mapping[int, float]:
        """For each node that writes what is exchanged the seconds of that."""
        found = defaultdict[int, float](float)
        names, in_turn = [rank.device.name for rank in group.ranks], self.cluster.overlap == "none"
        routes = [[self.cluster.route(a, b) for a in names] for b in names]
        driver = self.cluster.driver.name
        up, down = [self.cluster.route(a, driver) for a in names], [self.cluster.route(driver, a) for a in names]
        messages_s = [0.0 if in_turn else 2 * self.cluster.message_s(name) for name in names]
        late_s = [m + max(latency_s for _, latency_s in row) for m, row in zip(messages_s, routes, strict=True)]
        for exchange in self.exchanges(group.shares):
            found[exchange.first] += max(late_s)
            for writer, tensor in exchange.tensors:
                pieces, whole = self._pieces(division, tensor), self.costs.tensor_bytes[tensor][0]
                seconds = []
                for r, rank in enumerate(group.ranks):
                    joined = (whole + sum(pieces)) / rank.device.bytes_per_s + rank.device.dispatch_s
                    own_s = joined if len(pieces) > 1 else 0.0
                    for q, number in enumerate(pieces):
                        rates = [rank.device.link_bytes_per_s] * in_turn if q == r else [*routes[r][q][0].values()]
                        if self.cluster.is_small(number):
                            rates = [*(up if q == r else down)[r][0].values()]
                        own_s += number / min(rates) if rates else 0.0
                    seconds.append(own_s)
                found[writer] += max(seconds)
        return found

    def _pieces(self, division: Division, tensor: str) -> list[float]:
        """The bytes of a tensor that is exchanged which each rank has; the first may have all."""
        number = self.costs.tensor_bytes[tensor][0]
        join = division.join_of.get(tensor)
        if join is None:
            return [number]
        units = join.divided.units
        return [number * bool(u) if join.is_sum else number * u / sum(units) for u in units]

    def exchanged(self, group: DeviceGroup, nodes: Container[int]) -> tuple[list[int], int]:
        """For each exchange in a part of a group a node before it, and the most bytes that a rank receives there."""
        division, exchanges = self.division(group.shares), self.exchanges(group.shares)
        sent = (tensor for exchange in exchanges for writer, tensor in exchange.tensors if writer in nodes)
        rows = [self._pieces(division, tensor) for tensor in sent]
        received = (sum(sum((*row[:rank], *row[rank + 1 :])) for row in rows) for rank in range(len(group.ranks)))
        return [exchange.first for exchange in exchanges if exchange.first in nodes], round(max(received))

    def shares_to_try(self, devices: Sequence[Device]) -> set[tuple[int, ...]]:
        """Shares by speed; where memory is limited also by memory, by what is free of it, and by both in between."""
        speed = [1 / sum(self.seconds(device)) for device in devices]
        found = {shares_by(speed)}
        if any(device.memory_bytes for device in devices):
            graph, division = self.costs.model.graph, self.division((1,) * len(devices))
            total, bound = sum(weight.bytes for weight in graph.weights.values()), self._bound(division)
            kept = {name for node in graph.flow if node not in division.class_of for name in graph.weights_of(node)}
            first = {name for node in bound for name in graph.weights_of(node)}
            common_bytes, first_bytes = (sum(graph.weights[n].bytes for n in names) for names in (kept - first, first))
            room = [min(device.memory_bytes or total, total) for device in devices]
            free = [max(1, number - common_bytes - first_bytes * (r == 0)) for r, number in enumerate(room)]
            between = [(a * b) ** 0.5 for a, b in zip(speed, room, strict=True)]
            found |= {shares_by(room), shares_by(free), shares_by(between)}
        return found

    def saved_bytes(self, shares: tuple[int, ...], held: HeldWeights) -> Iterator[tuple[Iterable[int], Sequence[int]]]:
        """What ranks need not hold of all that a part holds: the nodes any of which need it, and bytes of each rank.

        Negative bytes are held in addition: by a rank that has a weight whole and a piece of it, too.
        """
        division, graph, others = self.division(shares), self.costs.model.graph, len(shares) - 1
        portions, bound = self.portions(shares), self._bound(division)
        cuts = ((n, {division.operations[n].inputs[slot] for slot in division.cut_slots(n)}) for n in graph.flow)
        users = grouped((name, node) for node in graph.flow for name in graph.weights_of(node))
        divided = grouped((name, node) for node, cut in cuts for name in graph.weights_of(node) if name in cut)
        for exchange in self.exchanges(shares):  # a rank has a file, and a session, for what is before and after it
            yield (exchange.first,), [-SESSION_BYTES] * len(shares)
        for name, nodes in users.items():
            if name not in divided and bound.isdisjoint(nodes):
                continue  # all ranks hold it
            number, own = held.least_bytes[name], divided.get(name, [])
            whole = {*nodes}.difference(own)
            yield nodes, [number] * len(shares)
            yield whole, [-number] + [0] * others
            yield whole - bound, [0] + [-number] * others
            if own:
                yield own, [-round(number * portion) for portion in portions[own[-1]]]
