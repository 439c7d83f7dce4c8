"""Values that a step can work with: indices inside what they point into, shapes that hold all elements, real axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from .consumers import Use
from .flattening import FlatNode, FlatNodes
from .shape_hints import Shape, ShapeOf, size_along

_FAR: Final = 1 << 30
"""Past every end, and still an int32."""

_INDEXED: Final[Mapping[tuple[str, int], tuple[int, str | int]]] = {
    # Who is an index: into which input, and along which axis or the axis that which attribute names.
    ("Gather", 1): (0, "axis"),
    ("GatherElements", 1): (0, "axis"),
    ("Scatter", 1): (0, "axis"),
    ("ScatterElements", 1): (0, "axis"),
    ("com.microsoft.GatherBlockQuantized", 1): (0, "gather_axis"),
    ("com.microsoft.EmbedLayerNormalization", 0): (2, 0),
    ("com.microsoft.EmbedLayerNormalization", 1): (3, 0),
    ("com.microsoft.RotaryEmbedding", 1): (2, 0),
    ("RotaryEmbedding", 3): (1, 0),
    ("ai.onnx.ml.ArrayFeatureExtractor", 1): (0, -1),
    ("NegativeLogLikelihoodLoss", 1): (0, 1),
    ("SoftmaxCrossEntropyLoss", 1): (0, 1),
}
_INDEXED_BY_ROWS: Final = frozenset({("GatherND", 1), ("ScatterND", 1)})

_CONSTANT: Final[Mapping[tuple[str, int], int]] = {
    # What is always right: begin at the beginning, pad nothing, repeat once, count a few.
    ("Slice", 1): 0, ("Slice", 2): _FAR, ("Slice", 4): 1, ("Pad", 1): 0, ("Tile", 1): 1, ("Upsample", 1): 1,
    ("Resize", 1): 0, ("Resize", 2): 1, ("TopK", 1): 1, ("CumSum", 1): 0, ("CumProd", 1): 0, ("Trilu", 1): 0,
    ("Loop", 0): 3, ("TensorScatter", 2): 0,
    ("Range", 0): 0, ("Range", 1): 5, ("Range", 2): 1, ("OneHot", 1): 4, ("NonMaxSuppression", 2): 3,
    ("SequenceAt", 1): 0, ("SequenceInsert", 2): 0, ("SequenceErase", 1): 0, ("ConstantOfShape", 0): 2,
    ("DequantizeLinear", 2): 0, ("HannWindow", 0): 8, ("HammingWindow", 0): 8, ("BlackmanWindow", 0): 8,
    ("MelWeightMatrix", 0): 4, ("MelWeightMatrix", 1): 16, ("MelWeightMatrix", 2): 8000, ("MelWeightMatrix", 3): 0,
    ("MelWeightMatrix", 4): 4000, ("STFT", 1): 2, ("STFT", 3): 4, ("DFT", 2): 1,
}  # fmt: skip
_LENGTHS: Final[Mapping[tuple[str, int], tuple[int, int]]] = {
    # How long sequences are: as long as which input along which axis.
    ("LSTM", 4): (0, 0),
    ("GRU", 4): (0, 0),
    ("RNN", 4): (0, 0),
    ("ReverseSequence", 1): (0, 0),
    ("Attention", 6): (1, -2),
}
_POSITIVE: Final = frozenset({
    # Integers that divide, for which ONNX Runtime ends the process at a zero; floats that must not be negative.
    ("Div", 1), ("Mod", 1), ("Sqrt", 0), ("Log", 0), ("Pow", 0), ("BatchNormalization", 4), ("QuantizeLinear", 1),
    ("DequantizeLinear", 1),
})  # fmt: skip


def bound_of(use: Use, steps: FlatNodes, shape_of: ShapeOf) -> int | None:
    """One more than the greatest index that a step may be given; `None` where it takes no indices.

    1 where the size is not known: the first always exists.
    """
    key = (use.step.op, use.place)
    if key == ("OneHot", 0):
        return (steps.integers(use.step.reads[1]) or (4,))[0]
    if key in _INDEXED_BY_ROWS:
        first = use.step.number("batch_dims")
        many = size_along(use.step, 1, -1, shape_of) or len(shape_of(use.step.reads[0]) or ())
        sizes = (size_along(use.step, 0, axis, shape_of) for axis in range(first, first + many))
        return min((size or 1 for size in sizes), default=1)
    if key not in _INDEXED:
        return None
    place, axis = _INDEXED[key]
    along = use.step.number(axis) if isinstance(axis, str) else axis
    return size_along(use.step, place, along, shape_of) or 1


def is_positive(use: Use) -> bool:
    """Must what the step reads here be greater than zero?"""
    return (use.step.op, use.place) in _POSITIVE


def parameters_for(use: Use, shape: Sequence[int], shape_of: ShapeOf) -> list[int] | None:
    """Numbers that the step can work with as this parameter; `None` where it is no parameter.

    Args:
        use: an input of the model, met as it is.
        shape: of that input.
        shape_of: the sizes of other tensors.
    """
    key, length = (use.step.op, use.place), prod(shape)
    if use.axes != tuple(range(len(shape))):
        return None
    if key in _CONSTANT:
        return [_CONSTANT[key]] * length
    if key in _LENGTHS:
        place, axis = _LENGTHS[key]
        return [size_along(use.step, place, axis, shape_of) or 1] * length
    rule = _RULES.get(key) or (_axes if use.step.op.startswith("Reduce") and use.place == 1 else None)
    return rule(use.step, length, shape_of) if rule else None


def _axes(_step: FlatNode, length: int, _shape_of: ShapeOf) -> list[int]:
    return list(range(length))


def _squeezed(step: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    ones = [axis for axis, size in enumerate(shape_of(step.reads[0]) or ()) if size == 1]
    return ones[:length] if len(ones) >= length else list(range(length))


def _reshaped(step: FlatNode, length: int, shape_of: ShapeOf) -> list[int] | None:
    """What the model declares of the result, else the shape that is there already, else one row."""
    there = shape_of(step.reads[0])
    for shape in (shape_of(step.writes[0]), there):
        if shape is not None and len(shape) == length and _holds(shape, there):
            return [-1 if size is None else size for size in shape]
    return [*[1] * (length - 1), -1] if length else None


def _holds(shape: Shape, there: Shape | None) -> bool:
    """Can what is there be reshaped to that, as far as one can tell?"""
    open_sizes = sum(size is None for size in shape)
    if open_sizes or there is None or None in there:
        return open_sizes <= 1
    return prod(size or 0 for size in shape) == prod(size or 0 for size in there)


def _spread(step: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    """The result that the model declares, or the shape that is there already."""
    made, there = shape_of(step.writes[0]), shape_of(step.reads[0]) or ()
    shape: Shape = made if made is not None and len(made) == length and None not in made else there
    sizes = [1 if size is None else size for size in shape]
    return [*[1] * (length - len(sizes)), *sizes[max(0, len(sizes) - length) :]]


def _split(step: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    whole = size_along(step, 0, step.number("axis"), shape_of)
    whole = length if whole is None else whole
    return [whole // length + (place < whole % length) for place in range(length)]


def _grid(step: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    """Batch and channels, then a small picture."""
    return [size_along(step, 0, 0, shape_of) or 1, *[3] * (length - 1)]


_RULES: Final[Mapping[tuple[str, int], Callable[[FlatNode, int, ShapeOf], list[int] | None]]] = {
    ("Reshape", 1): _reshaped,
    ("Expand", 1): _spread,
    ("Resize", 3): _spread,
    ("CenterCropPad", 1): _spread,
    ("AffineGrid", 1): _grid,
    ("MaxUnpool", 2): _spread,
    ("Split", 1): _split,
    ("SplitToSequence", 1): _split,
    ("Squeeze", 1): _squeezed,
    ("Unsqueeze", 1): _axes,
    ("Slice", 3): _axes,
    ("Pad", 3): _axes,
}
