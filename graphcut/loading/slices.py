"""Slices of tensors along an axis: where their bytes are, and how a sharded model names them."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import msgspec
import numpy as np
from onnx import TensorProto, ValueInfoProto
from onnx.numpy_helper import from_array, to_array

from ..core.wiring import BITS
from .external_data import ByteRange
from .shape_inference import tensor_of_initializer

Runs = tuple[tuple[int, int], ...]
"""Ranges of an axis, each from its first index to before its last."""

BUFFER_BYTES: Final = 4 << 20  #: slices pass through a buffer of this size.


class SliceNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which slice of a tensor an initializer or an input of a sharded model is. Its doc_string has this as JSON."""

    slice_of: str  #: a tensor of the model that was sharded.
    axis: int  #: the axis along which it is cut.
    runs: Runs  #: the ranges of that axis.


def write_note(message: TensorProto | ValueInfoProto, note: SliceNote) -> None:
    """Say which slice an initializer or an input is."""
    message.doc_string = msgspec.json.encode(note).decode()


def note_of(message: TensorProto | ValueInfoProto) -> SliceNote | None:
    """The note of an initializer or an input; None if it has none."""
    try:
        return msgspec.json.decode(message.doc_string, type=SliceNote)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """The same runs in their order, with each joined to the one before where it follows."""
    found: list[tuple[int, int]] = []
    for begin, end in runs:
        first = found.pop()[0] if found and found[-1][1] == begin else begin
        found.append((first, end))
    return tuple(found)


def length(runs: Runs) -> int:
    """How many elements the ranges have."""
    return sum(end - begin for begin, end in runs)


@dataclass(frozen=True)
class Columns:
    """Ranges of bytes of each row of a matrix in a file."""

    source: ByteRange  #: the matrix, row after row.
    row_bytes: int  #: the size of one row.
    runs: Runs  #: the ranges of each row.

    @property
    def length(self) -> int:
        """How many bytes these are."""
        return self.source.length // self.row_bytes * length(self.runs)


def bytes_of_slice(tensor: TensorProto, span: ByteRange, axis: int, runs: Runs) -> ByteRange | Columns:
    """Where the values of a slice are, if those of the tensor are in `span`."""
    inner_bits = prod(tensor.dims[axis + 1 :]) * BITS[tensor_of_initializer(tensor).dtype]
    rows = prod(tensor.dims[:axis])
    in_row = tuple((begin * inner_bits // 8, end * inner_bits // 8) for begin, end in runs)
    if rows == 1 and len(runs) == 1:
        return ByteRange(span.file, span.offset + in_row[0][0], in_row[0][1] - in_row[0][0])
    return Columns(span, span.length // rows, in_row)


def inline_slice(tensor: TensorProto, axis: int, runs: Runs) -> TensorProto:
    """A slice of a tensor whose message holds its values."""
    values = to_array(tensor)
    made = from_array(np.concatenate([values.take(range(*run), axis=axis) for run in runs], axis=axis))
    made.data_type = tensor.data_type
    return made


def read_columns(group: Sequence[Columns]) -> Iterator[tuple[int, bytes]]:
    """The bytes of each of `group`, all of the same matrix, in order; each with the index in `group`.

    A matrix with small rows is read once.
    """
    source, row_bytes = group[0].source, group[0].row_bytes
    with source.file.open("rb", buffering=0) as stream:
        for start, size in steps(source.length, max(1, BUFFER_BYTES // row_bytes) * row_bytes):
            if row_bytes <= BUFFER_BYTES:
                block = np.frombuffer(read_at(stream.fileno(), source, start, size), np.uint8)
                rows = block.reshape(-1, row_bytes)
                for i, columns in enumerate(group):
                    yield i, np.concatenate([rows[:, a:b] for a, b in columns.runs], axis=1).tobytes()
                continue
            for i, columns in enumerate(group):
                for a, b in columns.runs:
                    for offset, piece in steps(b - a, BUFFER_BYTES):
                        yield i, read_at(stream.fileno(), source, start + a + offset, piece)


def steps(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Where each step of a range begins, and its size."""
    return ((start, min(step, size - start)) for start in range(0, size, step))


def read_at(handle: int, span: ByteRange, start: int, size: int) -> bytes:
    """Bytes of a range, from `start` in it."""
    found = os.pread(handle, size, span.offset + start)
    if len(found) < size:
        raise OSError(errno.EIO, "the file ended early", str(span.file))
    return found
