"""What lies inside a node: bodies, the names these capture, the functions it calls, the tensors it carries.

Works on protobuf messages as they are. Recursion goes into nested bodies only, never along the graph.
Scoping: ONNX IR spec, "Names Within a Graph" and "Value Information"; where a body shadows an outer name, the inner
one wins, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

FunctionKey = tuple[str, str, str]
"""What identifies a model-local function: domain, name, overload (ONNX IR spec, "Functions")."""

FIRST_IR_WITH_DEFAULTS: Final = 4
"""Below it every initializer is listed among the inputs too, and none of them may be fed (ONNX IR spec, "Graphs")."""

_EXTERNAL: Final = 1  # TensorProto.DataLocation

_RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Sampling"}
)
_PURE_DOMAINS: Final = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})


def domain(name: str) -> str:
    """The domain, with the two spellings of ONNX's own brought together."""
    return "" if name == "ai.onnx" else name


def callee_key(thing: NodeProto) -> FunctionKey:
    """The function that a node calls, if there is one of that key."""
    return domain(thing.domain), thing.op_type, thing.overload


def function_key(function: FunctionProto) -> FunctionKey:
    """The key under which nodes call `function`."""
    return domain(function.domain), function.name, function.overload


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs that are attributes of `node` itself."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def has_subgraphs(node: NodeProto) -> bool:
    """Is some attribute of `node` a subgraph?"""
    for attribute in node.attribute:  # noqa: SIM110 - a generator for each of 100,000 nodes costs more than the look
        if attribute.HasField("g") or attribute.graphs:
            return True
    return False


def captures(node: NodeProto) -> list[str]:
    """The names that the bodies of `node` take from the scopes around it, in the order they are first read."""
    return list(dict.fromkeys(name for body in subgraphs(node) for name in _free_names(body)))


def _free_names(graph: GraphProto) -> Iterator[str]:
    own = {""}
    own.update(value.name for value in graph.input)
    own.update(tensor.name for tensor in graph.initializer)
    own.update(sparse.values.name for sparse in graph.sparse_initializer)
    own.update(name for node in graph.node for name in node.output)
    for node in graph.node:
        yield from (name for name in (*node.input, *captures(node)) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and all nodes in their bodies at any depth."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from nodes_within(body.node)


def tensors_within(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every tensor that the nodes carry: in attributes, and as initializers of bodies, at any depth."""
    for node in nodes:
        for attribute in node.attribute:
            yield from tensors_of(attribute)


def tensors_of(attribute: AttributeProto) -> Iterator[TensorProto]:
    """Every tensor that one attribute carries, at any depth."""
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield from _halves(attribute.sparse_tensor)
    for sparse in attribute.sparse_tensors:
        yield from _halves(sparse)
    if attribute.HasField("g"):
        yield from tensors_in(attribute.g)
    for graph in attribute.graphs:
        yield from tensors_in(graph)


def tensors_in(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph: its initializers, dense and sparse, and what its nodes carry."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from _halves(sparse)
    yield from tensors_within(graph.node)


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor anywhere in the model: initializers and attributes, bodies and functions."""
    yield from tensors_in(proto.graph)
    for function in proto.functions:
        yield from tensors_in_function(function)


def tensors_in_function(function: FunctionProto) -> Iterator[TensorProto]:
    """Every tensor that a function carries: in its nodes, and as defaults of its attributes."""
    yield from tensors_within(function.node)
    for attribute in function.attribute_proto:
        yield from tensors_of(attribute)


def _halves(sparse: SparseTensorProto) -> tuple[TensorProto, TensorProto]:
    return sparse.values, sparse.indices


def is_external(tensor: TensorProto) -> bool:
    """Do the values of `tensor` lie in a file, and not in the message?"""
    return tensor.data_location == _EXTERNAL


def functions_called(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]
) -> dict[FunctionKey, None]:
    """The functions that the nodes need: called by them, inside their bodies, or by another function needed."""
    needed: dict[FunctionKey, None] = {}
    if not functions:
        return needed
    waiting = [callee_key(node) for node in nodes_within(nodes)]
    while waiting:
        key = waiting.pop()
        if key in functions and key not in needed:
            needed[key] = None
            waiting.extend(callee_key(node) for node in nodes_within(functions[key].node))
    return needed


def is_stateful(node: NodeProto, functions: Mapping[FunctionKey, FunctionProto], off: Set[str] = frozenset()) -> bool:
    """Can two runs of `node` on the same values differ, or can't we know?

    Random operators, Dropout in training mode, and operators of domains whose meaning we do not know; also when they
    stand in a body, or in a function that the node calls. `off` names the tensors known to be False: a Dropout that
    reads its mode from one is not in training.
    """
    called = functions_called([node], functions)
    inside = [node, *(inner for key in called for inner in functions[key].node)]
    return any(_is_stateful_alone(n, off) and callee_key(n) not in functions for n in nodes_within(inside))


def _is_stateful_alone(node: NodeProto, off: Set[str]) -> bool:
    if node.domain not in _PURE_DOMAINS:
        return True
    if node.op_type in _RANDOM:
        return True
    if not node.op_type.endswith("Dropout"):
        return False
    training = 4 if node.op_type in {"BiasDropout", "BitmaskBiasDropout"} else 2
    return len(node.input) > training and node.input[training] not in {"", *off}
