"""Slices of tensors along an axis: where their bytes are, and how a sharded model names them."""

from collections.abc import Iterable
from math import prod
from typing import Final, TypeVar

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.numpy_helper import from_array, to_array

from ..core.tensors import BITS
from .external_data import ByteRange, Columns
from .shape_inference import tensor_of_initializer

_Note = TypeVar("_Note", bound=msgspec.Struct)
SHARDED: Final = "graphcut.sharded"  #: the key of a model's metadata that says what it is a sharded form of.
Runs = tuple[tuple[int, int], ...]  #: ranges of an axis, each from its first index to before its last.


class SliceNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which slice of a tensor an initializer or an input of a sharded model is. Its doc_string has this as JSON."""

    slice_of: str  #: a tensor of the model that was sharded.
    axis: int  #: the axis along which it is cut.
    runs: Runs  #: the ranges of that axis.


class ShardingNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is a sharded form of. Its metadata have this as JSON under the key `graphcut.sharded`."""

    model: str  #: the path of the model, relative to the sharded one.
    graph: str  #: digest of its graph.
    shares: tuple[int, ...]  #: the share of each rank.
    mode: str  #: `exact` or `sum`.


def sharding_note(proto: ModelProto) -> ShardingNote | None:
    """The note of a sharded model; None if it has none."""
    texts = [entry.value for entry in proto.metadata_props if entry.key == SHARDED]
    return _decoded(texts[0], ShardingNote) if texts else None


def write_note(message: TensorProto | ValueInfoProto, note: SliceNote) -> None:
    """Say which slice an initializer or an input is."""
    message.doc_string = msgspec.json.encode(note).decode()


def note_of(message: TensorProto | ValueInfoProto) -> SliceNote | None:
    """The note of an initializer or an input; None if it has none."""
    return _decoded(message.doc_string, SliceNote)


def _decoded(text: str, kind: type[_Note]) -> _Note | None:
    try:
        return msgspec.json.decode(text, type=kind)
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


def bytes_of_slice(tensor: TensorProto, span: ByteRange, note: SliceNote) -> ByteRange | Columns:
    """Where the values of a slice are, if those of the tensor are in `span`."""
    inner_bits = prod(tensor.dims[note.axis + 1 :]) * BITS[tensor_of_initializer(tensor).dtype]
    rows = prod(tensor.dims[: note.axis])
    in_row = tuple((begin * inner_bits // 8, end * inner_bits // 8) for begin, end in note.runs)
    if rows == 1 and len(in_row) == 1:
        return ByteRange(span.file, span.offset + in_row[0][0], in_row[0][1] - in_row[0][0])
    return Columns(span, span.length // rows, in_row)


def inline_slice(tensor: TensorProto, note: SliceNote) -> bytes:
    """The values of a slice of a tensor whose message holds them."""
    values, axis = to_array(tensor), note.axis
    return from_array(np.concatenate([values.take(range(*run), axis) for run in note.runs], axis)).raw_data
