"""Where the best plan is looked for: on all ideals of a small workload, else along several orders, refined by cuts.

What comes of a complete ladder is optimal. Otherwise each order is a chain on which dynamic programming is exact; the
bars of the best chain are then moved: rung by rung around them, and by minimum cuts in a window around each (the groups
that may stand on either side), which changes the order. A change stays only if the plan gets better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

import numpy as np

from ..instance import Floats, Workload
from .boundaries import BoundaryTables, last_readers
from .chain_dp import ChainPartition
from .min_cut import AFTER, BEFORE, FREE, cheapest_cut
from .order_ideals import ideal_tables
from .order_prefixes import places_in, prefix_tables
from .topological_orders import Order, orders

_MOST_IDEALS: Final = 2000
_MOST_RUNGS: Final = 3000
_LARGE: Final = 4000
_WINDOW: Final = 200
_PASSES: Final = 3

Evaluator = Callable[[BoundaryTables], ChainPartition | None]
"""Finds the best climb of a ladder; None where no climb meets the goal. Ranks of different ladders are comparable."""


@dataclass(frozen=True)
class SearchResult:
    """The best plan that was found.

    Attributes:
        parts: the groups of each part.
        kinds: the kind of device that runs each part.
        ranks: the numbers it was chosen by.
        is_optimal: no division into parts ranks better by the first of them.
        ladder: the ladder it was found on.
        climb: the climb of it.
    """

    parts: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    ranks: tuple[float, ...]
    is_optimal: bool
    ladder: BoundaryTables
    climb: ChainPartition


def search(
    load: Workload,
    judge: Evaluator,
    *,
    states: int = 1,
    parts: int = 1,
    marked: Collection[int] = (),
    good_enough: float = -np.inf,
) -> SearchResult | None:
    """The best plan; None where none meets the goal on any ladder that was looked at.

    Args:
        load: what is planned.
        judge: ranks the climbs of a ladder.
        states: how many steps of the dynamic program a ladder takes; a ladder gets the shorter the more they are.
        parts: how many parts there must be at least; a ladder has more rungs.
        marked: groups around which no rung is left out, since they must stand in certain parts.
        good_enough: a first rank below which nothing lies; orders are tried until it is reached.
    """
    most = max(int(np.clip((1.2e8 / states) ** 0.5, 48, _MOST_IDEALS)), 2 * parts)
    if load.groups <= most and (ladder := ideal_tables(load, most)) is not None:
        climb = judge(ladder)
        return None if climb is None else result_on(ladder, climb)
    best = None
    tries = 24 if load.groups <= 400 else 4 if load.groups <= _LARGE * 5 else 2
    for order in islice(orders(load), tries):
        best = _better(best, _along(load, judge, order, most, marked=marked))
        if best is not None and best.ranks[0] <= good_enough:
            return best
    if best is None and most <= load.groups:
        most = _MOST_RUNGS  # what is impossible along few rungs need not be along many
        best = _along(load, judge, next(orders(load)), most, marked=marked)
    return None if best is None else _refined(load, judge, best, most, marked)


def _along(
    load: Workload,
    judge: Evaluator,
    order: Order,
    most: int,
    near: Sequence[int] = (),
    *,
    marked: Collection[int] = (),
) -> SearchResult | None:
    rungs = {*_rungs(load, order, most, near)}
    if marked and len(rungs) <= load.groups:
        places = places_in(order)[list(marked)].tolist()
        rungs.update(place + side for place in places for side in (0, 1))
    ladder = prefix_tables(load, order, sorted(rungs))
    climb = judge(ladder)
    return None if climb is None else result_on(ladder, climb)


def result_on(ladder: BoundaryTables, climb: ChainPartition) -> SearchResult:
    """The plan that is a climb of a ladder; the best climb of a complete one is optimal."""
    parts = tuple(ladder.members(low, high) for low, high in pairwise(climb.rungs))
    return SearchResult(parts, climb.kinds, climb.ranks, ladder.is_complete, ladder, climb)


def _better(best: SearchResult | None, other: SearchResult | None) -> SearchResult | None:
    """The one with lower ranks; of equal ones the first."""
    if best is None or other is None:
        return best or other
    return other if other.ranks < best.ranks else best


def _rungs(load: Workload, order: Order, most: int, near: Sequence[int]) -> list[int]:
    """At most about `most` lengths of prefixes of `order`: all, or those across which few bytes flow.

    The order is divided into equal shares of work and of groups; each gives the length that the fewest bytes cross.
    Around the lengths `near` none is left out.
    """
    if load.groups < most:
        return list(range(load.groups + 1))
    alive = _alive_across(load, order)
    dense = (most // 3) // max(1, len(near)) // 2 if near else 0
    wanted = {0, load.groups, *(p for q in near for p in range(max(0, q - dense), min(load.groups, q + dense) + 1))}
    shares = most // 2 if not near else most // 3
    work = np.where(np.isfinite(load.work[0]), load.work[0], 0.0)[list(order)]
    for weight in (work, _bytes_of(load)[list(order)]):
        done = np.cumsum(weight + weight.sum() / load.groups + 1e-30)
        share = np.minimum((done / done[-1] * shares).astype(np.int64), shares - 1)
        starts = np.flatnonzero(np.diff(share, prepend=-1))
        for first, last in pairwise([*starts.tolist(), load.groups]):
            wanted.add(first + 1 + int(np.argmin(alive[first + 1 : last + 1])))
    return sorted(wanted)


def _bytes_of(load: Workload) -> Floats:
    """What each group takes; what several share, in equal shares."""
    edges = load.sharers
    share = load.shared / np.maximum(np.bincount(edges.thing, minlength=edges.number), 1)
    return np.asarray(load.held + np.bincount(edges.group, weights=share[edges.thing], minlength=load.groups))


def _alive_across(load: Workload, order: Order) -> Floats:
    """Bytes that cross after each number of groups of `order`."""
    places = places_in(order)
    first, last = places[load.writer], last_readers(load, places)
    change = np.zeros(load.groups + 2)
    np.add.at(change, first + 1, load.tensor_bytes)
    np.add.at(change, last + 1, -load.tensor_bytes)
    return np.cumsum(change)[: load.groups + 1]


def _refined(load: Workload, judge: Evaluator, best: SearchResult, most: int, marked: Collection[int]) -> SearchResult:
    for _ in range(_PASSES):
        order = tuple(group for part in best.parts for group in part)
        bars = np.cumsum([len(part) for part in best.parts])[:-1].tolist()
        tried = _better(best, _along(load, judge, _cut_cheaply(load, order, bars), most, bars, marked=marked))
        if load.groups >= most:
            tried = _better(tried, _along(load, judge, order, most, bars, marked=marked))
        if tried is None or tried is best:
            return best
        best = tried
    return best


def _cut_cheaply(load: Workload, order: Order, bars: Sequence[int]) -> Order:
    """The order changed around each bar, so that the fewest bytes cross there."""
    ends = [0, *bars, load.groups]
    groups = list(order)
    tensors = _tensors_of(load)
    for before, bar, after in zip(ends, ends[1:], ends[2:], strict=False):
        low, high = max(bar - _WINDOW, (before + bar) // 2), min(bar + _WINDOW, (bar + after) // 2)
        window = groups[low:high]
        if len(window) < 2:
            continue
        place = {group: i for i, group in enumerate(window)}
        touched = dict.fromkeys(t for group in window for t in tensors[1][group])
        known = set(groups[:low])

        def side(group: int, place: dict[int, int] = place, known: set[int] = known) -> int:
            return FREE if group in place else BEFORE if group in known else AFTER

        early = cheapest_cut([tensors[0][t] for t in touched], side, window)
        groups[low:high] = sorted(window, key=lambda group: (group not in early, place[group]))
    return tuple(groups)


def _tensors_of(load: Workload) -> tuple[list[tuple[int, int, tuple[int, ...]]], list[list[int]]]:
    """Each tensor with its price, its writer and its readers; and for each group the tensors it touches."""
    readers: list[list[int]] = [[] for _ in range(load.readers.number)]
    touched: list[list[int]] = [[] for _ in range(load.groups)]
    for tensor, group in zip(load.readers.thing.tolist(), load.readers.group.tolist(), strict=True):
        readers[tensor].append(group)
        touched[group].append(tensor)
    found = []
    for tensor, writer in enumerate(load.writer.tolist()):
        touched[writer].append(tensor)
        found.append((max(1, int(load.tensor_bytes[tensor])), writer, tuple(readers[tensor])))
    return found, touched
