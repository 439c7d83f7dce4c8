"""Search for the best partition: over all order ideals of a small workload, else along several orders.

Over all order ideals the result is optimal. Otherwise the chain DP is exact along each of several topological orders,
and for a workload of up to 400 groups over the prefixes of all these orders together. The best result is improved: with
more boundaries close to its own, and by a minimum cut in a window around each of its boundaries (over the groups that
may be on either side), which gives a new order. Only better results are kept.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, pairwise
from operator import itemgetter
from typing import Final

import numpy as np

from .boundaries import BoundaryTables, lifetimes
from .chain_dp import ChainPartition
from .instance import Floats, Parts, Workload
from .min_cut import AFTER, BEFORE, FREE, cheapest_cut
from .order_ideals import Ideal, all_ideals, between_cuts, ideal_tables, near_cuts, pooled_tables, prefixes_of
from .order_prefixes import order_index, prefix_tables
from .topological_orders import Order, orders

MOST_BOUNDARIES: Final = 2000
_MOST_ALONG: Final = 600  #: of a larger workload so many prefixes of an order are tried at once.
_MOST_IN_LAST_TRY: Final = 3000
_LARGE: Final = 4000
_WINDOW: Final = 200
_PASSES: Final = 3
_FURTHER: Final = 2  #: around a cut more lengths are tried, up to so many shares away.
SMALL: Final = 400  #: the most groups of a workload that is tried along 24 orders, and over all of them together.
_MOST_POOLED: Final = 1000
_MOST_LISTED: Final = 40_000  #: of up to so many order ideals those near the cuts are tried,
_NEAR: Final = (1 / 32, 1 / 64, 1 / 128)  #: so near, as shares of what a part takes on average.

Evaluator = Callable[[BoundaryTables], ChainPartition | None]
"""The best partition for a goal over given boundaries; None where none meets it. Values of different tables compare."""


@dataclass(frozen=True)
class SearchResult:
    """The best partition that was found."""

    tables: BoundaryTables  #: the boundaries it was found on.
    chain: ChainPartition  #: the partition; the first of its values is the objective.

    @cached_property
    def parts(self) -> Parts:
        return tuple(self.tables.groups_between(i, j) for i, j in pairwise(self.chain.boundaries))

    @property
    def is_optimal(self) -> bool:
        """Whether it is the best one over all order ideals, and no partition has a smaller first value.

        Where parts may receive values instead of computing them, that takes a bound (relaxed_tables.py).
        """
        return self.tables.is_complete and self.chain.is_best and self.tables.load.replicas is None


def search(
    load: Workload,
    evaluate: Evaluator,
    *,
    states: int = 1,
    parts: int = 1,
    marked: Collection[int] = (),
    lower_bound: float = -np.inf,
    is_refined: bool = True,
) -> SearchResult | None:
    """The best partition found; None where none meets the goal over any boundaries that were tried.

    The more `states` the chain DP has, the fewer boundaries are tried, but always more than `parts`. Next to `marked`
    groups every boundary is tried, since they must be in certain parts. The search stops when the first value reaches
    `lower_bound`; if it is not `is_refined`, at the first partition that is found.
    """
    most = max(int(np.clip((1.2e8 / states) ** 0.5, 48, MOST_BOUNDARIES)), 2 * parts)
    if load.groups <= most and (tables := ideal_tables(load, most)) is not None:
        return result_on(tables, evaluate)
    most = min(most, max(_MOST_ALONG, 2 * parts))
    best = None
    tries = 24 if load.groups <= SMALL else 4 if load.groups <= _LARGE * 5 else 2
    tried: list[tuple[tuple[float, ...], Order]] = []
    for order in islice(orders(load), tries):
        found = _along(load, evaluate, order, most, marked)
        if found is not None and load.groups > max(most, SMALL):
            found = better(found, _along(load, evaluate, order, most, marked, _cuts(found)))
        tried.append(((np.inf,) if found is None else found.chain.values, order))
        best = better(best, found)
        if best is not None and (best.chain.values[0] <= lower_bound or not is_refined):
            return best
    if load.groups <= SMALL:
        best_first = [order for _, order in sorted(tried, key=itemgetter(0))]
        best = _along_all(load, evaluate, best, best_first, min(most, _MOST_POOLED))
    if best is None and most <= load.groups:  # what is impossible with few boundaries may be possible with more
        most = _MOST_IN_LAST_TRY
        best = _along(load, evaluate, next(orders(load)), most, marked)
    return _refined(load, evaluate, best, most, marked) if best and is_refined else best


def result_on(tables: BoundaryTables, evaluate: Evaluator) -> SearchResult | None:
    """The best partition over given boundaries; None where none meets the goal."""
    chain = evaluate(tables)
    return None if chain is None else SearchResult(tables, chain)


def _along(
    load: Workload, evaluate: Evaluator, order: Order, most: int, marked: Collection[int], near: Sequence[int] = ()
) -> SearchResult | None:
    lengths = {*prefix_lengths(load, order, most, near)}
    if marked and len(lengths) <= load.groups:
        lengths.update(i + side for i in order_index(order)[list(marked)].tolist() for side in (0, 1))
    return result_on(prefix_tables(load, order, sorted(lengths)), evaluate)


def _along_all(
    load: Workload, evaluate: Evaluator, best: SearchResult | None, tried: Sequence[Order], most: int
) -> SearchResult | None:
    """The best result over the prefixes of orders (those of the first count most), then over those near its cuts."""
    ideals: Collection[Ideal] = [prefix for order in tried for prefix in prefixes_of(order)]
    for _ in range(_PASSES):
        before, best = best, better(best, result_on(pooled_tables(load, ideals, most), evaluate))
        if best is None or best is before:
            break
        ideals = between_cuts(ideals, _cut_ideals(best))
    if best is None or len(best.parts) == 1 or (listed := all_ideals(load.edges, _MOST_LISTED)) is None:
        return best
    for share in _NEAR:
        near = near_cuts(load, listed, _cut_ideals(best), share)
        best = better(best, result_on(pooled_tables(load, near, len(near)), evaluate)) or best
    return best


def _cut_ideals(found: SearchResult) -> list[Ideal]:
    """The order ideals before and behind its parts."""
    return list(accumulate((sum(1 << group for group in part) for part in found.parts), int.__or__, initial=0))


def better(best: SearchResult | None, other: SearchResult | None) -> SearchResult | None:
    """The one with the smaller values; of equal ones the first."""
    if best is None or other is None:
        return best or other
    return other if other.chain.values < best.chain.values else best


def prefix_lengths(load: Workload, order: Order, most: int, near: Sequence[int]) -> list[int]:
    """At most about `most` prefix lengths of `order`: all of them, or those with few bytes alive.

    The order is divided into equal shares of work and of bytes; each share gives the length at which the fewest bytes
    are alive. Around those in `near` there are more: all that are close, and shares of what is a little further away.
    """
    if load.groups < most:
        return list(range(load.groups + 1))
    alive = bytes_alive(load, order)
    lengths = {0, load.groups, *load.phase_ends}

    def add_least(starts: Sequence[int]) -> None:
        """Of the lengths from behind each start up to the next one that with the fewest bytes alive."""
        lengths.update(first + 1 + int(np.argmin(alive[first + 1 : last + 1])) for first, last in pairwise(starts))

    shares = most // (3 if near else 2)
    work = np.where(np.isfinite(load.work[0]), load.work[0], 0.0)
    edges = load.sharers  # their bytes count in equal shares
    share = (load.shared_bytes / np.maximum(edges.sizes, 1))[edges.item]
    held = load.own_bytes + np.bincount(edges.group, weights=share, minlength=load.groups)
    for weight in (work[list(order)], held[list(order)]):
        done = np.cumsum(weight + weight.sum() / load.groups + 1e-30)
        of_share = np.minimum((done / done[-1] * shares).astype(np.int64), shares - 1)
        add_least([*np.flatnonzero(np.diff(of_share, prepend=-1)).tolist(), load.groups])
    reach, further = most // 6 // max(1, len(near)), _FURTHER * load.groups // shares
    for n in near:
        lengths.update(range(max(0, n - reach), min(load.groups, n + reach) + 1))
        around = np.linspace(max(0, n - further), min(load.groups, n + further), reach + 2)
        add_least(np.unique(around.astype(np.int64)).tolist())
    return sorted(lengths)


def bytes_alive(load: Workload, order: Order) -> Floats:
    """For each prefix length of `order` the bytes that cross behind the prefix."""
    first, last = lifetimes(load, order_index(order))
    change = np.zeros(load.groups + 2)
    np.add.at(change, first + 1, load.tensor_bytes)
    np.add.at(change, last + 1, -load.tensor_bytes)
    return np.cumsum(change)[: load.groups + 1]


def _refined(
    load: Workload, evaluate: Evaluator, best: SearchResult, most: int, marked: Collection[int]
) -> SearchResult:
    for _ in range(_PASSES):
        order = tuple(group for part in best.parts for group in part)
        lengths = _cuts(best)
        before, cheaper = best, _with_cheaper_cuts(load, order, lengths)
        for tried in (cheaper, order) if load.groups >= most else (cheaper,):
            best = better(best, _along(load, evaluate, tried, most, marked, lengths)) or best
        if best is before:
            break
    return best


def _cuts(found: SearchResult) -> list[int]:
    """How many groups are before each boundary between two parts."""
    return list(accumulate(len(part) for part in found.parts[:-1]))


def _with_cheaper_cuts(load: Workload, order: Order, lengths: Sequence[int]) -> Order:
    """`order` changed in a window around each of these prefix lengths, so that the fewest bytes cross there.

    Unchanged where tensors flow both ways: that is no minimum cut.
    """
    if not load.is_ordered:
        return order
    ends = [0, *lengths, load.groups]
    groups, writers = list(order), load.writer.tolist()
    tensors = [*zip(np.maximum(load.tensor_bytes, 1).tolist(), writers, load.readers.groups_of_items, strict=True)]
    touched = load.readers.items_of_groups(load.groups)
    for tensor, writer in enumerate(writers):
        touched[writer].append(tensor)
    for before, length, after in zip(ends, ends[1:], ends[2:], strict=False):
        low, high = max(length - _WINDOW, (before + length) // 2), min(length + _WINDOW, (length + after) // 2)
        window = groups[low:high]
        if len(window) < 2:
            continue
        index = {group: i for i, group in enumerate(window)}
        done = set(groups[:low])

        def side(group: int, index: dict[int, int] = index, done: set[int] = done) -> int:
            return FREE if group in index else BEFORE if group in done else AFTER

        near = dict.fromkeys(tensor for group in window for tensor in touched[group])
        early = cheapest_cut([tensors[tensor] for tensor in near], side, window)
        groups[low:high] = sorted(window, key=lambda group: (group not in early, index[group]))
    return tuple(groups)
