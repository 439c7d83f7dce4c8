"""The dependency map of any parts: rows from top to bottom, with a gutter at the left for buses that skip rows.

Parts of the same depth share a row, if they fit. There is no layout engine here either (see chain_map.py). A bus leaves
its card downwards; its text is in the gap below. From there it goes straight down into the next row, or left into a
track of the gutter. From its track it enters the left side of each reader, or a rail above a row with several parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...core.graph import grouped
from ...core.units import count
from ..scene import Bus, Card, Scene, totals_of
from ..sentences import size_text
from . import part_cards
from .bus_lines import CSS, bracket, branches, bus_group, thickness
from .chain_map import MAX_CARDS
from .part_cards import RowColumns, Scales, scales_of
from .primitives import BODY, BOLD, SMALL, Panel, Point, arrow_head, dot, label, line

_BETWEEN: Final = 12
_LINE: Final = 17
_RAIL: Final = 8
_TRACK: Final = 10
_PORT: Final = 11
_BRACKET: Final = 14
_PHASE: Final = 18


def draw_rows(scene: Scene, width: float) -> Panel:
    """The map as rows, `width` wide including the gutter."""
    layout = _RowLayout(scene.cards, scene.buses, width)
    measure = scene.cards[0].measure
    marks = part_cards.row_titles(layout.columns, layout.scales, measure)
    marks += [layout.drawn_card(index) for index in range(len(scene.cards))]
    marks += [layout.drawn_bus(index) for index in layout.tracks]
    marks += layout.drawn_phases()
    if any(bus.is_residual for bus in scene.buses):
        marks += _totals(scene, layout)
    height = layout.tops[-1]
    if hidden := [bus for index, bus in enumerate(scene.buses) if index not in layout.tracks]:
        what = f"{len(hidden)} smaller {'bus is' if len(hidden) == 1 else 'buses are'} not drawn"
        tensors = count(sum(len(bus.tensors) for bus in hidden), "tensor")
        text = f"{what}: {tensors}, {size_text(totals_of(hidden))}"
        marks.append(label(layout.left, height + 12, text, SMALL, css="muted", room=layout.inner))
        height += 18
    return Panel(width, height, tuple(marks))


def _totals(scene: Scene, layout: _RowLayout) -> Iterator[str]:
    """What crosses between two rows of one part each."""
    for index, boundary in enumerate(scene.boundaries):
        if boundary.tensors and layout.has_total(index):
            text = f"{size_text(boundary)} crosses in total"
            yield label(layout.columns.need, layout.bottom(index) + 15, text, SMALL, css="muted")


@dataclass(frozen=True)
class _RowLayout:
    """The positions of cards and buses, which are named by their indices."""

    cards: Sequence[Card]
    buses: Sequence[Bus]
    width: float

    @cached_property
    def scales(self) -> Scales:
        return scales_of(self.cards)

    # Rows and tracks

    @cached_property
    def rows(self) -> list[list[int]]:
        """The cards of each row: those of one depth, or each alone if they do not fit side by side."""
        most = int((self.width - _TRACK * self._max_tracks) // (120 + _BETWEEN))
        depths = sorted(grouped((card.depth, index) for index, card in enumerate(self.cards)).items())
        return [row for _, cards in depths for row in ([cards] if len(cards) <= most else [[card] for card in cards])]

    @cached_property
    def row(self) -> Mapping[int, int]:
        return {index: r for r, row in enumerate(self.rows) for index in row}

    @cached_property
    def phases(self) -> Mapping[str, Sequence[int]]:
        """The rows of the parts that run at the same time, of a pipeline of models."""
        runs = [self.cards[row[0]].runs for row in self.rows]
        return grouped((one, index) for index, one in enumerate(runs) if one)

    @property
    def _max_tracks(self) -> int:
        return min(20, int(self.width / 4) // _TRACK)  # if more buses skip rows, the largest are drawn

    def is_alone(self, card: int) -> bool:
        """Whether the card has a row of its own."""
        return len(self.rows[self.row[card]]) == 1

    def is_direct(self, bus: int) -> bool:
        """Whether all its readers are in the next row."""
        return all(self.row[reader] == self.row[self.buses[bus].source] + 1 for reader in self.buses[bus].readers)

    def is_straight(self, bus: int) -> bool:
        """Whether it is one arrow between two cards that are alone in their rows."""
        return self.is_direct(bus) and all(map(self.is_alone, (self.buses[bus].source, self.buses[bus].readers[0])))

    @cached_property
    def tracks(self) -> dict[int, int | None]:
        """The buses that are drawn, and their tracks in the gutter, given to large ones first; None for none."""
        found: dict[int, int | None] = {}
        leaving: dict[int, int] = defaultdict(int)
        taken: list[list[tuple[int, int]]] = [[] for _ in range(self._max_tracks)]
        for index in sorted(range(len(self.buses)), key=lambda i: (not self.is_straight(i), -self.buses[i].bytes, i)):
            bus = self.buses[index]
            if leaving[bus.source] == 6:  # of more, the largest are drawn
                continue
            track = None
            if not self.is_direct(index):
                first, last = self.row[bus.source], max(self.row[reader] for reader in bus.readers)
                free = (t for t, spans in enumerate(taken) if all(last <= a or b <= first for a, b in spans))
                if (track := next(free, None)) is None:
                    continue
                taken[track].append((first, last))
            found[index] = track
            leaving[bus.source] += 1
        return dict(sorted(found.items()))

    @cached_property
    def left(self) -> float:
        """The left edge of the cards."""
        tracks = max((track + 1 for track in self.tracks.values() if track is not None), default=0)
        return _TRACK * tracks + (16 if tracks else 0)

    @property
    def inner(self) -> float:
        """The width of a row."""
        return self.width - self.left - (_BRACKET if self.phases else 0)

    @cached_property
    def columns(self) -> RowColumns:
        """The columns of cards that are alone in their row."""
        return part_cards.row_columns(self.left, self.inner, self.scales)

    def _track_x(self, bus: int) -> float:
        return self.left - 18 - _TRACK * (self.tracks[bus] or 0)

    # What leaves and enters

    @cached_property
    def _leaving_rows(self) -> list[list[int]]:
        """The buses that leave each row, card by card, direct ones first; each has a line of text in the gap below."""
        order = sorted(self.tracks, key=lambda b: (self.buses[b].source, not self.is_direct(b), b))
        return [[bus for bus in order if self.buses[bus].source in row] for row in self.rows]

    def _leaving(self, card: int) -> list[int]:
        return [bus for bus in self._leaving_rows[self.row[card]] if self.buses[bus].source == card]

    def _is_on_rail(self, bus: int, row: int) -> bool:
        """Whether it reaches that row from a rail above it."""
        return not self.is_straight(bus) and (self.is_direct(bus) or len(self.rows[row]) > 1)

    @cached_property
    def _rails(self) -> list[list[int]]:
        """The buses with a rail above each row."""
        order = sorted(self.tracks, key=lambda b: (self.buses[b].source, b))
        return [
            [bus for bus in order if self._is_on_rail(bus, row) and set(cards).intersection(self.buses[bus].readers)]
            for row, cards in enumerate(self.rows)
        ]

    @cached_property
    def _sideways(self) -> dict[int, list[int]]:
        """The buses that enter each card at its left side."""
        buses = sorted((bus for bus in self.tracks if not self.is_direct(bus)), key=self._track_x)
        ends = ((reader, bus) for bus in buses for reader in self.buses[bus].readers)
        return grouped((reader, bus) for reader, bus in ends if self.is_alone(reader))

    # Positions

    def _row_height(self, row: int) -> float:
        first, *others = self.rows[row]
        least = self.scales.card_height if len(self.cards) <= MAX_CARDS else part_cards.SMALL_HEIGHT
        if not others:
            least = 34
        return max(least, 10.0 * len(self._sideways.get(first, ())) + 8)

    @cached_property
    def tops(self) -> list[float]:
        """The upper edge of each row, and the end of all."""
        found = [22.0]
        for row, cards in enumerate(self.rows):
            gap = 14.0 + _RAIL * len(self._rails[row + 1]) if row + 1 < len(self.rows) else 2.0
            gap += _PHASE * any(rows[0] == row + 1 for rows in self.phases.values())
            lines = max(len(self._leaving_rows[row]), self.has_total(cards[0]))
            found.append(found[-1] + self._row_height(row) + gap + _LINE * lines)
        return found

    @cached_property
    def cells(self) -> Mapping[int, tuple[float, float, float, float]]:
        """The corner and the size of each card."""
        found = {}
        for row, cards in enumerate(self.rows):
            width = (self.inner + _BETWEEN) / len(cards) - _BETWEEN
            for i, card in enumerate(cards):
                found[card] = (self.left + i * (width + _BETWEEN), self.tops[row], width, self._row_height(row))
        return found

    def bottom(self, card: int) -> float:
        """The lower edge of a card."""
        row = self.row[card]
        return self.tops[row] + self._row_height(row)

    def has_total(self, card: int) -> bool:
        """Whether the total that crosses is beside the texts below the card: between rows of one part each."""
        row = self.row[card]
        return self.rows[row : row + 2] == [[card], [card + 1]]

    def _port_x(self, bus: int) -> float:
        """Where it leaves its card."""
        source = self.buses[bus].source
        return self.cells[source][0] + 16 + _PORT * self._leaving(source).index(bus)

    def _text_y(self, bus: int) -> float:
        """The height of its text, and of its way to the gutter."""
        source = self.buses[bus].source
        return self.bottom(source) + 11 + _LINE * self._leaving_rows[self.row[source]].index(bus)

    def _rail_y(self, bus: int, row: int) -> float:
        rails = self._rails[row]
        return self.tops[row] - 12 - _RAIL * (len(rails) - 1 - rails.index(bus))

    def _drop_x(self, bus: int, reader: int) -> float:
        """Where it comes down on a card from a rail: between the ports, so that no two lines overlap."""
        own = [b for b in self._rails[self.row[reader]] if reader in self.buses[b].readers]
        return self.cells[reader][0] + 16 + _PORT * (own.index(bus) + 0.5)

    def _side_y(self, bus: int, reader: int) -> float:
        """Where it enters a card at its left side."""
        own = self._sideways[reader]
        _, y, _, height = self.cells[reader]
        return y + height * (own.index(bus) + 1) / (len(own) + 1)

    # Drawing

    def drawn_card(self, index: int) -> str:
        """A part: as a row if it is alone, else as a card."""
        draw = part_cards.full_card if len(self.cards) <= MAX_CARDS else part_cards.small_card
        if self.is_alone(index):
            draw = part_cards.row_card
        return part_cards.card_group(index, self.cards[index], draw(self.cards[index], self.scales, *self.cells[index]))

    def drawn_phases(self) -> Iterator[str]:
        """Beside the rows of each phase a line, and above them when they run."""
        right = self.left + self.inner
        for runs, rows in self.phases.items():
            top, bottom = self.tops[rows[0]], self.tops[rows[-1]] + self._row_height(rows[-1])
            points = [(right, bottom - 9), (right + 9, bottom - 9), (right + 9, top + 9), (right, top + 9)]
            yield bracket(points, "left", is_loop=self.cards[self.rows[rows[0]][0]].is_in_loop)
            yield label(right, top - 7, runs, BOLD, anchor="end")

    def drawn_bus(self, index: int) -> str:
        """The lines, arrow heads and text of a bus."""
        bus = self.buses[index]
        width = thickness(bus, self.buses)
        lines = [line(points, "wire", width=width) for points in self._lines(index, width)]
        heads = [self._head(index, reader) for reader in bus.readers]
        return bus_group(index, bus, self.cards, [*lines, *heads, *self._text(index)])

    def _lines(self, index: int, width: float) -> Iterator[list[Point]]:
        bus = self.buses[index]
        port = (self._port_x(index), self.bottom(bus.source))
        if self.is_straight(index):
            yield [port, (port[0], self.cells[bus.readers[0]][1] - 6)]
            return
        rows = grouped((self.row[reader], reader) for reader in bus.readers)
        if not self.is_direct(index):
            y, x, last = self._text_y(index), self._track_x(index), max(rows)
            end = self._rail_y(index, last) if self._is_on_rail(index, last) else self._side_y(index, rows[last][0])
            # Half a line width more makes the corner of the last branch whole.
            yield [port, (port[0], y), (x, y), (x, end + width / 2)]
        for row, readers in rows.items():
            if not self._is_on_rail(index, row):
                y = self._side_y(index, readers[0])
                yield [(self._track_x(index), y), (self.left - 6, y)]
                continue
            y = self._rail_y(index, row)
            stem = [port, (port[0], y)] if self.is_direct(index) else [(self._track_x(index), y)]
            drops = (self._drop_x(index, reader) for reader in readers)
            yield from branches(stem, [[(x, y), (x, self.tops[row] - 6)] for x in drops])

    def _head(self, index: int, reader: int) -> str:
        x, y, _, _ = self.cells[reader]
        if self.is_straight(index):
            return arrow_head(self._port_x(index), y, "down")
        if self._is_on_rail(index, self.row[reader]):
            return arrow_head(self._drop_x(index, reader), y, "down")
        return arrow_head(x, self._side_y(index, reader), "right")

    def _text(self, index: int) -> list[str]:
        """What it carries and, if that is not the next row, to where; a dot on its line shows whose text it is."""
        bus = self.buses[index]
        x, _, width, _ = self.cells[bus.source]
        start, y = x + 16 + _PORT * len(self._leaving(bus.source)) + 2, self._text_y(index)
        text = f"{size_text(bus)} \N{MIDDLE DOT} {count(len(bus.tensors), 'tensor')}"
        if not self.is_direct(index):
            text += f" \N{RIGHTWARDS ARROW} {self._names(bus.readers)}"
        is_first = self._leaving_rows[self.row[bus.source]][0] == index
        end = self.columns.need - 12 if is_first and self.has_total(bus.source) else x + width
        return [dot(self._port_x(index), y, 2.5), label(start, y + 4, text, BODY, css=CSS[bus.kind], room=end - start)]

    def _names(self, readers: Sequence[int]) -> str:
        names = [self.cards[reader].short_name for reader in readers]
        if len(names) <= 3:
            return ", ".join(names)
        some = "" if readers[-1] - readers[0] < len(readers) else f" ({len(names)} parts)"
        return f"{names[0]} to {names[-1]}{some}"
