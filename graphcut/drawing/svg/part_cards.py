"""Parts as cards and as rows: name, content, and bars on scales that all parts share."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...core.units import count, duration, flop
from ..scene import Card
from ..sentences import need_text, of_budget
from .primitives import BODY, BOLD, CODE, SMALL, box, label, line, thing, width_of

PADDING: Final = 12
SMALL_HEIGHT: Final = 66
_BAR: Final = 6
_METER: Final = 30
_CONTENT: Final = 17


class Scales(NamedTuple):
    """The scales of the bars, over all parts."""

    need_bytes: int  #: the largest need or budget of a part.
    flops: int  #: the largest number of FLOPs of a part; 0 if none is known.
    has_content: bool  #: whether the content of any part is known.

    @property
    def card_height(self) -> float:
        """The height of a full card."""
        return 55 + _CONTENT * self.has_content + _METER * bool(self.flops) + _METER


def scales_of(cards: Sequence[Card]) -> Scales:
    """The scales for `cards`."""
    needs = [max(card.need_bytes, card.budget_bytes or 0) for card in cards]
    flops = max((card.flops or 0 for card in cards), default=0)
    return Scales(max(needs, default=0) or 1, flops, any(card.content for card in cards))


def card_group(index: int, card: Card, marks: Sequence[str]) -> str:
    """All marks of a part as one group."""
    name = f"{card.name}, {card.content}" if card.content else card.name
    need = f"{card.measure} {need_text(card)}{of_budget(card.budget_bytes)}{', over budget' if card.is_over else ''}"
    return thing("card", index, f"{name}: {count(card.nodes, 'node')}, {need}", marks)


def full_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part as a card with everything that is known of it."""
    inner = width - 2 * PADDING
    marks = [_frame(card, x, y, width, height), *_title(card, x + PADDING, y + 20, inner)]
    marks.append(label(x + PADDING, y + 37, card.content, BODY, room=inner))
    base = y + 39 + _CONTENT * scales.has_content
    marks += _labelled(x + PADDING, base, inner, card.measure, _need_text(card), "over" if card.is_over else "")
    marks += _need_bar(card, scales, x + PADDING, base + 6, inner)
    if scales.flops:
        base += _METER
        marks += _labelled(x + PADDING, base, inner, "compute", _flops_text(card), "")
        marks += _bar(x + PADDING, base + 6, inner, (card.flops or 0) / scales.flops)
    busy = "" if card.busy_s is None else card.least + duration(card.busy_s)
    room = inner - width_of(busy, BODY) - 8
    nodes = _nodes_text(card) if width_of(_nodes_text(card), SMALL) <= room else count(card.nodes, "node")
    return [*marks, *_labelled(x + PADDING, base + _METER, inner, nodes, busy, "muted")]


def small_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part as a card with its name, its content and its memory."""
    inner = width - 2 * PADDING
    need = _need_text(card)
    marks = [_frame(card, x, y, width, height), *_title(card, x + PADDING, y + 19, inner)]
    marks.append(label(x + PADDING, y + 35, card.content or _nodes_text(card), BODY, room=inner))
    marks += _need_bar(card, scales, x + PADDING, y + 46, inner - width_of(need, BODY) - 8)
    return [*marks, label(x + width - PADDING, y + 53, need, BODY, css="over" if card.is_over else "", anchor="end")]


class RowColumns(NamedTuple):
    """Where the columns of a part's row start and end; the same for all rows."""

    name: float
    content: float
    need: float
    flops: float
    device: float
    end: float


_ROW_BAR: Final = 92
_ROW_TEXT: Final = 112


def row_columns(x: float, width: float, scales: Scales) -> RowColumns:
    """The columns of a row that starts at `x`."""
    start, end = x + PADDING, x + width - PADDING
    meters = (_ROW_BAR + _ROW_TEXT) * (2 if scales.flops else 1)
    rest = end - start - meters
    need = start + rest * 0.72
    return RowColumns(start, start + rest * 0.3, need, need + _ROW_BAR + _ROW_TEXT, need + meters, end)


def row_titles(columns: RowColumns, scales: Scales, measure: str) -> list[str]:
    """The titles above the bars; `measure` is that of the cards."""
    titles = {columns.need: measure, **({columns.flops: "compute"} if scales.flops else {})}
    return [label(x, 12, text, SMALL, css="muted") for x, text in titles.items()]


def row_card(card: Card, scales: Scales, x: float, y: float, width: float, height: float) -> list[str]:
    """A part as a row with everything that is known of it."""
    columns = row_columns(x, width, scales)
    middle = y + height / 2
    base = middle + 4
    marks = [_frame(card, x, y, width, height)]
    room = columns.content - columns.name - 10
    marks.append(label(columns.name, base, card.short_name, BOLD, room=room, among=[card.short_name]))
    room = columns.need - columns.content - 12
    both = f"{card.content} \N{MIDDLE DOT} {_nodes_text(card)}" if card.content else _nodes_text(card)
    content = both if width_of(both, BODY) <= room or not card.content else card.content
    marks.append(label(columns.content, base, content, BODY, room=room))
    marks += _need_bar(card, scales, columns.need, middle - 3, _ROW_BAR)
    css, room = "over" if card.is_over else "", _ROW_TEXT - 14
    marks.append(label(columns.need + _ROW_BAR + 8, base, _need_text(card), BODY, css=css, room=room))
    if scales.flops:
        marks += _bar(columns.flops, middle - 3, _ROW_BAR, (card.flops or 0) / scales.flops)
        marks.append(label(columns.flops + _ROW_BAR + 8, base, _flops_text(card), BODY, room=room))
    return [*marks, _device(card, columns.end, base, columns.end - columns.device)]


def _frame(card: Card, x: float, y: float, width: float, height: float) -> str:
    return box(x, y, width, height, "card over" if card.is_over else "card", radius=6)


def _title(card: Card, x: float, y: float, room: float) -> list[str]:
    """The name at the left, and the device in the rest of the room."""
    name = min(width_of(card.short_name, BOLD), room * (0.6 if card.device else 1))
    shown = label(x, y, card.short_name, BOLD, room=name, among=[card.short_name])
    return [shown, _device(card, x + room, y, room - name - 8)]


def _device(card: Card, end: float, y: float, room: float) -> str:
    return label(end, y, card.device, CODE, css="muted", room=room, anchor="end", among=[card.device])


def _labelled(x: float, y: float, room: float, name: str, value: str, css: str) -> list[str]:
    left = room - (width_of(value, BODY) + 8 if value else 0)
    return [label(x, y, name, SMALL, css="muted", room=left), label(x + room, y, value, BODY, css=css, anchor="end")]


def _need_bar(card: Card, scales: Scales, x: float, y: float, width: float) -> Iterator[str]:
    """The memory as a bar, with a tick at the budget."""
    yield from _bar(x, y, width, card.need_bytes / scales.need_bytes, css="bar over" if card.is_over else "bar")
    if card.budget_bytes is not None:
        tick = x + width * card.budget_bytes / scales.need_bytes
        yield line(((tick, y - 3), (tick, y + _BAR + 3)), "tick")


def _bar(x: float, y: float, width: float, share: float, *, css: str = "bar") -> list[str]:
    return [box(x, y, width, _BAR, "track", radius=1), box(x, y, width * share, _BAR, css, radius=1)]


def _need_text(card: Card) -> str:
    return f"{need_text(card)}, over" if card.is_over else need_text(card)


def _flops_text(card: Card) -> str:
    return "" if card.flops is None else card.least + flop(card.flops)


def _nodes_text(card: Card) -> str:
    more = f", {count(card.replicas, 'replica')}" if card.replicas else ""
    return f"{count(card.nodes, 'node')}{more}"
