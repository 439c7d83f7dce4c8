"""The cut profile in block characters: bytes alive along the nodes, with cuts and key nodes marked beneath."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.text import Text

from ..core.units import size
from .glyphs import Glyphs
from .scene import CutProfile

_ROWS: Final = 4
_MARGIN: Final = 12
_WIDEST: Final = 120


@dataclass(frozen=True)
class _Strip:
    """A profile in so many columns."""

    profile: CutProfile
    edges: Sequence[int]

    @property
    def columns(self) -> int:
        return len(self.edges) - 1

    def column(self, place: int) -> int:
        """The column of the node at that place."""
        return min(bisect_right(self.edges, place) - 1, self.columns - 1)

    def lowest(self) -> list[int]:
        return [min(self.profile.alive[a:b]) for a, b in pairwise(self.edges)]


def strip(profile: CutProfile, marks: Sequence[int], meaning: str, signs: Glyphs, width: int) -> list[Text]:
    """The profile, four rows high: the lowest bytes alive per column, that is the cheapest cut there.

    Args:
        profile: of two nodes or more.
        marks: the places marked as cuts.
        meaning: what they are.
        signs: what is drawn with.
        width: of the terminal.
    """
    places = len(profile.alive) - 1  # after the last node there is nothing to cut
    columns = min(places, max(20, min(width, _WIDEST) - _MARGIN))
    found = _Strip(profile, [places * i // columns for i in range(columns + 1)])
    head = Text("cut profile", style="bold")
    least = "" if all(profile.exact) else signs.least
    legend = f"  {least}bytes alive, lowest per column   {signs.cut} {meaning}"
    if profile.keys:
        legend += f"   {signs.key} key node"
    return [head.append(legend, "not bold dim"), *_bars(found, signs), _marks(found, marks, signs), *_parts(found)]


def _bars(found: _Strip, signs: Glyphs) -> list[Text]:
    lowest = found.lowest()
    top, steps = max(lowest) or 1, len(signs.levels) - 1
    # What is there at all is seen.
    heights = [max(round(value / top * _ROWS * steps), int(value > 0)) for value in lowest]
    labels = {_ROWS - 1: size(top), _ROWS // 2 - 1: size(top // 2), 0: "0 B"}
    rows = []
    for row in range(_ROWS - 1, -1, -1):
        bars = "".join(signs.levels[max(0, min(steps, height - row * steps))] for height in heights)
        rows.append(Text(labels.get(row, "").rjust(_MARGIN - 2) + "  ", style="dim").append(bars, "not dim blue"))
    return rows


def _marks(found: _Strip, marks: Sequence[int], signs: Glyphs) -> Text:
    cells = [(" ", "")] * found.columns
    for place in found.profile.keys:
        cells[found.column(place)] = (signs.key, "dim")
    for place in marks:
        cells[found.column(place)] = (signs.cut, "yellow")
    return Text(" " * _MARGIN).append_text(Text.assemble(*cells))


def _parts(found: _Strip) -> list[Text]:
    """Where each part lies; nothing where nothing is cut, or some part is too narrow for its number."""
    cuts = [found.column(place) for place in found.profile.cuts]
    if not cuts:
        return []
    line = [" "] * found.columns
    for part, (start, stop) in enumerate(pairwise([-1, *cuts, found.columns])):
        name = f"p{part}"
        if stop - start - 1 < len(name):
            return []
        at = start + 1 + (stop - start - 1 - len(name)) // 2
        line[at : at + len(name)] = name
    return [Text((" " * _MARGIN + "".join(line)).rstrip(), style="dim")]
