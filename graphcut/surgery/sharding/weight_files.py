"""Where the weights of a sharded model come from: ranges of the model's files, and columns cut out of them."""

from collections.abc import Iterable

from onnx import ModelProto, TensorProto

from ...loading.external_data import ByteRange, Columns, read_values, refer_to_file
from ...loading.model import Model
from ...loading.slices import bytes_of_slice, inline_slice
from ...loading.subgraphs import is_external, tensors_in
from ...loading.wire_format import large_bytes
from ..model_files import Pieces
from .rewriting import WeightSlice


def fill_slices(model: Model, slices: Iterable[WeightSlice]) -> None:
    """Put values of few bytes into the messages of slices; others refer to as many bytes of the model's file.

    What is there does not matter: `pieces_of` says where the values are. But the sharded model is then a valid one,
    whose types can be inferred.
    """
    for one in slices:
        if not is_external(one.source):
            one.tensor.raw_data = inline_slice(one.source, one.note)
        elif one.bytes < large_bytes(one.source.data_type):
            read_values(one.tensor, bytes_of_slice(one.source, model.range_of(one.source), one.note))
        else:
            location = next(entry.value for entry in one.source.external_data if entry.key == "location")
            refer_to_file(one.tensor, location, model.range_of(one.source).offset, one.bytes)


def pieces_of(model: Model, proto: ModelProto, slices: Iterable[WeightSlice]) -> Pieces:
    """The large weights of a sharded model after `fill_slices`, or of a part of one, and where their values are."""
    known = {one.tensor.name: one for one in slices}
    pieces: list[tuple[TensorProto, ByteRange | Columns]] = []
    for tensor in filter(is_external, tensors_in(proto)):
        one = known.get(tensor.name)
        source = model.range_of(tensor if one is None else one.source)
        pieces.append((tensor, source if one is None else bytes_of_slice(one.source, source, one.note)))
    return pieces
