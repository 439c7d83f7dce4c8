"""Nodes as rules see them: operator, attributes, sizes and small constant inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, Final, TypeVar, cast

import msgspec
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto
from onnx.helper import get_attribute_value
from onnx.numpy_helper import to_array

from ..core.tensors import Dim, Tensor
from .bound_sizes import name_unknown_dims, number_unknown_dims
from .model import Model
from .repeated_definitions import is_constant
from .shape_inference import infer_tensors, tensor_of_initializer
from .subgraphs import callee_key, domain, has_subgraphs, is_external
from .tensor_values import constant_value

Shape = tuple[Dim, ...]
_T = TypeVar("_T")

_MAX_VALUES: Final = 1024  #: the values of larger constants are not needed by any rule.


@dataclass(frozen=True)
class Operation:
    """A node, with the types of its tensors. What no rule asks for is not read from its message."""

    node: NodeProto  #: its message.
    tensors: Mapping[str, Tensor]  #: the known types of tensors, by name.
    op: str = ""  #: as in `Node.op`; empty if it can't be described by a rule: it has subgraphs, or calls a function.
    version: int = 0  #: of its operator set.
    constants: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)  #: small constants of integers.

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs; empty for an omitted one."""
        return tuple(self.node.input)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs; empty for an omitted one."""
        return tuple(self.node.output)

    @cached_property
    def reads(self) -> tuple[Shape | None, ...]:
        """The shape of each input; None if it is omitted or unknown."""
        return tuple(map(self._shape, self.inputs))

    @cached_property
    def writes(self) -> tuple[Shape | None, ...]:
        """The same of each output."""
        return tuple(map(self._shape, self.outputs))

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes that are numbers or texts, or lists of numbers."""
        found = {a.name: get_attribute_value(a) for a in self.node.attribute if a.type in _PLAIN}
        return {n: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for n, v in found.items()}

    @cached_property
    def values(self) -> Mapping[int, tuple[int, ...]]:
        """The values of small constant inputs of integers, by index."""
        return {i: value for i, name in enumerate(self.inputs) if (value := self.constants.get(name)) is not None}

    def has(self, index: int) -> bool:
        """Whether the node has this input."""
        return index < len(self.node.input) and self.node.input[index] != ""

    def writes_to(self, index: int) -> bool:
        """Whether the node has this output."""
        return index < len(self.node.output) and self.node.output[index] != ""

    def read(self, index: int) -> Shape | None:
        """The shape of an input; None if it is unknown, or the node doesn't have the input."""
        return self._shape(self.node.input[index]) if index < len(self.node.input) else None

    def written(self, index: int = 0) -> Shape | None:
        """The shape of an output; None if it is unknown, or the node doesn't have the output."""
        return self._shape(self.node.output[index]) if index < len(self.node.output) else None

    def given(self, name: str, default: _T) -> _T:
        """An attribute, or `default`."""
        return cast(_T, self.attributes.get(name, default))

    def _shape(self, name: str) -> Shape | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor is not None else None


_PLAIN: Final = frozenset(
    {AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING}
)


class RuleRow(msgspec.Struct):
    """Operators that a function is for, with blanks between, and what it is given besides the operation."""

    operators: str
    given: dict[str, Any] = {}


RuleTable = dict[str, tuple[RuleRow, ...]]  #: the rows of each function, by its name without underscores at its ends.


def by_operator(rows: RuleTable, functions: Mapping[str, Any]) -> dict[str, Callable[[Operation], Any]]:
    """The rule of each operator in a table; `functions` has those of a module, as its `globals()`."""
    known = {name.strip("_"): function for name, function in functions.items()}
    rules = ((row.operators.split(), partial(known[name], **row.given)) for name, own in rows.items() for row in own)
    return {operator: rule for operators, rule in rules for operator in operators}


def operations_of(model: Model) -> tuple[Operation, ...]:
    """The operation of each node of `model.graph.nodes`."""
    graph = model.graph
    constants = constants_in(model.proto)
    types = {**model.boundary_types, **{name: tensor_of_initializer(value) for name, value in constants.items()}}
    types.update((weight.name, tensor_of_initializer(weight)) for weight in model.proto.graph.initializer)
    if missing := {name for node in graph.nodes for name in node.writes}.difference(types):  # of constant nodes
        found = name_unknown_dims(model.proto, infer_tensors(model.proto, missing, folder=model.path.parent))
        types.update((name, tensor) for name, tensor in found.items() if name in missing)
    tensors = number_unknown_dims(model.proto, types)
    values = {name: integers_of(tensor) for name, tensor in constants.items()}
    versions = {domain(opset.domain): opset.version for opset in model.proto.opset_import}
    made = []
    for node, proto in zip(graph.nodes, model.proto.graph.node, strict=True):
        op = "" if callee_key(proto) in model.functions or has_subgraphs(proto) else node.op
        made.append(Operation(proto, tensors, op, versions.get(domain(proto.domain), 0), values))
    return tuple(made)


def constants_in(proto: ModelProto) -> dict[str, TensorProto]:
    """The initializers that no input may override, and the values of Constant nodes, by the name of the tensor."""
    inputs = {value.name for value in proto.graph.input} if proto.ir_version > 3 else set()
    found = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.name not in inputs}
    constants = ((node.output[0], constant_value(node)) for node in proto.graph.node if is_constant(node))
    return found | {name: value for name, value in constants if value is not None}


def integers_of(tensor: TensorProto) -> tuple[int, ...] | None:
    """The values of a small tensor of integers or booleans that is in its message."""
    is_whole = tensor.data_type in {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
    if not is_whole or is_external(tensor) or prod(tensor.dims) > _MAX_VALUES:
        return None
    return tuple(int(value) for value in to_array(tensor).reshape(-1))
