"""The dependency map of a short chain of parts: cards from left to right.

Positions are arithmetic, without a layout engine: the picture changes little when a cut moves. A bus to the next part
is a straight arrow; any other goes up to a track above the cards, and down to each of its readers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from ...core.graph import grouped
from ...core.units import count
from ..scene import Bus, Card, Scene
from ..sentences import size_text
from .bus_lines import CSS, bracket, branches, bus_group, thickness
from .part_cards import card_group, full_card, scales_of
from .primitives import BODY, BOLD, SMALL, Panel, arrow_head, label, line, width_of

MAX_CARDS: Final = 4

_CARD: Final = 206
_TRACK: Final = 34
_PORT: Final = 12
_PHASE: Final = 34


def is_short_chain(scene: Scene) -> bool:
    """Whether the parts depend on each other one by one, and are few."""
    is_chain = all(card.depth == index for index, card in enumerate(scene.cards))
    return is_chain and len(scene.cards) <= MAX_CARDS and len(scene.buses) <= 6


def draw_chain(scene: Scene, width: float) -> Panel:
    """The map of a chain as cards side by side, at least `width` wide."""
    layout = _ChainLayout(scene.cards, scene.buses, width)
    scales = scales_of(scene.cards)
    marks = []
    for index, card in enumerate(scene.cards):
        shown = full_card(card, scales, layout.lefts[index], layout.top, _CARD, scales.card_height)
        marks.append(card_group(index, card, shown))
    marks += [layout.drawn_bus(index) for index in range(len(scene.buses))]
    width, height = max(layout.lefts[-1] + _CARD, width), layout.bottom + 4
    if scene.cards[0].runs:
        marks += layout.drawn_phases()
        height += _PHASE
    if any(bus.is_residual for bus in scene.buses):
        marks.append(label(0, height + 14, "crosses in total", SMALL, css="muted", room=_CARD))
        for boundary, left, right in zip(scene.boundaries, layout.lefts, layout.lefts[1:], strict=False):
            marks.append(label((left + _CARD + right) / 2, height + 14, size_text(boundary), BOLD, anchor="middle"))
        height += 20
    return Panel(width, height, tuple(marks))


@dataclass(frozen=True)
class _ChainLayout:
    """The positions of cards and buses. Buses are named by their indices."""

    cards: Sequence[Card]
    buses: Sequence[Bus]
    min_width: float

    @cached_property
    def tracks(self) -> list[int]:
        """The buses above the cards, from the lowest track: short ones below long ones."""
        above = [i for i, bus in enumerate(self.buses) if not _is_direct(bus)]
        return sorted(above, key=lambda i: (self.buses[i].readers[-1] - self.buses[i].source, i))

    @property
    def top(self) -> float:
        """The upper edge of the cards."""
        return 4 + (_TRACK * len(self.tracks) + 12 if self.tracks else 0)

    @property
    def bottom(self) -> float:
        """The lower edge of the cards."""
        return self.top + scales_of(self.cards).card_height

    @cached_property
    def lefts(self) -> list[float]:
        """The left edge of each card. Spare width goes to the gaps, as long as arrows stay short."""
        gaps = [self._gap(part) for part in range(len(self.cards) - 1)]
        spare = max(self.min_width - sum(gaps) - _CARD * len(self.cards), 0) / len(self.cards)
        return list(accumulate(gaps, lambda left, gap: left + _CARD + gap + min(spare, 60), initial=0.0))

    def _gap(self, part: int) -> float:
        """The least room between a card and the next: for the text of the buses that leave it."""
        own = [bus for bus in self.buses if bus.source == part]
        widths = [max(width_of(size_text(bus), BODY), width_of(_count_text(bus), SMALL)) for bus in own]
        return max(max(widths, default=0) + 26, 44)

    def drawn_bus(self, index: int) -> str:
        """The lines, arrow heads and text of a bus."""
        bus = self.buses[index]
        right = self.lefts[bus.source] + _CARD
        if _is_direct(bus):
            y, end = (self.top + self.bottom) / 2, self.lefts[bus.source + 1]
            lines = [[(right, y), (end - 6, y)]]
            heads = [arrow_head(end, y, "right")]
        else:
            y = 20 + _TRACK * (len(self.tracks) - 1 - self.tracks.index(index))
            own = [i for i in self.tracks if self.buses[i].source == bus.source]
            rise = right - _PORT * (1 + own.index(index))
            drops = [self._drop_x(index, reader) for reader in bus.readers]
            lines = branches([(rise, self.top), (rise, y)], [[(x, y), (x, self.top - 6)] for x in drops])
            heads = [arrow_head(x, self.top, "down") for x in drops]
        width = thickness(bus, self.buses)
        marks = [*(line(points, "wire", width=width) for points in lines), *heads]
        marks.append(label(right + 8, y - 6, size_text(bus), BODY, css=CSS[bus.kind]))
        marks.append(label(right + 8, y + 15, _count_text(bus), SMALL, css="muted"))
        return bus_group(index, bus, self.cards, marks)

    def drawn_phases(self) -> Iterator[str]:
        """Below the parts of each phase a line, and when they run."""
        for runs, parts in grouped((card.runs, index) for index, card in enumerate(self.cards)).items():
            left, right, y = self.lefts[parts[0]] + 20, self.lefts[parts[-1]] + _CARD - 20, self.bottom + 12
            points = [(right, self.bottom), (right, y), (left, y), (left, self.bottom)]
            yield bracket(points, "up", is_loop=self.cards[parts[0]].is_in_loop)
            yield label((left + right) / 2, y + 16, runs, BOLD, anchor="middle")

    def _drop_x(self, index: int, reader: int) -> float:
        own = [i for i in self.tracks if reader in self.buses[i].readers]
        return self.lefts[reader] + _PORT * (len(own) - own.index(index))


def _is_direct(bus: Bus) -> bool:
    return bus.readers == (bus.source + 1,)


def _count_text(bus: Bus) -> str:
    return count(len(bus.tensors), "tensor")
