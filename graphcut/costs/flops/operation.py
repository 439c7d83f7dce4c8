"""One node as the formulas see it: the sizes of what it reads and writes by position, and its attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from onnx import AttributeProto, NodeProto

from ...core.wiring import Dim, Tensor
from ..formula import UNKNOWN, Formula, product

Shape = tuple[Dim, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Operation:
    """A node and the tensors around it.

    Attributes:
        proto: its message.
        tensors: what is known of the tensors, by name: activations, weights and constants.
    """

    proto: NodeProto
    tensors: Mapping[str, Tensor]

    def has(self, place: int) -> bool:
        """Is the input at `place` given?"""
        return len(self.proto.input) > place and self.proto.input[place] != ""

    def read(self, place: int) -> Shape | None:
        """The sizes of the input at `place`; `None` where they are unknown, or it is not given."""
        return self._shape(self.proto.input[place]) if self.has(place) else None

    def written(self, place: int = 0) -> Shape | None:
        """The sizes of the output at `place`; `None` where they are unknown, or it is not given."""
        return self._shape(self.proto.output[place]) if len(self.proto.output) > place else None

    def number(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        return self._attribute(name, default, lambda attribute: attribute.i)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a row of whole numbers; empty where it is not given."""
        return self._attribute(name, (), lambda attribute: tuple(attribute.ints))

    def text(self, name: str, default: str) -> str:
        """An attribute that is text."""
        return self._attribute(name, default, lambda attribute: attribute.s.decode("utf-8", "replace"))

    def _shape(self, name: str) -> Shape | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor is not None else None

    def _attribute(self, name: str, default: _T, value: Callable[[AttributeProto], _T]) -> _T:
        for attribute in self.proto.attribute:
            if attribute.name == name:
                return value(attribute)
        return default


Rule = Callable[[Operation], Formula]
"""The FLOPs of one run of a node."""


def elements(shape: Shape | None) -> Formula:
    """How many elements a tensor has; a shape that is unknown counts as one element, and is not exact."""
    return UNKNOWN if shape is None else product(shape)


def axis(shape: Shape | None, place: int) -> Dim:
    """One size of a tensor; `None` where it is unknown."""
    return shape[place] if shape is not None and -len(shape) <= place < len(shape) else None


def size(shape: Shape | None, place: int) -> Formula:
    """One size of a tensor as a formula; 1 and not exact where it is unknown."""
    return Formula.of(axis(shape, place))


def rows(shape: Shape | None) -> Formula:
    """How many rows a tensor has: the product of all its sizes but the last."""
    return UNKNOWN if shape is None else product(shape[:-1])


def divided(dim: Dim, parts: int) -> Dim:
    """A size that is shared evenly; `None` for a symbol, of which nothing tells that it can be."""
    return dim // parts if isinstance(dim, int) and parts > 0 else None
