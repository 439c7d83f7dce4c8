"""Read an .onnx file without the values of its large tensors, by walking protobuf's wire format.

Protobuf's parser copies every weight into memory. Here the file is mapped, only the headers of its messages are read,
and a tensor with large `raw_data` becomes an external tensor whose location is a range of the same file. The result is
a small valid model, which protobuf parses.

Wire format: https://protobuf.dev/programming-guides/encoding. Field numbers: onnx/onnx.proto.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto, TensorProto

from ..core.errors import ModelError
from .external_data import refer_to_file
from .subgraphs import TENSOR_HOLDERS

LARGE_BYTES: Final = 1024  #: `raw_data` of this size or more is left in the file, for most types (see `large_bytes`).
_LARGE_SHAPE_BYTES: Final = 64 << 10

_LENGTH: Final = 2  #: the wire type of fields with a length.
_HOLDERS: Final = TENSOR_HOLDERS | {"TrainingInfoProto"}
"""Types of messages that are or contain a TensorProto at some depth. Fields of others are copied unchanged."""


def read_without_weights(path: Path) -> bytes:
    """The bytes of the model at `path`, each large `raw_data` replaced by a reference into the file.

    Takes one step for each field of the graph (not for the fields of small nodes). The values of large tensors are not
    read from disk. A ModelError if the file is empty, truncated, or not protobuf.
    """
    if not path.stat().st_size:
        raise ModelError(f"{path} is empty", hint="export the model again, or check the copy")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if hasattr(data, "madvise"):
            data.madvise(mmap.MADV_RANDOM)  # headers are far apart: read-ahead would read the weights
        try:
            return b"".join(_strip(data, 0, len(data), ModelProto.DESCRIPTOR, path.name))
        except RecursionError:
            raise nested_too_deeply(path) from None
        except (IndexError, ValueError) as error:
            hint = "export the model again, or compare its size with the one it was copied from"
            raise ModelError(f"{path} is not an ONNX model, or is truncated: {error}", hint=hint) from None


def nested_too_deeply(path: Path) -> ModelError:
    """The error for subgraphs in subgraphs that protobuf does not read."""
    message = f"{path} nests subgraphs too deeply: protobuf reads 100 messages inside each other, about 30 subgraphs"
    return ModelError(message, hint="ONNX Runtime refuses it, too: export it with fewer nested branches or loops")


def large_bytes(element: int) -> int:
    """The smallest size in bytes at which a tensor of this element type is left in the file.

    An int64 tensor may be a shape (the input of a Split or Reshape), which ONNX Runtime doesn't read from files. Such
    tensors are kept inside up to 64 KiB.
    """
    return _LARGE_SHAPE_BYTES if element == TensorProto.INT64 else LARGE_BYTES


def _strip(data: mmap.mmap, start: int, end: int, kind: Any, file: str) -> Iterator[bytes]:  # noqa: ANN401 - a descriptor
    """The pieces of the message of this kind at `start:end`. Recurses as deep as subgraphs are nested."""
    if kind.name == "TensorProto":
        yield from _strip_tensor(data, start, end, file)
        return
    kept = position = start
    while position < end:
        number, body, after = _next_field(data, position, end)
        field = kind.fields_by_number.get(number) if after - body >= LARGE_BYTES else None
        if field is not None and field.message_type is not None and field.message_type.name in _HOLDERS:
            inner = b"".join(_strip(data, body, after, field.message_type, file))
            yield data[kept:position] + field_header(number, len(inner)) + inner
            kept = after
        position = after
    yield data[kept:end]


def _strip_tensor(data: mmap.mmap, start: int, end: int, file: str) -> Iterator[bytes]:
    """The pieces of a tensor, its `raw_data` replaced by a reference if it is large.

    A tensor with the data_location EXTERNAL is external even if it has `raw_data`: it is not changed.
    """
    location_fields: list[bytes] = []
    raw = start, start, start  # the field, its body, its end
    location = element = 0
    position = start
    while position < end:
        number, body, after = _next_field(data, position, end)
        if number == TensorProto.RAW_DATA_FIELD_NUMBER:
            raw = position, body, after
        elif number in {TensorProto.DATA_LOCATION_FIELD_NUMBER, TensorProto.EXTERNAL_DATA_FIELD_NUMBER}:
            location_fields.append(data[position:after])
            is_location = number == TensorProto.DATA_LOCATION_FIELD_NUMBER
            location = _read_varint(data, body, after)[0] if is_location else location
        else:
            element = _read_varint(data, body, after)[0] if number == TensorProto.DATA_TYPE_FIELD_NUMBER else element
            yield data[position:after]
        position = after
    field, body, after = raw
    if location == TensorProto.EXTERNAL or after - body < large_bytes(element):
        yield data[field:after]
        yield from location_fields
        return
    reference = TensorProto()  # a message that follows another one is merged with it
    refer_to_file(reference, file, body, after - body)
    yield reference.SerializeToString()


def _next_field(data: mmap.mmap, position: int, end: int) -> tuple[int, int, int]:
    """The field at `position`: its number, the start of its body, and the start of the next field."""
    tag, position = _read_varint(data, position, end)
    body = position
    match tag & 7:
        case 2:
            length, body = _read_varint(data, position, end)
            position = body + length
        case 0:
            _, position = _read_varint(data, position, end)
        case 1:
            position += 8
        case 5:
            position += 4
        case kind:
            raise ValueError(f"unknown wire type {kind} at byte {body:,}")
    if tag >> 3 == 0:
        raise ValueError(f"field number 0 at byte {body:,}")
    if position > end:
        raise ValueError(f"a field that begins at byte {body:,} ends at {position:,}, after the end at {end:,}")
    return tag >> 3, body, position


def _read_varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= end or shift > 63:
            raise ValueError(f"a number is truncated at byte {position:,}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def field_header(number: int, length_bytes: int) -> bytes:
    """The bytes before the content of a length-delimited field."""
    return _varint(number << 3 | _LENGTH) + _varint(length_bytes)
