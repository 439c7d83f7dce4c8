"""How much two values differ: tensors, sequences, maps and optionals of any element type."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

import numpy as np

from ..core.wiring import Tensor
from ..running.values import NON_NUMPY_TYPES, Value, ml_dtypes_name, to_array

Array = np.ndarray[Any, Any]

_CHUNK_ELEMENTS: Final = 1 << 17
"""Arrays are compared in chunks of this size, which takes less than 32 MiB at a time."""
_NUMERIC_KINDS: Final = "fiubcV"
_FLOAT_KINDS: Final = "fcV"
"""The types of ml_dtypes are of kind V. Those that are values of tensors here are all floats."""


def flatten(value: Value, tensor: Tensor) -> list[Any]:
    """The arrays, keys and lengths that a value consists of, in a fixed order; a large array in chunks, after its type.

    An array of a type that numpy lacks (bfloat16, 8-bit floats) is of a type of ml_dtypes, which onnx depends on.
    """
    plain = to_array(value, tensor)
    if plain is None:
        return []
    if isinstance(plain, dict):
        return [item for key in sorted(plain) for item in (key, *flatten(plain[key], tensor))]
    if isinstance(plain, list):
        return [len(plain), *(item for element in plain for item in flatten(element, tensor))]
    if tensor.dtype in NON_NUMPY_TYPES:
        import ml_dtypes  # takes 20 ms, and few models need it

        plain = plain.view(np.dtype(getattr(ml_dtypes, ml_dtypes_name(tensor.dtype))))
    if not isinstance(plain, np.ndarray) or plain.size <= _CHUNK_ELEMENTS:
        return [plain]
    chunks = (plain.reshape(-1)[i : i + _CHUNK_ELEMENTS] for i in range(0, plain.size, _CHUNK_ELEMENTS))
    return [f"{plain.dtype}{plain.shape}", *chunks]


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
    left, right = _widened(a), _widened(b)
    same_number = (left == right) & (np.signbit(left.real) == np.signbit(right.real))
    return bool(np.all(same_number | (np.isnan(left) & np.isnan(right))))


def _widened(array: Array) -> Array:
    """The same numbers in a type in which all of them can be subtracted."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def largest(items: Sequence[Any]) -> float:
    """The largest finite absolute value in a flattened value; 0 if there is none."""
    arrays = [np.abs(_widened(a)) for a in items if isinstance(a, np.ndarray) and a.dtype.kind in _NUMERIC_KINDS]
    return max((float(a[np.isfinite(a)].max(initial=0.0)) for a in arrays), default=0.0)


def difference(a: Sequence[Any], b: Sequence[Any]) -> tuple[float, float, int]:
    """The largest absolute difference, relative difference (to `a`), and difference in ulps of two flattened values.

    The first two are infinite if shapes, types, strings, or which numbers are finite differ. Ulps (units in the last
    place) are 0 for numbers that are not real floats.
    """
    if len(a) != len(b):
        return inf, inf, 0
    found = [_difference(x, y) for x, y in zip(a, b, strict=True)] or [(0.0, 0.0, 0)]
    absolute, relative, ulps = zip(*found, strict=True)
    return max(absolute), max(relative), max(ulps)


def _difference(a: object, b: object) -> tuple[float, float, int]:
    if _is_identical(a, b):
        return 0.0, 0.0, 0
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in _NUMERIC_KINDS:
        return inf, inf, 0
    if a.dtype.kind in "iub":
        # In Python's integers: the difference of two int64 may need 65 bits, more than float64 can represent.
        gaps = [abs(int(x) - int(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
        ratios = (gap / abs(int(x)) if x else inf for gap, x in zip(gaps, a.ravel(), strict=True) if gap)
        return float(max(gaps)), max(ratios), 0
    left, right = _widened(a), _widened(b)
    with np.errstate(all="ignore"):
        same = np.isnan(left) & np.isnan(right) | (left == right)
        gap = np.where(same, 0.0, np.abs(left - right))
        relative = np.where(same, 0.0, gap / np.abs(left))
    gap[np.isnan(gap)] = inf
    relative[np.isnan(relative)] = inf
    return float(gap.max()), float(relative.max()), _ulps(a, b)


def _ulps(a: Array, b: Array) -> int:
    """The largest number of representable values between two numbers; 0 for complex numbers."""
    signed = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    if a.dtype.kind == "c" or signed is None:
        return 0
    lowest = -(2 ** (8 * a.dtype.itemsize - 1))
    steps_from_zero = []
    for array in (a, b):
        bits = np.ascontiguousarray(array).view(signed).astype(object if a.dtype.itemsize == 8 else np.int64)
        steps_from_zero.append(np.where(bits < 0, lowest - bits, bits))
    finite = np.isfinite(_widened(a)) & np.isfinite(_widened(b))
    gaps = np.abs(steps_from_zero[0] - steps_from_zero[1])[finite]
    return int(gaps.max()) if gaps.size else 0
