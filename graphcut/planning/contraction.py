"""Groups: nodes that stay together, because something says so or because parts would wait for each other."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..core.graph import Graph


def contract(
    graph: Graph,
    nodes: Sequence[int],
    together: Iterable[Sequence[int]],
    ordered: Iterable[tuple[int, int]] = (),
) -> tuple[tuple[int, ...], ...]:
    """The nodes in groups, each in topological order, and the groups in one too.

    The finest division in which the nodes of each entry of `together` share a group and the groups depend on each
    other without a circle: what lies between two nodes of a group joins it. Linear in nodes and edges, but for a heap.

    Args:
        graph: the graph.
        nodes: the flowing nodes that are grouped, in topological order; others are passed over.
        together: nodes that must share a group.
        ordered: pairs of nodes the first of which must stand before the second, though nothing flows between them.
    """
    known = set(nodes)
    home = _joined(len(graph.nodes), ([node for node in group if node in known] for group in together))
    above: dict[int, dict[int, None]] = {home[node]: {} for node in nodes}
    for source, target in (*_edges(graph), *ordered):
        if source in known and target in known and home[source] != home[target]:
            above[home[source]][home[target]] = None
    component = _Components(above).of
    members: dict[int, list[int]] = {}
    for node in nodes:
        members.setdefault(component[home[node]], []).append(node)
    follows: dict[int, set[int]] = {group: set() for group in members}
    for group, readers in above.items():
        follows[component[group]].update(component[reader] for reader in readers)
    return tuple(tuple(members[group]) for group in _first_come(members, follows))


def _edges(graph: Graph) -> Iterable[tuple[int, int]]:
    for tensor, readers in graph.readers.items():
        writer = graph.producer.get(tensor)
        if writer is not None:
            for reader in readers:
                yield writer, reader


def _joined(nodes: int, together: Iterable[Sequence[int]]) -> list[int]:
    """For each node the one that stands for its group (union-find)."""
    parent = list(range(nodes))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for group in together:
        for node in group[1:]:
            a, b = find(group[0]), find(node)
            parent[max(a, b)] = min(a, b)
    return [find(node) for node in range(nodes)]


class _Components:
    """Strongly connected components (Tarjan 1972, without recursion).

    Attributes:
        of: for each vertex the one that stands for its component.
    """

    def __init__(self, above: Mapping[int, Iterable[int]]) -> None:
        self.of: dict[int, int] = {}
        self._above = above
        self._index: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._waiting: dict[int, None] = {}
        self._walk: list[tuple[int, Iterator[int]]] = []
        for start in above:
            if start not in self._index:
                self._enter(start)
                self._walk_on()

    def _walk_on(self) -> None:
        while self._walk:
            vertex, rest = self._walk[-1]
            reader = next(rest, None)
            if reader is None:
                self._leave(vertex)
            elif reader not in self._index:
                self._enter(reader)
            elif reader not in self.of:
                self._low[vertex] = min(self._low[vertex], self._index[reader])

    def _enter(self, vertex: int) -> None:
        self._index[vertex] = self._low[vertex] = len(self._index)
        self._waiting[vertex] = None
        self._walk.append((vertex, iter(self._above[vertex])))

    def _leave(self, vertex: int) -> None:
        self._walk.pop()
        if self._walk:
            before = self._walk[-1][0]
            self._low[before] = min(self._low[before], self._low[vertex])
        while self._low[vertex] == self._index[vertex] and vertex not in self.of:
            member, _ = self._waiting.popitem()
            self.of[member] = vertex


def _first_come(members: dict[int, list[int]], follows: dict[int, set[int]]) -> list[int]:
    """The groups in topological order; of those that can come next the one whose first node stands first."""
    waits = dict.fromkeys(members, 0)
    for group, readers in follows.items():
        for reader in readers - {group}:
            waits[reader] += 1
    ready = [(members[group][0], group) for group, number in waits.items() if number == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, group = heapq.heappop(ready)
        order.append(group)
        for reader in follows[group] - {group}:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, (members[reader][0], reader))
    return order
