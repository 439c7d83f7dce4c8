"""Maximum flow with integer capacities of any size: Dinic's algorithm (1970), without recursion.

No library fits: scipy casts capacities to int32 without a warning, and the boundary tensors of a large model add up to
more than 2**31 bytes; networkx takes seconds on a few hundred vertices.
"""

from collections import deque
from collections.abc import Collection, Set

Arc = tuple[int, int, int | None]
"""Source, target, and capacity; None for infinite."""


class FlowNetwork:
    """A network of vertices 0, 1, ... with arcs of integer capacities; every path has an arc that is not infinite.

    Arc k and its reverse have the indices 2k and 2k + 1; `residual` is what each can still carry.

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
            arcs = self.leaving[vertex]
            while tried[vertex] < len(arcs):
                arc = arcs[tried[vertex]]
                if self.residual[arc] and level[self.target[arc]] == level[vertex] + 1:
                    break
                tried[vertex] += 1
            else:
                if not path:
                    return 0
                vertex = self.target[path.pop() ^ 1]
                tried[vertex] += 1
                continue
            path.append(arc)
            vertex = self.target[arc]
        sent = min(self.residual[arc] for arc in path)
        for arc in path:
            self.residual[arc] -= sent
            self.residual[arc ^ 1] += sent
        return sent

    def reaching(self, sink: int) -> Set[int]:
        """The vertices with a residual path to `sink`, itself included."""
        found = {sink}
        waiting = [sink]
        while waiting:
            for arc in self.leaving[waiting.pop()]:
                source = self.target[arc]
                if self.residual[arc ^ 1] and source not in found:
                    found.add(source)
                    waiting.append(source)
        return found
