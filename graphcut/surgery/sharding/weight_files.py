"""Writes the weights of a sharded model: ranges of the model's files, streamed through a small buffer."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, Literal

import numpy as np
from onnx import TensorProto
from onnx.numpy_helper import from_array, to_array

from ...core.wiring import BITS
from ...loading.external_data import (
    ALIGNED_BYTES,
    ByteRange,
    FileLayout,
    lay_out,
    read_values,
    refer_to_file,
    write_data,
)
from ...loading.model import Model
from ...loading.shape_inference import tensor_of_initializer
from ...loading.subgraphs import is_external, tensors_in
from ...loading.tensor_values import values_bytes
from ...loading.wire_format import large_bytes
from ..merging import INLINE_BYTES
from .rewriting import ShardedGraph, WeightSlice

Storage = Literal["copy", "share"]

BUFFER_BYTES: Final = 4 << 20  #: weights pass through a buffer of this size.
_PAGE: Final = 4096


@dataclass(frozen=True)
class _Columns:
    """Ranges of bytes of each row of a matrix in a file, which are a new matrix."""

    tensor: TensorProto  #: the new initializer.
    source: ByteRange  #: the matrix, row after row.
    row_bytes: int  #: the size of one row.
    runs: tuple[tuple[int, int], ...]  #: the ranges of each row.

    @property
    def bytes(self) -> int:
        """The size of the new matrix."""
        return self.source.length // self.row_bytes * sum(end - begin for begin, end in self.runs)


@dataclass(frozen=True)
class WeightFile:
    """The data file of a sharded model."""

    layout: FileLayout  #: ranges of other files.
    columns: tuple[tuple[_Columns, int], ...]  #: what follows them, each with its offset.
    bytes: int  #: its size; 0 if there is none.

    def write(self, path: Path) -> None:
        """Write it. Takes a few MiB of memory."""
        write_data(self.layout, path)
        with path.open("r+b") as output:
            output.truncate(self.bytes)
            groups = defaultdict[tuple[ByteRange, int], list[tuple[_Columns, int]]](list)
            for columns, offset in self.columns:
                groups[columns.source, columns.row_bytes].append((columns, offset))
            for group in groups.values():
                _copy_columns(group, output.fileno())


def place_weights(model: Model, graph: ShardedGraph, name: str, storage: Storage) -> WeightFile:
    """Fill in the values of all initializers: small ones into the message, others as references to files.

    Args:
        model: the model that was sharded.
        graph: its message is changed.
        name: the name of the data file.
        storage: `copy`: all large weights are in the data file. `share`: it has only what is no range of a file of the
            model; the others refer to these files.
    """
    spans = [(tensor, model.range_of(tensor)) for tensor in tensors_in(graph.proto) if is_external(tensor)]
    pieces = [_piece(model, one) for one in graph.slices]
    spans += [piece for piece in pieces if isinstance(piece, tuple)]
    columns = [piece for piece in pieces if isinstance(piece, _Columns)]
    total = sum(span.length for _, span in spans) + sum(piece.bytes for piece in columns)
    least = INLINE_BYTES + 1 if storage == "copy" and total <= INLINE_BYTES else 0
    spans = [(tensor, span) for tensor, span in spans if not _is_inlined(tensor, span, least)]
    columns = [piece for piece in columns if not _is_inlined(piece.tensor, piece, least)]
    if storage == "share":
        for tensor, span in spans:
            refer_to_file(tensor, span.file.relative_to(model.path.parent).as_posix(), span.offset, span.length)
        spans = []
    layout = lay_out(span for _, span in spans)
    for tensor, span in spans:
        refer_to_file(tensor, name, layout.offset_of(span), span.length)
    return WeightFile(layout, *_after(layout, columns, name))


def _is_inlined(tensor: TensorProto, values: ByteRange | _Columns, least: int) -> bool:
    """Whether values of fewer bytes than `least`, or than any reader wants in a file, were put into the message."""
    length = values.bytes if isinstance(values, _Columns) else values.length
    if length >= max(least, large_bytes(tensor.data_type)):
        return False
    if isinstance(values, ByteRange):
        read_values(tensor, values)
    else:
        tensor.raw_data = _read_columns(values)
    return True


def _after(layout: FileLayout, columns: Sequence[_Columns], name: str) -> tuple[tuple[tuple[_Columns, int], ...], int]:
    """The columns with their offsets after `layout`, and the size of the file."""
    placed, end = [], layout.file_bytes
    for piece in columns:
        end += -end % _PAGE if piece.bytes >= ALIGNED_BYTES else 0
        placed.append((piece, end))
        refer_to_file(piece.tensor, name, end, piece.bytes)
        end += piece.bytes
    return tuple(placed), end


def _piece(model: Model, one: WeightSlice) -> tuple[TensorProto, ByteRange] | _Columns | None:
    """Where the values of a slice are; None if its message has them now."""
    source, axis = one.source, one.axis
    if not is_external(source):
        values = to_array(source)
        parts = [values.take(range(*run), axis=axis) for run in one.runs]
        made = from_array(np.concatenate(parts, axis=axis), one.tensor.name)
        made.data_type = source.data_type
        one.tensor.CopyFrom(made)
        return None
    span, bits = model.range_of(source), BITS[tensor_of_initializer(source).dtype]
    inner_bits = prod(source.dims[axis + 1 :]) * bits
    runs = tuple((begin * inner_bits // 8, end * inner_bits // 8) for begin, end in one.runs)
    rows = prod(source.dims[:axis])
    if rows == 1 and len(runs) == 1:
        ((begin, end),) = runs
        return one.tensor, ByteRange(span.file, span.offset + begin, end - begin)
    return _Columns(one.tensor, span, values_bytes(source) // rows, runs)


def _read_columns(columns: _Columns) -> bytes:
    with columns.source.file.open("rb") as stream:
        return b"".join(piece for _, piece in _cut([columns], stream.fileno()))


def _copy_columns(group: Sequence[tuple[_Columns, int]], output: int) -> None:
    """Write pieces of the same matrix, which is read once if its rows are small."""
    ends = [offset for _, offset in group]
    with group[0][0].source.file.open("rb") as stream:
        for i, piece in _cut([columns for columns, _ in group], stream.fileno()):
            left = memoryview(piece)
            while left:
                written = os.pwrite(output, left, ends[i])
                ends[i], left = ends[i] + written, left[written:]


def _cut(group: Sequence[_Columns], handle: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of each of `group`, all of the same matrix, in order; each with the index in `group`."""
    source, row_bytes = group[0].source, group[0].row_bytes
    for start, length in _steps(source.length, max(1, BUFFER_BYTES // row_bytes) * row_bytes):
        if row_bytes <= BUFFER_BYTES:
            block = np.frombuffer(_read(source, start, length, handle), np.uint8).reshape(-1, row_bytes)
            for i, columns in enumerate(group):
                yield i, np.concatenate([block[:, a:b] for a, b in columns.runs], axis=1).tobytes()
            continue
        for i, columns in enumerate(group):
            for a, b in columns.runs:
                for offset, size in _steps(b - a, BUFFER_BYTES):
                    yield i, _read(source, start + a + offset, size, handle)


def _steps(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Where each step of a range begins, and its length."""
    return ((start, min(step, length - start)) for start in range(0, length, step))


def _read(source: ByteRange, start: int, length: int, handle: int) -> bytes:
    found = os.pread(handle, length, source.offset + start)
    if len(found) < length:
        raise OSError(errno.EIO, "the file ended early", str(source.file))
    return found
