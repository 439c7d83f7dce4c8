"""What the steps that read an input tell of its sizes: how many channels a weight wants, which axes are an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from .consumers import Use
from .flattening import FlatNode
from .roles import Meaning

Shape = tuple[int | None, ...]
"""Sizes; `None` where a size is open."""

ShapeOf = Callable[[str], Shape | None]
"""The sizes of a tensor, as far as they are known; `None` where even the rank is not."""

Wanted = Iterator[tuple[int, int | None]]
"""Axes of what a step reads, and the sizes they must have; `None` where that is not known."""

_CONVOLUTIONS: Final[Mapping[str, int]] = {
    # The place of the weight.
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "ConvTranspose"), 1),
    **dict.fromkeys(("com.microsoft.FusedConv", "com.microsoft.NhwcFusedConv"), 1),
    "QLinearConv": 3,
}
_PRODUCTS: Final[Mapping[str, int]] = {
    # The place of the second factor.
    "MatMul": 1,
    "MatMulInteger": 1,
    "QLinearMatMul": 3,
}
_RECURRENT: Final = ("LSTM", "GRU", "RNN")
_ELEMENTWISE: Final = ("Add", "Sub", "Mul", "Div", "Pow", "Where", "PRelu", "Equal", "Greater", "Less")
_OVER_PLACES: Final = frozenset({
    *(*_CONVOLUTIONS, "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("Resize", "Upsample", "SpaceToDepth", "GridSample"),
})  # fmt: skip
_PLACES: Final[Mapping[int, Meaning]] = {3: "frames", 4: "image", 5: "volume"}

_SAME: Final[Mapping[tuple[str, int], tuple[tuple[int, int, int], ...]]] = {
    # For an input of a step: which of its axes is as long as which other input along which axis.
    **{(op, 0): ((-1, factor, -2),) for op, factor in _PRODUCTS.items()},
    ("MatMul", 1): ((-2, 0, -1),),
    ("ConvTranspose", 0): ((1, 1, 0),),
    **{(op, 0): ((-1, 1, -1),) for op in ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")},
    **{(op, 0): ((1, 1, 0),) for op in ("BatchNormalization", "InstanceNormalization")},
    **{(op, 0): ((2, 1, 2),) for op in _RECURRENT},
    **{(op, state): ((0, 2, 0), (2, 2, 2)) for op in _RECURRENT for state in (5, 6)},
}
_LISTS: Final[Mapping[tuple[str, int], int]] = {
    # Parameters with so many elements for each axis of what they are for; 0 where one element always does.
    **dict.fromkeys((("Tile", 1), ("Resize", 2), ("Resize", 3), ("Upsample", 1), ("Expand", 1), ("Reshape", 1)), 1),
    **dict.fromkeys((("Slice", 1), ("Slice", 2), ("Slice", 3), ("Slice", 4), ("TopK", 1)), 0),
    ("Pad", 1): 2,
}


def told_rank(use: Use, shape_of: ShapeOf) -> int | None:
    """The rank that a step wants of what it reads, where its weight tells."""
    step = use.step
    if step.op in _CONVOLUTIONS and use.place == 0:
        weight = shape_of(step.reads[_CONVOLUTIONS[step.op]])
        return len(weight) if weight else None
    if step.op in _RECURRENT and use.place in {0, 5, 6}:
        return 3
    return 2 if step.op in {"Gemm", *_PRODUCTS} else None


def told_sizes(use: Use, shape_of: ShapeOf) -> dict[int, int]:
    """Sizes that a step wants on axes of the input, by these axes."""
    found: dict[int, int] = {}
    if use.axes is None or not use.is_whole:
        return found
    rank = len(use.axes)
    for place, size in _wanted(use, shape_of):
        axis = use.axes[place] if -rank <= place < rank else None
        if axis is not None and size:
            found.setdefault(axis, size)
    return found


def told_channels(use: Use, shape_of: ShapeOf) -> int | None:
    """The channels that a convolution wants of what it reads; `None` where the step is none."""
    is_convolved = _RULES.get((use.step.op, use.place)) is _convolved
    return next(_convolved(use.step, shape_of))[1] if is_convolved else None


def meant_axes(use: Use) -> dict[int, Meaning]:
    """What axes of the input count, by the step that reads them."""
    if use.axes is None:
        return {}
    step, rank = use.step, len(use.axes)
    named: tuple[Meaning | None, ...] = ()
    if step.op in _OVER_PLACES and use.place == 0 and rank in _PLACES:
        named = ("batch", "channels", *(_PLACES[rank] for _ in range(rank - 2)))
    elif step.op in _RECURRENT and use.place in {0, 5, 6} and rank == 3 and not step.number("layout"):
        named = ("sequence" if use.place == 0 else None, "batch", "other")
    pairs = zip(use.axes, named, strict=False)
    return {axis: meaning for axis, meaning in pairs if axis is not None and meaning is not None}


def _wanted(use: Use, shape_of: ShapeOf) -> Wanted:
    key = (use.step.op, use.place)
    for axis, other, along in _SAME.get(key, ()):
        yield axis, size_along(use.step, other, along, shape_of)
    if key in _LISTS:
        axes = use.step.numbers("axes") or shape_of(use.step.reads[0]) or ()
        yield 0, _LISTS[key] * len(axes) or 1
    if key in _RULES:
        yield from _RULES[key](use.step, shape_of)
    if use.step.op == "Concat" or use.step.op in _ELEMENTWISE:
        yield from _beside(use, shape_of)


def size_along(step: FlatNode, place: int, axis: int, shape_of: ShapeOf) -> int | None:
    """The size of one input of a step along one axis, where both are there and known."""
    shape = shape_of(step.reads[place]) if place < len(step.reads) else None
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _convolved(step: FlatNode, shape_of: ShapeOf) -> Wanted:
    yield 1, (size_along(step, _CONVOLUTIONS[step.op], 1, shape_of) or 0) * step.number("group", 1)


def _gemm(step: FlatNode, shape_of: ShapeOf) -> Wanted:
    yield 0 if step.number("transA") else 1, size_along(step, 1, 1 if step.number("transB") else 0, shape_of)


def _quantized_rows(step: FlatNode, _shape_of: ShapeOf) -> Wanted:
    yield -1, step.number("K")


def _pieces(step: FlatNode, _shape_of: ShapeOf) -> Wanted:
    yield step.number("axis"), sum(step.numbers("split"))


def _grouped(step: FlatNode, shape_of: ShapeOf) -> Wanted:
    """Keys and values of the past: batch, heads, length, head size (onnxruntime ContribOperators.md)."""
    heads = step.number("kv_num_heads")
    keys, packed = size_along(step, 1, -1, shape_of), size_along(step, 0, -1, shape_of)
    yield 1, heads
    if keys:
        yield 3, keys // heads
    elif packed:
        yield 3, packed // (step.number("num_heads") + 2 * heads)


def _beside(use: Use, shape_of: ShapeOf) -> Wanted:
    """What is joined or added must have the same sizes; what is added may be spread from 1."""
    step, rank = use.step, len(use.axes or ())
    joined = step.number("axis") % rank if step.op == "Concat" and rank else None
    for place, name in enumerate(step.reads):
        shape = shape_of(name) if place != use.place else None
        for back, size in enumerate(reversed(shape or ()), start=1):
            if back <= rank and rank - back != joined and size is not None and (size > 1 or joined is not None):
                yield -back, size


_RULES: Final[Mapping[tuple[str, int], Callable[[FlatNode, ShapeOf], Wanted]]] = {
    **{(op, 0): _convolved for op in _CONVOLUTIONS if op != "ConvTranspose"},
    ("Gemm", 0): _gemm,
    ("Split", 0): _pieces,
    ("com.microsoft.MatMulNBits", 0): _quantized_rows,
    ("com.microsoft.GroupQueryAttention", 3): _grouped,
    ("com.microsoft.GroupQueryAttention", 4): _grouped,
}
