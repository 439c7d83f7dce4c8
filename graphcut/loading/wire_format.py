"""Read an .onnx file without the values of its large tensors, by walking protobuf's wire format.

Protobuf's parser copies every weight into memory. Here the file is mapped, only the headers of its messages are read,
and a tensor with large `raw_data` becomes an external tensor whose location is a range of the same file. The result is
a small valid model, which protobuf parses.

Wire format: https://protobuf.dev/programming-guides/encoding. Field numbers: onnx/onnx.proto.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..core.errors import ModelError

LARGE_BYTES: Final = 1024  #: `raw_data` of this size or more is left in the file, for most types (see `large_bytes`).
_LARGE_SHAPE_BYTES: Final = 64 << 10

_VARINT, _LENGTH = 0, 2  # wire types

# Fields of TensorProto, and two values.
_DATA_TYPE: Final = 2
_RAW_DATA: Final = 9
_EXTERNAL_DATA: Final = 13
_DATA_LOCATION: Final = 14
_EXTERNAL: Final = 1
_INT64: Final = 7


class _Fields(dict[int, "_Fields"]):
    """The fields of a message that contain a TensorProto at some depth, by number. All others are copied unchanged."""


_TENSOR: Final = _Fields()
_SPARSE: Final = _Fields({1: _TENSOR, 2: _TENSOR})
_ATTRIBUTE: Final = _Fields({5: _TENSOR, 10: _TENSOR, 22: _SPARSE, 23: _SPARSE})
_NODE: Final = _Fields({5: _ATTRIBUTE})
_GRAPH: Final = _Fields({1: _NODE, 5: _TENSOR, 15: _SPARSE})
_ATTRIBUTE.update({6: _GRAPH, 11: _GRAPH})
_FUNCTION: Final = _Fields({7: _NODE, 11: _ATTRIBUTE})
_TRAINING: Final = _Fields({1: _GRAPH, 2: _GRAPH})
_MODEL: Final = _Fields({7: _GRAPH, 20: _TRAINING, 25: _FUNCTION})


def read_without_weights(path: Path) -> bytes:
    """The bytes of the model at `path`, each large `raw_data` replaced by a reference into the file.

    Takes one step for each field of the graph (not for the fields of small nodes). The values of large tensors are not
    read from disk.

    Raises:
        ModelError: the file is empty, truncated, or not protobuf.
    """
    with path.open("rb") as stream:
        stream.seek(0, 2)
        if stream.tell() == 0:
            raise ModelError(f"{path} is empty", hint="export the model again, or check the copy")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if hasattr(data, "madvise"):
                data.madvise(mmap.MADV_RANDOM)  # headers are far apart: read-ahead would read the weights
            try:
                return b"".join(_strip(data, 0, len(data), _MODEL, path.name))
            except (IndexError, ValueError, RecursionError) as error:
                raise ModelError(
                    f"{path} is not an ONNX model, or is truncated: {error}",
                    hint="export the model again, or compare its size with the one it was copied from",
                ) from None


def large_bytes(element: int) -> int:
    """The smallest size in bytes at which a tensor of this element type is left in the file.

    An int64 tensor may be a shape (the input of a Split or Reshape), which ONNX Runtime doesn't read from files. Such
    tensors are kept inside up to 64 KiB.
    """
    return _LARGE_SHAPE_BYTES if element == _INT64 else LARGE_BYTES


def _strip(data: mmap.mmap, start: int, end: int, fields: _Fields, file: str) -> Iterator[bytes]:
    """The pieces of the message at `start:end`. Recurses as deep as subgraphs are nested."""
    kept = position = start
    while position < end:
        number, body, after = _next_field(data, position, end)
        inner = fields.get(number)
        if inner is not None and after - body >= LARGE_BYTES:
            yield data[kept:position]
            pieces = (
                _strip_tensor(data, body, after, file) if inner is _TENSOR else _strip(data, body, after, inner, file)
            )
            yield _length_field(number, b"".join(pieces))
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
        if number == _RAW_DATA:
            raw = position, body, after
        elif number in {_DATA_LOCATION, _EXTERNAL_DATA}:
            location_fields.append(data[position:after])
            location = _read_varint(data, body, after)[0] if number == _DATA_LOCATION else location
        else:
            element = _read_varint(data, body, after)[0] if number == _DATA_TYPE else element
            yield data[position:after]
        position = after
    field, body, after = raw
    if location == _EXTERNAL or after - body < large_bytes(element):
        yield data[field:after]
        yield from location_fields
        return
    for key, value in (("location", file), ("offset", str(body)), ("length", str(after - body))):
        entry = _length_field(1, key.encode()) + _length_field(2, value.encode())
        yield _length_field(_EXTERNAL_DATA, entry)
    yield _varint(_DATA_LOCATION << 3 | _VARINT) + _varint(_EXTERNAL)


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


def _length_field(number: int, content: bytes) -> bytes:
    return field_header(number, len(content)) + content
