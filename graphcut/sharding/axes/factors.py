"""`Factor`: an axis of the loop nest of a node, along which its work can be divided."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd
from typing import NamedTuple

import msgspec

from ...core.tensors import Dim
from ...loading.operations import Operation, Shape


class Place(NamedTuple):
    """An axis of an input or output of a node, as a factor divides it."""

    slot: int  #: index of the input or output.
    axis: int  #: index of the axis, 0 or more.
    #: sizes of the segments that the axis consists of; each is divided by itself. Empty: the axis is one segment.
    segments: tuple[int, ...] = ()
    #: a number for each segment: those of one number have elements that belong together. Empty: all do.
    labels: tuple[int, ...] = ()


class ShapeInput(msgspec.Struct, frozen=True):
    """An input whose element `k` is the size of axis `k` of the first output (Reshape, Expand)."""

    slot: int


class SplitSizes(msgspec.Struct, frozen=True):
    """The sizes of the outputs of a Split: its input 1, or its attribute `split`."""


class Bounds(msgspec.Struct, frozen=True):
    """Where a Slice begins and ends: this element of its inputs 1 and 2."""

    element: int


class Factor(NamedTuple):
    """An axis of the loop nest of a node: of each input and output the axis that it is.

    It consists of `units`, and so does each segment of each place. For any set of units, the node computes these units
    of its outputs from these units of its inputs, and reads its other inputs whole. A factor without `writes` is
    contracted: the node's output is the sum of what it computes for sets of units that together are all.
    """

    units: int
    reads: tuple[Place, ...]
    writes: tuple[Place, ...] = ()
    counts: tuple[str, ...] = ()  #: attributes that are proportional to the number of units.
    once: tuple[int, ...] = ()  #: of a contracted factor: inputs that are added to the output, so only once.
    change: ShapeInput | SplitSizes | Bounds | None = None  #: constant inputs that depend on the number of units.

    @property
    def is_contracted(self) -> bool:
        """Whether outputs are summed."""
        return not self.writes


Rule = Callable[[Operation], Iterable[Factor]]
"""The factors of a node. An axis of a tensor that no factor names can't be divided there. Nor can a factor of one unit
or none, which a rule gives where a size is not fixed."""


def places(slots: Iterable[int], axis: int) -> tuple[Place, ...]:
    """One axis of several inputs or outputs."""
    return tuple(Place(slot, axis) for slot in slots)


def fixed(dim: Dim) -> int:
    """The size of an axis if it is a fixed number above 1, else 0: other axes are never divided."""
    return dim if isinstance(dim, int) and dim > 1 else 0


def axis_of(axis: int, shape: Shape) -> int:
    """The index of an axis from the front."""
    return axis % len(shape) if shape else 0


def axes_of_shape(o: Operation) -> range:
    """The axes of its input whose sizes a Shape node writes."""
    return range(len(o.read(0) or ()))[o.given("start", 0) : o.attributes.get("end")]


def moved(shape: Shape | None, places: Mapping[int, int]) -> Iterator[Factor]:
    """For axes of the first input the axis of the first output that each becomes."""
    dims = dict(enumerate(shape or ()))
    for axis, place in places.items():
        yield Factor(fixed(dims.get(axis)), (Place(0, axis),), (Place(0, place),))


def columns(size: int) -> int:
    """Units of the columns of a weight: four columns each, or two, or one, whatever divides all.

    ONNX Runtime computes a single column by another kernel, whose sums may have other bits.
    """
    return size // gcd(size, 4)
