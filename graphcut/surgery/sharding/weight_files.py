"""Where the weights of a sharded model come from: ranges of the model's files, and columns cut out of them."""

from collections.abc import Iterable
from typing import Literal

from onnx import ModelProto, TensorProto

from ...loading.external_data import (
    ByteRange,
    Columns,
    FileLayout,
    lay_out,
    read_columns,
    read_values,
    refer_to_file,
)
from ...loading.model import Model
from ...loading.slices import bytes_of_slice, inline_slice
from ...loading.subgraphs import is_external, tensors_in
from ...loading.wire_format import large_bytes
from .rewriting import WeightSlice

Storage = Literal["copy", "share"]


def fill_slices(model: Model, slices: Iterable[WeightSlice]) -> None:
    """Put values of few bytes into the messages of slices; others refer to as many bytes of the model's file.

    What is there does not matter: `place_weights` says where the values are. But the sharded model is then a valid one,
    whose types can be inferred.
    """
    for one in slices:
        if not is_external(one.source):
            one.tensor.raw_data = inline_slice(one.source, one.axis, one.runs).raw_data
        elif one.bytes < large_bytes(one.source.data_type):
            _put_inside(one.tensor, bytes_of_slice(one.source, model.range_of(one.source), one.axis, one.runs))
        else:
            location = next(entry.value for entry in one.source.external_data if entry.key == "location")
            refer_to_file(one.tensor, location, model.range_of(one.source).offset, one.bytes)


def place_weights(
    model: Model,
    proto: ModelProto,
    slices: Iterable[WeightSlice],
    name: str,
    *,
    storage: Storage = "copy",
    inline_bytes: int = -1,
) -> FileLayout:
    """The data file of a sharded model, or of a part of one; its message refers to it afterwards.

    Args:
        model: the model that was sharded.
        proto: the message, after `fill_slices`.
        slices: the slices of the sharded model.
        name: the name of the data file.
        storage: `copy`: all large weights are in the data file. `share`: it has only what is no range of a file of the
            model; the others refer to these files.
        inline_bytes: if all weights to be copied take at most so much, they are put into the message.
    """
    known = {one.tensor.name: one for one in slices}
    pieces: list[tuple[TensorProto, ByteRange | Columns]] = []
    for tensor in filter(is_external, tensors_in(proto)):
        one = known.get(tensor.name)
        source = model.range_of(tensor if one is None else one.source)
        pieces.append((tensor, source if one is None else bytes_of_slice(one.source, source, one.axis, one.runs)))
    if storage == "copy" and sum(piece.length for _, piece in pieces) <= inline_bytes:
        for tensor, piece in pieces:
            _put_inside(tensor, piece)
        return lay_out([])
    if storage == "share":
        for tensor, piece in pieces:
            if isinstance(piece, ByteRange):
                location = piece.file.relative_to(model.path.parent).as_posix()
                refer_to_file(tensor, location, piece.offset, piece.length)
        pieces = [pair for pair in pieces if isinstance(pair[1], Columns)]
    layout = lay_out(piece for _, piece in pieces)
    for tensor, piece in pieces:
        refer_to_file(tensor, name, layout.offset_of(piece), piece.length)
    return layout


def _put_inside(tensor: TensorProto, piece: ByteRange | Columns) -> None:
    if isinstance(piece, ByteRange):
        read_values(tensor, piece)
        return
    tensor.ClearField("data_location")
    del tensor.external_data[:]
    tensor.raw_data = b"".join(part.tobytes() for _, part in read_columns([piece]))
