"""One part as a row of its own: the same as on a card, side by side, with the stops that all rows share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..scene import Card
from .card import PAD, Scales, count_said, meter, need_bar, need_said, work_said
from .primitives import BODY, BOLD, CODE, SMALL, box, named, width_of, words


@dataclass(frozen=True)
class Stops:
    """Where the columns of a single row start and end."""

    name: float
    content: float
    need: float
    work: float
    device: float
    end: float


_METER: Final = 92
_SAID: Final = 112


def stops_of(x: float, width: float, scales: Scales) -> Stops:
    """The stops of a row that starts at `x`."""
    end = x + width - PAD
    start = x + PAD
    meters = (_METER + _SAID) * (2 if scales.flops else 1)
    rest = end - start - meters
    need = start + rest * 0.72
    work = need + _METER + _SAID
    return Stops(start, start + rest * 0.3, need, work, need + meters, end)


def row_heads(left: float, width: float, scales: Scales) -> list[str]:
    """What stands over the bars."""
    stops = stops_of(left, width, scales)
    marks = [words(stops.need, 12, "memory", SMALL, ink="muted")]
    if scales.flops:
        marks.append(words(stops.work, 12, "compute", SMALL, ink="muted"))
    return marks


def row_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part as a row: all that is known of it, side by side."""
    stops = stops_of(x, width, scales)
    mid = y + height / 2
    base = mid + 4
    marks = [box(x, y, width, height, "card over" if card.is_over else "card", radius=6)]
    name = min(width_of(card.name, BOLD), stops.content - stops.name - 10)
    marks.append(named(stops.name, base, card.name, BOLD, room=name))
    room = stops.need - stops.content - 12
    both = f"{card.content} \N{MIDDLE DOT} {count_said(card)}" if card.content else count_said(card)
    marks.append(words(stops.content, base, both if width_of(both, BODY) <= room else card.content, BODY, room=room))
    marks += need_bar(card, scales, stops.need, mid - 3, _METER)
    ink = "over" if card.is_over else ""
    marks.append(words(stops.need + _METER + 8, base, need_said(card), BODY, ink=ink, room=_SAID - 14))
    if scales.flops:
        marks += meter(stops.work, mid - 3, _METER, scales.work(card))
        marks.append(words(stops.work + _METER + 8, base, work_said(card), BODY, room=_SAID - 14))
    room = stops.end - stops.device
    return [*marks, named(stops.end, base, card.device, CODE, ink="muted", room=room, anchor="end")]
