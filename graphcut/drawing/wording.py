"""What is said of a product, in sentences that a person can quote. Signs are Unicode; a pen may have to spell them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ..core.states import StatePair, sent_states
from ..core.units import count, duration, operations, size
from ..core.wiring import Unit
from ..costs.caches import find_caches
from ..costs.matching import Coverage
from ..loading.model import Model
from ..planning.explanations import CandidateCut, Reason
from ..planning.goals import Across, At, Goal, Heads, Into, Within
from ..planning.plans import Plan
from ..planning.results import MetricUnit, Optimality
from ..planning.solver.recompute import Recomputed
from .scene import BoundaryTotals, Card, Check, CutOption, Lane

if TYPE_CHECKING:  # it loads ONNX Runtime
    from ..verifying.verification import Verification

_MOST_NAMES = 6

_HARDLY: Final = 0.95
"""A slowest part that takes this share of the time of the whole model is no gain."""


def sized(number: int, *, is_exact: bool) -> str:
    """Bytes for a person, with a sign where they are only the least."""
    return f"{'' if is_exact else '≥ '}{size(number)}"


def printable(text: str) -> str:
    """`text` with escapes for all that is not to be seen, or would be obeyed: line ends, colours, writing backwards."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# The answer


def answer(cards: Sequence[Card], lanes: Sequence[Lane], crossing: Sequence[BoundaryTotals], verdict: str = "") -> str:
    """How many parts there are, whether they fit, what crosses between them, and whether that was verified."""
    found = [_parts(cards), _crossing(lanes, crossing), verdict]
    return " ".join(sentence for sentence in found if sentence)


def _parts(cards: Sequence[Card]) -> str:
    if len(cards) == 1:
        return f"One part holds the whole model. It {_needs(cards[0])}."
    is_alike = len({card.budget_bytes for card in cards}) == 1
    largest = max(cards, key=lambda card: card.need_bytes / (1 if is_alike else card.budget_bytes or float("inf")))
    where = f"{largest.name} on {largest.device}" if largest.device else largest.name
    over = sum(card.is_over for card in cards)
    more = f" {over} parts are over budget." if over > 1 else ""
    return f"Cut into {len(cards)} parts. The {'largest' if is_alike else 'fullest'}, {where}, {_needs(largest)}.{more}"


def _needs(card: Card) -> str:
    if card.budget_bytes is None and card.need_bytes == card.weight_bytes:
        return f"reads {size(card.weight_bytes)} of weights"
    if card.budget_bytes is None:
        return f"needs {size(card.need_bytes)}"
    if card.is_over:
        return f"needs {size(card.need_bytes)}, over its {size(card.budget_bytes)} budget"
    return f"needs {size(card.need_bytes)} of its {size(card.budget_bytes)} budget"


def _crossing(lanes: Sequence[Lane], crossing: Sequence[BoundaryTotals]) -> str:
    if not crossing:
        return ""
    if not lanes:
        return "No tensor crosses a boundary."
    most = max(place.bytes for place in crossing)
    is_exact = all(place.is_exact for place in crossing)
    number = size(most)
    if not (is_exact or most):
        text = "What crosses a boundary has no size that is known"
    elif len(crossing) == 1:
        text = f"{number} crosses the boundary in one run" if is_exact else f"At least {number} crosses the boundary"
    elif is_exact:
        text = f"At most {number} crosses a boundary in one run"
    else:
        text = f"At least {number} crosses the busiest boundary"
    far = [lane for lane in lanes if lane.is_residual]
    return f"{text}; {_skipping(far, len(crossing))}." if far else f"{text}."


def _skipping(far: Sequence[Lane], boundaries: int) -> str:
    total, is_exact = sum(lane.bytes for lane in far), all(lane.is_exact for lane in far)
    over = "a part" if boundaries <= 2 else "parts"  # of three parts, only one can be skipped
    least = "" if is_exact else "at least "
    return f"{count(len(far), 'tensor')} ({least}{size(total)}) {'skips' if len(far) == 1 else 'skip'} over {over}"


def answer_where(place: CutOption | None, places: int) -> str:
    """Where a model can be cut: how often, and what the most even of the good places costs."""
    if place is None:
        return "No place to cut: fewer than two nodes depend on an input."
    least = "" if place.is_exact else "at least "
    before, after = size(place.weights_before), size(place.weights_after)
    sends = "crosses" if place.tensors == 1 else "cross"
    return (
        f"{count(places, 'good place')} to cut. The most even one is after {place.node}: "
        f"{count(place.tensors, 'tensor')} of {least}{size(place.bytes)} {sends} there, "
        f"between {before} and {after} of weights."
    )


# Verifying


def verdict(report: Verification | None) -> str:
    """What verifying came to; empty where nothing was verified."""
    if report is None:
        return ""
    if not report.same:
        return "✗ not the same as the original."
    return "✓ same outputs as the original." if report.runs else "✓ the parts, stitched together, are the original."


def checks(report: Verification | None) -> tuple[Check, ...]:
    """What was verified, line by line."""
    if report is None:
        return ()
    structure = "; ".join((structure_words(report), *report.proof.objections[:_MOST_NAMES]))
    return Check("structure", structure, report.proof.holds), Check("numbers", _numbers(report), _good(report))


def structure_words(report: Verification) -> str:
    """What the proof looked at."""
    proof = report.proof
    text = f"{count(proof.nodes, 'node')} found again, {size(proof.weight_bytes)} of large weights compared"
    return f"{text}, {count(proof.replicas, 'replica')}" if proof.replicas else text


def numbers_words(report: Verification) -> str:
    """What running both came to; empty where nothing was run."""
    tensors = [tensor for run in report.runs for tensor in run]
    same = sum(tensor.is_identical for tensor in tensors)
    text = f"{count(len(report.runs), 'run')}, {same} of {count(len(tensors), 'tensor')} bit-identical"
    return text if report.runs else ""


def _numbers(report: Verification) -> str:
    if not report.runs:
        refused = "not run: the model itself refuses the inputs that were made up for it"
        return report.failure or (refused if report.refusal else "not run")
    worst = report.first_difference
    found = "" if worst is None else f"{worst.tensor!r} differs by {worst.max_abs:.3g}, allowed {worst.allowed:.3g}"
    return "; ".join(filter(None, (numbers_words(report), found, report.failure, report.reason)))


def _good(report: Verification) -> bool | None:
    if report.failure or report.first_difference is not None:
        return False
    return True if report.runs else None


# Plans


def wanted(goal: Goal) -> str:
    """A goal in words."""
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


def outcomes(made: Plan) -> Iterable[tuple[str, str]]:
    """How good a plan is, as pairs of what was wanted and what came of it."""
    if made.outcome is None:
        return
    yield made.outcome.objective, "; ".join(_outcome(made.outcome, made.reached))
    if made.unlimited is not None:
        given = {"--pin": made.limits.pins, "--avoid": made.limits.avoid}
        names = " and ".join(name for name, values in given.items() if values)
        yield f"without {names}", quantity(made.unlimited.value, made.unlimited.unit)


def _outcome(outcome: Optimality, reached: float | None) -> Iterable[str]:
    yield quantity(outcome.value, outcome.unit)
    if outcome.is_optimal:
        yield "no other division does better (proven)"
    else:
        side = "at most" if outcome.unit == "tokens/s" else "at least"
        is_share = outcome.unit not in {"parts", "devices"} and outcome.gap != float("inf")
        gap = f", a gap of {outcome.gap:.1%}" if is_share else ""
        yield f"any division needs {side} {quantity(outcome.bound, outcome.unit)}{gap}"
    if reached is not None and abs(reached - outcome.value) > 1e-3 * abs(outcome.value):
        yield f"{quantity(reached, outcome.unit)} once parts recompute"


def quantity(value: float, unit: MetricUnit) -> str:
    """A number in its unit, for a person."""
    match unit:
        case "s":
            return duration(value)
        case "bytes":
            return size(round(value))
        case "parts" | "devices" | "layers":
            return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"
        case "flops":
            return flop(value)
        case "tokens/s":
            rounded = float(f"{value:.3g}")
            return f"{rounded:,.0f} tokens/s" if rounded >= 100 else f"{rounded:g} tokens/s"


def flop(number: float) -> str:
    """Floating-point operations for a person: `386 MFLOP`."""
    return f"{operations(number)}FLOP"


def recomputings(found: Sequence[Recomputed], names: Sequence[str]) -> Iterable[str]:
    """What parts, called `names`, compute instead of receiving it; parts that do the same share a sentence."""
    alike: dict[tuple[object, ...], list[Recomputed]] = {}
    for one in found:
        alike.setdefault((one.nodes, one.tensors, one.saved_bytes, one.cost_s), []).append(one)
    for rows in alike.values():
        one, parts = rows[0], ", ".join(names[row.part] for row in rows)
        yield (
            f"{parts} {'computes' if len(rows) == 1 else 'each compute'} {_first(one.tensors)} instead of receiving "
            f"{size(one.saved_bytes)}: {count(len(one.nodes), 'node')} again, {duration(one.cost_s)}"
        )


def reasonings(reasons: Sequence[Reason], names: Sequence[str]) -> Iterable[str]:
    """Why each cut between parts called `names` is where it is.

    A line with the place, one with the reason, one for each next best place.
    """
    for i, reason in enumerate(reasons):
        others = [
            f"next best after {printable(place.after)}: {_compared(place, reason.chosen)}"
            for place in reason.alternatives
        ]
        why = _why(reason, i, names[reason.bottleneck])
        yield "\n".join((f"cut {i} after {printable(reason.chosen.after)}", why, *others))


def _why(reason: Reason, bar: int, dearest: str) -> str:
    sent = f"{size(reason.chosen.crossing_bytes)} cross here"
    if reason.bottleneck in {bar, bar + 1}:
        return f"{sent}; {dearest} beside it decides the whole: moving the cut would make that worse"
    return f"{sent}; {dearest} decides the whole, and is not touched by this cut"


def _compared(place: CandidateCut, own: CandidateCut) -> str:
    change = f"{place.cost / own.cost - 1:+.1%}" if own.cost > 0 else "the same"
    return f"{change if place.cost != own.cost else 'as good'}, {size(place.crossing_bytes)} cross there"


def plan_notes(made: Plan, model: Model) -> Iterable[str]:
    """What a person should know of a plan's figures."""
    if made.metrics and not isinstance(made.goal, Across):
        device = made.devices[0]
        yield (
            f"times are for a device of {flop(device.flops_per_s)}/s and {operations(device.bytes_per_s)}B/s "
            f"with a link of {operations(device.link_bytes_per_s)}B/s; --cluster FILE takes yours"
        )
        whole_s = sum(figures.run_s for figures in made.metrics)
        if len(made.parts) > 1 and max(figures.busy_s for figures in made.metrics) >= _HARDLY * whole_s:
            yield (
                f"dividing hardly pays here: one device needs {duration(whole_s)} for all of it, and sending takes "
                "longer than what it saves"
            )
    yield from open_sizes(model, made.dims)
    if made.costs is not None and made.costs.uncounted:
        listed = ", ".join(f"{op} ({number})" for op, number in made.costs.uncounted.items())
        yield f"no FLOPs are known for {listed}; they count as 0"
    caches = made.costs.caches if made.costs is not None else find_caches(model)
    yield from divided_states(made.partition.blocks, caches)
    if made.coverage is not None:
        yield "figures of the cost model count as they are, for the sizes that it was made for"
        yield from _coverage(made.coverage)


def divided_states(parts: Sequence[Unit], states: Iterable[StatePair]) -> Iterable[str]:
    """Which states of a decoder a cut separates from what they become."""
    if sent := [f"{state.past} from {state.present}" for state in sent_states(parts, states)]:
        what = "a state is" if len(sent) == 1 else f"{count(len(sent), 'state')} are"
        yield f"{what} sent from part to part at each step, since a cut separates {_first(sent)}"


def open_sizes(model: Model, dims: Iterable[str]) -> Iterable[str]:
    """Which symbols of the model's inputs no number was given for."""
    bound = frozenset(dims)
    if unbound := [symbol for symbol in model.symbols if symbol not in bound]:
        yield f"sizes count {', '.join(unbound)} as 1; bind them with --dim NAME=N"


def _coverage(coverage: Coverage) -> Iterable[str]:
    """What of a cost model matched nothing, and which nodes it does not cover."""
    if coverage.unmatched:
        yield f"{count(len(coverage.unmatched), 'row')} of the cost model matched no node: {_first(coverage.unmatched)}"
    if coverage.uncovered:
        nodes = count(len(coverage.uncovered), "node")
        yield f"the cost model does not cover {nodes}: {_first(coverage.uncovered)}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", and others" if len(names) > _MOST_NAMES else "")
