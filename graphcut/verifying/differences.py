"""How much two values differ: tensors, sequences, maps and optionals of any element type."""

from collections.abc import Sequence
from math import inf, isfinite, log10, sqrt
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from ..core.tensors import NON_NUMPY_TYPES, Tensor
from ..running.values import Array, Value, ml_dtypes_name, view_of

_CHUNK_ELEMENTS: Final = 1 << 17
"""Arrays are compared in chunks of this size, which takes less than 32 MiB, however large they are."""
_NUMERIC_KINDS: Final = "fiubcV"
_FLOAT_KINDS: Final = "fcV"
"""The types of ml_dtypes are of kind V. Those that are values of tensors here are all floats."""


def flatten(value: Value, tensor: Tensor) -> list[Any]:
    """The arrays, keys and lengths that a value consists of, in a fixed order; a large one in chunks, after its shape.

    Arrays are views: `value` must live as long as they do. A float in a map is an array of one number. An array of a
    type that numpy lacks (bfloat16, 8-bit floats) is of a type of ml_dtypes, which onnx depends on.
    """
    plain = view_of(value, tensor.dtype) if isinstance(value, ort.OrtValue) else value
    if plain is None:
        return []
    if isinstance(plain, dict):
        return [item for key in sorted(plain) for item in (key, *flatten(plain[key], tensor))]
    if isinstance(plain, list):
        return [len(plain), *(item for element in plain for item in flatten(element, tensor))]
    if isinstance(plain, float):
        return [np.array(plain)]
    if tensor.dtype in NON_NUMPY_TYPES:
        plain = plain.view(numpy_type(tensor))
    if not isinstance(plain, np.ndarray) or plain.size <= _CHUNK_ELEMENTS:
        return [plain]
    chunks = (plain.reshape(-1)[i : i + _CHUNK_ELEMENTS] for i in range(0, plain.size, _CHUNK_ELEMENTS))
    return [plain.shape, *chunks]


def numpy_type(tensor: Tensor) -> np.dtype[Any]:
    """The type of an array of its elements: of ml_dtypes if numpy lacks it."""
    if tensor.dtype not in NON_NUMPY_TYPES:
        return np.dtype(tensor.dtype)
    import ml_dtypes  # takes 20 ms, and few models need it

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ml_dtypes_name(tensor.dtype)))
    return found


def array_of(value: object, tensor: Tensor) -> Array:
    """A tensor of numbers as an array, of a type of ml_dtypes if numpy lacks its own."""
    plain = view_of(value, tensor.dtype) if isinstance(value, ort.OrtValue) else np.asarray(value)
    return plain.view(numpy_type(tensor)) if tensor.dtype in NON_NUMPY_TYPES else plain


def is_float(item: object) -> bool:
    """Whether `item` is an array of real or complex floating-point numbers."""
    return isinstance(item, np.ndarray) and item.dtype.kind in _FLOAT_KINDS


def are_identical(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two flattened values have the same bits. All NaNs count as the same; 0.0 and -0.0 differ."""
    return len(a) == len(b) and all(_is_identical(x, y) for x, y in zip(a, b, strict=True))


def _is_identical(a: object, b: object) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind == "O":
        return bool(np.array_equal(a, b))
    if a.tobytes() == b.tobytes():
        return True
    if not is_float(a):
        return False
    bits = [np.frombuffer(each.tobytes(), np.uint8).reshape(a.size, -1) for each in (a, b)]
    both_nan = np.isnan(_widened(a)) & np.isnan(_widened(b))
    return bool(np.all((bits[0] == bits[1]).all(axis=1) | both_nan.reshape(-1)))


def widened(items: Sequence[Any]) -> list[Any]:
    """A flattened value with its floats in a type that holds those of other types exactly."""
    return [_widened(item) if is_float(item) else item for item in items]


def _widened(array: Array) -> Array:
    """The same numbers in a type in which all of them can be subtracted."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def largest(items: Sequence[Any]) -> float:
    """The largest finite absolute value in a flattened value; 0 if there is none."""
    numeric = (item for item in items if isinstance(item, np.ndarray) and item.dtype.kind in _NUMERIC_KINDS)
    found = (np.abs(_widened(item)) for item in numeric)
    return max((float(numbers[np.isfinite(numbers)].max(initial=0.0)) for numbers in found), default=0.0)


class Error(NamedTuple):
    """How far a value is from another one."""

    signal: float  #: the sum of the squares of the other's finite numbers.
    noise: float  #: the sum of the squares of the differences; infinite if the shape differs.
    broken: int  #: how many numbers are finite on one side alone, or infinities of other signs; 1 if the shape differs.

    @property
    def relative(self) -> float:
        """The root of `noise` over `signal`; infinite if numbers are broken, or there is no signal."""
        if self.broken or not isfinite(self.noise):
            return inf
        return sqrt(self.noise / self.signal) if self.signal else inf if self.noise else 0.0

    @property
    def db(self) -> float:
        """The signal-to-noise ratio: 10 log10 of `signal` over `noise`."""
        return decibels(self.relative)


def decibels(relative: float) -> float:
    """The signal-to-noise ratio of a relative error; infinite if there is none."""
    return -20 * log10(relative) if 0 < relative < inf else -inf if relative else inf


def error_between(a: Sequence[Any], b: Sequence[Any], most: float = inf) -> Error:
    """The error of a flattened value `b` as a value of `a`. Numbers of any two types are compared.

    Numbers of which both are larger than `most` do not count.
    """
    total, (shapes, others) = Error(0.0, 0.0, 0), map(_shapes, (a, b))
    if shapes != others:
        return Error(0.0, inf, 1)
    for one, two in ((one, two) for one, two in zip(a, b, strict=True) if isinstance(one, np.ndarray)):
        left, right = _widened(one), _widened(two)
        is_finite = np.isfinite(left) & np.isfinite(right)
        counts = (np.abs(left) <= most) | (np.abs(right) <= most)
        with np.errstate(all="ignore"):
            gap = np.where(is_finite & counts, left - right, 0.0)
            is_same = is_finite | (left == right) | (np.isnan(left) & np.isnan(right))
            signal, noise = (np.square(np.abs(part)).sum() for part in (left[np.isfinite(left) & counts], gap))
        total = Error(total.signal + float(signal), total.noise + float(noise), total.broken + int((~is_same).sum()))
    return total


def _shapes(items: Sequence[Any]) -> list[Any]:
    """The shape of each array of a flattened value, and what else there is."""
    return [item.shape if isinstance(item, np.ndarray) else item for item in items]


def difference(a: Sequence[Any], b: Sequence[Any]) -> tuple[float, float, int]:
    """The largest absolute difference, relative difference (to `a`), and difference in ulps of two flattened values.

    The first two are infinite if shapes, types, strings, keys, or which numbers are finite differ. Ulps (units in the
    last place) are 0 for numbers that are not real floats.
    """
    if len(a) != len(b):
        return inf, inf, 0
    absolute, relative, ulps = map(max, zip((0.0, 0.0, 0), *map(_difference, a, b), strict=True))
    return absolute, relative, int(ulps)


def _difference(a: object, b: object) -> tuple[float, float, int]:
    if _is_identical(a, b):
        return 0.0, 0.0, 0
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return inf, inf, 0
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in _NUMERIC_KINDS:
        return inf, inf, 0
    left, right = _widened(a), _widened(b)
    with np.errstate(all="ignore"):
        if is_float(a):
            same = np.isnan(left) & np.isnan(right) | (left == right)
            gap, size = np.where(same, 0.0, np.abs(left - right)), np.abs(left)
        else:
            gap, size = _gap(a, b), _gap(a, np.zeros_like(a))
        relative = np.where(gap == 0, 0.0, gap / size)
    absolute, relative = (np.where(np.isnan(each), inf, each).max() for each in (gap, relative))
    return float(absolute), float(relative), _ulps(a, b)


def _gap(a: Array, b: Array) -> Array:
    """The exact distances between integers: that of two int64 may need 64 bits without a sign."""
    if a.dtype.kind == "b":
        return np.asarray(a ^ b, np.uint64)
    with np.errstate(over="ignore"):  # both the conversion of negative numbers and the subtraction are modulo 2^64
        return np.asarray(np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64))


def _ulps(a: Array, b: Array) -> int:
    """The largest number of representable values between two numbers; 0 unless they are real floats."""
    if a.dtype.kind not in "fV":
        return 0
    lowest = np.int64(-(2 ** (8 * a.dtype.itemsize - 1)))
    bits = (np.ascontiguousarray(array).view(f"i{a.dtype.itemsize}").astype(np.int64) for array in (a, b))
    steps_from_zero = [np.where(each < 0, lowest - each, each) for each in bits]
    finite = np.isfinite(_widened(a)) & np.isfinite(_widened(b))
    return int(_gap(*steps_from_zero)[finite].max(initial=0))
