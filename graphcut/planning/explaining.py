"""Why each cut of a plan is where it is, what the next best places would cost, and which other times can be had."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as changed

from ..core.errors import GraphcutError
from .by_goal.cluster_mapping import NOTABLE
from .finishing import TOLERANCE, Finisher
from .goals import Across, At, Into, Within
from .plans import Plan, check_limits, same_parts
from .results import CandidateCut, FrontPlan, Reason

_MOST_ALTERNATIVES: Final = 2
_DIGITS: Final = 6  #: times that agree in so many differ only in rounding.


def explained(
    finisher: Finisher, made: Plan, searched: Sequence[float], rows: Sequence[Sequence[CandidateCut]]
) -> tuple[Reason, ...]:
    """One reason for each cut; `rows` are the `places` of each, `searched` what the search counts for each part.

    An alternative is priced as it would be carried out: all cuts of the plan are named, this one elsewhere, and the
    parts are finished; within the budgets of the plan, if it has some.
    """
    chosen = [row[0].after for row in rows]
    load: Sequence[float] = made.expense if any(made.expense) else [part.received_bytes for part in made.metrics]
    load = searched if isinstance(made.goal, Into) and made.goal.by == "layers" else load
    found = []
    for cut, (here, *others) in enumerate(rows):
        moved = (one for other in others for one in _moved(finisher, made, chosen, cut, other))
        best = sorted(moved, key=lambda one: one.cost)
        own = changed(here, cost=_cost(made, here.cost), boundary_bytes=made.boundary_bytes[cut])
        found.append(Reason(own, load.index(max(load)), tuple(best[:_MOST_ALTERNATIVES])))
    return tuple(found)


def _moved(
    finisher: Finisher, made: Plan, chosen: Sequence[str], cut: int, other: CandidateCut
) -> Iterator[CandidateCut]:
    """The plan `made` with one of its cuts elsewhere; nothing if it does not keep its limits."""
    names = (*chosen[:cut], other.after, *chosen[cut + 1 :])
    nodes = [finisher.graph.node_index[name] for name in names]
    if nodes != sorted({*nodes}):  # then names mean another order of the cuts
        return
    with suppress(GraphcutError):
        goal = At(names)
        own = finisher if isinstance(made.goal, Across | Within) else replace(finisher, goal=goal)
        plan = same_parts(own.at(goal, made.devices), goal=made.goal, devices=made.devices)
        check_limits(plan)
        if max(plan.budget_shares) <= 1:
            yield CandidateCut(other.after, _cost(plan, other.cost), plan.boundary_bytes[cut])


def _cost(made: Plan, searched: float) -> float:
    """See `CandidateCut.cost`; `searched` is what the search counts, for a goal that no recomputing changes."""
    match made.goal:
        case Within():
            return float(made.received_bytes)
        case Across(objective="devices") if made.times is not None:
            return made.times.latency_s
        case _:
            return made.minimized(searched)


def front_of(best: Plan, made: Sequence[Plan]) -> tuple[FrontPlan, ...]:
    """The Pareto front of the times of those that fit their devices, the best one among them; none without others."""
    found, plans = list[FrontPlan](), (best, *made) if made else ()
    timed = [(one.times, one) for one in plans if one.times is not None and max(one.budget_shares) <= 1]
    for times, one in sorted(timed, key=lambda row: (float(f"{row[0].period_s:.{_DIGITS}}"), row[0].latency_s)):
        gain = TOLERANCE if one is best else NOTABLE
        if not found or times.latency_s < found[-1].latency_s * (1 - gain):
            after = tuple(one.graph.nodes[max(block.nodes)].name for block in one.partition.blocks[:-1])
            devices = tuple(device.name for device in one.devices)
            found.append(FrontPlan(times.period_s, times.latency_s, after, devices))
    return tuple(found)
