"""Lanes: one row for each tensor that crosses, a line from the part that makes it to the last that reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ..core.units import count
from .glyphs import Glyphs
from .scene import Bus, Scene
from .tables import Column, table
from .wording import sized

MOST_ROWS: Final = 14
_MOST_LINES: Final = 32
"""Of more parts no lines are drawn: words say it better."""
_SHORT: Final = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
_LONG: Final = re.compile(r"^(float|bfloat|int|uint)(\d+\[)")
_MANY: Final = 8
_STEP: Final = 3
_MOST_RANGES: Final = 4


@dataclass(frozen=True)
class _Row:
    """One line of the picture: a tensor, or all tensors of the same ends."""

    name: str
    type: str
    size: str
    source: int
    readers: tuple[int, ...]

    @property
    def is_far(self) -> bool:
        return self.readers[-1] > self.source + 1


def lanes(scene: Scene, signs: Glyphs, width: int) -> list[RenderableType]:
    """The picture of all that crosses between parts, at most `width` wide."""
    if not scene.lanes:
        return [Text("no tensor crosses a border", style="dim")]
    rows, folded = _rows(scene)
    parts = len(scene.cards)
    names = Column("crossing tensor", [Text(row.name) for row in rows], fewest=24)
    sizes = Column("bytes", [row.size for row in rows])
    room = width - names.least(15) - sizes.width - 4
    step = _step(parts, width, room)
    cells = [_line(row, step, signs) if step else _words(row, signs) for row in rows]
    picture = Column(_heads(parts, step) if step else "from and to", cells)
    types = Column("type", [Text(row.type, style="dim") for row in rows], spare=1)
    if names.width + types.width + sizes.width + picture.width + 6 > width:
        types = Column("type", [Text(_short(row.type), style="dim") for row in rows], spare=1)
    shown: list[RenderableType] = [table([names, types, sizes, picture], width=width, signs=signs)]
    if folded:
        shown.append(signs.text(f"{signs.more} {folded}", "dim"))
    shown.append(_legend(signs, is_drawn=step > 0))
    return shown


def _rows(scene: Scene) -> tuple[list[_Row], str]:
    """A row each as long as they are few, else one for all of the same ends; and what of them is not shown."""
    if len(scene.lanes) <= MOST_ROWS:
        return [
            _Row(lane.tensor, lane.type, sized(lane.bytes, is_exact=lane.is_exact), lane.source, lane.readers)
            for lane in scene.lanes
        ], ""
    buses, hidden = scene.buses, list[Bus]()
    if len(buses) > MOST_ROWS:
        # What goes to the next part looks the same everywhere; what passes over parts does not.
        ranked = sorted(range(len(buses)), key=lambda i: (not buses[i].is_residual, -buses[i].bytes, i))
        buses = tuple(scene.buses[i] for i in sorted(ranked[: MOST_ROWS - 1]))
        hidden = [scene.buses[i] for i in sorted(ranked[MOST_ROWS - 1 :])]
    if not hidden:
        return [_bus_row(scene, bus) for bus in buses], ""
    tensors = count(sum(len(bus.lanes) for bus in hidden), "more tensor")
    total = sized(sum(bus.bytes for bus in hidden), is_exact=all(bus.is_exact for bus in hidden))
    return [_bus_row(scene, bus) for bus in buses], f"and {tensors}, {total}"


def _bus_row(scene: Scene, bus: Bus) -> _Row:
    own = [scene.lanes[i] for i in bus.lanes]
    types = {lane.type for lane in own}
    more = f" and {len(own) - 1} more" if len(own) > 1 else ""
    size = sized(bus.bytes, is_exact=bus.is_exact)
    return _Row(f"{own[0].tensor}{more}", types.pop() if len(types) == 1 else "", size, bus.source, bus.readers)


def _short(type: str) -> str:  # noqa: A002 - that is what it is
    """A type with the short name of its elements: `f16[1,512,4096]`."""
    return _LONG.sub(lambda found: _SHORT[found[1]] + found[2], type)


def _step(parts: int, width: int, room: int) -> int:
    """Columns from one part to the next; 0 where there is no room for lines."""
    if parts <= _MANY:
        for step in (6, 5, 4):
            if step * parts <= width // 2 and step * (parts - 1) + 2 <= room:
                return step
    return _STEP if parts <= _MOST_LINES and _STEP * (parts - 1) + 2 <= room else 0


def _heads(parts: int, step: int) -> str:
    """The parts above the lines; of two digits, where they would touch, the number alone."""
    names = (f"p{i}" if len(f"p{i}") < step else f"{i}" for i in range(parts))
    return "".join(name.ljust(step) for name in names).rstrip()


def _line(row: _Row, step: int, signs: Glyphs) -> Text:
    length = step * (row.readers[-1] - row.source)
    cells = [" "] * (step * row.source) + [signs.made] + [signs.far if row.is_far else signs.near] * length
    for reader in row.readers:
        cells[step * reader] = signs.read
    return Text("".join(cells), style=_style(row))


def _words(row: _Row, signs: Glyphs) -> Text:
    """`p0 ──> p1-p63`: who makes it, and who reads it."""
    readers = list(ranges(row.readers))
    if len(readers) > _MOST_RANGES:
        readers = [*readers[:2], f"{len(row.readers)} parts, up to {readers[-1]}"]
    sign = signs.far if row.is_far else signs.near
    return Text(f"p{row.source} {sign * 2}> {', '.join(readers)}", style=_style(row))


def ranges(numbers: Sequence[int]) -> Iterable[str]:
    """Places of parts, ascending, with neighbours together: `p1-p3`, `p5`."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield f"p{found[0]}-p{found[-1]}" if len(found) > 1 else f"p{found[0]}"


def _style(row: _Row) -> str:
    return "yellow" if row.is_far else "blue"


def _legend(signs: Glyphs, *, is_drawn: bool) -> Text:
    lines = f"{signs.near * 2} sequential (next part only)   {signs.far * 2} residual (skips a part)"
    return Text(f"{lines}   made {signs.made}   read {signs.read}" if is_drawn else lines, style="dim")
