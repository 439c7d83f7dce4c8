"""Draws ONNX graphs node by node, with the names that torch's exporter would give them.

A node made inside `model`, `layers.0` is called `/model/layers.0/MatMul`, the second of its kind there
`/model/layers.0/MatMul_1`; it writes `/model/layers.0/MatMul_output_0`; a weight made there is called
`model.layers.0.weight`.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from .noise import Precision, RandomWeight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

Shape: TypeAlias = "Sequence[int | str]"

_OPSET = 17
_IR_VERSION = 8


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be asked for in a demo, as fields, and how it is drawn."""

    def draw(self) -> Draft:
        """Draw the model."""
        raise NotImplementedError


class Draft:
    """A model being drawn, seen from one place in its hierarchy of names.

    `inside` and `body` give other views of the same draft: names, weights and functions are shared by all.

    Attributes:
        graph: where nodes go. Its weights are in `weights`, all others of its initializers in place.
        weights: in the order they were asked for; they belong to the main graph, wherever they are read.
        functions: model-local functions.
        path: where in the hierarchy of names this view stands.
    """

    def __init__(self, name: str, *, dtype: Precision = "float32") -> None:
        """Begin an empty model whose weights have elements of type `dtype`."""
        self.graph: GraphProto = onnx.GraphProto(name=name)
        self.weights: list[RandomWeight] = []
        self.functions: list[FunctionProto] = []
        self.path: tuple[str, ...] = ()
        self._dtype: Precision = dtype
        self._taken: Counter[str] = Counter()

    def inside(self, *names: str) -> Draft:
        """The same graph, seen from further inside its hierarchy of names."""
        view = copy(self)
        view.path = (*self.path, *names)
        return view

    def body(self, *names: str) -> Draft:
        """An empty graph for an attribute of If, Loop or Scan, that may read what this one has."""
        view = self.inside(*names)
        view.graph = onnx.GraphProto(name="/".join(view.path))
        return view

    def reads(self, name: str, dtype: str, shape: Shape) -> str:
        """Declare an input of the graph."""
        self.graph.input.append(describe(name, dtype, shape))
        return name

    def returns(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare an output of the graph."""
        self.graph.output.append(describe(name, dtype, shape))

    def node(
        self, op: str, *reads: str, name: str = "", writes: str = "", domain: str = "", **attributes: object
    ) -> str:
        """Draw a node with one output, and give that output's name.

        Args:
            op: its operator.
            reads: its inputs; "" for one that is left out.
            name: the last word of its name; the operator if not given.
            writes: its output; derived from its name if not given.
            domain: of its operator.
            attributes: of its operator.
        """
        full_name = self._name(name or op)
        output = writes or f"{full_name}_output_0"
        self._append(helper.make_node(op, reads, [output], name=full_name, domain=domain), attributes)
        return output

    def nodes(self, op: str, *reads: str, outputs: int, **attributes: object) -> list[str]:
        """Draw a node with several outputs, and give their names."""
        full_name = self._name(op)
        writes = [f"{full_name}_output_{index}" for index in range(outputs)]
        self._append(helper.make_node(op, reads, writes, name=full_name), attributes)
        return writes

    def constant(self, value: NDArray[Any]) -> str:
        """Draw a Constant node."""
        return self.node("Constant", value=numpy_helper.from_array(value))

    def literal(self, name: str, value: NDArray[Any]) -> str:
        """Add an initializer with this value to the graph; it stays inside the model file."""
        full_name = ".".join((*self.path, name))
        self.graph.initializer.append(numpy_helper.from_array(value, full_name))
        return full_name

    def weight(self, name: str, shape: tuple[int, ...], *, scale: float, mean: float = 0.0) -> str:
        """Add a random weight to the main graph."""
        full_name = ".".join((*self.path, name))
        place = len(self.weights)
        weight = RandomWeight(name=full_name, shape=shape, dtype=self._dtype, mean=mean, scale=scale, place=place)
        self.weights.append(weight)
        return full_name

    def linear(self, x: str, width: int, units: int, *, writes: str = "") -> str:
        """Multiply the last dimension, `width` long, by a weight that makes it `units` long."""
        return self.node("MatMul", x, self.weight("weight", (width, units), scale=width**-0.5), writes=writes)

    def conv(self, x: str, channels: tuple[int, int], *, kernel: int = 3, stride: int = 1) -> str:
        """Convolve, from and to this many channels, with a bias, keeping height and width at stride 1."""
        fan_in = channels[0] * kernel**2
        weight = self.weight("weight", (channels[1], channels[0], kernel, kernel), scale=(2 / fan_in) ** 0.5)
        bias = self.weight("bias", (channels[1],), scale=0.1)
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2
        )

    def model(self, weights: Sequence[TensorProto] = ()) -> onnx.ModelProto:
        """The model as it stands, with these weights; it shares nothing with the draft."""
        domains = dict.fromkeys(function.domain for function in self.functions)
        model = helper.make_model(
            self.graph,
            producer_name="graphcut demo",
            ir_version=_IR_VERSION,
            opset_imports=[opset(), *(helper.make_opsetid(domain, 1) for domain in domains)],
            functions=self.functions,
        )
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
    """The standard operators that every demo is drawn with."""
    return helper.make_opsetid("", _OPSET)


def describe(name: str, dtype: str, shape: Shape) -> ValueInfoProto:
    """Name, element type (`float32`, `bool`, ...) and shape of a tensor."""
    return helper.make_tensor_value_info(name, element_type(dtype), shape)


def element_type(dtype: str) -> int:
    """ONNX's number for the element type that numpy calls `dtype`."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
