"""`read_graph`: the `Graph` of a ModelProto. Sorts its nodes and removes what no output depends on."""

from __future__ import annotations

import ast
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..core.errors import ModelError
from ..core.graph import Graph, Node, Weight, reached
from ..core.units import count
from .derived_tensors import BIAS, FIRST_OPSET, with_rewrite
from .node_rules import check_calls, check_nodes
from .repeated_definitions import is_constant
from .slices import SHARDED
from .subgraphs import (
    FIRST_IR_WITH_DEFAULTS,
    FunctionKey,
    Functions,
    callee_key,
    captures,
    domain,
    fresh,
    function_key,
    functions_called,
    has_subgraphs,
    is_stateful,
    nodes_within,
)
from .tensor_values import values_bytes


def read_graph(
    proto: ModelProto, functions: Functions
) -> tuple[Graph, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The graph of a model, the names of removed nodes, of removed weights and functions, and notes on the reading.

    Changes `proto` so that its nodes are those of the graph: in topological order, and without nodes, initializers and
    functions that no output depends on. A ModelError if the nodes form a cycle, a tensor is written twice, or read but
    not written, or a node is not what ONNX asks of its operator.
    """
    graph = proto.graph
    weights = _weights(proto)
    reads = tuple(dict.fromkeys(v.name for v in graph.input if v.name not in weights or weights[v.name].is_default))
    writes = tuple(value.name for value in graph.output)
    check_calls(graph.node, functions)
    entries, notes = _entries(graph)
    _check_tensors(entries, writes, {*reads, *weights})
    writer = {name: i for i, entry in enumerate(entries) for name in entry.writes}
    before = {i: {writer[name] for name in entry.reads if name in writer} for i, entry in enumerate(entries)}
    order = _topological_order(entries, before)
    needed = reached((writer[name] for name in writes if name in writer), before.__getitem__)
    dropped = tuple(entries[i].name for i in order if i not in needed)
    if order != sorted(order):
        notes = (*notes, "the nodes were not in topological order; they were sorted")
    kept = [i for i in order if i in needed]
    if kept != list(range(len(entries))):
        _replace(graph.node, [graph.node[i] for i in kept])
    check_nodes(graph.node, proto.opset_import, functions)
    nodes = _with_rewrites(proto, _nodes(graph, [entries[i] for i in kept], weights, functions))
    read = {name for node in nodes for name in node.weights} | {*reads, *writes}
    _keep_weights(graph, read)
    called = functions_called(graph.node, functions)
    if len(called) < len(proto.functions):
        _replace(proto.functions, [function for function in proto.functions if function_key(function) in called])
    unused = *(name for name in weights if name not in read), *(key[1] for key in functions if key not in called)
    kept_weights = {name: weight for name, weight in weights.items() if name in read}
    dead = (name for i, entry in enumerate(entries) if i not in needed for name in (entry.name, *entry.writes))
    removed = frozenset(dead) | (weights.keys() - kept_weights.keys())
    return Graph(nodes, kept_weights, reads, writes, removed), dropped, unused, notes


class _Entry(NamedTuple):
    """What a node reads and writes. Read from its message only once, because access to messages is slow."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    has_subgraphs: bool


def _entries(graph: GraphProto) -> tuple[list[_Entry], tuple[str, ...]]:
    """One entry for each node, and notes. Its name is unique: the node's own, or that of its first output.

    Node names are optional, and unique if given (ONNX IR spec, "Names Within a Graph"). ONNX Runtime takes Constants of
    one name, which it reads as initializers.
    """
    taken = Counter(node.name for node in graph.node)
    if shared := {name for name, times in taken.items() if times > 1 and name}:
        _check_names(graph, shared)
    entries = []
    operators: set[str] = set()
    renamed = 0
    for i, node in enumerate(graph.node):
        operators.update((node.op_type, node.domain))
        reads = dict.fromkeys(node.input)
        inside = has_subgraphs(node)
        if inside:
            check_inner_text(nodes_within([node]))
            reads.update(dict.fromkeys(captures(node)))
        reads.pop("", None)
        writes = tuple(filter(None, node.output))
        name = node.name
        is_renamed = name in shared and is_constant(node)
        renamed += is_renamed
        if not name or is_renamed:
            name = fresh(writes[0] if writes else f"{node.op_type}_{i}", taken.keys())
            taken[name] = 1
        entries.append(_Entry(name, tuple(reads), writes, inside))
    check_text(operators | taken.keys())
    check_text(name for entry in entries for name in entry.reads + entry.writes)
    note = f"{count(renamed, 'Constant node')} that share a name are named after their outputs"
    return entries, (note,) if renamed else ()


def check_inner_text(nodes: Iterable[NodeProto]) -> None:
    """Check the texts of nodes in subgraphs and functions."""
    for node in nodes:
        check_text((node.op_type, node.domain, *node.input, *node.output, *(given.name for given in node.attribute)))


def check_text(texts: Iterable[object], *, what: str = "the model has a name that") -> None:
    """Raise a ModelError if a text is not UTF-8 (ONNX IR spec, "Identifiers"); protobuf returns such ones as bytes."""
    for text in texts:
        if isinstance(text, bytes):
            hint = "the file is damaged, or its names are in another encoding; export the model again"
            raise ModelError(f"{what} is not UTF-8: {text!r}", hint=hint)


def _check_names(graph: GraphProto, shared: AbstractSet[str]) -> None:
    names = Counter(node.name for node in graph.node if node.name in shared and not is_constant(node))
    name, times = max(names.items(), key=lambda item: item[1], default=("", 0))
    if times > 1:
        message = f"{times} nodes are named {name!r}; node names must be unique, and ONNX Runtime refuses the model"
        raise ModelError(message, hint="give each node a name of its own, or none (node.name = '')")


def _check_tensors(entries: Sequence[_Entry], outputs: Sequence[str], outside: AbstractSet[str]) -> None:
    """Check that each tensor is written once, or comes from outside the graph, and is written if it is read."""
    hint = "the model is damaged or was cut wrongly; check it with onnx.checker.check_model"
    written = set(outside)
    for entry in entries:
        for name in entry.writes:
            if name in written:
                raise ModelError(f"node {entry.name!r} writes {name!r}, which is already written", hint=hint)
            written.add(name)
    for node, name in ((entry.name, name) for entry in entries for name in entry.reads if name not in written):
        raise ModelError(f"node {node!r} reads {name!r}, which no node writes", hint=hint)
    for name in (name for name in outputs if name not in written):
        raise ModelError(f"the output {name!r} of the model is written by no node", hint=hint)


def _topological_order(entries: Sequence[_Entry], before: Mapping[int, AbstractSet[int]]) -> list[int]:
    """The nodes in topological order; unchanged if they already are. `before` are those that each one reads from.

    Stable: of the nodes that can come next, the first in the file does.
    """
    if all(source < i for i, sources in before.items() for source in sources):
        return list(range(len(entries)))
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError as error:
        message = f"the model has a cycle through node {entries[min(error.args[1])].name!r}"
        hint = "ONNX graphs are acyclic; check the model with onnx.checker.check_model"
        raise ModelError(message, hint=hint) from None
    ready, order = list[int](), list[int]()
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, i)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order


def _keep_weights(graph: GraphProto, used: AbstractSet[str]) -> None:
    """Remove the initializers that no node reads, and the inputs of their names (IR 3)."""
    unused = {tensor.name for tensor in graph.initializer} - used
    unused |= {sparse.values.name for sparse in graph.sparse_initializer} - used
    if unused:
        for field in (graph.initializer, graph.input):
            _replace(field, [message for message in field if message.name not in unused])
        _replace(graph.sparse_initializer, [s for s in graph.sparse_initializer if s.values.name not in unused])


def _replace(field: Any, kept: Sequence[Message]) -> None:  # noqa: ANN401 - protobuf's repeated fields share no public type
    copies = [type(message).FromString(message.SerializeToString()) for message in kept]
    del field[:]
    field.extend(copies)


def _weights(proto: ModelProto) -> dict[str, Weight]:
    inputs = {value.name for value in proto.graph.input} if proto.ir_version >= FIRST_IR_WITH_DEFAULTS else set()
    sizes = {tensor.name: values_bytes(tensor) for tensor in proto.graph.initializer}
    for sparse in proto.graph.sparse_initializer:
        sizes[sparse.values.name] = values_bytes(sparse.values) + values_bytes(sparse.indices)
    return {name: Weight(name, number, name in inputs) for name, number in sizes.items()}


def _nodes(
    graph: GraphProto, entries: Sequence[_Entry], weights: Mapping[str, Weight], functions: Functions
) -> tuple[Node, ...]:
    nodes: list[Node] = []
    constant: set[str] = set()
    fixed = {name for name, weight in weights.items() if not weight.is_default}
    known: dict[FunctionKey, bool] = {}
    off = {tensor.name for tensor in graph.initializer if _is_false(tensor)} & fixed
    for proto, entry in zip(graph.node, entries, strict=True):
        held = tuple(name for name in entry.reads if name in fixed)
        derived = tuple(name for name in entry.reads if name in constant)
        reads = tuple(name for name in entry.reads if name not in fixed and name not in constant)
        key = callee_key(proto)
        # It depends on the operator, for Dropout on its inputs, and on subgraphs.
        if key not in known or entry.has_subgraphs or key[1].endswith("Dropout"):
            known[key] = is_stateful(proto, functions, off)
        stateful = known[key]
        is_constant = not reads and not stateful
        if is_constant:
            constant.update(entry.writes)
            if key == ("", "Constant", "") and any(_is_false(attribute.t) for attribute in proto.attribute):
                off.update(entry.writes)
        op = f"{key[0]}.{key[1]}" if key[0] else key[1]
        module = module_of(proto)
        nodes.append(Node(entry.name, op, reads, entry.writes, held, derived, is_constant, stateful, module))
    return tuple(nodes)


def _with_rewrites(proto: ModelProto, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the rewrites of those that have one; in a sharded model ranks repeat nodes as they are."""
    opset = max((opset.version for opset in proto.opset_import if not domain(opset.domain)), default=0)
    is_sharded = any(entry.key == SHARDED for entry in proto.metadata_props)
    if is_sharded or opset < FIRST_OPSET or BIAS.keys().isdisjoint(node.op for node in nodes):
        return nodes
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    taken = {*types, *(value.name for value in proto.graph.input), *(name for node in nodes for name in node.writes)}
    pairs = zip(nodes, proto.graph.node, strict=True)
    return tuple(with_rewrite(node, message, types, taken) if node.op in BIAS else node for node, message in pairs)


def _is_false(tensor: TensorProto) -> bool:
    """Whether a tensor of booleans is a single False."""
    return tensor.raw_data == b"\0" or list(tensor.int32_data) == [0]


def module_of(node: NodeProto) -> str:
    """The path of the module that a node was exported from: by torch's metadata, or by the name of the node.

    torch writes `pkg.torch.onnx.name_scopes` (a list, the node itself last) and `namespace`
    (`: Model/layers.0: Layer/layers.0.mlp: MLP/linear: aten.linear`); older exporters and GenAI name nodes
    `/model/layers.0/mlp/MatMul`.
    """
    notes = {e.key: e.value for e in node.metadata_props if isinstance(e.value, str)} if node.metadata_props else {}
    if scopes := notes.get("pkg.torch.onnx.name_scopes"):
        path = _names_in(scopes)
        if len(path) > 1:
            return path[-2].replace(".", "/")
    if namespace := notes.get("namespace"):
        path_so_far = ""
        for step in (text.partition(":")[0] for text in namespace.split("/")[:-1]):
            # Some exporters write each step by itself, some the whole path to it.
            is_whole = not path_so_far or step.startswith(f"{path_so_far}.")
            path_so_far = step if is_whole else f"{path_so_far}.{step}" if step else path_so_far
        return path_so_far.replace(".", "/")
    return node.name.rpartition("/")[0].lstrip("/")


def _names_in(text: str) -> list[str]:
    """The names in a Python list literal; empty for another text."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else []
