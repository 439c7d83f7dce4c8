"""Maximum flow in whole numbers of any size: Dinic's algorithm (1970), without recursion.

Our own, because the libraries at hand do not fit: scipy casts capacities to int32 without a word, so that 2**40 is
nothing, and takes half a second to import; networkx takes seconds on a few hundred vertices. Crossing tensors of a
large model add up to more than 2**31 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set


class FlowNetwork:
    """A network of vertices 0, 1, ... with arcs of whole-number capacities.

    An arc and its reverse stand beside each other, at places 2k and 2k + 1; `room` is what each can still carry.
    """

    def __init__(self, vertices: int) -> None:
        self.target: list[int] = []
        self.room: list[int] = []
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]

    def add_arc(self, source: int, target: int, capacity: int) -> None:
        """Add an arc from `source` to `target`."""
        self.leaving[source].append(len(self.target))
        self.leaving[target].append(len(self.target) + 1)
        self.target += [target, source]
        self.room += [capacity, 0]

    def saturate(self, source: int, sink: int) -> int:
        """Send as much as can be sent from `source` to `sink`, and return how much that is.

        One phase for each length that a shortest way has; a phase is linear in vertices times arcs at the worst.
        """
        total = 0
        while (level := self._levels(source, sink))[sink] >= 0:
            tried = [0] * len(self.leaving)
            while sent := self._send_one_way(source, sink, level, tried):
                total += sent
        return total

    def _levels(self, source: int, sink: int) -> list[int]:
        """How many arcs with room lead to each vertex; -1 where none do, or where the sink is nearer."""
        level = [-1] * len(self.leaving)
        level[source] = 0
        waiting = deque([source])
        while waiting and level[sink] < 0:
            place = waiting.popleft()
            for arc in self.leaving[place]:
                if self.room[arc] and level[self.target[arc]] < 0:
                    level[self.target[arc]] = level[place] + 1
                    waiting.append(self.target[arc])
        return level

    def _send_one_way(self, source: int, sink: int, level: list[int], tried: list[int]) -> int:
        """Fill one way that leads a level on with each arc. `tried` keeps which arcs of a vertex lead nowhere."""
        way: list[int] = []
        place = source
        while place != sink:
            arcs = self.leaving[place]
            while tried[place] < len(arcs):
                arc = arcs[tried[place]]
                if self.room[arc] and level[self.target[arc]] == level[place] + 1:
                    break
                tried[place] += 1
            else:
                if not way:
                    return 0
                place = self.target[way.pop() ^ 1]
                tried[place] += 1
                continue
            way.append(arc)
            place = self.target[arc]
        sent = min(self.room[arc] for arc in way)
        for arc in way:
            self.room[arc] -= sent
            self.room[arc ^ 1] += sent
        return sent

    def reaching(self, sink: int) -> Set[int]:
        """The vertices from which more could be sent to `sink`, itself included."""
        found = {sink}
        waiting = [sink]
        while waiting:
            for arc in self.leaving[waiting.pop()]:
                source = self.target[arc]
                if self.room[arc ^ 1] and source not in found:
                    found.add(source)
                    waiting.append(source)
        return found
