"""Builds ONNX graphs node by node, with the names that torch's exporter would give them.

A MatMul in the module `model.layers.0` is called `/model/layers.0/MatMul`, the second one `/model/layers.0/MatMul_1`.
The first writes `/model/layers.0/MatMul_output_0`. A weight there is called `model.layers.0.weight`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ..core.arguments import FloatType
from .noise import RandomWeight

Shape = Sequence[int | str]


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a demo, as fields, and the method that builds its graph."""

    def draw(self) -> Draft:
        """Build the model."""
        raise NotImplementedError


class Draft:
    """A model under construction, seen from one module.

    `inside` returns another view of the same draft: all views share names and weights.
    """

    def __init__(self, name: str, *, dtype: FloatType = "float32") -> None:
        """Create an empty model whose weights have element type `dtype`."""
        self.graph: GraphProto = onnx.GraphProto(name=name)  #: what nodes are added to, without its large weights.
        self.weights: list[RandomWeight] = []  #: these, in the order of creation; initializers of the main graph.
        self.path: tuple[str, ...] = ()  #: the module of this view.
        self._dtype: FloatType = dtype
        self._taken: Counter[str] = Counter()

    def inside(self, *names: str) -> Self:
        """A view of the same graph from a submodule."""
        view = copy(self)
        view.path = (*self.path, *names)
        return view

    def reads(self, name: str, dtype: str, shape: Shape) -> str:
        """Declare an input of the graph."""
        self.graph.input.append(describe(name, dtype, shape))
        return name

    def returns(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare an output of the graph."""
        self.graph.output.append(describe(name, dtype, shape))

    def node(self, op: str, *reads: str, name: str = "", writes: str = "", **attributes: object) -> str:
        """Add a node with one output (`reads` has "" for an omitted input). Returns the name of the output.

        `name` is the last component of the node's name, by default the operator; `writes` by default follows from it.
        """
        full_name = self._name(name or op)
        output = writes or f"{full_name}_output_0"
        self._append(helper.make_node(op, reads, [output], name=full_name, domain=""), attributes)
        return output

    def nodes(self, op: str, *reads: str, outputs: int, **attributes: object) -> list[str]:
        """Add a node with several outputs. Returns their names."""
        full_name = self._name(op)
        writes = [f"{full_name}_output_{index}" for index in range(outputs)]
        self._append(helper.make_node(op, reads, writes, name=full_name), attributes)
        return writes

    def constant(self, value: NDArray[Any]) -> str:
        """Add a Constant node."""
        return self.node("Constant", value=numpy_helper.from_array(value))

    def literal(self, name: str, value: NDArray[Any]) -> str:
        """Add an initializer with this value to the graph; it is stored in the model file."""
        full_name = ".".join((*self.path, name))
        self.graph.initializer.append(numpy_helper.from_array(value, full_name))
        return full_name

    def weight(self, name: str, shape: tuple[int, ...], *, scale: float, mean: float = 0.0) -> str:
        """Add a random weight to the main graph."""
        full_name = ".".join((*self.path, name))
        index = len(self.weights)
        weight = RandomWeight(name=full_name, shape=shape, dtype=self._dtype, mean=mean, scale=scale, index=index)
        self.weights.append(weight)
        return full_name

    def linear(self, x: str, width: int, units: int, *, writes: str = "") -> str:
        """Multiply the last dimension, of size `width`, by a weight of shape [width, units]."""
        return self.node("MatMul", x, self.weight("weight", (width, units), scale=width**-0.5), writes=writes)

    def conv(self, x: str, channels: tuple[int, int], *, kernel: int = 3, stride: int = 1) -> str:
        """A convolution with bias, `channels` in and out; at stride 1 height and width stay the same."""
        fan_in = channels[0] * kernel**2
        weight = self.weight("weight", (channels[1], channels[0], kernel, kernel), scale=(2 / fan_in) ** 0.5)
        bias = self.weight("bias", (channels[1],), scale=0.1)
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2
        )

    def model(self, weights: Sequence[TensorProto] = ()) -> onnx.ModelProto:
        """The model with these weights, as an independent copy."""
        model = helper.make_model(self.graph, producer_name="graphcut demo", ir_version=8, opset_imports=[opset()])
        model.graph.initializer.extend(weights)
        return model

    def _append(self, node: NodeProto, attributes: Mapping[str, object]) -> None:
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.graph.node.append(node)

    def _name(self, word: str) -> str:
        name = "/" + "/".join((*self.path, word))
        count = self._taken[name]
        self._taken[name] += 1
        return f"{name}_{count}" if count else name


def opset() -> onnx.OperatorSetIdProto:
    """The opset of the default domain that every demo uses."""
    return helper.make_opsetid("", 17)


def describe(name: str, dtype: str, shape: Shape) -> ValueInfoProto:
    """The ValueInfoProto of a tensor; `dtype` as numpy names it."""
    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def element_type(dtype: str) -> int:
    """The TensorProto.DataType of a numpy dtype name."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
