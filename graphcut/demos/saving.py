"""Puts a drawn model on disk, its weights streamed: inside the file, or in a file beside it.

A weight inside the file is a length-delimited field in a length-delimited field in a length-delimited field, and all
three lengths are known before the first value is. So the file is written from front to back, in little memory.
https://protobuf.dev/programming-guides/encoding/ has the format.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, BinaryIO

from onnx import GraphProto, ModelProto, TensorProto

from ..core.errors import ModelError
from .drafting import element_type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .drafting import Draft
    from .noise import RandomWeight

_INLINE_AT_MOST_BYTES = 64 * 2**20
_PROTOBUF_AT_MOST_BYTES = 2**31 - 1
# A page: what maps a file into memory needs each weight to begin at one.
_ALIGNMENT_BYTES = 4096


def save(draft: Draft, path: Path, *, external: bool | None = None) -> None:
    """Write the model to `path`, and with `external` its weights to `<path>.data`.

    Everything is written beside and moved last. Between the moves of the two files a reader can meet the old model
    with the new weights; the file system offers nothing better.

    Args:
        draft: what to write.
        path: the model file.
        external: None for "when the weights exceed 64 MiB".

    Raises:
        ModelError: the model should be one file, and is larger than protobuf allows (2 GiB).
        OSError: the disk refuses.
    """
    if external is None:
        external = sum(weight.size_bytes for weight in draft.weights) > _INLINE_AT_MOST_BYTES
    if external:
        _save_external(draft, path)
    else:
        _save_inline(draft, path)


def _save_external(draft: Draft, path: Path) -> None:
    data_path = path.with_name(f"{path.name}.data")
    # In this order, so that the weights are in place before the model that reads them is.
    with _replacing(data_path, path) as (data_file, model_file):
        tensors = []
        for weight in draft.weights:
            data_file.write(bytes(-data_file.tell() % _ALIGNMENT_BYTES))
            tensors.append(_elsewhere(weight, data_path.name, data_file.tell()))
            data_file.writelines(weight.pieces())
        model_file.write(_encode(draft.model(tensors)))


def _save_inline(draft: Draft, path: Path) -> None:
    model = draft.model()
    graph = _encode(model.graph)
    model.ClearField("graph")
    heads = [_inline_head(weight) for weight in draft.weights]
    size_bytes = len(graph) + sum(map(len, heads)) + sum(weight.size_bytes for weight in draft.weights)
    head = _encode(model) + _field(ModelProto.GRAPH_FIELD_NUMBER, size_bytes)
    if len(head) + size_bytes > _PROTOBUF_AT_MOST_BYTES:
        raise ModelError(
            f"the model is {size_bytes / 2**30:.1f} GiB, and a single ONNX file holds less than 2 GiB",
            hint="let the weights go into a file beside it: leave `external` out, or set it to true",
        )
    with _replacing(path) as (file,):
        file.write(head + graph)
        for weight, weight_head in zip(draft.weights, heads, strict=True):
            file.write(weight_head)
            file.writelines(weight.pieces())


def _elsewhere(weight: RandomWeight, location: str, offset: int) -> TensorProto:
    tensor = _without_values(weight)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", weight.size_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _inline_head(weight: RandomWeight) -> bytes:
    """All of a weight's field in the graph but the values, which come last in it."""
    values = _field(TensorProto.RAW_DATA_FIELD_NUMBER, weight.size_bytes)
    tensor = _encode(_without_values(weight)) + values
    return _field(GraphProto.INITIALIZER_FIELD_NUMBER, len(tensor) + weight.size_bytes) + tensor


def _without_values(weight: RandomWeight) -> TensorProto:
    return TensorProto(name=weight.name, data_type=element_type(weight.dtype), dims=weight.shape)


def _encode(message: ModelProto | GraphProto | TensorProto) -> bytes:
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _field(number: int, size_bytes: int) -> bytes:
    """What stands before the content of a length-delimited field."""
    length_delimited = 2
    return _varint(number << 3 | length_delimited) + _varint(size_bytes)


def _varint(number: int) -> bytes:
    """Seven bits in a byte, the lowest first; the eighth says whether more follow."""
    digits = bytearray()
    while number >> 7:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


@contextmanager
def _replacing(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Files to write beside these paths, that take their places, in this order, if nothing went wrong."""
    targets = {path.with_name(f".{path.name}.{os.getpid()}.tmp"): path for path in paths}
    try:
        with ExitStack() as opened:
            yield [opened.enter_context(beside.open("wb")) for beside in targets]
        for beside, path in targets.items():
            beside.replace(path)
    finally:
        for beside in targets:
            beside.unlink(missing_ok=True)
