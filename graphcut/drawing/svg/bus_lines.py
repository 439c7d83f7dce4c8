"""How the map draws a bus: its line width, its text, and how one line branches to several readers."""

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import Final, Literal

from ...core.units import count
from ..scene import KINDS, Bus, Card, FlowKind
from ..sentences import size_text
from .primitives import Point, arrow_head, line, thing

CSS: Final[Mapping[FlowKind, str]] = {"sequential": "near", "residual": "far", "exchange": "near", "kept": "muted"}
"""The class of each kind, for its colour and dashes."""


def thickness(bus: Bus, buses: Iterable[Bus]) -> float:
    """The width of its line, in user units: a logarithmic scale of its bytes, 4 for the most and 1.5 for 2 ** -16."""
    halvings = log2((max(other.bytes for other in buses) + 1) / (bus.bytes + 1))
    return 4.0 - 2.5 * min(halvings / 16, 1)


def bus_group(index: int, bus: Bus, cards: Sequence[Card], marks: Iterable[str]) -> str:
    """The lines and the text of a bus as one group."""
    readers = ", ".join(cards[reader].name for reader in bus.readers)
    what = f"{count(len(bus.tensors), 'tensor')}, {size_text(bus)}"
    description = f"{cards[bus.source].name} sends {what}, to {readers}; {KINDS[bus.kind]}"
    return thing("bus", index, description, marks, CSS[bus.kind])


def branches(stem: Sequence[Point], arms: Sequence[Sequence[Point]]) -> list[list[Point]]:
    """Lines from a stem along a rail to several ends. No two overlap: overlapping dashes would look solid.

    The last point of the stem and the first points of the arms are on the rail.
    """
    last, ordered = stem[-1], sorted(arms, key=lambda arm: arm[0])
    first, farthest = ordered[0], ordered[-1]
    if farthest[0] <= last:
        return [[*stem, *first], *map(list, ordered[1:])]
    lines = [[*stem, *farthest], *map(list, ordered[1:-1])]
    if len(ordered) > 1:
        lines.append([last, *first] if first[0] < last else list(first))
    return lines


def bracket(points: Sequence[Point], direction: Literal["left", "up"], *, is_loop: bool) -> str:
    """A line around the parts of a phase, whose last point is at the first part; of a loop with an arrow head there."""
    head = arrow_head(*points[-1], direction) if is_loop else ""
    return f'<g class="muted">{line(points, "wire", width=1.5)}{head}</g>'
