"""The size of a part's files before they are written: never too small, and hardly too large."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from ..core.graph import grouped
from ..core.tensors import by_kind
from ..costs.held_weights import NODE_BYTES, bytes_as_read
from ..costs.kernel_work import kept_buffer
from ..costs.part_memory import SESSION_BYTES
from ..costs.weighing import inner_bytes
from ..loading.derived_tensors import copies
from ..loading.external_data import ALIGNED_BYTES, PADDING_SHARE
from ..loading.fingerprint import head_of
from ..loading.model import Model
from ..loading.part_marks import MARK_BYTES
from ..loading.shape_inference import type_proto
from ..loading.subgraphs import functions_called, is_external, tensors_in

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import NodeProto, TensorProto, ValueInfoProto

Key = TypeVar("Key", bound=Hashable)
Shared = tuple[int, tuple[int, ...]]  #: bytes that a part holds once, and the flowing nodes that need them.

_LONGER_BYTES: Final = 4  #: at most so much longer get the lengths of the messages around one that gets longer.


@dataclass(frozen=True)
class SerializedSizes:
    """Bytes on disk, by what adds them to a part."""

    nodes: Mapping[int, int]  #: of each flowing node, by its index in `graph.nodes`.
    rewritten: Mapping[int, int]  #: of the rewritten replica of each that can have one.
    #: of what a part holds once, however many of its nodes need it (weights, constants, functions), with the flowing
    #: nodes that need it.
    shared: tuple[Shared, ...]
    declarations: Mapping[str, int]  #: of declaring each tensor as an input or an output of a part.
    listed: Mapping[str, int]  #: of what `nodes` has for a tensor and its declaration as an output replaces.
    part: int  #: of every part.

    @cached_property
    def _items_of(self) -> Mapping[int, list[int]]:
        """For each node the items in `shared` that need it."""
        return _users(range(len(self.shared)), lambda i: self.shared[i][1])

    def shared_bytes(self, nodes: Iterable[int]) -> int:
        """Bytes of what a part with these nodes holds once."""
        items = {i for node in nodes for i in self._items_of.get(node, ())}
        return sum(self.shared[i][0] for i in items)

    def as_output(self, tensor: str) -> int:
        """Bytes that declaring a tensor as an output adds to the part whose node writes it."""
        return self.declarations[tensor] - self.listed.get(tensor, 0)


def serialized_sizes(model: Model) -> SerializedSizes:
    """What everything in `model` takes once it is written into parts. Linear in the messages of the model."""
    graph, proto = model.graph, model.proto
    notes = {note.tensor_name: _entry(note) for note in proto.graph.quantization_annotation}
    values = {value.name: value for value in proto.graph.value_info}
    typed = {name: _entry(value) for name, value in values.items()}
    written = [name for i in graph.flow for name in graph.nodes[i].writes]
    listed = {name: typed.get(name, 0) + notes.get(name, 0) for name in written if name in typed or name in notes}

    def listed_bytes(names: Iterable[str]) -> int:
        return sum(listed.get(name, 0) for name in names)

    nodes = {i: _node_bytes(model, proto.graph.node[i]) + listed_bytes(graph.nodes[i].writes) for i in graph.flow}
    made = {i: copies(graph.nodes[i], proto.graph.node[i]) for i in graph.flow if graph.nodes[i].rewrite}
    rewritten = {i: sum(map(_entry, row)) + listed_bytes(graph.copy_of(i).writes) for i, row in made.items()}
    inputs = {value.name: _entry(value) for value in proto.graph.input}
    outputs = {value.name: _entry(value) for value in proto.graph.output}
    type_bytes = by_kind(lambda tensor: _entry(type_proto(tensor)))
    types = model.boundary_types.items()
    declared = {name: _declaration_bytes(name, type_bytes(tensor), values.get(name)) for name, tensor in types}
    declarations = {name: number + notes.get(name, 0) for name, number in (declared | inputs | outputs).items()}
    of_weights = {name: sum(row.get(name, 0) for row in (inputs, outputs, notes)) for name in graph.weights}
    shared = (*_weights(model, of_weights), *_constants(model, typed | outputs), *_functions(model))
    head_bytes = head_of(proto).ByteSize() + _LONGER_BYTES + MARK_BYTES
    return SerializedSizes(nodes, rewritten, shared, declarations, listed, head_bytes)


def memory_sizes(model: Model, written: SerializedSizes) -> SerializedSizes:
    """The same of what a session holds of a part in which weights are held as in its file; see `part_memory`.

    `written` are the sizes on disk.
    """
    graph, proto = model.graph, model.proto
    inside = inner_bytes(model, range(len(graph.nodes)))
    weights = _users(graph.flow, graph.weights_of)
    constants = _users(graph.flow, graph.constants_of.__getitem__)
    called = _users(graph.flow, lambda i: functions_called([proto.graph.node[i]], model.functions))
    held = [(bytes_as_read(graph.weights[name]), users) for name, users in weights.items()]
    held += [(inside[key], users) for key, users in (*constants.items(), *called.items()) if key in inside]
    buffer, users = model.once(kept_buffer)
    held.append((buffer, [*users]))
    return SerializedSizes(
        nodes={i: NODE_BYTES + inside.get(i, 0) for i in graph.flow},
        rewritten=dict.fromkeys(written.rewritten, NODE_BYTES),
        shared=tuple((number, tuple(users)) for number, users in held),
        declarations=dict.fromkeys(written.declarations, 0),
        listed={},
        part=SESSION_BYTES,
    )


def _entry(message: Message) -> int:
    """The size of a message inside another, as a field with a number up to 15."""
    return _field(message.ByteSize())


def _field(number: int) -> int:
    """The size of a field of so many bytes: itself, its tag of one byte, its length in groups of seven bits."""
    return number + 1 + max(1, (number.bit_length() + 6) // 7)


def _node_bytes(model: Model, node: NodeProto) -> int:
    return _entry(node) + _data_bytes(model, tensors_in(node))


def _data_bytes(model: Model, tensors: Iterable[TensorProto]) -> int:
    """What the external ones of tensors inside a message take in the data file of a part, and in the message."""
    external = filter(is_external, tensors)
    return sum(_padded(model, model.range_of(t).length) + _longer(model, t) + _LONGER_BYTES for t in external)


def _longer(model: Model, tensor: TensorProto) -> int:
    """How much longer the reference of an external tensor gets at most, when it names a data file of a part.

    The file is called part-I.onnx.data, or as in the model where weights are shared.
    """
    last = f"part-{len(model.graph.flow)}.onnx.data"
    location = max(len(last), *(len(name.encode()) for name in model.data))
    end = sum(number for _, number in model.data.values()) * 2
    lengths = {"location": location, "offset": len(str(end)), "length": len(str(model.range_of(tensor).length))}
    new = sum(_field(_field(len(key)) + _field(number)) for key, number in lengths.items())
    return new - sum(map(_entry, tensor.external_data))


def _padded(model: Model, length: int) -> int:
    """A length with its share of the holes in a data file: less than a page each, before runs of a MiB or more."""
    has_holes = any(number >= ALIGNED_BYTES for _, number in model.data.values())
    return length + min(-(-length // PADDING_SHARE), ALIGNED_BYTES // PADDING_SHARE) * has_holes


def _users(nodes: Iterable[int], needs: Callable[[int], Iterable[Key]]) -> dict[Key, list[int]]:
    """For each key the nodes that need it."""
    return grouped((key, node) for node in nodes for key in dict.fromkeys(needs(node)))


def _weights(model: Model, declared: Mapping[str, int]) -> Iterable[Shared]:
    """Messages and values of the initializers; values that several initializers share are in a part once."""
    graph = model.graph
    users = _users(graph.flow, lambda i: (*graph.weights_of(i), *graph.nodes[i].reads))
    values: dict[object, tuple[int, dict[int, None]]] = {}
    for tensor in model.proto.graph.initializer:
        readers = users.get(tensor.name, [])
        message = tensor.ByteSize()
        if is_external(tensor):
            span = model.range_of(tensor)
            values.setdefault(span, (_padded(model, span.length), {}))[1].update(dict.fromkeys(readers))
            message += _longer(model, tensor)
        yield _field(message) + declared.get(tensor.name, 0), tuple(readers)
    for number, span_users in values.values():
        yield number, tuple(span_users)
    for sparse in model.proto.graph.sparse_initializer:
        data = _data_bytes(model, (sparse.values, sparse.indices))
        yield _entry(sparse) + data, tuple(users.get(sparse.values.name, ()))


def _constants(model: Model, typed: Mapping[str, int]) -> Iterable[Shared]:
    graph = model.graph
    for constant, users in _users(graph.flow, graph.constants_of.__getitem__).items():
        declared = sum(typed.get(name, 0) for name in graph.nodes[constant].writes)
        yield _node_bytes(model, model.proto.graph.node[constant]) + declared, tuple(users)


def _functions(model: Model) -> Iterable[Shared]:
    nodes = model.proto.graph.node
    users = _users(model.graph.flow, lambda i: functions_called([nodes[i]], model.functions) if model.functions else ())
    for key, function in model.functions.items():
        data = _data_bytes(model, tensors_in(function))
        yield _entry(function) + 1 + data, tuple(users.get(key, ()))  # the number of this field takes two bytes


def _declaration_bytes(name: str, type_bytes: int, listed: ValueInfoProto | None) -> int:
    """At least what declaring a tensor takes: as the model lists it, or with a type that is known better."""
    name_and_type = _field(len(name.encode())) + type_bytes
    if listed is None:
        return _field(name_and_type)
    more = listed.ByteSize() - _field(len(listed.name.encode())) - _entry(listed.type)
    return max(_entry(listed), _field(name_and_type + more))
