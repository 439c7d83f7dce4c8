"""The numbers in one tensor: from the operators that read it, its role, or small random ones; and as its elements."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array

from ..core.tensors import ELEMENT_TYPES, NON_NUMPY_TYPES
from ..loading.expressions import evaluate
from .parameters import POSITIVE, index_bound, parameter_values
from .roles import INTEGERS, Role
from .shape_hints import Shape
from .sizes import DimensionSizes, Fallback
from .survey import InputSurvey

Array = np.ndarray[Any, Any]

PACKED: Final = frozenset(dtype for dtype, kind in ELEMENT_TYPES.items() if kind.array is None)
"""Types that numpy arrays cannot hold and ONNX Runtime accepts in its own values alone."""

_RATE: Final = 16_000
_BYTES: Final[Mapping[str, tuple[int, int]]] = {"uint8": (0, 256), "int8": (-128, 128)}
_UNCERTAIN: Final[frozenset[Role]] = frozenset({"length", "extent"})
"""Roles for which a fallback replaces the usual numbers."""


@dataclass(frozen=True)
class TensorValues:
    """Chooses the numbers of tensors."""

    survey: InputSurvey  #: the inputs of the model.
    sizes: DimensionSizes  #: the numbers of their open sizes.
    variant: int  #: which set of inputs this is.
    fallback: Fallback  #: values to use instead of the defaults.

    def draw(self, name: str, random: np.random.Generator) -> Array:
        """Numbers for input `name`, or for one tensor in it; not yet of its element type."""
        dtype, shape = self.survey.tensors[name].dtype, self.sizes.shapes[name]
        if dtype == "bool":
            return self._flags(name, shape, random)
        parameters = self._parameters(name, shape)
        if parameters is not None:
            return parameters
        return self._integers(name, shape, random) if dtype in INTEGERS else self._floats(name, shape, random)

    def _flags(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        if self.survey.roles[name] == "mask":
            return np.ones(shape, bool)
        if prod(shape) == 1:  # each branch of an If runs in some variant; a decoder without cache takes another mask
            flag = self.variant % 2 == 0 or "cache" in name
            return np.full(shape, flag != self.fallback.flipped)
        return random.integers(0, 2, shape).astype(bool)

    def _floats(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        role = self.survey.roles[name]
        if role in {"mask", "extent"}:
            return np.full(shape, 1 if role == "mask" else self.sizes.image)
        if len(shape) <= 1 or role == "scale" or self._must_be_positive(name):
            return random.uniform(0.25, 1, shape)  # scales, speeds and thresholds
        return random.uniform(-1, 1, shape)

    def _integers(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        bound = self._bound(name)
        by_role = self._integers_by_role(name, shape)
        if by_role is not None:
            return by_role if bound is None else by_role % bound
        if bound is not None:
            return random.integers(0, bound, shape)
        least = int(self._must_be_positive(name))
        if self.fallback.integers is not None:
            return np.full(shape, max(self.fallback.integers, least))
        if prod(shape) == 1:
            return np.ones(shape)
        low, high = _BYTES.get(self.survey.tensors[name].dtype, (0, 2))
        return random.integers(max(low, least), high + least, shape)

    def _integers_by_role(self, name: str, shape: tuple[int, ...]) -> Array | None:
        role = self.survey.roles[name]
        if role in _UNCERTAIN and self.fallback.integers is not None:
            return None
        along = np.arange(shape[-1]) if shape else np.array(0)
        numbers: Mapping[Role, Array | int] = {
            "position": self.sizes.past + along,
            "type": along * 2 // max(1, along.size),
            "mask": 1,
            "rate": _RATE,
            "total": self.sizes.past + self.sizes.sequence - ("seqlens" in name),  # `seqlens_k` counts from zero
            "length": self._length(name),
            "extent": self.sizes.image,
        }
        return np.broadcast_to(numbers[role], shape) if role in numbers else None

    def _length(self, name: str) -> int:
        if "min" in name:
            return 1
        if "max" in name:  # of a generation: longer than the prompt
            return self.sizes.past + self.sizes.sequence + 2
        return self.sizes.past if "past" in name else self.sizes.length

    def _must_be_positive(self, name: str) -> bool:
        return any((one.node.op, one.index) in POSITIVE for one in self.survey.consumers[name])

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
        numbers = self.sizes.numbers
        return tuple(evaluate(dim, numbers) if isinstance(dim, str) else dim for dim in tensor.shape)


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
