"""A scene on the terminal: title, sentence, parts, boundary tensors, cut profile, and what else there is to say."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...core.units import duration, flop, size
from ..profile_builder import best_options
from ..scene import BoundaryTotals, Card, Scene, totals_of
from ..sentences import need_text, of_budget, size_text
from .lanes import lanes
from .matrix import matrix
from .profile_strip import profile_strip
from .schedule import schedule_rows
from .screen import BAR, BAR_CELLS, TICK, Screen, Section, picture
from .tables import Column, section


def draw_scene(scene: Scene, screen: Screen, *, explain: bool = False) -> RenderableType:
    """A scene; with `explain`, why each cut is where it is, the dependency maps, and schedules.

    The next command is not drawn.
    """
    facts = ", ".join(f"{value} {word}" for word, value in scene.facts if word != "dims")
    return picture(
        [screen.title(scene.title, facts, dict(scene.facts).get("dims", "")), screen.text(scene.sentence)],
        _details(scene, screen),
        section(screen, _rank_columns(scene) if scene.is_ranked else _part_columns(scene, screen)),
        [*lanes(scene, screen), *map(screen.text, scene.recomputed)] if scene.cards else [],
        _profile(scene, screen),
        section(screen, _cut_points(scene)),
        _other_plans(scene, screen),
        _reasons(scene, screen) if explain else [],
        matrix(scene, screen) if explain else [],
        *(schedule_rows(schedule, screen) for schedule in (scene.schedules() if explain else ())),
        notes=map(screen.note, scene.notes),
    )


def _details(scene: Scene, screen: Screen) -> Section:
    grid = Table.grid(padding=(0, 2))
    for word, value in scene.details:
        grid.add_row(screen.text(word, "dim"), screen.text(value))
    return [grid] if scene.details else []


# Parts


def _part_columns(scene: Scene, screen: Screen) -> Iterable[Column]:
    """What is known of the parts; where room is short, the least important columns are left out."""
    cards = scene.cards
    is_planned = all(card.busy_s is not None for card in cards)
    yield Column("part", [Text(card.name, style="bold") for card in cards], min_width=12)
    if any(card.runs for card in cards):
        yield Column("runs", [Text(card.runs) for card in cards], min_width=10)
    if any(card.device for card in cards):
        yield Column("device", [Text(card.device, style="dim") for card in cards], min_width=16)
    if any(card.content for card in cards):
        yield Column("contains", [Text(card.content) for card in cards], min_width=22)
    yield Column("nodes", [f"{card.nodes:,}" for card in cards], drop_order=1 if is_planned else 0)
    if not is_planned:
        yield Column("weights", [size(card.weight_bytes) for card in cards])
    if any(card.need_bytes != card.weight_bytes for card in cards):
        yield Column(cards[0].measure, [need_text(card) for card in cards])
    if any(card.budget_bytes for card in cards):
        first, *others = {card.budget_bytes for card in cards}
        yield Column("of its budget" if others else of_budget(first).lstrip(), [*_budget_bars(cards, screen)])
    if is_planned:
        yield from _predicted_columns(scene, screen)
    else:
        yield Column("reads", [str(len(card.reads)) for card in cards], drop_order=5)
        yield Column("writes", [str(len(card.writes)) for card in cards], drop_order=4)
        yield Column("sends here" if scene.elsewhere else "sends", [_moved(scene.sent(i)) for i in range(len(cards))])
    if any(card.last_node for card in cards):
        lasts = [Text(card.last_node, style="dim") for card in cards]
        yield Column("up to", lasts, min_width=10, drop_order=9 if all(card.content for card in cards) else 0)


def _rank_columns(scene: Scene) -> Iterable[Column]:
    """What is known of each rank, with all its parts, and what it exchanges with others."""
    cards, devices = scene.cards, list(dict.fromkeys(card.device for card in scene.cards))
    rows = [[i for i, card in enumerate(cards) if card.device == device] for device in devices]
    met = [(tensor, cards[tensor.source].device, {cards[i].device for i in tensor.readers}) for tensor in scene.tensors]
    received = [[t for t, source, readers in met if device in readers - {source}] for device in devices]
    sent = [[t for t, source, readers in met if device == source and readers - {source}] for device in devices]
    rounds = [{i for t in found for i in t.readers if i in row} for found, row in zip(received, rows, strict=True)]
    yield Column("rank", [Text(device, style="bold") for device in devices], min_width=14)
    yield Column("parts", [str(len(row)) for row in rows])
    yield Column("nodes", [f"{sum(cards[i].nodes for i in row):,}" for row in rows], drop_order=1)
    yield Column("weights", [size(sum(cards[i].weight_bytes for i in row)) for row in rows], drop_order=2)
    yield Column(cards[0].measure, [size(sum(cards[i].need_bytes for i in row)) for row in rows])
    yield Column("sends to others", [_moved(totals_of(found)) for found in sent])
    yield Column("receives", [_moved(totals_of(found)) for found in received])
    yield Column("exchanges", [str(len(found)) for found in rounds])


def _predicted_columns(scene: Scene, screen: Screen) -> Iterable[Column]:
    cards = scene.cards
    if all(card.activation_bytes is not None for card in cards):
        yield Column("activations", [card.least + size(card.activation_bytes or 0) for card in cards], drop_order=3)
    if all(card.flops is not None for card in cards):
        yield Column("compute", [card.least + flop(card.flops or 0) for card in cards], drop_order=4)
    if all(card.intensity is not None for card in cards):
        yield Column("FLOP/B", [f"{card.intensity or 0:.3g}" for card in cards], drop_order=8)
    yield Column("receives", [_moved(scene.received(i)) for i in range(len(cards))], drop_order=2)
    times = [card.busy_s or 0.0 for card in cards]
    yield Column("time", [card.least + duration(time_s) for card, time_s in zip(cards, times, strict=True)])
    if len(cards) > 1:
        bars = [Text(screen.bar(time_s / (max(times) or 1.0)), style="cyan") for time_s in times]
        yield Column("balance", bars, drop_order=7)


def _moved(total: BoundaryTotals) -> str:
    return size_text(total) if total.bytes or not total.is_exact else "-"


def _budget_bars(cards: Sequence[Card], screen: Screen) -> Iterable[Text]:
    """The need of each part as a share of its budget. The tick is the budget; a part over it goes beyond the tick."""
    shares = [card.need_bytes / card.budget_bytes if card.budget_bytes else 0.0 for card in cards]
    tick = round(BAR_CELLS / max(1.0, *shares))
    for card, share in zip(cards, shares, strict=True):
        bar, style = screen.bar(share, tick), "red" if share > 1 else "cyan"
        beyond = screen.plain(BAR) * max(1, len(bar) - tick) if share > 1 else ""
        parts = (bar[:tick].ljust(tick), style), (screen.plain(TICK), "bold"), (beyond, style)
        yield Text.assemble(*parts) if card.budget_bytes else Text("no limit", style="dim")


# The cut profile


def _profile(scene: Scene, screen: Screen) -> Section:
    profile = scene.profile
    if profile is None or len(profile.alive) < 2:
        return []
    if scene.cards:
        return profile_strip(profile, scene.cuts, "cut", screen)
    marks = [option.nodes_before - 1 for option in best_options(profile)]
    return profile_strip(profile, marks, "the cut points below", screen)


def _cut_points(scene: Scene) -> Iterable[Column]:
    """The best cut points of a model that is not cut."""
    options = [] if scene.cards or scene.profile is None else best_options(scene.profile)
    yield Column("cut after", [Text(one.node, style="bold" if one.is_key else "") for one in options], min_width=12)
    yield Column("crosses", [size_text(one) for one in options])
    yield Column("tensors", [str(one.tensors) for one in options])
    yield Column("weights before", [size(one.weights_before) for one in options])
    yield Column("after", [size(one.weights_after) for one in options])
    yield Column("module", [Text(one.module, style="dim") for one in options], min_width=6)


# Sentences


def _other_plans(scene: Scene, screen: Screen) -> Iterable[Text]:
    if scene.other_plans:
        yield Text("alternative plans: time between two requests, time of one request", "bold")
    for plan in scene.other_plans:
        times = f"  {duration(plan.period_s):8}  {duration(plan.latency_s):8}"
        yield screen.text(f"{times}{'  this plan' if plan.is_chosen else ''}".rstrip())


def _reasons(scene: Scene, screen: Screen) -> Iterable[Text]:
    for title, *rest in (reason.split("\n") for reason in scene.reasons()):
        yield from (screen.text(title, "bold"), *(screen.text(f"  {line}") for line in rest))
