"""FLOP rules, and the sizes of inputs and outputs as formulas."""

from collections.abc import Callable

from ...core.wiring import Dim
from ...loading.operations import Operation, Shape
from ..formula import UNKNOWN, Formula, product

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
