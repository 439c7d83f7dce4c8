"""What changed, on one screen of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ...core.units import count, duration, size
from ..glyphs import Glyphs, glyphs_for
from ..lanes import MOST_ROWS, ranges
from ..scene import Card, Lane
from ..tables import Column, Trimmed, table
from ..wording import sized
from .record import Changes, CutChange, PartPair, ProductKind, Sent
from .words import share

_SIGNS: Final[dict[ProductKind, str]] = {"stays": " ", "came": "+", "went": "-"}
_STYLES: Final[dict[ProductKind, str]] = {"stays": "dim", "came": "green", "went": "red"}
_MOST_RANGES: Final = 2
_Row = TypeVar("_Row", CutChange, Sent)
_ARROW: Final = " \N{RIGHTWARDS ARROW} "


def draw_changes(changes: Changes, console: Console) -> RenderableType:
    """What changed, on one screen: in figures, part by part, which nodes moved, which cuts, which tensors."""
    return Trimmed(Group(*_ChangesScreen(changes, glyphs_for(console), console.width).lines()))


@dataclass(frozen=True)
class _ChangesScreen:
    """What changed, and what it is drawn with."""

    changes: Changes
    signs: Glyphs
    width: int

    def lines(self) -> Iterable[RenderableType]:
        """Everything, from top to bottom; pieces with something in them stand apart."""
        yield self.head()
        yield self.signs.text(self.changes.sentence)
        pieces = (self.figures, self.parts, self.flows, self.cuts, self.sent, self.details, self.recomputed)
        for piece in pieces:
            if drawn := piece():
                yield Text()
                yield from drawn
        for note in self.changes.notes:
            yield self.signs.text(f"note: {note}", "yellow")

    def head(self) -> Text:
        line = self.signs.text(self.changes.title, "bold")
        dims = self.changes.after.dims
        if dims and dims == self.changes.before.dims:
            said = ", ".join(f"{name}={number}" for name, number in dims.items())
            line.append(f"  {self.signs.spelt(said)}", "not bold dim")
        return line

    def table(self, columns: Iterable[Column]) -> RenderableType:
        return table(list(columns), width=self.width, signs=self.signs)

    def folded(self, rows: int, shown: int, noun: str) -> list[RenderableType]:
        """A line for what is not shown."""
        more = rows - shown
        return [self.signs.text(f"{self.signs.more} and {count(more, f'more {noun}')}", "dim")] if more > 0 else []

    # In figures

    def figures(self) -> list[RenderableType]:
        rows = list(_figures(self.changes))
        return [
            self.table(
                [
                    Column("", [Text(word, style="dim") for word, *_ in rows]),
                    Column("before", [before for _, before, _, _ in rows]),
                    Column("now", [after for _, _, after, _ in rows]),
                    Column("change", [change for *_, change in rows]),
                ]
            )
        ]

    # Part by part

    def parts(self) -> list[RenderableType]:
        pairs = self.changes.pairs
        cards = [card for pair in pairs for card in (pair.before, pair.after) if card is not None]
        columns = [Column("part", [_part_name(pair) for pair in pairs])]
        if any(card.device for card in cards):
            columns.append(Column("device", [_both(pair, lambda card: card.device) for pair in pairs], fewest=12))
        if any(card.content for card in cards):
            columns.append(Column("contains", [_latest(pair, lambda card: card.content) for pair in pairs], fewest=14))
        columns.append(Column("nodes", [_both(pair, lambda card: f"{card.nodes:,}") for pair in pairs], spare=1))
        columns.append(Column("needs", [_both(pair, lambda card: size(card.need_bytes)) for pair in pairs]))
        if any(card.budget_bytes is not None for card in cards):
            columns.append(Column("of", [_both(pair, _budget) for pair in pairs], spare=2))
        if all(card.busy_s is not None for card in cards):
            columns.append(Column("time", [_both(pair, lambda card: duration(card.busy_s or 0)) for pair in pairs]))
        return [self.table(columns)]

    # Nodes and cuts

    def flows(self) -> list[RenderableType]:
        moved = [flow for flow in self.changes.flows or () if not flow.stays]
        if not moved:
            return []
        shown = sorted(
            sorted(moved, key=lambda flow: -len(flow.nodes))[:MOST_ROWS], key=lambda flow: (flow.old, flow.new)
        )
        columns = [
            Column("moved", [Text(f"p{flow.old}{_ARROW}p{flow.new}", style="bold") for flow in shown]),
            Column("nodes", [f"{len(flow.nodes):,}" for flow in shown]),
            Column("weights", [size(flow.weight_bytes) for flow in shown], spare=1),
            Column("contains", [Text(flow.content) for flow in shown], fewest=10),
            Column("from", [Text(flow.nodes[0], style="dim") for flow in shown], fewest=8, spare=3),
            Column("up to", [Text(flow.nodes[-1], style="dim") for flow in shown], fewest=8, spare=2),
        ]
        if not any(flow.content for flow in shown):
            del columns[3]
        return [self.table(columns), *self.folded(len(moved), len(shown), "move")]

    def cuts(self) -> list[RenderableType]:
        cuts = self.changes.cuts
        if not cuts:
            return []
        shown = _first(cuts)
        columns = [
            Column("", [_sign(cut.kind) for cut in shown]),
            Column("cut after", [Text(cut.node, style=_STYLES[cut.kind]) for cut in shown], fewest=12),
            Column("crossing", [sized(cut.bytes, is_exact=cut.is_exact) for cut in shown]),
        ]
        return [self.table(columns), *self.folded(len(cuts), len(shown), "cut")]

    # What crosses

    def sent(self) -> list[RenderableType]:
        sent = self.changes.sent
        if not sent:
            return []
        shown = _first(sent)
        columns = [
            Column("", [_sign(one.kind) for one in shown]),
            Column("crossing tensor", [Text(one.tensor, style=_STYLES[one.kind]) for one in shown], fewest=15),
            Column("bytes", [_lane_size(one) for one in shown]),
            Column("before", [self.ends(one.before) for one in shown]),
            Column("now", [self.ends(one.after) for one in shown]),
        ]
        return [self.table(columns), *self.folded(len(sent), len(shown), "tensor")]

    def ends(self, lane: Lane | None) -> Text:
        """`p0 ──> p1, p2`: who makes it, and who reads it."""
        if lane is None:
            return Text("-", style="dim")
        sign, style = (self.signs.far, "yellow") if lane.is_residual else (self.signs.near, "blue")
        found = list(ranges(lane.readers))
        readers = ", ".join(found) if len(found) <= _MOST_RANGES else count(len(lane.readers), "part")
        return Text(f"p{lane.source} {sign * 2}> {readers}", style=style)

    # What was said

    def details(self) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for word, before, after in self.changes.details:
            lines.append(self.signs.text(word, "bold"))
            lines += self.told("  ", [before] if before else [], [after] if after else [])
        return lines

    def recomputed(self) -> list[RenderableType]:
        return self.told("", *self.changes.recomputed)

    def told(self, indent: str, went: Sequence[str], came: Sequence[str]) -> list[RenderableType]:
        """What no longer holds, and what does now."""
        kinds: tuple[tuple[ProductKind, Sequence[str]], ...] = (("went", went), ("came", came))
        return [
            self.signs.text(f"{indent}{_SIGNS[kind]} {said}", _STYLES[kind])
            for kind, all_said in kinds
            for said in all_said
        ]


# Figures


def _figures(changes: Changes) -> Iterable[tuple[str, str, str, str]]:
    """What is counted, before, now, and by how much it changed."""
    before, after = changes.before, changes.after
    yield "parts", f"{before.parts}", f"{after.parts}", _more(before.parts, after.parts)
    yield (
        "largest part",
        f"p{before.largest}, {size(before.largest_bytes)}",
        f"p{after.largest}, {size(after.largest_bytes)}",
        share(before.largest_bytes, after.largest_bytes),
    )
    if before.slowest_s is not None and after.slowest_s is not None:
        yield (
            "slowest part",
            f"p{before.slowest}, {duration(before.slowest_s)}",
            f"p{after.slowest}, {duration(after.slowest_s)}",
            share(before.slowest_s, after.slowest_s),
        )
    yield "largest load, of the mean", f"{before.balance:.0%}", f"{after.balance:.0%}", ""
    if before.over or after.over:
        yield "parts over budget", f"{before.over}", f"{after.over}", _more(before.over, after.over)
    yield (
        "crosses in one run",
        sized(before.sent_bytes, is_exact=before.sent_exact),
        sized(after.sent_bytes, is_exact=after.sent_exact),
        _more_bytes(before.sent_bytes, after.sent_bytes) if before.sent_exact and after.sent_exact else "",
    )
    yield (
        "at the busiest boundary",
        sized(before.most_bytes, is_exact=before.most_exact),
        sized(after.most_bytes, is_exact=after.most_exact),
        _more_bytes(before.most_bytes, after.most_bytes) if before.most_exact and after.most_exact else "",
    )
    yield "tensors", f"{before.tensors:,}", f"{after.tensors:,}", _more(before.tensors, after.tensors)
    for word, one, other in (
        ("sequential links", before.sequential, after.sequential),
        ("residual links", before.residual, after.residual),
    ):
        yield word, f"{one:,}", f"{other:,}", _more(one, other)


def _more(before: int, after: int) -> str:
    return f"{after - before:+,}" if after != before else ""


def _more_bytes(before: int, after: int) -> str:
    return f"{'+' if after > before else '-'}{size(abs(after - before))}" if after != before else ""


# Cells


def _part_name(pair: PartPair) -> Text:
    if pair.old is None:
        return Text(f"p{pair.new}, new", style="green")
    if pair.new is None:
        return Text(f"p{pair.old}, gone", style="red")
    return Text(f"p{pair.new}" if pair.old == pair.new else f"p{pair.old}{_ARROW}p{pair.new}", style="bold")


def _both(pair: PartPair, said: Callable[[Card], str]) -> Text:
    """What is said of a part before and now; once, where that is the same."""
    found = [said(card) for card in (pair.before, pair.after) if card is not None]
    style = "red" if pair.after is None else "green" if pair.before is None else ""
    return Text(_ARROW.join(filter(None, dict.fromkeys(found))), style=style)


def _latest(pair: PartPair, said: Callable[[Card], str]) -> Text:
    card = pair.after or pair.before
    return Text("" if card is None else said(card))


def _budget(card: Card) -> str:
    if card.budget_bytes is None:
        return "no limit"
    return f"{size(card.budget_bytes)}{', over' if card.is_over else ''}"


def _lane_size(one: Sent) -> str:
    sizes = [sized(lane.bytes, is_exact=lane.is_exact) for lane in (one.before, one.after) if lane is not None]
    return _ARROW.join(dict.fromkeys(sizes))


def _sign(kind: ProductKind) -> Text:
    return Text(_SIGNS[kind], style=_STYLES[kind])


def _first(rows: Sequence[_Row]) -> list[_Row]:
    """As many as there is room for, in their order: those that came or went before those that stay."""
    ranked = sorted(range(len(rows)), key=lambda i: (rows[i].kind == "stays", i))
    return [rows[i] for i in sorted(ranked[:MOST_ROWS])]
