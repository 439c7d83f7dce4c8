"""Nodes as rules see them: operator, attributes, sizes and small constant inputs. No ONNX messages."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeVar, cast

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto
from onnx.helper import get_attribute_value
from onnx.numpy_helper import from_array, to_array

from ..core.wiring import Dim, Tensor
from .bound_sizes import name_unknown_dims, number_unknown_dims
from .model import Model
from .repeated_definitions import is_constant
from .shape_inference import infer_tensors, tensor_of_initializer
from .subgraphs import callee_key, domain, has_subgraphs, is_external

Shape = tuple[Dim, ...]
_T = TypeVar("_T")

_MAX_VALUES: Final = 1024  #: the values of larger constants are not needed by any rule.


@dataclass(frozen=True, slots=True)
class Operation:
    """A node, with the types of its tensors."""

    op: str  #: as in `Node.op`; empty if it can't be described by a rule: it has subgraphs, or calls a function.
    version: int  #: of its operator set.
    inputs: tuple[str, ...]  #: the names of its inputs; empty for an omitted one.
    outputs: tuple[str, ...]  #: the names of its outputs; empty for an omitted one.
    reads: tuple[Shape | None, ...]  #: the shape of each input; None if it is omitted or unknown.
    writes: tuple[Shape | None, ...]  #: the same of each output.
    attributes: Mapping[str, Any]  #: attributes that are numbers or texts, or lists of numbers.
    values: Mapping[int, tuple[int, ...]]  #: the values of small constant inputs of integers, by index.

    def has(self, index: int) -> bool:
        """Whether the node has this input."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def writes_to(self, index: int) -> bool:
        """Whether the node has this output."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def read(self, index: int) -> Shape | None:
        """The shape of an input; None if it is unknown, or the node doesn't have the input."""
        return self.reads[index] if index < len(self.reads) else None

    def written(self, index: int = 0) -> Shape | None:
        """The shape of an output; None if it is unknown, or the node doesn't have the output."""
        return self.writes[index] if index < len(self.writes) else None

    def given(self, name: str, default: _T) -> _T:
        """An attribute, or `default`."""
        return cast(_T, self.attributes.get(name, default))


def operations_of(model: Model) -> tuple[Operation, ...]:
    """The operation of each node of `model.graph.nodes`."""
    graph = model.graph
    names = {name for node in graph.nodes for name in (*node.writes, *node.reads)} | graph.weights.keys()
    found = infer_tensors(model.proto, names, folder=model.path.parent)
    found.update((weight.name, tensor_of_initializer(weight)) for weight in model.proto.graph.initializer)
    tensors = number_unknown_dims(model.proto, name_unknown_dims(model.proto, found))
    values = {name: integers_of(tensor) for name, tensor in constants_in(model.proto).items()}
    versions = {domain(opset.domain): opset.version for opset in model.proto.opset_import}
    return tuple(
        operation_of(
            proto,
            node.op if callee_key(proto) not in model.functions and not has_subgraphs(proto) else "",
            versions.get(domain(proto.domain), 0),
            tensors,
            values,
        )
        for node, proto in zip(graph.nodes, model.proto.graph.node, strict=True)
    )


def operation_of(
    node: NodeProto, op: str, version: int, tensors: Mapping[str, Tensor], values: Mapping[str, tuple[int, ...] | None]
) -> Operation:
    """The operation of one node, from the types and values of what it reads and writes."""
    found = {i: value for i, name in enumerate(node.input) if (value := values.get(name)) is not None}
    plain = (a for a in node.attribute if a.type in _PLAIN)
    attributes = {a.name: get_attribute_value(a) for a in plain}
    return Operation(
        op=op,
        version=version,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        reads=_shapes(node.input, tensors),
        writes=_shapes(node.output, tensors),
        attributes={n: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for n, v in attributes.items()},
        values=found,
    )


_PLAIN: Final = frozenset(
    {AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING}
)


def _shapes(names: Iterable[str], tensors: Mapping[str, Tensor]) -> tuple[Shape | None, ...]:
    return tuple(tensors[name].shape if name in tensors else None for name in names)


def constants_in(proto: ModelProto) -> dict[str, TensorProto]:
    """The initializers that no input may override, and the values of Constant nodes, by the name of the tensor."""
    inputs = {value.name for value in proto.graph.input} if proto.ir_version > 3 else set()
    found = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.name not in inputs}
    for node in proto.graph.node:
        if is_constant(node) and (value := constant_value(node)) is not None:
            found[node.output[0]] = value
    return found


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


def integers_of(tensor: TensorProto) -> tuple[int, ...] | None:
    """The values of a small tensor of integers or booleans that is in its message."""
    is_whole = tensor.data_type in {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
    if not is_whole or is_external(tensor) or prod(tensor.dims) > _MAX_VALUES:
        return None
    return tuple(int(value) for value in to_array(tensor).reshape(-1))
