"""Values as they go from part to part.

Tensors travel as OrtValues: nothing is copied, and types that numpy lacks (bfloat16, the 8-bit floats) pass through
unharmed. Strings, sequences, maps and optionals travel as the Python objects that ONNX Runtime gives and takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ..core.errors import RunError
from ..core.wiring import Tensor

Value = Any
"""An OrtValue; an array of strings; or for what is no tensor a list, a dict or None."""

Values = Mapping[str, Value]

NON_NUMPY_TYPES: Final[Mapping[str, tuple[type[np.generic], int]]] = {
    "bfloat16": (np.uint16, 16),
    "float8e4m3fn": (np.uint8, 17),
    "float8e4m3fnuz": (np.uint8, 18),
    "float8e5m2": (np.uint8, 19),
    "float8e5m2fnuz": (np.uint8, 20),
}
"""Types that numpy lacks: the unsigned type of the same width, and the number in TensorProto.DataType."""


def is_numeric_tensor(tensor: Tensor) -> bool:
    """Is it a tensor of numbers? ONNX Runtime's Python interface makes OrtValues of nothing else."""
    return tensor.is_plain and tensor.dtype != "string"


def copied(value: Value) -> Value:
    """`value` with memory of its own: what ONNX Runtime gives out for an optional may lie in that of an input."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [copied(item) for item in value] if isinstance(value, list) else value


def to_value(fed: object, tensor: Tensor) -> Value:
    """What a user feeds, as a value. Types that numpy lacks are fed as ml_dtypes arrays, or as their bits.

    Raises:
        RunError: the element type or a known size is not that of `tensor`.
    """
    if isinstance(fed, ort.OrtValue) or not tensor.is_plain:
        return fed
    try:
        array = np.asarray(fed)
    except ValueError:
        raise RunError(
            f"input {tensor.name!r} is fed rows of unequal length, and the model reads {tensor}",
            hint="make all rows of one axis equally long",
        ) from None
    _check(array, tensor)
    if tensor.dtype in NON_NUMPY_TYPES:
        bits, number = NON_NUMPY_TYPES[tensor.dtype]
        raw = np.ascontiguousarray(array).view(bits).reshape(array.shape)  # a scalar stays one
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, number)
    if tensor.dtype == "string":
        return array.astype(object)
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def to_array(value: Value, tensor: Tensor) -> Any:  # noqa: ANN401 - an array, or whatever ORT makes of a sequence or map
    """A value for the user: a numpy array; bits in the unsigned type of that width where numpy lacks the type."""
    if not isinstance(value, ort.OrtValue):
        return value
    if tensor.dtype in NON_NUMPY_TYPES:
        return _bits(value, tensor)
    # A copy: the array that ONNX Runtime gives does not keep alive what an OrtValue made from numpy lies in.
    return value.numpy().copy()


def _bits(value: ort.OrtValue, tensor: Tensor) -> np.ndarray[Any, Any]:
    import ctypes

    bits, _ = NON_NUMPY_TYPES[tensor.dtype]
    shape = tuple(value.shape())
    length = int(np.prod(shape)) * np.dtype(bits).itemsize
    raw = ctypes.string_at(value.data_ptr(), length)
    return np.frombuffer(raw, bits).reshape(shape)


def _check(array: np.ndarray[Any, Any], tensor: Tensor) -> None:
    is_carried = tensor.dtype in NON_NUMPY_TYPES and (
        array.dtype == NON_NUMPY_TYPES[tensor.dtype][0] or str(array.dtype) == ml_dtypes_name(tensor.dtype)
    )
    is_string = tensor.dtype == "string" and array.dtype.kind in "OUS"
    if not (is_carried or is_string or str(array.dtype) == tensor.dtype or tensor.dtype == "undefined"):
        raise RunError(
            f"input {tensor.name!r} is fed {array.dtype}, and the model reads {tensor.dtype}",
            hint=f"convert it, for instance with .astype({tensor.dtype!r})",
        )
    fits = tensor.shape is None or (
        len(array.shape) == len(tensor.shape)
        and all(not isinstance(d, int) or d == given for d, given in zip(tensor.shape, array.shape, strict=True))
    )
    if not fits:
        raise RunError(
            f"input {tensor.name!r} is fed shape {list(array.shape)}, and the model reads {tensor}",
            hint="give it the shape that the model declares",
        )


def ml_dtypes_name(dtype: str) -> str:
    """What ml_dtypes calls a type that numpy lacks: `float8e4m3fn` is its `float8_e4m3fn`."""
    return dtype.replace("float8", "float8_") if dtype.startswith("float8") else dtype


def zeros(tensor: Tensor, shape: tuple[int, ...]) -> Value:
    """A tensor of the type of `tensor` that is all zeros."""
    if tensor.dtype in NON_NUMPY_TYPES:
        bits, number = NON_NUMPY_TYPES[tensor.dtype]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(shape, bits), number)
    return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, tensor.dtype))
