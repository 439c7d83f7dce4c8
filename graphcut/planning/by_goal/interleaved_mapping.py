"""`Across(interleave=True)`: which parts run on which device of a cluster, where a device may have several parts."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, cycle, islice
from typing import Final

import numpy as np
from msgspec.structs import replace as changed

from ...core.errors import PlanError, UsageError
from ...costs.device import COUNTING, Device, NodeSeconds
from ...solving.chain_dp import ChainPartition
from ...solving.cost_tables import DeviceClass, best_links, memory_bytes
from ...solving.instance import Workload
from ...solving.interleaving import Interleaving, improved, merged
from ...solving.milp import MilpProblem, solve
from ...solving.order_prefixes import PrefixTables, prefix_tables
from ...solving.relaxed_tables import LowerBounds
from ...solving.search import SMALL, SearchResult
from ...solving.topological_orders import fastest, fewest_runs, orders
from ...solving.transfers import request_times, transfers_of
from ...solving.unavoidable_load import unavoidable_load
from ..goals import Across
from ..problem import PlanningProblem
from ..results import Solution
from .cluster_mapping import ClusterEvaluator, plan_across
from .no_plan import check_all_can_run

_ROUNDS: Final = 12  #: how many orders are tried, and of a large workload a quarter,
_FROM_START: Final = 6  #: so many from the plan that is given, then from the best one so far.
_SAME: Final = 1e-6  #: a period that exceeds its bound by this share is equal to it.
_NOTABLE: Final = 0.0002  #: the share of its time that each further part must save the busiest device.


def plan_interleaved(problem: PlanningProblem, goal: Across, seconds: NodeSeconds, *, prove_s: float = 0.0) -> Solution:
    """The plan of shortest period that is found if a device may have several parts; see `plan_across`.

    The search begins at the best plan with one part for each device, or, if there is none or it is worse, with each
    group on the fastest device that can run it.
    """
    _check(problem, goal)
    evaluator, overlap = ClusterEvaluator.of(problem, goal, seconds), goal.cluster.overlap
    load, best_classes = evaluator.load, best_links(evaluator.classes, evaluator.pairs)
    check_all_can_run(problem, load)
    valuation = Valuation(load, evaluator.classes, goal)
    impossible, starts = None, list[Interleaving]()
    try:
        chain = plan_across(problem, changed(goal, interleave=False), seconds)
        starts.append(Interleaving(chain.found.parts, tuple(map(valuation.devices.index, chain.devices))))
    except PlanError as error:
        impossible = error
        starts.append(Interleaving((next(orders(load)),), (0,)))
    if np.isinf(load.work).any():
        runs = fewest_runs(load, fastest(load.work))
        starts.append(Interleaving(tuple(run for _, run in runs), tuple(valuation.kinds.index(c) for c, _ in runs)))
    start = min(starts, key=valuation.period_s)
    can_repeat = problem.limits.recompute != "never"
    bound = max(evaluator.lower_bound(), unavoidable_load(load, best_classes, overlap, can_repeat=can_repeat))
    found, value = valuation.best_interleaving(start, bound)
    if impossible is not None and value == np.inf:
        raise impossible
    if prove_s and value > bound:
        milp = MilpProblem(load, best_classes, evaluator.counts, "period", overlap=overlap, is_ordered=False)
        bound = max(bound, solve(milp, time_limit_s=prove_s).bound_below(value))
    kinds = tuple(valuation.kinds[device] for device in found.devices)
    partition = ChainPartition(tuple(range(len(found.parts) + 1)), kinds, (value,), is_best=False)
    result = SearchResult(valuation.tables(found), partition)
    bounds = LowerBounds(-np.inf, -np.inf, bound)
    devices = tuple(valuation.devices[device] for device in found.devices)
    return Solution(result, devices, "time between two requests", "s", bounds, (), "max")


def _check(problem: PlanningProblem, goal: Across) -> None:
    if goal.objective != "throughput":
        hint = "leave `interleave` out, or use `objective='throughput'`"
        raise UsageError(f"several parts on a device don't help the objective {goal.objective}", hint=hint)
    if problem.pins:
        hint = "leave out `pins`, or `interleave`"
        raise UsageError("nodes can't be pinned to parts of an interleaved plan", hint=hint)


@dataclass(frozen=True)
class Valuation:
    """Finds interleavings, and values them exactly by the rules of the cluster."""

    load: Workload  #: the workload.
    classes: tuple[DeviceClass, ...]  #: the device classes.
    goal: Across  #: the cluster.

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the numbers of an interleaving mean."""
        return tuple(device for kind in self.classes for device in kind.devices)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The class of each device."""
        return tuple(c for c, kind in enumerate(self.classes) for _ in kind.devices)

    def best_interleaving(self, start: Interleaving, bound: float) -> tuple[Interleaving, float]:
        """The best interleaving found, and its period in seconds: `inf` if no device has the memory for its parts."""
        rounds = _ROUNDS if self.load.groups <= 2 * SMALL else _ROUNDS // 4
        best, least, tried = start, self.period_s(start), [start.order, *islice(orders(self.load), rounds)]
        for seed, order in zip(range(rounds), cycle(tried), strict=False):
            if least <= bound * (1 + _SAME):
                break
            begin, cluster = (start if seed < _FROM_START else best).along(order), self.goal.cluster
            found = improved(begin, self.load, self.classes, cluster, seed)
            for other in (found, merged(self.load, found)):
                period_s, more = self.period_s(other), len(other.parts) - len(best.parts)
                if period_s < least * (1 - _NOTABLE * max(more, 0)) or (period_s == least and more <= 0):
                    best, least = other, period_s
        return best, least

    def period_s(self, found: Interleaving) -> float:
        """Seconds between two requests; `inf` where a device lacks memory."""
        tables = self.tables(found)
        memory, work_s = memory_bytes(tables, COUNTING), [tables.work(c) for c in range(len(self.classes))]
        needed = np.bincount(found.devices, np.diagonal(memory, -1)).tolist()
        if any(number > self.classes[c].memory_bytes for number, c in zip(needed, self.kinds, strict=False)):
            return np.inf
        run_s = [float(work_s[self.kinds[device]][i + 1, i]) for i, device in enumerate(found.devices)]
        sent = transfers_of(self.load, found.parts)
        devices = [self.devices[device] for device in found.devices]
        return request_times(sent, run_s, devices, self.goal.cluster).period_s

    def tables(self, found: Interleaving) -> PrefixTables:
        return prefix_tables(self.load, found.order, [0, *accumulate(map(len, found.parts))])
