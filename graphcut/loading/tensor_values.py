"""How many bytes the values of a tensor take, whether a message holds as many, and the values of Constant nodes."""

from copy import deepcopy
from math import prod
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import get_attribute_value, tensor_dtype_to_field
from onnx.numpy_helper import from_array

from ..core.errors import ModelError
from ..core.tensors import BITS
from ..core.units import count
from .node_rules import place
from .shape_inference import DTYPES
from .subgraphs import nodes_within, tensors_in

_BITS: Final = {kind: BITS.get(DTYPES[kind], 8) for kind in TensorProto.DataType.values() if kind and kind in DTYPES}
_COMPLEX: Final = frozenset({TensorProto.COMPLEX64, TensorProto.COMPLEX128})


def values_bytes(tensor: TensorProto) -> int:
    """Size of the values of `tensor`, packed as in ONNX; strings by their lengths."""
    if tensor.data_type == TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    if tensor.data_type not in _BITS:
        message = f"tensor {tensor.name!r} has the data type {tensor.data_type}, which is unknown here"
        raise ModelError(message, hint="install a newer onnx, or check the model with onnx.checker.check_model")
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}", hint="a size is 0 or more")
    return (prod(tensor.dims) * _BITS[tensor.data_type] + 7) // 8


def check_inline_values(model: ModelProto, tensor: TensorProto) -> None:
    """Raise a ModelError if the message of a tensor in `model` holds more or fewer values than its shape has.

    ONNX Runtime refuses it, too, and ONNX shape inference would take memory for what the shape says.
    """
    if tensor.HasField("raw_data") and tensor.data_type != TensorProto.STRING:
        held, expected, unit = len(tensor.raw_data), values_bytes(tensor), "byte"
    else:
        values_bytes(tensor)  # refuses an unknown type
        held = len(getattr(tensor, tensor_dtype_to_field(tensor.data_type)))
        expected, unit = prod(tensor.dims) * (1 + (tensor.data_type in _COMPLEX)), "value"
        if _BITS[tensor.data_type] in {2, 4}:  # several in one value; of 6 bits there is one
            expected, unit = values_bytes(tensor), "byte"
    if held != expected:
        message = f"{_place(model, tensor)} has {count(held, unit)}, and by its shape {list(tensor.dims)} {expected:,}"
        raise ModelError(message, hint="the model is damaged, or its weights were taken out; save or export it again")


def _place(model: ModelProto, tensor: TensorProto) -> str:
    """Where a tensor is, for messages: the innermost node that has it, or the name of the initializer."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    holders = [node for node in nodes_within(nodes) if any(inner is tensor for inner in tensors_in(node))]
    return f"a tensor of {place(holders[-1])}" if holders else f"the initializer {tensor.name!r}"


def constant_value(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node, named after its output; `None` for sparse values, text, and what a call gives."""
    for attribute in (one for one in node.attribute if not one.ref_attr_name):
        match attribute.name:
            case "value":
                return renamed(attribute.t, node.output[0])
            case "value_int" | "value_ints" | "value_float" | "value_floats":
                dtype = np.int64 if "int" in attribute.name else np.float32
                return from_array(np.asarray(get_attribute_value(attribute), dtype), node.output[0])
    return None


def renamed(tensor: TensorProto, name: str) -> TensorProto:
    """A copy with another name."""
    copy = deepcopy(tensor)
    copy.name = name
    return copy
