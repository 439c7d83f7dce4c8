"""The map of many parts: one row below the other, what skips over rows in a gutter at their left.

Parts that don't depend on each other stand side by side in one row, as long as there is room for what they say. No
layout engine here either (see columns.py): a bus leaves its card downwards into the gap below, where its label stands;
from there it goes straight down into the next row, or to the left into a track of the gutter, and from the track into
the left side of its readers, or onto a rail above those that stand side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from ..scene import Bus, Card, Scene
from .card import (
    Scales,
    bytes_said,
    ink_of,
    scales_of,
    small_card,
    tensors_said,
)
from .columns import columns_of
from .panel import Panel
from .primitives import BODY, SMALL, dot, head, line, words
from .row import row_card, row_heads, stops_of
from .strokes import Point, comb, thickness

MOST_TRACKS: Final = 20
"""Buses that run side by side in the gutter; of more the heaviest are drawn."""
MOST_LINES: Final = 6
"""Buses that leave one card; of more the heaviest are drawn."""

_ROW: Final = 34
_CELL: Final = 66
_LEAST_CELL: Final = 150
_BETWEEN: Final = 12
_LINE: Final = 17
_RAIL: Final = 8
_TRACK: Final = 10
_PORT: Final = 11
_HEADS: Final = 22


def draw_rows(scene: Scene, width: float) -> Panel:
    """The map of `scene` as rows that are `width` wide together with their gutter."""
    layout = _RowLayout(scene.cards, scene.buses, width)
    marks: list[str] = []
    for bus in layout.shown:
        marks += layout.drawn(bus)
    scales = scales_of(scene.cards)
    marks += row_heads(layout.left, layout.inner, scales)
    for place, card in enumerate(scene.cards):
        x, y, wide, high = layout.cells[place]
        draw = row_card if layout.is_alone(place) else small_card
        marks += draw(card, scales, x, y, wide, high)
    for bus in layout.shown:
        marks += layout.label(bus)
    if any(bus.is_residual for bus in scene.buses):
        marks += _totals(scene, layout, scales)
    height = layout.height
    if layout.hidden:
        said = "1 lighter bus is not drawn" if layout.hidden == 1 else f"{layout.hidden} lighter buses are not drawn"
        marks.append(words(layout.left, height + 12, said, SMALL, ink="muted"))
        height += 18
    return Panel(width, height, tuple(marks))


def _totals(scene: Scene, layout: _RowLayout, scales: Scales) -> Iterator[str]:
    """What crosses between two rows of one part each."""
    x = stops_of(layout.left, layout.inner, scales).need
    for place, crossing in enumerate(scene.crossing):
        if layout.line_room(place) is not None and crossing.tensors:
            said = f"{bytes_said(crossing)} crosses in total"
            yield words(x, layout.bottom(place) + 15, said, SMALL, ink="muted")


def _are_apart(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span[1] <= other[0] or other[1] <= span[0]


@dataclass(frozen=True)
class _RowLayout:
    """Where everything stands. Buses and cards are named by their places."""

    cards: Sequence[Card]
    buses: Sequence[Bus]
    width: float

    @cached_property
    def rows(self) -> list[list[int]]:
        """The cards of each row. Too many to stand side by side get rows of their own."""
        most = int((self.width - _TRACK * MOST_TRACKS) // (_LEAST_CELL + _BETWEEN))
        found: list[list[int]] = []
        for places in columns_of(self.cards):
            found += [places] if len(places) <= most else [[place] for place in places]
        return found

    @cached_property
    def row(self) -> Mapping[int, int]:
        return {place: r for r, places in enumerate(self.rows) for place in places}

    def is_alone(self, place: int) -> bool:
        """Has the card a row for itself?"""
        return len(self.rows[self.row[place]]) == 1

    def is_direct(self, bus: int) -> bool:
        """Do all its readers stand in the next row?"""
        wire = self.buses[bus]
        return all(self.row[reader] == self.row[wire.source] + 1 for reader in wire.readers)

    def is_straight(self, bus: int) -> bool:
        """Is it one arrow from a row to the next?"""
        wire = self.buses[bus]
        return self.is_direct(bus) and self.is_alone(wire.source) and self.is_alone(wire.readers[0])

    @cached_property
    def _placed(self) -> dict[int, int | None]:
        """The buses that are drawn, and the track of those that have one; the heavy ones come first."""
        found: dict[int, int | None] = {}
        leaving: dict[int, int] = defaultdict(int)
        tracks: list[list[tuple[int, int]]] = [[] for _ in range(MOST_TRACKS)]
        for bus in sorted(range(len(self.buses)), key=lambda b: (not self.is_straight(b), -self.buses[b].bytes, b)):
            wire = self.buses[bus]
            if leaving[wire.source] == MOST_LINES:
                continue
            if self.is_direct(bus):
                found[bus] = None
            else:
                span = (self.row[wire.source], max(self.row[reader] for reader in wire.readers))
                track = next((t for t, taken in enumerate(tracks) if all(map(partial(_are_apart, span), taken))), None)
                if track is None:
                    continue
                tracks[track].append(span)
                found[bus] = track
            leaving[wire.source] += 1
        return found

    @cached_property
    def shown(self) -> list[int]:
        """The buses that are drawn."""
        return sorted(self._placed)

    @property
    def hidden(self) -> int:
        """How many are not."""
        return len(self.buses) - len(self.shown)

    @cached_property
    def tracks(self) -> int:
        """How many tracks the gutter has."""
        return max((track + 1 for track in self._placed.values() if track is not None), default=0)

    @property
    def left(self) -> float:
        """Where the cards start."""
        return _TRACK * self.tracks + (16 if self.tracks else 0)

    @property
    def inner(self) -> float:
        """How wide a row is."""
        return self.width - self.left

    def track_x(self, bus: int) -> float:
        """Where its track lies; the first is nearest to the cards."""
        track = self._placed[bus]
        return self.left - 18 - _TRACK * (track or 0)

    def outs(self, place: int) -> list[int]:
        """The buses that leave a card, those that go straight down first."""
        return self._leaving.get(place, [])

    @cached_property
    def _leaving(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for bus in sorted(self.shown, key=lambda b: (not self.is_direct(b), b)):
            found[self.buses[bus].source].append(bus)
        return found

    @cached_property
    def _sideways(self) -> dict[int, list[int]]:
        """The buses that enter each card by its left side."""
        found: dict[int, list[int]] = defaultdict(list)
        for bus in sorted(self.shown, key=self.track_x):
            for reader in self.buses[bus].readers:
                if self.is_alone(reader) and not self.is_straight(bus) and not self._is_on_rail(bus, self.row[reader]):
                    found[reader].append(bus)
        return found

    def _is_on_rail(self, bus: int, row: int) -> bool:
        """Does it come down on that row from a rail?"""
        first = self.buses[bus].readers[0]
        return not self.is_straight(bus) and (
            len(self.rows[row]) > 1 or (self.is_direct(bus) and self.row[first] == row)
        )

    @cached_property
    def lines(self) -> list[list[int]]:
        """The buses with a label below each row, from top to bottom; each has a height of its own."""
        return [[bus for place in places for bus in self.outs(place)] for places in self.rows]

    @cached_property
    def rails(self) -> list[list[int]]:
        """The buses that run along above each row."""
        found: list[list[int]] = []
        for row, places in enumerate(self.rows):
            here = [
                b for b in self.shown if any(r in places for r in self.buses[b].readers) and self._is_on_rail(b, row)
            ]
            found.append(sorted(here, key=lambda b: (self.buses[b].source, b)))
        return found

    @cached_property
    def _tops(self) -> list[float]:
        """The upper edge of each row, and the end of all."""
        found = [float(_HEADS)]
        for row in range(len(self.rows)):
            gap = 14.0 if row + 1 < len(self.rows) else 2.0
            has_total = row + 1 < len(self.rows) and self.line_room(self.rows[row][0]) is not None
            gap += _LINE * max(len(self.lines[row]), has_total)
            if row + 1 < len(self.rows):
                gap += _RAIL * len(self.rails[row + 1])
            found.append(found[-1] + self._row_height(row) + gap)
        return found

    def _row_height(self, row: int) -> float:
        if len(self.rows[row]) > 1:
            return _CELL
        return max(_ROW, 10.0 * len(self._sideways.get(self.rows[row][0], ())) + 8)

    @property
    def height(self) -> float:
        return self._tops[-1]

    @cached_property
    def cells(self) -> list[tuple[float, float, float, float]]:
        """The corner and the size of each card."""
        found = {}
        for row, places in enumerate(self.rows):
            wide = (self.inner + _BETWEEN) / len(places) - _BETWEEN
            for i, place in enumerate(places):
                found[place] = (self.left + i * (wide + _BETWEEN), self._tops[row], wide, self._row_height(row))
        return [found[place] for place in range(len(self.cards))]

    def bottom(self, place: int) -> float:
        """The lower edge of a card."""
        return self.cells[place][1] + self.cells[place][3]

    def _stub_x(self, bus: int) -> float:
        """Where it leaves its card; those that go straight down leave farthest to the left."""
        source = self.buses[bus].source
        return self.cells[source][0] + 16 + _PORT * self.outs(source).index(bus)

    def _line_y(self, bus: int) -> float:
        """The height that it has for itself below its row."""
        row = self.row[self.buses[bus].source]
        return self.bottom(self.rows[row][0]) + 11 + _LINE * self.lines[row].index(bus)

    def _rail_y(self, bus: int, row: int) -> float:
        """The height of its rail above a row."""
        rails = self.rails[row]
        return self._tops[row] - 12 - _RAIL * (len(rails) - 1 - rails.index(bus))

    def _drop_x(self, bus: int, reader: int) -> float:
        """Where it comes down on a card from a rail."""
        own = [b for b in self.rails[self.row[reader]] if reader in self.buses[b].readers]
        # Half a step beside where buses leave, so that none runs on in another's line.
        return self.cells[reader][0] + 16 + _PORT * (own.index(bus) + 0.5)

    def _side_y(self, bus: int, reader: int) -> float:
        """Where it enters a card by its left side."""
        own = self._sideways[reader]
        _, y, _, high = self.cells[reader]
        return y + high * (own.index(bus) + 1) / (len(own) + 1)

    def drawn(self, bus: int) -> list[str]:
        """Its lines and arrow heads."""
        wire = self.buses[bus]
        css, tip, wide = f"{ink_of(wire)} wire", f"{ink_of(wire)} tip", thickness(wire, self.buses)
        if self.is_straight(bus):
            x, top = self._stub_x(bus), self.cells[wire.readers[0]][1]
            return [line(((x, self.bottom(wire.source)), (x, top - 6)), css, width=wide), head(x, top, "down", tip)]
        rows: dict[int, list[int]] = defaultdict(list)
        for reader in wire.readers:
            rows[self.row[reader]].append(reader)
        lines = [] if self.is_direct(bus) else [self._trunk(bus, rows, wide)]
        for row, readers in rows.items():
            lines += self._arrivals(bus, row, readers)
        tips = [self._tip(bus, reader, tip) for reader in wire.readers]
        return [line(points, css, width=wide) for points in lines] + tips

    def _trunk(self, bus: int, rows: Mapping[int, Sequence[int]], wide: float) -> list[Point]:
        """From its card into its track, and down to its last reader: all readers branch off this one line."""
        stub, y, x, last = self._stub_x(bus), self._line_y(bus), self.track_x(bus), max(rows)
        end = self._rail_y(bus, last) if self._is_on_rail(bus, last) else self._side_y(bus, rows[last][0])
        # The branch begins in its middle: half a width more makes the corner whole.
        return [(stub, self.bottom(self.buses[bus].source)), (stub, y), (x, y), (x, end + wide / 2)]

    def _arrivals(self, bus: int, row: int, readers: Sequence[int]) -> list[list[Point]]:
        """From its track, or straight from its card, to the readers in one row."""
        if not self._is_on_rail(bus, row):
            y = self._side_y(bus, readers[0])
            return [[(self.track_x(bus), y), (self.left - 6, y)]]
        y, stub = self._rail_y(bus, row), self._stub_x(bus)
        stem = (
            [(stub, self.bottom(self.buses[bus].source)), (stub, y)]
            if self.is_direct(bus)
            else [(self.track_x(bus), y)]
        )
        drops = [self._drop_x(bus, reader) for reader in readers]
        return comb(stem, [[(x, y), (x, self._tops[row] - 6)] for x in drops])

    def _tip(self, bus: int, reader: int, css: str) -> str:
        if self._is_on_rail(bus, self.row[reader]):
            return head(self._drop_x(bus, reader), self.cells[reader][1], "down", css)
        return head(self.left, self._side_y(bus, reader), "right", css)

    def label(self, bus: int) -> list[str]:
        """What it carries, and to where, on the height that it has for itself below its card."""
        wire = self.buses[bus]
        x, _, wide, _ = self.cells[wire.source]
        start = x + 16 + _PORT * len(self.outs(wire.source)) + 2
        y = self._line_y(bus)
        said = f"{bytes_said(wire)} \N{MIDDLE DOT} {tensors_said(wire)}"
        if not self.is_direct(bus):
            said += f" \N{RIGHTWARDS ARROW} {self._named(wire.readers)}"
        # A dot where it leaves says whose label this is.
        until = self.line_room(wire.source)
        room = (x + wide if until is None else until) - start
        return [
            dot(self._stub_x(bus), y, 2.5, f"{ink_of(wire)} tip"),
            words(start, y + 4, said, BODY, ink=ink_of(wire), room=room),
        ]

    def line_room(self, place: int) -> float | None:
        """How far labels below a card may reach where the total stands beside them, below rows of one part each."""
        row = self.row[place]
        here, below = self.rows[row], self.rows[row + 1 : row + 2]
        if here != [place] or below != [[place + 1]]:
            return None
        return stops_of(self.left, self.inner, scales_of(self.cards)).need - 12

    def _named(self, readers: Sequence[int]) -> str:
        names = [self.cards[reader].name.removesuffix(".onnx") for reader in readers]
        if len(names) <= 3:
            return ", ".join(names)
        is_run = readers[-1] - readers[0] == len(readers) - 1
        return f"{names[0]} to {names[-1]}" if is_run else f"{len(names)} parts, {names[0]} to {names[-1]}"
