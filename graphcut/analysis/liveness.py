"""Liveness of tensors along a topological order: the bytes alive after each node, and the cut points."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from ..core.graph import Graph, grouped
from ..core.product import Product
from ..core.tensors import TensorBytes


@dataclass(frozen=True, repr=False)
class Liveness(Product):
    """Which tensors are alive after each node of a topological order; computed on first use, in linear time.

    A tensor is alive after the node at index i if a node at index i or before writes it and a node after i reads it: a
    cut there sends it. Inputs of the model are left out, since every part can be given them, and so are outputs that no
    node reads. In the order a, b, c, where b and c read the tensor of a, and c that of b: after a the tensor of a is
    alive, after b those of a and b, after c none.
    """

    graph: Graph  #: the graph.
    order: Sequence[int]  #: its flowing nodes in a topological order. An index is one into this order.
    tensor_bytes: TensorBytes  #: sizes of the activations.

    @cached_property
    def index(self) -> Mapping[int, int]:
        """The index of each node."""
        return {node: i for i, node in enumerate(self.order)}

    @cached_property
    def lifetimes(self) -> Mapping[str, tuple[int, int]]:
        """For each tensor that a node writes and a node reads: the index of its writer, and that of its last reader."""
        index, producer = self.index, self.graph.producer
        read = {tensor: nodes for tensor, nodes in self.graph.readers.items() if tensor in producer}
        return {t: (index[producer[t]], max(map(index.__getitem__, nodes))) for t, nodes in read.items()}

    def total(self, value: Callable[[str], int]) -> list[int]:
        """At each index the sum of `value` over the tensors that are alive after it."""
        change = [0] * (len(self.order) + 1)
        for tensor, (first, last) in self.lifetimes.items():
            number = value(tensor)
            change[first] += number
            change[last] -= number
        return list(accumulate(change[:-1]))

    @cached_property
    def unknown_alive(self) -> Sequence[int]:
        """At each index how many tensors are alive after it without a known size."""
        return self.total(lambda tensor: not self.tensor_bytes[tensor][1])

    @cached_property
    def profile(self) -> Sequence[int]:
        """The cut profile: at each index the bytes alive after it."""
        return self.total(lambda tensor: self.tensor_bytes[tensor][0])

    @cached_property
    def weights_before(self) -> Sequence[int]:
        """At each index the bytes of the weights that the nodes up to it read, each weight once."""
        return self._weights_read(self.order)

    @cached_property
    def weights_after(self) -> Sequence[int]:
        """At each index the bytes of the weights that the nodes after it read; a weight may count on both sides."""
        return [*self._weights_read(self.order[::-1])[-2::-1], 0]

    def _weights_read(self, order: Sequence[int]) -> list[int]:
        seen, added = set[str](), list[int]()
        for node in order:
            new = {*self.graph.weights_of(node)} - seen
            seen |= new
            added.append(sum(self.graph.weights[name].bytes for name in new))
        return list(accumulate(added))

    @cached_property
    def cut_points(self) -> Sequence[tuple[int, int]]:
        """The indices, ascending, where the profile has a local minimum, each with the node that names a cut after it.

        `At` a node cuts between it and its first reader. So a cut after index i is named by the last node up to i whose
        readers all come after i. A minimum may extend over several equal neighbours: each of them is a cut point if a
        node of its own names it, and a node that could name several names the first.
        """
        wanted, named = frozenset(_local_minima(self.profile)), dict[int, int]()
        unread: list[tuple[int, int]] = []  # the index of a node that is read, and that of its first reader
        for i, node in enumerate(self.order):
            if readers := [self.index[r] for t in self.graph.nodes[node].writes for r in self.graph.readers.get(t, ())]:
                unread.append((i, min(readers)))
            if i in wanted:
                while unread and unread[-1][1] <= i:  # it names no later cut either, so it is dropped: linear in all
                    unread.pop()
                if unread:
                    named.setdefault(self.order[unread[-1][0]], i)
        return [(index, node) for node, index in named.items()]

    def alive_after(self, indices: Iterable[int]) -> Iterator[tuple[str, ...]]:
        """For each of some ascending indices the tensors alive after it."""
        begins, ends = (grouped((life[i], tensor) for tensor, life in self.lifetimes.items()) for i in range(2))
        alive, done = dict[str, None](), 0
        for index in indices:
            for i in range(done, index + 1):
                for tensor in ends.get(i, ()):
                    alive.pop(tensor, None)
                alive.update(dict.fromkeys(begins.get(i, ())))
            done = index + 1
            yield tuple(alive)


def _local_minima(values: Sequence[int]) -> Iterator[int]:
    """The indices of runs of equal values that are below both neighbours; the last index is none: no cut is there."""
    starts = [0, *(i for i, (one, two) in enumerate(pairwise(values), 1) if one != two)]
    end = len(values) - 1
    for start, stop in pairwise([*starts, len(values)]):
        falls = start == 0 or values[start - 1] > values[start]
        rises = stop >= end or values[stop] > values[start]
        if falls and rises and start < end:
            yield from range(start, min(stop, end))
