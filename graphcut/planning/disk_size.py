"""The size of a part's files before they are written: never too small, and hardly too large."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ..core.graph import Graph
from ..core.wiring import Tensor
from ..loading.derived_tensors import copies
from ..loading.external_data import ALIGNED_BYTES, PADDING_SHARE
from ..loading.model import Model
from ..loading.subgraphs import functions_called, is_external, tensors_in

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import NodeProto, TensorProto

Key = TypeVar("Key", bound=Hashable)

_REFERENCE_BYTES: Final = 96  #: at least the bytes that say in which data file of a part, and where in it, a tensor is.
_HEAD_BYTES: Final = 64  #: at least the bytes of the fields around a graph, lengths included.


@dataclass(frozen=True)
class SerializedSizes:
    """Bytes on disk, by what adds them to a part."""

    nodes: Mapping[int, int]  #: of each flowing node, by its index in `graph.nodes`.
    rewritten: Mapping[int, int]  #: of the rewritten replica of each that can have one.
    #: of what a part holds once, however many of its nodes need it (weights, constants, functions), with the flowing
    #: nodes that need it.
    shared: tuple[tuple[int, tuple[int, ...]], ...]
    declarations: Mapping[str, int]  #: of declaring each tensor as an input or an output of a part.
    part: int  #: of every part.


def serialized_sizes(model: Model) -> SerializedSizes:
    """What everything in `model` takes once it is written into parts. Linear in the messages of the model."""
    graph, proto = model.graph, model.proto
    typed = {value.name: _entry(value) for value in proto.graph.value_info}
    notes = {note.tensor_name: _entry(note) for note in proto.graph.quantization_annotation}
    nodes = {
        i: _node_bytes(model, proto.graph.node[i])
        + sum(typed.get(name, 0) + notes.get(name, 0) for name in graph.nodes[i].writes)
        for i in graph.flow
    }
    rewritable = (i for i in graph.flow if graph.nodes[i].rewrite)
    rewritten = {i: nodes[i] + sum(map(_entry, copies(graph.nodes[i], proto.graph.node[i]))) for i in rewritable}
    inputs = {value.name: _entry(value) for value in proto.graph.input}
    outputs = {value.name: _entry(value) for value in proto.graph.output}
    declared = {name: _declaration_bytes(tensor) for name, tensor in model.tensors.items()} | inputs | outputs
    declarations = {name: number + notes.get(name, 0) for name, number in declared.items()}
    shared = (*_weights(model, inputs, notes), *_constants(model, typed), *_functions(model))
    outside = proto.ByteSize() - sum(map(_entry, (proto.graph, *proto.functions, *proto.training_info)))
    inside = len(proto.graph.name) + len(proto.graph.doc_string) + sum(map(_entry, proto.graph.metadata_props))
    return SerializedSizes(nodes, rewritten, shared, declarations, outside + inside + _HEAD_BYTES)


def _entry(message: Message) -> int:
    """The size of a message inside another: itself, its field number, its length."""
    number = message.ByteSize()
    return number + 2 + max(1, (number.bit_length() + 6) // 7)


def _node_bytes(model: Model, node: NodeProto) -> int:
    return _entry(node) + sum(_data_bytes(model, tensor) for tensor in tensors_in(node))


def _data_bytes(model: Model, tensor: TensorProto) -> int:
    """What a tensor takes in the data file of its part, and the reference to it."""
    return _padded(model, model.range_of(tensor).length) + _REFERENCE_BYTES if is_external(tensor) else 0


def _padded(model: Model, length: int) -> int:
    """A length with its share of the holes in a data file, which are only before runs of a MiB or more."""
    has_holes = any(number >= ALIGNED_BYTES for _, number in model.data.values())
    return length + -(-length // PADDING_SHARE) * has_holes


def _users(graph: Graph, needs: Callable[[int], Iterable[Key]]) -> dict[Key, list[int]]:
    """For each key the flowing nodes that need it."""
    users: dict[Key, list[int]] = {}
    for node in graph.flow:
        for key in dict.fromkeys(needs(node)):
            users.setdefault(key, []).append(node)
    return users


def _weights(
    model: Model, inputs: Mapping[str, int], notes: Mapping[str, int]
) -> Iterable[tuple[int, tuple[int, ...]]]:
    """Messages and values of the initializers; values that several initializers share are in a part once."""
    graph = model.graph
    users = _users(graph, lambda i: (*graph.weights_of(i), *graph.nodes[i].reads))
    values: dict[object, tuple[int, dict[int, None]]] = {}
    for tensor in model.proto.graph.initializer:
        readers = users.get(tensor.name, [])
        message = _entry(tensor) + inputs.get(tensor.name, 0) + notes.get(tensor.name, 0)
        if is_external(tensor):
            span = model.range_of(tensor)
            values.setdefault(span, (_padded(model, span.length), {}))[1].update(dict.fromkeys(readers))
            message += _REFERENCE_BYTES
        yield message, tuple(readers)
    for number, span_users in values.values():
        yield number, tuple(span_users)
    for sparse in model.proto.graph.sparse_initializer:
        data = _data_bytes(model, sparse.values) + _data_bytes(model, sparse.indices)
        yield _entry(sparse) + data, tuple(users.get(sparse.values.name, ()))


def _constants(model: Model, typed: Mapping[str, int]) -> Iterable[tuple[int, tuple[int, ...]]]:
    graph = model.graph
    for constant, users in _users(graph, lambda i: graph.constants_for(graph.nodes[i].constants)).items():
        declared = sum(typed.get(name, 0) for name in graph.nodes[constant].writes)
        yield _node_bytes(model, model.proto.graph.node[constant]) + declared, tuple(users)


def _functions(model: Model) -> Iterable[tuple[int, tuple[int, ...]]]:
    nodes = model.proto.graph.node
    users = _users(model.graph, lambda i: functions_called([nodes[i]], model.functions) if model.functions else ())
    for key, function in model.functions.items():
        data = sum(_data_bytes(model, tensor) for tensor in tensors_in(function))
        yield _entry(function) + data, tuple(users.get(key, ()))


def _declaration_bytes(tensor: Tensor) -> int:
    """No less than the value_info of a tensor takes, names of dimensions included."""
    sizes = sum(len(dim.encode()) + 8 if isinstance(dim, str) else 14 for dim in tensor.shape or ())
    return len(tensor.name.encode()) + len(tensor.dtype) + sizes + 32
