"""Where the values of an input end up: the steps that it reaches through steps that only move values about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .flattening import FlatNode, FlatNodes

_ALL: Final = range(1 << 16)

_MOVES: Final[Mapping[str, Sequence[int]]] = {
    # The inputs whose values come out as they went in, perhaps in other places or of another type.
    **dict.fromkeys(("Cast", "CastLike", "Identity", "Dropout", "Clip", "QuantizeLinear", "DequantizeLinear"), (0,)),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Expand", "Tile", "Pad", "Gather", "GatherElements", "GatherND", "Compress"), (0,)),
    **dict.fromkeys(("Optional", "OptionalGetElement", "SequenceAt", "ConcatFromSequence", "SplitToSequence"), (0,)),
    **dict.fromkeys(("Concat", "Max", "Min", "SequenceConstruct"), _ALL),
    "Where": (1, 2),
}
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div"})
_RESIZES: Final = frozenset({"Slice", "Split", "Expand", "Tile", "Pad", "SplitToSequence", "ConcatFromSequence"})
_LOSES_AXES: Final = frozenset({"Reshape", "Flatten", "Gather", "GatherElements", "GatherND", "Compress"})

Axes = tuple[int | None, ...]
"""Which axis of the model's input each axis of a tensor is; `None` for an axis that was made on the way."""


@dataclass(frozen=True, slots=True)
class Use:
    """An input of the model, met as one input of one step.

    Attributes:
        step: who reads it.
        place: as which of its inputs.
        axes: which axis of the model's input each axis here is; `None` where that got lost.
        is_whole: sizes here are those of the model's input.
        is_same: values here are those of the model's input.
    """

    step: FlatNode
    place: int
    axes: Axes | None
    is_whole: bool
    is_same: bool


def uses_of(name: str, rank: int, steps: FlatNodes) -> tuple[Use, ...]:
    """Everywhere that the input `name` is met, the nearest first. Linear in the steps that are reached."""
    found: list[Use] = []
    seen = {name}
    waiting = [(name, Use(FlatNode("", (), ()), 0, tuple(range(rank)), is_whole=True, is_same=True))]
    for tensor, past in waiting:
        for step, place in steps.readers.get(tensor, ()):
            use = Use(step, place, past.axes, past.is_whole, past.is_same)
            found.append(use)
            moved = _moved(use, steps)
            if moved is not None:
                fresh = [output for output in step.writes if output and output not in seen]
                seen.update(fresh)
                waiting.extend((output, moved) for output in fresh)
    return tuple(found)


def _moved(use: Use, steps: FlatNodes) -> Use | None:
    """How what a step writes is related to the input; `None` where other values come out than went in."""
    step = use.step
    if step.op in _ARITHMETIC and all(n in steps.weights for i, n in enumerate(step.reads) if i != use.place):
        return Use(step, use.place, use.axes, use.is_whole, is_same=False)
    if use.place not in _MOVES.get(step.op, ()):
        return None
    return Use(step, use.place, _moved_axes(use, steps), use.is_whole and step.op not in _RESIZES, use.is_same)


def _moved_axes(use: Use, steps: FlatNodes) -> Axes | None:
    step, axes = use.step, use.axes
    if axes is None or step.op in _LOSES_AXES:
        return None
    match step.op:
        case "Transpose":
            order = step.numbers("perm") or tuple(reversed(range(len(axes))))
            return tuple(axes[i] for i in order) if len(order) == len(axes) else None
        case "Unsqueeze":
            return _with_new_axes(axes, axes_named(step, steps))
        case "Squeeze":
            gone = {axis % len(axes) for axis in axes_named(step, steps)}
            return tuple(axis for i, axis in enumerate(axes) if i not in gone) if gone else None
        case "Concat" if axes:
            made = step.number("axis") % len(axes)
            return tuple(None if i == made else axis for i, axis in enumerate(axes))
        case _:
            return axes


def axes_named(step: FlatNode, steps: FlatNodes) -> tuple[int, ...]:
    """The axes that Squeeze and Unsqueeze work on: an attribute in older opsets, an input in newer ones."""
    return step.numbers("axes") or (steps.integers(step.reads[1]) if len(step.reads) > 1 else None) or ()


def _with_new_axes(axes: Axes, new: Sequence[int]) -> Axes | None:
    if not new:
        return None
    rank = len(axes) + len(new)
    places = {axis % rank for axis in new}
    old = iter(axes)
    return tuple(None if i in places else next(old) for i in range(rank))
