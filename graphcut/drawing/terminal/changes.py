"""What changed between two divisions of a model, on the terminal."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, TypeVar

from rich.console import RenderableType
from rich.text import Text

from ...core.units import duration, size
from ..changes.record import ChangeKind, Changes, ChangeSide, CutChange, PartPair, TensorChange, TextChange
from ..changes.summary import relative_change
from ..scene import BoundaryTensor, BoundaryTotals, Card
from ..sentences import dims_text, need_text, size_text
from .lanes import MAX_ROWS, ends_text
from .screen import Screen, Section, picture
from .tables import Column, section, table

_SIGNS: Final[dict[ChangeKind, str]] = {"stays": " ", "came": "+", "went": "-"}
_STYLES: Final[dict[ChangeKind, str]] = {"stays": "dim", "came": "green", "went": "red"}
_Row = TypeVar("_Row", CutChange, TensorChange)
_One = TypeVar("_One")
_ARROW: Final = " → "


def draw_changes(changes: Changes, screen: Screen) -> RenderableType:
    """The changes on one screen: numbers, parts, nodes that moved, cuts, boundary tensors."""
    dims = dims_text(changes.after.dims) if changes.after.dims == changes.before.dims else ""
    details = ((screen.text(one.what, "bold"), *_sentences(one, screen, "  ")) for one in changes.details)
    return picture(
        [screen.title(changes.model, dims=dims), screen.text(changes.sentence)],
        [_numbers_table(changes, screen)],
        [table(screen, _part_columns(changes.parts))],
        _moves(changes, screen),
        _cuts(changes.cuts or (), screen),
        _tensors(changes.tensors, screen),
        chain.from_iterable(details),
        _sentences(changes.recomputed, screen),
        notes=map(screen.note, changes.notes),
    )


# Numbers


def _numbers_table(changes: Changes, screen: Screen) -> RenderableType:
    words, *values = zip(*_numbers(changes.before, changes.after), strict=True)
    columns = (Column(title, list(cells)) for title, cells in zip(("before", "now", "change"), values, strict=True))
    return table(screen, [Column("", [Text(word, style="dim") for word in words]), *columns])


def _numbers(before: ChangeSide, after: ChangeSide) -> Iterable[tuple[str, str, str, str]]:
    """A word, its values before and now, and the change."""
    sides = before, after
    yield _number("parts", before.parts, after.parts)
    old, new = (f"p{side.largest}, {size(side.largest_bytes)}" for side in sides)
    if before.measure == after.measure:
        yield f"largest part, {after.measure}", old, new, relative_change(before.largest_bytes, after.largest_bytes)
    else:
        yield "largest part", f"{old} ({before.measure})", f"{new} ({after.measure})", ""
    if before.slowest_s is not None and after.slowest_s is not None:
        old, new = (f"p{side.slowest}, {duration(side.slowest_s or 0)}" for side in sides)
        yield "slowest part", old, new, relative_change(before.slowest_s, after.slowest_s)
    yield "largest load / mean", f"{before.balance:.0%}", f"{after.balance:.0%}", ""
    if before.over or after.over:
        yield _number("parts over budget", before.over, after.over)
    yield _total("sent in one run", before.sent, after.sent)
    yield _total("busiest boundary", before.busiest, after.busiest)
    yield _number("boundary tensors", before.sent.tensors, after.sent.tensors)
    yield _number("sequential edges", before.sequential, after.sequential)
    yield _number("residual edges", before.residual, after.residual)


def _number(word: str, old: int, new: int) -> tuple[str, str, str, str]:
    return word, f"{old:,}", f"{new:,}", f"{new - old:+,}" if new != old else ""


def _total(word: str, old: BoundaryTotals, new: BoundaryTotals) -> tuple[str, str, str, str]:
    more = f"{'+' if new.bytes > old.bytes else '-'}{size(abs(new.bytes - old.bytes))}"
    is_known = old.is_exact and new.is_exact and new.bytes != old.bytes
    return word, size_text(old), size_text(new), more if is_known else ""


# Parts


def _part_columns(pairs: Sequence[PartPair]) -> Iterable[Column]:
    cards = [card for pair in pairs for card in (pair.before, pair.after) if card is not None]

    def both(title: str, say: Callable[[Card], str], *, min_width: int = 0, drop_order: int = 0) -> Column:
        return Column(title, [_both(pair.before, pair.after, say) for pair in pairs], min_width, drop_order)

    yield Column("part", [_part_name(pair) for pair in pairs])
    if any(card.device for card in cards):
        yield both("device", lambda card: card.device, min_width=12)
    if any(card.content for card in cards):
        latest = (pair.after or pair.before for pair in pairs)
        yield Column("contains", [Text(card.content if card else "") for card in latest], min_width=14)
    yield both("nodes", lambda card: f"{card.nodes:,}", drop_order=1)
    yield both(" / ".join(dict.fromkeys(card.measure for card in cards)), need_text)
    if any(card.budget_bytes is not None for card in cards):
        yield both("of", _budget, drop_order=2)
    if all(card.busy_s is not None for card in cards):
        yield both("time", lambda card: duration(card.busy_s or 0))


def _part_name(pair: PartPair) -> Text:
    if pair.old is None:
        return Text(f"p{pair.new}, new", style="green")
    if pair.new is None:
        return Text(f"p{pair.old}, gone", style="red")
    return Text(f"p{pair.new}" if pair.old == pair.new else f"p{pair.old}{_ARROW}p{pair.new}", style="bold")


def _both(before: _One | None, after: _One | None, say: Callable[[_One], str]) -> Text:
    """What is said of something before and now; once if that is the same."""
    found = [say(one) for one in (before, after) if one is not None]
    style = "red" if after is None else "green" if before is None else ""
    return Text(_ARROW.join(filter(None, dict.fromkeys(found))), style=style)


def _budget(card: Card) -> str:
    if card.budget_bytes is None:
        return "no limit"
    return f"{size(card.budget_bytes)}{', over' if card.is_over else ''}"


# Nodes, cuts, tensors


def _moves(changes: Changes, screen: Screen) -> Section:
    moved = [move for move in changes.nodes or () if not move.stays]
    largest = sorted(moved, key=lambda move: -len(move.nodes))[:MAX_ROWS]
    shown = sorted(largest, key=lambda move: (move.old, move.new))
    columns = [
        Column("moved", [Text(f"p{move.old}{_ARROW}p{move.new}", style="bold") for move in shown]),
        Column("nodes", [f"{len(move.nodes):,}" for move in shown]),
        Column("weights", [size(move.weight_bytes) for move in shown], drop_order=1),
    ]
    if any(move.content for move in shown):
        columns.append(Column("contains", [Text(move.content) for move in shown], min_width=10))
    columns += [
        Column("from", [Text(move.nodes[0], style="dim") for move in shown], min_width=8, drop_order=3),
        Column("up to", [Text(move.nodes[-1], style="dim") for move in shown], min_width=8, drop_order=2),
    ]
    return section(screen, columns, hidden=len(moved) - len(shown), noun="move")


def _cuts(cuts: Sequence[CutChange], screen: Screen) -> Section:
    shown = _first(cuts)
    columns = [
        _sign_column(shown),
        Column("cut after", [Text(cut.node, style=_STYLES[cut.kind]) for cut in shown], min_width=12),
        Column("crosses", [size_text(cut) for cut in shown]),
    ]
    return section(screen, columns, hidden=len(cuts) - len(shown), noun="cut")


def _tensors(tensors: Sequence[TensorChange], screen: Screen) -> Section:
    def ends(tensor: BoundaryTensor | None) -> Text:
        return Text("-", style="dim") if tensor is None else ends_text(tensor, is_short=True)

    shown = _first(tensors)
    columns = [
        _sign_column(shown),
        Column("boundary tensor", [Text(one.tensor, style=_STYLES[one.kind]) for one in shown], min_width=15),
        Column("bytes", [_both(one.before, one.after, size_text).plain for one in shown]),
        Column("before", [ends(one.before) for one in shown]),
        Column("now", [ends(one.after) for one in shown]),
    ]
    return section(screen, columns, hidden=len(tensors) - len(shown), noun="tensor")


def _sign_column(rows: Sequence[CutChange] | Sequence[TensorChange]) -> Column:
    return Column("", [Text(_SIGNS[row.kind], style=_STYLES[row.kind]) for row in rows])


def _first(rows: Sequence[_Row]) -> list[_Row]:
    """As many rows as fit, in their order; rows that stay are left out first."""
    ranked = sorted(range(len(rows)), key=lambda i: (rows[i].kind == "stays", i))
    return [rows[i] for i in sorted(ranked[:MAX_ROWS])]


def _sentences(change: TextChange, screen: Screen, indent: str = "") -> Section:
    """Sentences that no longer hold, then new ones."""
    rows: list[tuple[ChangeKind, str]] = [("went", text) for text in change.before]
    rows += [("came", text) for text in change.after]
    return [screen.text(f"{indent}{_SIGNS[kind]} {text}", _STYLES[kind]) for kind, text in rows]
