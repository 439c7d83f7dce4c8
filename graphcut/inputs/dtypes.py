"""Conversion of numbers to the element type of an input, including types that numpy lacks."""

from typing import Any, Final

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array

from ..running.values import NON_NUMPY_TYPES, bits_type

Array = np.ndarray[Any, Any]

PACKED: Final = frozenset({"uint4", "int4", "float4e2m1", "float8e8m0", "uint2", "int2"})
"""Types that numpy arrays cannot hold and ONNX Runtime accepts in its own values alone."""


def to_dtype(numbers: Array, dtype: str) -> object:
    """`numbers` as elements of type `dtype`, in the form that `running.values.to_value` takes.

    bfloat16 and 8-bit floats are returned as their bits, packed types as OrtValues. The type float8e8m0 has no sign: it
    holds ones.
    """
    if dtype not in {*PACKED, *NON_NUMPY_TYPES}:
        return np.asarray(numbers).astype(np.dtype(dtype))
    element = TensorProto.DataType.Value(dtype.upper())
    numbers = np.ones(np.shape(numbers)) if dtype == "float8e8m0" else np.asarray(numbers)
    values = numbers.astype(tensor_dtype_to_np_dtype(element))
    return _packed(values, element) if dtype in PACKED else values.view(bits_type(dtype))


def _packed(values: Array, element: int) -> object:
    import onnxruntime as ort

    # ONNX Runtime takes the shape from the array, which therefore has unused bytes.
    raw, filled = from_array(values).raw_data, np.zeros(values.size, np.uint8)
    filled[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(filled.reshape(values.shape), element)
