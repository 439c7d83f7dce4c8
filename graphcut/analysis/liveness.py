"""An order of the nodes, and what lies along it: bytes alive, weights on both sides, places where cutting is cheap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from ..core.graph import Graph

TensorBytes = Mapping[str, tuple[int, bool]]
"""Bytes of tensors by name, and whether that is all: else it is "at least"."""


@dataclass(frozen=True)
class Liveness:
    """An order of the nodes, and what lies along it; each is linear in nodes and edges, and found when first asked for.

    Attributes:
        graph: the graph.
        order: its flowing nodes, in an order in which they can run.
        sizes: what each activation takes.
    """

    graph: Graph
    order: Sequence[int]
    sizes: TensorBytes

    @cached_property
    def place(self) -> Mapping[int, int]:
        """For each node its place in the order."""
        return {node: i for i, node in enumerate(self.order)}

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """For each tensor that is read, the places of its writer and of its last reader."""
        place, producer = self.place, self.graph.producer
        return {
            tensor: (place[producer[tensor]], max(map(place.__getitem__, readers)))
            for tensor, readers in self.graph.readers.items()
            if tensor in producer
        }

    @cached_property
    def alive(self) -> list[int]:
        """Bytes alive after each node: what would cross if one cut there."""
        return self.alive_of(self.spans)

    @cached_property
    def unknown(self) -> list[int]:
        """How many tensors are alive after each node whose size is not known."""
        return self.unknown_of(self.spans)

    def unknown_of(self, spans: Mapping[str, tuple[int, int]]) -> list[int]:
        """The same for some tensors alone."""
        return self.sums((first, last, not self.sizes[name][1]) for name, (first, last) in spans.items())

    def alive_of(self, spans: Mapping[str, tuple[int, int]]) -> list[int]:
        """The same for some tensors alone."""
        return self.sums((first, last, self.sizes[name][0]) for name, (first, last) in spans.items())

    def sums(self, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        """After each node the sum over the spans, each with a number, that lie across."""
        change = [0] * (len(self.order) + 1)
        for first, last, number in spans:
            change[first] += number
            change[last] -= number
        return list(accumulate(change[:-1]))

    @cached_property
    def weights_before(self) -> list[int]:
        """Bytes of weights that the nodes up to each read, each weight once."""
        return self._totals(self.order)

    @cached_property
    def weights_after(self) -> list[int]:
        """Bytes of weights that the nodes after each read; a weight that nodes on both sides read counts in both."""
        return [*self._totals(self.order[::-1])[-2::-1], 0]

    def _totals(self, order: Sequence[int]) -> list[int]:
        """Bytes of weights that the nodes up to each read, each weight once."""
        graph = self.graph
        seen: set[str] = set()
        total, totals = 0, []
        for node in order:
            for name in self._weights_of[node]:
                if name not in seen:
                    seen.add(name)
                    total += graph.weights[name].bytes
            totals.append(total)
        return totals

    @cached_property
    def _weights_of(self) -> Mapping[int, Sequence[str]]:
        """The weights that each node reads, those of the constant nodes before it included."""
        nodes, constants_for = self.graph.nodes, self.graph.constants_for
        return {
            n: (*nodes[n].weights, *(name for c in constants_for(nodes[n].constants) for name in nodes[c].weights))
            if nodes[n].constants
            else nodes[n].weights
            for n in self.order
        }

    @cached_property
    def low_places(self) -> Sequence[tuple[int, int]]:
        """The places, ascending, where less is alive than around them, and the node whose name means each.

        Of neighbours that cost the same all are given, as far as each has a node of its own that means it: of the
        places that one node could name, it names the first.
        """
        named: set[int] = set()
        found = []
        for place, node in self._named(frozenset(_low_places(self.alive))):
            if node not in named:
                named.add(node)
                found.append((place, node))
        return found

    def crossing(self, places: Iterable[int]) -> Iterable[tuple[str, ...]]:
        """For each of some places, ascending, the tensors that are alive after it."""
        begins: dict[int, list[str]] = {}
        ends: dict[int, list[str]] = {}
        for tensor, (first, last) in self.spans.items():
            begins.setdefault(first, []).append(tensor)
            ends.setdefault(last, []).append(tensor)
        alive: dict[str, None] = {}
        done = 0
        for place in places:
            for i in range(done, place + 1):
                for tensor in ends.get(i, ()):
                    alive.pop(tensor, None)
                alive.update(dict.fromkeys(begins.get(i, ())))
            done = place + 1
            yield tuple(alive)

    def _named(self, wanted: AbstractSet[int]) -> Iterable[tuple[int, int]]:
        """The places, ascending, and the node whose name in `--at-nodes` means each; without those that none means.

        A node's name means a place where all its readers stand after it: the last node before it, where anybody reads
        that, else the last of those whose readers all do.
        """
        graph, place = self.graph, self.place
        waiting: dict[int, int] = {}  # nodes whose outputs are read, and the place of the first that reads one
        for i, node in enumerate(self.order):
            readers = [place[r] for tensor in graph.nodes[node].writes for r in graph.readers.get(tensor, ())]
            if readers:
                waiting[i] = min(readers)
            if i not in wanted:
                continue
            while waiting:
                last, first_read = next(reversed(waiting.items()))
                if first_read > i:
                    yield i, self.order[last]
                    break
                del waiting[last]


def _low_places(alive: Sequence[int]) -> Iterable[int]:
    """The places of all runs of equal values that lie lower than both neighbours; the place at the end is no cut."""
    starts = [0, *(i for i, (one, two) in enumerate(pairwise(alive), 1) if one != two)]
    end = len(alive) - 1
    values = [alive[start] for start in starts] if alive else []
    for k, (start, stop) in enumerate(pairwise([*starts, len(alive)])):
        falls = k == 0 or values[k - 1] > values[k]
        rises = stop >= end or values[k + 1] > values[k]
        if falls and rises and start < end:
            yield from range(start, min(stop, end))
