"""The ladder of the prefixes of one topological order: a chain, of any length.

Its tables are sums over rectangles (each tensor counts for a range of lower and a range of upper rungs), made with
two-dimensional differences: O(edges + rungs squared).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..instance import Bools, Floats, Hyperedges, Ints, Workload
from .boundaries import BoundaryTables, last_readers
from .topological_orders import Order

_Range = tuple[Ints, Ints]
"""The first and the last rung of ranges, ends included."""


@dataclass(frozen=True)
class PrefixTables(BoundaryTables):
    """Some prefixes of an order, the shorter first.

    Attributes:
        rungs: the length of each.
    """

    rungs: Ints

    @property
    def is_complete(self) -> bool:
        """No: other orders have other prefixes."""
        return False

    def members(self, low: int, high: int) -> tuple[int, ...]:
        """The groups between two rungs, in order."""
        return self.order[int(self.rungs[low]) : int(self.rungs[high])]

    def below(self, rung: int) -> Bools:
        """The groups below a rung, as a mask."""
        mask = np.zeros(self.load.groups, dtype=bool)
        mask[list(self.order[: int(self.rungs[rung])])] = True
        return mask

    @cached_property
    def peak(self) -> Floats:
        """Most bytes alive, at any one time, of what a part writes itself; its groups run in order.

        One pass over the order for each rung: what was written below it is not the part's own.
        """
        load = self.load
        places = places_in(self.order)
        born, dead = places[load.writer], last_readers(load, places)
        dead[load.is_output] = load.groups
        change = np.zeros(load.groups + 2)
        sizes = load.tensor_bytes.astype(np.float64)
        np.add.at(change, born, sizes)
        np.add.at(change, dead + 1, -sizes)
        inner = load.inner.astype(np.float64)[list(self.order)]
        by_birth = np.argsort(born, kind="stable")
        begins = np.searchsorted(born[by_birth], self.rungs)
        number = len(self.rungs)
        peak = np.zeros((number, number))
        for low in range(number - 1):
            start = int(self.rungs[low])
            alive = np.cumsum(change[start : load.groups]) + inner[start:]
            peak[low + 1 :, low] = np.maximum.accumulate(np.maximum.reduceat(alive, self.rungs[low:-1] - start))
            old = by_birth[begins[low] : begins[low + 1]]
            np.add.at(change, born[old], -sizes[old])
            np.add.at(change, dead[old] + 1, sizes[old])
        return peak

    def _below_sums(self, numbers: Floats) -> Floats:
        totals = np.concatenate([[0.0], np.cumsum(numbers[list(self.order)])])
        return np.asarray(totals[self.rungs])

    def _shared_sums(self, numbers: Floats) -> Floats:
        thing, low, high = self._sharing
        counts = numbers[thing] != 0
        return _rectangles(
            len(self.rungs),
            (low[0][counts], low[1][counts]),
            (high[0][counts], high[1][counts]),
            numbers[thing[counts]],
        )

    @cached_property
    def _sharing(self) -> tuple[Ints, _Range, _Range]:
        edges = self.load.sharers
        outside = np.full(edges.number, -1, dtype=np.int64)
        return _entries(len(self.rungs), outside, edges, _segments(self.order, self.rungs))


def prefix_tables(load: Workload, order: Order, rungs: Sequence[int]) -> PrefixTables:
    """The ladder of prefixes of `order`, of the lengths `rungs`, which begin with 0 and end with all groups."""
    lengths = np.array(rungs, dtype=np.int64)
    segment = _segments(order, lengths)
    writer, last = segment[load.writer], last_readers(load, segment)
    declared = load.declared.astype(np.float64)
    tensor_bytes = load.tensor_bytes.astype(np.float64)
    number = len(lengths)
    index = np.arange(number)

    def leaving(numbers: Floats) -> Floats:
        crossing = last > writer
        low = np.zeros(int(crossing.sum()), dtype=np.int64), writer[crossing]
        high = writer[crossing] + 1, last[crossing]
        return _rectangles(number, low, high, numbers[crossing])

    return PrefixTables(
        load=load,
        order=order,
        fits=np.asarray(index[:, None] > index[None, :]),
        received=_entering(number, writer, load.readers, segment, tensor_bytes),
        sent=leaving(tensor_bytes),
        declared=_entering(number, writer, load.readers, segment, declared) + leaving(declared),
        rungs=lengths,
    )


def places_in(order: Order) -> Ints:
    """The place of each group in an order."""
    places = np.empty(len(order), dtype=np.int64)
    places[list(order)] = np.arange(len(order))
    return places


def _segments(order: Order, lengths: Ints) -> Ints:
    """Between which rungs each group stands: the lower one."""
    return np.asarray(np.searchsorted(lengths, places_in(order), side="right") - 1)


def _entering(number: int, writer: Ints, edges: Hyperedges, segment: Ints, numbers: Floats) -> Floats:
    """For the part from rung i to rung j the numbers of what is written below i and read between i and j, each once."""
    thing, low, high = _entries(number, writer, edges, segment)
    return _rectangles(number, low, high, numbers[thing])


def _entries(number: int, writer: Ints, edges: Hyperedges, segment: Ints) -> tuple[Ints, _Range, _Range]:
    """For which lower and upper rungs each thing enters a part: several ranges, none of which meet.

    With the reading segments of a thing q1 < q2 < ... and its writer q0: the reading in q_r is the first in the part
    for i in (q_(r-1), q_r] and j above q_r.
    """
    keys = np.unique(edges.thing * number + segment[edges.group])
    thing, place = keys // number, keys % number
    kept = place > writer[thing]
    thing, place = thing[kept], place[kept]
    is_first = np.concatenate([[True], thing[1:] != thing[:-1]])[: len(thing)]
    before = np.where(is_first, writer[thing], np.concatenate([[0], place])[: len(place)])
    return thing, (before + 1, place), (place + 1, np.full(len(place), number - 1))


def _rectangles(number: int, low: _Range, high: _Range, values: Floats) -> Floats:
    """A table to which each value is added for a range of lower and a range of upper rungs, ends included."""
    change = np.zeros((number + 1, number + 1))
    for row, column, sign in (
        (high[0], low[0], 1),
        (high[0], low[1] + 1, -1),
        (high[1] + 1, low[0], -1),
        (high[1] + 1, low[1] + 1, 1),
    ):
        np.add.at(change, (row, column), sign * values)
    return np.asarray(change.cumsum(axis=0).cumsum(axis=1)[:number, :number])
