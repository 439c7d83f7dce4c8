"""Bytes alive along an order of the nodes: what a cut costs at each place, where it is cheap, what is long-lived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from ..graph import Graph
from ..repeats import Repeat
from .scene import Profile, Valley

Sizes = Mapping[str, tuple[int, bool]]
"""Bytes of tensors by name, and whether that is all: else it is "at least"."""


def profile_of(
    graph: Graph, rows: Sequence[Sequence[int]], sizes: Sizes, keys: Iterable[int], repeat: Repeat | None = None
) -> Profile:
    """The profile of a graph; linear in its nodes and edges.

    Args:
        graph: the graph.
        rows: the flowing nodes of each part, in an order in which they can run; one row where nothing is cut.
        sizes: what each activation takes.
        keys: the key nodes.
        repeat: what the graph repeats, for a graph that is not cut.
    """
    order = [node for row in rows for node in row]
    along = _Along(graph, order, sizes)
    place = along.place
    key_nodes = frozenset(keys)
    homes = {node: part for part, row in enumerate(rows) for node in row}
    far = along.passing(homes) if len(rows) > 1 else along.long_lived(repeat)
    near = {name: span for name, span in along.spans.items() if name not in far}
    return Profile(
        nodes=tuple(graph.nodes[node].name for node in order),
        ops=tuple(graph.nodes[node].op for node in order),
        modules=tuple(graph.nodes[node].module for node in order),
        alive=tuple(along.alive),
        near=tuple(along.alive_of(near)),
        exact=tuple(number == 0 for number in along.unknown),
        near_exact=tuple(number == 0 for number in along.unknown_of(near)),
        tensors=tuple(along.sums((first, last, 1) for first, last in along.spans.values())),
        weights=tuple(along.weights_before),
        keys=tuple(sorted(place[node] for node in key_nodes)),
        parts=tuple(homes[node] for node in order) if len(rows) > 1 else (),
        valleys=tuple(along.valleys(key_nodes)),
    )


def spread(valleys: Sequence[Valley], nodes: int, weight_bytes: int, number: int) -> list[Valley]:
    """For each of `number` equal shares of the model the cheapest place to cut; of equal ones the first.

    Nodes and weights count alike: a share of the weights alone says nothing where the nodes make them.

    Args:
        valleys: the places.
        nodes: how many nodes the model has.
        weight_bytes: what its weights take.
        number: of shares.
    """
    best: dict[int, Valley] = {}
    for valley in valleys:
        share = int(number * (valley.position / nodes + valley.weights_before / (weight_bytes + 1)) / 2)
        if share not in best or valley.bytes < best[share].bytes:
            best[share] = valley
    return [best[share] for share in sorted(best)]


@dataclass(frozen=True)
class _Along:
    """An order of the nodes, and what lies along it."""

    graph: Graph
    order: Sequence[int]
    sizes: Sizes

    @cached_property
    def place(self) -> Mapping[int, int]:
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
        return self.alive_of(self.spans)

    @cached_property
    def unknown(self) -> list[int]:
        """How many tensors are alive after each node whose size is not known."""
        return self.unknown_of(self.spans)

    def unknown_of(self, spans: Mapping[str, tuple[int, int]]) -> list[int]:
        return self.sums((first, last, not self.sizes[name][1]) for name, (first, last) in spans.items())

    def alive_of(self, spans: Mapping[str, tuple[int, int]]) -> list[int]:
        return self.sums((first, last, self.sizes[name][0]) for name, (first, last) in spans.items())

    def sums(self, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        """After each node the sum over the spans, each with a number, that lie across."""
        change = [0] * (len(self.order) + 1)
        for first, last, number in spans:
            change[first] += number
            change[last] -= number
        return list(accumulate(change[:-1]))

    def passing(self, unit: Mapping[int, int]) -> AbstractSet[str]:
        """The tensors that pass over a unit, from that of their writer to that of a reader."""
        readers, producer = self.graph.readers, self.graph.producer
        return {name for name in self.spans if max(map(unit.__getitem__, readers[name])) > unit[producer[name]] + 1}

    def long_lived(self, repeat: Repeat | None) -> AbstractSet[str]:
        """The tensors that pass over a block of `repeat`, or without one over very many nodes."""
        if repeat is not None:
            return self.passing(_blocks(self.graph, repeat))
        fewest = max(1, len(self.order) / 8)
        return {name for name, (first, last) in self.spans.items() if last - first - 1 > fewest}

    @cached_property
    def weights_before(self) -> list[int]:
        return self._totals(self.order)

    @cached_property
    def weights_after(self) -> list[int]:
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

    def valleys(self, keys: AbstractSet[int]) -> Iterable[Valley]:
        """The places of `_low_places` that a node has a name for; of the places that one could name, the first."""
        graph = self.graph
        wanted = set(_low_places(self.alive))
        crossing = self.sums((first, last, 1) for first, last in self.spans.values())
        named: set[int] = set()
        for i, node in self._named(wanted):
            if node in named:
                continue
            named.add(node)
            yield Valley(
                node=graph.nodes[node].name,
                position=i + 1,
                bytes=self.alive[i],
                is_exact=self.unknown[i] == 0,
                tensors=crossing[i],
                weights_before=self.weights_before[i],
                weights_after=self.weights_after[i],
                is_key=node in keys,
                module=graph.nodes[node].module,
            )

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


def _blocks(graph: Graph, repeat: Repeat) -> Mapping[int, int]:
    """For each flowing node the block it belongs to, from 1; one outside of all, the last block that it depends on."""
    unit = {node: i for i, block in enumerate(repeat.blocks, 1) for node in block}
    for node in graph.flow:
        if node not in unit:
            makers = map(graph.producer.get, graph.nodes[node].reads)
            unit[node] = max((unit[maker] for maker in makers if maker is not None), default=0)
    return unit
