"""`Across`: which part runs on which device of a cluster, for a given objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from ..results import MetricUnit, Solution, optimality_of
from ..solver.boundaries import BoundaryTables
from ..solver.chain_dp import Aggregation, ChainPartition, Criterion, DeviceCounts, chain_dp, min_max_chain
from ..solver.cost_tables import DeviceClass, allowed_by, busy_s, device_classes, fits_in, received_bytes, time_quantum
from ..solver.milp import MilpObjective, MilpProblem, prove
from ..solver.search import SearchResult, search
from .device_subsets import first_orders, next_orders, sets_along
from .direct_links import assign_devices

COUNTING: Final[tuple[Counted, ...]] = ("activations", "inputs", "cache")
"""A device holds everything that its part takes while it runs."""

_OBJECTIVES: Final[dict[Objective, tuple[MilpObjective, str, MetricUnit]]] = {
    "throughput": ("period", "time between two requests", "s"),
    "latency": ("latency", "time of one request", "s"),
    "decode": ("token", "tokens a second, {} in flight", "tokens/s"),
    "bytes": ("received", "bytes received", "bytes"),
    "devices": ("parts", "devices", "devices"),
}
_FRONT_POINTS: Final = 8
_NOTABLE: Final = 0.005
"""A plan of the Pareto front has a latency that is smaller by this share than that of the plan before it."""

_MOST_STATES: Final = 20_000
"""With more transitions of the chain DP only some sets of devices are tried."""


def plan_across(
    problem: PlanningProblem, goal: Across, seconds: Callable[[Device], Sequence[float]], *, prove_s: float = 0.0
) -> Solution:
    """The best plan for the cluster of `goal`. A device runs one part or none.

    `seconds` are those of each flowing node on a device; `prove_s` is the time limit of the exact solver.
    """
    problem.check_pins(len(goal.cluster.devices))
    if goal.in_flight < 1:
        raise UsageError(f"{goal.in_flight} sequences can't be in flight", hint="use --in-flight 1 or more")
    classes = device_classes(goal.cluster)
    load = problem.workload([seconds(c.devices[0]) for c in classes], COUNTING)
    evaluator = ClusterEvaluator(goal, load, classes, time_quantum(load, classes), problem.pins)
    bound = evaluator.lower_bound()
    states = evaluator.states
    if states > _MOST_STATES:
        orders = list(first_orders(classes, load.work))
        states = 2 * len(sets_along(next_orders(orders[0], evaluator.counts), len(classes)))
        evaluator = replace(evaluator, only=sets_along(orders, len(classes)))
    found = search(load, evaluator, states=states, marked=problem.pins, lower_bound=bound)
    if found is None:
        raise _impossible(problem, load, classes)
    if evaluator.only is not None:
        found, evaluator = _with_devices_exchanged(replace(found, is_best_chain=False), evaluator)
    minimized, words, unit = _OBJECTIVES[goal.objective]
    milp = MilpProblem(load, classes, evaluator.counts, minimized, goal.in_flight, problem.pins)
    found, bound = prove(found, bound, milp, evaluator, time_limit_s=prove_s)
    unused = [list(c.devices) for c in classes]
    devices = tuple(unused[c].pop(0) for c in found.chain.classes)
    value, is_optimal = found.chain.values[0], found.is_optimal
    if goal.cluster.links:
        devices, true_value = assign_devices(found, devices, load, classes, goal)
        if unit in {"s", "tokens/s"}:
            bound = value if is_optimal else bound
            value, is_optimal = true_value, False
    outcome = optimality_of(words.format(goal.in_flight), value, bound, unit, is_optimal=is_optimal)
    return Solution(found, devices, outcome, *evaluator.costs(found), tuple(evaluator.pareto_front(found.tables)))


def _with_devices_exchanged(found: SearchResult, evaluator: ClusterEvaluator) -> tuple[SearchResult, ClusterEvaluator]:
    """The plan with devices exchanged until that improves it no more, and the evaluator that knows its neighbours."""
    while True:
        orders = next_orders(found.chain.classes, evaluator.counts)
        evaluator = replace(evaluator, only=sets_along(orders, len(evaluator.classes)))
        chain = evaluator(found.tables)
        if chain is None or chain.values >= found.chain.values:
            return found, evaluator
        found = replace(found, chain=chain)


@dataclass(frozen=True)
class ClusterEvaluator:
    """Finds the best partition for an objective on the devices of a cluster."""

    goal: Across  #: the objective.
    load: Workload  #: the workload.
    classes: tuple[DeviceClass, ...]  #: the device classes.
    quantum: float  #: see `time_quantum`.
    pins: Mapping[int, int]  #: for a group the part that it must be in.
    only: frozenset[DeviceCounts] | None = None  #: the sets of devices that it tries; None for all.

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of devices of each class."""
        return tuple(len(c.devices) for c in self.classes)

    @property
    def states(self) -> int:
        """The number of transitions of the chain DP for each pair of boundaries."""
        return prod(number + 1 for number in self.counts) * len(self.classes)

    def __call__(self, tables: BoundaryTables) -> ChainPartition | None:
        """The best partition over given boundaries."""
        busy = self._busy(tables)
        received = [np.where(np.isfinite(seconds), received_bytes(tables), np.inf) for seconds in busy]
        match self.goal.objective:
            case "throughput":
                return min_max_chain(lambda criterion: self._best(tables, [criterion]), busy, busy)
            case "latency":
                return self._best(tables, [Criterion(busy, "sum"), Criterion(received, "sum")])
            case "decode":
                return self._most_tokens(tables, busy)
            case "bytes":
                return self._best(tables, [Criterion(received, "sum"), Criterion(busy, "max")])
            case "devices":
                chain = self._best(tables, [Criterion(busy, "sum")], fewest_parts=True)
                return chain and chain.ranked_by(len(chain.classes))

    def pareto_front(self, tables: BoundaryTables) -> Iterator[tuple[float, float]]:
        """Seconds between requests, and of one request, of plans of which none is as good as another in both."""
        busy = self._busy(tables)
        fastest = self._best(tables, [Criterion(busy, "max")])
        soonest = self._best(tables, [Criterion(busy, "sum")])
        if fastest is None or soonest is None:
            return
        period, longest = fastest.values[0], _period(soonest, busy)
        latency = np.inf
        for limit in np.linspace(period, longest, _FRONT_POINTS) if longest > period else [period]:
            chain = self._best(tables, [Criterion(_at_most(busy, float(limit)), "sum")])
            if chain is not None and chain.values[0] < latency * (1 - _NOTABLE):
                latency = chain.values[0]
                yield _period(chain, busy), latency

    def costs(self, found: SearchResult) -> tuple[tuple[Floats, ...], Aggregation]:
        """For each part the table of what the objective counts, and its aggregation."""
        if self.goal.objective == "bytes":
            return (received_bytes(found.tables),) * len(found.parts), "sum"
        busy = self._busy(found.tables)
        aggregation: Aggregation = "max" if self.goal.objective in {"throughput", "decode"} else "sum"
        return tuple(busy[c] for c in found.chain.classes), aggregation

    def lower_bound(self) -> float:
        """A lower bound of the first value of any plan."""
        work = self.load.work
        fastest = np.where(np.isfinite(work), work, np.inf).min(axis=0)
        period = max(float(fastest.max(initial=0.0)), self._fractional_period(work))
        match self.goal.objective:
            case "throughput":
                return period
            case "latency":
                return float(fastest.sum())
            case "decode":
                return max(period, float(fastest.sum()) / self.goal.in_flight)
            case "bytes":
                return 0.0
            case "devices":
                return float(self._fewest_devices())

    def _fractional_period(self, work: Floats) -> float:
        """A lower bound of the period if groups could be divided at will.

        For any weights of the devices that add up to 1, no period is shorter than the sum over the groups of the least
        weighted time (linear programming duality).
        """
        known = np.isfinite(work).all(axis=1)
        totals = work[known].sum(axis=1)
        if not known.all() or not (totals > 0).all():
            return 0.0
        speeds = 1 / totals
        weights = speeds / (speeds * np.array(self.counts)).sum()
        return float((weights[:, None] * work).min(axis=0).sum())

    def _fewest_devices(self) -> int:
        room = sorted((c.memory_bytes for c in self.classes for _ in c.devices), reverse=True)
        for number in range(1, len(room)):
            if sum(room[:number]) - number * self.load.part_bytes >= self.load.total_bytes:
                return number
        return len(room)

    def _busy(self, tables: BoundaryTables) -> list[Floats]:
        fits = fits_in(tables, COUNTING, [c.memory_bytes for c in self.classes])
        seconds = (busy_s(tables, index, c, self.quantum) for index, c in enumerate(self.classes))
        return [np.where(fit, busy, np.inf) for fit, busy in zip(fits, seconds, strict=True)]

    def _best(
        self, tables: BoundaryTables, criteria: Sequence[Criterion], *, fewest_parts: bool = False
    ) -> ChainPartition | None:
        allowed = allowed_by(tables, self.pins)
        return chain_dp(criteria, self.counts, allowed=allowed, only=self.only, fewest_parts=fewest_parts).best()

    def _most_tokens(self, tables: BoundaryTables, busy: list[Floats]) -> ChainPartition | None:
        """With m sequences in flight a token takes max(latency / m, period), and latency falls as the period may grow.

        So the best is where they meet, or just before: found by bisection over all possible periods.
        """
        fastest = self._best(tables, [Criterion(busy, "max")])
        if fastest is None:
            return None
        periods = np.unique(np.concatenate([seconds[np.isfinite(seconds)] for seconds in busy]))
        periods = periods[periods >= fastest.values[0]]
        tried: list[ChainPartition] = []

        def latency_share(limit: float) -> float:
            chain = self._best(tables, [Criterion(_at_most(busy, limit), "sum")])
            if chain is None:  # impossible: the periods begin with one that can be kept
                return np.inf
            share = chain.values[0] / self.goal.in_flight
            tried.append(chain.ranked_by(max(share, _period(chain, busy))))
            return share

        low, high = 0, len(periods) - 1
        latency_share(float(periods[low]))
        while low <= high:
            middle = (low + high) // 2
            period = float(periods[middle])
            low, high = (low, middle - 1) if latency_share(period) <= period else (middle + 1, high)
        return min(tried, key=lambda chain: chain.values)


def _at_most(busy: Sequence[Floats], period: float) -> list[Floats]:
    return [np.where(seconds <= period, seconds, np.inf) for seconds in busy]


def _period(chain: ChainPartition, busy: Sequence[Floats]) -> float:
    return max(float(busy[c][j, i]) for (i, j), c in zip(pairwise(chain.boundaries), chain.classes, strict=True))


def _impossible(problem: PlanningProblem, load: Workload, classes: Sequence[DeviceClass]) -> PlanError:
    if problem.pins:
        return PlanError("no plan for this cluster keeps all pins", hint="leave a pin out")
    if (homeless := np.isinf(load.work).all(axis=0)).any():
        what = problem.describe(int(homeless.argmax()))
        return PlanError(f"no device of the cluster can run {what}", hint="add a device that can")
    room = sum(c.memory_bytes * len(c.devices) for c in classes)
    if room == np.inf:
        return PlanError("no plan puts every node on a device that can run it", hint="add a device that can run all")
    hint = "give devices more memory, or add one"
    if problem.keeps_layers:
        hint += "; or let layers be cut with --inside-layers"
    group = int(load.single_bytes.argmax())
    needed = int(load.single_bytes[group]) + load.part_bytes
    largest = max(c.memory_bytes for c in classes)
    if needed > largest:
        return PlanError(
            f"{problem.describe(group)} alone needs {size(needed)}, and the largest device has {size(int(largest))}",
            hint=hint,
        )
    devices = count(sum(len(c.devices) for c in classes), "device")
    return PlanError(
        f"no division fits the devices: files of {size(int(load.total_bytes))} or more, and memory to run; "
        f"the largest of {devices} has {size(int(largest))}, all have {size(int(room))}",
        hint=hint,
    )
