"""Conversion of numbers to the element type of an input, including types that numpy lacks."""

from typing import Any, Final

import numpy as np

from ..core.wiring import BITS

Array = np.ndarray[Any, Any]

_BITS_OF_ONE: Final = {"float8e4m3fn": 0x38, "float8e4m3fnuz": 0x40, "float8e5m2": 0x3C, "float8e5m2fnuz": 0x40}
"""The bits of 1.0 (ONNX, "Float stored in 8 bits"). Without the sign, smaller bits are smaller numbers."""

PACKED: Final = {"uint4": 21, "int4": 22, "float4e2m1": 23, "float8e8m0": 24, "uint2": 25, "int2": 26}
"""TensorProto.DataType of types that numpy arrays cannot hold and ONNX Runtime accepts."""

_BITS_OF_ONE_E8M0: Final = 127


def to_dtype(numbers: Array, dtype: str) -> object:
    """`numbers` as elements of type `dtype`, in the form that `running.values.to_value` takes.

    bfloat16 and 8-bit floats are returned as their bits, packed types as OrtValues. Floats of 8 bits and less keep the
    sign and the order of `numbers` between -1 and 1, not the values.
    """
    if dtype == "bfloat16":
        return (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in _BITS_OF_ONE:
        return _eighth_bits(numbers, _BITS_OF_ONE[dtype])
    if dtype in PACKED:
        return _packed(numbers, dtype)
    return np.asarray(numbers).astype(np.dtype(dtype))


def _eighth_bits(numbers: Array, bits_of_one: int) -> Array:
    codes = np.round(np.abs(numbers) * bits_of_one)
    sign = np.where(np.asarray(numbers) < 0, 0x80, 0)
    return (np.clip(codes, 1, bits_of_one).astype(np.uint8) | sign.astype(np.uint8)).astype(np.uint8)


def _packed(numbers: Array, dtype: str) -> object:
    # ONNX Runtime reads the low bits first. It takes the shape from the array, which therefore has unused bytes.
    import onnxruntime as ort

    bits = BITS[dtype]
    values = np.full(np.shape(numbers), _BITS_OF_ONE_E8M0) if dtype == "float8e8m0" else np.round(numbers)
    codes = values.astype(np.int64).ravel() & ((1 << bits) - 1)
    each = 8 // bits
    rows = np.pad(codes, (0, -len(codes) % each)).reshape(-1, each)
    filled = np.zeros(codes.shape, np.uint8)
    filled[: len(rows)] = (rows << (np.arange(each) * bits)).sum(axis=1)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(filled.reshape(np.shape(numbers)), PACKED[dtype])
