"""Layouts: how an axis is laid out in segments, each of which is divided by itself.

The columns of a weight that gives queries, keys and values in one consist of three segments. A rank needs its part of
each, so the segments spread over factors to all axes that are divided alike.
"""

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

from ...core.graph import grouped
from ...loading.slices import Runs, joined
from .factors import Place

_Axis = TypeVar("_Axis", bound=Hashable)
_MAX_SEGMENTS: Final = 64


class Layout(NamedTuple):
    """An axis of a tensor, and its segments."""

    axis: int  #: index of the axis.
    segments: tuple[int, ...]  #: sizes of its segments; each consists of as many units as the class has.

    @property
    def size(self) -> int:
        """The size of the axis."""
        return sum(self.segments)

    def sizes(self, units: int, all_units: int) -> list[int]:
        """The sizes that `units` of the axis have in each segment."""
        return [size // all_units * units for size in self.segments]

    def before(self, position: int, units: int, all_units: int) -> int:
        """Where a boundary of segments is in a piece that has only `units` of each segment."""
        sizes = zip(self.sizes(units, all_units), accumulate(self.segments), strict=True)
        return sum(size for size, end in sizes if end <= position)

    def runs(self, first: int, last: int, all_units: int) -> Runs:
        """The ranges of the axis with the units from `first` to before `last`, adjacent ones joined."""
        starts = accumulate(self.segments, initial=0)
        units = [(start, size // all_units) for start, size in zip(starts, self.segments, strict=False)]
        return joined((start + first * unit, start + last * unit) for start, unit in units)


def common_layouts(
    sizes: Mapping[_Axis, int], factors: Sequence[Sequence[tuple[_Axis, Place]]]
) -> dict[_Axis, tuple[int, ...]] | None:
    """The segments of each axis: the coarsest that are alike on all axes of each factor, whose places are given.

    None if there are none of at most 64 segments with whole sizes. `sizes` has the size of each axis of a class.

    Example: a weight of 12 columns gives queries and keys, which a Split cuts into 8 and 4.

        >>> product = [("w", Place(1, 1)), ("qk", Place(0, 1))]
        >>> cut = [("qk", Place(0, 1, (8, 4))), ("q", Place(0, 1)), ("k", Place(1, 1))]
        >>> common_layouts({"w": 12, "qk": 12, "q": 8, "k": 4}, [product, cut])
        {'w': (8, 4), 'qk': (8, 4), 'q': (8,), 'k': (4,)}
    """
    cuts: dict[_Axis, set[Fraction]] = {axis: set() for axis in sizes}
    users = grouped((axis, i) for i, places in enumerate(factors) for axis, _ in places)
    waiting = dict.fromkeys(i for i, places in enumerate(factors) if any(place.segments for _, place in places))
    while waiting:
        segments = [(axis, segments_of(place, sizes[axis])) for axis, place in factors[waiting.popitem()[0]]]
        inner = {  # the label of a segment, and where in it a cut is, as a fraction
            (label, (cut - start) / (end - start))
            for axis, own in segments
            for label, start, end in own
            for cut in cuts[axis]
            if start < cut < end
        }
        for axis, own in segments:
            new = {Fraction(start) for _, start, _ in own[1:]}
            new |= {a + part * (b - a) for n, a, b in own for m, part in inner if m == n}
            if not new <= cuts[axis]:
                cuts[axis] |= new
                if len(cuts[axis]) >= _MAX_SEGMENTS:
                    return None
                waiting |= dict.fromkeys(users[axis])
    if any(cut.denominator > 1 for found in cuts.values() for cut in found):
        return None
    boundaries = {axis: [0, *(int(cut) for cut in sorted(cuts[axis])), size] for axis, size in sizes.items()}
    return {axis: tuple(b - a for a, b in pairwise(found)) for axis, found in boundaries.items()}


def segments_of(place: Place, size: int) -> list[tuple[int, int, int]]:
    """The label, the begin and the end of each segment of an axis."""
    ends = accumulate(place.segments or (size,), initial=0)
    return [(place.labels[i] if place.labels else 0, *ends) for i, ends in enumerate(pairwise(ends))]
