"""From the nodes of a graph message to `Node` records: order, what each reads and writes, what is constant."""

from __future__ import annotations

import ast
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..core.errors import ModelError
from ..core.graph import Graph, Node, Weight
from ..core.wiring import BITS
from .subgraphs import (
    FIRST_IR_WITH_DEFAULTS,
    FunctionKey,
    callee_key,
    captures,
    function_key,
    functions_called,
    has_subgraphs,
    is_stateful,
    nodes_within,
)


def read_graph(
    proto: ModelProto, functions: Mapping[FunctionKey, FunctionProto]
) -> tuple[Graph, Unneeded, tuple[str, ...]]:
    """The graph of a model, what nobody needs of it, and notes on how it was read.

    Afterwards the nodes of `proto` stand side by side with those of the graph: in topological order, and without those
    that nobody needs. Initializers that nothing reads and functions that nothing calls are taken out too.

    Raises:
        ModelError: the nodes form a circle, or read or give out what nothing writes.
    """
    graph = proto.graph
    weights = _weights(proto)
    reads = tuple(dict.fromkeys(v.name for v in graph.input if v.name not in weights or weights[v.name].is_default))
    writes = tuple(value.name for value in graph.output)
    steps = _steps(graph)
    _check_tensors(steps, writes, {*reads, *weights})
    order = _order(steps)
    needed = _needed(steps, order, writes)
    dropped = tuple(steps[i].name for i in order if i not in needed)
    notes = () if order == sorted(order) else ("the nodes did not stand in topological order; sorted them",)
    kept = [i for i in order if i in needed]
    if kept != list(range(len(steps))):
        _replace(graph.node, [graph.node[i] for i in kept])
    nodes = _nodes(graph, [steps[i] for i in kept], weights, functions)
    read = {name for node in nodes for name in node.weights} | {*reads, *writes}
    _keep_weights(graph, read)
    called = functions_called(graph.node, functions)
    if len(called) < len(proto.functions):
        _replace(proto.functions, [function for function in proto.functions if function_key(function) in called])
    unused = *(name for name in weights if name not in read), *(key[1] for key in functions if key not in called)
    kept_weights = {name: weight for name, weight in weights.items() if name in read}
    return Graph(nodes, kept_weights, reads, writes), Unneeded(dropped, unused), notes


class Unneeded(NamedTuple):
    """Names of what was left out: nodes that no output depends on; weights and functions that none of the rest uses."""

    nodes: tuple[str, ...]
    others: tuple[str, ...]


class _Step(NamedTuple):
    """What one node reads and writes, taken out of its message once: access to messages is what reading costs."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    has_subgraphs: bool


def _steps(graph: GraphProto) -> list[_Step]:
    """One step for each node. Its name is unique: the node's own, else that of its first output.

    Node names are optional, and unique where given (ONNX IR spec, "Names Within a Graph").
    """
    taken = {node.name for node in graph.node}
    if len(taken) < len(graph.node):
        _check_names(graph)
    steps = []
    words: set[str] = set()
    for i, node in enumerate(graph.node):
        words.add(node.op_type)
        words.add(node.domain)
        reads = dict.fromkeys(node.input)
        inside = has_subgraphs(node)
        if inside:
            check_text(_words_within(node))
            reads.update(dict.fromkeys(captures(node)))
        reads.pop("", None)
        writes = tuple(filter(None, node.output))
        name = node.name
        if not name:
            name = writes[0] if writes else f"{node.op_type}_{i}"
            while name in taken:
                name += "'"
            taken.add(name)
        steps.append(_Step(name, tuple(reads), writes, inside))
    check_text(words | taken)
    check_text(name for step in steps for name in step.reads + step.writes)
    return steps


def _words_within(node: NodeProto) -> Iterator[str]:
    for inner in nodes_within([node]):
        yield from (inner.op_type, inner.domain, *inner.input, *inner.output)


def check_text(words: Iterable[object]) -> None:
    """Names are UTF-8 (ONNX IR spec, "Identifiers"); protobuf hands others out as bytes."""
    for word in words:
        if isinstance(word, bytes):
            raise ModelError(
                f"the model holds a name that is not UTF-8: {word!r}",
                hint="the file is damaged, or its names are in another encoding; export the model again",
            )


def _check_names(graph: GraphProto) -> None:
    names = Counter(node.name for node in graph.node if node.name)
    name, times = max(names.items(), key=lambda item: item[1], default=("", 0))
    if times > 1:
        raise ModelError(
            f"{times} nodes have the duplicate name {name!r}; ONNX wants node names unique, and ONNX Runtime refuses "
            "the model",
            hint="give each node a name of its own, or none (node.name = '')",
        )


def _check_tensors(steps: Sequence[_Step], writes: Sequence[str], outside: AbstractSet[str]) -> None:
    """Every tensor that is read or given out is written once, or comes from outside."""
    hint = "the model is damaged or was cut badly; check it with onnx.checker.check_model"
    standing = set(outside)
    for step in steps:
        for name in step.writes:
            if name in standing:
                raise ModelError(f"node {step.name!r} writes {name!r}, which stands already", hint=hint)
            standing.add(name)
    for step in steps:
        for name in step.reads:
            if name not in standing:
                raise ModelError(f"node {step.name!r} reads {name!r}, which nothing writes", hint=hint)
    for name in writes:
        if name not in standing:
            raise ModelError(f"the model gives out {name!r}, which nothing writes", hint=hint)


def _order(steps: Sequence[_Step]) -> list[int]:
    """The nodes in topological order: as they stand, where that is one.

    Stable: of the nodes that can come next the one that stands first in the file does (Kahn, with a heap).
    """
    writer = {name: i for i, step in enumerate(steps) for name in step.writes}
    if all(writer.get(name, -1) < i for i, step in enumerate(steps) for name in step.reads):
        return list(range(len(steps)))
    waits = [0] * len(steps)
    readers: list[list[int]] = [[] for _ in steps]
    for i, step in enumerate(steps):
        for source in {writer[name] for name in step.reads if name in writer}:
            readers[source].append(i)
            waits[i] += 1
    ready = [i for i, number in enumerate(waits) if number == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(steps):
        stuck = _on_a_circle(steps, writer, set(range(len(steps))) - set(order))
        raise ModelError(
            f"the model has a circle: node {steps[stuck].name!r} waits, over others, for itself",
            hint="ONNX graphs are acyclic; check the model with onnx.checker.check_model",
        )
    return order


def _keep_weights(graph: GraphProto, used: AbstractSet[str]) -> None:
    """Take out the initializers that nothing reads, and their names among the inputs (IR 3)."""
    unused = {tensor.name for tensor in graph.initializer} - used
    unused |= {sparse.values.name for sparse in graph.sparse_initializer} - used
    if unused:
        for field in (graph.initializer, graph.input):
            kept = [thing for thing in field if thing.name not in unused]
            _replace(field, kept)
        _replace(graph.sparse_initializer, [s for s in graph.sparse_initializer if s.values.name not in unused])


def _replace(field: Any, kept: Sequence[Message]) -> None:  # noqa: ANN401 - protobuf's repeated fields share no public type
    copies = [type(message).FromString(message.SerializeToString()) for message in kept]
    del field[:]
    field.extend(copies)


def _weights(proto: ModelProto) -> dict[str, Weight]:
    inputs = {value.name for value in proto.graph.input} if proto.ir_version >= FIRST_IR_WITH_DEFAULTS else set()
    found = {
        tensor.name: Weight(tensor.name, values_bytes(tensor), tensor.name in inputs)
        for tensor in proto.graph.initializer
    }
    for sparse in proto.graph.sparse_initializer:
        name = sparse.values.name
        found[name] = Weight(name, values_bytes(sparse.values) + values_bytes(sparse.indices), name in inputs)
    return found


def _on_a_circle(steps: Sequence[_Step], writer: Mapping[str, int], stuck: AbstractSet[int]) -> int:
    """The first node of a circle: walking back along what stuck nodes wait for ends on one."""
    walked: dict[int, int] = {}
    here = min(stuck)
    while here not in walked:
        walked[here] = len(walked)
        here = min(writer[name] for name in steps[here].reads if writer.get(name) in stuck)
    return min(node for node, time in walked.items() if time >= walked[here])


def _needed(steps: Sequence[_Step], order: Sequence[int], writes: Sequence[str]) -> AbstractSet[int]:
    """The nodes on which some output of the model depends."""
    wanted = set(writes)
    needed: set[int] = set()
    for i in reversed(order):
        if not wanted.isdisjoint(steps[i].writes):
            needed.add(i)
            wanted.update(steps[i].reads)
    return needed


def _nodes(
    graph: GraphProto,
    steps: Sequence[_Step],
    weights: Mapping[str, Weight],
    functions: Mapping[FunctionKey, FunctionProto],
) -> tuple[Node, ...]:
    nodes: list[Node] = []
    constant: set[str] = set()
    fixed = {name for name, weight in weights.items() if not weight.is_default}
    known: dict[tuple[FunctionKey, tuple[bool, ...]], bool] = {}
    off = {tensor.name for tensor in graph.initializer if _is_false(tensor)} & fixed
    for proto, step in zip(graph.node, steps, strict=True):
        own_weights = tuple(name for name in step.reads if name in fixed)
        own_constants = tuple(name for name in step.reads if name in constant)
        reads = step.reads
        if own_weights or own_constants:
            reads = tuple(name for name in reads if name not in fixed and name not in constant)
        key = callee_key(proto)
        if step.has_subgraphs:
            stateful = is_stateful(proto, functions, off)
        else:
            # Without bodies it depends on the operator, and for Dropout on which inputs are there: look once for each.
            is_dropout = key[1].endswith("Dropout")
            look = key, tuple(bool(name) and name not in off for name in proto.input) if is_dropout else ()
            if look not in known:
                known[look] = is_stateful(proto, functions, off)
            stateful = known[look]
        is_constant = not reads and not stateful
        if is_constant:
            constant.update(step.writes)
            if key == ("", "Constant", "") and any(_is_false(attribute.t) for attribute in proto.attribute):
                off.update(step.writes)
        op = f"{key[0]}.{key[1]}" if key[0] else key[1]
        module = module_of(proto)
        nodes.append(Node(step.name, op, reads, step.writes, own_weights, own_constants, is_constant, stateful, module))
    return tuple(nodes)


def _is_false(tensor: TensorProto) -> bool:
    """Is it a single False?"""
    if tensor.data_type != TensorProto.BOOL or any(dim != 1 for dim in tensor.dims):
        return False
    return tensor.raw_data == b"\0" or list(tensor.int32_data) == [0]


def values_bytes(tensor: TensorProto) -> int:
    """What the values of `tensor` take, packed as ONNX packs them; strings by their lengths."""
    if tensor.data_type == TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    if tensor.data_type not in TensorProto.DataType.values():
        raise ModelError(
            f"tensor {tensor.name!r} has the data type {tensor.data_type}, which ONNX does not have",
            hint="check the model with onnx.checker.check_model, or install a newer onnx",
        )
    word = TensorProto.DataType.Name(tensor.data_type).lower()
    return (elements * BITS.get({"float": "float32", "double": "float64"}.get(word, word), 8) + 7) // 8


def module_of(node: NodeProto) -> str:
    """The module path of a node: from what torch's exporter notes on it, else from its name.

    torch writes `pkg.torch.onnx.name_scopes` (a list, outermost first, the node itself last) and `namespace`
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
            # Some exporters write each step alone, some the whole path down to it.
            is_whole = not path_so_far or step.startswith(f"{path_so_far}.")
            path_so_far = step if is_whole else f"{path_so_far}.{step}" if step else path_so_far
        return path_so_far.replace(".", "/")
    return node.name.rpartition("/")[0].lstrip("/")


def _names_in(text: str) -> list[str]:
    """The list of names that `text` writes as Python does; empty where it is something else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else []
