"""Which nodes of a model a device can run by its rules, and why not the others."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf
from typing import Any, Final

import msgspec
from onnx import NodeProto
from onnx.helper import get_attribute_value

from ..core.graph import Node, grouped
from ..core.product import Product
from ..core.records import table
from ..core.units import size
from ..loading.node_rules import operator_schema
from ..loading.operations import Operation, operations_of
from ..loading.subgraphs import callee_key, domain, functions_called, nodes_within, operator
from .device import Device, run_s
from .device_rules import AttributeRule, DeviceRules, Kind, OperatorRule, TensorRules
from .weighing import Costs


class Refusal(msgspec.Struct, frozen=True, order=True):
    """Why a device can't run a node."""

    kind: Kind  #: which rule refuses it.
    why: str  #: the reason, in a few words.


class UnsupportedNodes(msgspec.Struct, frozen=True):
    """Nodes of one operator that a device can't run for the same reason."""

    op: str  #: their operator.
    kind: Kind  #: which rule refuses them.
    why: str  #: the reason, in a few words.
    nodes: tuple[str, ...]  #: their names.
    flops_share: float  #: their share of the FLOPs of the model.
    time_share: float  #: their share of its time, as estimated for a CPU.
    helps: str  #: what would let the device run them.


class DeviceSupport(Product, msgspec.Struct, frozen=True, tag_field="format", tag="graphcut.support/1"):
    """What of a model a device can run."""

    model: str  #: path of the model.
    rules: DeviceRules  #: the rules of the device.
    nodes: int  #: number of flowing nodes.
    supported: int  #: how many of them it can run.
    flops_share: float  #: the share of the FLOPs of the model that these have.
    unsupported: tuple[UnsupportedNodes, ...]  #: the others, those with most FLOPs first.


def device_support(costs: Costs, rules: DeviceRules) -> DeviceSupport:
    """What a device can run of a model, and why not the rest.

    Args:
        costs: the model with sizes, from `weigh`: rules may be about shapes, and shares are those of FLOPs and seconds.
        rules: what the device can't run, from `read_rules` or `ask`.

    Returns:
        The number and the share of the nodes that it can run, and the others by operator and reason, those with most
        FLOPs first.
    """
    graph, found = costs.model.graph, refusals(costs, rules)
    refused = ((i, refusal) for i, refusal in enumerate(found) if refusal is not None)
    seconds, rows = run_s(costs, Device(name="cpu")), list[UnsupportedNodes]()
    for (op, refusal), own in grouped(((graph.nodes[graph.flow[i]].op, one), i) for i, one in refused).items():
        shares, names = (_share(costs.flops, own), _share(seconds, own)), graph.names(graph.flow[i] for i in own)
        rows.append(UnsupportedNodes(op, refusal.kind, refusal.why, names, *shares, _helps(costs, op, refusal)))
    rows.sort(key=lambda row: (-row.flops_share, -len(row.nodes), row.op, row.why))
    rest = [i for i, refusal in enumerate(found) if refusal is None]
    share = _share(costs.flops, rest)
    return DeviceSupport(str(costs.model.path), rules, len(graph.flow), len(rest), share, tuple(rows))


def possible_s(costs: Costs, device: Device, seconds: Sequence[float], *, begins: bool = False) -> Sequence[float]:
    """The seconds of each flowing node on a device, infinite where its rules refuse the node; see `refusals`."""
    if device.rules is None:
        return seconds
    found = refusals(costs, device.rules, begins=begins)
    return tuple(inf if refusal else one for one, refusal in zip(seconds, found, strict=True))


def refusals(costs: Costs, rules: DeviceRules, *, begins: bool = False) -> tuple[Refusal | None, ...]:
    """For each flowing node why a device can't run it, or None. Dimensions have numbers where the model's dims do.

    What can't run together with the nodes before it alone is not refused if it `begins` a part.
    """
    found = map(_Judge(costs, rules).refusal_of, costs.model.graph.flow)
    return tuple(None if begins and one is not None and one.kind == "whole" else one for one in found)


def first_nodes(costs: Costs, rules: DeviceRules | None) -> frozenset[int]:
    """The nodes that can't run on a device in one part with nodes before them."""
    pairs = zip(costs.model.graph.flow, refusals(costs, rules), strict=True) if rules is not None else ()
    return frozenset(node for node, refusal in pairs if refusal is not None and refusal.kind == "whole")


def _share(numbers: Sequence[float], indices: Sequence[int]) -> float:
    return sum(numbers[i] for i in indices) / (sum(numbers) or 1)


def _helps(costs: Costs, op: str, refusal: Refusal) -> str:
    if refusal.kind != "shape":
        helps = table("costs/device_support.toml", dict[Kind, str])
        return helps.get(refusal.kind, "another export without {} like this").format(op)
    named = ", ".join(name for name in costs.model.symbols if name not in costs.model.dims)
    return f"`dims` for {named}" if named else "a model whose shapes don't depend on values"


@dataclass(frozen=True)
class _Judge:
    """Judges the nodes of a model by the rules of a device."""

    costs: Costs
    rules: DeviceRules

    @cached_property
    def _by_op(self) -> Mapping[str, Sequence[OperatorRule]]:
        return grouped((op, rule) for rule in self.rules.operators for op in rule.names)

    @cached_property
    def _refused(self) -> Mapping[str, Refusal]:
        return {name: Refusal(one.kind, one.why) for one in self.rules.refused for name in one.nodes}

    def _told(self, name: str) -> Refusal | None:
        """Why the rules refuse a node by its name, or None."""
        if (found := _matching(self._refused, name)) is not None:
            return self._refused[found]
        is_left_out = self.rules.nodes and _matching(self.rules.nodes, name) is None
        return Refusal("node", "not named in the rules") if is_left_out else None

    def refusal_of(self, index: int) -> Refusal | None:
        """Why the device can't run a node of the model, or None."""
        model = self.costs.model
        node, operation = model.graph.nodes[index], model.once(operations_of)[index]
        if refusal := self._told(node.name) or self._inner(operation.node):
            return refusal
        is_call = callee_key(operation.node) in model.functions
        if not self.rules.operators or (is_call and node.op not in self._by_op):
            return self._of_tensors(node, operation, self.rules)
        found = [self._by_rule(node, operation, rule) for rule in self._by_op.get(node.op, ())]
        return None if None in found else next(iter(found), Refusal("operator", "no such operator"))

    def _inner(self, proto: NodeProto) -> Refusal | None:
        """Why it can't run what is inside a node: operators alone are judged there."""
        functions = self.costs.model.functions if self.rules.operators else {}
        opened = {key: body for key, body in functions.items() if ".".join(filter(None, key[:2])) not in self._by_op}
        called = (node for key in functions_called([proto], opened) for node in opened[key].node)
        inner = (one for one in nodes_within([proto, *called]) if one is not proto and callee_key(one) not in opened)
        unknown = next((operator(one) for one in inner if operator(one) not in self._by_op), "")
        return Refusal("operator", f"{unknown} inside") if unknown and self.rules.operators else None

    def _by_rule(self, node: Node, operation: Operation, rule: OperatorRule) -> Refusal | None:
        if not rule.opset_from <= operation.version <= (rule.opset_to or operation.version):
            has = f"{rule.opset_from} to {rule.opset_to or 'any'}"
            return Refusal("opset", f"opset {operation.version}, and it has {has}")
        for i in rule.constant_inputs:
            if operation.has(i) and operation.inputs[i] in node.reads:
                return Refusal("input", f"input {i} is no constant")
        for attribute in rule.attributes:
            if (why := _wrong(operation, attribute)) is not None:
                return Refusal("attribute", why)
        own = {name: getattr(rule, name) for name in TensorRules.__struct_fields__}
        merged = {name: getattr(self.rules, name) if value is None else value for name, value in own.items()}
        return self._of_tensors(node, operation, TensorRules(**merged))

    def _of_tensors(self, node: Node, operation: Operation, rules: TensorRules) -> Refusal | None:
        """Why the tensors of a node are refused, or None."""
        model = self.costs.model
        activations = [model.tensors[name] for name in (*node.reads, *node.writes)]
        constants = [operation.tensors[name] for name in (*node.weights, *node.constants) if name in operation.tensors]
        used = [one.dtype for one in (*activations, *(one for one in constants if one.dtype not in _OF_SHAPES))]
        if rules.types is not None and (wrong := [dtype for dtype in used if dtype not in rules.types]):
            return Refusal("type", f"type {wrong[0]}")
        if rules.static_shapes and any(not model.tensor_bytes[one.name][1] for one in activations):
            return Refusal("shape", "dynamic shape")
        shapes = [model.sizes.found.get(one.name, one).shape for one in activations]
        ranks = [None if shape is None else len(shape) for shape in shapes]
        if rules.ranks is not None and (unlike := [rank for rank in ranks if rank not in rules.ranks]):
            return Refusal("rank", "unknown rank" if unlike[0] is None else f"rank {unlike[0]}")
        limit = rules.largest_tensor_bytes
        sizes = [self.costs.tensor_bytes[one.name][0] for one in activations]
        largest = max([*sizes, *(model.graph.weights[name].bytes for name in node.weights)], default=0)
        return Refusal("size", f"a tensor of more than {size(limit)}") if limit and largest > limit else None


_OF_SHAPES: Final = ("int64", "int32", "bool")  #: types of constants that are shapes, axes, indices or masks.


def _matching(patterns: Collection[str], name: str) -> str | None:
    return name if name in patterns else next((one for one in patterns if fnmatchcase(name, one)), None)


def _wrong(operation: Operation, rule: AttributeRule) -> str | None:
    """What is wrong with an attribute, or None."""
    value = operation.attributes.get(rule.name, _default(operation, rule.name))
    values = value if isinstance(value, list | tuple) else () if value is None else (value,)
    is_known = rule.any_of is None or all(one in rule.any_of for one in values)
    is_large = rule.at_least is None or all(one >= rule.at_least for one in values)
    is_small = rule.at_most is None or all(one <= rule.at_most for one in values)
    return None if is_known and is_large and is_small else f"{rule.name} is {', '.join(map(str, values))}"


def _default(operation: Operation, name: str) -> Any:  # noqa: ANN401 - an attribute of any type
    """The value that an attribute has where it is left out; None if ONNX gives none."""
    schema = operator_schema(operation.node.op_type, domain(operation.node.domain), operation.version)
    default = schema.attributes[name].default_value if schema and name in schema.attributes else None
    value = get_attribute_value(default) if default and default.name else None
    return value.decode() if isinstance(value, bytes) else value
