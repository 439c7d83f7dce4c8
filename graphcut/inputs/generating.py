"""Generated inputs for a model: sizes that agree with each other, values that the operators accept, one seed."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from onnx import TensorProto, TypeProto

from ..core.errors import ModelError, UsageError, did_you_mean
from ..core.tensors import ELEMENT_TYPES, UNDEFINED
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import is_external
from .consumers import Consumer, consumers_of
from .input_files import near_default
from .sizes import DimensionSizes, Fallback, choose_sizes
from .survey import InputSurvey
from .tensor_values import PACKED, TensorValues, to_dtype

Feeds = dict[str, Any]
"""The inputs of a model by name: arrays; lists for sequences, dicts for maps, None for an optional without value."""

_WORDS: Final = ("ada", "bob", "eve", "ivy")
_MAX_ELEMENTS: Final = 1 << 40  #: an input with more elements is larger than any memory.
_LARGEST_DEFAULT_BYTES: Final = 1 << 20
"""A larger default is a weight that the exporter listed among the inputs; it is not fed."""


def generate_inputs(model: Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None, variant: int = 0) -> Feeds:
    """Values for the inputs of `model`, chosen so that as many models as possible accept them.

    Floats are between -1 and 1. Integers are valid indices, positions, lengths or shapes where the graph or the name
    of the input shows what they are for; otherwise 0 and 1. Masks are ones. No large weight is read.

    Args:
        model: the model.
        seed: the same seed gives the same values.
        sizes: numbers for open sizes, by symbol, or as `input[0]` for an axis without a symbol. They override
            `model.dims`.
        variant: each variant has different values, and different sizes where sizes are free. Variants from 1 on also
            feed the inputs that have a default, with values near it.

    Returns:
        The inputs by name, in the order of the model, as `running.values.to_value` takes them.

    Raises:
        UsageError: `sizes` names a dimension that the inputs do not have, or an input is larger than any memory.
        ModelError: an input has a type for which no values can be generated.
    """
    survey = InputSurvey(model)
    chosen = choose_sizes(survey, given=given_sizes(survey, sizes or {}), variant=variant, fallback=Fallback())
    return make_feeds(survey, chosen, seed=seed, variant=variant, fallback=Fallback())


def given_sizes(survey: InputSurvey, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that the user gave, `model.dims` included. A UsageError if the inputs have no such dimension."""
    sums = [dim for dims in survey.dims.values() for dim in dims if isinstance(dim, str)]
    for name in sizes:
        if name not in {*survey.open_sizes, *sums, *survey.model.dims}:
            raise UsageError(
                f"no input of {survey.model.path.name} has a dimension {name!r}",
                hint=f"{did_you_mean(name, survey.open_sizes)}open sizes: {', '.join(survey.open_sizes) or 'none'}",
            )
    return {**survey.model.dims, **sizes}


def make_feeds(survey: InputSurvey, sizes: DimensionSizes, *, seed: int, variant: int, fallback: Fallback) -> Feeds:
    """Values for the inputs, with the chosen sizes."""
    return dict(_Generator(survey, TensorValues(survey, sizes, variant, fallback), seed, variant).feeds())


@dataclass(frozen=True)
class _Generator:
    survey: InputSurvey
    numbers: TensorValues
    seed: int
    variant: int

    def feeds(self) -> Iterator[tuple[str, object]]:
        defaults = {tensor.name: tensor for tensor in self.survey.model.proto.graph.initializer}
        for name, kind in self.survey.types.items():
            default = defaults.get(name)
            if default is None:
                yield name, self._value(name, kind)
            elif self.variant and self._may_be_fed(default):
                yield name, near_default(default, self._random(name))

    def _may_be_fed(self, default: TensorProto) -> bool:
        is_small = not is_external(default) and default.ByteSize() <= _LARGEST_DEFAULT_BYTES
        return is_small and self.survey.tensors[default.name].dtype not in PACKED

    def _random(self, name: str, index: int = 0) -> np.random.Generator:
        # Each input has a generator of its own: its values stay the same when another input is added or removed.
        return np.random.default_rng([self.seed, self.variant, zlib.crc32(name.encode()), index])

    def _value(self, name: str, kind: TypeProto, index: int = 0) -> object:
        match kind.WhichOneof("value"):
            case "tensor_type":
                return self._tensor(name, self._random(name, index))
            case "sequence_type":
                inner = kind.sequence_type.elem_type
                return [self._value(name, inner, index) for index in range(2 + self.variant)]
            case "optional_type":
                return None if self._may_be_missing(name) else self._value(name, kind.optional_type.elem_type)
            case "map_type" if tensor_of_type(name, kind.map_type.value_type).dtype in ELEMENT_TYPES:
                return self._map(name, kind)
            case other:
                raise ModelError(
                    f"no values can be generated for input {name!r} of type {other}",
                    hint="give values with `inputs`, or verify the structure alone with `structural_only=True`",
                )

    def _may_be_missing(self, name: str) -> bool:
        """Leave an optional empty in every second variant if the model tests whether it has a value."""
        readers = self.survey.nodes.readers.get(name, ())
        return self.variant % 2 == 1 and any(node.op == "OptionalHasElement" for node, _ in readers)

    def _tensor(self, name: str, random: np.random.Generator) -> object:
        dtype, shape = self.survey.tensors[name].dtype, self.numbers.sizes.shapes[name]
        if prod(shape) > _MAX_ELEMENTS:
            message = f"no values can be generated for input {name!r}: it has the shape {list(shape)}"
            raise UsageError(message, hint="give smaller sizes with `dims`, or values with `inputs`")
        if dtype == UNDEFINED:
            raise ModelError(
                f"input {name!r} has no type, so no values can be generated", hint="give them with `inputs`"
            )
        if dtype == "string":
            words = random.choice(self._words(name), shape)
            return np.asarray(words, dtype=object)
        return to_dtype(self.numbers.draw(name, random), dtype)

    def _words(self, name: str) -> Sequence[str]:
        consumers = self.survey.consumers[name]
        if any(consumer.node.op == "Cast" for consumer in consumers):  # to numbers
            return ("1", "2", "3")
        return _vocabulary(consumers) or _WORDS

    def _map(self, name: str, kind: TypeProto) -> dict[object, object]:
        words = _vocabulary(consumers_of(name, 0, self.survey.nodes)) or _WORDS
        is_by_word = tensor_of_type(name, kind).dtype.startswith("map(string")
        dtype = tensor_of_type(name, kind.map_type.value_type).dtype
        numbers = self._random(name).uniform(-1, 1, len(words))
        values = [str(number) for number in numbers] if dtype == "string" else numbers.astype(dtype).tolist()
        return dict(zip(words if is_by_word else range(len(words)), values, strict=True))


def _vocabulary(consumers: Sequence[Consumer]) -> list[str]:
    """The strings that an operator lists in an attribute, such as the keys of a LabelEncoder."""
    lists = (attribute.strings for consumer in consumers for attribute in consumer.node.attributes if attribute.strings)
    return [word.decode() for word in next(lists, ())]
