"""A digest of a model's graph, and the canonical bytes of its messages for comparisons.

Equal models have equal canonical bytes. The order of nodes and initializers does not count (in subgraphs that of
initializers), nor do the types of inner tensors (value_info), nor where and in which field values are stored.
"""

import hashlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from operator import attrgetter
from typing import Final, TypeVar

from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from .external_data import ByteRange, read_bytes, same_bytes
from .subgraphs import FIRST_IR_WITH_DEFAULTS, is_external, nodes_within, subgraphs, tensors_in
from .tensor_values import values_bytes
from .wire_format import large_bytes

RangeOf = Callable[[TensorProto], ByteRange]  #: the bytes of an external tensor.
_FIELDS: Final = TensorProto.DESCRIPTOR.fields_by_name
_VALUE_FIELDS: Final = (*(field for field in _FIELDS if field.endswith("_data")), "data_location")
_M = TypeVar("_M", bound=Message)


def graph_digest(model: ModelProto) -> str:
    """SHA-256 of all of `model` except the values of large tensors: `sha256:` and 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for message in canonical_messages(model):
        digest.update(len(message).to_bytes(8, "little"))
        digest.update(message)
    return f"sha256:{digest.hexdigest()}"


def canonical_messages(model: ModelProto) -> Iterator[bytes]:
    """The canonical bytes of all messages in `model`, in a canonical order."""
    rest, graph = head_of(model), model.graph
    head = deepcopy(rest.graph)
    rest.ClearField("graph")
    yield rest.SerializeToString(deterministic=True)
    yield from sorted(map(_without_large, model.functions))
    # In IR 3 every initializer is an input as well, and only the order of the other inputs counts.
    listed = {t.name for t in graph.initializer} if model.ir_version < FIRST_IR_WITH_DEFAULTS else set()
    head.input.extend(sorted(graph.input, key=lambda value: value.name if value.name in listed else ""))
    head.output.extend(graph.output)
    yield head.SerializeToString(deterministic=True)
    for field in (graph.node, graph.initializer, graph.sparse_initializer):
        yield from sorted(map(_without_large, field))
    yield from sorted(note.SerializeToString(deterministic=True) for note in graph.quantization_annotation)


def head_of(model: ModelProto) -> ModelProto:
    """All fields of a model, unknown ones included, but functions and training_info; of its graph name and notes."""
    head = ModelProto()
    for field, value in model.ListFields():
        if isinstance(value, str | int | bytes):
            setattr(head, field.name, value)
        elif field.name not in {"graph", "functions", "training_info"}:
            getattr(head, field.name).extend(value)
    head.graph.name, head.graph.doc_string = model.graph.name, model.graph.doc_string
    head.graph.metadata_props.extend(model.graph.metadata_props)
    return head


def canonical(message: Message) -> bytes:
    """The bytes of a message without the files and offsets of external tensors; other values as a file has them."""
    return _bytes_of(message, lambda tensor: not is_external(tensor))


def without_values(message: Message) -> bytes:
    """The canonical bytes of a message without the values of the tensors in it; their types and shapes remain."""
    return _bytes_of(message, lambda _: False)


def _without_large(message: Message) -> bytes:
    """The same without the values of those that would be left in the file if they were stored as bytes."""

    def is_small(tensor: TensorProto) -> bool:
        is_text = tensor.data_type == TensorProto.STRING
        return not is_external(tensor) and (is_text or values_bytes(tensor) < large_bytes(tensor.data_type))

    return _bytes_of(message, is_small)


def normal(message: _M) -> _M:
    """The message; a copy if subgraphs list their initializers in another order than that of names."""

    def unsorted(message: Message) -> list[GraphProto]:
        nodes = [message] if isinstance(message, NodeProto) else getattr(message, "node", ())
        within = (graph for node in nodes_within(nodes) for graph in subgraphs(node))
        return [graph for graph in within if (names := [one.name for one in graph.initializer]) != sorted(names)]

    if not isinstance(message, NodeProto | FunctionProto) or not unsorted(message):
        return message
    message = deepcopy(message)
    for graph in unsorted(message):
        graph.initializer.sort(key=attrgetter("name"))
    return message


def same_message(a: Message, range_of_a: RangeOf, b: Message, range_of_b: RangeOf) -> bool:
    """Whether two messages are equal; the values of their tensors may be in different files."""
    pairs = zip(tensors_in(normal(a)), tensors_in(normal(b)), strict=False)
    return without_values(a) == without_values(b) and all(same_values(x, range_of_a, y, range_of_b) for x, y in pairs)


def same_values(a: TensorProto, range_of_a: RangeOf, b: TensorProto, range_of_b: RangeOf) -> bool:
    """Whether two tensors of one type and shape have the same values, each in its message or in a file."""
    if is_external(a) and is_external(b):
        first, second = range_of_a(a), range_of_b(b)
        return same_bytes(first._replace(file=first.file.resolve()), second._replace(file=second.file.resolve()))
    if not is_external(a) and not is_external(b):
        return inline_bytes(a) == inline_bytes(b) and a.string_data == b.string_data
    span, inline = (range_of_a(a), b) if is_external(a) else (range_of_b(b), a)
    values = inline_bytes(inline)
    return values is not None and len(values) == span.length and values == read_bytes(span)


def inline_bytes(tensor: TensorProto) -> bytes | None:
    """The values of a tensor in a message as a file would have them; None if they are strings."""
    if tensor.data_type == TensorProto.STRING:
        return None
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


def _bytes_of(message: Message, has_values: Callable[[TensorProto], bool]) -> bytes:
    """The bytes of a message with the values of those tensors in it that are to have them, each in one field."""
    message = normal(message)
    tensors = list(tensors_in(message))
    values = [inline_bytes(tensor) if has_values(tensor) else None for tensor in tensors]
    is_text = [has_values(tensor) and tensor.data_type == TensorProto.STRING for tensor in tensors]
    if any(not text and raw != tensor.raw_data for tensor, raw, text in zip(tensors, values, is_text, strict=True)):
        message = deepcopy(message)
        for tensor, raw, text in zip(tensors_in(message), values, is_text, strict=True):
            for field in () if text else _VALUE_FIELDS:
                tensor.ClearField(field)
            if raw is not None:
                tensor.raw_data = raw
    return message.SerializeToString(deterministic=True)
