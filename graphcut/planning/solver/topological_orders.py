"""Topological orders of the groups along which a chain of parts is looked for.

An acyclic division into parts is a row of consecutive intervals of *some* topological order, so a search along one
order is exact for that order and misses only what other orders have. Four orders are enough for most models; for small
ones random depth-first orders follow until a plan meets its lower bound.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ..instance import Workload

Order = tuple[int, ...]
_MOST_REPEATED: Final = 8
"""Stop after so many random orders in a row that were seen before."""


def orders(load: Workload) -> Iterator[Order]:
    """Different topological orders: as given, depth first, its mirror, fewest bytes alive, then random ones.

    Deterministic for a workload. Ends when random orders bring nothing new.
    """
    seen: set[Order] = set()
    repeated = 0
    for order in _all_orders(load):
        repeated = repeated + 1 if order in seen else 0
        if repeated > _MOST_REPEATED:
            return
        if not repeated:
            seen.add(order)
            yield order


def _all_orders(load: Workload) -> Iterator[Order]:
    predecessors, successors = load.edges
    yield tuple(range(load.groups))
    yield _depth_first(predecessors, successors, lambda _: 0)
    yield tuple(reversed(_depth_first(successors, predecessors, lambda _: 0)))
    yield _fewest_alive(load)
    generator = random.Random(0)  # noqa: S311 - the same orders each time
    while True:
        priority = [generator.random() for _ in range(load.groups)]
        yield _depth_first(predecessors, successors, priority.__getitem__)
        yield tuple(reversed(_depth_first(successors, predecessors, priority.__getitem__)))


def _depth_first(
    predecessors: Sequence[Sequence[int]], successors: Sequence[Sequence[int]], priority: Callable[[int], float]
) -> Order:
    """Kahn's algorithm with a stack: a group that became ready last comes next, of several the one of highest priority.

    A diamond 0 -> (1, 2) -> 3 with an extra path 1 -> 4:

    >>> _depth_first([(), (0,), (0,), (1, 2), (1,)], [(1, 2), (3, 4), (3,), (), ()], lambda _: 0)
    (0, 1, 4, 2, 3)
    """
    waits = [len(groups) for groups in predecessors]

    def by_priority(groups: Iterable[int]) -> list[int]:
        return sorted(groups, key=lambda group: (priority(group), -group))

    stack = by_priority(group for group, number in enumerate(waits) if number == 0)
    order: list[int] = []
    while stack:
        group = stack.pop()
        order.append(group)
        ready = []
        for successor in successors[group]:
            waits[successor] -= 1
            if waits[successor] == 0:
                ready.append(successor)
        stack.extend(by_priority(ready))
    return tuple(order)


def _fewest_alive(load: Workload) -> Order:
    """Greedy: of the ready groups, take the one after which the fewest bytes are alive."""
    predecessors, successors = load.edges
    written = np.bincount(load.writer, weights=load.tensor_bytes, minlength=load.groups).tolist()
    reads: list[list[int]] = [[] for _ in range(load.groups)]
    for tensor, group in zip(load.readers.item.tolist(), load.readers.group.tolist(), strict=True):
        reads[group].append(tensor)
    unread = load.readers.sizes.tolist()
    size = load.tensor_bytes.tolist()
    waits = [len(groups) for groups in predecessors]

    def growth(group: int) -> float:
        return float(written[group] - sum(size[t] for t in reads[group] if unread[t] == 1))

    ready = [(growth(group), group) for group, number in enumerate(waits) if number == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        known, group = heapq.heappop(ready)
        # Reads of other groups since it was queued can only make its growth smaller: check before taking it.
        if (now := growth(group)) < known and ready and now > ready[0][0]:
            heapq.heappush(ready, (now, group))
            continue
        order.append(group)
        for tensor in reads[group]:
            unread[tensor] -= 1
        for successor in successors[group]:
            waits[successor] -= 1
            if waits[successor] == 0:
                heapq.heappush(ready, (growth(successor), successor))
    return tuple(order)
