"""Sizes and meanings of axes that the consumers of an input imply: channels of a weight, axes of an image, ..."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ..core.graph import grouped
from .consumers import INPUT_RULES, Consumer
from .flattening import FlatNode
from .roles import Meaning

Shape = tuple[int | None, ...]  #: sizes; `None` for an open size.
ShapeOf = Callable[[str], Shape | None]  #: gives the shape of a tensor by name; `None` if its rank is unknown.
Required = Iterator[tuple[int, int | None]]
"""Axes of an input of a node, and the sizes required there; `None` if unknown."""


_CONVOLUTIONS: Final = INPUT_RULES.convolutions
_RECURRENT: Final = ("LSTM", "GRU", "RNN")
_ELEMENTWISE: Final = ("Add", "Sub", "Mul", "Div", "Pow", "Where", "PRelu", "Equal", "Greater", "Less")
_PLACES: Final[Mapping[int, Meaning]] = {3: "frames", 4: "image", 5: "volume"}


def required_rank(consumer: Consumer, shape_of: ShapeOf) -> int | None:
    """The rank that the consumer requires of what it reads, if its operator or weight determines it."""
    node = consumer.node
    if node.op in _CONVOLUTIONS and consumer.index == 0:
        weight = shape_of(node.reads[_CONVOLUTIONS[node.op]])
        return len(weight) if weight else None
    if node.op == "Concat":
        return next((len(shape) for name in node.reads if (shape := shape_of(name))), None)
    return 3 if node.op in _RECURRENT and consumer.index in {0, 5, 6} else None


def required_sizes(consumer: Consumer, shape_of: ShapeOf) -> dict[int, int]:
    """Sizes that the consumer requires, by axis of the model's input."""
    if consumer.axes is None or not consumer.is_whole:
        return {}
    axes = dict(enumerate(consumer.axes * 2, -len(consumer.axes)))  # by their indices from the end and from the front
    found = grouped((axes.get(index), size) for index, size in _required(consumer, shape_of) if size)
    return {axis: sizes[0] for axis, sizes in found.items() if axis is not None}


def required_channels(consumer: Consumer, shape_of: ShapeOf) -> int | None:
    """The channels that a convolution requires of its input; `None` if the consumer is no convolution."""
    is_convolved = _RULES.get(consumer.key) is _convolution_channels
    return next(_convolution_channels(consumer.node, shape_of))[1] if is_convolved else None


def axis_meanings(consumer: Consumer) -> dict[int, Meaning]:
    """The meanings of axes of the model's input that the consumer's operator implies."""
    if consumer.axes is None:
        return {}
    node, rank = consumer.node, len(consumer.axes)
    named: tuple[Meaning | None, ...] = ()
    if node.op in {*_CONVOLUTIONS, *INPUT_RULES.over_places} and consumer.index == 0 and rank in _PLACES:
        named = ("batch", "channels", *(_PLACES[rank] for _ in range(rank - 2)))
    elif node.op in _RECURRENT and consumer.index in {0, 5, 6} and rank == 3 and not node.number("layout"):
        named = ("sequence" if consumer.index == 0 else None, "batch", "other")
    pairs = zip(consumer.axes, named, strict=False)
    return {axis: meaning for axis, meaning in pairs if axis is not None and meaning is not None}


def _required(consumer: Consumer, shape_of: ShapeOf) -> Required:
    key = consumer.key
    for axis, other, along in INPUT_RULES.same.get(key, ()):
        yield axis, size_along(consumer.node, other, along, shape_of)
    if key in INPUT_RULES.lists:
        axes = consumer.node.numbers("axes") or shape_of(consumer.node.reads[0]) or ()
        yield 0, INPUT_RULES.lists[key] * len(axes) or 1
    if key in _RULES:
        yield from _RULES[key](consumer.node, shape_of)
    if consumer.node.op == "Concat" or consumer.node.op in _ELEMENTWISE:
        yield from _broadcast_sizes(consumer, shape_of)


def size_along(node: FlatNode, index: int, axis: int, shape_of: ShapeOf) -> int | None:
    """The size of input `index` of a node along `axis`; `None` if it is missing or unknown."""
    shape = shape_of(node.reads[index]) if index < len(node.reads) else None
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _convolution_channels(node: FlatNode, shape_of: ShapeOf) -> Required:
    yield 1, (size_along(node, _CONVOLUTIONS[node.op], 1, shape_of) or 0) * node.number("group", 1)


def _gemm_inner(node: FlatNode, shape_of: ShapeOf) -> Required:
    yield 0 if node.number("transA") else 1, size_along(node, 1, 1 if node.number("transB") else 0, shape_of)


def _past_shape(node: FlatNode, shape_of: ShapeOf) -> Required:
    """Past keys and values are [batch, heads, length, head size] (onnxruntime, ContribOperators.md)."""
    heads = max(1, node.number("kv_num_heads"))  # a node without it is not valid
    keys, packed = size_along(node, 1, -1, shape_of), size_along(node, 0, -1, shape_of)
    yield 1, heads
    yield 3, keys // heads if keys else (packed or 0) // (node.number("num_heads") + 2 * heads)


def _broadcast_sizes(consumer: Consumer, shape_of: ShapeOf) -> Required:
    """Concat and elementwise operators need equal sizes; elementwise ones also broadcast from 1."""
    node, rank = consumer.node, len(consumer.axes or ())
    joined = node.number("axis") % rank if node.op == "Concat" and rank else None
    for index, name in enumerate(node.reads):
        shape = shape_of(name) if index != consumer.index else None
        for back, size in enumerate(reversed(shape or ()), start=1):
            if back <= rank and rank - back != joined and size is not None and (size > 1 or joined is not None):
                yield -back, size


_RULES: Final[Mapping[str, Callable[[FlatNode, ShapeOf], Required]]] = {
    **{f"{op} 0": _convolution_channels for op in _CONVOLUTIONS if op != "ConvTranspose"},
    "Gemm 0": _gemm_inner, "com.microsoft.MatMulNBits 0": lambda node, _: iter([(-1, node.number("K"))]),
    "Split 0": lambda node, _: iter([(node.number("axis"), sum(node.numbers("split")))]),
    "com.microsoft.GroupQueryAttention 3": _past_shape, "com.microsoft.GroupQueryAttention 4": _past_shape,
}  # fmt: skip
