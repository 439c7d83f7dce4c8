"""The minimum cut that respects dependencies: which free nodes go before a cut so that the fewest bytes cross it.

Exact, as a minimum s-t cut on tensors, each paid once however many nodes read it. The network is that of hypergraph
min-cut (Lawler, "Cutsets and partitions of hypergraphs", 1973): for each tensor of b bytes a vertex with an arc of
capacity b from its writer and infinite arcs to its readers; and an infinite arc from each reader back to the writer, so
that the nodes before the cut are closed under predecessors.

Example: node 0 is before the cut and node 3 after it. Node 1 reads 9 bytes of node 0 and passes 4 bytes to node 2,
which passes 6 bytes to node 3. The cheapest cut is between 1 and 2:

    >>> sides = {0: BEFORE, 1: FREE, 2: FREE, 3: AFTER}
    >>> cheapest_cut([(9, 0, [1]), (4, 1, [2]), (6, 2, [3])], sides.__getitem__, free=[1, 2])
    {1}
"""

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Final

import numpy as np

from ..core.graph import reached
from .instance import Floats, Ints, quantum_for

BEFORE: Final = 0
AFTER: Final = 1
FREE: Final = 2

PricedTensor = tuple[int, int, Collection[int]]
"""The price of a tensor if it crosses (bytes, above 0), the node that writes it, and the nodes that read it."""

Arc = tuple[int, int, int | None]  #: source, target, and capacity; None for infinite.


def cheapest_cut(tensors: Sequence[PricedTensor], side: Callable[[int], int], free: Sequence[int]) -> Set[int]:
    """The free nodes that go before the cut, so that the tensors that cross it cost least.

    A tensor crosses if it is written before the cut and read after it. Of several minimum cuts the one with the most
    nodes before the cut. Exact for prices of any size; takes one maximum flow.

    `tensors` are at least all that free nodes write or read. `side` is BEFORE (closed under predecessors), AFTER
    (closed under successors) or FREE for a node; `free` are those whose side is FREE.
    """
    vertices = {node: i + 2 for i, node in enumerate(free)}

    def vertex(node: int) -> int:
        """The vertex of a node; all nodes BEFORE are the source, all nodes AFTER the sink."""
        return vertices[node] if node in vertices else side(node)

    arcs: list[Arc] = []
    for tensor, (price, node, nodes) in enumerate(tensors, start=len(free) + 2):
        writer, readers = vertex(node), sorted({vertex(reader) for reader in nodes} - {BEFORE})
        if writer != AFTER and set(readers) - {writer}:
            arcs.append((writer, tensor, price))
            arcs += [(tensor, reader, None) for reader in readers]
            arcs += [(reader, writer, None) for reader in readers if writer != BEFORE and reader != AFTER]
    network = FlowNetwork(len(free) + 2 + len(tensors), arcs, BEFORE, AFTER)
    network.push_max_flow()
    late = network.reaching_sink()
    return {node for node in free if vertices[node] not in late}


class FlowNetwork:
    """Maximum flow by Dinic's algorithm (1970), without recursion, with integer capacities of any size.

    No library fits: scipy casts capacities to int32 without a warning, and the boundary tensors of a large model add up
    to more than 2**31 bytes; networkx takes seconds on a few hundred vertices.

    Vertices are 0, 1, ...; every path from source to sink has an arc that is not infinite. A vertex behind the source
    alone is taken out first, where what leaves it is known: so a chain takes one pass. Of what is left arc k and its
    reverse have the indices 2k and 2k + 1; `residual` is what each can still carry.

    >>> network = FlowNetwork(5, [(0, 2, 3), (0, 3, 2), (2, 4, 2), (4, 1, 5), (3, 1, None)], source=0, sink=1)
    >>> network.push_max_flow()  # 2 over vertex 2 and 2 over vertex 3
    4
    >>> network.reaching_sink()  # the sink side of the minimum cut {2 -> 4, 0 -> 3}
    {1, 3, 4}
    """

    def __init__(self, vertices: int, arcs: Collection[Arc], source: int, sink: int) -> None:
        self.source, self.sink, self.arc_count = source, sink, len(arcs)
        self.target: list[int] = []
        self.residual: list[int] = []
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]
        infinite = 1 + sum(capacity for _, _, capacity in arcs if capacity is not None)  # more than any flow
        supply, entering = [0] * vertices, [0] * vertices  # from the source; and the number of other arcs
        ahead: list[list[tuple[int, int]]] = [[] for _ in range(vertices)]
        for begin, end, number in arcs:
            capacity = infinite if number is None else number
            if begin == source:
                supply[end] += capacity
            else:
                ahead[begin].append((end, capacity))
                entering[end] += 1
        self._taken_out = list(_taken_out(supply, entering, ahead, sink))
        ahead[source] = [(end, capacity) for end, capacity in enumerate(supply) if capacity]
        for begin, row in enumerate(ahead):
            for end, capacity in row:
                self.leaving[begin].append(len(self.target))
                self.leaving[end].append(len(self.target) + 1)
                self.target += (end, begin)
                self.residual += (capacity, 0)

    def push_max_flow(self) -> int:
        """Push a maximum flow from the source to the sink, and return its value.

        One phase for each length of a shortest augmenting path; a phase takes O(vertices * arcs).
        """
        total = 0
        while (level := self._levels())[self.source] >= 0:
            total += self._augment(level)
        return total

    def _levels(self) -> list[int]:
        """The distance of each vertex to the sink in the residual network; -1 where it is more than the source's."""
        target, residual, level = self.target, self.residual, [-1] * len(self.leaving)
        level[self.sink] = distance = 0
        frontier = [self.sink]
        while frontier and level[self.source] < 0:
            distance += 1
            before, frontier = frontier, []
            for vertex in before:
                for arc in self.leaving[vertex]:
                    if level[target[arc]] < 0 and residual[arc ^ 1]:
                        level[target[arc]] = distance
                        frontier.append(target[arc])
        return level

    def _augment(self, level: list[int]) -> int:
        """Saturate all paths on which each arc leads one level on; `tried` is how many arcs are dead ends."""
        target, residual, tried = self.target, self.residual, [0] * len(level)
        path, vertex, total = list[int](), self.source, 0
        while True:
            arcs, i = self.leaving[vertex], tried[vertex]
            while i < len(arcs) and not (level[target[arcs[i]]] == level[vertex] - 1 and residual[arcs[i]]):
                i += 1
            tried[vertex] = i
            if i == len(arcs):
                if not path:
                    return total
                vertex = target[path.pop() ^ 1]
                tried[vertex] += 1
                continue
            path.append(arcs[i])
            vertex = target[arcs[i]]
            if vertex == self.sink:
                sent = min(residual[arc] for arc in path)
                for arc in path:
                    residual[arc] -= sent
                    residual[arc ^ 1] += sent
                total += sent
                full = next(k for k, arc in enumerate(path) if not residual[arc])
                vertex = target[path[full] ^ 1]  # go on where the path is no longer one
                del path[full:]

    def reaching_sink(self) -> Set[int]:
        """The vertices with a residual path to the sink, itself included."""
        target, residual = self.target, self.residual
        found = reached([self.sink], lambda v: [target[arc] for arc in self.leaving[v] if residual[arc ^ 1]])
        for vertex, end in reversed(self._taken_out):
            if end in found:
                found.add(vertex)
        return found


def _taken_out(
    supply: list[int], entering: list[int], ahead: list[list[tuple[int, int]]], sink: int
) -> Iterator[tuple[int, int]]:
    """Takes out vertices that only the source supplies, and that have one arc ahead, or can fill all of theirs.

    Yields those that do not fill their arc, with its end: such a vertex reaches the sink if that does.
    """
    waiting = [vertex for vertex, row in enumerate(ahead) if row and not entering[vertex]]
    while waiting:
        vertex = waiting.pop()
        row, most = ahead[vertex], sum(capacity for _, capacity in ahead[vertex])
        if vertex == sink or (len(row) > 1 and most > supply[vertex]):
            continue
        for end, capacity in row:
            supply[end] += min(capacity, supply[vertex])
            entering[end] -= 1
            if not entering[end] and ahead[end]:
                waiting.append(end)
        if most > supply[vertex]:
            yield vertex, row[0][0]
        supply[vertex], ahead[vertex] = 0, []


def cheapest_replicas(
    sources: Sequence[Sequence[int]], needed: Sequence[int], compute: Floats | Ints, receive: Floats | Ints
) -> float:
    """The least that a part pays for the values that it needs: each is received, or computed from its sources.

    >>> cheapest_replicas([(), (0,)], [1], compute=np.array([9, 1]), receive=np.array([2, 4]))
    3.0
    """
    if not needed:
        return 0.0
    unit = quantum_for(float(compute[np.isfinite(compute)].sum() + receive.sum()))
    arcs: list[Arc] = [(_value(value), AFTER, None) for value in needed]
    for value in reached(needed, sources.__getitem__):
        arcs.append((BEFORE, _value(value) + 1, int(compute[value] / unit) if compute[value] < np.inf else None))
        arcs.append((_value(value) + 1, _value(value), int(receive[value] / unit)))
        arcs += [(_value(source), _value(value) + 1, None) for source in sources[value]]
    return FlowNetwork(2 * len(sources) + 2, arcs, BEFORE, AFTER).push_max_flow() * unit


def _value(value: int) -> int:
    """The vertex of a value; the next one is that of computing it."""
    return 2 * value + 2
