"""All nodes of a model in one list: those of the main graph, of subgraphs and of called functions.

Names defined in subgraphs get a unique prefix; a captured name keeps its outer name.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

from onnx import AttributeProto, GraphProto, TensorProto
from onnx.inliner import inline_local_functions

from ..core.graph import grouped
from ..loading.model import Model
from ..loading.operations import integers_of
from ..loading.subgraphs import CONTROL_FLOW, operator, own_names, subgraphs
from ..loading.tensor_values import constant_value


class FlatNode(NamedTuple):
    """One node."""

    op: str  #: its operator, prefixed by the domain unless that is the default domain.
    reads: tuple[str, ...]  #: its inputs, by names that are unique in the whole model; `""` for an omitted one.
    writes: tuple[str, ...]  #: its outputs, likewise.
    attributes: Sequence[AttributeProto] = ()  #: of the node.

    def number(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return next((a.i for a in self.attributes if a.name == name), default)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty if omitted."""
        return next((tuple(a.ints) for a in self.attributes if a.name == name), ())


@dataclass(frozen=True)
class FlatNodes:
    """All nodes of a model."""

    row: list[FlatNode] = field(default_factory=list)  #: the nodes, in no particular order.
    weights: dict[str, TensorProto] = field(default_factory=dict)  #: initializers and constants, by name.
    _scopes: Iterator[int] = field(default_factory=count)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[FlatNode, int]]]:
        """For each tensor its readers, each with the index of the input."""
        return grouped((name, (node, i)) for node in self.row for i, name in enumerate(node.reads) if name)

    @cached_property
    def _writers(self) -> Mapping[str, FlatNode]:
        return {name: node for node in self.row for name in node.writes}

    def shape_of_constant(self, name: str) -> tuple[int, ...] | None:
        """The shape of a constant, also after dequantization, cast or transposition; else `None`."""
        turns: list[FlatNode] = []
        while name not in self.weights:
            node = self._writers.get(name)
            if node is None or node.op not in {"DequantizeLinear", "QuantizeLinear", "Cast", "Identity", "Transpose"}:
                return None
            if node.op == "Transpose":
                turns.append(node)
            name = node.reads[0]
        shape = tuple(self.weights[name].dims)
        for node in reversed(turns):
            order = node.numbers("perm") or tuple(reversed(range(len(shape))))
            shape = tuple(shape[axis] for axis in order)
        return shape

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The values of a small integer constant; `None` if `name` is no such constant."""
        return integers_of(self.weights[name]) if name in self.weights else None

    def add_graph(self, graph: GraphProto, names: ChainMap[str, str]) -> None:
        """Add the nodes of a graph, in which some names stand for others."""
        for tensor in graph.initializer:
            self.weights[names.get(tensor.name, tensor.name)] = tensor
        for node in graph.node:
            reads, writes = (tuple(names.get(name, name) for name in ends) for ends in (node.input, node.output))
            flat = FlatNode(operator(node), reads, writes, node.attribute)
            self.row.append(flat)
            if flat.op == "Constant" and (value := constant_value(node)) is not None:
                self.weights[writes[0]] = value
            for body in subgraphs(node):
                self._add_body(flat, body, names)

    def _add_body(self, node: FlatNode, body: GraphProto, outer: ChainMap[str, str]) -> None:
        prefix = f"{next(self._scopes)}\n"  # a line break: no name in a model has one
        names = outer.new_child({name: prefix + name for name in own_names(body) if name})
        self.add_graph(body, names)
        given = [names[value.name] for value in body.input]
        self.row.extend(_body_transfers(node, given, [names.get(value.name, value.name) for value in body.output]))


def flatten(model: Model) -> FlatNodes:
    """All nodes of `model`. Linear in its nodes, where a function counts once for each call."""
    nodes = FlatNodes()
    nodes.add_graph((inline_local_functions(model.proto) if model.functions else model.proto).graph, ChainMap())
    return nodes


def _body_transfers(node: FlatNode, given: Sequence[str], made: Sequence[str]) -> list[FlatNode]:
    """Nodes that connect the inputs and outputs of a control-flow node with those of its body.

    Identity where the tensor is the same, or an element of the sequence; Reshape where an axis is added or removed.
    """
    if node.op not in CONTROL_FLOW:
        return []
    own = CONTROL_FLOW[node.op]
    whole = len(node.reads) - (node.number("num_scan_inputs") if node.op == "Scan" else 0)
    pairs = [("Identity", pair) for pair in zip(node.reads[own.reads : whole], given[own.inputs :], strict=False)]
    if node.op == "Scan":
        pairs += [("Reshape", pair) for pair in zip(node.reads[whole:], given[whole:], strict=False)]
    joined = "Identity" if node.op == "If" else "Reshape"
    pairs += [(joined, pair) for pair in zip(made[own.outputs :], node.writes, strict=False)]
    return [FlatNode(op, (source,), (target,)) for op, (source, target) in pairs if source and target]
