"""Topological orders of the groups along which a chain of parts is looked for.

An acyclic division into parts is a row of consecutive intervals of *some* topological order, so a search along one
order is exact for that order and misses only what other orders have. Four orders are enough for most models; for small
ones random depth-first orders follow until a plan meets its lower bound.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Final

from .instance import Workload

Order = tuple[int, ...]
_MOST_REPEATED: Final = 8  #: stop after so many random orders in a row that were seen before.


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
    generator = random.Random(0)  # noqa: S311 - the same orders each time
    priority = [0.0] * load.groups
    while True:
        yield _depth_first(predecessors, successors, priority)
        yield tuple(reversed(_depth_first(successors, predecessors, priority)))
        if not any(priority):  # in the first round
            yield _fewest_alive(load)
        priority = [generator.random() for _ in range(load.groups)]


def kahn(
    predecessors: Sequence[Collection[int]],
    successors: Sequence[Collection[int]],
    push: Callable[[Iterable[int]], None],
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

    def push(groups: Iterable[int]) -> None:
        stack.extend(sorted(groups, key=lambda group: (priority[group], -group)))

    return kahn(predecessors, successors, push, stack.pop)


def _fewest_alive(load: Workload) -> Order:
    """Greedy: of the ready groups, the one after which the fewest bytes are alive."""
    written, reads = load.written_bytes.tolist(), load.readers.items_of_groups(load.groups)
    unread, size = load.readers.sizes.tolist(), load.tensor_bytes.tolist()
    ready: list[tuple[float, int]] = []

    def growth(group: int) -> float:
        return float(written[group] - sum(size[t] for t in reads[group] if unread[t] == 1))

    def push(groups: Iterable[int]) -> None:
        for group in groups:
            heappush(ready, (growth(group), group))

    def pop() -> int:
        known, group = heappop(ready)
        # Reads of other groups since it was queued can only make its growth smaller: check before taking it.
        while (now := growth(group)) < known and ready and now > ready[0][0]:
            known, group = heapreplace(ready, (now, group))
        for tensor in reads[group]:
            unread[tensor] -= 1
        return group

    return kahn(*load.edges, push, pop)
