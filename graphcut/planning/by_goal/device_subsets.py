"""Plans for many different devices: which sets of devices the chain DP may use, and how a plan is improved.

The state of the chain DP is the set of devices used so far: there are 2**n sets of n different devices. With too many,
it may use only small sets, and the first devices of each of a few orders of all devices. The plan is then the best one
for all of these together; exchanging devices in its own order gives the next orders, until no exchange improves it.

Example: of the devices 0, 1, 2 the order 2, 0, 1 allows the sets {}, {2}, {0, 2} and {0, 1, 2}. A plan may then have
one part on 2, or one on 2 and the next on 0, or one on each of 2, 0 and 1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from ...solving.chain_dp import DeviceCounts
from ...solving.cost_tables import DeviceClass
from ...solving.instance import Floats

DeviceOrder = tuple[int, ...]  #: the class of each device, in the order in which the parts may use them.

_REACH: Final = 600
"""An exchange is between devices that are at most this number, over the number of devices, apart in the order."""


def first_orders(classes: Sequence[DeviceClass], work: Floats) -> Iterator[DeviceOrder]:
    """All devices by their time for all groups, by their memory, and by their links; the best first, and the worst."""
    for row in (work.sum(axis=1), [-c.memory_bytes for c in classes], [c.s_per_byte for c in classes]):
        best_first = sorted(range(len(classes)), key=lambda c: (row[c], classes[c].s_per_byte, c))
        order = tuple(c for c in best_first for _ in classes[c].devices)
        yield from (order, order[::-1])


def next_orders(used: Sequence[int], counts: DeviceCounts) -> Iterator[DeviceOrder]:
    """The devices of a plan and then the idle ones; and this order with two devices of different classes exchanged."""
    idle = Counter(dict(enumerate(counts)))
    idle.subtract(used)
    order = (*used, *sorted(idle.elements()))
    yield order
    for i, j in combinations(range(len(order)), 2):
        if i < len(used) and order[i] != order[j] and j - i <= max(1, _REACH // len(order)):
            yield (*order[:i], order[j], *order[i + 1 : j], order[i], *order[j + 1 :])


def small_sets(counts: DeviceCounts, most: int) -> frozenset[DeviceCounts]:
    """All sets of no device, of one, and so on, as far as there are no more than `most`."""
    found, level = set[DeviceCounts](), {tuple(0 for _ in counts)}
    while level and len(found) + len(level) <= most:
        found |= level
        larger = {(*used[:c], used[c] + 1, *used[c + 1 :]) for used in level for c in range(len(counts))}
        level = {used for used in larger if all(map(int.__le__, used, counts))}
    return frozenset(found)


def sets_along(orders: Iterable[DeviceOrder], classes: int) -> frozenset[DeviceCounts]:
    """The first devices of each order, as numbers of devices of each class."""
    one = np.eye(classes, dtype=np.int64)
    used = (np.cumsum(one[list(order)], axis=0).tolist() for order in orders)
    return frozenset(map(tuple, chain([[0] * classes], *used)))
