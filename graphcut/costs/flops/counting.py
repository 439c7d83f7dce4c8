"""The FLOPs of any node: by the formula of its operator, or by the nodes of its bodies and of the function it calls.

Inside bodies and functions sizes come from ONNX shape inference, run on what is inside alone with the types that come
in. Where they can't be known the formula is a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx.numpy_helper import to_array

from ...core.wiring import Tensor
from ...loading.shape_inference import tensor_of_initializer, tensor_of_type, type_proto
from ...loading.subgraphs import FunctionKey, callee_key, captures, domain, has_subgraphs, is_external, subgraphs
from ..formula import UNKNOWN, ZERO, Formula
from . import attention, elements, products
from .operation import Operation, Rule, axis

RULES: Final[Mapping[str, Rule]] = {**elements.RULES, **products.RULES, **attention.RULES}
"""Every operator with a formula, but for those that only move data (`elements.MOVING`)."""

_SMALL_BYTES: Final = 8192
_IR: Final = 10
_UNDEFINED: Final = "undefined"


@dataclass(frozen=True, slots=True)
class FlopCount:
    """What a node costs.

    Attributes:
        flops: its floating-point operations.
        uncounted: operators without a formula, in it or inside it, and how many nodes; they count as 0.
    """

    flops: Formula
    uncounted: Mapping[str, int] = field(default_factory=dict)


_NOTHING: Final = FlopCount(ZERO)


@dataclass(frozen=True)
class Scope:
    """What a node can see.

    Attributes:
        tensors: the types of tensors, by name.
        values: small tensors whose values are known, by name.
        opsets: the operator sets that the nodes are written in.
        functions: the model-local functions.
        dims: numbers for symbols, by which the heavier branch of an If is chosen.
        called: what functions cost with inputs of given types; filled as they are met.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, TensorProto]
    opsets: Sequence[OperatorSetIdProto]
    functions: Mapping[FunctionKey, FunctionProto]
    dims: Mapping[str, int]
    called: dict[object, FlopCount] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """The value of a tensor that holds one number, where it is known."""
        tensor = self.values.get(name)
        if tensor is None:
            return None
        array = to_array(tensor)
        return int(array.reshape(())) if array.size == 1 else None


def count_node(node: NodeProto, scope: Scope) -> FlopCount:
    """The FLOPs of one run of `node`."""
    if scope.functions and (key := callee_key(node)) in scope.functions:
        return _called(node, key, scope)
    space = domain(node.domain)
    op = f"{space}.{node.op_type}" if space else node.op_type
    if op in elements.MOVING:
        return _NOTHING
    rule = RULES.get(op)
    if rule is not None:
        return FlopCount(rule(Operation(node, scope.tensors)))
    control = _CONTROL.get(op)
    return control(node, scope) if control is not None else FlopCount(ZERO, {op: 1})


def has_insides(node: NodeProto, op: str, scope: Scope) -> bool:
    """Has `node` bodies, or does it call a model-local function? `op` is its operator as in `Node.op`."""
    if scope.functions and callee_key(node) in scope.functions:
        return True
    return op not in RULES and op not in elements.MOVING and has_subgraphs(node)


def small_values(tensors: Iterable[TensorProto]) -> dict[str, TensorProto]:
    """Those of `tensors` whose values are at hand and small, by name: trip counts, shapes, axes."""
    return {tensor.name: tensor for tensor in tensors if not is_external(tensor) and tensor.ByteSize() <= _SMALL_BYTES}


def constant_value(node: NodeProto) -> TensorProto | None:
    """What a Constant node gives, named after its output; `None` for a sparse one, and for text."""
    for attribute in node.attribute:
        name = node.output[0]
        match attribute.name:
            case "value":
                tensor = TensorProto()
                tensor.CopyFrom(attribute.t)
                tensor.name = name
                return tensor
            case "value_int" | "value_ints":
                ints = [attribute.i] if attribute.name == "value_int" else list(attribute.ints)
                return onnx.helper.make_tensor(name, TensorProto.INT64, _dims_of(attribute, ints), ints)
            case "value_float" | "value_floats":
                floats = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                return onnx.helper.make_tensor(name, TensorProto.FLOAT, _dims_of(attribute, floats), floats)
    return None


def _dims_of(attribute: AttributeProto, values: Sequence[object]) -> list[int]:
    return [len(values)] if attribute.name.endswith("s") else []


def _sum(nodes: Iterable[NodeProto], scope: Scope) -> FlopCount:
    total, uncounted = ZERO, Counter[str]()
    for node in nodes:
        found = count_node(node, scope)
        total += found.flops
        uncounted.update(found.uncounted)
    return FlopCount(total, uncounted)


def _inside(body: GraphProto, scope: Scope, incoming: Sequence[Tensor | None] = ()) -> FlopCount:
    """One run of a body whose inputs have the types `incoming`."""
    return _sum(body.node, _scope_within(body, scope, incoming))


def _branching(node: NodeProto, scope: Scope) -> FlopCount:
    """The branch that costs more for the bound dims; of two that cost the same, the first."""
    branches = [_inside(body, scope) for body in subgraphs(node)]
    heavier = max((branch.flops for branch in branches), key=lambda flops: flops.at(scope.dims))
    is_exact = all(branch.flops.is_exact for branch in branches)
    uncounted = sum((Counter(branch.uncounted) for branch in branches), Counter[str]())
    return FlopCount(replace(heavier, is_exact=is_exact), uncounted)


def _looping(node: NodeProto, scope: Scope) -> FlopCount:
    """The body, as often as the trip count says; once, and as a lower bound, where that is not known.

    The count is exact only where the condition can't end the loop before, and what is carried keeps its sizes.
    """
    body = next(subgraphs(node))
    carried = [scope.tensors.get(name) for name in node.input[2:]]
    scalars = [Tensor(name="", dtype=dtype, shape=()) for dtype in ("int64", "bool")]
    inner = _scope_within(body, scope, [*scalars, *carried])
    once = _sum(body.node, inner)
    trips = scope.number(node.input[0]) if node.input[0] else None
    flops = once.flops * (UNKNOWN if trips is None else max(0, trips))
    keeps = all(
        before is not None and (after := inner.tensors.get(value.name)) is not None and before.shape == after.shape
        for before, value in zip(carried, body.output[1:], strict=False)
    )
    is_exact = flops.is_exact and keeps and _runs_to_its_end(node, body, scope)
    return FlopCount(replace(flops, is_exact=is_exact), once.uncounted)


def _runs_to_its_end(node: NodeProto, body: GraphProto, scope: Scope) -> bool:
    """Is the condition of a loop always true? Either it has none, or true goes in and the body hands it on."""
    if len(node.input) < 2 or not node.input[1]:
        return True
    if scope.number(node.input[1]) != 1:
        return False
    going, kept = body.input[1].name, body.output[0].name
    for inner in body.node:
        if kept in inner.output:
            value = constant_value(inner) if inner.op_type == "Constant" else None
            is_same = inner.op_type == "Identity" and inner.input[0] == going
            return is_same or (value is not None and bool(to_array(value).all()))
    return kept == going


def _mapping(node: NodeProto, scope: Scope) -> FlopCount:
    """SequenceMap: the body for each element of a sequence, whose length nothing tells."""
    once = _inside(next(subgraphs(node)), scope)
    return FlopCount(once.flops * UNKNOWN, once.uncounted)


def _scanning(node: NodeProto, scope: Scope) -> FlopCount:
    """The body for each slice of what is scanned. Scan of opset 8, with lengths and a batch axis, has no formula."""
    body = next(subgraphs(node))
    if len(node.input) != len(body.input):
        return FlopCount(ZERO, {"Scan": 1})
    numbers = {attribute.name: attribute for attribute in node.attribute}
    scanned = numbers["num_scan_inputs"].i
    axes = list(numbers["scan_input_axes"].ints) if "scan_input_axes" in numbers else [0] * scanned
    states = len(node.input) - scanned
    whole = [scope.tensors.get(name) for name in node.input]
    slices = [_slice(tensor, at) for tensor, at in zip(whole[states:], axes, strict=True)]
    once = _inside(body, scope, [*whole[:states], *slices])
    first = whole[states]
    return FlopCount(once.flops * Formula.of(axis(first.shape if first else None, axes[0])), once.uncounted)


_CONTROL: Final[Mapping[str, Callable[[NodeProto, Scope], FlopCount]]] = {
    "If": _branching,
    "Loop": _looping,
    "Scan": _scanning,
    "SequenceMap": _mapping,
}


def _slice(tensor: Tensor | None, at: int) -> Tensor | None:
    if tensor is None or tensor.shape is None:
        return tensor
    place = at % len(tensor.shape)
    return Tensor(name="", dtype=tensor.dtype, shape=tensor.shape[:place] + tensor.shape[place + 1 :])


def _called(node: NodeProto, key: FunctionKey, scope: Scope) -> FlopCount:
    """What the nodes of a function cost with the inputs and attributes of this call."""
    function = scope.functions[key]
    reads = [scope.tensors.get(name) for name in node.input]
    values = [scope.values.get(name) for name in node.input]
    same = (
        key,
        tuple((tensor.dtype, tensor.shape) if tensor else None for tensor in reads),
        tuple((value.data_type, tuple(value.dims), to_array(value).tobytes()) if value else None for value in values),
        tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)),
    )
    if same not in scope.called:
        scope.called[same] = _counted(node, function, scope, reads, values)
    return scope.called[same]


def _counted(
    node: NodeProto,
    function: FunctionProto,
    scope: Scope,
    reads: Sequence[Tensor | None],
    values: Sequence[TensorProto | None],
) -> FlopCount:
    given = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
    nodes = [_with_attributes(inner, given) for inner in function.node]
    names = list(function.input)
    tensors = {name: tensor for name, tensor in zip(names, reads, strict=False) if tensor is not None}
    known = {name: _renamed(value, name) for name, value in zip(names, values, strict=False) if value is not None}
    written_in = replace(scope, opsets=list(function.opset_import))
    return _sum(nodes, _scope_of(nodes, written_in, tensors, known))


def _renamed(tensor: TensorProto, name: str) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def _with_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """The node with the caller's attributes in place of references to them, in its bodies too."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _put_in(copy, given)
    return copy


def _put_in(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    attributes = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            attributes.append(attribute)
        elif attribute.ref_attr_name in given:
            put = AttributeProto()
            put.CopyFrom(given[attribute.ref_attr_name])
            put.name = attribute.name
            attributes.append(put)
    copies = [AttributeProto.FromString(attribute.SerializeToString()) for attribute in attributes]
    del node.attribute[:]
    node.attribute.extend(copies)
    for body in subgraphs(node):
        for inner in body.node:
            _put_in(inner, given)


def _scope_within(body: GraphProto, scope: Scope, incoming: Sequence[Tensor | None]) -> Scope:
    """What the nodes of a body see: its inputs with the types that come in, its own tensors, and what is around it."""
    inputs = {value.name: tensor_of_type(value.name, value.type) for value in body.input if value.HasField("type")}
    for value, tensor in zip(body.input, incoming, strict=False):
        if tensor is not None:
            inputs[value.name] = tensor
    inputs.update((tensor.name, tensor_of_initializer(tensor)) for tensor in body.initializer)
    own_values = small_values(body.initializer)
    shadowed = {*inputs, *(name for node in body.node for name in node.output)}
    captured = dict.fromkeys(
        name for node in body.node for name in (*node.input, *captures(node)) if name and name not in shadowed
    )
    around = {name: scope.tensors[name] for name in captured if name in scope.tensors}
    values = {name: scope.values[name] for name in captured if name in scope.values}
    return _scope_of(body.node, scope, {**around, **inputs}, {**values, **own_values})


def _scope_of(
    nodes: Iterable[NodeProto], scope: Scope, given: Mapping[str, Tensor], values: Mapping[str, TensorProto]
) -> Scope:
    """What `nodes` see that stand together: what is `given`, and what they write, as far as inference knows it."""
    nodes = list(nodes)
    inside = infer_nodes(nodes, given, values, scope)
    constants = (constant_value(node) for node in nodes if node.op_type == "Constant" and not domain(node.domain))
    own = {**values, **small_values(value for value in constants if value is not None)}
    # What is written inside hides what stands outside under the same name, even where nothing is known of it.
    hidden = {name: Tensor(name=name, dtype=_UNDEFINED, shape=None) for node in nodes for name in node.output}
    return replace(scope, tensors={**hidden, **given, **inside}, values=own)


def infer_nodes(
    nodes: Iterable[NodeProto], given: Mapping[str, Tensor], values: Mapping[str, TensorProto], scope: Scope
) -> dict[str, Tensor]:
    """What ONNX shape inference finds for what `nodes` write, from the types in `given` and the values in `values`."""
    model = ModelProto(ir_version=_IR, opset_import=list(scope.opsets))
    model.functions.extend(scope.functions.values())
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(_renamed(value, name) for name, value in values.items())
    for name, tensor in given.items():
        if name not in values and tensor.dtype != _UNDEFINED:
            model.graph.input.add(name=name, type=type_proto(tensor))
    symbols = {dim for tensor in given.values() for dim in tensor.shape or () if isinstance(dim, str)}
    try:
        done = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - it raises many kinds of errors on models that run; sizes stay unknown
        return {}
    found = (tensor_of_type(value.name, value.type, symbols=symbols) for value in done.graph.value_info)
    return {tensor.name: tensor for tensor in found if tensor.dtype != _UNDEFINED}
