"""Values that an operator accepts as a parameter: indices in range, shapes with the right element count, valid axes."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from .consumers import Consumer
from .flattening import FlatNode, FlatNodes
from .shape_hints import Shape, ShapeOf, size_along

_END: Final = 1 << 30  #: greater than any size, and still an int32: the end of a Slice.

_INDEXED: Final[Mapping[tuple[str, int], tuple[int, str | int]]] = {
    # (operator, input that is an index): (indexed input, axis, or the attribute that names the axis).
    ("Gather", 1): (0, "axis"), ("GatherElements", 1): (0, "axis"), ("Scatter", 1): (0, "axis"),
    ("ScatterElements", 1): (0, "axis"), ("com.microsoft.GatherBlockQuantized", 1): (0, "gather_axis"),
    ("com.microsoft.EmbedLayerNormalization", 0): (2, 0), ("com.microsoft.EmbedLayerNormalization", 1): (3, 0),
    ("com.microsoft.RotaryEmbedding", 1): (2, 0), ("RotaryEmbedding", 3): (1, 0),
    ("ai.onnx.ml.ArrayFeatureExtractor", 1): (0, -1), ("NegativeLogLikelihoodLoss", 1): (0, 1),
    ("SoftmaxCrossEntropyLoss", 1): (0, 1),
}  # fmt: skip


_CONSTANT: Final[Mapping[tuple[str, int], int]] = {
    # Values that are always valid: begin at 0, no padding, one repetition, a small count.
    ("Slice", 1): 0, ("Slice", 2): _END, ("Slice", 4): 1, ("Pad", 1): 0, ("Tile", 1): 1, ("Upsample", 1): 1,
    ("Resize", 1): 0, ("Resize", 2): 1, ("TopK", 1): 1, ("CumSum", 1): 0, ("CumProd", 1): 0, ("Trilu", 1): 0,
    ("Loop", 0): 3, ("TensorScatter", 2): 0,
    ("Range", 0): 0, ("Range", 1): 5, ("Range", 2): 1, ("OneHot", 1): 4, ("NonMaxSuppression", 2): 3,
    ("SequenceAt", 1): 0, ("SequenceInsert", 2): 0, ("SequenceErase", 1): 0, ("ConstantOfShape", 0): 2,
    ("DequantizeLinear", 2): 0, ("HannWindow", 0): 8, ("HammingWindow", 0): 8, ("BlackmanWindow", 0): 8,
    ("MelWeightMatrix", 0): 4, ("MelWeightMatrix", 1): 16, ("MelWeightMatrix", 2): 8000, ("MelWeightMatrix", 3): 0,
    ("MelWeightMatrix", 4): 4000, ("STFT", 1): 2, ("STFT", 3): 4, ("DFT", 2): 1,
}  # fmt: skip
_LENGTHS: Final[Mapping[tuple[str, int], tuple[int, int]]] = {
    # Sequence lengths: equal to the size of (input, axis).
    ("LSTM", 4): (0, 0), ("GRU", 4): (0, 0), ("RNN", 4): (0, 0), ("ReverseSequence", 1): (0, 0),
    ("Attention", 6): (1, -2),
}  # fmt: skip
POSITIVE: Final = frozenset({
    # Inputs that must be above zero: integer divisors (ONNX Runtime ends the process at a zero), floats that must not
    # be negative.
    ("Div", 1), ("Mod", 1), ("Sqrt", 0), ("Log", 0), ("Pow", 0), ("BatchNormalization", 4), ("QuantizeLinear", 1),
    ("DequantizeLinear", 1),
})  # fmt: skip


def index_bound(consumer: Consumer, nodes: FlatNodes, shape_of: ShapeOf) -> int | None:
    """The size of the axis that is indexed, so indices are below it; `None` if the consumer takes no indices.

    1 if the size is unknown: index 0 always exists.
    """
    key = (consumer.node.op, consumer.index)
    if key == ("OneHot", 0):
        return (nodes.integers(consumer.node.reads[1]) or (4,))[0]
    if key in {("GatherND", 1), ("ScatterND", 1)}:
        first = consumer.node.number("batch_dims")
        many = size_along(consumer.node, 1, -1, shape_of) or len(shape_of(consumer.node.reads[0]) or ())
        sizes = (size_along(consumer.node, 0, axis, shape_of) for axis in range(first, first + many))
        return min((size or 1 for size in sizes), default=1)
    if key not in _INDEXED:
        return None
    index, axis = _INDEXED[key]
    along = consumer.node.number(axis) if isinstance(axis, str) else axis
    return size_along(consumer.node, index, along, shape_of) or 1


def parameter_values(consumer: Consumer, shape: Sequence[int], shape_of: ShapeOf) -> list[int] | None:
    """Numbers that the consumer accepts as this parameter; `None` if the input is no parameter.

    It reads an input of the model of this `shape` unchanged; `shape_of` gives the shapes of other tensors.
    """
    key, length = (consumer.node.op, consumer.index), prod(shape)
    # A parameter with more numbers is not what it looks like.
    if length > 1 << 20 or consumer.axes != tuple(range(len(shape))):
        return None
    if key in _CONSTANT:
        return [_CONSTANT[key]] * length
    if key in _LENGTHS:
        index, axis = _LENGTHS[key]
        return [size_along(consumer.node, index, axis, shape_of) or 1] * length
    rule = _RULES.get(key) or (_axes if consumer.node.op.startswith("Reduce") and consumer.index == 1 else None)
    return rule(consumer.node, length, shape_of) if rule else None


def _axes(_step: FlatNode, length: int, _shape_of: ShapeOf) -> list[int]:
    return list(range(length))


def _squeezable_axes(node: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    ones = [axis for axis, size in enumerate(shape_of(node.reads[0]) or ()) if size == 1]
    return ones[:length] if len(ones) >= length else list(range(length))


def _reshape_target(node: FlatNode, length: int, shape_of: ShapeOf) -> list[int] | None:
    """The shape that the model declares for the result, else the present shape, else one row."""
    there = shape_of(node.reads[0])
    for shape in (shape_of(node.writes[0]), there):
        if shape is not None and len(shape) == length and _can_reshape(shape, there):
            return [-1 if size is None else size for size in shape]
    return [*[1] * (length - 1), -1] if length else None


def _can_reshape(shape: Shape, there: Shape | None) -> bool:
    """Whether a tensor of shape `there` can be reshaped to `shape`, as far as sizes are known."""
    open_sizes = sum(size is None for size in shape)
    if open_sizes or there is None or None in there:
        return open_sizes <= 1
    return prod(size or 0 for size in shape) == prod(size or 0 for size in there)


def _target_shape(node: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    """The shape that the model declares for the result, or the present shape."""
    made, there = shape_of(node.writes[0]), shape_of(node.reads[0]) or ()
    shape: Shape = made if made is not None and len(made) == length and None not in made else there
    sizes = [1 if size is None else size for size in shape]
    return [*[1] * (length - len(sizes)), *sizes[max(0, len(sizes) - length) :]]


def _split(node: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    whole = size_along(node, 0, node.number("axis"), shape_of)
    whole = length if whole is None else whole
    return [whole // length + (index < whole % length) for index in range(length)]


def _grid_size(node: FlatNode, length: int, shape_of: ShapeOf) -> list[int]:
    """The batch size of the input, then 3 for every other size."""
    return [size_along(node, 0, 0, shape_of) or 1, *[3] * (length - 1)]


_RULES: Final[Mapping[tuple[str, int], Callable[[FlatNode, int, ShapeOf], list[int] | None]]] = {
    ("Reshape", 1): _reshape_target, ("Expand", 1): _target_shape, ("Resize", 3): _target_shape,
    ("CenterCropPad", 1): _target_shape, ("AffineGrid", 1): _grid_size, ("MaxUnpool", 2): _target_shape,
    ("Split", 1): _split, ("SplitToSequence", 1): _split, ("Squeeze", 1): _squeezable_axes, ("Unsqueeze", 1): _axes,
    ("Slice", 3): _axes, ("Pad", 3): _axes,
}  # fmt: skip
