"""Groups of nodes that stay in one part, because a rule says so or because two parts would depend on each other."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..core.graph import Graph


def predecessors(graph: Graph, node: int) -> set[int]:
    """The nodes that write what `node` reads."""
    return {graph.producer[name] for name in graph.nodes[node].reads if name in graph.producer}


def successors(graph: Graph, node: int) -> set[int]:
    """The nodes that read what `node` writes."""
    return {reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ())}


def contract(
    graph: Graph,
    nodes: Sequence[int],
    together: Iterable[Sequence[int]],
    ordered: Iterable[tuple[int, int]] = (),
) -> tuple[tuple[int, ...], ...]:
    """The finest grouping that keeps given nodes together and whose groups depend on each other without a cycle.

    Groups are in topological order, and so are the nodes of each. A node on a path between two nodes of a group joins
    it. Takes O((nodes + edges) log nodes).

    Args:
        graph: the graph.
        nodes: the flowing nodes to group, in topological order; others are ignored.
        together: nodes that must share a group.
        ordered: pairs of nodes of which the first must come first, although no tensor flows between them.
    """
    known = set(nodes)
    joined = _union_find(len(graph.nodes), ([node for node in group if node in known] for group in together))
    above: dict[int, dict[int, None]] = {joined[node]: {} for node in nodes}
    edges = ((writer, reader) for writer in nodes for reader in successors(graph, writer))
    for source, target in (*edges, *ordered):
        if source in known and target in known and joined[source] != joined[target]:
            above[joined[source]][joined[target]] = None
    component = _StrongComponents(above).representative
    members: dict[int, list[int]] = {}
    for node in nodes:
        members.setdefault(component[joined[node]], []).append(node)
    following: dict[int, set[int]] = {group: set() for group in members}
    for group, readers in above.items():
        following[component[group]].update(component[reader] for reader in readers)
    return tuple(tuple(members[group]) for group in _topological(members, following))


def _union_find(count: int, together: Iterable[Sequence[int]]) -> list[int]:
    """For each node the representative of its group."""
    parent = list(range(count))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for group in together:
        for node in group[1:]:
            a, b = find(group[0]), find(node)
            parent[max(a, b)] = min(a, b)
    return [find(node) for node in range(count)]


class _StrongComponents:
    """Strongly connected components (Tarjan, 1972), without recursion.

    Attributes:
        representative: for each vertex the vertex that represents its component.
    """

    def __init__(self, above: Mapping[int, Iterable[int]]) -> None:
        self.representative: dict[int, int] = {}
        self._above = above
        self._index: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: dict[int, None] = {}
        self._path: list[tuple[int, Iterator[int]]] = []
        for start in above:
            if start not in self._index:
                self._enter(start)
                self._visit()

    def _visit(self) -> None:
        while self._path:
            vertex, rest = self._path[-1]
            reader = next(rest, None)
            if reader is None:
                self._leave(vertex)
            elif reader not in self._index:
                self._enter(reader)
            elif reader not in self.representative:
                self._low[vertex] = min(self._low[vertex], self._index[reader])

    def _enter(self, vertex: int) -> None:
        self._index[vertex] = self._low[vertex] = len(self._index)
        self._open[vertex] = None
        self._path.append((vertex, iter(self._above[vertex])))

    def _leave(self, vertex: int) -> None:
        self._path.pop()
        if self._path:
            before = self._path[-1][0]
            self._low[before] = min(self._low[before], self._low[vertex])
        while self._low[vertex] == self._index[vertex] and vertex not in self.representative:
            member, _ = self._open.popitem()
            self.representative[member] = vertex


def _topological(members: Mapping[int, Sequence[int]], following: Mapping[int, set[int]]) -> list[int]:
    """The groups in topological order; of those that are ready the one whose first node is first in the graph."""
    waits = dict.fromkeys(members, 0)
    for group, readers in following.items():
        for reader in readers - {group}:
            waits[reader] += 1
    ready = [(members[group][0], group) for group, number in waits.items() if number == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, group = heapq.heappop(ready)
        order.append(group)
        for reader in following[group] - {group}:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, (members[reader][0], reader))
    return order
