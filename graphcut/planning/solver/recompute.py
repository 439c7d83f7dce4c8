"""Recompute or transfer: cheap values that a part reads, computed there again where that is cheaper than sending them.

For one reading part the choice is exact: a minimum cut. All that stands upstream may be repeated at the price of
running it; a tensor that is still read from upstream is paid with its bytes. This is minimum-cut replication (Hwang and
El Gamal, 1995) on tensors. Each part chooses for itself: what one repeats changes no other part's prices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Final

from ...core.graph import Graph, partition
from .max_flow import FlowNetwork

_SOURCE: Final = 0
_SINK: Final = 1
_MOST_WEIGHTS: Final = 1 << 20
"""A node that brings more bytes of weights into a part is not repeated there: they would have to be held twice."""


@dataclass(frozen=True)
class Recomputed:
    """What a part computes for itself instead of having it sent.

    Attributes:
        part: the part.
        nodes: the nodes it repeats, in topological order; one that nobody else needs then only moves to it.
        tensors: what need not be sent to it any more.
        saved_bytes: bytes that it receives less; what the repeated nodes read is taken off.
        cost_s: seconds that it runs longer.
    """

    part: int
    nodes: tuple[int, ...]
    tensors: tuple[str, ...]
    saved_bytes: int
    cost_s: float


@dataclass(frozen=True)
class TransferPrices:
    """What it costs to repeat and to send.

    Attributes:
        run_s: seconds that each flowing node takes on a part's device.
        s_per_byte: seconds that a byte takes to get there.
        tensor_bytes: bytes of each activation.
        unsent: tensors that must not be sent, at any price.
        repeatable: the nodes that may be repeated; None for any.
    """

    run_s: Mapping[int, float]
    s_per_byte: float
    tensor_bytes: Mapping[str, int]
    unsent: frozenset[str] = frozenset()
    repeatable: frozenset[int] | None = None

    def send_s(self, name: str) -> float:
        """Seconds that a tensor takes to get there."""
        return self.tensor_bytes[name] * self.s_per_byte


def recompute(
    graph: Graph, rows: Sequence[tuple[int, ...]], prices: Callable[[int], TransferPrices], kept: frozenset[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[Recomputed, ...]]:
    """The rows with what each part repeats, and a list of that.

    A node that then nothing in its own part needs any more, and no other part, leaves it.

    Args:
        graph: the graph.
        rows: the nodes of each part, each node in one.
        prices: what it costs for each part.
        kept: nodes that must not be repeated: they touch a cache, or are pinned. Stateful nodes never are.
    """
    home = {node: i for i, row in enumerate(rows) for node in row}
    made: list[set[int]] = [set(row) for row in rows]
    found = []
    for part in range(1, len(rows)):
        chosen = _repeated(graph, rows[part], prices(part), lambda n, p=part: home[n] < p and n not in kept)  # type: ignore[misc]
        if not chosen:
            continue
        found.append(_saved(graph, part, set(rows[part]), chosen, prices(part)))
        made[part].update(chosen)
    blocks = partition(graph, made).blocks if found else ()
    if not blocks:
        return tuple(rows), ()
    if emptied := [node for row, block in zip(rows, blocks, strict=True) if not block.nodes for node in row]:
        return recompute(graph, rows, prices, kept.union(emptied))  # a part must keep something of its own
    flowing = set(graph.flow)
    return tuple(tuple(sorted(flowing & {*b.nodes, *b.replicas})) for b in blocks), tuple(found)


def repeated(
    graph: Graph, rows: Sequence[tuple[int, ...]], prices: Callable[[int], TransferPrices]
) -> tuple[Recomputed, ...]:
    """What parts compute for themselves in rows where that stands already: nodes whose home is an earlier row.

    Args:
        graph: the graph.
        rows: the nodes of each part; the first row that holds a node is its home.
        prices: what it costs for each part.
    """
    home: dict[int, int] = {}
    found = []
    for part, row in enumerate(rows):
        again = tuple(node for node in row if home.setdefault(node, part) < part)
        if again:
            found.append(_saved(graph, part, set(row).difference(again), again, prices(part)))
    return tuple(found)


def _saved(graph: Graph, part: int, own: set[int], chosen: tuple[int, ...], cost: TransferPrices) -> Recomputed:
    """What comes of a part that computes the chosen nodes besides its own."""
    before, after = _received(graph, own), _received(graph, {*own, *chosen})
    saved = sum(cost.tensor_bytes[name] for name in before) - sum(cost.tensor_bytes[name] for name in after)
    gone = tuple(name for name in before if name not in after)
    return Recomputed(part, chosen, gone, saved, sum(cost.run_s[node] for node in chosen))


def _received(graph: Graph, nodes: set[int]) -> dict[str, None]:
    """What a part with these nodes reads from outside, inputs of the model included."""
    names = dict.fromkeys(name for node in sorted(nodes) for name in graph.nodes[node].reads)
    return {name: None for name in names if graph.producer.get(name) not in nodes}


def _repeated(
    graph: Graph, row: Sequence[int], prices: TransferPrices, may_repeat: Callable[[int], bool]
) -> tuple[int, ...]:
    """The nodes that a part repeats at the least cost; of equal choices the one that repeats least."""
    inside = set(row)
    needed = [name for name in _received(graph, inside) if name in graph.producer]
    held = {weight for node in row for weight in graph.nodes[node].weights}

    def may(node: int) -> bool:
        is_named = prices.repeatable is None or node in prices.repeatable
        return is_named and may_repeat(node) and _is_light(graph, node, held)

    candidates = _candidates(graph, needed, prices, may)
    if not candidates:
        return ()
    late = _late_side(graph, inside, candidates, prices)
    return tuple(sorted(node for node, vertex in candidates.items() if vertex in late))


def _candidates(
    graph: Graph, needed: Sequence[str], prices: TransferPrices, may_repeat: Callable[[int], bool]
) -> dict[int, int]:
    """The nodes that may be worth repeating, each with a vertex of its own.

    Repeating a node means to repeat all nodes on some way from it to what is needed; and it only helps to save what
    can be reached that way, which could be sent instead. So where the cheapest way costs more than sending all that
    can be reached, no best choice goes. One pass, from the last node back.
    """
    bit = {name: 1 << i for i, name in enumerate(needed)}

    @cache
    def worth(mask: int) -> float:
        names = [name for name in needed if mask & bit[name]]
        return inf if prices.unsent.intersection(names) else sum(map(prices.send_s, names))

    way: dict[int, float] = {}
    reached: dict[int, int] = {}
    found: dict[int, int] = {}
    for name in needed:
        way[graph.producer[name]] = 0.0
        reached[graph.producer[name]] = reached.get(graph.producer[name], 0) | bit[name]
    waiting = [-node for node in way]
    heapq.heapify(waiting)
    while waiting:
        node = -heapq.heappop(waiting)
        cost = way[node] + prices.run_s[node] if may_repeat(node) else inf
        if cost >= worth(reached[node]):
            continue
        found[node] = len(found) + 2
        for maker in {graph.producer[name] for name in graph.nodes[node].reads if name in graph.producer}:
            if maker not in way:
                heapq.heappush(waiting, -maker)
            way[maker] = min(way.get(maker, inf), cost)
            reached[maker] = reached.get(maker, 0) | reached[node]
    return found


def _is_light(graph: Graph, node: int, held: set[str]) -> bool:
    own = graph.nodes[node]
    return not own.is_stateful and sum(graph.weights[w].bytes for w in own.weights if w not in held) <= _MOST_WEIGHTS


def _late_side(graph: Graph, inside: set[int], candidates: Mapping[int, int], prices: TransferPrices) -> set[int]:
    """The vertices that stand on the reading part's side of the minimum cut with the fewest there."""
    readers: dict[str, set[int]] = {}
    for node in (*sorted(inside), *candidates):
        for name in graph.nodes[node].reads:
            if graph.producer.get(name) not in inside:
                readers.setdefault(name, set()).add(candidates.get(node, _SINK))
    given = {name for node in inside for name in graph.nodes[node].reads if name not in graph.producer}
    arcs: list[tuple[int, int, int]] = []
    vertices = len(candidates) + 2
    for name, vertices_reading in readers.items():
        writer = candidates.get(graph.producer.get(name, -1), _SOURCE)
        if writer == _SOURCE and name in given:
            continue  # an input of the model that the part is fed anyway
        arcs.append((writer, vertices, -1 if name in prices.unsent else _grains(prices.send_s(name))))
        arcs += [(vertices, reader, -1) for reader in sorted(vertices_reading)]
        vertices += 1
    arcs += [(_SOURCE, vertex, _grains(prices.run_s[node])) for node, vertex in candidates.items()]
    endless = 1 + sum(price for _, _, price in arcs if price > 0)
    network = FlowNetwork(vertices)
    for source, target, price in arcs:
        network.add_arc(source, target, endless if price < 0 else price)
    network.saturate(_SOURCE, _SINK)
    return set(network.reaching(_SINK))


def _grains(seconds: float) -> int:
    """Seconds as a whole number of picoseconds, at least one: nothing is free."""
    return max(1, round(seconds * 1e12))
