"""The consumers of a model input: nodes that read it, directly or through nodes that only move values."""

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ..core.records import table
from .flattening import FlatNode, FlatNodes


class _InputRules(msgspec.Struct):
    """What operators ask of their inputs, by `Consumer.key`: `operators.toml` says it."""

    passing: frozenset[str]
    passing_all: frozenset[str]
    resizing: frozenset[str]
    over_places: frozenset[str]
    positive: frozenset[str]
    constant: dict[str, int]
    indexed: dict[str, tuple[int, int | str]]
    lengths: dict[str, tuple[int, int]]
    same: dict[str, tuple[tuple[int, int, int], ...]]
    lists: dict[str, int]
    convolutions: dict[str, int]


INPUT_RULES: Final = table("inputs/operators.toml", _InputRules)
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div"})

Axes = tuple[int | None, ...]
"""For each axis of a tensor the corresponding axis of the model's input; `None` for a new axis."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A node that reads an input of the model, as one of its own inputs."""

    node: FlatNode  #: the node.
    index: int  #: which of its inputs.
    axes: Axes | None  #: for each axis here the axis of the model's input; `None` if that is unknown.
    is_whole: bool  #: the sizes here are those of the model's input.
    is_same: bool  #: the values here are those of the model's input.

    @property
    def key(self) -> str:
        """The operator and the index, such as `Gather 1`."""
        return f"{self.node.op} {self.index}"


def consumers_of(name: str, rank: int, nodes: FlatNodes) -> tuple[Consumer, ...]:
    """All consumers of the input `name`, the nearest first. Linear in the nodes reached."""
    found: list[Consumer] = []
    seen = {name}
    waiting = [(name, Consumer(FlatNode("", (), ()), 0, tuple(range(rank)), is_whole=True, is_same=True))]
    for tensor, past in waiting:
        for node, index in nodes.readers.get(tensor, ()):
            consumer = replace(past, node=node, index=index)
            found.append(consumer)
            if (moved := _propagated(consumer, nodes)) is not None:
                fresh = [output for output in node.writes if output and output not in seen]
                seen.update(fresh)
                waiting.extend((output, moved) for output in fresh)
    return tuple(found)


def _propagated(consumer: Consumer, nodes: FlatNodes) -> Consumer | None:
    """How the outputs of a node relate to the model's input; `None` if the node computes other values."""
    node = consumer.node
    if node.op in _ARITHMETIC and all(n in nodes.weights for i, n in enumerate(node.reads) if i != consumer.index):
        return replace(consumer, is_same=False)
    if consumer.key not in INPUT_RULES.passing and node.op not in INPUT_RULES.passing_all:
        return None
    is_whole = consumer.is_whole and node.op not in INPUT_RULES.resizing
    return replace(consumer, axes=_propagated_axes(consumer, nodes), is_whole=is_whole)


def _propagated_axes(consumer: Consumer, nodes: FlatNodes) -> Axes | None:
    node, axes = consumer.node, consumer.axes
    if axes is None or node.op in {"Reshape", "Flatten", "Gather", "GatherElements", "GatherND", "Compress"}:
        return None
    match node.op:
        case "Transpose":
            order = node.numbers("perm") or tuple(reversed(range(len(axes))))
            return tuple(axes[i] for i in order) if sorted(order) == [*range(len(axes))] else None
        case "Unsqueeze":
            rank = len(axes) + len(axes_named(node, nodes))
            new, old = {axis % rank for axis in axes_named(node, nodes)}, iter(axes)
            return tuple(None if i in new else next(old, None) for i in range(rank)) if new else None
        case "Squeeze" if axes:
            gone = {axis % len(axes) for axis in axes_named(node, nodes)}
            return tuple(axis for i, axis in enumerate(axes) if i not in gone) if gone else None
        case "Concat" if axes:
            made = node.number("axis") % len(axes)
            return tuple(None if i == made else axis for i, axis in enumerate(axes))
        case _:
            return axes


def axes_named(node: FlatNode, nodes: FlatNodes) -> tuple[int, ...]:
    """The axes of Squeeze and Unsqueeze: an attribute before opset 13, an input since."""
    return node.numbers("axes") or (nodes.integers(node.reads[1]) if len(node.reads) > 1 else None) or ()
