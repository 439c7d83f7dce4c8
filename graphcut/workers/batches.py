"""Micro-batches: the axis along which inputs can be divided, and how the outputs are joined again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnxruntime as ort

from ..core.manifest import Cascade
from ..core.tensors import NON_NUMPY_TYPES, Tensor
from ..running.values import Array, Outputs, Value, is_numeric_tensor, shape_of

_TOLERANCE: Final = 1e-3
"""The largest difference between micro-batches and the whole batch, relative to the largest number: kernels add in
another order for other sizes."""


class BatchAxis(msgspec.Struct, frozen=True):
    """The axis that a model declares for its examples."""

    inputs: Mapping[str, int]  #: the axis of each input that has one; micro-batches get the other inputs as they are.
    outputs: Mapping[str, int]  #: the axis of each output.

    def size(self, feeds: Mapping[str, Value]) -> int:
        """The number of examples; 1 if inputs disagree, so that nothing is divided."""
        sizes = {shape_of(feeds[name])[axis] for name, axis in self.inputs.items() if name in feeds}
        return sizes.pop() if len(sizes) == 1 else 1

    def has_different_examples(self, feeds: Mapping[str, Value]) -> bool:
        """Do examples differ? If all are the same, a comparison can't show whether the model mixes them."""
        arrays = [np.moveaxis(feeds[name].numpy(), axis, 0) for name, axis in self.inputs.items() if name in feeds]
        return any(not np.array_equal(array, np.broadcast_to(array[:1], array.shape)) for array in arrays)

    def divided(self, feeds: Mapping[str, Value], length: int) -> Iterator[dict[str, Value]]:
        """Micro-batches of `length` examples; the last one may have fewer."""
        arrays = {name: feeds[name].numpy() for name in self.inputs if name in feeds}
        for start in range(0, self.size(feeds), length):
            piece = dict(feeds)
            for name, array in arrays.items():
                axis = self.inputs[name]
                taken = array.take(range(start, min(start + length, array.shape[axis])), axis)
                piece[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(taken))
            yield piece

    def joined(self, answers: Sequence[Mapping[str, Any]]) -> Outputs:
        """The outputs of the whole batch, from those of its micro-batches in order."""
        return {name: np.concatenate([a[name] for a in answers], axis) for name, axis in self.outputs.items()}


def batch_axis(cascade: Cascade) -> BatchAxis | None:
    """The axis along which inputs can be divided, according to declared shapes; None if there is none.

    That is a symbol which occurs exactly once in the shape of every output and of every boundary tensor, and in that of
    at least one input; or, if axes have no names, the first axis of all of them. All types must be divisible. Shapes
    don't show whether examples are independent: compare the results.
    """
    manifest = cascade.manifest
    reads = [cascade.tensors[name] for name in manifest.reads]
    names = dict.fromkeys((*manifest.writes, *(name for part in cascade.parts for name in part.writes)))
    writes = [cascade.tensors[name] for name in names]
    kinds = (*reads, *writes)
    are_divisible = all(is_numeric_tensor(t) and t.shape is not None and t.dtype not in NON_NUMPY_TYPES for t in kinds)
    if not (reads and writes and are_divisible):
        return None
    for symbol in dict.fromkeys(dim for tensor in reads for dim in tensor.shape or () if isinstance(dim, str)):
        counts = [(tensor.shape or ()).count(symbol) for tensor in reads]
        if any(counts) and max(counts) == 1 and all((tensor.shape or ()).count(symbol) == 1 for tensor in writes):
            batched = [tensor for tensor, times in zip(reads, counts, strict=True) if times]
            return BatchAxis(_axes(batched, symbol), _axes(writes[: len(manifest.writes)], symbol))
    if all(tensor.shape and tensor.shape[0] is None for tensor in (*reads, *writes)):
        return BatchAxis(dict.fromkeys(manifest.reads, 0), dict.fromkeys(manifest.writes, 0))
    return None


def are_close(whole: Mapping[str, Any], joined: Mapping[str, Any]) -> bool:
    """Are these the same outputs, except for the order of additions?"""
    return all(_is_close(whole[name], joined[name]) for name in whole)


def _is_close(whole: Array, joined: Array) -> bool:
    if whole.shape != joined.shape or whole.dtype != joined.dtype:
        return False
    if whole.dtype.kind not in "fc" or not whole.size:
        return bool(np.array_equal(whole, joined))
    scale = float(np.max(np.abs(np.nan_to_num(whole))))
    return bool(np.allclose(whole, joined, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True))


def _axes(tensors: Sequence[Tensor], symbol: str) -> dict[str, int]:
    return {tensor.name: (tensor.shape or ()).index(symbol) for tensor in tensors}
