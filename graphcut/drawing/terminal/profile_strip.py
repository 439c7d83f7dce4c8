"""The cut profile in block characters: bytes alive after each node, with cuts and key nodes marked below."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from rich.text import Text

from ...core.units import size
from ..scene import CutProfile
from .screen import CUT, KEY, LEVELS, Screen, Section

_ROWS: Final = 4
_MARGIN: Final = 12


def profile_strip(profile: CutProfile, marks: Sequence[int], meaning: str, screen: Screen) -> Section:
    """A profile of at least two nodes, four rows high: the lowest bytes alive in each column, its cheapest cut.

    Below, the nodes with the indices `marks` are marked; `meaning` is what they are.
    """
    nodes = len(profile.alive) - 1  # after the last node there is nothing to cut
    columns = min(nodes, max(20, min(screen.width, 120) - _MARGIN))
    edges = [nodes * i // columns for i in range(columns + 1)]
    lowest = [min(profile.alive[first:stop]) for first, stop in pairwise(edges)]
    rows = (profile.keys, marks, profile.cuts)
    keys, marked, cuts = ([min(bisect_right(edges, node), columns) - 1 for node in row] for row in rows)
    cells = [(" ", "")] * columns
    for signed, sign in ((keys, (screen.plain(KEY), "dim")), (marked, (screen.plain(CUT), "yellow"))):
        for place in signed:
            cells[place] = sign
    least = "" if all(profile.exact) else "≥ "
    legend = f"  {least}bytes alive, lowest per column   {CUT} {meaning}" + f"   {KEY} key node" * bool(profile.keys)
    title = Text("cut profile", style="bold").append(screen.plain(legend), "not bold dim")
    marks_line = Text(" " * _MARGIN).append_text(Text.assemble(*cells))
    return [title, *_columns(lowest, screen.plain(LEVELS)), marks_line, *_parts(cuts, columns)]


def _columns(lowest: Sequence[int], levels: str) -> Iterator[Text]:
    top, steps = max(lowest) or 1, len(levels) - 1
    # Anything above 0 is visible.
    heights = [max(round(value / top * _ROWS * steps), int(value > 0)) for value in lowest]
    labels = {_ROWS - 1: size(top), _ROWS // 2 - 1: size(top // 2), 0: "0 B"}
    for row in reversed(range(_ROWS)):
        blocks = "".join(levels[max(0, min(steps, height - row * steps))] for height in heights)
        yield Text(labels.get(row, "").rjust(_MARGIN - 2) + "  ", style="dim").append(blocks, "not dim blue")


def _parts(cuts: Sequence[int], columns: int) -> list[Text]:
    """The number of each part; nothing if the model is not cut, or if a part is too narrow for its number."""
    if not cuts:
        return []
    line = [" "] * columns
    for part, (start, stop) in enumerate(pairwise([-1, *cuts, columns])):
        name = f"p{part}"
        if stop - start - 1 < len(name):
            return []
        first = start + 1 + (stop - start - 1 - len(name)) // 2
        line[first : first + len(name)] = name
    return [Text((" " * _MARGIN + "".join(line)).rstrip(), style="dim")]
