"""Prefixes of one topological order as boundaries: a chain of any length.

Each table is a sum of rectangles, since a tensor counts for a range of first and a range of last boundaries. With
two-dimensional differences that takes O(pairs of item and group + B**2) for B boundaries.

Example: a chain of groups 0, 1, 2. Group 0 writes 8 bytes, which 1 and 2 read; group 1 writes 1 byte for 2.

    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[1, 1, 1]], [(0, (1, 2), 8), (1, (2,), 1)])
    >>> tables = prefix_tables(load, order=(0, 1, 2), lengths=[0, 1, 2, 3])
    >>> tables.groups_between(1, 3)
    (1, 2)
    >>> tables.received[3].tolist()  # of the parts that end behind group 2 and begin at 0, 1, 2: 0, 8 and 8 + 1 bytes
    [0.0, 8.0, 9.0, 0.0]

The 8 of `received[3, 1]` comes from the rectangles of the tensor of group 0. Its readers are in segments 1 and 2
(segment q is between boundaries q and q + 1), so it enters the parts (i, j) with i in (0, 1], j > 1 for the first
reader, and with i in (1, 2], j > 2 for the second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise

import numpy as np

from .boundaries import BoundaryTables, lifetimes, of_one_phase
from .instance import Bools, Floats, Hyperedges, Ints, Workload
from .topological_orders import Order

_Ranges = tuple[Ints, Ints]  #: the first and the last boundary of each range, both included.
_Rectangles = tuple[Ints, _Ranges, _Ranges]  #: an item for each, and its ranges of first and last boundaries of parts.


@dataclass(frozen=True)
class PrefixTables(BoundaryTables):
    """Some prefixes of an order, the shorter first."""

    order: Order  #: a topological order of the groups.
    lengths: Ints  #: the length of each prefix.

    def groups_between(self, i: int, j: int) -> tuple[int, ...]:
        return self.order[int(self.lengths[i]) : int(self.lengths[j])]

    def peak_of(self, possible: Bools) -> Floats:
        # One pass over the order for each first boundary i. `change[p]` is how many bytes more are alive at index p
        # than before. After pass i tensors written before boundary i + 1 are taken out: no later part writes them.
        load, count = self.load, self.boundary_count
        index = order_index(self.order)
        written, (_, dead) = index[load.writer], lifetimes(load, index)
        dead[load.is_output] = load.groups
        sizes = load.tensor_bytes.astype(np.float64)
        change = np.zeros(load.groups + 2)
        np.add.at(change, written, sizes)
        np.add.at(change, dead + 1, -sizes)
        inner = load.inner_bytes.astype(np.float64)[list(self.order)]
        by_index = np.argsort(written, kind="stable")
        starts = np.searchsorted(written[by_index], self.lengths)
        peak = np.zeros((count, count))
        ends = count - 1 - possible[::-1].argmax(axis=0)  # the last boundary of a possible part from each
        for i in range(count - 1):
            first, end = int(self.lengths[i]), max(i + 1, int(ends[i]))
            alive = np.cumsum(change[first : self.lengths[end]]) + inner[first : self.lengths[end]]
            peaks = np.maximum.reduceat(alive, self.lengths[i:end] - first)
            peak[i + 1 : end + 1, i] = np.maximum.accumulate(peaks)
            gone = by_index[starts[i] : starts[i + 1]]
            np.add.at(change, written[gone], -sizes[gone])
            np.add.at(change, dead[gone] + 1, sizes[gone])
        return peak

    @cached_property
    def received_from_last(self) -> Floats:
        load, segment = self.load, _segments(self.order, self.lengths)
        item, (i, _), j = _entries(self.boundary_count, segment[load.writer], load.readers, segment)
        is_last = i == segment[load.writer[item]] + 1  # the part begins right behind the segment of the writer
        i, item = i[is_last], item[is_last]
        rectangles = item, (i, i), (j[0][is_last], j[1][is_last])
        return _sum_of_rectangles(self.boundary_count, (rectangles, load.tensor_bytes))

    def _sums_inside(self, numbers: Floats) -> Floats:
        return np.asarray(_totals(numbers, self._ordered)[self.lengths])

    @cached_property
    def _ordered(self) -> Ints:
        return np.array(self.order)

    def _sums_of_shared(self, numbers: Floats) -> Floats:
        return _sum_of_rectangles(self.boundary_count, (self._sharing, numbers))

    @cached_property
    def _sharing(self) -> _Rectangles:
        edges = self.load.sharers
        no_writer = np.full(edges.count, -1, dtype=np.int64)
        return _entries(self.boundary_count, no_writer, edges, _segments(self.order, self.lengths))


def prefix_tables(load: Workload, order: Order, lengths: Sequence[int]) -> PrefixTables:
    """The tables over the prefixes of `order` of these lengths, ascending from 0 to the number of groups."""
    prefixes = np.array(lengths, dtype=np.int64)
    count, index = len(prefixes), np.arange(len(prefixes))
    segment = _segments(order, prefixes)
    writer, (first, last) = segment[load.writer], lifetimes(load, segment)

    entering = _entries(count, writer, load.readers, segment)
    # A tensor leaves a part that ends before its last reader, or else begins after its first one.
    ends, begins = np.flatnonzero(last > writer), np.flatnonzero(first < writer)
    item = np.concatenate([ends, begins])
    i = np.where(np.arange(len(item)) < len(ends), 0, first[item] + 1), writer[item]
    j = np.concatenate([writer[ends] + 1, last[begins] + 1]), np.append(last[ends], np.full(len(begins), count - 1))
    leaving, added = (item, i, j), partial(_sum_of_rectangles, count)
    is_pure = of_one_phase(load, lambda numbers: _totals(numbers, np.array(order))[prefixes])
    return PrefixTables(
        load=load,
        order=order,
        nested=np.asarray((index[:, None] > index[None, :]) & is_pure),
        received=added((entering, load.tensor_bytes)),
        find_sent=cache(lambda: added((leaving, load.tensor_bytes))),
        find_declared=lambda: added((entering, load.declared_bytes), (leaving, load.sent_declared_bytes)),
        lengths=prefixes,
    )


def _totals(numbers: Floats, order: Ints) -> Floats:
    """For each length of a prefix the sum over its groups."""
    return np.concatenate([[0.0], np.cumsum(numbers[order])])


def order_index(order: Order) -> Ints:
    index = np.empty(len(order), dtype=np.int64)
    index[list(order)] = np.arange(len(order))
    return index


def _segments(order: Order, lengths: Ints) -> Ints:
    """For each group the last boundary that does not contain it."""
    return np.asarray(np.searchsorted(lengths, order_index(order), side="right") - 1)


def _entries(count: int, writer: Ints, edges: Hyperedges, segment: Ints) -> _Rectangles:
    """The ranges of first and last boundaries of the parts that each item enters; ranges of one item never overlap.

    Let q1 < q2 < ... be the segments that read an item and q0 the one that writes it. The reading in q_r is the first
    of the part (i, j) for i in (q_(r-1), q_r] and j > q_r. See the example above. A reading before the writer (in a
    workload that is not `is_ordered`) enters the parts that end before the writer.
    """
    pairs = np.unique(edges.item * count + segment[edges.group])
    item, reader = pairs // count, pairs % count
    kept = reader != writer[item]
    item, reader = item[kept], reader[kept]
    is_first = np.concatenate([[True], item[1:] != item[:-1]])[: len(item)]
    before = np.where(is_first, -1, np.concatenate([[0], reader])[: len(reader)])
    is_early = reader < writer[item]
    before = np.where(is_early, before, np.maximum(before, writer[item]))
    return item, (before + 1, reader), (reader + 1, np.where(is_early, writer[item], count - 1))


def _sum_of_rectangles(count: int, *added: tuple[_Rectangles, Floats | Ints]) -> Floats:
    """A table `[j, i]` to which the number of each item is added over its rectangles."""
    change = np.zeros((count + 1, count + 1))
    for (item, i, j), numbers in added:
        values = numbers[item]
        some = values != 0
        corners = ((j[0], i[0], 1), (j[0], i[1] + 1, -1), (j[1] + 1, i[0], -1), (j[1] + 1, i[1] + 1, 1))
        for row, column, sign in corners:
            np.add.at(change, (row[some], column[some]), sign * values[some])
    for above, below in pairwise(change):  # faster than cumsum(axis=0), which goes down one column after the other
        np.add(above, below, out=below)
    return np.asarray(change.cumsum(axis=1, out=change)[:count, :count])
