"""Operators with a fixed number of FLOPs for each element, and operators that only move data.

The numbers count the arithmetic of a usual implementation. Fused operators are the sum of their steps.
"""

from collections.abc import Mapping
from typing import Final

from ...core.records import table
from ...loading.operations import Operation, RuleTable, by_operator
from ..formula import ZERO, Formula, Rule, elements

COMPOUND: Final = 8
SOFTMAX: Final = 5
NORM: Final = 8
INTERPOLATION: Final = {"nearest": 0, "linear": 8, "bilinear": 8, "cubic": 32, "bicubic": 32}
"""For each element written: a multiply-add for each of 4 or 16 neighbours in two dimensions."""


def _moving(_: Operation) -> Formula:
    """Moves data, looks at shapes, or processes text."""
    return ZERO


def _written(operation: Operation, flops: int, optional: int | None = None) -> Formula:
    """`flops` for each element written, and 1 more if the node has the input `optional`."""
    return elements(operation.written()) * (flops + (optional is not None and operation.has(optional)))


def _read(operation: Operation, flops: int, index: int = 0) -> Formula:
    """`flops` for each element of an input."""
    return elements(operation.read(index)) * flops


def _variadic(operation: Operation, flops: int) -> Formula:
    """For each element written: 1 for each input after the first, and `flops`."""
    return elements(operation.written()) * (len(operation.inputs) - 1 + flops)


def _interpolated(operation: Operation, mode: str) -> Formula:
    return elements(operation.written()) * INTERPOLATION.get(operation.given("mode", mode), 8)


def _scattered(operation: Operation) -> Formula:
    """1 for each update if it is a reduction; else it moves data."""
    return ZERO if operation.given("reduction", "none") == "none" else elements(operation.read(2))


RULES: Final[Mapping[str, Rule]] = by_operator(table("costs/flops/elements.toml", RuleTable), globals())
