"""The dependency map of ranks: a row for each device, its parts from left to right, and the exchanges between rows.

A part is right of all parts that it reads from. What a device keeps for its own later parts is counted, not drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...core.graph import grouped
from ...core.units import count, size
from ..scene import Bus, Scene, totals_of
from ..sentences import size_text
from .bus_lines import bus_group, thickness
from .part_cards import card_group
from .primitives import BODY, BOLD, SMALL, Panel, box, dot, label, line, wrapped

_LEFT: Final = 150.0  #: the width of the names.
_ROW: Final = 64.0
_CELL: Final = 30.0


def draw_ranks(scene: Scene, width: float) -> Panel:
    """The map, at least `width` wide."""
    layout = _RankLayout(scene, width)
    bottom = _ROW * len(layout.devices)
    drawn = [(index, bus) for index, bus in enumerate(scene.buses) if bus.is_exchange]
    marks = [bus_group(index, bus, scene.cards, layout.lines(bus)) for index, bus in drawn]
    marks += [card_group(i, card, layout.cell(i)) for i, card in enumerate(scene.cards)]
    for row, device in enumerate(layout.devices):
        own = [card for card in scene.cards if card.device == device]
        text = f"{count(len(own), 'part')}, {size(sum(card.need_bytes for card in own))}"
        y = _ROW * row + _CELL / 2
        marks += [label(0, y, device, BOLD, room=_LEFT), label(0, y + 15, text, SMALL, css="muted", room=_LEFT)]
    kept = [bus for bus in scene.buses if not bus.is_exchange]
    text = f"{count(len(drawn), 'exchange')}, {size_text(totals_of(bus for _, bus in drawn))}"
    tensors = count(sum(len(bus.tensors) for bus in kept), "more tensor")
    text += f"; not drawn: {size_text(totals_of(kept))} in {tensors} between parts of one rank" if kept else ""
    lines = wrapped(text, width, BODY)
    marks += [label(0, bottom + 4 + 17 * i, one, BODY) for i, one in enumerate(lines)]
    right = _LEFT + layout.step * (max(layout.columns) + 1)
    return Panel(max(width, right), bottom + 17 * len(lines) - 5, tuple(marks))


@dataclass(frozen=True)
class _RankLayout:
    """The positions of parts, which are named by their indices."""

    scene: Scene
    min_width: float

    @cached_property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(card.device for card in self.scene.cards))

    @cached_property
    def columns(self) -> list[int]:
        """The column of each part."""
        sources = grouped((reader, bus.source) for bus in self.scene.buses for reader in bus.readers)
        found, last = list[int](), dict.fromkeys(self.devices, -1)
        for part, card in enumerate(self.scene.cards):
            found.append(1 + max(last[card.device], *(found[source] for source in sources.get(part, ())), -1))
            last[card.device] = found[-1]
        return found

    @cached_property
    def step(self) -> float:
        return max(14.0, min((self.min_width - _LEFT) / (max(self.columns) + 1), 2 * _LEFT))

    def _corner(self, part: int) -> tuple[float, float]:
        return _LEFT + self.step * self.columns[part], _ROW * self.devices.index(self.scene.cards[part].device)

    def cell(self, part: int) -> list[str]:
        """A part: a box with a bar for what it needs."""
        card, (x, y), width = self.scene.cards[part], self._corner(part), self.step * 0.5
        bar = _CELL * card.need_bytes / max(1, *(other.need_bytes for other in self.scene.cards))
        frame = box(x, y, width, _CELL, "card over" if card.is_over else "card", radius=3)
        return [frame, box(x + 3, y + _CELL - bar, width - 6, bar, "bar")]

    def lines(self, bus: Bus) -> Iterator[str]:
        """Lines from a part to its readers on other devices."""
        x, y = self._corner(bus.source)
        start = x + self.step * 0.5, y + _CELL / 2
        width = thickness(bus, self.scene.buses) / 2
        for reader in bus.readers:
            if self.scene.cards[reader].device != self.scene.cards[bus.source].device:
                left, top = self._corner(reader)
                yield line((start, (left, top + _CELL / 2)), "wire", width=width)
                yield dot(left, top + _CELL / 2, 2)
