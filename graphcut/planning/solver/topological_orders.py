"""Orders of the groups in which a chain of parts can be looked for.

An acyclic division into parts is a row of consecutive intervals of *some* topological order, so the choice of the
order is all that a search along one order gives away. Four orders do for most models;
for small ones random walks follow until a plan meets its bound.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from ..instance import Workload

Order = tuple[int, ...]

_MOST_OLD: Final = 8
"""After so many walks in a row that found nothing new there is little left to find."""


def orders(load: Workload) -> Iterator[Order]:
    """Different topological orders, the likely best first: as given, depth first, its mirror, few bytes alive, random.

    Ends when walks find nothing new. The same for the same workload.
    """
    seen: set[Order] = set()
    old = 0
    for order in _all(load):
        old = old + 1 if order in seen else 0
        if old > _MOST_OLD:
            return
        if not old:
            seen.add(order)
            yield order


def _all(load: Workload) -> Iterator[Order]:
    below, above = load.edges
    yield tuple(range(load.groups))
    yield _depth_first(below, above, lambda _: 0)
    yield tuple(reversed(_depth_first(above, below, lambda _: 0)))
    yield _few_alive(load)
    chance = random.Random(0)  # noqa: S311 - the same walks each time
    while True:
        ranks = [chance.random() for _ in range(load.groups)]
        yield _depth_first(below, above, ranks.__getitem__)
        yield tuple(reversed(_depth_first(above, below, ranks.__getitem__)))


def _depth_first(below: Sequence[Sequence[int]], above: Sequence[Sequence[int]], rank: Callable[[int], float]) -> Order:
    """Kahn's algorithm with a stack: what has just become ready comes next, of several the one of highest rank."""
    waits = [len(groups) for groups in below]
    stack = sorted((group for group, number in enumerate(waits) if number == 0), key=lambda g: (rank(g), -g))
    order: list[int] = []
    while stack:
        group = stack.pop()
        order.append(group)
        ready = []
        for reader in above[group]:
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
        stack.extend(sorted(ready, key=lambda g: (rank(g), -g)))
    return tuple(order)


def _few_alive(load: Workload) -> Order:
    """Of the groups that can come next the one after which the fewest bytes are alive."""
    below, above = load.edges
    written = np.bincount(load.writer, weights=load.tensor_bytes, minlength=load.groups).tolist()
    reads: list[list[int]] = [[] for _ in range(load.groups)]
    unread = [0] * load.readers.number
    for thing, group in zip(load.readers.thing.tolist(), load.readers.group.tolist(), strict=True):
        reads[group].append(thing)
        unread[thing] += 1
    size = load.tensor_bytes.tolist()
    waits = [len(groups) for groups in below]

    def growth(group: int) -> float:
        return float(written[group] - sum(size[t] for t in reads[group] if unread[t] == 1))

    ready = [(growth(group), group) for group, number in enumerate(waits) if number == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        known, group = heapq.heappop(ready)
        # What others have read meanwhile makes a group cheaper, never dearer: look again before it is taken.
        if (now := growth(group)) < known and ready and now > ready[0][0]:
            heapq.heappush(ready, (now, group))
            continue
        order.append(group)
        for tensor in reads[group]:
            unread[tensor] -= 1
        for reader in above[group]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, (growth(reader), reader))
    return tuple(order)
