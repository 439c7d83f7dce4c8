"""Sentences about an analysis, a plan or a cascade. They use Unicode signs; a terminal may have to replace them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Final, Protocol

from ..core.graph import grouped
from ..core.states import StatePair, sent_states
from ..core.text import few, printable
from ..core.units import count, duration, flop, operations, size
from ..core.wiring import Unit
from ..costs.caches import find_caches
from ..costs.device import COUNTING, run_s
from ..costs.device_groups import DeviceGroup
from ..loading.model import Model, Sizes
from ..planning.goals import Across, At, Goal, Heads, Into, Within, counted_by, is_crossings
from ..planning.plans import Plan
from ..planning.results import CandidateCut, Reason
from .scene import Card, Scene, totals_of

_MAX_NAMES: Final = 6
_UNCOUNTED: Final = {"CUDAExecutionProvider": ": 140 to 200 MiB for each part, and 0.8 GiB for a process (one H100)"}
_MARGIN: Final = 0.05  #: a part that leaves less of its memory is named; and weights that are held so much more often.


class Sized(Protocol):
    """Anything with a size that may be a lower bound."""

    @property
    def bytes(self) -> int: ...  # noqa: D102
    @property
    def is_exact(self) -> bool: ...  # noqa: D102


def size_text(amount: Sized, *, least: str = "≥ ") -> str:
    """Its size, such as `4.75 MiB`, or `≥ 4.75 MiB` for a lower bound."""
    return f"{'' if amount.is_exact else least}{size(amount.bytes)}"


def dims_text(dims: Mapping[str, object]) -> str:
    """`batch=1, seq=512`: at most three of them, then how many more there are."""
    return few([f"{name}={number}" for name, number in dims.items()], 3)


# The answer


def answer(scene: Scene) -> str:
    """The number of parts, whether they fit their budgets, and what crosses the boundaries."""
    whole = len(scene.cards) + scene.elsewhere
    here = f"This folder has {len(scene.cards)} of {whole} parts." if scene.elsewhere else _parts(scene.cards)
    return " ".join(filter(None, (here, _boundaries(scene))))


def _parts(cards: Sequence[Card]) -> str:
    if len(cards) == 1:
        return f"One part holds the whole model. It {_needs(cards[0])}."
    has_one_budget = len({card.budget_bytes for card in cards}) == 1
    largest = max(cards, key=lambda card: card.need_bytes / (has_one_budget or card.budget_bytes or float("inf")))
    name = f"{largest.name} on {largest.device}" if largest.device else largest.name
    over = sum(card.is_over for card in cards)
    more = f" {over} parts are over budget." if over > 1 else ""
    which = "largest" if has_one_budget else "part closest to its budget"
    return f"Cut into {len(cards)} parts. The {which}, {name}, {_needs(largest)}.{more}"


def need_text(card: Card, least: str = "≥ ") -> str:
    """Its `need_bytes`."""
    return f"{'' if card.need_exact else least}{size(card.need_bytes)}"


def of_budget(budget_bytes: int | None) -> str:
    """` of 2 GiB`, to stand after a need; empty for no limit."""
    return "" if budget_bytes is None else f" of {size(budget_bytes)}"


def _needs(card: Card) -> str:
    need, is_all = need_text(card, "at least "), card.measure == "needs"
    text = f"needs {need}" if is_all else f"has {need} of {card.measure}"
    if card.budget_bytes is None:
        return text
    of = ", over" if card.is_over else " of" if is_all else ", of"
    return f"{text}{of} its {size(card.budget_bytes)} budget"


def _boundaries(scene: Scene) -> str:
    boundaries = scene.boundaries
    if not boundaries:
        return ""
    if not scene.tensors:
        return "No tensor crosses a boundary."
    if scene.is_ranked:
        met = totals_of(tensor for tensor in scene.tensors if tensor.is_exchange)
        verb = "goes" if met.tensors == 1 else "go"
        return f"In one run {count(met.tensors, 'tensor')} ({size_text(met, least='at least ')}) {verb} between ranks."
    largest = size(max(boundary.bytes for boundary in boundaries))
    is_exact = all(boundary.is_exact for boundary in boundaries)
    if not (is_exact or any(boundary.bytes for boundary in boundaries)):
        text = "The sizes of the boundary tensors are unknown"
    elif len(boundaries) == 1:
        text = f"{largest} crosses the boundary in one run" if is_exact else f"At least {largest} crosses the boundary"
    elif is_exact:
        text = f"At most {largest} crosses a boundary in one run"
    else:
        text = f"At least {largest} crosses the busiest boundary"
    total = totals_of(tensor for tensor in scene.tensors if tensor.is_residual)
    if not total.tensors:
        return f"{text}."
    skipped = "a part" if len(boundaries) <= 2 else "parts"  # of three parts, only one can be skipped
    verb = "skips" if total.tensors == 1 else "skip"
    return f"{text}; {count(total.tensors, 'tensor')} ({size_text(total, least='at least ')}) {verb} over {skipped}."


def cut_points_answer(best: Plan | None, number: int) -> str:
    """The number of cut points, and what a plan makes of the most balanced of the best ones."""
    if best is None:
        return "No cut point: fewer than two nodes depend on an input."
    tensors, least = len(best.partition.wiring.boundary_tensors), "" if best.is_exact else "at least "
    before, after = (f"{duration(part.busy_s)} and {size(part.weight_bytes)} of weights" for part in best.metrics)
    sent = f"{count(tensors, 'tensor')} ({least}{size(best.boundary_bytes[0])})"
    crosses = f"{sent} {'crosses' if tensors == 1 else 'cross'} there, with {before} before it and {after} after it"
    for one in best.recomputed:  # at most the second part's
        crosses += f", which recomputes {count(len(one.nodes), 'node')} instead of receiving {size(one.saved_bytes)}"
    return f"{count(number, 'cut point')}. The most balanced one is after {best.cuts[0]}: {crosses}."


# Plans


def goal_text(goal: Goal) -> str:
    """A goal in words."""
    match goal:
        case At():
            return "cut at the given nodes"
        case Into():
            return f"into {goal.parts}, by {goal.by}"
        case Within():
            more = f", counting {', '.join(goal.counting)}" if goal.counting else ""
            number = "" if goal.most_parts is None else f"in at most {count(goal.most_parts, 'part')}, "
            return f"{number}at most {size(goal.memory_bytes)} per part{more}"
        case Across():
            several = ", several parts on each if that is faster" if goal.interleave else ""
            return f"across {count(len(goal.cluster.devices), 'device')}, for {goal.objective}{several}"
        case Heads():
            return "a trunk and one part per output head"


def outcomes(plan: Plan) -> Iterable[tuple[str, str]]:
    """How good a plan is: pairs of an objective and what was reached."""
    if plan.outcome is None:
        return
    yield plan.outcome.objective, "; ".join(plan.outcome.said)
    if plan.inside_layers is not None:
        yield "with cuts inside layers", plan.inside_layers.said[0]
    if plan.unlimited is not None:
        given = {"pins": plan.limits.pins, "nodes to avoid": plan.limits.avoid}
        names = " and ".join(name for name, values in given.items() if values)
        yield f"without {names}", plan.unlimited.said[0]
    for i, one in enumerate(plan.modes):
        in_layers = f", {one.exchanges_per_layer} a layer" * bool(one.exchanges_per_layer)
        exchanges = f"{count(one.exchanges, 'exchange')}{in_layers}, {size(one.received_bytes)} to a rank"
        yield f"{one.mode}{' (as planned)' if i == 0 else ''}", f"{exchanges}, {duration(one.latency_s)} for a request"


def recomputations(plan: Plan, names: Sequence[str]) -> Iterable[str]:
    """What the parts, called `names`, recompute; parts that recompute the same tensors share a sentence."""
    found = (((one.nodes, one.tensors, one.saved_bytes, one.cost_s), names[one.part]) for one in plan.recomputed)
    for (nodes, tensors, saved_bytes, cost_s), parts in grouped(found).items():
        what = f"{', '.join(parts)} {'recomputes' if len(parts) == 1 else 'each recompute'} {few(tensors, _MAX_NAMES)}"
        yield f"{what} instead of receiving {size(saved_bytes)}: {count(len(nodes), 'node')}, {duration(cost_s)}"


def cut_reasons(reasons: Sequence[Reason], names: Sequence[str]) -> Iterable[str]:
    """Why each cut between the parts called `names` is where it is.

    The first line of a text names the cut, the second gives the reason, and one line follows for each alternative.
    """
    for i, reason in enumerate(reasons):
        chosen = reason.chosen
        is_best = all(other.cost >= chosen.cost for other in reason.alternatives)
        affects = f"moving this cut {'does not help' if is_best else 'helps'}"
        affects = affects if not is_best or reason.bottleneck in {i, i + 1} else "this cut does not affect it"
        alternatives = (f"next best after {printable(o.after)}: {_compared(o, chosen)}" for o in reason.alternatives)
        why = f"{size(chosen.boundary_bytes)} cross here; {names[reason.bottleneck]} is the bottleneck; {affects}"
        yield "\n".join((f"cut {i} after {printable(chosen.after)}", why, *alternatives))


def _compared(other: CandidateCut, chosen: CandidateCut) -> str:
    change = f"{100 * (other.cost / chosen.cost - 1):+.1f} %" if chosen.cost > 0 else "worse"
    # Times that differ by less differ only in the order of additions.
    change = "equally good" if isclose(other.cost, chosen.cost, rel_tol=1e-9) else change
    return f"{change}, {size(other.boundary_bytes)} cross there"


def plan_notes(plan: Plan, model: Model) -> Iterable[str]:
    """What a reader should know about the numbers of a plan: first what makes them incomplete."""
    costs = plan.costs
    yield from unknown_sizes(model, costs.sizes, plan.dims) if costs is not None else ()
    yield from unbound_sizes(model, plan.dims)
    yield from uncounted_operators(costs.uncounted) if costs is not None else ()
    if plan.metrics and not isinstance(plan.goal, Across):
        yield from assumed_device(plan)
        whole_s = sum(metrics.run_s for metrics in plan.metrics)
        slowest_s = max(metrics.busy_s for metrics in plan.metrics)
        if len(plan.parts) > 1 and slowest_s >= 0.95 * whole_s:
            takes = f"the slowest part takes {duration(slowest_s)}, transfers included"
            yield f"splitting brings little here: {takes}; one device takes {duration(whole_s)} for the whole model"
    yield from assumed_sizes(plan.dims, (plan.model or model).dims)
    yield from _shared_devices(plan)
    yield from _shares_by_rules(plan)
    yield from _groups(plan)
    yield from _repeated_runs(plan, model)
    yield from _memory_notes(plan)
    if plan.metrics and isinstance(plan.goal, Across):
        inputs, outputs = (sum(getattr(m, name) for m in plan.metrics) for name in ("input_bytes", "output_bytes"))
        driver = printable(plan.goal.cluster.driver.name)
        yield spread(is_measured=plan.is_measured)
        yield f"a request gets {size(inputs)} of inputs from {driver} and returns {size(outputs)} of outputs"
    yield from separated_states(plan.partition.blocks, costs.caches if costs is not None else find_caches(model))
    if plan.coverage is not None:
        yield "the values of the cost model are used as given, for the sizes it was made for"
        if unmatched := plan.coverage.unmatched:
            yield f"{count(len(unmatched), 'row')} of the cost model matched no node: {few(unmatched, _MAX_NAMES)}"
        if uncovered := plan.coverage.uncovered:
            yield f"the cost model does not cover {count(len(uncovered), 'node')}: {few(uncovered, _MAX_NAMES)}"


def _repeated_runs(plan: Plan, model: Model) -> Iterable[str]:
    """Which parts have nodes of several phases: what could run once in them runs at each step."""
    if mixed := [f"p{i}" for i, part in enumerate(plan.parts) if len({*map(model.phases.get, part)}) > 1]:
        yield f"all of {few(mixed, _MAX_NAMES)} runs at each step, also what could run once: allow more parts"


def _memory_notes(plan: Plan) -> Iterable[str]:
    """What memory does not count, which parts leave little, and which weights are held several times."""
    for provider in dict.fromkeys(device.provider for device in plan.devices if device.widened is None):
        yield f"what {printable(provider)} takes besides tensors is not counted{_UNCOUNTED.get(provider, '')}"
    tight = [f"p{part}" for part, share in enumerate(plan.budget_shares) if share > 1 - _MARGIN]
    if tight and {*counted_by(plan.goal)} == {*COUNTING}:
        verb = "leaves" if len(tight) == 1 else "leave"
        less = f"less than {100 * _MARGIN:.0f} % of the memory"
        yield f"{few(tight, _MAX_NAMES)} {verb} {less} for what a plan does not count"
    weights, held = plan.graph.weights, Counter(name for block in plan.partition.blocks for name in block.weights)
    once = sum(weights[name].bytes for name in held)
    all_bytes = sum(weights[name].bytes * number for name, number in held.items())
    if all_bytes > once * (1 + _MARGIN):
        repeated = sum(weights[name].bytes for name, number in held.items() if number > 1)
        total = f"{size(all_bytes)} in all, not {size(once)}"
        yield f"{size(repeated)} of weights are in several parts, which use them: {total}"


def assumed_device(plan: Plan) -> Iterable[str]:
    """What times of a plan without a cluster are for, and how far off they may be."""
    device = plan.hosts[0]
    rates = f"{flop(device.flops_per_s)}/s, {operations(device.bytes_per_s)}B/s of memory bandwidth"
    links = f"links of {operations(device.link_bytes_per_s)}B/s"
    off = spread(is_measured=plan.is_measured)
    yield f"{off}, for devices with {rates} and {links}; describe yours with `Across`"


def spread(*, is_measured: bool = False) -> str:
    """How far off times are: the most by which the share of a part differed where it was measured."""
    most = "19 % off at most where measured on a quiet machine" if is_measured else "58 % off at most where measured"
    return f"times are estimates (shares {most})"


def _groups(plan: Plan) -> Iterable[str]:
    """Which parts are divided among devices."""
    for part, group in enumerate(plan.devices):
        if isinstance(group, DeviceGroup):
            names = ", ".join(f"{printable(rank.device.name)} ({rank.share})" for rank in group.ranks)
            yield f"the layers of p{part} are divided among {names}, in these shares"
            yield from _slower(plan, part, group)
    goal = plan.goal
    if plan.has_groups and isinstance(goal, Across) and goal.ranks is None and goal.objective != "latency":
        yield "layers are divided since no other plan that was found fits these devices; see `ranks`"


def _slower(plan: Plan, part: int, group: DeviceGroup) -> Iterable[str]:
    """Whether a request takes longer on the ranks of a part than on one of them, if that had the memory."""
    if plan.costs is None or not plan.metrics or plan.table is not None:
        return
    own, devices = [plan.graph.flow_index[node] for node in plan.parts[part]], [rank.device for rank in group.ranks]
    times = [(sum(map(run_s(plan.costs, device).__getitem__, own)), device) for device in devices]
    alone_s, fastest = min(times, key=lambda time: time[0])
    if alone_s < (took_s := plan.metrics[part].run_s):
        what = f"dividing the layers of p{part} slows a request: {duration(took_s)}, exchanges included"
        yield f"{what}; {printable(fastest.name)} alone would take {duration(alone_s)}, if it had the memory"


def _shared_devices(plan: Plan) -> Iterable[str]:
    """Which devices have several parts, and how long they compute."""
    devices = enumerate(plan.devices if isinstance(plan.goal, Across) else ())
    for name, parts in grouped((device.name, part) for part, device in devices).items():
        if len(parts) > 1:
            listed, run_s = ", ".join(f"p{part}" for part in parts), sum(plan.metrics[part].run_s for part in parts)
            yield f"{printable(name)} has {listed}, and computes for {duration(run_s)} of each request"


def _shares_by_rules(plan: Plan) -> Iterable[str]:
    """How much of the model runs on each device with rules, and what the compiler of one does not do."""
    whole = sum(metrics.flops for metrics in plan.metrics) or 1
    devices = plan.goal.cluster.devices if isinstance(plan.goal, Across) else ()
    for device in dict.fromkeys(device for device in (*plan.devices, *devices) if device.rules is not None):
        own = [i for i, other in enumerate(plan.devices) if other == device]
        share = sum(plan.metrics[i].flops for i in own) / whole if plan.metrics else 0.0
        yield f"{printable(device.name)} runs {share:.1%} of the FLOPs, in {count(len(own), 'part')}"
    for name, rules in ((device.name, device.rules) for device in devices if device.rules and device.compiles):
        for one in rules.refused:
            what = "begins a part at" if one.kind == "whole" and is_crossings(plan.goal) else "does not take"
            yield f"{printable(name)} {what} {few(one.nodes, _MAX_NAMES)}: {printable(one.why)}"


def uncounted_operators(uncounted: Mapping[str, int]) -> Iterable[str]:
    """Which operators have no known FLOPs."""
    if uncounted:
        listed = ", ".join(f"{op} ({number})" for op, number in uncounted.items())
        yield f"operators without known FLOPs count as 0: {listed}"


def separated_states(parts: Sequence[Unit], states: Iterable[StatePair]) -> Iterable[str]:
    """Which states of a decoder are sent between parts, because a cut separates the input from its next value."""
    if sent := [f"{state.past} from {state.present}" for state in sent_states(parts, states)]:
        what = "1 state is" if len(sent) == 1 else f"{count(len(sent), 'state')} are"
        yield f"{what} sent between parts at every step, because a cut separates {few(sent, _MAX_NAMES)}"


def assumed_sizes(dims: Mapping[str, int], given: Mapping[str, int], how: str = "set others") -> Iterable[str]:
    """Which dimensions have a number that nobody gave: that of a decoder's profile, and what follows from others."""
    if assumed := {name: number for name, number in dims.items() if name not in given}:
        yield f"sizes assume {dims_text(assumed)}; {how} with `dims`"


def unbound_sizes(model: Model, dims: Iterable[str]) -> Iterable[str]:
    """Which dimensions of the model's inputs have no number."""
    if unbound := [symbol for symbol in model.symbols if symbol not in {*dims}]:
        yield f"sizes count {few(unbound, _MAX_NAMES)} as 1; set them with `dims`"


def unknown_sizes(model: Model, sizes: Sizes, dims: Iterable[str]) -> Iterable[str]:
    """How many tensors have no size, what that means for the numbers, and what would make it known."""
    if not sizes.unknown:
        return
    names = [symbol for symbol in model.symbols if symbol not in {*dims}] or sizes.open_dims
    how = f"set {few(names, _MAX_NAMES)} with `dims`" if names else "set their shapes in the model's value_info"
    verb = "has" if len(sizes.unknown) == 1 else "have"
    what = f"{len(sizes.unknown):,} of {count(len(model.tensors), 'tensor')} {verb} no size, such as {sizes.unknown[0]}"
    yield f"{what}: times, FLOPs and sizes that count them are lower bounds; {how}"
