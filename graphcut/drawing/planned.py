"""The terminal pen for plans and cost models: what each part takes, what crosses, how good it is, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from ..costs.matching import Coverage
from ..model import Model
from ..planning.goals import Across, At, Goal, Heads, Into, Within
from ..planning.outcomes import Outcome, Unit
from ..planning.plans import Plan
from ..planning.reasons import Place, Reason
from ..planning.recompute import Recomputed
from ..units import count, duration, operations, size
from .glyphs import Glyphs, glyphs_for
from .lanes import lanes
from .tables import table

_MOST_NAMES = 6
_NOTABLE = 0.001


def draw_plan(made: Plan, model: Model, console: Console, *, explain: bool) -> RenderableType:
    """A plan on one screen; with `explain`, why each cut is where it is."""
    signs = glyphs_for(console)
    wiring = made.partition.wiring
    lines: list[RenderableType] = [_head(made, model), *map(Text, _outcome_lines(made))]
    lines += [Text(), _parts(made, model, console.width), Text()]
    sizes = {name: _bytes_of(made, model, name, signs) for name in wiring.crossing}
    lines += lanes(wiring, len(made.rows), model.border, sizes, signs, console.width)
    lines += [Text(line) for line in _recomputed(made, signs)]
    if len(made.front) > 1:
        lines += [Text(), Text("other plans worth having: time between two requests, and of one request", "bold")]
        lines += [Text(f"  {duration(period)}  {duration(latency)}") for period, latency in made.front]
    if explain and made.reasons:
        lines += [Text(), *_explained(made)]
    lines += [Text(f"note: {note}", style="yellow") for note in _notes(made, model)]
    return Group(*lines)


def _head(made: Plan, model: Model) -> Text:
    line = Text(model.path.name, style="bold")
    line.append(f"  {_wanted(made.goal)}: {count(len(made.rows), 'part')}", style="not bold")
    if dims := ", ".join(f"{name}={number}" for name, number in made.dims.items()):
        line.append(f"  {dims}", style="not bold dim")
    return line


def _wanted(goal: Goal) -> str:
    match goal:
        case At():
            return "cut after the places named"
        case Into():
            return f"into {goal.parts}, by {goal.by}"
        case Within():
            more = f", {', '.join(goal.counting)} counted" if goal.counting else ""
            return f"no part over {size(goal.memory_bytes)}{more}"
        case Across():
            return f"across {count(len(goal.cluster.devices), 'device')}, for {goal.objective}"
        case Heads():
            return "a trunk and its heads"


def _outcome_lines(made: Plan) -> Iterable[str]:
    if made.outcome is None:
        return
    yield _outcome(made.outcome, made.reached)
    if made.unlimited is not None:
        free = made.unlimited
        given = " and ".join(w for w, v in (("--pin", made.limits.pins), ("--avoid", made.limits.avoid)) if v)
        yield f"without {given}: {quantity(free.value, free.unit)}"


def _outcome(outcome: Outcome, reached: float | None) -> str:
    """How good the division is, and what it comes to once parts recompute."""
    text = _division(outcome)
    if reached is None or abs(reached - outcome.value) <= _NOTABLE * abs(outcome.value):
        return text
    return f"{text}; {quantity(reached, outcome.unit)} once parts recompute"


def _division(outcome: Outcome) -> str:
    value = f"{outcome.objective}: {quantity(outcome.value, outcome.unit)}"
    if outcome.is_optimal:
        return f"{value}; no other division does better (proven)"
    side = "at most" if outcome.unit == "tokens/s" else "at least"
    gap = (
        f", a gap of {outcome.gap:.1%}"
        if outcome.unit not in {"parts", "devices"} and outcome.gap != float("inf")
        else ""
    )
    return f"{value}; any division takes {side} {quantity(outcome.bound, outcome.unit)}{gap}"


def quantity(value: float, unit: Unit) -> str:
    """A number in its unit, for a person."""
    match unit:
        case "s":
            return duration(value)
        case "bytes":
            return size(round(value))
        case "parts" | "devices" | "layers":
            return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"
        case "flops":
            return f"{operations(value)}FLOP"
        case "tokens/s":
            return f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"


def _parts(made: Plan, model: Model, width: int) -> RichTable:
    names = [f"p{i}" for i in range(len(made.rows))]
    ends = [Text(model.graph.nodes[row[-1]].name, style="dim") for row in made.rows]
    if not made.figures:
        plain = [
            (Text(name, style="bold"), f"{len(row):,}", size(_weights(made, model, i)), end)
            for i, (name, row, end) in enumerate(zip(names, made.rows, ends, strict=True))
        ]
        return table(("part", "nodes", "weights", "up to"), plain, width=width, names={3: 12})
    is_cluster = isinstance(made.goal, Across)
    rows = [
        (
            Text(f"{name} {device.name}" if is_cluster else name, style="bold"),
            f"{f.nodes:,}",
            size(f.written_bytes),
            size(f.activation_bytes),
            f"{operations(f.flops)}FLOP",
            f"{f.intensity:.3g}",
            size(f.received_bytes),
            duration(f.busy_s),
            end,
        )
        for name, f, device, end in zip(names, made.figures, made.devices, ends, strict=True)
    ]
    titles = "part", "nodes", "on disk", "activations", "work", "FLOP/B", "receives", "time", "up to"
    return table(titles, rows, width=width, names={8: 10})


def _weights(made: Plan, model: Model, part: int) -> int:
    return sum(model.graph.weights[name].bytes for name in made.partition.blocks[part].weights)


def _bytes_of(made: Plan, model: Model, name: str, signs: Glyphs) -> str:
    sizes = model.tensor_bytes if made.costs is None else made.costs.tensor_bytes
    number, is_exact = sizes[name]
    return f"{'' if is_exact else signs.least}{size(number)}"


def _recomputed(made: Plan, signs: Glyphs) -> Iterable[str]:
    alike: dict[tuple[object, ...], list[Recomputed]] = {}
    for found in made.recomputed:
        alike.setdefault((found.nodes, found.tensors, found.saved_bytes, found.cost_s), []).append(found)
    for rows in alike.values():
        found, parts = rows[0], ", ".join(f"p{row.part}" for row in rows)
        names = ", ".join(found.tensors[:_MOST_NAMES])
        more = f" {signs.more}" if len(found.tensors) > _MOST_NAMES else ""
        verb = "computes" if len(rows) == 1 else "each compute"
        yield (
            f"{parts} {verb} {names}{more} instead of receiving {size(found.saved_bytes)}: "
            f"{count(len(found.nodes), 'node')} again, {duration(found.cost_s)}"
        )


def _explained(made: Plan) -> Iterable[RenderableType]:
    for i, reason in enumerate(made.reasons):
        yield Text(f"cut {i} after {reason.place.after}", style="bold")
        yield Text(f"  {_why(reason, i)}")
        for place in reason.others:
            yield Text(f"  next best after {place.after}: {_costs(place, reason.place)}")


def _why(reason: Reason, bar: int) -> str:
    sent = f"{size(reason.place.crossing_bytes)} cross here"
    if reason.dearest in {bar, bar + 1}:
        return f"{sent}; p{reason.dearest} beside it decides the whole: moving the cut would make that worse"
    return f"{sent}; p{reason.dearest} decides the whole, and is not touched by this cut"


def _costs(place: Place, own: Place) -> str:
    change = f"{place.cost / own.cost - 1:+.1%}" if own.cost > 0 else "the same"
    return f"{change if place.cost != own.cost else 'as good'}, {size(place.crossing_bytes)} cross there"


def _notes(made: Plan, model: Model) -> Iterable[str]:
    if made.figures and not isinstance(made.goal, Across):
        device = made.devices[0]
        yield (
            f"times are for a device of {operations(device.flops_per_s)}FLOP/s and {operations(device.bytes_per_s)}B/s "
            f"with a line of {operations(device.line_bytes_per_s)}B/s; --cluster FILE takes yours"
        )
    if unbound := [symbol for symbol in model.symbols if symbol not in made.dims]:
        yield f"sizes count {', '.join(unbound)} as 1; bind them with --dim NAME=N"
    if made.costs is not None and made.costs.uncounted:
        listed = ", ".join(f"{op} ({number})" for op, number in made.costs.uncounted.items())
        yield f"no FLOPs are known for {listed}; they count as 0"
    if made.coverage is not None:
        yield "figures of the cost model count as they are, for the sizes that it was made for"
        yield from coverage_lines(made.coverage)


def coverage_lines(coverage: Coverage) -> Iterable[str]:
    """What of a cost model matched nothing, and which nodes it does not cover."""
    if coverage.unmatched:
        yield f"{count(len(coverage.unmatched), 'row')} of the cost model matched no node: {_first(coverage.unmatched)}"
    if coverage.uncovered:
        yield f"the cost model does not cover {count(len(coverage.uncovered), 'node')}: {_first(coverage.uncovered)}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", and others" if len(names) > _MOST_NAMES else "")
