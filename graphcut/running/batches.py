"""A batch in pieces: along which axis feeds can be divided, and how outputs are put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ..core.manifest import Cascade
from ..core.wiring import Tensor
from .values import NON_NUMPY_TYPES, Value, is_numeric_tensor

_CLOSE: Final = 1e-3
"""How far pieces may be from the whole, relative to the largest number: other sizes, other order of additions."""


@dataclass(frozen=True)
class BatchAxis:
    """Where a model declares how many examples it works on at the same time.

    Attributes:
        inputs: the axis of each input that has one for each example; others go to every piece as they are.
        outputs: the axis of each output.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def size(self, feeds: Mapping[str, Value]) -> int:
        """How many examples there are; 1 where inputs don't agree, so that nothing is divided."""
        sizes = {shape_of(feeds[name])[axis] for name, axis in self.inputs.items() if name in feeds}
        return sizes.pop() if len(sizes) == 1 else 1

    def tells(self, feeds: Mapping[str, Value]) -> bool:
        """Do examples differ from each other? Those that are all the same can't tell whether they are mixed."""
        arrays = [np.moveaxis(feeds[name].numpy(), axis, 0) for name, axis in self.inputs.items() if name in feeds]
        return any(not np.array_equal(array, np.broadcast_to(array[:1], array.shape)) for array in arrays)

    def pieces(self, feeds: Mapping[str, Value], length: int) -> Iterator[dict[str, Value]]:
        """`feeds`, `length` examples at a time; the last piece may have fewer."""
        arrays = {name: feeds[name].numpy() for name in self.inputs if name in feeds}
        for start in range(0, self.size(feeds), length):
            piece = dict(feeds)
            for name, array in arrays.items():
                taken = array.take(range(start, min(start + length, array.shape[self.inputs[name]])), self.inputs[name])
                piece[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(taken))
            yield piece

    def together(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The outputs of all pieces, one behind the other."""
        return {name: np.concatenate([a[name] for a in answers], axis) for name, axis in self.outputs.items()}


def batch_axis(cascade: Cascade) -> BatchAxis | None:
    """The axis along which feeds can be divided, as far as types tell; None where nothing declares one.

    It is a symbol that the shape of every output and of every tensor that crosses has exactly once, and that of at
    least one input; or, where axes have no names, the first axis of all of them. No input or output may be of a type
    that can't be taken apart. Whether examples really don't depend on each other is for a comparison to tell.
    """
    manifest = cascade.manifest
    reads = [cascade.tensors[name] for name in manifest.reads]
    crossing = dict.fromkeys((*manifest.writes, *(name for part in cascade.parts for name in part.writes)))
    writes = [cascade.tensors[name] for name in crossing]
    if not reads or not writes or not all(map(_can_be_cut, (*reads, *writes))):
        return None
    symbols = dict.fromkeys(dim for tensor in reads for dim in tensor.shape or () if isinstance(dim, str))
    for symbol in symbols:
        if all((tensor.shape or ()).count(symbol) == 1 for tensor in writes):
            carrying = [tensor for tensor in reads if (tensor.shape or ()).count(symbol) == 1]
            if carrying and all(symbol not in (t.shape or ()) for t in reads if t not in carrying):
                return BatchAxis(_axes(carrying, symbol), _axes(writes[: len(manifest.writes)], symbol))
    if all(tensor.shape and tensor.shape[0] is None for tensor in (*reads, *writes)):
        return BatchAxis(dict.fromkeys(manifest.reads, 0), dict.fromkeys(manifest.writes, 0))
    return None


def agree(whole: Mapping[str, Any], pieces: Mapping[str, Any]) -> bool:
    """Are these the same outputs, but for the order of additions?"""
    return all(_is_close(whole[name], pieces[name]) for name in whole)


def _is_close(whole: np.ndarray[Any, Any], pieces: np.ndarray[Any, Any]) -> bool:
    if whole.shape != pieces.shape or whole.dtype != pieces.dtype:
        return False
    if whole.dtype.kind not in "fc" or not whole.size:
        return bool(np.array_equal(whole, pieces))
    scale = float(np.max(np.abs(np.nan_to_num(whole))))
    return bool(np.allclose(whole, pieces, rtol=_CLOSE, atol=_CLOSE * scale, equal_nan=True))


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tuple(value.shape()) if isinstance(value, ort.OrtValue) else np.shape(value)


def _can_be_cut(tensor: Tensor) -> bool:
    return is_numeric_tensor(tensor) and tensor.shape is not None and tensor.dtype not in NON_NUMPY_TYPES


def _axes(tensors: Sequence[Tensor], symbol: str) -> dict[str, int]:
    return {tensor.name: (tensor.shape or ()).index(symbol) for tensor in tensors}
