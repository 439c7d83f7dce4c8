"""Across a cluster: which part runs on which device, for the objective that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np

from ...core.errors import PlanError, UsageError
from ...core.units import count, size
from ...costs.device import Device
from ..goals import Across, Counted, Objective
from ..instance import Floats, Workload
from ..problem import PlanningProblem
from ..results import MetricUnit, Optimality, Solution, optimality_of
from ..solver.boundaries import BoundaryTables
from ..solver.chain_dp import Aggregation, ChainPartition, Criterion, chain_dp_table
from ..solver.cost_tables import DeviceClass, allowed_by, busy_s, device_classes, fits_in, received_bytes, time_quantum
from ..solver.milp import MilpProblem, Sense
from ..solver.optimality import prove
from ..solver.search import SearchResult, search
from .direct_links import settle

COUNTING: Final[tuple[Counted, ...]] = ("activations", "inputs", "cache")
"""A device holds all that its part takes while it runs."""

_SENSES: Final[dict[Objective, Sense]] = {
    "throughput": "period",
    "latency": "latency",
    "decode": "token",
    "bytes": "received",
    "devices": "parts",
}
_FRONT: Final = 8
_NOTABLE: Final = 0.005
"""A plan of the front is faster by this share than the one before it."""

_MOST_STATES: Final = 20_000


def plan_across(
    task: PlanningProblem, goal: Across, seconds: Callable[[Device], Sequence[float]], *, prove_s: float = 0.0
) -> Solution:
    """The best plan for the cluster of `goal`. A device runs one part, or none.

    Args:
        task: what is planned.
        goal: the cluster and the objective.
        seconds: what it takes on a device for each flowing node.
        prove_s: how long the exact solver may take.

    Raises:
        UsageError: there is no such number of sequences in flight.
        PlanError: the model does not fit the devices.
    """
    number = len(goal.cluster.devices)
    if stranger := next((part for part in task.pins.values() if part >= number), None):
        raise UsageError(f"there is no part {stranger}", hint=f"parts are counted from 0, up to {number - 1}")
    if goal.in_flight < 1:
        raise UsageError(f"{goal.in_flight} sequences can't be in flight", hint="use --in-flight 1 or more")
    kinds = device_classes(goal.cluster)
    load = task.load([seconds(kind.devices[0]) for kind in kinds], COUNTING)
    counts = tuple(len(kind.devices) for kind in kinds)
    ranking = Ranking(goal, load, kinds, counts, time_quantum(load, kinds), task.pins)
    if ranking.states > _MOST_STATES:
        raise PlanError(
            f"{sum(counts)} devices of {len(kinds)} kinds are too many to plan one by one",
            hint="give devices that are alike the same figures: they then count as one kind",
        )
    bound = ranking.bound()
    found = search(load, ranking.judge, states=ranking.states, marked=task.pins, good_enough=bound)
    if found is None:
        raise _impossible(task, load, kinds)
    question = MilpProblem(load, kinds, counts, _SENSES[goal.objective], goal.in_flight, task.pins)
    found, bound = prove(found, bound, question, ranking.judge, time_limit_s=prove_s)
    devices = _named(kinds, found.kinds)
    costs, joined = ranking.costs(found)
    choice = Solution(found, devices, _outcome(goal, found, bound), costs, joined, tuple(ranking.front(found.ladder)))
    return settle(choice, load, kinds, goal) if goal.cluster.links else choice


@dataclass(frozen=True)
class Ranking:
    """How climbs are ranked for an objective."""

    goal: Across
    load: Workload
    kinds: tuple[DeviceClass, ...]
    counts: tuple[int, ...]
    grain: float
    pins: Mapping[int, int]

    @property
    def states(self) -> int:
        """How many steps the dynamic program takes on a ladder."""
        return prod(number + 1 for number in self.counts) * len(self.kinds)

    def judge(self, ladder: BoundaryTables) -> ChainPartition | None:
        """The best climb of a ladder."""
        busy = self._busy(ladder)
        received = [np.where(np.isfinite(seconds), received_bytes(ladder), np.inf) for seconds in busy]
        match self.goal.objective:
            case "throughput":
                return self._shortest_period(ladder, busy)
            case "latency":
                return self._best(ladder, [Criterion(busy, "sum"), Criterion(received, "sum")])
            case "decode":
                return self._most_tokens(ladder, busy)
            case "bytes":
                return self._best(ladder, [Criterion(received, "sum"), Criterion(busy, "max")])
            case "devices":
                climb = self._best(ladder, [Criterion(busy, "sum")], enough=True)
                return climb and ChainPartition(climb.rungs, climb.kinds, (float(len(climb.kinds)), *climb.ranks))

    def front(self, ladder: BoundaryTables) -> Iterator[tuple[float, float]]:
        """Seconds between requests, and of one request, of plans none of which is as good as another in both."""
        busy = self._busy(ladder)
        first = self._best(ladder, [Criterion(busy, "max")])
        last = self._best(ladder, [Criterion(busy, "sum")])
        if first is None or last is None:
            return
        period = first.ranks[0]
        longest = _period(last, busy)
        steps = np.linspace(period, longest, _FRONT) if longest > period else [period]
        latency = np.inf
        for limit in steps:
            climb = self._best(ladder, [Criterion(_at_most(busy, float(limit)), "sum")])
            if climb is not None and climb.ranks[0] < latency * (1 - _NOTABLE):
                latency = climb.ranks[0]
                yield _period(climb, busy), latency

    def costs(self, found: SearchResult) -> tuple[tuple[Floats, ...], Aggregation]:
        """For each part the table of what the objective counts, and how that is joined."""
        if self.goal.objective == "bytes":
            return (received_bytes(found.ladder),) * len(found.kinds), "sum"
        busy = self._busy(found.ladder)
        joined: Aggregation = "max" if self.goal.objective in {"throughput", "decode"} else "sum"
        return tuple(busy[kind] for kind in found.kinds), joined

    def bound(self) -> float:
        """No plan's first rank is lower."""
        work = self.load.work
        fastest = np.where(np.isfinite(work), work, np.inf).min(axis=0)
        match self.goal.objective:
            case "throughput":
                return max(float(fastest.max(initial=0.0)), self._shared_out(work))
            case "latency":
                return float(fastest.sum())
            case "decode":
                period = max(float(fastest.max(initial=0.0)), self._shared_out(work))
                return max(period, float(fastest.sum()) / self.goal.in_flight)
            case "bytes":
                return 0.0
            case "devices":
                return float(self._fewest())

    def _shared_out(self, work: Floats) -> float:
        """The least period if groups could be divided at will, or less.

        For any weights of the devices that add up to 1, no period is shorter than the sum over the groups of the least
        weighted time (duality of linear programs).
        """
        known = np.isfinite(work).all(axis=1)
        totals = work[known].sum(axis=1)
        counts = np.array(self.counts)[known]
        if not known.all() or not (totals > 0).all():
            return 0.0
        speeds = 1 / totals
        weights = speeds / (speeds * counts).sum()
        return float((weights[:, None] * work).min(axis=0).sum())

    def _fewest(self) -> int:
        room = sorted((kind.memory_bytes for kind in self.kinds for _ in kind.devices), reverse=True)
        needed = float(self.load.held.sum() + self.load.shared.sum())
        for number in range(1, len(room)):
            if sum(room[:number]) - number * self.load.part_bytes >= needed:
                return number
        return len(room)

    def _busy(self, ladder: BoundaryTables) -> list[Floats]:
        fits = fits_in(ladder, COUNTING, [kind.memory_bytes for kind in self.kinds])
        return [
            np.where(fits[number], busy_s(ladder, number, kind, self.grain), np.inf)
            for number, kind in enumerate(self.kinds)
        ]

    def _best(
        self, ladder: BoundaryTables, terms: Sequence[Criterion], *, enough: bool = False
    ) -> ChainPartition | None:
        return chain_dp_table(terms, self.counts, allowed=allowed_by(ladder, self.pins), enough=enough).best()

    def _shortest_period(self, ladder: BoundaryTables, busy: list[Floats]) -> ChainPartition | None:
        first = self._best(ladder, [Criterion(busy, "max")])
        if first is None:
            return None
        climb = self._best(ladder, [Criterion(_at_most(busy, first.ranks[0]), "sum")])
        return climb and ChainPartition(climb.rungs, climb.kinds, (first.ranks[0], *climb.ranks))

    def _most_tokens(self, ladder: BoundaryTables, busy: list[Floats]) -> ChainPartition | None:
        """With m sequences in flight a token takes max(latency / m, period): the latency falls as the period may grow.

        So the best is where they meet, or just before; found by halving among all periods there can be.
        """
        first = self._best(ladder, [Criterion(busy, "max")])
        if first is None:
            return None
        periods = np.unique(np.concatenate([seconds[np.isfinite(seconds)] for seconds in busy]))
        periods = periods[periods >= first.ranks[0]]
        tried: list[ChainPartition] = []

        def seconds_a_token(index: int) -> tuple[float, float]:
            climb = self._best(ladder, [Criterion(_at_most(busy, float(periods[index])), "sum")])
            if climb is None:  # there is one: the periods begin with one that can be kept
                return np.inf, np.inf
            share, period = climb.ranks[0] / self.goal.in_flight, _period(climb, busy)
            tried.append(ChainPartition(climb.rungs, climb.kinds, (max(share, period), *climb.ranks)))
            return share, float(periods[index])

        low, high = 0, len(periods) - 1
        seconds_a_token(low)
        while low <= high:
            middle = (low + high) // 2
            share, period = seconds_a_token(middle)
            low, high = (low, middle - 1) if share <= period else (middle + 1, high)
        return min(tried, key=lambda climb: climb.ranks)


def _at_most(busy: Sequence[Floats], period: float) -> list[Floats]:
    return [np.where(seconds <= period, seconds, np.inf) for seconds in busy]


def _period(climb: ChainPartition, busy: Sequence[Floats]) -> float:
    steps = zip(pairwise(climb.rungs), climb.kinds, strict=True)
    return max(float(busy[kind][high, low]) for (low, high), kind in steps)


def _named(kinds: Sequence[DeviceClass], chosen: Sequence[int]) -> tuple[Device, ...]:
    """The devices of the parts: of a kind the first ones first."""
    left = [list(kind.devices) for kind in kinds]
    return tuple(left[kind].pop(0) for kind in chosen)


def _outcome(goal: Across, found: SearchResult, bound: float) -> Optimality:
    words: dict[str, tuple[str, MetricUnit]] = {
        "throughput": ("time between two requests", "s"),
        "latency": ("time of one request", "s"),
        "bytes": ("bytes received", "bytes"),
        "devices": ("devices", "devices"),
    }
    if goal.objective == "decode":
        reached = optimality_of("", found, bound, "s")
        return Optimality(
            f"tokens a second, {goal.in_flight} in flight",
            1 / reached.value if reached.value else np.inf,
            1 / reached.bound if reached.bound else np.inf,
            "tokens/s",
            reached.is_optimal,
        )
    return optimality_of(words[goal.objective][0], found, bound, words[goal.objective][1])


def _impossible(task: PlanningProblem, load: Workload, kinds: Sequence[DeviceClass]) -> PlanError:
    if task.pins:
        return PlanError("no plan for this cluster keeps all pins", hint="leave a pin out")
    room = sum(kind.memory_bytes * len(kind.devices) for kind in kinds)
    if room == np.inf:
        return PlanError("no plan puts every node on a device that can run it", hint="add a device that can run all")
    hint = "give devices more memory, or add one"
    if task.analysis.repeat is not None and not task.limits.inside_layers:
        hint += "; or let layers be cut with --inside-layers"
    alone, what = int(load.alone.max()) + load.part_bytes, task.called(int(load.alone.argmax()))
    largest = max(kind.memory_bytes for kind in kinds)
    if alone > largest:
        return PlanError(
            f"{what} alone needs {size(alone)}, and the largest device has {size(int(largest))}", hint=hint
        )
    needed = int(load.held.sum() + load.shared.sum())
    return PlanError(
        f"no division fits the devices: files of {size(needed)} or more, and what parts need to run; the largest of "
        f"{count(sum(len(kind.devices) for kind in kinds), 'device')} has {size(int(largest))}, all have "
        f"{size(int(room))}",
        hint=hint,
    )
