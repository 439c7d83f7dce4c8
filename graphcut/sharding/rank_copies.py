"""What a rank's copy of a node writes, by the factors of the node."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from onnx import AttributeProto, NodeProto

from ..loading.fingerprint import canonical
from ..loading.operations import Operation, Shape
from ..loading.slices import Runs, length
from .axes.factors import Bounds, Factor, Place, ShapeInput, SplitSizes, fixed
from .axes.layouts import segments_of
from .axes.rules import factors_of
from .meanings import Meaning, Numbers, PartialSum, Patched, Piece, piece_of, runs_of, units_of


class RankCopy(NamedTuple):
    """A copy of a node of the model that reads pieces."""

    operation: Operation  #: of the node of the model.
    node: NodeProto  #: the copy.
    pieces: Mapping[int, Piece]  #: the inputs of which it reads pieces.
    changed: Mapping[int, Patched | Numbers]  #: the inputs that are other numbers.
    dropped: frozenset[int]  #: the inputs that it omits.

    def written(self) -> tuple[Factor | None, list[Meaning] | None]:
        """The first factor of the node by which it is divided, and what its outputs are; None if there is none."""
        for number, factor in enumerate(factors_of(self.operation)):
            units = self._units(factor)
            if units is not None and (found := self._by(number, factor, units)) is not None:
                return factor, found
        return None, None

    def _units(self, factor: Factor) -> dict[int, Runs] | None:
        """The units of the factor that pieces have, by the labels of segments; None if it is not divided by it.

        Of labels of which all elements along the axis are equal it has as many units, the first ones. `_by` compares
        each piece with them.
        """
        if {place.slot for place in factor.reads} != self.pieces.keys():
            return None
        found: dict[int, Runs] = {}
        equal: list[tuple[Place, int, int]] = []
        for place in factor.reads:
            piece, size = self.pieces[place.slot], self._size(place, self.operation.reads)
            if piece.axis != place.axis:
                return None
            found |= {} if piece.is_uniform else units_of(piece, place, size, factor.units)
            equal += [(place, size, piece.size)] * piece.is_uniform
        if not factor.reads and isinstance(factor.change, ShapeInput):
            (place,) = factor.writes
            given = self.changed.get(factor.change.slot, ())
            size = given.sizes.get(place.axis, 0) if isinstance(given, Patched) else [*given, *[0] * 9][place.axis]
            equal = [(place, self._size(place, self.operation.writes), size)]
        for place, whole, size in equal:
            for label, start, end in segments_of(place, whole):
                own = (end - start) * size // whole
                found.setdefault(label, ((0, own if place.labels else own * factor.units // (end - start)),))
        return found

    def _by(self, number: int, factor: Factor, units: Mapping[int, Runs]) -> list[Meaning] | None:
        """What it writes if it has these units of a factor; None if it has other attributes or constants then."""
        operation = self.operation
        uniform = not factor.is_contracted and all(piece.is_uniform for piece in self.pieces.values())
        for place in factor.reads:
            runs = runs_of(place, self._size(place, operation.reads), factor.units, units)
            piece = self.pieces[place.slot]
            if length(runs) != piece.size or (runs != piece.runs and not piece.is_uniform):
                return None  # it has other elements, or in another order
        written = {}
        for place in factor.writes:
            runs = runs_of(place, self._size(place, operation.writes), factor.units, units)
            shape = operation.written(place.slot) or ()
            written[place.slot] = piece_of(operation.outputs[place.slot], place.axis, runs, shape, uniform=uniform)
        outputs = [slot for slot, name in enumerate(operation.outputs) if name]
        share = length(units.get(0, ())), factor.units
        if not self._has_constants(factor, units, written) or not self._has_attributes(factor, share, written):
            return None
        if not factor.is_contracted:
            return [written[slot] for slot in outputs] if written.keys() == set(outputs) and not self.dropped else None
        once = {slot for slot in factor.once if operation.has(slot)}
        if outputs != [0] or self.dropped not in ({*()}, once):
            return None
        added = int(bool(once) and not self.dropped)
        return [PartialSum(operation.outputs[0], number, factor.units, units[0], added, int(bool(once)))]

    def _size(self, place: Place, shapes: tuple[Shape | None, ...]) -> int:
        return fixed((shapes[place.slot] or ())[place.axis])

    def _has_attributes(self, factor: Factor, share: tuple[int, int], written: Mapping[int, Piece]) -> bool:
        """Whether its attributes are those of the node, and those that count units are in proportion."""
        expected = deepcopy(self.operation.node)
        set_attributes(expected, factor, share, [piece.size for _, piece in sorted(written.items())])
        return canonical(nameless(expected)) == canonical(nameless(self.node))

    def _has_constants(self, factor: Factor, units: Mapping[int, Runs], written: Mapping[int, Piece]) -> bool:
        """Whether its constant inputs are those of the node, changed as the number of units demands."""
        operation = self.operation
        match factor.change:
            case ShapeInput(slot):
                return self.changed.keys() <= {slot} and self._has_sizes(slot, factor, written[0].size)
            case SplitSizes() if operation.has(1):
                sizes = tuple(piece.size for _, piece in sorted(written.items()))
                return {**operation.values, **self.changed}.get(1) == sizes
            case Bounds(element):
                return self.changed.keys() <= {1, 2} and self._has_bounds(element, units)
            case _:  # none
                return not self.changed

    def _has_sizes(self, slot: int, factor: Factor, size: int) -> bool:
        """Whether its shape is that of the node, with `size` along the axis that is written in pieces."""
        out, (place,) = self.operation.written() or (), factor.writes
        own, given = self.operation.values.get(slot), self.changed.get(slot)
        numbers = given if isinstance(given, tuple) else own if given is None else None
        if numbers is not None and len(numbers) != len(out):
            return False
        read = {place.axis for place in factor.reads}
        for axis, dim in enumerate(out):
            number = numbers[axis] if numbers else given.sizes.get(axis) if isinstance(given, Patched) else None
            same = own is not None and number == own[axis]
            # In the shape of a Reshape, 0 copies the size of the input, which may be that of a piece.
            if axis == place.axis or (axis in read and number in {0, None}):
                if number != size or axis != place.axis:
                    return False
            elif number is not None and not same and number != dim:
                return False
        return True

    def _has_bounds(self, element: int, units: Mapping[int, Runs]) -> bool:
        """Whether it begins where the second segment does in a piece, and ends with it."""
        before, kept, after = (length(units.get(label, ())) for label in range(3))
        ends = []
        for slot in (1, 2):
            own = self.operation.values[slot]
            given = self.changed.get(slot, own)
            if not isinstance(given, tuple) or len(given) != len(own):
                return False
            if given != (*own[:element], given[element], *own[element + 1 :]):
                return False
            ends.append(given[element])
        return slice(*ends).indices(before + kept + after)[:2] == (before, before + kept)


def set_attributes(node: NodeProto, factor: Factor, share: tuple[int, int], sizes: Sequence[int]) -> None:
    """Make the attributes that depend on a factor those of some of all its units, and of outputs of these sizes."""
    units, all_units = share
    for attribute in node.attribute:
        if attribute.name in factor.counts and attribute.type == AttributeProto.INTS:
            attribute.ints[:] = [number * units // all_units for number in attribute.ints]
        elif attribute.name in factor.counts:
            attribute.i = attribute.i * units // all_units
        elif isinstance(factor.change, SplitSizes) and attribute.name == "split":
            attribute.ints[:] = sizes


def nameless(node: NodeProto) -> NodeProto:
    """A node without its name and those of its tensors."""
    copy = deepcopy(node)
    for field in ("name", "input", "output"):
        copy.ClearField(field)
    return copy
