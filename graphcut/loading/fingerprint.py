"""A digest of a model's graph, and the canonical bytes of its messages for comparisons.

Equal models have equal canonical bytes. The order of nodes and initializers does not count, nor do the types of inner
tensors (value_info), nor the files and offsets of large tensors.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Final

from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, numpy_helper

from .external_data import ByteRange, read_bytes, same_bytes
from .subgraphs import FIRST_IR_WITH_DEFAULTS, is_external, tensors_in

RangeOf = Callable[[TensorProto], ByteRange]  #: the bytes of an external tensor.
_VALUE_FIELDS: Final = (
    *(field for field in TensorProto.DESCRIPTOR.fields_by_name if field.endswith("_data")),
    "data_location",
)


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
    yield from sorted(map(canonical, model.functions))
    # In IR 3 every initializer is an input as well, and only the order of the other inputs counts.
    listed = {t.name for t in graph.initializer} if model.ir_version < FIRST_IR_WITH_DEFAULTS else set()
    head.input.extend(sorted(graph.input, key=lambda value: value.name if value.name in listed else ""))
    head.output.extend(graph.output)
    yield head.SerializeToString(deterministic=True)
    yield from sorted(map(canonical, graph.node))
    yield from sorted(map(canonical, graph.initializer))
    yield from sorted(map(canonical, graph.sparse_initializer))
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
    """The bytes of a message, without the files and offsets of external tensors in it."""
    return _without(message, ("external_data", "data_location"), is_external)


def without_values(message: Message) -> bytes:
    """The canonical bytes of a message without the values of the tensors in it; their types and shapes remain."""
    return _without(message, _VALUE_FIELDS, lambda _: True)


def same_message(a: Message, range_of_a: RangeOf, b: Message, range_of_b: RangeOf) -> bool:
    """Whether two messages are equal; the values of their tensors may be in different files."""
    pairs = zip(tensors_in(a), tensors_in(b), strict=False)
    return without_values(a) == without_values(b) and all(same_values(x, range_of_a, y, range_of_b) for x, y in pairs)


def same_values(a: TensorProto, range_of_a: RangeOf, b: TensorProto, range_of_b: RangeOf) -> bool:
    """Whether two tensors of one type and shape have the same values, each in its message or in a file."""
    if is_external(a) and is_external(b):
        first, second = range_of_a(a), range_of_b(b)
        return same_bytes(first._replace(file=first.file.resolve()), second._replace(file=second.file.resolve()))
    if not is_external(a) and not is_external(b):
        return canonical(a) == canonical(b)
    span, inline = (range_of_a(a), b) if is_external(a) else (range_of_b(b), a)
    values = inline_bytes(inline)
    return len(values) == span.length and values == read_bytes(span) and inline.data_type != TensorProto.STRING


def inline_bytes(tensor: TensorProto) -> bytes:
    """The values of a tensor of numbers as a file would have them."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


def _without(message: Message, fields: Iterable[str], of: Callable[[TensorProto], bool]) -> bytes:
    if any(map(of, tensors_in(message))):
        message = deepcopy(message)
        for tensor in filter(of, tensors_in(message)):
            for field in fields:
                tensor.ClearField(field)
    return message.SerializeToString(deterministic=True)
