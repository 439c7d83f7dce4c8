"""A node as the FLOP rules see it: its attributes, and the sizes of its inputs and outputs by index."""

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
    """A node and the types of its tensors. An unknown size counts as 1 and makes a formula inexact."""

    proto: NodeProto  #: the node.
    tensors: Mapping[str, Tensor]  #: the known types of activations, weights and constants, by name.

    def has(self, index: int) -> bool:
        """Whether the node has this input."""
        return len(self.proto.input) > index and self.proto.input[index] != ""

    def read(self, index: int) -> Shape | None:
        """The shape of an input; `None` if it is unknown, or the node doesn't have the input."""
        return self._shape(self.proto.input[index]) if self.has(index) else None

    def written(self, index: int = 0) -> Shape | None:
        """The shape of an output; `None` if it is unknown, or the node doesn't have the output."""
        return self._shape(self.proto.output[index]) if len(self.proto.output) > index else None

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        return self._attribute(name, default, lambda attribute: attribute.i)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty if the node doesn't have it."""
        return self._attribute(name, (), lambda attribute: tuple(attribute.ints))

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        return self._attribute(name, default, lambda attribute: attribute.s.decode("utf-8", "replace"))

    def _shape(self, name: str) -> Shape | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor is not None else None

    def _attribute(self, name: str, default: _T, value: Callable[[AttributeProto], _T]) -> _T:
        return next((value(attribute) for attribute in self.proto.attribute if attribute.name == name), default)


Rule = Callable[[Operation], Formula]  #: the FLOPs of one run of a node.


def elements(shape: Shape | None) -> Formula:
    """The number of elements of a tensor."""
    return UNKNOWN if shape is None else product(shape)


def rows(shape: Shape | None) -> Formula:
    """The number of rows of a tensor: the product of all its sizes but the last."""
    return UNKNOWN if shape is None else product(shape[:-1])


def axis(shape: Shape | None, index: int) -> Dim:
    """The size of a tensor along one axis; `None` if it is unknown."""
    return shape[index] if shape is not None and -len(shape) <= index < len(shape) else None


def size(shape: Shape | None, index: int) -> Formula:
    """The size of a tensor along one axis as a formula."""
    return Formula.of(axis(shape, index))


def divided(dim: Dim, parts: int) -> Dim:
    """A size divided by a number; `None` for a symbol, which may not be divisible."""
    return dim // parts if isinstance(dim, int) and parts > 0 else None
