"""Every operation of a model in one row: what its bodies and functions hold stands beside what the main graph holds.

So a lookup inside an If counts like one outside. Names of inner scopes are made unique; a name that a body captures
stays the name it has outside.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from ..loading.subgraphs import callee_key, domain, subgraphs

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

    from ..loading.model import Model

_INT32: Final = 6  # TensorProto.DataType
_INT64: Final = 7
_KEEPS_SHAPE: Final = frozenset({"DequantizeLinear", "QuantizeLinear", "Cast", "Identity", "Transpose"})
_FEW: Final = 64
"""As long as a constant that lists sizes or axes may be."""


@dataclass(frozen=True, slots=True)
class FlatNode:
    """One operation.

    Attributes:
        op: its operator, with the domain where that is not ONNX's own.
        reads: its inputs by names that are unique in the whole model; `""` keeps the place of one that is left out.
        writes: its outputs likewise.
        attributes: as the node has them.
    """

    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: Sequence[AttributeProto] = ()

    def number(self, name: str, default: int = 0) -> int:
        """An integer attribute. One that a function takes from its caller counts as left out."""
        return next((a.i for a in self.attributes if a.name == name and not a.ref_attr_name), default)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty where it is left out."""
        return next((tuple(a.ints) for a in self.attributes if a.name == name), ())


@dataclass(frozen=True)
class FlatNodes:
    """All operations of a model.

    Attributes:
        row: the operations, in no order that means something.
        weights: initializers and constants by the names that steps use.
        lists: constants that a node holds as plain integers.
    """

    row: list[FlatNode] = field(default_factory=list)
    weights: dict[str, TensorProto] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[FlatNode, int]]]:
        """Who reads a tensor, and as which input."""
        found: dict[str, list[tuple[FlatNode, int]]] = defaultdict(list)
        for step in self.row:
            for place, name in enumerate(step.reads):
                if name:
                    found[name].append((step, place))
        return found

    @cached_property
    def _writers(self) -> Mapping[str, FlatNode]:
        return {name: step for step in self.row for name in step.writes}

    def shape_of_constant(self, name: str) -> tuple[int, ...] | None:
        """The shape of a weight, also of one that is unpacked or turned before it is used; else `None`."""
        turns: list[FlatNode] = []
        while name not in self.weights:
            step = self._writers.get(name)
            if step is None or step.op not in _KEEPS_SHAPE:
                return None
            if step.op == "Transpose":
                turns.append(step)
            name = step.reads[0]
        shape = tuple(self.weights[name].dims)
        for step in reversed(turns):
            order = step.numbers("perm") or tuple(reversed(range(len(shape))))
            shape = tuple(shape[axis] for axis in order)
        return shape

    @cached_property
    def ops(self) -> frozenset[str]:
        """Every operator that occurs."""
        return frozenset(step.op for step in self.row)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The values of a small constant of integers; `None` where `name` is none."""
        if name in self.lists:
            return self.lists[name]
        tensor = self.weights.get(name)
        if tensor is None or tensor.data_type not in {_INT32, _INT64} or prod(tensor.dims) > _FEW:
            return None
        if tensor.HasField("raw_data"):
            kind = np.dtype("<i8" if tensor.data_type == _INT64 else "<i4")
            return tuple(int(value) for value in np.frombuffer(tensor.raw_data, kind))
        return tuple(tensor.int64_data or tensor.int32_data)


def lay_open(model: Model) -> FlatNodes:
    """All operations of `model`. Linear in its nodes, each function counted as often as it is called."""
    opening = _Opening(model)
    opening.open_graph(model.proto.graph, ChainMap())
    return opening.steps


class _Opening:
    """One walk through a model."""

    def __init__(self, model: Model) -> None:
        self.steps = FlatNodes()
        self._functions = model.functions
        self._scopes = 0

    def open_graph(self, graph: GraphProto, names: ChainMap[str, str]) -> None:
        for tensor in graph.initializer:
            self.steps.weights[names.get(tensor.name, tensor.name)] = tensor
        for node in graph.node:
            self._open_node(node, names)

    def _open_node(self, node: NodeProto, names: ChainMap[str, str]) -> None:
        reads = tuple(names.get(name, name) for name in node.input)
        writes = tuple(names.get(name, name) for name in node.output)
        if callee_key(node) in self._functions:
            self._open_function(node, reads, writes)
            return
        own = domain(node.domain)
        step = FlatNode(f"{own}.{node.op_type}" if own else node.op_type, reads, writes, node.attribute)
        self.steps.row.append(step)
        if step.op == "Constant":
            self._keep_constant(node, writes[0])
        for body in subgraphs(node):
            self._open_body(step, body, names)

    def _keep_constant(self, node: NodeProto, name: str) -> None:
        for attribute in node.attribute:
            match attribute.name:
                case "value":
                    self.steps.weights[name] = attribute.t
                case "value_ints":
                    self.steps.lists[name] = tuple(attribute.ints)
                case "value_int":
                    self.steps.lists[name] = (attribute.i,)

    def _open_function(self, node: NodeProto, reads: Sequence[str], writes: Sequence[str]) -> None:
        function = self._functions[callee_key(node)]
        prefix = self._new_prefix()
        names = {name: prefix + name for inner in function.node for name in inner.output if name}
        names.update(dict.fromkeys(function.input, ""))  # an input that the call leaves out
        names.update(zip(function.input, reads, strict=False))
        names.update(zip(function.output, writes, strict=False))
        for inner in function.node:
            self._open_node(inner, ChainMap(names))

    def _open_body(self, step: FlatNode, body: GraphProto, outer: ChainMap[str, str]) -> None:
        prefix = self._new_prefix()
        own = [*(value.name for value in body.input), *(tensor.name for tensor in body.initializer)]
        own += [name for node in body.node for name in node.output if name]
        names = outer.new_child({name: prefix + name for name in own})
        self.open_graph(body, names)
        given = [names[value.name] for value in body.input]
        made = [names.get(value.name, value.name) for value in body.output]
        self.steps.row.extend(_handed_over(step, given, made))

    def _new_prefix(self) -> str:
        self._scopes += 1
        return f"{self._scopes}\n"  # a line break: no name in a model has one


def _handed_over(step: FlatNode, given: Sequence[str], made: Sequence[str]) -> list[FlatNode]:
    """What goes into a body and comes out of it, as steps that hand one value on.

    Reshape stands for what gains or loses an axis on the way.
    """
    match step.op:
        case "If":
            pairs = [("Identity", pair) for pair in zip(made, step.writes, strict=False)]
        case "Loop":  # the body reads the iteration and the condition first, and writes the condition first
            pairs = [("Identity", pair) for pair in zip(step.reads[2:], given[2:], strict=False)]
            pairs += [("Reshape", pair) for pair in zip(made[1:], step.writes, strict=False)]
        case "Scan":
            kept = len(step.reads) - step.number("num_scan_inputs")
            pairs = [("Identity", pair) for pair in zip(step.reads[:kept], given, strict=False)]
            pairs += [("Reshape", pair) for pair in zip(step.reads[kept:], given[kept:], strict=False)]
            pairs += [("Reshape", pair) for pair in zip(made, step.writes, strict=False)]
        case _:
            pairs = []
    return [FlatNode(op, (source,), (target,)) for op, (source, target) in pairs if source and target]
