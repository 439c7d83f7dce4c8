"""Faults that `scripts/benchmark compare` plants in models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Subject:
    """A model that a fault is planted in."""

    def __init__(self, proto: ModelProto, values: Mapping[str, Any]) -> None:
        self.proto, self.graph, self.values = proto, proto.graph, values
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.constants = {node.output[0]: node for node in proto.graph.node if node.op_type == "Constant"}

    def array(self, name: str) -> Array | None:
        """The values of a constant; None for another tensor."""
        if name in self.weights:
            return numpy_helper.to_array(self.weights[name])
        values = [a.t for a in self.constants[name].attribute if a.name == "value"] if name in self.constants else []
        return numpy_helper.to_array(values[0]) if values else None

    def give(self, node: NodeProto, index: int, array: Array) -> None:
        """Give one node another constant."""
        name = f"{node.input[index]}@planted"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        node.input[index] = name

    def through(self, node: NodeProto, *made: NodeProto) -> None:
        """Put nodes after the first output of a node, which keeps its name: they read and write `@`."""
        name = node.output[0]
        node.output[0] = f"{name}@raw"
        for i, one in enumerate(made):
            one.name = f"{name}@planted{i}"
            one.input[0] = f"{name}@raw" if i == 0 else f"{name}@{i}"
            one.output[0] = name if i == len(made) - 1 else f"{name}@{i + 1}"
        place = next(i for i, other in enumerate(self.graph.node) if other is node or other == node)
        rest = [*self.graph.node][place + 1 :]
        kept = [*self.graph.node][: place + 1]
        copies = [NodeProto.FromString(one.SerializeToString()) for one in (*kept, *made, *rest)]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def is_float(self, name: str) -> bool:
        """Whether it is a tensor of floats that a node writes."""
        return name in self.values and self.values[name].dtype in (np.float32, np.float16)


Plant = Callable[[Subject, NodeProto], bool]  #: plants a fault in a node; False if that can't have it.


def scale(on: Subject, node: NodeProto) -> bool:
    """A vector of weights is 1.5 times what it was."""
    for i, name in enumerate(node.input):
        array = on.array(name)
        if array is not None and array.dtype.kind == "f" and array.ndim == 1 and array.size > 1:
            on.give(node, i, array * array.dtype.type(1.5))
            return True
    return False


def epsilon(on: Subject, node: NodeProto) -> bool:
    """The epsilon of a norm is 0.1."""
    for attribute in node.attribute:
        if attribute.name == "epsilon":
            attribute.f = 0.1
            return True
    readers = {other.op_type for other in on.graph.node if node.output[0] in other.input}
    if node.op_type == "Add" and "Sqrt" in readers:
        for i, name in enumerate(node.input):
            array = on.array(name)
            if array is not None:
                on.give(node, i, np.full_like(array, 0.1))
                return True
    return False


def transposed(on: Subject, node: NodeProto) -> bool:
    """A square weight is transposed."""
    for i, name in enumerate(node.input):
        array = on.array(name)
        if array is not None and array.dtype.kind == "f" and array.ndim > 1 and array.shape[-1] == array.shape[-2] > 1:
            on.give(node, i, array.swapaxes(-1, -2))
            return True
    return False


def axis(on: Subject, node: NodeProto) -> bool:
    """Another axis, or two axes of equal length in another order."""
    value = on.values.get(node.output[0])
    if (
        node.op_type in {"Softmax", "LogSoftmax", "CumSum", "LayerNormalization"}
        and value is not None
        and value.ndim > 1
    ):
        kept = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", -2)])
        return True
    if node.op_type == "Transpose":
        for perm in node.attribute:
            shape = on.values[node.output[0]].shape if node.output[0] in on.values else ()
            same = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j] > 1]
            if same:
                i, j = same[0]
                perm.ints[i], perm.ints[j] = perm.ints[j], perm.ints[i]
                return True
    return False


def wrong_cast(on: Subject, node: NodeProto) -> bool:
    """Floats become integers, and floats again."""
    if not on.is_float(node.output[0]):
        return False
    kind = helper.np_dtype_to_tensor_dtype(on.values[node.output[0]].dtype)
    on.through(node, *(helper.make_node("Cast", ["@"], ["@"], to=to) for to in (TensorProto.INT32, kind)))
    return True


def clip(on: Subject, node: NodeProto) -> bool:
    """Values above the mean magnitude are cut off."""
    if not on.is_float(node.output[0]):
        return False
    value = on.values[node.output[0]]
    most = np.array(np.abs(value.astype(np.float64)).mean(), value.dtype)
    names = f"{node.output[0]}@least", f"{node.output[0]}@most"
    for name, limit in zip(names, (-most, most), strict=True):
        on.graph.initializer.append(numpy_helper.from_array(np.array(limit, value.dtype), name))
    on.through(node, helper.make_node("Clip", ["@", *names], ["@"]))
    return True


def int8_scale(on: Subject, node: NodeProto) -> bool:
    """Values are quantized with one scale, and dequantized with 1.5 times it."""
    name = node.output[0]
    if not on.is_float(name) or on.values[name].dtype != np.float32 or not on.values[name].size:
        return False
    step = np.float32(np.abs(on.values[name]).max() / 127)
    for end, factor in (("q", 1.0), ("dq", 1.5)):
        on.graph.initializer.append(numpy_helper.from_array(np.array(step * factor, np.float32), f"{name}@{end}"))
    on.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), f"{name}@zero"))
    pair = (("QuantizeLinear", "q"), ("DequantizeLinear", "dq"))
    on.through(node, *(helper.make_node(op, ["@", f"{name}@{end}", f"{name}@zero"], ["@"]) for op, end in pair))
    return True


def sign(on: Subject, node: NodeProto) -> bool:
    """A minus is left out, a difference turned round, the sines of a rotary embedding negated."""
    if node.op_type == "Neg" and on.is_float(node.output[0]):
        node.op_type = "Identity"
    elif node.op_type == "Sub" and on.is_float(node.output[0]):
        node.input[0], node.input[1] = node.input[1], node.input[0]
    elif node.op_type in {"RotaryEmbedding", "GroupQueryAttention"} and len(node.input) > 3:
        index = 3 if node.op_type == "RotaryEmbedding" else 8
        if index >= len(node.input) or (array := on.array(node.input[index])) is None:
            return False
        on.give(node, index, -array)
    else:
        return False
    return True


def lookup(on: Subject, node: NodeProto) -> bool:
    """A Gather reads the next row: another constant index, or a table that is rolled by one."""
    if node.op_type != "Gather":
        return False
    table, index = (on.array(name) for name in node.input)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    if index is not None and node.input[0] in on.values:
        rows = on.values[node.input[0]].shape[axis]
        on.give(node, 1, (index + 1) % rows if rows > 1 else index)
        return rows > 1
    if table is not None:
        on.give(node, 0, np.roll(table, 1, axis))
    return table is not None


def order(on: Subject, node: NodeProto) -> bool:
    """Two inputs or outputs of one shape are swapped."""
    if node.op_type == "Split" and len({on.values[name].shape for name in node.output if name in on.values}) == 1:
        node.output[0], node.output[1] = node.output[1], node.output[0]
        return True
    shapes = [on.values[name].shape if name in on.values else None for name in node.input[:2]]
    if node.op_type not in {"Concat", "Div", "MatMul", "Pow", "Sub"} or len(shapes) < 2 or shapes[0] != shapes[1]:
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return shapes[0] is not None


def off_by_one(on: Subject, node: NodeProto) -> bool:
    """Positions begin one later, or a causal mask hides the token itself."""
    if node.op_type == "LessOrEqual":
        node.op_type = "Less"
    elif node.op_type == "Range":
        on.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), f"{node.output[0]}@one"))
        on.through(node, helper.make_node("Add", ["@", f"{node.output[0]}@one"], ["@"]))
    else:
        return False
    return True


def bias(on: Subject, node: NodeProto) -> bool:
    """A bias is left out."""
    if node.op_type in {"Conv", "Gemm", "LayerNormalization"} and len(node.input) == 3:
        del node.input[2]
        return True
    vectors = [
        i for i, name in enumerate(node.input) if (a := on.array(name)) is not None and a.ndim == 1 and a.size > 1
    ]
    if node.op_type != "Add" or len(vectors) != 1:
        return False
    node.op_type = "Identity"
    del node.input[vectors[0]]
    return True


def pad(_: Subject, node: NodeProto) -> bool:
    """Padding of both sides is all at the end."""
    for attribute in node.attribute:
        if attribute.name == "pads" and any(attribute.ints):
            half = len(attribute.ints) // 2
            both = [a + b for a, b in zip(attribute.ints[:half], attribute.ints[half:], strict=True)]
            attribute.ints[:] = [0] * half + both
            return True
    return False


def activation(on: Subject, node: NodeProto) -> bool:
    """Another function: Tanh for Sigmoid, Relu for Gelu, nearest for linear."""
    others = {
        "Sigmoid": "Tanh",
        "Tanh": "Erf",
        "Erf": "Tanh",
        "Relu": "Softplus",
        "Exp": "Softplus",
        "Softmax": "LogSoftmax",
    }
    if node.op_type == "Resize":
        for attribute in node.attribute:
            if attribute.name == "coordinate_transformation_mode":
                attribute.s = b"align_corners"
                return True
    if node.op_type not in others or node.domain or not on.is_float(node.output[0]):
        return False
    node.op_type = others[node.op_type]
    return True


FAULTS: dict[str, Plant] = {
    "scale": scale,
    "epsilon": epsilon,
    "transposed": transposed,
    "axis": axis,
    "cast": wrong_cast,
    "clip": clip,
    "int8 scale": int8_scale,
    "sign": sign,
}
HELD_OUT: dict[str, Plant] = {
    "lookup": lookup,
    "order": order,
    "off by one": off_by_one,
    "bias": bias,
    "pad": pad,
    "activation": activation,
}
"""Kinds that were added after the limits of `compare` had been chosen."""
