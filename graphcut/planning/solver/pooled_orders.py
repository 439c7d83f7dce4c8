"""The prefixes of several topological orders as one set of boundaries.

A partition may then take one boundary from one order and the next from another, if the second contains the first. Near
a good partition there are more: the union, and the intersection, of two order ideals is an order ideal.

Example: groups 0, 1, 2 without edges. The order 0, 1, 2 has the prefix {0, 1}, the order 2, 0, 1 the prefix {2}. Next
to the cut {0} the second gives {0, 2}, which is a prefix of neither:

    >>> prefixes_of((0, 1, 2))
    [0, 1, 3, 7]
    >>> sorted(between_cuts([0b100], [0b000, 0b001, 0b111]))
    [0, 1, 4, 5, 7]
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, islice

from ..instance import Workload
from .order_ideals import IdealTables, tables_over
from .topological_orders import Order

Ideal = int  #: an order ideal as a set of bits.


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


def pooled_tables(load: Workload, ideals: Iterable[Ideal], most: int) -> IdealTables:
    """The tables over the first `most` of the ideals, the empty one, and the one of all groups."""
    chosen = {*islice(dict.fromkeys(ideals), most), 0, (1 << load.groups) - 1}
    return tables_over(load, sorted(chosen, key=lambda ideal: (ideal.bit_count(), ideal)))
