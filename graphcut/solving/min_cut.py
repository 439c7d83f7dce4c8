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

from collections import deque
from collections.abc import Callable, Collection, Sequence, Set
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
    network = FlowNetwork(len(free) + 2 + len(tensors), arcs)
    network.push_max_flow(BEFORE, AFTER)
    late = network.reaching(AFTER)
    return {node for node in free if vertices[node] not in late}


class FlowNetwork:
    """Maximum flow by Dinic's algorithm (1970), without recursion, with integer capacities of any size.

    No library fits: scipy casts capacities to int32 without a warning, and the boundary tensors of a large model add up
    to more than 2**31 bytes; networkx takes seconds on a few hundred vertices.

    Vertices are 0, 1, ...; every path from source to sink has an arc that is not infinite. Arc k and its reverse have
    the indices 2k and 2k + 1; `residual` is what each can still carry.

    >>> network = FlowNetwork(4, [(0, 2, 3), (0, 3, 2), (2, 1, 2), (3, 1, None)])
    >>> network.push_max_flow(0, 1)  # 2 over vertex 2 and 2 over vertex 3
    4
    >>> network.reaching(1)  # the sink side of the minimum cut {2 -> 1, 0 -> 3}
    {1, 3}
    """

    def __init__(self, vertices: int, arcs: Collection[Arc]) -> None:
        self.target: list[int] = []
        self.residual: list[int] = []
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]
        infinite = 1 + sum(capacity for _, _, capacity in arcs if capacity is not None)  # more than any flow
        for source, target, capacity in arcs:
            self.leaving[source].append(len(self.target))
            self.leaving[target].append(len(self.target) + 1)
            self.target += [target, source]
            self.residual += [infinite if capacity is None else capacity, 0]

    def push_max_flow(self, source: int, sink: int) -> int:
        """Push a maximum flow from `source` to `sink`, and return its value.

        One phase for each length of a shortest augmenting path; a phase takes O(vertices * arcs).
        """
        total = 0
        while (level := self._levels(source, sink))[sink] >= 0:
            tried = [0] * len(self.leaving)
            while sent := self._augment(source, sink, level, tried):
                total += sent
        return total

    def _levels(self, source: int, sink: int) -> list[int]:
        """The distance of each vertex from the source in the residual network; -1 where unreached before the sink."""
        level = [-1] * len(self.leaving)
        level[source] = 0
        waiting = deque([source])
        while waiting and level[sink] < 0:
            vertex = waiting.popleft()
            for arc in self.leaving[vertex]:
                if self.residual[arc] and level[self.target[arc]] < 0:
                    level[self.target[arc]] = level[vertex] + 1
                    waiting.append(self.target[arc])
        return level

    def _augment(self, source: int, sink: int, level: list[int], tried: list[int]) -> int:
        """Saturate one path on which each arc leads one level on. `tried[v]` is how many arcs of v are dead ends."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            if tried[vertex] == len(self.leaving[vertex]):
                if not path:
                    return 0
                vertex = self.target[path.pop() ^ 1]
                tried[vertex] += 1
                continue
            arc = self.leaving[vertex][tried[vertex]]
            if self.residual[arc] and level[self.target[arc]] == level[vertex] + 1:
                path.append(arc)
                vertex = self.target[arc]
            else:
                tried[vertex] += 1
        sent = min(self.residual[arc] for arc in path)
        for arc in path:
            self.residual[arc] -= sent
            self.residual[arc ^ 1] += sent
        return sent

    def reaching(self, sink: int) -> Set[int]:
        """The vertices with a residual path to `sink`, itself included."""
        return reached([sink], lambda v: [self.target[arc] for arc in self.leaving[v] if self.residual[arc ^ 1]])


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
    return FlowNetwork(2 * len(sources) + 2, arcs).push_max_flow(BEFORE, AFTER) * unit


def _value(value: int) -> int:
    """The vertex of a value; the next one is that of computing it."""
    return 2 * value + 2
