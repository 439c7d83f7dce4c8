"""Operators with a fixed number of FLOPs for each element, and operators that only move data.

The numbers count the arithmetic of a usual implementation. Fused operators are the sum of their steps. `elements.toml`
has the operators whose number depends on nothing else.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from ...core.records import table
from ...loading.operations import Operation
from ..formula import ZERO, Formula, Rule, elements

COMPOUND: Final = 8
SOFTMAX: Final = 5
NORM: Final = 8
INTERPOLATION: Final = {"nearest": 0, "linear": 8, "bilinear": 8, "cubic": 32, "bicubic": 32}
"""For each element written: a multiply-add for each of 4 or 16 neighbours in two dimensions."""


_ROWS: Final = table("costs/flops/elements.toml", dict[str, dict[int, str]])
_OPERATORS: Final = {kind: {op: n for n, ops in rows.items() for op in ops.split()} for kind, rows in _ROWS.items()}
"""Operators with their FLOPs for each element, by what elements count."""

MOVING: Final = frozenset(_OPERATORS["moving"])
"""Operators that compute nothing: they move data, look at shapes, or process text."""


def _written(flops: int, optional: int | None, operation: Operation) -> Formula:
    """`flops` for each element written, and 1 more if the node has the input `optional`."""
    return elements(operation.written()) * (flops + (optional is not None and operation.has(optional)))


def _read(flops: int, operation: Operation) -> Formula:
    return elements(operation.read(0)) * flops


def _variadic(flops: int, operation: Operation) -> Formula:
    """For each element written: 1 for each input after the first, and `flops`."""
    return elements(operation.written()) * (len(operation.inputs) - 1 + flops)


def _interpolated(mode: str, operation: Operation) -> Formula:
    return elements(operation.written()) * INTERPOLATION.get(operation.given("mode", mode), 8)


RULES: Final[Mapping[str, Rule]] = {
    **{op: partial(_written, flops, None) for op, flops in _OPERATORS["written"].items()},
    **{op: partial(_read, flops) for op, flops in _OPERATORS["read"].items()},
    **dict.fromkeys(("Sum", "Max", "Min"), partial(_variadic, 0)),
    "Mean": partial(_variadic, 1),
    "com.microsoft.SkipLayerNormalization": partial(_written, NORM + 1, 4),
    "com.microsoft.SkipSimplifiedLayerNormalization": partial(_written, NORM + 1, 3),
    "com.microsoft.EmbedLayerNormalization": partial(_written, NORM + 1, 1),
    "com.microsoft.QEmbedLayerNormalization": partial(_written, NORM + 1, 1),
    "com.microsoft.FastGelu": partial(_written, COMPOUND, 1),
    # 1 for each update if it is a reduction; else it moves data.
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        lambda o: ZERO if o.given("reduction", "none") == "none" else elements(o.read(2)),
    ),
    **dict.fromkeys(("Resize", "Upsample", "com.microsoft.nchwc.Upsample"), partial(_interpolated, "nearest")),
    **dict.fromkeys(("GridSample", "com.microsoft.GridSample"), partial(_interpolated, "linear")),
    # 1 for each score. How many boxes are compared depends on the values.
    "NonMaxSuppression": lambda operation: elements(operation.read(1)),
}
