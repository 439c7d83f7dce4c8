"""The terminal pen: a scene on one screen, with rich; and what verifying found.

Names from a model go into `Text`, never into markup: a node called `[red]` is shown as it is. Whatever does not print,
an escape or a line end, is spelt out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analysis.cut_points import CutPoint
from ..core.manifest import Cascade
from ..core.units import duration, size
from .glyphs import Glyphs, glyphs_for
from .lanes import MOST_ROWS, lanes
from .profile_strip import strip
from .scene import CutOption, Scene
from .scenes import best_places
from .tables import Column, Trimmed, table
from .wording import flop, numbers_words, sized, structure_words

if TYPE_CHECKING:  # these load ONNX Runtime
    from ..verifying.numerical import TensorComparison
    from ..verifying.verification import Verification

_BAR: Final = 10


def draw_scene(scene: Scene, console: Console, *, explain: bool = False) -> RenderableType:
    """A scene on one screen; with `explain`, why each cut is where it is. What to try next is for the caller to say."""
    return Trimmed(Group(*_Screen(scene, glyphs_for(console), console.width).lines(explain=explain)))


@dataclass(frozen=True)
class _Screen:
    """A scene, and what it is drawn with."""

    scene: Scene
    signs: Glyphs
    width: int

    def lines(self, *, explain: bool) -> Iterable[RenderableType]:
        """Everything, from top to bottom; pieces with something in them stand apart."""
        yield self.head()
        yield self.signs.text(self.scene.sentence)
        pieces = [self.details(), self.parts(), self.lanes(), self.profile(), self.places(), self.others()]
        for piece in (*pieces, self.reasons() if explain else [], self.checks()):
            if piece:
                yield Text()
                yield from piece
        for note in self.scene.notes:
            yield self.signs.text(f"note: {note}", "yellow")

    def head(self) -> Text:
        line = self.signs.text(self.scene.title, "bold")
        facts = dict(self.scene.facts)
        dims = facts.pop("dims", "")
        if said := ", ".join(f"{value} {word}" for word, value in facts.items()):
            line.append(f"  {self.signs.spelt(said)}", "not bold")
        if dims:
            line.append(f"  {self.signs.spelt(dims)}", "not bold dim")
        return line

    def details(self) -> list[RenderableType]:
        if not self.scene.details:
            return []
        grid = Table.grid(padding=(0, 2))
        for word, value in self.scene.details:
            grid.add_row(self.signs.text(word, "dim"), self.signs.text(value))
        return [grid]

    # Parts

    def parts(self) -> list[RenderableType]:
        return [table(list(self.columns()), width=self.width, signs=self.signs)] if self.scene.cards else []

    def columns(self) -> Iterable[Column]:
        """What is known of the parts, column by column; what says least stays away first."""
        cards = self.scene.cards
        is_planned = all(card.busy_s is not None for card in cards)
        yield Column("part", [Text(card.name, style="bold") for card in cards], fewest=12)
        if any(card.device for card in cards):
            yield Column("device", [Text(card.device, style="dim") for card in cards], fewest=16)
        if any(card.content for card in cards):
            yield Column("contains", [Text(card.content) for card in cards], fewest=22)
        yield Column("nodes", [f"{card.nodes:,}" for card in cards], spare=1 if is_planned else 0)
        if not is_planned:
            yield Column("weights", [size(card.weight_bytes) for card in cards])
        if any(card.need_bytes != card.weight_bytes for card in cards):
            yield Column("needs", [size(card.need_bytes) for card in cards])
        if any(card.budget_bytes for card in cards):
            yield Column(self.budget_title(), self.budget_bars())
        if is_planned:
            yield from self.figures()
        else:
            yield Column("reads", [str(len(card.reads)) for card in cards], spare=5)
            yield Column("writes", [str(len(card.writes)) for card in cards], spare=4)
            yield Column("sends on", [self.moved(*self.scene.sent(i)) for i in range(len(cards))])
        if any(card.last for card in cards):
            is_told = all(card.content for card in cards)
            lasts = [Text(card.last, style="dim") for card in cards]
            yield Column("up to", lasts, fewest=10, spare=9 if is_told else 0)

    def figures(self) -> Iterable[Column]:
        cards = self.scene.cards
        if all(card.activation_bytes is not None for card in cards):
            yield Column("activations", [size(card.activation_bytes or 0) for card in cards], spare=3)
        if all(card.flops is not None for card in cards):
            yield Column("work", [flop(card.flops or 0) for card in cards], spare=4)
        if all(card.intensity is not None for card in cards):
            yield Column("FLOP/B", [f"{card.intensity or 0:.3g}" for card in cards], spare=8)
        yield Column("receives", [self.moved(*self.scene.received(i)) for i in range(len(cards))], spare=2)
        times = [card.busy_s or 0.0 for card in cards]
        yield Column("time", [duration(time) for time in times])
        if len(cards) > 1:
            longest = max(times) or 1.0
            bars = [Text(self.bar(time / longest, _BAR), style="cyan") for time in times]
            yield Column("balance", bars, spare=7)

    def moved(self, number: int, is_exact: bool) -> str:  # noqa: FBT001 - a pair, as the scene gives it
        return sized(number, is_exact=is_exact) if number or not is_exact else "-"

    def bar(self, share: float, room: int) -> str:
        """A line of that share of `room`; what is there at all is seen."""
        return self.signs.bar * max(round(share * room), int(share > 0))

    def budget_title(self) -> str:
        budgets = {card.budget_bytes for card in self.scene.cards}
        return f"of {size(budget)}" if len(budgets) == 1 and (budget := budgets.pop()) else "of its budget"

    def budget_bars(self) -> list[Text]:
        """What each part needs of what it may, with a tick at its budget. What is over goes beyond the tick."""
        shares = [card.need_bytes / card.budget_bytes if card.budget_bytes else 0.0 for card in self.scene.cards]
        tick = round(_BAR / max(1.0, *shares))
        return [
            self.budget_bar(share, tick) if card.budget_bytes else Text("no limit", style="dim")
            for card, share in zip(self.scene.cards, shares, strict=True)
        ]

    def budget_bar(self, share: float, tick: int) -> Text:
        bar = self.bar(share, tick)
        is_over = share > 1
        # A part that is over is drawn beyond the tick, by however little it is.
        beyond = self.signs.bar * max(1, len(bar) - tick) if is_over else ""
        style = "red" if is_over else "cyan"
        return Text.assemble((bar[:tick].ljust(tick), style), (self.signs.tick, "bold"), (beyond, style))

    # What crosses

    def lanes(self) -> list[RenderableType]:
        if not self.scene.cards:
            return []
        return [*lanes(self.scene, self.signs, self.width), *map(self.signs.text, self.scene.recomputed)]

    def profile(self) -> list[RenderableType]:
        profile = self.scene.profile
        if profile is None or len(profile.alive) < 2:
            return []
        if self.scene.cards:
            return list(strip(profile, profile.cuts, "cut", self.signs, self.width))
        marks = [place.position - 1 for place in best_places(profile)]
        return list(strip(profile, marks, "the places below", self.signs, self.width))

    def places(self) -> list[RenderableType]:
        """Where to cut a model that is not cut."""
        if self.scene.cards or self.scene.profile is None:
            return []
        places = best_places(self.scene.profile)
        return [table(list(_place_columns(places)), width=self.width, signs=self.signs)] if places else []

    # What there is to say

    def others(self) -> list[RenderableType]:
        if not self.scene.others:
            return []
        head = Text("plans worth having: time between two requests, and of one request", "bold")
        return [
            head,
            *(
                self.signs.text(
                    f"  {duration(other.period_s):8}  {duration(other.latency_s):8}"
                    f"{'  this one' if other.is_chosen else ''}".rstrip()
                )
                for other in self.scene.others
            ),
        ]

    def reasons(self) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for reason in self.scene.reasons:
            head, *rest = reason.split("\n")
            lines += [self.signs.text(head, "bold"), *(self.signs.text(f"  {line}") for line in rest)]
        return lines

    def checks(self) -> list[RenderableType]:
        return [
            self.signs.text(
                f"{_sign(self.signs, check.is_good)} {check.what}: {check.result}",
                "red" if check.is_good is False else "",
            )
            for check in self.scene.checks
        ]


def _place_columns(places: Sequence[CutOption]) -> Iterable[Column]:
    names = [Text(place.node, style="bold" if place.is_key else "") for place in places]
    yield Column("cut after", names, fewest=12)
    yield Column("crossing", [sized(place.bytes, is_exact=place.is_exact) for place in places])
    yield Column("tensors", [str(place.tensors) for place in places])
    yield Column("weights before", [size(place.weights_before) for place in places])
    yield Column("after", [size(place.weights_after) for place in places])
    yield Column("module", [Text(place.module, style="dim") for place in places], fewest=6)


# Lines for other programs


def draw_cut_points(points: Sequence[CutPoint]) -> Iterable[str]:
    """The places as tab-separated lines, for other programs: node, bytes, crossing tensors, weights, key, module."""
    yield "node\tbytes\texact\tcrossing\tweights_before\tweights_after\tkey\tmodule"
    for point in points:
        yield "\t".join(
            (
                point.node,
                str(point.bytes),
                "yes" if point.is_exact else "at least",
                ",".join(point.boundary_tensors),
                str(point.weights_before),
                str(point.weights_after),
                "yes" if point.is_key else "no",
                point.module,
            )
        )


def cheapest(points: Sequence[CutPoint], number: int) -> list[CutPoint]:
    """The `number` cheapest places, in order; of equal ones those that divide the weights most evenly."""
    ranked = sorted(points, key=lambda p: (p.bytes, abs(p.weights_before - p.weights_after), p.nodes_before))
    return sorted(ranked[:number], key=lambda p: p.nodes_before)


# Verifying


def draw_verification(report: Verification, cascade: Cascade, console: Console) -> RenderableType:
    """What verifying found; the answer in the first line."""
    signs = glyphs_for(console)
    proof = report.proof
    lines = [_answer(report, signs), signs.text(f"{_sign(signs, proof.holds)} structure: {structure_words(report)}")]
    lines += [signs.text(f"  {sentence}", "red") for sentence in proof.objections[:MOST_ROWS]]
    if report.runs:
        is_good = report.first_difference is None and not report.failure
        lines.append(signs.text(f"{_sign(signs, is_good)} numbers: {numbers_words(report)}"))
    elif report.refusal:
        lines.append(Text(f"{signs.more} not run: the model itself refuses the inputs that were made up for it"))
        lines += [signs.text(f"  {report.refusal}", "dim"), Text("  feed it with --inputs FILE.npz", style="dim")]
    if report.failure:
        lines.append(signs.text(f"  the cascade refuses what the model takes: {report.failure}", "red"))
    if (worst := report.first_difference) is not None:
        lines += _difference_lines(worst, cascade, signs)
    if report.is_random:
        lines.append(Text("  random nodes have a part in some tensors: there only the proof counts", style="dim"))
    if report.reason:
        lines.append(signs.text(f"  {report.reason}", "dim"))
    return Group(*lines)


def _answer(report: Verification, signs: Glyphs) -> Text:
    if not report.same:
        return Text(f"{signs.no} the cascade does not do what the model does", style="bold red")
    if report.runs:
        what = "the same bits" if report.is_identical else "the same within what is allowed"
        return Text(f"{signs.yes} the cascade does what the model does: {what}", style="bold green")
    return Text(f"{signs.yes} the parts, stitched together, are the model", style="bold green")


def _sign(signs: Glyphs, is_good: bool | None) -> str:  # noqa: FBT001 - a claim, and nothing else
    return signs.more if is_good is None else signs.yes if is_good else signs.no


def _difference_lines(worst: TensorComparison, cascade: Cascade, signs: Glyphs) -> list[Text]:
    kind = "output" if worst.is_output else "crossing tensor"
    lines = (
        f"  the first {kind} that differs: {worst.tensor!r}, made by {cascade.parts[worst.part].file}",
        (
            f"  max abs {worst.max_abs:.3g} (allowed {worst.allowed:.3g}), max rel {worst.max_rel:.3g}, "
            f"{worst.max_ulps:,} ulps"
        ),
    )
    return [signs.text(line, "red") for line in lines]
