"""The lane chart: for each boundary tensor a line from the part that makes it to the last part that reads it."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from ..lane_rows import LaneRow, lane_rows
from ..scene import KINDS, Scene
from ..sentences import size_text
from .bus_lines import CSS
from .primitives import BODY, BOLD, CODE, SMALL, Panel, box, dot, label, line, thing, width_of

MAX_ROWS: Final = 60

_ROW: Final = 21
_NAMES, _TYPES, _BYTES = 300.0, 470.0, 560.0
"""Right edges of the text columns."""


class _Columns(NamedTuple):
    """The columns of the parts."""

    parts: Sequence[float]  #: the x of each part.
    titles: Sequence[str]  #: the text above each part: its name if all names fit, otherwise its index.

    @property
    def step(self) -> float:
        """The distance of two parts."""
        return self.parts[1] - self.parts[0] if len(self.parts) > 1 else 100.0


def draw_lanes(scene: Scene, width: float) -> Panel:
    """The lane chart, at least `width` wide: a square where a tensor is made, a dot where it is read."""
    columns = _columns(scene, width)
    width = max(width, columns.parts[-1] + 8)
    rows, hidden = lane_rows(scene, MAX_ROWS)
    bottom = 22.0 + _ROW * len(rows)
    marks = [*_titles(columns), *(line(((x, 22), (x, bottom)), "grid") for x in columns.parts)]
    stripes = [box(0, 22 + _ROW * i, width, _ROW, "lane" if i % 2 else "lane stripe") for i in range(len(rows))]
    names = [row.name for row in rows]
    for i, (row, stripe) in enumerate(zip(rows, stripes, strict=True)):
        source, *readers = (scene.cards[part].name for part in (row.flow.source, *row.flow.readers))
        ends = f"from {source} to {', '.join(readers)}"
        description = f"{row.name}, {row.type}, {size_text(row.flow)}: {ends}; {KINDS[row.flow.kind]}"
        lane = [stripe, *_lane(row, 22 + _ROW * (i + 0.5), columns, names)]
        marks.append(thing(row.kind, row.index, description, lane, CSS[row.flow.kind]))
    if hidden:
        marks.append(label(0, bottom + 15, hidden, SMALL, css="muted"))
        bottom += 18
    totals = [] if scene.is_ranked else [size_text(boundary) for boundary in scene.boundaries]
    if max((width_of(text, BOLD) for text in totals), default=columns.step) + 6 <= columns.step:
        bottom += 16
        marks.append(label(_BYTES, bottom, "crosses in total", SMALL, css="muted", anchor="end"))
        for x, text in zip(columns.parts, totals, strict=False):
            marks.append(label(x + columns.step / 2, bottom, text, BOLD, anchor="middle"))
    return Panel(width, bottom + 4, tuple(marks))


def _columns(scene: Scene, width: float) -> _Columns:
    for titles in ([card.short_name for card in scene.cards], [str(index) for index in range(len(scene.cards))]):
        half = max(width_of(title, SMALL) for title in titles) / 2
        start = _BYTES + half + 14
        step = max((width - start - half) / max(len(scene.cards) - 1, 1), 9.0)
        if 2 * half + 8 <= step:
            break
    return _Columns([start + step * i for i in range(len(scene.cards))], titles)


def _titles(columns: _Columns) -> Iterator[str]:
    yield label(0, 14, "tensor", SMALL, css="muted")
    yield label(_NAMES, 14, "type", SMALL, css="muted")
    yield label(_BYTES, 14, "bytes", SMALL, css="muted", anchor="end")
    every = ceil((max(width_of(title, SMALL) for title in columns.titles) + 6) / columns.step)
    for x, title in list(zip(columns.parts, columns.titles, strict=True))[::every]:
        yield label(x, 14, title, SMALL, anchor="middle")


def _lane(row: LaneRow, y: float, columns: _Columns, names: Sequence[str]) -> Iterator[str]:
    radius = min(4.0, columns.step * 0.4)
    yield label(4, y + 4, row.name, CODE, room=_NAMES - 16, among=names)
    yield label(_NAMES, y + 4, row.type, CODE, css="muted", room=_TYPES - _NAMES - 10)
    yield label(_BYTES, y + 4, size_text(row.flow), BODY, anchor="end")
    first, last = columns.parts[row.flow.source], columns.parts[row.flow.readers[-1]]
    yield line(((first, y), (last, y)), "wire", width=min(2.2, radius))
    yield box(first - radius, y - radius, 2 * radius, 2 * radius, "made")
    for reader in row.flow.readers:
        yield dot(columns.parts[reader], y, radius)
