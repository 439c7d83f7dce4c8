"""A graph as people read it: operators, attributes, types, initializers, and the subgraphs of its nodes. Texts only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Final

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from onnx.helper import get_attribute_value, tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from ..core.units import size
from .model import Model, TensorBytes
from .operations import constants_in
from .repeated_definitions import is_constant
from .shape_inference import tensor_of_initializer, tensors_of_values
from .subgraphs import captures, domain, free_names, is_external
from .tensor_values import values_bytes

_MAX_VALUES: Final = 8  #: a tensor or a list with more is described without its values.
_DTYPE_NAMES: Final = frozenset({"to", "dtype", "output_dtype"})  #: attributes that are numbers of element types.
_USUAL: Final = {"pads": {"0"}, "strides": {"1"}, "dilations": {"1"}}  #: what ONNX takes these for if they are omitted.

Versions = Mapping[str, int]  #: the version of the operator set of each domain.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGraph:
    """A graph. Nodes and tensors are named by their indices: the tuples about nodes are parallel, so are the others."""

    nodes: tuple[str, ...]  #: names, without those of Constant nodes.
    ops: tuple[str, ...]  #: operators.
    attributes: tuple[tuple[str, ...], ...]  #: such as `axis = -1`, without those that have their default.
    reads: tuple[tuple[int, ...], ...]  #: the tensors that a node or a subgraph of it reads, initializers included.
    writes: tuple[tuple[int, ...], ...]  #: the tensors that it writes.
    bodies: Mapping[int, tuple[tuple[str, "NodeGraph"], ...]]  #: subgraphs of nodes, each with its attribute's name.
    tensors: tuple[str, ...]  #: names.
    types: tuple[str, ...]  #: such as `float32[2,3] · 24 B`; empty if unknown. Small constants show their values.
    inputs: tuple[int, ...]  #: the tensors that come from outside: inputs, and what a subgraph captures.
    outputs: tuple[int, ...]  #: the tensors that it gives.


def node_graph(model: Model, order: Sequence[int], sizes: TensorBytes) -> NodeGraph:
    """The flowing nodes of a model, in that order; `sizes` are those of its tensors."""
    graph, protos = model.graph, model.proto.graph.node
    types = {}
    for name, tensor in model.tensors.items():
        number, is_exact = sizes.get(name, (0, True))
        types[name] = _with_size(str(tensor), number, is_exact=is_exact)
    versions = {domain(opset.domain): opset.version for opset in model.proto.opset_import}
    rows = []
    for i in order:
        node, proto = graph.nodes[i], protos[i]
        # As the node lists them, then what its subgraphs capture.
        reads = dict.fromkeys((*filter(None, proto.input), *node.reads, *node.weights))
        rows.append(_Row(node.name, node.op, proto, tuple(reads), node.writes))
    values = dict(_values(model.proto.graph)) | {name: _value(one) for name, one in constants_in(model.proto).items()}
    return _graph(rows, values | types, graph.reads, graph.writes, versions)


@dataclass(frozen=True, slots=True)
class _Row:
    """A node."""

    name: str
    op: str
    proto: NodeProto
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def _graph(
    rows: Sequence[_Row], types: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], versions: Versions
) -> NodeGraph:
    names = dict.fromkeys((*inputs, *(name for row in rows for name in (*row.reads, *row.writes)), *outputs))
    index = {name: i for i, name in enumerate(names)}
    bodies = {i: tuple(_bodies(row.proto, types, versions)) for i, row in enumerate(rows)}
    return NodeGraph(
        nodes=tuple(row.name for row in rows),
        ops=tuple(row.op for row in rows),
        attributes=tuple(tuple(_attributes(row.proto, versions)) for row in rows),
        reads=tuple(tuple(index[name] for name in row.reads) for row in rows),
        writes=tuple(tuple(index[name] for name in row.writes) for row in rows),
        bodies={i: found for i, found in bodies.items() if found},
        tensors=tuple(names),
        types=tuple(types.get(name, "") for name in names),
        inputs=tuple(index[name] for name in inputs),
        outputs=tuple(index[name] for name in dict.fromkeys(outputs)),
    )


def _bodies(node: NodeProto, types: Mapping[str, str], versions: Versions) -> Iterator[tuple[str, NodeGraph]]:
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
        yield from ((attribute.name, _body(graph, types, versions)) for graph in graphs)


def _body(graph: GraphProto, outer: Mapping[str, str], versions: Versions) -> NodeGraph:
    values = dict(_values(graph))
    declared = tensors_of_values((*graph.value_info, *graph.input, *graph.output))
    types = {**outer, **values, **{name: str(tensor) for name, tensor in declared.items() if name not in values}}
    rows = []
    for i, node in enumerate(graph.node):
        if not is_constant(node):
            writes = tuple(filter(None, node.output))
            name = node.name or (writes[0] if writes else f"{node.op_type}_{i}")
            space = domain(node.domain)
            op = f"{space}.{node.op_type}" if space else node.op_type
            rows.append(
                _Row(name, op, node, tuple(dict.fromkeys(filter(None, (*node.input, *captures(node))))), writes)
            )
    outputs = [value.name for value in graph.output]
    inputs = dict.fromkeys((*(value.name for value in graph.input), *free_names(graph)))
    return _graph(rows, types, [name for name in inputs if name], outputs, versions)


def _values(graph: GraphProto) -> Iterator[tuple[str, str]]:
    """The initializers and Constant nodes of a graph."""
    yield from ((tensor.name, _value(tensor)) for tensor in graph.initializer)
    yield from ((sparse.values.name, "sparse") for sparse in graph.sparse_initializer)
    for node in graph.node:
        if is_constant(node):
            yield from ((node.output[0], text) for a in node.attribute if (text := _attribute_value(a)))


def _value(tensor: TensorProto) -> str:
    text = str(tensor_of_initializer(tensor))
    if is_external(tensor) or prod(tensor.dims) > _MAX_VALUES or tensor.data_type == TensorProto.STRING:
        return _with_size(text, values_bytes(tensor))
    return f"{text} = {_listed(to_array(tensor).reshape(-1).tolist())}"


def _with_size(text: str, number: int, *, is_exact: bool = True) -> str:
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
    try:
        schema = onnx.defs.get_schema(op, version, space)
    except (onnx.defs.SchemaError, TypeError):  # a TypeError: a version that is no 32-bit number
        return {}
    return {name: _attribute_value(attribute.default_value) for name, attribute in schema.attributes.items()}


def _attribute_value(attribute: AttributeProto) -> str:
    """Its value as a text; empty for a subgraph, and for what has no short one."""
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
    texts = [_text(value) for value in values]
    return ", ".join(texts[:_MAX_VALUES]) + (
        f" and {len(texts) - _MAX_VALUES} more" if len(texts) > _MAX_VALUES else ""
    )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
