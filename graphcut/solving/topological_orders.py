"""Topological orders of the groups along which a chain of parts is looked for.

An acyclic division into parts is a row of consecutive intervals of *some* topological order, so a search along one
order is exact for that order and misses only what other orders have. Four orders are enough for most models; for small
ones random depth-first orders follow until a plan meets its lower bound.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np

from .instance import Bools, Floats, Workload

Order = tuple[int, ...]
_MOST_STATES: Final = 8  #: see `fewest_runs`.
_MOST_REPEATED: Final = 8  #: stop after so many random orders in a row that were seen before.


def orders(load: Workload) -> Iterator[Order]:
    """Different topological orders: as given, depth first, its mirror, fewest bytes alive, then random ones.

    Where not every device can run every group, the one with the fewest changes of the fastest device comes first.
    Deterministic for a workload. Ends when random orders bring nothing new.
    """
    seen, repeated = set[Order](), 0
    for order in _all_orders(load):
        repeated = repeated + 1 if order in seen else 0
        if repeated > _MOST_REPEATED:
            return
        if not repeated:
            seen.add(order)
            yield order


def _all_orders(load: Workload) -> Iterator[Order]:
    predecessors, successors = load.edges
    if np.isinf(load.work).any() and load.is_ordered:
        yield tuple(group for _, run in fewest_runs(load, fastest(load.work)) for group in run)
    yield tuple(range(load.groups))
    generator = random.Random(0)  # noqa: S311 - the same orders each time
    priority = [0.0] * load.groups
    while True:
        yield _depth_first(predecessors, successors, priority)
        yield tuple(reversed(_depth_first(successors, predecessors, priority)))
        if not any(priority):  # in the first round
            yield _fewest_alive(load)
        priority = [generator.random() for _ in range(load.groups)]


def fastest(work: Floats) -> Bools:
    """`[c, g]`: whether no device class is faster than c for group g."""
    return np.asarray(np.isfinite(work) & (work <= work.min(axis=0)))


def fewest_runs(load: Workload, may_run: Bools) -> list[tuple[int, tuple[int, ...]]]:
    """The fewest runs of groups in a row on one device class, where class c may run group g if `may_run[c, g]`.

    Each run takes all groups that it can: to take more is never worse. So it is exact for two classes, where runs
    alternate; of more classes the 8 that have run most are followed at each step. Some class can run each group.

    Two classes, a chain of three groups, and group 3 beside it, which class 1 alone may run, as group 1:

    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[1.0] * 4] * 2, [(0, (1,), 4), (1, (2,), 4)])
    >>> fewest_runs(load, np.array([[True, False, True, False], [False, True, False, True]]))
    [(0, (0,)), (1, (1, 3)), (0, (2,))]
    """
    predecessors = load.edges[0]
    allowed = [np.flatnonzero(row).tolist() for row in may_run]
    states: list[tuple[frozenset[int], list[tuple[int, tuple[int, ...]]]]] = [(frozenset(), [])]
    while True:
        found: dict[frozenset[int], list[tuple[int, tuple[int, ...]]]] = {}
        for done, runs in states:
            for c in range(len(allowed)):
                taken, row = set(done), list[int]()
                for group in allowed[c]:
                    if group not in done and taken.issuperset(predecessors[group]):
                        taken.add(group)
                        row.append(group)
                if row:
                    found.setdefault(frozenset(taken), [*runs, (c, tuple(row))])
        states = sorted(found.items(), key=lambda state: -len(state[0]))[:_MOST_STATES]
        if len(states[0][0]) == load.groups:
            return states[0][1]


def kahn(
    predecessors: Sequence[Collection[int]],
    successors: Sequence[Collection[int]],
    push: Callable[[Sequence[int]], None],
    pop: Callable[[], int],
) -> Order:
    """A topological order of the vertices 0, 1, ... (Kahn, 1962): `pop` chooses among the ready ones that `push` got.

    A diamond 0 -> (1, 2) -> 3, the ready vertices on a stack:

    >>> stack = []
    >>> kahn([(), (0,), (0,), (1, 2)], [(1, 2), (3,), (3,), ()], stack.extend, stack.pop)
    (0, 2, 1, 3)
    """
    waits = [len(vertices) for vertices in predecessors]
    push([vertex for vertex, number in enumerate(waits) if number == 0])
    order: list[int] = []
    while len(order) < len(waits):
        order.append(pop())
        following = successors[order[-1]]
        for successor in following:
            waits[successor] -= 1
        push([successor for successor in following if waits[successor] == 0])
    return tuple(order)


def _depth_first(
    predecessors: Sequence[Collection[int]], successors: Sequence[Collection[int]], priority: Sequence[float]
) -> Order:
    """A group that became ready last comes next, of several the one of highest priority."""
    stack: list[int] = []

    def push(groups: Sequence[int]) -> None:
        stack.extend(sorted(groups, key=lambda group: (priority[group], -group)) if len(groups) > 1 else groups)

    return kahn(predecessors, successors, push, stack.pop)


def _fewest_alive(load: Workload) -> Order:
    """Greedy: of the ready groups, the one after which the fewest bytes are alive, by what is known as it gets ready.

    What others read meanwhile, so that it would free more, is not counted again.
    """
    written, reads = load.written_bytes.tolist(), load.readers.items_of_groups(load.groups)
    unread, size = load.readers.sizes.tolist(), load.tensor_bytes.tolist()
    ready: list[tuple[float, int]] = []

    def growth(group: int) -> float:
        return float(written[group] - sum(size[t] for t in reads[group] if unread[t] == 1))

    def push(groups: Sequence[int]) -> None:
        for group in groups:
            heappush(ready, (growth(group), group))

    def pop() -> int:
        _, group = heappop(ready)
        for tensor in reads[group]:
            unread[tensor] -= 1
        return group

    return kahn(*load.edges, push, pop)
