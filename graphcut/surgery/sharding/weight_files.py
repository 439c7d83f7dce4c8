"""Writes the weights of a sharded model: ranges of the model's files, streamed through a small buffer."""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from onnx import TensorProto

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
from ...loading.slices import Columns, bytes_of_slice, inline_slice, read_columns
from ...loading.subgraphs import is_external, tensors_in
from ...loading.wire_format import large_bytes
from ..merging import INLINE_BYTES
from .rewriting import ShardedGraph, WeightSlice

Storage = Literal["copy", "share"]

_PAGE: Final = 4096


@dataclass(frozen=True)
class WeightFile:
    """The data file of a sharded model."""

    layout: FileLayout  #: ranges of other files.
    columns: tuple[tuple[Columns, int], ...]  #: what follows them, each with its offset.
    bytes: int  #: its size; 0 if there is none.

    def write(self, path: Path) -> None:
        """Write it. Takes a few MiB of memory."""
        write_data(self.layout, path)
        with path.open("r+b", buffering=0) as output:
            output.truncate(self.bytes)
            groups = defaultdict[tuple[ByteRange, int], list[tuple[Columns, int]]](list)
            for columns, offset in self.columns:
                groups[columns.source, columns.row_bytes].append((columns, offset))
            for group in groups.values():
                ends = [offset for _, offset in group]
                for i, piece in read_columns([columns for columns, _ in group]):
                    left = memoryview(piece)
                    while left:
                        written = os.pwrite(output.fileno(), left, ends[i])
                        ends[i], left = ends[i] + written, left[written:]


def place_weights(model: Model, graph: ShardedGraph, name: str, storage: Storage) -> WeightFile:
    """Fill in the values of all initializers: small ones into the message, others as references to files.

    Args:
        model: the model that was sharded.
        graph: its message is changed.
        name: the name of the data file.
        storage: `copy`: all large weights are in the data file. `share`: it has only what is no range of a file of the
            model; the others refer to these files.
    """
    pieces: list[tuple[TensorProto, ByteRange | Columns]] = []
    pieces += [(tensor, model.range_of(tensor)) for tensor in tensors_in(graph.proto) if is_external(tensor)]
    pieces += [(one.tensor, piece) for one in graph.slices if (piece := _bytes_of(model, one)) is not None]
    least = INLINE_BYTES + 1 if storage == "copy" and sum(piece.length for _, piece in pieces) <= INLINE_BYTES else 0
    pieces = [pair for pair in pieces if not _is_inlined(*pair, least)]
    spans = [(tensor, piece) for tensor, piece in pieces if isinstance(piece, ByteRange)]
    if storage == "share":
        for tensor, span in spans:
            refer_to_file(tensor, span.file.relative_to(model.path.parent).as_posix(), span.offset, span.length)
        spans = []
    layout = lay_out(span for _, span in spans)
    for tensor, span in spans:
        refer_to_file(tensor, name, layout.offset_of(span), span.length)
    columns = [(tensor, piece) for tensor, piece in pieces if isinstance(piece, Columns)]
    return WeightFile(layout, *_after(layout, columns, name))


def _bytes_of(model: Model, one: WeightSlice) -> ByteRange | Columns | None:
    """Where the values of a slice are; None if its message has them now."""
    if is_external(one.source):
        return bytes_of_slice(one.source, model.range_of(one.source), one.axis, one.runs)
    one.tensor.raw_data = inline_slice(one.source, one.axis, one.runs).raw_data
    return None


def _is_inlined(tensor: TensorProto, values: ByteRange | Columns, least: int) -> bool:
    """Whether values of fewer bytes than `least`, or than any reader wants in a file, were put into the message."""
    if values.length >= max(least, large_bytes(tensor.data_type)):
        return False
    if isinstance(values, ByteRange):
        read_values(tensor, values)
    else:
        tensor.raw_data = b"".join(piece for _, piece in read_columns([values]))
    return True


def _after(
    layout: FileLayout, pieces: Iterable[tuple[TensorProto, Columns]], name: str
) -> tuple[tuple[tuple[Columns, int], ...], int]:
    """The columns with their offsets after `layout`, and the size of the file."""
    placed, end = [], layout.file_bytes
    for tensor, piece in pieces:
        end += -end % _PAGE if piece.length >= ALIGNED_BYTES else 0
        placed.append((piece, end))
        refer_to_file(tensor, name, end, piece.length)
        end += piece.length
    return tuple(placed), end
