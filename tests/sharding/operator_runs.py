"""Factors of a node, found by running it by itself in ONNX Runtime on halves of its inputs.

Every choice of an axis for some inputs, and of integer attributes that are halved with them, is tried. It is a factor
if the other inputs stay whole and halves of those give halves of all outputs, or summands of the only output. A wrong
one must not pass by chance:

- Values are random and grow along each axis, so that no half is like the other, nor is its mean.
- Halves of an output that are equal, or a summand of zeros, show nothing: then there is no factor.
- What holds for one set of inputs must hold for the others, which have other values, and other sizes where these are
  open; and for units that are not adjacent.

That it holds for all values is not shown: what is found is measured, not proven. Segments of an axis, inputs that are
added once, and constants that change with the size are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, combinations, product
from math import gcd
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnx import AttributeProto, ModelProto, ValueInfoProto

from graphcut.core.errors import RunError
from graphcut.running.stage import SessionConfig, session_options
from graphcut.sharding.axes.factors import Factor, Place
from graphcut.sharding.rank_copies import set_attributes

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Any]
#: differences that rounding may make, of the largest value.
_SAME: Final = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-9}
_MOST_CHOICES: Final = 20_000
_MOST_WORK: Final = 1 << 35  #: bytes of the inputs, times the number of choices.
_CONFIG: Final = SessionConfig(optimize="none", threads=1, is_checked=False)


class OperatorRuns:
    """A node that is run by itself."""

    def __init__(self, model: ModelProto) -> None:
        """`model` has one node, and as inputs what may be halved, along axes of a fixed even size."""
        self._model = model
        self._node = model.graph.node[0]
        self._names = {list(self._node.input).index(value.name): value.name for value in model.graph.input}

    def run(self, feeds: Feeds, counts: Sequence[str] = (), units: int = 1, all_units: int = 1) -> list[Array]:
        """Its outputs, with the attributes `counts` for some units.

        A RunError if ONNX Runtime refuses the inputs, or an output is no tensor.
        """
        model = deepcopy(self._model)
        set_attributes(model.graph.node[0], Factor(all_units, (), counts=tuple(counts)), (units, all_units), [])
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
                dim.dim_value = size
        del model.graph.output[:]
        model.graph.output.extend(ValueInfoProto(name=name) for name in self._node.output if name)
        options = session_options(_CONFIG)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            outputs = session.run(None, feeds)
        except Exception as error:
            raise RunError(str(error)) from error
        if not all(isinstance(value, np.ndarray | np.generic) for value in outputs):
            raise RunError("an output is no tensor")
        return [np.asarray(value) for value in outputs]

    def factors(self, sets: Sequence[Feeds]) -> tuple[Factor, ...]:
        """The smallest factors that hold for each set of inputs, each with as many units as possible.

        A RunError if there are too many choices, or ONNX Runtime refuses the inputs.
        """
        choices = sorted(self._choices(), key=lambda choice: len(choice[0]) + len(choice[1]))
        if not all(isinstance(value, np.ndarray) for feeds in sets for value in feeds.values()):
            raise RunError("an input has a type that arrays can't have")
        sets = [{name: _grown(value) for name, value in feeds.items()} for feeds in sets]
        size = max(sum(value.nbytes for value in feeds.values()) for feeds in sets)
        if len(choices) > _MOST_CHOICES or len(choices) * size > _MOST_WORK:
            raise RunError(f"{len(choices):,} ways to halve it are too many to try")
        wholes = [(feeds, self.run(feeds)) for feeds in sets]
        found: list[Factor] = []
        for reads, counts in choices:
            factor = self._halved(reads, counts, *wholes[0])
            if factor is None or any(_is_within(other, factor) for other in found):
                continue
            if all(self._holds(factor, *whole) for whole in wholes) and self._shows(factor, wholes):
                found.append(factor)
        return tuple(self._with_most_units(factor, wholes) for factor in found)

    def _choices(self) -> Iterator[tuple[tuple[Place, ...], tuple[str, ...]]]:
        """Each choice of axes of inputs, at least one, and of attributes."""
        axes = []
        for slot, value in zip(self._names, self._model.graph.input, strict=True):
            sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            even = [Place(slot, axis) for axis, n in enumerate(sizes) if n and n % 2 == 0]
            axes.append([None, *even])
        counts = [a.name for a in self._node.attribute if (number := _count_of(a)) and number % 2 == 0]
        subsets = list(chain.from_iterable(combinations(counts, n) for n in range(len(counts) + 1)))
        for places, subset in product(product(*axes), subsets):
            if reads := tuple(place for place in places if place):
                yield reads, subset

    def _halved(
        self, reads: tuple[Place, ...], counts: tuple[str, ...], feeds: Feeds, whole: list[Array]
    ) -> Factor | None:
        """The factor of two units that these axes would be, by the shapes of what the first half gives."""
        factor = Factor(2, reads, counts=counts)
        try:
            half = self._part(factor, feeds, [0])
        except RunError:
            return None
        if [value.shape for value in half] == [value.shape for value in whole]:
            return factor if len(whole) == 1 else None
        writes = []
        slots = [slot for slot, name in enumerate(self._node.output) if name]
        for slot, a, b in zip(slots, half, whole, strict=True):
            other = [axis for axis, (n, m) in enumerate(zip(a.shape, b.shape, strict=False)) if n != m]
            if a.ndim != b.ndim or len(other) != 1 or 2 * a.shape[other[0]] != b.shape[other[0]]:
                return None
            writes.append(Place(slot, other[0]))
        return factor._replace(writes=tuple(writes))

    def _part(self, factor: Factor, feeds: Feeds, units: Sequence[int]) -> list[Array]:
        axes = {self._names[place.slot]: place.axis for place in factor.reads}
        parts = {name: _units_of(feeds[name], axis, factor.units, units) for name, axis in axes.items()}
        return self.run({**feeds, **parts}, factor.counts, len(units), factor.units)

    def _holds(self, factor: Factor, feeds: Feeds, whole: list[Array]) -> bool:
        """Whether the first unit and the others, and every other unit and the rest, give what they should."""
        numbers = range(factor.units)
        for units in ([*numbers[:1]], [*numbers[1:]]), ([*numbers[::2]], [*numbers[1::2]]):
            try:
                parts = [self._part(factor, feeds, one) for one in units]
            except RunError:
                return False
            if factor.is_contracted:
                if not _is_equal(parts[0][0] + parts[1][0], whole[0]):
                    return False
            elif not all(_are_units(factor, part, whole, one) for part, one in zip(parts, units, strict=True)):
                return False
        return True

    def _shows(self, factor: Factor, wholes: Sequence[tuple[Feeds, list[Array]]]) -> bool:
        """Whether the halves of each output differ, or each summand is needed, for some inputs."""
        for number, place in enumerate(factor.writes):
            halves = ([_units_of(whole[number], place.axis, 2, [i]) for i in (0, 1)] for _, whole in wholes)
            if all(_is_equal(*pair) for pair in halves):
                return False
        sums = (self._part(factor, feeds, [i])[0] for feeds, _ in wholes for i in (0, 1) if factor.is_contracted)
        return all(value.any() for value in sums)

    def _with_most_units(self, factor: Factor, wholes: Sequence[tuple[Feeds, list[Array]]]) -> Factor:
        feeds, whole = wholes[0]
        sizes = [feeds[self._names[place.slot]].shape[place.axis] for place in factor.reads]
        sizes += [whole[number].shape[place.axis] for number, place in enumerate(factor.writes)]
        sizes += [_count_of(attribute) for attribute in self._node.attribute if attribute.name in factor.counts]
        most = gcd(*sizes)
        for units in (n for n in range(most, 2, -2) if most % n == 0):
            finer = factor._replace(units=units)
            if all(self._holds(finer, *pair) for pair in wholes):
                return finer
        return factor


def _grown(value: Array) -> Array:
    """Floats that grow along each axis, to at most twice as much, and stay below what they were."""
    for axis, size in enumerate(value.shape if value.dtype.kind == "f" else ()):
        growth = (np.arange(size) + size) / (2 * size)
        value = value * growth.reshape(-1, *[1] * (value.ndim - axis - 1)).astype(value.dtype)
    return value


def _count_of(attribute: AttributeProto) -> int:
    """What an attribute may count, of several numbers their divisor; 0 if it is no number."""
    return attribute.i if attribute.type == AttributeProto.INT else gcd(*attribute.ints)


def _is_within(small: Factor, large: Factor) -> bool:
    is_part = {*small.reads} <= {*large.reads} and {*small.counts} <= {*large.counts}
    return is_part and small.writes == large.writes


def _units_of(value: Array, axis: int, all_units: int, units: Sequence[int]) -> Array:
    item = value.shape[axis] // all_units
    places = np.array(units)[:, None] * item + np.arange(item)
    found: Array = np.take(value, places.reshape(-1), axis)
    return found


def _are_units(factor: Factor, part: list[Array], whole: list[Array], units: Sequence[int]) -> bool:
    return all(
        _is_equal(part[number], _units_of(whole[number], place.axis, factor.units, units))
        for number, place in enumerate(factor.writes)
    )


def _is_equal(found: Array, want: Array) -> bool:
    if found.shape != want.shape or want.dtype.kind != "f":
        return np.array_equal(found, want)
    finite = np.abs(want[np.isfinite(want)])
    allowed = _SAME[want.dtype.name] * float(finite.max(initial=0))
    return bool(np.allclose(found, want, 0, allowed, equal_nan=True))
