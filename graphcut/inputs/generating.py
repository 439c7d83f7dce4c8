"""Inputs made up for a model, from a seed: of sizes that agree, with values that it can work with."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..core.errors import ModelError, UsageError
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import is_external
from .consumers import Use, uses_of
from .dtypes import PACKED, as_elements
from .input_files import near_default
from .sizes import DimensionSizes, Guess, choose
from .survey import Survey, survey
from .tensor_values import Numbers

if TYPE_CHECKING:
    from onnx import TensorProto, TypeProto

Feeds = dict[str, Any]
"""The inputs of a model by name: arrays; lists for sequences, dicts for maps, None for an optional without value."""

_WORDS: Final = ("ada", "bob", "eve", "ivy")
_LARGEST_DEFAULT_BYTES: Final = 1 << 20
"""A larger default is a weight that an exporter listed among the inputs; it stays as it is."""


def generate(model: Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None, variant: int = 0) -> Feeds:
    """Values for the inputs of `model`, made so that as many models as possible take them.

    Floats are small. Integers are indices inside what they point into, positions, lengths, shapes that hold all
    elements, wherever the graph or a name tells; else 0 and 1. Masks are ones. Large weights are not read.

    Args:
        model: the model.
        seed: the same seed gives the same values.
        sizes: numbers for open sizes, by symbol, or as `input[0]` for an axis without one. They go before those of
            `model.dims`.
        variant: each has other values, and other sizes wherever these are free. From 1 on, inputs that have a default
            are fed too: with values near it.

    Returns:
        The inputs by name, in the order of the model, as `running.values.to_value` takes them.

    Raises:
        UsageError: `sizes` names a dimension that the inputs do not have.
        ModelError: an input is of a type for which nothing can be made up.
    """
    known = survey(model)
    chosen = choose(known, given=given_sizes(known, sizes or {}), variant=variant, guess=Guess())
    return make_feeds(known, chosen, seed=seed, variant=variant, guess=Guess())


def given_sizes(known: Survey, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The numbers that a user wants, those of `model.dims` included.

    Raises:
        UsageError: the inputs have no such dimension.
    """
    sums = [dim for dims in known.dims.values() for dim in dims if isinstance(dim, str)]
    for name in sizes:
        if name not in {*known.places, *sums, *known.model.dims}:
            close = get_close_matches(name, known.places, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"no input of {known.model.path.name} has a dimension {name!r}",
                hint=f"{guess}open sizes: {', '.join(known.places) or 'none'}",
            )
    return {**known.model.dims, **sizes}


def make_feeds(known: Survey, sizes: DimensionSizes, *, seed: int, variant: int, guess: Guess) -> Feeds:
    """Values for the inputs, of the sizes that were chosen."""
    return dict(_Making(known, Numbers(known, sizes, variant, guess), seed, variant).feeds())


@dataclass(frozen=True)
class _Making:
    known: Survey
    numbers: Numbers
    seed: int
    variant: int

    def feeds(self) -> Iterator[tuple[str, object]]:
        defaults = {tensor.name: tensor for tensor in self.known.model.proto.graph.initializer}
        for name, kind in self.known.types.items():
            default = defaults.get(name)
            if default is None:
                yield name, self._value(name, kind)
            elif self.variant and self._may_be_fed(default):
                yield name, near_default(default, self._random(name))

    def _may_be_fed(self, default: TensorProto) -> bool:
        is_small = not is_external(default) and default.ByteSize() <= _LARGEST_DEFAULT_BYTES
        return is_small and self.known.tensors[default.name].dtype not in PACKED

    def _random(self, name: str, place: int = 0) -> np.random.Generator:
        # Each input draws for itself, so that its values stay when another input comes or goes.
        return np.random.default_rng([self.seed, self.variant, zlib.crc32(name.encode()), place])

    def _value(self, name: str, kind: TypeProto, place: int = 0) -> object:
        match kind.WhichOneof("value"):
            case "tensor_type":
                return self._tensor(name, self._random(name, place))
            case "sequence_type":
                inner = kind.sequence_type.elem_type
                return [self._value(name, inner, place) for place in range(2 + self.variant)]
            case "optional_type":
                return None if self._may_be_missing(name) else self._value(name, kind.optional_type.elem_type)
            case "map_type":
                return self._map(name, kind)
            case other:
                raise ModelError(
                    f"no values can be made up for input {name!r}, which is of {other}",
                    hint="no part that reads it can be run either; prove the cut with --structural",
                )

    def _may_be_missing(self, name: str) -> bool:
        """Leave an optional empty every other time, where the model asks whether there is a value."""
        readers = self.known.steps.readers.get(name, ())
        return self.variant % 2 == 1 and any(step.op == "OptionalHasElement" for step, _ in readers)

    def _tensor(self, name: str, random: np.random.Generator) -> object:
        dtype = self.known.tensors[name].dtype
        if dtype == "string":
            words = random.choice(self._words(name), self.numbers.sizes.shapes[name])
            return np.asarray(words, dtype=object)
        return as_elements(self.numbers.draw(name, random), dtype)

    def _words(self, name: str) -> Sequence[str]:
        uses = self.known.uses[name]
        if any(use.step.op == "Cast" for use in uses):  # to numbers
            return ("1", "2", "3")
        return _vocabulary(uses) or _WORDS

    def _map(self, name: str, kind: TypeProto) -> dict[object, object]:
        words = _vocabulary(uses_of(name, 0, self.known.steps)) or _WORDS
        is_by_word = tensor_of_type(name, kind).dtype.startswith("map(string")
        dtype = tensor_of_type(name, kind.map_type.value_type).dtype
        numbers = self._random(name).uniform(-1, 1, len(words))
        values = [str(number) for number in numbers] if dtype == "string" else numbers.astype(dtype).tolist()
        return dict(zip(words if is_by_word else range(len(words)), values, strict=True))


def _vocabulary(uses: Sequence[Use]) -> list[str]:
    """The words that a step knows."""
    lists = (attribute.strings for use in uses for attribute in use.step.attributes if attribute.strings)
    return [word.decode() for word in next(lists, ())]
