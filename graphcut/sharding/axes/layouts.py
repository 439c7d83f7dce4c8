"""Layouts: how an axis is laid out in segments, each of which is divided by itself.

The columns of a weight that gives queries, keys and values in one consist of three segments. A rank needs its part of
each, so the segments spread over factors to all axes that are divided alike.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

from ...loading.slices import Runs, joined
from .factors import Place

_Key = TypeVar("_Key", bound=Hashable)
_MAX_SEGMENTS: Final = 64


class Layout(NamedTuple):
    """An axis of a tensor, and its segments."""

    axis: int  #: index of the axis.
    segments: tuple[int, ...]  #: sizes of its segments; each consists of as many units as the class has.

    @property
    def size(self) -> int:
        """The size of the axis."""
        return sum(self.segments)

    def size_of(self, units: int, all_units: int) -> int:
        """The size that `units` of the axis have."""
        return self.size // all_units * units if len(self.segments) == 1 else self.before(self.size, units, all_units)

    def before(self, position: int, units: int, all_units: int) -> int:
        """Where a border of segments is in a piece that has only `units` of each segment."""
        ends = accumulate(self.segments)
        return sum(size // all_units * units for size, end in zip(self.segments, ends, strict=True) if end <= position)

    def runs(self, first: int, last: int, all_units: int) -> Runs:
        """The ranges of the axis with the units from `first` to before `last`, adjacent ones joined."""
        starts = accumulate(self.segments, initial=0)
        units = [(start, size // all_units) for start, size in zip(starts, self.segments, strict=False)]
        return joined((start + first * unit, start + last * unit) for start, unit in units)


def common_layouts(
    sizes: Mapping[tuple[_Key, int], int], factors: Sequence[Sequence[tuple[_Key, Place]]]
) -> dict[tuple[_Key, int], tuple[int, ...]] | None:
    """The segments of each axis: the coarsest that are alike on all axes of each factor, whose places are given.

    None if there are none of at most 64 segments with whole sizes. `sizes` has the size of each axis of a class.

    Example: a weight of 12 columns gives queries and keys, which a Split cuts into 8 and 4.

        >>> product = [("w", Place(1, 1)), ("qk", Place(0, 1))]
        >>> cut = [("qk", Place(0, 1, (8, 4))), ("q", Place(0, 1)), ("k", Place(1, 1))]
        >>> common_layouts({("w", 1): 12, ("qk", 1): 12, ("q", 1): 8, ("k", 1): 4}, [product, cut])
        {('w', 1): (8, 4), ('qk', 1): (8, 4), ('q', 1): (8,), ('k', 1): (4,)}
    """
    cuts: dict[tuple[_Key, int], set[Fraction]] = {axis: set() for axis in sizes}
    users = defaultdict[tuple[_Key, int], list[int]](list)
    for i, places in enumerate(factors):
        for key, place in places:
            users[key, place.axis].append(i)
    waiting = deque(i for i, places in enumerate(factors) if any(place.segments for _, place in places))
    while waiting:
        places = factors[waiting.popleft()]
        inner = {
            (n, part) for key, place in places for n, part in _inner_cuts(cuts[key, place.axis], sizes, key, place)
        }
        for key, place in places:
            segments = segments_of(place, sizes[key, place.axis])
            new = {Fraction(start) for _, start, _ in segments[1:]}
            new |= {a + part * (b - a) for n, a, b in segments for m, part in inner if m == n}
            if not new <= cuts[key, place.axis]:
                cuts[key, place.axis] |= new
                if len(cuts[key, place.axis]) >= _MAX_SEGMENTS:
                    return None
                waiting.extend(users[key, place.axis])
    if any(cut.denominator > 1 for found in cuts.values() for cut in found):
        return None
    borders = {axis: [0, *(int(cut) for cut in sorted(cuts[axis])), size] for axis, size in sizes.items()}
    return {axis: tuple(b - a for a, b in pairwise(found)) for axis, found in borders.items()}


def segments_of(place: Place, size: int) -> list[tuple[int, int, int]]:
    """The label, the begin and the end of each segment of an axis."""
    ends = accumulate(place.segments or (size,), initial=0)
    return [(place.labels[i] if place.labels else 0, *ends) for i, ends in enumerate(pairwise(ends))]


def _inner_cuts(
    cuts: set[Fraction], sizes: Mapping[tuple[_Key, int], int], key: _Key, place: Place
) -> Iterator[tuple[int, Fraction]]:
    """Cuts inside segments: the label of the segment, and where in it, as a fraction."""
    for label, start, end in segments_of(place, sizes[key, place.axis]):
        yield from ((label, (cut - start) / (end - start)) for cut in cuts if start < cut < end)
