"""One part, drawn: what it is called, what stands in it, and bars on the scales that all parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...core.units import count, duration, operations, size
from ..scene import BoundaryTotals, Bus, Card, CutOption, Lane
from .primitives import BODY, BOLD, CODE, SMALL, box, line, named, width_of, words

PAD: Final = 12
_BAR: Final = 6
_METER: Final = 30
_CONTENT: Final = 17
_LEAST: Final = "\N{GREATER-THAN OR EQUAL TO} "


@dataclass(frozen=True)
class Scales:
    """What bars are measured against, over all parts.

    Attributes:
        need_bytes: the most that a part needs or may need.
        flops: the most that a part computes; 0 where no part's work is known.
        has_contents: of some part it is known what stands in it.
    """

    need_bytes: int
    flops: int
    has_contents: bool

    def need(self, card: Card) -> float:
        """The share of the bar that a part's need takes."""
        return card.need_bytes / self.need_bytes

    def budget(self, card: Card) -> float | None:
        """The place in the bar where a part's budget ends."""
        return None if card.budget_bytes is None else card.budget_bytes / self.need_bytes

    def work(self, card: Card) -> float:
        """The share of the bar that a part's work takes."""
        return (card.flops or 0) / self.flops if self.flops else 0.0


def scales_of(cards: Sequence[Card]) -> Scales:
    """The scales for all of `cards`."""
    needs = [max(card.need_bytes, card.budget_bytes or 0) for card in cards]
    flops = max((card.flops or 0 for card in cards), default=0)
    return Scales(max(needs, default=0) or 1, flops, any(card.content for card in cards))


def need_said(card: Card) -> str:
    """What a part needs, in words; colour alone would not tell that it is too much."""
    return f"{size(card.need_bytes)}, over" if card.is_over else size(card.need_bytes)


def work_said(card: Card) -> str:
    """What a part computes, in words; empty where that is not known."""
    return "" if card.flops is None else f"{operations(card.flops)}FLOP"


def count_said(card: Card) -> str:
    """How many nodes a part has, and how many of them stand elsewhere too."""
    more = f", {count(card.replicas, 'replica')}" if card.replicas else ""
    return f"{count(card.nodes, 'node')}{more}"


def bytes_said(of: Bus | BoundaryTotals | Lane | CutOption) -> str:
    """What is carried, or crosses."""
    return f"{'' if of.is_exact else _LEAST}{size(of.bytes)}"


def tensors_said(bus: Bus) -> str:
    """Of how many tensors that is."""
    return count(len(bus.lanes), "tensor")


def ink_of(bus: Bus) -> str:
    """The class of its colour and dashes."""
    return "far" if bus.is_residual else "near"


def meter(x: float, y: float, width: float, share: float, *, ink: str = "bar", tick: float | None = None) -> list[str]:
    """A bar that is full to `share` of its width, with a tick."""
    marks = [box(x, y, width, _BAR, "track", radius=1), box(x, y, width * min(share, 1), _BAR, ink, radius=1)]
    if tick is not None:
        at = x + width * min(tick, 1)
        marks.append(line(((at, y - 3), (at, y + _BAR + 3)), "tick"))
    return marks


def card_height(scales: Scales) -> float:
    """How high a card is that stands alone."""
    return 55 + _CONTENT * scales.has_contents + _METER * bool(scales.flops) + _METER


def full_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part as a card, with everything that is known of it."""
    inner = width - 2 * PAD
    marks = [_frame(card, x, y, width, height), *_titled(card, x + PAD, y + 20, inner)]
    marks.append(words(x + PAD, y + 37, card.content, BODY, room=inner))
    at = y + 39 + _CONTENT * scales.has_contents
    marks += _labelled(x + PAD, at, inner, "memory", need_said(card), "over" if card.is_over else "")
    marks += need_bar(card, scales, x + PAD, at + 6, inner)
    if scales.flops:
        at += _METER
        marks += _labelled(x + PAD, at, inner, "compute", work_said(card), "")
        marks += meter(x + PAD, at + 6, inner, scales.work(card))
    busy = "" if card.busy_s is None else duration(card.busy_s)
    room = inner - width_of(busy, BODY) - 8
    counted = count_said(card) if width_of(count_said(card), SMALL) <= room else count(card.nodes, "node")
    return [*marks, *_labelled(x + PAD, at + _METER, inner, counted, busy, "muted")]


def small_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part among several side by side: its name, what stands in it, what it needs."""
    inner = width - 2 * PAD
    said = need_said(card)
    beside = inner - width_of(said, BODY) - 8
    over = "over" if card.is_over else ""
    marks = [_frame(card, x, y, width, height), *_titled(card, x + PAD, y + 19, inner)]
    marks.append(words(x + PAD, y + 35, card.content or count_said(card), BODY, room=inner))
    marks += need_bar(card, scales, x + PAD, y + 46, beside)
    return [*marks, words(x + width - PAD, y + 53, said, BODY, ink=over, anchor="end")]


def need_bar(card: Card, scales: Scales, x: float, y: float, width: float) -> list[str]:
    """What a part needs as a bar, with its budget as a tick."""
    return meter(x, y, width, scales.need(card), ink="bar over" if card.is_over else "bar", tick=scales.budget(card))


def _frame(card: Card, x: float, y: float, width: float, height: float) -> str:
    return box(x, y, width, height, "card over" if card.is_over else "card", radius=6)


def _titled(card: Card, x: float, y: float, room: float) -> list[str]:
    """Its name, and at the other end its device in what room that leaves."""
    name = min(width_of(card.name, BOLD), room * (0.6 if card.device else 1))
    device = named(x + room, y, card.device, CODE, ink="muted", room=room - name - 8, anchor="end")
    return [named(x, y, card.name, BOLD, room=name), device]


def _labelled(x: float, y: float, room: float, label: str, said: str, ink: str) -> list[str]:
    value = words(x + room, y, said, BODY, ink=ink, anchor="end")
    left = room - (width_of(said, BODY) + 8 if said else 0)
    return [words(x, y, label, SMALL, ink="muted", room=left), value]
