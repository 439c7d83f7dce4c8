"""FLOPs of any node: by the rule of its operator, or by the nodes in its subgraphs or in the function that it calls.

In subgraphs and functions, shapes come from ONNX shape inference on their nodes alone, from the types that come in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx.numpy_helper import to_array

from ...core.tensors import UNDEFINED, Tensor
from ...loading.operations import Operation
from ...loading.repeated_definitions import is_constant
from ...loading.shape_inference import infer_values, tensor_of_initializer, tensor_of_type, type_proto, with_shape
from ...loading.subgraphs import (
    CONTROL_FLOW,
    Functions,
    callee_key,
    captures,
    has_subgraphs,
    is_external,
    operator,
    subgraphs,
)
from ...loading.tensor_values import constant_value, renamed
from ..formula import UNKNOWN, ZERO, Formula, Rule, axis
from . import attention, elements, products

RULES: Final[Mapping[str, Rule]] = {**elements.RULES, **products.RULES, **attention.RULES}
"""The rules of all operators, except control flow."""

_SMALL_BYTES: Final = 8192
_IR: Final = 10


class FlopCount(NamedTuple):
    """The cost of a node."""

    flops: Formula  #: its floating-point operations.
    uncounted: Mapping[str, int] = MappingProxyType({})  #: operators without a rule, and how many nodes each.


@dataclass(frozen=True)
class Context:
    """What is known where a node is."""

    tensors: Mapping[str, Tensor]  #: types of tensors, by name.
    values: Mapping[str, TensorProto]  #: small tensors with known values, by name.
    opsets: Sequence[OperatorSetIdProto]  #: the operator sets of the nodes.
    functions: Functions  #: the model-local functions.
    dims: Mapping[str, int]  #: numbers for symbols, by which the more expensive branch of an If is chosen.
    called: dict[object, FlopCount] = field(default_factory=dict)  #: a cache: the costs of functions.

    def number(self, name: str) -> int | None:
        """The value of a tensor with one element; `None` if it is unknown."""
        tensor = self.values.get(name)
        array = to_array(tensor) if tensor is not None else np.zeros(0)
        return int(array.item()) if array.size == 1 else None


def count_node(node: NodeProto, context: Context) -> FlopCount:
    """The FLOPs of one run of `node`."""
    if context.functions and callee_key(node) in context.functions:
        return _call(node, context)
    op = operator(node)
    if op in RULES:
        return FlopCount(RULES[op](Operation(node, context.tensors)))
    return _BY_SUBGRAPHS[op](node, context) if op in CONTROL_FLOW else FlopCount(ZERO, {op: 1})


def has_inner_nodes(node: NodeProto, op: str, context: Context) -> bool:
    """Whether `node` is counted by its subgraphs or its function. `op` is its operator as in `Node.op`."""
    is_call = bool(context.functions) and callee_key(node) in context.functions
    return is_call or (op not in RULES and has_subgraphs(node))


def small_values(tensors: Iterable[TensorProto]) -> dict[str, TensorProto]:
    """The small ones of `tensors`, by name: trip counts, shapes, axes."""
    return {tensor.name: tensor for tensor in tensors if not is_external(tensor) and tensor.ByteSize() <= _SMALL_BYTES}


def infer_nodes(nodes: Iterable[NodeProto], context: Context) -> dict[str, Tensor]:
    """The types that ONNX shape inference finds for outputs of `nodes`, from the types and values of the context."""
    model = ModelProto(ir_version=_IR, opset_import=list(context.opsets))
    model.functions.extend(context.functions.values())
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(renamed(value, name) for name, value in context.values.items())
    for name, tensor in context.tensors.items():
        if name not in context.values and tensor.dtype != UNDEFINED:
            model.graph.input.add(name=name, type=type_proto(tensor))
    symbols = {dim for tensor in context.tensors.values() for dim in tensor.shape or () if isinstance(dim, str)}
    found = (tensor_of_type(value.name, value.type, symbols=symbols) for value in infer_values(model))
    return {tensor.name: tensor for tensor in found if tensor.dtype != UNDEFINED}


def _sum(nodes: Iterable[NodeProto], context: Context) -> FlopCount:
    total, uncounted = ZERO, Counter[str]()
    for node in nodes:
        found = count_node(node, context)
        total += found.flops
        uncounted.update(found.uncounted)
    return FlopCount(total, uncounted)


def _run(subgraph: GraphProto, context: Context, incoming: Sequence[Tensor | None] = ()) -> FlopCount:
    """One run of a subgraph whose inputs have the types `incoming`."""
    return _sum(subgraph.node, _inside(subgraph, context, incoming))


def _if(node: NodeProto, context: Context) -> FlopCount:
    """The branch that costs more for the bound dims; the first of equal ones."""
    branches = [_run(subgraph, context) for subgraph in subgraphs(node)]
    flops = max((branch.flops for branch in branches), key=lambda flops: flops.at(context.dims))
    uncounted = sum((Counter(branch.uncounted) for branch in branches), Counter[str]())
    return FlopCount(replace(flops, is_exact=all(branch.flops.is_exact for branch in branches)), uncounted)


def _loop(node: NodeProto, context: Context) -> FlopCount:
    """The body times the trip count; the body once, as a lower bound, if the count is unknown.

    It is exact if the condition can't end the loop earlier and the carried tensors keep their shapes.
    """
    body, own = next(subgraphs(node)), CONTROL_FLOW["Loop"]
    carried = [context.tensors.get(name) for name in node.input[own.reads :]]
    scalars = [Tensor(name="", dtype=dtype, shape=()) for dtype in ("int64", "bool")]
    inner = _inside(body, context, [*scalars, *carried])
    once = _sum(body.node, inner)
    trips = context.number(node.input[0]) if node.input[0] else None
    flops = once.flops * (UNKNOWN if trips is None else max(0, trips))
    keeps_shapes = all(
        before is not None and (after := inner.tensors.get(value.name)) is not None and before.shape == after.shape
        for before, value in zip(carried, body.output[own.outputs :], strict=False)
    )
    is_exact = flops.is_exact and keeps_shapes and _makes_all_trips(node, body, context)
    return FlopCount(replace(flops, is_exact=is_exact), once.uncounted)


def _makes_all_trips(node: NodeProto, body: GraphProto, context: Context) -> bool:
    """Whether the condition of a loop is always true: it has none, or it starts true and the body keeps it."""
    if len(node.input) < 2 or not node.input[1]:
        return True
    if context.number(node.input[1]) != 1:
        return False
    before, after = body.input[1].name, body.output[0].name
    writer = next((inner for inner in body.node if after in inner.output), None)
    if writer is None or writer.op_type == "Identity":
        return before == (after if writer is None else writer.input[0])
    value = constant_value(writer) if writer.op_type == "Constant" else None
    return value is not None and bool(to_array(value).all())


def _sequence_map(node: NodeProto, context: Context) -> FlopCount:
    """The body for each element of a sequence of unknown length."""
    once = _run(next(subgraphs(node)), context)
    return FlopCount(once.flops * UNKNOWN, once.uncounted)


def _scan(node: NodeProto, context: Context) -> FlopCount:
    """The body for each slice of the scanned inputs. Scan of opset 8, with lengths and a batch axis, has no rule."""
    body = next(subgraphs(node))
    attributes = {attribute.name: attribute for attribute in node.attribute}
    scanned = attributes["num_scan_inputs"].i
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * scanned
    if len(node.input) != len(body.input) or not 0 < scanned == len(axes) <= len(node.input):
        return FlopCount(ZERO, {"Scan": 1})
    states = len(node.input) - scanned
    whole = [context.tensors.get(name) for name in node.input]
    slices = [_slice(tensor, i) for tensor, i in zip(whole[states:], axes, strict=True)]
    once = _run(body, context, [*whole[:states], *slices])
    first = whole[states]
    return FlopCount(once.flops * Formula.of(axis(first.shape if first else None, axes[0])), once.uncounted)


#: how the operators of `subgraphs.CONTROL_FLOW` are counted.
_BY_SUBGRAPHS: Final[Mapping[str, Callable[[NodeProto, Context], FlopCount]]] = {
    "If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map,
}  # fmt: skip


def _slice(tensor: Tensor | None, index: int) -> Tensor | None:
    """The type of a slice across one axis."""
    if tensor is None or tensor.shape is None:
        return tensor
    return with_shape(tensor, (*tensor.shape[:index], *tensor.shape[index:][1:]))


def _call(node: NodeProto, context: Context) -> FlopCount:
    """The nodes of a function with the inputs and attributes of this call."""
    tensors = [context.tensors.get(name) for name in node.input]
    values = [context.values.get(name) for name in node.input]
    key = callee_key(node)
    same = (
        key,
        tuple((tensor.dtype, tensor.shape) if tensor else None for tensor in tensors),
        tuple((value.data_type, tuple(value.dims), to_array(value).tobytes()) if value else None for value in values),
        tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)),
    )
    if same not in context.called:
        function = context.functions[key]
        given = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
        inner = ModelProto().graph.node
        inner.extend(function.node)
        for copy in inner:
            _bind_attributes(copy, given)
        types = {name: tensor for name, tensor in zip(function.input, tensors, strict=False) if tensor}
        known = {name: renamed(value, name) for name, value in zip(function.input, values, strict=False) if value}
        own = replace(context, tensors=types, values=known, opsets=list(function.opset_import))
        context.called[same] = _sum(inner, _among(inner, own))
    return context.called[same]


def _bind_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    """Replace references to attributes of a function by the caller's attributes, also in subgraphs."""
    for i in reversed(range(len(node.attribute))):
        name, reference = node.attribute[i].name, node.attribute[i].ref_attr_name
        if reference in given:
            node.attribute[i].CopyFrom(given[reference])
            node.attribute[i].name = name
        elif reference:
            del node.attribute[i]
    for subgraph in subgraphs(node):
        for inner in subgraph.node:
            _bind_attributes(inner, given)


def _inside(subgraph: GraphProto, context: Context, incoming: Sequence[Tensor | None]) -> Context:
    """What is known inside a subgraph: of its inputs, its own tensors, and what it captures."""
    inputs = {value.name: tensor_of_type(value.name, value.type) for value in subgraph.input if value.HasField("type")}
    inputs.update({v.name: tensor for v, tensor in zip(subgraph.input, incoming, strict=False) if tensor is not None})
    inputs.update((tensor.name, tensor_of_initializer(tensor)) for tensor in subgraph.initializer)
    own = {*inputs, *(name for node in subgraph.node for name in node.output)}
    captured = sorted({name for node in subgraph.node for name in (*node.input, *captures(node))} - own)
    tensors = {name: context.tensors[name] for name in captured if name in context.tensors}
    values = {name: context.values[name] for name in captured if name in context.values}
    values |= small_values(subgraph.initializer)
    return _among(subgraph.node, replace(context, tensors={**tensors, **inputs}, values=values))


def _among(nodes: Iterable[NodeProto], context: Context) -> Context:
    """What is known of `nodes`, with what the context has of tensors from outside: also their outputs, as inferred."""
    nodes = list(nodes)
    inferred = infer_nodes(nodes, context)
    constants = (constant_value(node) for node in nodes if is_constant(node))
    own = small_values(value for value in constants if value is not None)
    # An output hides an outer tensor of its name, even where nothing is known of the output.
    hidden = {name: Tensor(name=name, dtype=UNDEFINED, shape=None) for node in nodes for name in node.output}
    return replace(context, tensors={**hidden, **context.tensors, **inferred}, values={**context.values, **own})
