"""How a bus is drawn: how thick, and how one line branches to several readers."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Final

from ..scene import Bus

Point = tuple[float, float]

_THIN: Final = 1.5
_THICK: Final = 4.0
_SPAN: Final = 16.0
"""A line is thin from here on, in halvings of the most that a bus carries."""


def thickness(bus: Bus, buses: Sequence[Bus]) -> float:
    """The width of its line, in user units: more bytes are thicker, on a logarithmic scale."""
    most = max(other.bytes for other in buses)
    halvings = log2((most + 1) / (bus.bytes + 1))
    return _THICK - (_THICK - _THIN) * min(halvings / _SPAN, 1)


def comb(stem: Sequence[Point], teeth: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """Lines from a stem along a rail to teeth; no two of them lie on one another, else dashes would fill holes.

    Args:
        stem: the way to the rail; its last point lies on it.
        teeth: the way of each reader from the rail on, its first point on the rail.
    """
    last = stem[-1]
    first, *others = sorted(teeth, key=lambda tooth: tooth[0])
    farthest = others.pop() if others else first
    if farthest[0] <= last:
        return [[*stem, *first], *map(list, others), *([list(farthest)] if farthest is not first else [])]
    lines = [[*stem, *farthest], *map(list, others)]
    if farthest is not first:
        lines.append([last, *first] if first[0] < last else list(first))
    return lines
