"""The map of a few parts: cards from left to right, those that don't depend on each other below one another.

No layout engine: places are arithmetic, so a picture stays as it is when a cut moves. A bus to the next column goes
straight through the gap between; any other rises to a track of its own above the cards and comes down at each reader.
At a column of one card it leaves and enters by the top, at others by the side, through the gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Final

from ..scene import Bus, Card, Scene
from .card import bytes_said, card_height, full_card, ink_of, scales_of, tensors_said
from .panel import Panel
from .primitives import BODY, BOLD, SMALL, LineDirection, head, line, width_of, words
from .strokes import Point, comb, thickness

MOST_CARDS: Final = 4
MOST_BUSES: Final = 6

_CARD: Final = 186
_BETWEEN: Final = 18
_TRACK: Final = 34
_LANE: Final = 10
_PORT: Final = 12
_TOP: Final = 4


def columns_of(cards: Sequence[Card]) -> list[list[int]]:
    """The places of the cards that stand in each column; columns without one are left out."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, card in enumerate(cards):
        found[card.column].append(place)
    return [found[column] for column in sorted(found)]


def draw_columns(scene: Scene, width: float) -> Panel:
    """The map of `scene` as cards side by side, at least `width` wide."""
    layout = _ColumnLayout(scene.cards, scene.buses, width)
    marks: list[str] = []
    for bus in range(len(scene.buses)):
        marks += layout.drawn(bus)
    scales = scales_of(scene.cards)
    for place, card in enumerate(scene.cards):
        x, y = layout.corners[place]
        marks += full_card(card, scales, x, y, _CARD, layout.card_height)
    for bus in range(len(scene.buses)):
        marks += layout.labels(bus)
    is_chain = len(layout.columns) == len(scene.cards)
    if is_chain and any(bus.is_residual for bus in scene.buses):
        marks += _totals(scene, layout)
        return Panel(layout.width, layout.height + 20, tuple(marks))
    return Panel(layout.width, layout.height, tuple(marks))


def _totals(scene: Scene, layout: _ColumnLayout) -> Iterator[str]:
    """What crosses each boundary, below its gap."""
    y = layout.height + 14
    yield words(0, y, "crosses the boundary, in total", SMALL, ink="muted", room=_CARD)
    for crossing, left, right in zip(scene.crossing, layout.lefts, layout.lefts[1:], strict=False):
        yield words((left + _CARD + right) / 2, y, bytes_said(crossing), BOLD, anchor="middle")


@dataclass(frozen=True)
class _ColumnLayout:
    """Where everything stands. Buses and cards are named by their places."""

    cards: Sequence[Card]
    buses: Sequence[Bus]
    at_least: float

    @cached_property
    def columns(self) -> list[list[int]]:
        return columns_of(self.cards)

    @cached_property
    def column(self) -> Mapping[int, int]:
        return {place: c for c, places in enumerate(self.columns) for place in places}

    def is_direct(self, bus: int) -> bool:
        """Do all its readers stand in the next column?"""
        return all(self.column[r] == self.column[self.buses[bus].source] + 1 for r in self.buses[bus].readers)

    def is_alone(self, place: int) -> bool:
        """Has the card a column for itself?"""
        return len(self.columns[self.column[place]]) == 1

    @cached_property
    def tracks(self) -> list[int]:
        """The buses above the cards, the lowest first: short ones lie below long ones."""
        above = [bus for bus in range(len(self.buses)) if not self.is_direct(bus)]
        return sorted(above, key=lambda bus: (self.buses[bus].readers[-1] - self.buses[bus].source, bus))

    def track_y(self, bus: int) -> float:
        """How low its track lies."""
        return _TOP + 16 + _TRACK * (len(self.tracks) - 1 - self.tracks.index(bus))

    @cached_property
    def outs(self) -> dict[int, list[int]]:
        """The buses that leave each card by its right side, from top to bottom."""
        found: dict[int, list[int]] = defaultdict(list)
        for bus, wire in enumerate(self.buses):
            if self.is_direct(bus) or not self.is_alone(wire.source):
                found[wire.source].append(bus)
        for buses in found.values():
            buses.sort(key=lambda bus: (self.is_direct(bus), mean(self.buses[bus].readers), bus))
        return found

    @cached_property
    def ins(self) -> dict[int, list[int]]:
        """The buses that enter each card by its left side, from top to bottom."""
        found: dict[int, list[int]] = defaultdict(list)
        for bus, wire in enumerate(self.buses):
            for reader in wire.readers:
                if self.is_direct(bus) or not self.is_alone(reader):
                    found[reader].append(bus)
        for buses in found.values():
            buses.sort(key=lambda bus: (self.is_direct(bus), self.buses[bus].source, bus))
        return found

    @cached_property
    def card_height(self) -> float:
        ports = max((len(buses) for buses in (*self.outs.values(), *self.ins.values())), default=0)
        return max(card_height(scales_of(self.cards)), _TRACK * (ports + 1))

    @cached_property
    def gaps(self) -> list[tuple[float, list[int]]]:
        """For each gap, the room of its labels, and the buses with an upright lane there, from left to right."""
        found = []
        for c in range(len(self.columns) - 1):
            said = [bus for bus, wire in enumerate(self.buses) if self.column[wire.source] == c]
            found.append((max((self._label_width(bus) for bus in said), default=0), list(self._lanes(c))))
        return found

    def _lanes(self, gap: int) -> Iterable[int]:
        """The buses that rise, fall or part in a gap; those that leave there before those that only enter."""
        for bus, wire in enumerate(self.buses):
            leaves = self.column[wire.source] == gap and (self.is_direct(bus) or not self.is_alone(wire.source))
            enters = any(self.column[r] == gap + 1 and not self.is_alone(r) for r in wire.readers)
            is_straight = self.is_direct(bus) and self._is_straight(bus)
            if (leaves or enters) and not is_straight:
                yield bus

    def _is_straight(self, bus: int) -> bool:
        wire = self.buses[bus]
        return len(wire.readers) == 1 and abs(self.out_y(bus) - self.in_y(bus, wire.readers[0])) < 0.5

    def _label_width(self, bus: int) -> float:
        wire = self.buses[bus]
        return max(width_of(bytes_said(wire), BODY), width_of(tensors_said(wire), SMALL))

    @cached_property
    def lefts(self) -> list[float]:
        """Where each column starts."""
        found, x = [0.0], 0.0
        for room, lanes in self.gaps:
            x += _CARD + max(room + 16 + _LANE * len(lanes) + 10, 44)
            found.append(x)
        spare = max(self.at_least - (x + _CARD), 0) / len(self.columns)
        # What is left over goes to the gaps, as far as arrows stay short.
        return [left + min(spare, 60) * c for c, left in enumerate(found)]

    @property
    def width(self) -> float:
        return max(self.lefts[-1] + _CARD, self.at_least)

    @cached_property
    def tops(self) -> Mapping[int, float]:
        """The upper edge of each card; columns have their middles at one height."""
        found = {}
        for places in self.columns:
            y = self._middle - self._stack(len(places)) / 2
            for place in places:
                found[place] = y
                y += self.card_height + _BETWEEN
        return found

    @cached_property
    def corners(self) -> list[Point]:
        """The upper left corner of each card."""
        return [(self.lefts[self.column[place]], self.tops[place]) for place in range(len(self.cards))]

    def _stack(self, cards: int) -> float:
        return cards * (self.card_height + _BETWEEN) - _BETWEEN

    @property
    def _above(self) -> float:
        return _TOP + (_TRACK * len(self.tracks) + 12 if self.tracks else 0)

    @property
    def _middle(self) -> float:
        return self._above + self._stack(max(map(len, self.columns))) / 2

    @property
    def height(self) -> float:
        return self._above + self._stack(max(map(len, self.columns))) + 4

    def out_y(self, bus: int) -> float:
        """Where a bus leaves the right side of its card."""
        source = self.buses[bus].source
        return self._port_y(source, self.outs[source], bus)

    def in_y(self, bus: int, reader: int) -> float:
        """Where a bus enters the left side of a card."""
        return self._entries[bus, reader]

    @cached_property
    def _entries(self) -> dict[tuple[int, int], float]:
        """The same for all: never in line with where another bus leaves on the other side of the gap."""
        found: dict[tuple[int, int], float] = {}
        for reader, buses in self.ins.items():
            before = self.columns[self.column[reader] - 1]
            leaving = [(bus, self.out_y(bus)) for place in before for bus in self.outs.get(place, ())]
            for bus in buses:
                y = self._port_y(reader, buses, bus)
                while any(other != bus and abs(y - theirs) < 5 for other, theirs in leaving):
                    y += 6
                found[bus, reader] = y
        return found

    def _port_y(self, place: int, ports: Sequence[int], bus: int) -> float:
        return self.tops[place] + self.card_height * (ports.index(bus) + 1) / (len(ports) + 1)

    def lane_x(self, bus: int, gap: int) -> float:
        """Where a bus goes up or down in a gap."""
        lanes = self.gaps[gap][1]
        return self.lefts[gap + 1] - 14 - _LANE * (len(lanes) - 1 - lanes.index(bus))

    def drawn(self, bus: int) -> list[str]:
        """Its lines and arrow heads."""
        ink, wide = ink_of(self.buses[bus]), thickness(self.buses[bus], self.buses)
        css = f"{ink} wire"
        marks = [line(points, css, width=wide) for points in self._lines(bus)]
        return marks + [head(x, y, way, f"{ink} tip") for x, y, way in self._tips(bus)]

    def _lines(self, bus: int) -> list[list[Point]]:
        return self._direct_lines(bus) if self.is_direct(bus) else self._track_lines(bus)

    def _direct_lines(self, bus: int) -> list[list[Point]]:
        wire = self.buses[bus]
        out_x, out_y = self.corners[wire.source][0] + _CARD, self.out_y(bus)
        if self._is_straight(bus):
            return [[(out_x, out_y), (self.corners[wire.readers[0]][0] - 6, out_y)]]
        x = self.lane_x(bus, self.column[wire.source])
        ends = [(self.corners[reader][0] - 6, self.in_y(bus, reader)) for reader in wire.readers]
        return comb([(out_x, out_y), (x, out_y)], [[(x, y), (end, y)] for end, y in ends])

    def _track_lines(self, bus: int) -> list[list[Point]]:
        y = self.track_y(bus)
        return comb(self._rise(bus, y), [self._descent(bus, reader, y) for reader in self.buses[bus].readers])

    def _rise(self, bus: int, y: float) -> list[Point]:
        source = self.buses[bus].source
        left, top = self.corners[source]
        if self.is_alone(source):
            own = [b for b in self.tracks if self.buses[b].source == source]
            x = left + _CARD - _PORT - _PORT * own.index(bus)
            return [(x, top), (x, y)]
        x = self.lane_x(bus, self.column[source])
        return [(left + _CARD, self.out_y(bus)), (x, self.out_y(bus)), (x, y)]

    def _descent(self, bus: int, reader: int, y: float) -> list[Point]:
        left, top = self.corners[reader]
        if self.is_alone(reader):
            own = [b for b in self.tracks if reader in self.buses[b].readers]
            x = left + _PORT + _PORT * (len(own) - 1 - own.index(bus))
            return [(x, y), (x, top - 6)]
        x = self.lane_x(bus, self.column[reader] - 1)
        return [(x, y), (x, self.in_y(bus, reader)), (left - 6, self.in_y(bus, reader))]

    def _tips(self, bus: int) -> Iterable[tuple[float, float, LineDirection]]:
        for reader in self.buses[bus].readers:
            left, top = self.corners[reader]
            if self.is_direct(bus) or not self.is_alone(reader):
                yield left, self.in_y(bus, reader), "right"
            else:
                yield self._descent(bus, reader, 0)[0][0], top, "down"

    def labels(self, bus: int) -> list[str]:
        """How much it carries above its line, and how many tensors below."""
        wire = self.buses[bus]
        right = self.corners[wire.source][0] + _CARD
        by_side = self.is_direct(bus) or not self.is_alone(wire.source)
        y = self.out_y(bus) if by_side else self.track_y(bus)
        bytes_, tensors = bytes_said(wire), tensors_said(wire)
        return [
            words(right + 8, y - 6, bytes_, BODY, ink=ink_of(wire)),
            words(right + 8, y + 15, tensors, SMALL, ink="muted"),
        ]
