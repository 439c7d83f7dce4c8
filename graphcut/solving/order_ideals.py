"""Order ideals as boundaries: the best partition over all those of a small workload is the best there is.

An order ideal is a set of groups that contains the predecessors of all its members, so an acyclic division into parts
is a chain of ideals, each contained in the next (Tarnawski et al., "Efficient algorithms for device placement of DNN
graph operators", NeurIPS 2020). What they sum pair by pair is a matrix product here.

Example: group 0 writes a tensor of 8 bytes for groups 1 and 2, which write 1 byte each for group 3.

    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[1, 1, 1, 1]], [(0, (1, 2), 8), (1, (3,), 1), (2, (3,), 1)])
    >>> tables = ideal_tables(load, most=100)
    >>> [tables.groups_between(0, i) for i in range(tables.boundary_count)]
    [(), (0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3)]
    >>> tables.groups_between(1, 4)  # the part between {0} and {0, 1, 2}
    (1, 2)
    >>> float(tables.received[4, 1]), float(tables.sent[4, 1])  # both read the same tensor: it is received once
    (8.0, 2.0)
    >>> bool(tables.nested[3, 2])  # {0, 1} is no subset of {0, 2}: there is no part between them
    False

Of a larger workload some ideals are pooled: the prefixes of several topological orders. A partition may then take one
boundary from one order and the next from another, if the second contains the first. Near a good partition there are
more: the union, and the intersection, of two order ideals is an order ideal.

Example: groups 0, 1, 2 without edges. The order 0, 1, 2 has the prefix {0, 1}, the order 2, 0, 1 the prefix {2}. Next
to the cut {0} the second gives {0, 2}, which is a prefix of neither:

    >>> prefixes_of((0, 1, 2))
    [0, 1, 3, 7]
    >>> sorted(between_cuts([0b100], [0b000, 0b001, 0b111]))
    [0, 1, 4, 5, 7]
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate, islice
from typing import Final

import numpy as np

from .boundaries import BoundaryTables, lifetimes, of_one_phase, touch_counts
from .instance import Bools, Edges, Floats, Hyperedges, Ints, Workload
from .order_prefixes import prefix_tables
from .topological_orders import Order

Ideal = int  #: an order ideal as a set of bits.
_MOST_NEAR: Final = 1000
_ALL: Final = np.ones((1, 1), dtype=bool)  #: every item, for all ideals.


@dataclass(frozen=True)
class IdealTables(BoundaryTables):
    """Order ideals, the smaller first."""

    ideals: Bools  #: `ideals[i, g]` is whether ideal i contains group g.

    def groups_between(self, i: int, j: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.ideals[j] & ~self.ideals[i]).tolist())

    def peak_of(self, possible: Bools) -> Floats:  # noqa: ARG002 - it computes all
        # For each boundary i the groups outside it run in order, for all later boundaries at once. A group is alive in
        # the columns of the ideals that contain it. Say groups a, b, c follow each other, each reads the tensor before
        # and writes 4 bytes: while b runs both tensors are alive in the columns that hold a and b, 8 bytes; then the
        # tensor of a dies in these columns. Tensors that are written in i don't die behind it: they are not counted.
        load, dies = self.load, np.flatnonzero(~self.load.is_output)
        most = load.tensor_bytes.sum() + load.inner_bytes.max(initial=0)
        numbers, contains = np.int32 if most < np.iinfo(np.int32).max else np.int64, np.ascontiguousarray(self.ideals.T)
        writer, last = load.writer[dies], lifetimes(load, np.arange(load.groups))[1][dies]
        is_read = (touch_counts(self.ideals, load.readers) == load.readers.sizes)[:, dies]
        dying = (is_read & self.ideals[:, writer]).T * load.tensor_bytes[dies, None].astype(numbers)
        change = contains * load.written_bytes[:, None].astype(numbers)
        running = change + contains * load.inner_bytes[:, None].astype(numbers)
        np.subtract.at(change, last, dying)
        table = np.zeros((self.boundary_count, self.boundary_count))
        for i, is_before in enumerate(self.ideals[:-1]):
            groups = np.flatnonzero(~is_before)
            alive, peak = change[groups[:-1], i:], running[groups, i:]
            for tensor in np.flatnonzero(is_before[writer] & ~is_before[last] & (last < groups[-1])):
                alive[np.searchsorted(groups, last[tensor])] += dying[tensor, i:]
            for row in range(1, len(alive)):
                alive[row] += alive[row - 1]
            peak[1:] += alive
            table[i, i:] = peak.max(axis=0)
        return np.ascontiguousarray(table.T)

    @cached_property
    def received_from_last(self) -> Floats:
        # A group of ideal i that no ideal inside i has is in the part before i.
        inside = self.ideals.astype(np.float64)
        is_last = self.ideals & (self.nested.astype(np.float64) @ inside == 0)
        load = self.load
        return _sums_of_touched(self.ideals, load.readers, load.tensor_bytes, is_last[:, load.writer])

    def _sums_inside(self, numbers: Floats) -> Floats:
        return np.asarray(self.ideals.astype(np.float64) @ numbers)

    def _sums_of_shared(self, numbers: Floats) -> Floats:
        return _sums_of_touched(self.ideals, self.load.sharers, numbers)


def ideal_tables(load: Workload, most: int) -> BoundaryTables | None:
    """The tables over all order ideals; None where there are more than `most`.

    If each group reads the one before, the ideals are the prefixes of this order, and the tables take much less time.
    """
    predecessors, _ = load.edges
    if all(group - 1 in predecessors[group] for group in range(1, load.groups)):
        whole = range(load.groups + 1)
        return replace(prefix_tables(load, tuple(whole[:-1]), whole), is_complete=True) if load.groups < most else None
    sets = all_ideals(load.edges, most)
    return None if sets is None else tables_over(load, sets, is_complete=True)


def tables_over(load: Workload, sets: Sequence[Ideal], *, is_complete: bool = False) -> IdealTables:
    """The tables over given order ideals, as bit sets: the empty one first, then larger ones, that of all last."""
    ideals, edges = _members(sets, load.groups), load.readers
    is_written = ideals[:, load.writer]
    outside = ideals.astype(np.float64) @ (~ideals).T.astype(np.float64)  # `[i, j]`: how many groups of i are not in j
    read = touch_counts(ideals, edges)

    def entering(numbers: Ints) -> Floats:
        found = _sums_of_touched(ideals, edges, numbers, is_written)
        return found if load.is_ordered else found + _sums_of_touched(ideals, edges, numbers, ~is_written, ~is_written)

    def leaving(numbers: Ints) -> Floats:
        is_alive = is_written & (read < edges.sizes)
        found = _nested_product(is_alive * numbers, ~is_written)
        if not load.is_ordered:  # all readers are in ideal j, and some in ideal i
            found += _nested_product((is_written & ~is_alive) * numbers, ~is_written & (read > 0))
        return found

    is_pure = of_one_phase(load, lambda numbers: ideals @ numbers)
    return IdealTables(
        load=load,
        nested=np.asarray((outside == 0).T & ~np.eye(len(ideals), dtype=bool) & is_pure),
        received=entering(load.tensor_bytes),
        find_sent=cache(lambda: leaving(load.tensor_bytes)),
        find_declared=cache(lambda: entering(load.declared_bytes) + leaving(load.sent_declared_bytes)),
        ideals=ideals,
        is_complete=is_complete,
    )


def prefixes_of(order: Order) -> list[Ideal]:
    """All prefixes of an order, from the empty one to the whole."""
    return list(accumulate((1 << group for group in order), int.__or__, initial=0))


def between_cuts(ideals: Collection[Ideal], cuts: Sequence[Ideal]) -> dict[Ideal, None]:
    """The `cuts` (ascending), and each ideal brought between any two that are neighbours or have one cut between them.

    To bring an ideal between two cuts is to take its union with the smaller one, then the intersection with the larger.
    """
    found = dict.fromkeys(cuts)
    for distance in (1, 2):
        for low, high in zip(cuts, cuts[distance:], strict=False):
            found.update(dict.fromkeys((ideal | low) & high for ideal in ideals))
    return found


def near_cuts(load: Workload, ideals: Sequence[Ideal], cuts: Sequence[Ideal], share: float) -> list[Ideal]:
    """The `cuts` (ascending), and those of the `ideals` that take nearly as long as an inner one, about 1,000.

    Nearly is a share of what a part takes on average. Of ideals that take the same time but for little the one behind
    which the fewest bytes are alive.
    """
    seconds, edges = np.where(np.isfinite(load.work), load.work, 0.0).max(axis=0), load.readers
    inside = _members(ideals, load.groups)
    done, reach = inside @ seconds, share * seconds.sum() / (len(cuts) - 1)
    offsets = np.abs(done[:, None] - _members(cuts, load.groups)[1:-1] @ seconds)
    near = np.flatnonzero((offsets <= reach).any(axis=1))
    unread = touch_counts(inside[near], edges) < edges.sizes
    alive = (inside[near][:, load.writer] & unread) @ load.tensor_bytes
    step = np.floor(done / max(2 * reach * (len(cuts) - 2) / _MOST_NEAR, np.finfo(float).tiny))
    return [*cuts, *{step[i]: ideals[i] for i in near[np.argsort(-alive, kind="stable")].tolist()}.values()]


def _members(ideals: Sequence[Ideal], groups: int) -> Bools:
    """`[i, g]`: whether ideal i has group g."""
    size = groups // 8 + 1
    rows = np.frombuffer(b"".join(ideal.to_bytes(size, "little") for ideal in ideals), dtype=np.uint8)
    return np.unpackbits(rows.reshape(-1, size), axis=1, count=groups, bitorder="little").astype(bool)


def pooled_tables(load: Workload, ideals: Iterable[Ideal], most: int) -> IdealTables:
    """The tables over the first `most` of the ideals, the empty one, and the one of all groups."""
    order = [] if load.phase is None else np.argsort(load.phase, kind="stable").tolist()
    ends = (sum(1 << group for group in order[:end]) for end in load.phase_ends)
    chosen = {*islice(dict.fromkeys(ideals), most), 0, (1 << load.groups) - 1, *ends}
    return tables_over(load, sorted(chosen, key=lambda ideal: (ideal.bit_count(), ideal)))


@lru_cache(maxsize=8)  # a plan asks for those of the same graph several times
def all_ideals(edges: Edges, most: int) -> tuple[Ideal, ...] | None:
    """All order ideals as bit sets, the smaller first; None where there are more than `most`."""
    predecessors, successors = edges
    needs = [sum(1 << other for other in groups) for groups in predecessors]
    found = [0]
    # The groups that can be added to each ideal of a size; one step adds one group.
    addable = {0: sum(1 << group for group in range(len(needs)) if not predecessors[group])}
    while addable:
        larger: dict[int, int] = {}
        for ideal, free in addable.items():
            rest = free
            while rest:
                bit = rest & -rest
                rest ^= bit
                added = ideal | bit
                if added not in larger:
                    if len(found) + len(larger) >= most:
                        return None
                    ready = [group for group in successors[bit.bit_length() - 1] if needs[group] & ~added == 0]
                    larger[added] = (free ^ bit) | sum(1 << group for group in ready)
        addable = dict(sorted(larger.items()))
        found += addable
    return tuple(found)


def _sums_of_touched(
    ideals: Bools, edges: Hyperedges, numbers: Floats | Ints, counted: Bools = _ALL, admitted: Bools = _ALL
) -> Floats:
    """`[j, i]`: the sum of `numbers` over the items that a group between i and j touches.

    Only those that `counted[i]` and `admitted[j]` have.

    An item is touched in between if more of its groups are in ideal j than in ideal i: over counts c that is the sum of
    [c groups in i] * [more than c groups in j], one product of matrices with a column for each item and count.
    """
    item = edges.item[numbers[edges.item] != 0]
    count = np.arange(len(item)) - np.searchsorted(item, item)
    touched = touch_counts(ideals, edges)[:, item]
    counted, admitted = (np.broadcast_to(one, (len(ideals), edges.count))[:, item] for one in (counted, admitted))
    return _nested_product((touched > count) & admitted, ((touched == count) & counted) * numbers[item])


def _nested_product(left: Floats | Ints | Bools, right: Floats | Ints | Bools) -> Floats:
    """`left @ right.T` where row j of `left` is no less than row i of `right`, as nested ideals are; or else 0."""
    left, right, found = left.astype(np.float64), right.astype(np.float64), np.zeros((len(left), len(right)))
    for rows in np.array_split(np.arange(len(left)), 8):
        if rows.size:
            end = int(rows[-1]) + 1
            found[rows, :end] = left[rows] @ right[:end].T
    return found
