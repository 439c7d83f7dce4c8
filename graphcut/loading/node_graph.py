"""A graph as people read it: operators, attributes, types, initializers, and the subgraphs of its nodes. Texts only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Final, NamedTuple

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx.helper import get_attribute_value, tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from ..core.tensors import TensorBytes
from ..core.text import few
from ..core.units import size
from .model import Model
from .node_rules import operator_schema
from .operations import constants_in
from .repeated_definitions import is_constant
from .shape_inference import tensor_of_initializer, tensors_of_values
from .subgraphs import FunctionKey, callee_key, captures, domain, free_names, functions_called, is_external, operator
from .tensor_values import values_bytes

_MAX_VALUES: Final = 8  #: a tensor or a list with more is described without its values.
_DTYPE_NAMES: Final = frozenset({"to", "dtype", "output_dtype"})  #: attributes that are numbers of element types.
_USUAL: Final = {"pads": {"0"}, "strides": {"1"}, "dilations": {"1"}}  #: what ONNX takes these for if they are omitted.

_Named = tuple[str, NodeProto]  #: a node after its name.
Versions = Mapping[str, int]  #: the version of the operator set of each domain.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGraph:
    """A graph. Nodes and tensors are named by their indices: the tuples about nodes are parallel, so are the others."""

    nodes: tuple[str, ...]  #: names, without those of Constant nodes.
    ops: tuple[str, ...]  #: operators.
    attributes: tuple[tuple[str, ...], ...]  #: such as `axis = -1`, without those that have their default.
    reads: tuple[tuple[int, ...], ...]  #: the tensors that a node or a subgraph of it reads, initializers included.
    writes: tuple[tuple[int, ...], ...]  #: the tensors that it writes.
    #: subgraphs of nodes, each with its attribute's name; of a call the index of its function.
    bodies: Mapping[int, tuple[tuple[str, "NodeGraph | int"], ...]]
    tensors: tuple[str, ...]  #: names.
    types: tuple[str, ...]  #: such as `float32[2,3] · 24 B`; empty if unknown. Small constants show their values.
    inputs: tuple[int, ...]  #: the tensors that come from outside: inputs, and what a subgraph captures.
    outputs: tuple[int, ...]  #: the tensors that it gives.
    functions: tuple["NodeGraph", ...] = ()  #: of a model the functions that are called, each once.


def node_graph(model: Model, order: Sequence[int], sizes: TensorBytes) -> NodeGraph:
    """The flowing nodes of a model, in that order; `sizes` are those of its tensors."""
    graph, protos = model.graph, model.proto.graph.node
    types = {name: _with_size(str(tensor), sizes[name]) for name, tensor in model.tensors.items()}
    numbers = {key: i for i, key in enumerate(functions_called(protos, model.functions))}
    scope = _Scope(_versions(model.proto.opset_import), numbers)
    values = dict(_values(model.proto.graph)) | {name: _value(one) for name, one in constants_in(model.proto).items()}
    rows = [(graph.nodes[i].name, protos[i]) for i in order]
    whole = _graph(rows, values | types, graph.reads, graph.writes, scope)
    return replace(whole, functions=tuple(_function(model.functions[key], scope) for key in numbers))


class _Scope(NamedTuple):
    """What a node means by its name: the versions of operator sets, and the indices of functions."""

    versions: Versions
    functions: Mapping[FunctionKey, int]


def _graph(
    rows: Sequence[_Named], types: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], scope: _Scope
) -> NodeGraph:
    # As the node lists them, then what its subgraphs capture.
    reads = [tuple(dict.fromkeys(filter(None, (*node.input, *captures(node))))) for _, node in rows]
    writes = [tuple(filter(None, node.output)) for _, node in rows]
    between = (name for ends in zip(reads, writes, strict=True) for names in ends for name in names)
    index = {name: i for i, name in enumerate(dict.fromkeys((*inputs, *between, *outputs)))}
    bodies = {i: tuple(_bodies(node, types, scope)) for i, (_, node) in enumerate(rows)}
    return NodeGraph(
        nodes=tuple(name for name, _ in rows),
        ops=tuple(operator(node) for _, node in rows),
        attributes=tuple(tuple(_attributes(node, scope.versions)) for _, node in rows),
        reads=tuple(tuple(index[name] for name in names) for names in reads),
        writes=tuple(tuple(index[name] for name in names) for names in writes),
        bodies={i: found for i, found in bodies.items() if found},
        tensors=tuple(index),
        types=tuple(types.get(name, "") for name in index),
        inputs=tuple(index[name] for name in inputs),
        outputs=tuple(index[name] for name in dict.fromkeys(outputs)),
    )


def _bodies(node: NodeProto, types: Mapping[str, str], scope: _Scope) -> Iterator[tuple[str, NodeGraph | int]]:
    if (number := scope.functions.get(callee_key(node))) is not None:
        yield "function", number
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
        yield from ((attribute.name, _body(graph, types, scope)) for graph in graphs)


def _body(graph: GraphProto, outer: Mapping[str, str], scope: _Scope) -> NodeGraph:
    values = dict(_values(graph))
    declared = tensors_of_values((*graph.value_info, *graph.input, *graph.output))
    types = {**outer, **values, **{name: str(tensor) for name, tensor in declared.items() if name not in values}}
    outputs = [value.name for value in graph.output]
    inputs = dict.fromkeys((*(value.name for value in graph.input), *free_names(graph)))
    return _graph(list(_rows(graph.node)), types, [name for name in inputs if name], outputs, scope)


def _function(function: FunctionProto, scope: _Scope) -> NodeGraph:
    declared = tensors_of_values(function.value_info)
    types = dict(_constants(function.node)) | {name: str(tensor) for name, tensor in declared.items()}
    own = scope._replace(versions=_versions(function.opset_import))
    return _graph(list(_rows(function.node)), types, function.input, function.output, own)


def _rows(nodes: Iterable[NodeProto]) -> Iterator[_Named]:
    for i, node in enumerate(nodes):
        if not is_constant(node):
            yield node.name or next(filter(None, node.output), f"{node.op_type}_{i}"), node


def _versions(opsets: Iterable[OperatorSetIdProto]) -> Versions:
    return {domain(opset.domain): opset.version for opset in opsets}


def _values(graph: GraphProto) -> Iterator[tuple[str, str]]:
    """The initializers and Constant nodes of a graph."""
    yield from ((tensor.name, _value(tensor)) for tensor in graph.initializer)
    yield from ((sparse.values.name, "sparse") for sparse in graph.sparse_initializer)
    yield from _constants(graph.node)


def _constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if is_constant(node):
            yield from ((node.output[0], text) for a in node.attribute if (text := _attribute_value(a)))


def _value(tensor: TensorProto) -> str:
    text = str(tensor_of_initializer(tensor))
    if is_external(tensor) or prod(tensor.dims) > _MAX_VALUES or tensor.data_type == TensorProto.STRING:
        return _with_size(text, (values_bytes(tensor), True))
    return f"{text} = {_listed(to_array(tensor).reshape(-1).tolist())}"


def _with_size(text: str, tensor_bytes: tuple[int, bool]) -> str:
    number, is_exact = tensor_bytes
    return f"{text} · {'' if is_exact else '≥ '}{size(number)}" if number else text


def _attributes(node: NodeProto, versions: Versions) -> Iterator[str]:
    if not node.attribute:
        return
    space = domain(node.domain)
    defaults = _defaults(node.op_type, space, versions.get(space, 0))
    for attribute in node.attribute:
        text = _attribute_value(attribute)
        is_usual = {*text.split(", ")} == _USUAL.get(attribute.name)
        if text and not is_usual and defaults.get(attribute.name) != text:
            yield f"{attribute.name} = {text}"


@cache
def _defaults(op: str, space: str, version: int) -> Mapping[str, str]:
    """The default values of an operator's attributes; none if onnx does not know it."""
    schema = operator_schema(op, space, version)
    return {name: _attribute_value(one.default_value) for name, one in schema.attributes.items()} if schema else {}


def _attribute_value(attribute: AttributeProto) -> str:
    """Its value as a text; empty for a subgraph, and for what has no short one. `@axis` is an attribute of the call."""
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    match attribute.type:
        case AttributeProto.TENSOR:
            return _value(attribute.t)
        case AttributeProto.INT if attribute.name in _DTYPE_NAMES and attribute.i in TensorProto.DataType.values():
            return str(tensor_dtype_to_np_dtype(attribute.i)) if attribute.i else ""
        case AttributeProto.INT | AttributeProto.FLOAT | AttributeProto.STRING:
            return _listed([get_attribute_value(attribute)])
        case AttributeProto.INTS | AttributeProto.FLOATS | AttributeProto.STRINGS:
            return _listed(get_attribute_value(attribute)) or "()"
        case _:
            return ""


def _listed(values: Iterable[object]) -> str:
    return few([_text(value) for value in values], _MAX_VALUES)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
