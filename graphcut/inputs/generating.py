"""Generated inputs for a model: sizes that agree with each other, values that the operators accept, one seed."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from onnx import TensorProto, TypeProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array

from ..core.errors import ModelError, UsageError, check_names
from ..core.tensors import ELEMENT_TYPES, NON_NUMPY_TYPES, UNDEFINED
from ..loading.expressions import evaluate
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type
from ..loading.subgraphs import is_external
from .consumers import INPUT_RULES, Consumer, consumers_of
from .input_files import near_default
from .parameters import index_bound, parameter_values
from .roles import INTEGERS, Role
from .shape_hints import Shape
from .sizes import DimensionSizes
from .survey import InputSurvey

Array = np.ndarray[Any, Any]
Generated = dict[str, Any]
"""The inputs of a model by name: arrays; lists for sequences, dicts for maps, None for an optional without value."""

PACKED: Final = frozenset(dtype for dtype, kind in ELEMENT_TYPES.items() if kind.array is None)
"""Types that numpy arrays cannot hold and ONNX Runtime accepts in its own values alone."""

_BYTES: Final[Mapping[str, tuple[int, int]]] = {"uint8": (0, 256), "int8": (-128, 128)}


_WORDS: Final = ("ada", "bob", "eve", "ivy")


def generate_inputs(
    model: Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None, variant: int = 0
) -> Generated:
    """Values for the inputs of `model`, chosen so that as many models as possible accept them.

    Floats are between -1 and 1. Integers are valid indices, positions, lengths or shapes where the graph or the name
    of the input shows what they are for; otherwise 0 and 1. Masks are ones. No large weight is read.

    Args:
        model: the model.
        seed: the same seed gives the same values.
        sizes: numbers for open sizes, by symbol, or as `input.0` for an axis without a symbol. They override
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
    return make_feeds(DimensionSizes(survey, given_sizes(survey, sizes or {}), variant), seed)


def given_sizes(survey: InputSurvey, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that the user gave, `model.dims` included. A UsageError if the inputs have no such dimension."""
    sums = [dim for dims in survey.dims.values() for dim in dims if isinstance(dim, str)]
    known = {*survey.open_sizes, *sums, *survey.model.dims}
    unknown, what = [name for name in sizes if name not in known], f"no input of {survey.model.title} has a dimension"
    check_names(unknown, survey.open_sizes, what, "open sizes:")
    return {**survey.model.dims, **sizes}


def make_feeds(sizes: DimensionSizes, seed: int) -> Generated:
    """Values for the inputs, with the chosen sizes."""
    return dict(_Generator(sizes.survey, sizes, seed).feeds())


@dataclass(frozen=True)
class _Generator:
    survey: InputSurvey
    sizes: DimensionSizes
    seed: int

    def feeds(self) -> Iterator[tuple[str, object]]:
        defaults = {tensor.name: tensor for tensor in self.survey.model.proto.graph.initializer}
        for name, kind in self.survey.types.items():
            default = defaults.get(name)
            if default is None:
                yield name, self._value(name, kind)
            elif self.sizes.variant and self._may_be_fed(default):
                yield name, near_default(default, self._random(name))

    def _may_be_fed(self, default: TensorProto) -> bool:
        # A larger one is a weight that the exporter listed among the inputs.
        is_small = not is_external(default) and default.ByteSize() <= 1 << 20
        return is_small and self.survey.tensors[default.name].dtype not in PACKED

    def _random(self, name: str, index: int = 0) -> np.random.Generator:
        # Each input has a generator of its own: its values stay the same when another input is added or removed.
        return np.random.default_rng([self.seed, self.sizes.variant, zlib.crc32(name.encode()), index])

    def _value(self, name: str, kind: TypeProto, index: int = 0) -> object:
        match kind.WhichOneof("value"):
            case "tensor_type":
                return self._tensor(name, self._random(name, index))
            case "sequence_type":
                inner = kind.sequence_type.elem_type
                return [self._value(name, inner, index) for index in range(2 + self.sizes.variant)]
            case "optional_type":
                return None if self._may_be_missing(name) else self._value(name, kind.optional_type.elem_type)
            case "map_type" if tensor_of_type(name, kind.map_type.value_type).dtype in ELEMENT_TYPES:
                return self._map(name, kind)
            case other:
                hint = "give values with `inputs`, or verify the structure alone with `structural_only=True`"
                raise ModelError(f"no values can be generated for input {name!r} of type {other}", hint=hint)

    def _may_be_missing(self, name: str) -> bool:
        """Leave an optional empty in every second variant if the model tests whether it has a value."""
        readers = self.survey.nodes.readers.get(name, ())
        return self.sizes.variant % 2 == 1 and any(node.op == "OptionalHasElement" for node, _ in readers)

    def _tensor(self, name: str, random: np.random.Generator) -> object:
        dtype, shape = self.survey.tensors[name].dtype, self.sizes.shapes[name]
        if prod(shape) > 1 << 40:  # larger than any memory
            message = f"no values can be generated for input {name!r}: it has the shape {list(shape)}"
            raise UsageError(message, hint="give smaller sizes with `dims`, or values with `inputs`")
        if dtype == UNDEFINED:
            text = f"input {name!r} has no type, so no values can be generated"
            raise ModelError(text, hint="give them with `inputs`")
        if dtype == "string":
            return np.asarray(random.choice(self._words(name), shape), dtype=object)
        return to_dtype(self._draw(name, random), dtype)

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

    def _draw(self, name: str, random: np.random.Generator) -> Array:
        """Numbers for input `name`, or for one tensor in it; not yet of its element type."""
        dtype, shape = self.survey.tensors[name].dtype, self.sizes.shapes[name]
        if dtype == "bool":
            return self._flags(name, shape, random)
        if (parameters := self._parameters(name, shape)) is not None:
            return parameters
        return self._integers(name, shape, random) if dtype in INTEGERS else self._floats(name, shape, random)

    def _flags(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        if self.survey.roles[name] == "mask":
            return np.ones(shape, bool)
        if prod(shape) == 1:  # each branch of an If runs in some variant; a decoder without cache takes another mask
            return np.full(shape, (self.sizes.variant % 2 == 0 or "cache" in name) != self.sizes.fallback.flipped)
        return random.integers(0, 2, shape).astype(bool)

    def _floats(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        role = self.survey.roles[name]
        if role in {"mask", "extent"}:
            return np.full(shape, 1 if role == "mask" else self.sizes.of("image"))
        if len(shape) <= 1 or role == "scale" or self._must_be_positive(name):
            return random.uniform(0.25, 1, shape)  # scales, speeds and thresholds
        return random.uniform(-1, 1, shape)

    def _integers(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        bound = self._bound(name)
        if (by_role := self._integers_by_role(name, shape)) is not None:
            return by_role if bound is None else by_role % bound
        if bound is not None:
            return random.integers(0, bound, shape)
        least = int(self._must_be_positive(name))
        if self.sizes.fallback.integers is not None:
            return np.full(shape, max(self.sizes.fallback.integers, least))
        if prod(shape) == 1:
            return np.ones(shape)
        low, high = _BYTES.get(self.survey.tensors[name].dtype, (0, 2))
        return random.integers(max(low, least), high + least, shape)

    def _integers_by_role(self, name: str, shape: tuple[int, ...]) -> Array | None:
        role = self.survey.roles[name]
        if role in {"length", "extent"} and self.sizes.fallback.integers is not None:
            return None
        along = np.arange(shape[-1]) if shape else np.array(0)
        numbers: Mapping[Role, Array | int] = {
            "position": self.sizes.past + along,
            "type": along * 2 // max(1, along.size),
            "mask": 1,
            "rate": 16_000,
            "total": self.sizes.past + self.sizes.of("sequence") - ("seqlens" in name),  # `seqlens_k` counts from zero
            "length": self._length(name),
            "extent": self.sizes.of("image"),
        }
        return np.broadcast_to(numbers[role], shape) if role in numbers else None

    def _length(self, name: str) -> int:
        if "min" in name:
            return 1
        if "max" in name:  # of a generation: longer than the prompt
            return self.sizes.past + self.sizes.of("sequence") + 2
        return self.sizes.past if "past" in name else self.sizes.length

    def _must_be_positive(self, name: str) -> bool:
        return any(one.key in INPUT_RULES.positive for one in self.survey.consumers[name])

    def _parameters(self, name: str, shape: tuple[int, ...]) -> Array | None:
        for consumer in self.survey.consumers[name]:
            found = parameter_values(consumer, shape, self._shape_of) if consumer.is_same else None
            if found is not None:
                return np.array(found).reshape(shape)
        return None

    def _bound(self, name: str) -> int | None:
        """The smallest size of an axis that `name` indexes; `None` if it is no index."""
        consumers = [consumer for consumer in self.survey.consumers[name] if consumer.is_same]
        bounds = (index_bound(consumer, self.survey.nodes, self._shape_of) for consumer in consumers)
        return min((bound for bound in bounds if bound is not None), default=None)

    def _shape_of(self, name: str) -> Shape | None:
        """The shape of any tensor of the model, with the chosen numbers."""
        if name in self.sizes.shapes:
            return self.sizes.shapes[name]
        tensor = self.survey.model.tensors.get(name)
        if tensor is None or tensor.shape is None:
            return self.survey.shape_of(name)
        return tuple(evaluate(dim, self.sizes.numbers) if isinstance(dim, str) else dim for dim in tensor.shape)


def _vocabulary(consumers: Sequence[Consumer]) -> list[str]:
    """The strings that an operator lists in an attribute, such as the keys of a LabelEncoder."""
    lists = (attribute.strings for consumer in consumers for attribute in consumer.node.attributes if attribute.strings)
    return [word.decode() for word in next(lists, ())]


def to_dtype(numbers: Array, dtype: str) -> object:
    """`numbers` as elements of type `dtype`, in the form that `running.values.to_value` takes.

    bfloat16 and 8-bit floats are returned as their bits, packed types as OrtValues. The type float8e8m0 has no sign: it
    holds ones.
    """
    if dtype not in {*PACKED, *NON_NUMPY_TYPES}:
        return np.asarray(numbers).astype(np.dtype(dtype))
    kind = ELEMENT_TYPES[dtype]
    numbers = np.ones(np.shape(numbers)) if dtype == "float8e8m0" else np.asarray(numbers)
    values = numbers.astype(tensor_dtype_to_np_dtype(kind.number))
    return values.view(kind.array) if kind.array else _packed(values, kind.number)


def _packed(values: Array, element: int) -> object:
    import onnxruntime as ort

    # ONNX Runtime takes the shape from the array, which therefore has unused bytes.
    raw, filled = from_array(values).raw_data, np.zeros(values.size, np.uint8)
    filled[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(filled.reshape(values.shape), element)
