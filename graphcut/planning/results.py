"""What a planner returns: parts and devices, the value that was reached, a bound of what is possible, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Final, Literal

import msgspec
import numpy as np

from ..core.records import table
from ..core.units import duration, flop, size
from ..costs.device import Device
from ..solving.chain_dp import COMBINED, Aggregation, ChainPartition
from ..solving.cost_tables import allowed_by
from ..solving.instance import Floats
from ..solving.milp import MilpObjective
from ..solving.relaxed_tables import LowerBounds
from ..solving.search import SearchResult
from .problem import PlanningProblem

_TOLERANCE: Final = 1e-6
"""A value that exceeds its bound by this share is equal to it: the tolerance of the exact solver."""

_MOST_TRIED: Final = 4
_MANY_CUTS: Final = 5  #: of more cuts half as many other places are tried.

MetricUnit = Literal["s", "bytes", "parts", "devices", "layers", "flops", "tokens/s", "crossings"]

OBJECTIVES: Final = table("planning/objectives.toml", dict[str, dict[str, tuple[str, MetricUnit, MilpObjective]]])
"""For `Into` and `Across` what is minimized: in words, its unit, and what the exact solver minimizes."""


def quantity(value: float, unit: MetricUnit) -> str:
    """A number with its unit."""
    match unit:
        case "s":
            return duration(value)
        case "bytes":
            return size(round(value))
        case "parts" | "devices" | "layers" | "crossings":
            return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"
        case "flops":
            return flop(value)
        case "tokens/s":
            rounded = float(f"{value:.3g}")
            return f"{rounded:,.0f} tokens/s" if rounded >= 100 else f"{rounded:g} tokens/s"


class Optimality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a plan is, by its objective."""

    objective: str  #: what was minimized (or, for tokens a second, maximized), in words.
    value: float  #: what was reached.
    #: a proven bound: no plan has a better value. None where nothing is proven, since sizes are unknown.
    bound: float | None
    unit: MetricUnit  #: of both.
    is_optimal: bool  #: it is proven that no plan has a better value than this one.
    keeps_layers: bool = False  #: the bound is one of plans that do not cut the layers that the model repeats.

    def __str__(self) -> str:
        return f"{self.objective}: {', '.join(self.said)}"

    @property
    def said(self) -> tuple[str, str]:
        """The value, and what is proven of it, with the gap where that says more than the bound."""
        value = quantity(self.value, self.unit)
        if self.is_optimal:
            return value, f"optimal (proven){', layers kept whole' * self.keeps_layers}"
        if self.bound is None or (not self.bound and self.unit != "bytes"):
            return value, "nothing is proven"
        side = "upper" if self.unit == "tokens/s" else "lower"
        has_gap = self.unit not in {"parts", "devices", "crossings"} and self.gap != inf
        gap = f", gap {100 * self.gap:.1f} %" if has_gap else ""
        return value, f"{side} bound {quantity(self.bound, self.unit)}{gap}"

    @property
    def gap(self) -> float:
        """The optimality gap: 0 for optimal, 0.02 if the value is at most 2 % worse than the best possible."""
        if self.is_optimal:
            return 0.0
        worse, better = (self.bound, self.value) if self.unit == "tokens/s" else (self.value, self.bound)
        return max(worse / better - 1, 0.0) if worse is not None and better else inf


class FrontPlan(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A plan of the Pareto front."""

    period_s: float  #: seconds between two requests,
    latency_s: float  #: and of one request.
    after: tuple[str, ...] = ()  #: the last node before each cut, in an order in which all nodes can run.
    devices: tuple[str, ...] = ()  #: the device of each part.


@dataclass(frozen=True)
class Solution:
    """The result of a planner."""

    found: SearchResult  #: the groups of each part.
    devices: tuple[Device, ...]  #: the device of each part.
    objective: str  #: what is minimized (or, for tokens a second, maximized), in words.
    unit: MetricUnit  #: of the objective.
    bounds: LowerBounds  #: what is known of all plans.
    #: for each part the table, over the boundaries it was found on, of what a part costs its device; empty if a device
    #: may have several parts.
    costs: tuple[Floats, ...]
    aggregation: Aggregation  #: whether the objective is the sum or the maximum of the parts' costs.
    #: finds, for a cluster, others whose first values are the times of a `FrontPlan`: as searched, none is as good as
    #: another in both. Only the best solution is asked.
    find_front: Callable[[], Iterable[Solution]] = tuple
    busy_s: tuple[float, ...] = ()  #: for a cluster, seconds that each part keeps its device busy.
    #: for a value that a plan has: a lower bound, up to this value, of all plans whatever nodes their parts repeat, and
    #: boundaries between which a plan may be near it; None where `bounds` are such bounds.
    bound_with_repeats: Callable[[float], tuple[float, list[tuple[int, ...]]]] | None = None
    #: parts that may reach the lower bound, if each of them computes or receives the right replicable values.
    relaxed: Solution | None = None
    tokens: int = 1  #: of a step, for tokens a second.

    @property
    def value(self) -> float:
        """What is minimized; for tokens a second the seconds of a step."""
        return self.found.chain.values[0]

    @property
    def bound(self) -> float:
        """A lower bound of the value of any plan."""
        is_reached = self.found.is_optimal or self.value <= self.bounds.of_all * (1 + _TOLERANCE)
        return self.value if is_reached else self.bounds.of_all

    def between(self, boundaries: tuple[int, ...]) -> Solution:
        """The parts between other boundaries, on the same device; nothing is known of them but the simple bound."""
        parts = len(boundaries) - 1
        chain = ChainPartition(boundaries, (0,) * parts, (self.value,), is_best=False)
        found, bounds = replace(self.found, chain=chain), LowerBounds(*[self.bounds.simple] * 3)
        devices, costs = self.devices[:1] * parts, self.costs[:1] * parts
        return replace(self, found=found, devices=devices, bounds=bounds, costs=costs, relaxed=None)

    def costs_of_cut(self, cut: int) -> Floats:
        """For each boundary what is minimized if this cut is there, from the tables of the parts on both sides."""
        before, _, after = self.found.chain.boundaries[cut : cut + 3]
        combine = COMBINED[self.aggregation]
        total = combine(self.costs[cut][:, before], self.costs[cut + 1][after, :])
        rest = np.delete(self.part_costs, [cut, cut + 1])
        return np.asarray(combine(total, combine.reduce(rest)) if len(rest) else total)

    def with_one_cut_elsewhere(self, most: int, pins: Mapping[int, int]) -> Iterator[Solution]:
        """The parts with one cut at another boundary, for each cut the cheapest by the tables; first the parts.

        Groups that are pinned stay in their parts.
        """
        boundaries, allowed = self.found.chain.boundaries, allowed_by(self.found.tables, pins)
        yield self.between(boundaries)
        for cut in range(len(boundaries) - 2):
            costs = self.costs_of_cut(cut)
            costs = costs if allowed is None else np.where(allowed(cut + 1), costs, inf)
            for other in np.argsort(costs, kind="stable")[:most].tolist():
                if costs[other] < np.inf and other != boundaries[cut + 1]:
                    yield self.between((*boundaries[: cut + 1], other, *boundaries[cut + 2 :]))

    def with_one_cut_more(self, most: int) -> Iterator[Solution]:
        """The parts, one of them cut in two: each at so many of its boundaries, at equal distances."""
        boundaries, costs = self.found.chain.boundaries, self.costs[0]
        for i, j in pairwise(boundaries):
            inside = [k for k in np.flatnonzero(np.isfinite(costs[:, i] + costs[j])).tolist() if k not in {i, j}]
            step = len(inside) // most + 1
            for k in inside[step // 2 :: step]:
                yield self.between(tuple(sorted((*boundaries, k))))

    @property
    def outcome(self) -> Optimality:
        return optimality_of(self, self.value, self.bound)

    @property
    def part_costs(self) -> list[float]:
        """What the search counts for each part; empty if a device may have several parts."""
        if not self.costs:
            return []
        boundaries = pairwise(self.found.chain.boundaries)
        return [float(table[j, i]) for table, (i, j) in zip(self.costs, boundaries, strict=True)]


def optimality_of(solution: Solution, value: float, lower_bound: float) -> Optimality:
    """The optimality of a value that was minimized as in `solution`, optimal if it equals the lower bound.

    For tokens a second the value is the time of a step.
    """
    objective, unit, tokens = solution.objective, solution.unit, solution.tokens
    is_optimal = value <= lower_bound * (1 + _TOLERANCE)
    bound = value if is_optimal else lower_bound
    if unit != "tokens/s":
        return Optimality(objective, value, bound, unit, is_optimal)
    return Optimality(objective, tokens / value if value else inf, tokens / bound if bound else None, unit, is_optimal)


class CandidateCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cut, all other cuts of the plan left where they are."""

    after: str  #: the last node before it.
    #: the objective with this cut, in the unit of the outcome; but for parts within a budget it is bytes received, for
    #: the fewest devices seconds of one request, and for tokens seconds of one.
    cost: float
    # Plan files of before have it by this name.
    boundary_bytes: int = msgspec.field(name="crossing_bytes")  #: bytes that cross, each tensor once.


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The explanation of one cut: what finished parts take, here and where the cut is named elsewhere."""

    chosen: CandidateCut  #: the cut of the plan.
    bottleneck: int  #: the part with the greatest cost.
    alternatives: tuple[CandidateCut, ...]  #: the next best cuts, the best first.


def places(solution: Solution, problem: PlanningProblem) -> tuple[tuple[CandidateCut, ...], ...]:
    """For each cut where it is, and where it would be best else, at what the search counts; the best first.

    The nodes before a place are those that the search puts there. None for an interleaved plan, where a cut changes
    more than two parts.
    """
    return tuple(_places(solution, problem, cut) for cut in range(len(solution.part_costs) - 1))


def _places(solution: Solution, problem: PlanningProblem, cut: int) -> tuple[CandidateCut, ...]:
    tables, here, total = solution.found.tables, solution.found.chain.boundaries[cut + 1], solution.costs_of_cut(cut)

    def candidate(boundary: int) -> CandidateCut:
        node = problem.groups[tables.groups_between(0, boundary)[-1]][-1]
        return CandidateCut(problem.graph.nodes[node].name, float(total[boundary]), int(tables.sent[boundary, 0]))

    most = _MOST_TRIED if len(solution.part_costs) <= _MANY_CUTS else _MOST_TRIED // 2
    ascending = [int(i) for i in np.argsort(total, kind="stable") if np.isfinite(total[i]) and i != here]
    by_node = {one.after: one for one in map(candidate, (here, *ascending[: 2 * most]))}
    return tuple(by_node.values())[: 1 + most]
