"""Values that an operator accepts as a parameter: indices in range, shapes with the right element count, valid axes."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

from .consumers import INPUT_RULES, Consumer
from .flattening import FlatNode, FlatNodes
from .shape_hints import Shape, ShapeOf, size_along


def index_bound(consumer: Consumer, nodes: FlatNodes, shape_of: ShapeOf) -> int | None:
    """The size of the axis that is indexed, so indices are below it; `None` if the consumer takes no indices.

    1 if the size is unknown: index 0 always exists.
    """
    key = consumer.key
    if key == "OneHot 0":
        return (nodes.integers(consumer.node.reads[1]) or (4,))[0]
    if key in {"GatherND 1", "ScatterND 1"}:
        first = consumer.node.number("batch_dims")
        many = size_along(consumer.node, 1, -1, shape_of) or len(shape_of(consumer.node.reads[0]) or ())
        sizes = (size_along(consumer.node, 0, axis, shape_of) for axis in range(first, first + many))
        return min((size or 1 for size in sizes), default=1)
    if key not in INPUT_RULES.indexed:
        return None
    index, axis = INPUT_RULES.indexed[key]
    along = consumer.node.number(axis) if isinstance(axis, str) else axis
    return size_along(consumer.node, index, along, shape_of) or 1


def parameter_values(consumer: Consumer, shape: Sequence[int], shape_of: ShapeOf) -> list[int] | None:
    """Numbers that the consumer accepts as this parameter; `None` if the input is no parameter.

    It reads an input of the model of this `shape` unchanged; `shape_of` gives the shapes of other tensors.
    """
    key, length = consumer.key, prod(shape)
    # A parameter with more numbers is not what it looks like.
    if length > 1 << 20 or consumer.axes != tuple(range(len(shape))):
        return None
    if key in INPUT_RULES.constant:
        return [INPUT_RULES.constant[key]] * length
    if key in INPUT_RULES.lengths:
        index, axis = INPUT_RULES.lengths[key]
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


_RULES: Final[Mapping[str, Callable[[FlatNode, int, ShapeOf], list[int] | None]]] = {
    "Reshape 1": _reshape_target, "Expand 1": _target_shape, "Resize 3": _target_shape,
    "CenterCropPad 1": _target_shape, "AffineGrid 1": _grid_size, "MaxUnpool 2": _target_shape,
    "Split 1": _split, "SplitToSequence 1": _split, "Squeeze 1": _squeezable_axes, "Unsqueeze 1": _axes,
    "Slice 3": _axes, "Pad 3": _axes,
}  # fmt: skip
