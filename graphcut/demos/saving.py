"""Writes a demo model to disk. The weights are streamed: into the model file, or into an external data file.

In the model file a weight is a length-delimited field in a length-delimited field in a length-delimited field. All
three lengths are known in advance, so the file is written from front to back, in little memory.
"""

from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto

from ..core.atomic_files import replace_files, replacing, scratch_folder
from ..core.errors import ModelError
from ..loading.external_data import refer_to_file
from ..loading.part_marks import check_replaceable
from ..loading.wire_format import field_header
from .drafting import Draft, element_type
from .noise import RandomWeight

_INLINE_AT_MOST_BYTES = 64 * 2**20


def save(draft: Draft, path: Path, *, external: bool | None = None) -> None:
    """Write the model to `path`, and with `external` (by default: if they exceed 64 MiB) its weights to `<path>.data`.

    Files are written to a temporary folder first; both replace existing ones at the end, or neither does.
    """
    if external is None:
        external = sum(weight.size_bytes for weight in draft.weights) > _INLINE_AT_MOST_BYTES
    (_save_external if external else _save_inline)(draft, path)


def _save_external(draft: Draft, path: Path) -> None:
    data_path = path.absolute().with_name(f"{path.name}.data")
    check_replaceable(data_path, path)
    with scratch_folder(path.parent, path.name) as scratch:
        new = scratch / "new"
        new.mkdir()
        tensors = []
        with (new / data_path.name).open("wb") as file:
            for weight in draft.weights:
                file.write(bytes(-file.tell() % 4096))  # a page: it can be mapped into memory
                tensors.append(_without_values(weight))
                refer_to_file(tensors[-1], data_path.name, file.tell(), weight.size_bytes)
                file.writelines(weight.pieces())
        (new / path.name).write_bytes(_encode(draft.model(tensors)))
        replace_files(scratch, path.parent, last=path.name, old=(data_path, path))


def _save_inline(draft: Draft, path: Path) -> None:
    model = draft.model()
    graph = _encode(model.graph)
    model.ClearField("graph")
    heads = [_inline_head(weight) for weight in draft.weights]
    size_bytes = len(graph) + sum(map(len, heads)) + sum(weight.size_bytes for weight in draft.weights)
    head = _encode(model) + field_header(ModelProto.GRAPH_FIELD_NUMBER, size_bytes)
    if len(head) + size_bytes >= 2**31:  # what a protobuf file can't hold
        message = f"the model is {size_bytes / 2**30:.1f} GiB, and a single ONNX file holds less than 2 GiB"
        raise ModelError(message, hint="store the weights in a data file: omit 'external', or set it to true")
    with replacing(path) as new, new.open("wb") as file:
        file.write(head + graph)
        for weight, weight_head in zip(draft.weights, heads, strict=True):
            file.write(weight_head)
            file.writelines(weight.pieces())


def _inline_head(weight: RandomWeight) -> bytes:
    """The field of a weight in the graph without its values, which come last."""
    tensor = _encode(_without_values(weight)) + field_header(TensorProto.RAW_DATA_FIELD_NUMBER, weight.size_bytes)
    return field_header(GraphProto.INITIALIZER_FIELD_NUMBER, len(tensor) + weight.size_bytes) + tensor


def _without_values(weight: RandomWeight) -> TensorProto:
    return TensorProto(name=weight.name, data_type=element_type(weight.dtype), dims=weight.shape)


def _encode(message: ModelProto | GraphProto | TensorProto) -> bytes:
    return message.SerializeToString(deterministic=True)
