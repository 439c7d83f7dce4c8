"""Groups of nodes that stay in one part, because a rule says so or because two parts would depend on each other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from ..core.graph import Graph
from .solver.topological_orders import kahn


def predecessors(graph: Graph, node: int) -> set[int]:
    """The nodes that write what `node` reads."""
    return {graph.producer[name] for name in graph.nodes[node].reads if name in graph.producer}


def successors(graph: Graph, node: int) -> set[int]:
    """The nodes that read what `node` writes."""
    return {reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ())}


def contract(
    graph: Graph, nodes: Sequence[int], together: Iterable[Sequence[int]], ordered: Iterable[tuple[int, int]] = ()
) -> tuple[tuple[int, ...], ...]:
    """The finest grouping that keeps given nodes together and whose groups depend on each other without a cycle.

    A node on a path between two nodes of a group joins it. Groups are in topological order (of those that are ready the
    one whose first node is first), and so are the nodes of each. Takes O((nodes + edges) log nodes).

    Args:
        graph: the graph.
        nodes: the flowing nodes to group, in topological order; others are ignored.
        together: nodes that must share a group.
        ordered: pairs of nodes that must be in this order although no tensor flows between them.
    """
    known = set(nodes)
    joined = _union_find(len(graph.nodes), ([node for node in group if node in known] for group in together))
    activations = [tensor for tensor in graph.readers if tensor in graph.producer]
    edges = [(graph.producer[tensor], reader) for tensor in activations for reader in graph.readers[tensor]]
    above: dict[int, dict[int, None]] = {joined[node]: {} for node in nodes}
    for source, target in (*edges, *ordered):
        if source in known and target in known and joined[source] != joined[target]:
            above[joined[source]][joined[target]] = None
    component = _strong_components(above)
    index: dict[int, int] = {}  # of the components, in the order of their first nodes
    group_of = {node: index.setdefault(component[joined[node]], len(index)) for node in nodes}
    members: list[list[int]] = [[] for _ in index]
    before: list[set[int]] = [set() for _ in index]
    after: list[set[int]] = [set() for _ in index]
    for node, group in group_of.items():
        members[group].append(node)
    for vertex, targets in above.items():
        for target in targets:
            if group_of[vertex] != group_of[target]:
                after[group_of[vertex]].add(group_of[target])
                before[group_of[target]].add(group_of[vertex])
    ready: list[int] = []

    def push(groups: Iterable[int]) -> None:
        for group in groups:
            heappush(ready, group)

    return tuple(tuple(members[group]) for group in kahn(before, after, push, lambda: heappop(ready)))


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


def _strong_components(above: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """For each vertex the representative of its strongly connected component (Kosaraju's algorithm, no recursion)."""
    below: dict[int, list[int]] = {vertex: [] for vertex in above}
    for vertex, readers in above.items():
        for reader in readers:
            below[reader].append(vertex)
    entered: set[int] = set()
    finished: list[int] = []
    for start in above:
        path: list[tuple[int, Iterator[int]]] = [] if start in entered else [(start, iter(above[start]))]
        entered.add(start)
        while path:
            vertex, rest = path[-1]
            following = next((reader for reader in rest if reader not in entered), None)
            if following is None:
                finished.append(path.pop()[0])
            else:
                entered.add(following)
                path.append((following, iter(above[following])))
    representative: dict[int, int] = {}
    for root in reversed(finished):
        waiting = [root]
        while waiting:
            vertex = waiting.pop()
            if vertex not in representative:
                representative[vertex] = root
                waiting += [writer for writer in below[vertex] if writer not in representative]
    return representative
