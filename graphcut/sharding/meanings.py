"""What a tensor of a sharded model is in terms of the model: a slice, a part of a sum, a shape, or numbers.

The functions here say what a node makes of such tensors that only joins, cuts or adds them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..loading.operations import Shape
from ..loading.slices import Runs, joined, length
from .axes.factors import Place
from .axes.layouts import segments_of


@dataclass(frozen=True)
class Piece:
    """The elements of a tensor that some ranges of an axis have; all of it without ranges."""

    tensor: str
    axis: int = 0
    runs: Runs = ()
    is_uniform: bool = False  #: all elements along the axis are equal, so only the length of the ranges counts.

    @property
    def size(self) -> int:
        """The size of the axis."""
        return length(self.runs)


@dataclass(frozen=True)
class PartialSum:
    """A tensor as far as some units of a contracted factor add to it."""

    tensor: str
    factor: int  #: the index of the factor.
    units: int  #: how many there are.
    runs: Runs  #: those that are added.
    once: int  #: how often the inputs that are to be added once (a bias) are added.
    needed: int  #: how often they are to be.


@dataclass(frozen=True)
class Patched:
    """A shape that a node of the model writes, with other numbers for some axes."""

    tensor: str
    sizes: Mapping[int, int]  #: the numbers by element.
    true: Mapping[int, int]  #: what the model has there, as far as it is known.


Numbers = tuple[int, ...]
Meaning = Piece | PartialSum | Patched | Numbers


def piece_of(tensor: str, axis: int, runs: Iterable[tuple[int, int]], shape: Shape, *, uniform: bool = False) -> Piece:
    """A piece; all of the tensor if the ranges together are its axis."""
    found = joined(runs)
    size = shape[axis] if axis < len(shape) else None
    is_whole = found == ((0, size),) or (uniform and length(found) == size)
    return Piece(tensor) if is_whole else Piece(tensor, axis, found, uniform)


def sequence(runs: Runs, sizes: Sequence[int]) -> list[Runs] | None:
    """The ranges, taken in their order, as consecutive pieces of these sizes; None if they have another size."""
    if sum(sizes) != length(runs):
        return None
    starts = accumulate((end - begin for begin, end in runs), initial=0)  # if all ranges are counted together
    placed = [(begin - start, begin, end) for start, (begin, end) in zip(starts, runs, strict=False)]
    found = []
    for a, b in pairwise(accumulate(sizes, initial=0)):
        own = ((max(begin, shift + a), min(end, shift + b)) for shift, begin, end in placed)
        found.append(tuple((first, last) for first, last in own if first < last))
    return found


def sum_of(parts: Sequence[PartialSum]) -> Piece | PartialSum | None:
    """The sum of partial sums; None if they are of different tensors, or add something twice."""
    first, runs = parts[0], joined(sorted(run for part in parts for run in part.runs))
    alike = {(part.tensor, part.factor) for part in parts}
    if len(alike) > 1 or any(a[1] > b[0] for a, b in pairwise(runs)):
        return None
    once = sum(part.once for part in parts)
    if runs == ((0, first.units),) and once == first.needed:
        return Piece(first.tensor)
    return PartialSum(first.tensor, first.factor, first.units, runs, once, first.needed)


def patched(shape: Patched | Piece, mask: Numbers, sizes: Numbers) -> Patched | Piece:
    """A shape with `sizes` where the mask is 1."""
    old = shape if isinstance(shape, Patched) else Patched(shape.tensor, {}, {})
    new = {**old.sizes} | {i: size for i, size in enumerate(sizes) if mask[i]}
    new = {i: size for i, size in new.items() if old.true.get(i) != size}
    return Patched(old.tensor, new, old.true) if new else Piece(old.tensor)


def units_of(piece: Piece, place: Place, size: int, units: int) -> dict[int, Runs]:
    """For each label of the segments the units that a piece has, if it has whole ones, and the same of each segment.

    `place` is the axis, of this size, as a factor of so many units divides it. Elements of segments with labels are
    units. `runs_of` tells whether the piece has these units and nothing else.
    """
    found: dict[int, Runs] = {}
    for label, start, end in segments_of(place, size):
        item = 1 if place.labels else (end - start) // units
        inside = ((max(a, start) - start, min(b, end) - start) for a, b in piece.runs if a < end and b > start)
        found.setdefault(label, joined((a // item, b // item) for a, b in inside))
    return found


def runs_of(place: Place, size: int, units: int, found: Mapping[int, Runs]) -> Runs:
    """The ranges of an axis that have these units, by label."""
    runs: list[tuple[int, int]] = []
    for label, start, end in segments_of(place, size):
        item = 1 if place.labels else (end - start) // units
        runs += [(start + a * item, start + b * item) for a, b in found[label]]
    return joined(runs)
