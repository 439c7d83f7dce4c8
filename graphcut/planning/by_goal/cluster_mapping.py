"""`Across`: which part runs on which device of a cluster, for a given objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Final

import numpy as np

from ...core.errors import check_positive
from ...costs.device import COUNTING, Counted, NodeSeconds
from ...costs.device_groups import DeviceGroup, tried_groups
from ...sharding.rank_costs import RankCosts
from ...solving.boundaries import BoundaryTables
from ...solving.chain_dp import Aggregation, ChainPartition, Criterion, DeviceCounts, chain_dp
from ...solving.cost_tables import (
    DeviceClass,
    PairCosts,
    allowed_by,
    assigned_devices,
    best_links,
    device_classes,
    fits_in,
    memory_bytes,
    pair_costs,
    received_bytes,
    time_quantum,
    used_devices,
)
from ...solving.instance import Bools, Floats, Hyperedges, Ints, Workload
from ...solving.linked_chains import LinkedChains, driver_s
from ...solving.milp import MilpProblem
from ...solving.relaxed_tables import bounded
from ...solving.search import SearchResult, better, result_on, search
from ...solving.transfers import RequestTimes
from ..goals import Across
from ..predictions import driven_bytes
from ..problem import PlanningProblem
from ..results import OBJECTIVES, Solution
from .device_subsets import first_orders, next_orders, sets_along, small_sets
from .no_plan import check_all_can_run, impossible

_FRONT_POINTS: Final = 8
NOTABLE: Final = 0.005  #: a plan of the Pareto front has a latency smaller by this share than the plan before it.
_MANY_GROUPS: Final = 160  #: of more groups the search compares plans by their period alone, at first.
_CLOSE: Final = 1.001  #: a bisection ends when its ends are so close.
_JUST_BELOW: Final = 1e-9  #: a better plan is better by this share at least.
_MOST_SMALL: Final = 100_000  #: with so many transitions of small sets of devices in addition.
_MUCH_WORK: Final = 1e9  #: what a branch and bound may compute that is asked once; for each of many orders much less.
_MOST_STATES: Final = 20_000  #: with more transitions of the chain DP only some sets of devices are tried.


def plan_across(
    problem: PlanningProblem, goal: Across, seconds: NodeSeconds, ranks: RankCosts | None = None, prove_s: float = 0.0
) -> Solution:
    """The best plan for the cluster of `goal`. A device runs one part or none, alone or with others.

    `seconds` are those of each flowing node on a device; `ranks` are the costs of layers that are divided among
    devices, None if none is; `prove_s` is the time limit of the exact solver.
    """
    problem.check_pins(len(goal.cluster.devices))
    check_positive(goal.in_flight, f"{goal.in_flight} sequences can't be in flight")
    evaluator = ClusterEvaluator.of(problem, goal, seconds, ranks)
    check_all_can_run(problem, evaluator.load)
    load, classes, pairs, bound = evaluator.load, evaluator.classes, evaluator.pairs, evaluator.lower_bound()
    evaluator, states = with_few_sets(evaluator)
    found = search(load, evaluator.roughly, states=states, marked=problem.pins, lower_bound=bound)
    if found is None:
        raise impossible(problem, load, classes)
    if evaluator.only is not None:
        found, evaluator = _with_devices_exchanged(found, evaluator)
    if not found.tables.is_complete:
        evaluator = replace(evaluator, most_work=_MUCH_WORK)
        found = better(found, result_on(found.tables, evaluator)) or found
    objective, unit, minimized = OBJECTIVES["across"][goal.objective]
    tokens = problem.costs.step_tokens
    words = objective.format(goal.in_flight, f", {tokens} a step" if tokens > 1 else "")
    links, overlap = best_links(classes, pairs), goal.cluster.overlap
    milp = MilpProblem(load, links, evaluator.counts, minimized, goal.in_flight, problem.pins, overlap=overlap)
    more_bounds = evaluator.with_one_more, evaluator.lower_bound_over
    found, relaxed, bounds = bounded(found, bound, milp, evaluator, prove_s, *more_bounds)

    def front() -> Iterator[Solution]:
        return (solution(replace(found, chain=chain)) for chain in evaluator.pareto_front(found.tables))

    def with_repeats(value: float) -> tuple[float, list[tuple[int, ...]]]:
        can_repeat = problem.limits.recompute != "never"
        return min(value, max(bounds.simple, evaluator.bound_of_all(found.tables, can_repeat=can_repeat))), []

    def solution(result: SearchResult, relaxed: Solution | None = None) -> Solution:
        devices = tuple(assigned_devices(classes, result.chain.classes))
        busy_s = evaluator.chains(result.tables).times(result.chain.boundaries, result.chain.classes).busy_s
        costs = evaluator.costs(result)
        return Solution(result, devices, words, unit, bounds, *costs, front, busy_s, with_repeats, relaxed, tokens)

    return solution(found, None if relaxed is None else solution(relaxed))


def with_few_sets(evaluator: ClusterEvaluator) -> tuple[ClusterEvaluator, int]:
    """The evaluator, of many sets of devices with some to try only; and the number of its transitions."""
    if evaluator.states <= _MOST_STATES:
        return evaluator, evaluator.states
    single, senders = evaluator.single, len({*evaluator.pairs.senders})
    orders = list(first_orders(single, evaluator.load.work))
    pairs_of_devices = len(evaluator.classes) * senders
    small = small_sets(evaluator.counts, _MOST_SMALL // pairs_of_devices)
    states = senders * 2 * len(sets_along(next_orders(orders[0], evaluator.counts), len(single)))
    states = max(states, len(small) * pairs_of_devices)
    return replace(evaluator, only=sets_along(orders, len(single)) | small), states


def _with_devices_exchanged(found: SearchResult, evaluator: ClusterEvaluator) -> tuple[SearchResult, ClusterEvaluator]:
    """The plan with devices exchanged until that improves it no more, and the evaluator that knows its neighbours."""
    while True:
        used = [member for c in found.chain.classes for member in evaluator.classes[c].members or (c,)]
        evaluator = replace(evaluator, only=sets_along(next_orders(used, evaluator.counts), len(evaluator.single)))
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
    pairs: PairCosts  #: what their links cost.
    quantum: float  #: see `time_quantum`.
    pins: Mapping[int, int]  #: for a group the part that it must be in.
    #: by the shares of a group of devices; see `PlanningProblem.saved`.
    saved: Mapping[tuple[int, ...], tuple[Hyperedges, Ints, Ints]] = field(default_factory=dict)
    #: for each class what it holds besides; see `PlanningProblem.wider`.
    wider: Sequence[tuple[Hyperedges, Ints] | None] = ()
    only: frozenset[DeviceCounts] | None = None  #: the sets of devices that it tries; None for all.
    most_work: float = _MUCH_WORK / 20  #: see `LinkedChains`.
    counting: tuple[Counted, ...] = COUNTING  #: what counts towards the memory of a device.
    _last: list[LinkedChains] = field(default_factory=list, init=False)  #: over the boundaries that were tried last.
    _periods: list[float] = field(default_factory=list, init=False)  #: the least ones over all that were tried.

    @classmethod
    def of(
        cls, problem: PlanningProblem, goal: Across, seconds: NodeSeconds, ranks: RankCosts | None = None
    ) -> ClusterEvaluator:
        """The evaluator for a problem; `seconds` and `ranks` are as for `plan_across`."""
        classes, saved = device_classes(goal.cluster), dict[tuple[int, ...], tuple[Hyperedges, Ints, Ints]]()
        if ranks is not None:
            most = goal.ranks or len(goal.cluster.devices)
            groups = list(tried_groups([c.devices for c in classes], most, ranks.shares_to_try))
            of_groups = (DeviceClass((g,), np.inf, 1 / g.link_bytes_per_s, g.latency_s, m) for m, g in groups)
            classes = (*classes, *of_groups)  # each rank has its own memory
            saved = {shares: problem.saved(ranks, shares) for shares in {group.shares for _, group in groups}}
        sent = driven_bytes(goal, problem.costs)
        wider = [None if c.members else problem.wider(c.devices[0]) for c in classes]
        load = problem.workload([seconds(c.devices[0]) for c in classes], COUNTING, sent)
        pairs = pair_costs(classes, goal.cluster, load)
        return cls(goal, load, classes, pairs, time_quantum(load, classes, pairs), problem.pins, saved, wider)

    @property
    def single(self) -> tuple[DeviceClass, ...]:
        """The classes of single devices; those of groups follow."""
        return tuple(c for c in self.classes if not c.members)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of devices of each class of single ones."""
        return tuple(len(c.devices) for c in self.single)

    @property
    def states(self) -> int:
        """The number of transitions of the dynamic programming for each pair of boundaries."""
        return prod(number + 1 for number in self.counts) * len(self.classes) * len({*self.pairs.senders})

    def chains(self, tables: BoundaryTables) -> LinkedChains:
        """The partitions over given boundaries, with their costs; those over the last boundaries are kept."""
        if not self._last or self._last[0].tables is not tables:
            self._last[:] = [self._chains(tables)]
        return self._last[0]

    def _chains(self, tables: BoundaryTables) -> LinkedChains:
        rows = zip(self.single, self.wider or [None] * len(self.single), strict=False)
        rooms = [c.memory_bytes - (_bytes_of(tables, *more) if more else 0.0) for c, more in rows]
        fits = fits_in(tables, self.counting, rooms) + self._fit_groups(tables)
        fits = [fit & np.isfinite(tables.work(c)) for c, fit in enumerate(fits)]
        allowed = allowed_by(tables, self.pins)
        work = _MUCH_WORK if tables.is_complete else self.most_work
        cluster = self.goal.cluster
        return LinkedChains(tables, self.classes, self.pairs, cluster, self.quantum, fits, allowed, self.only, work)

    def _fit_groups(self, tables: BoundaryTables) -> list[Bools]:
        """For each group which parts fit its ranks. Files of ranks take the graph at most twice: names get longer."""
        groups = [device for c in self.classes for device in c.devices if isinstance(device, DeviceGroup)]
        is_limited = any(rank.device.memory_bytes for group in groups for rank in group.ranks)
        alike = memory_bytes(tables, ["inputs", "cache"]) + tables.own_bytes if is_limited else np.zeros(())

        @cache
        def needed(shares: tuple[int, ...], rank: int) -> Floats:
            users, saved, opening = self.saved[shares]
            running = np.maximum(tables.peak, tables.largest(opening[rank]))
            return np.asarray(alike + running - _bytes_of(tables, users, saved[rank]))

        found = []
        for group in groups:
            limits = enumerate(one.device.memory_bytes for one in group.ranks)
            fits = [needed(group.shares, rank) <= number for rank, number in limits if number]
            found.append(np.asarray(np.logical_and.reduce([tables.nested, *fits])))
        return found

    def __call__(self, tables: BoundaryTables) -> ChainPartition | None:
        found = self._best(self.chains(tables))
        return found and replace(found, is_best=found.is_best and self.only is None)

    def roughly(self, tables: BoundaryTables) -> ChainPartition | None:
        """The same for a search; of the partitions with the shortest period any one, where there are many groups.

        To find the one with the least latency over all tables that are tried takes as long as the rest of the search.
        """
        is_large = not tables.is_complete and (self.only is not None or tables.load.groups > _MANY_GROUPS)
        is_rough = is_large and self.goal.objective == "throughput"
        return self._fastest(self.chains(tables)) if is_rough else self(tables)

    def _fastest(self, chains: LinkedChains, most_work: float | None = None) -> ChainPartition | None:
        """The partition of least period; of many groups first among short periods, where few parts are possible."""
        near = {1.3 * self._least_period, 2.0 * self._least_period, 1.3 * min(self._periods, default=np.inf)}
        near = {np.inf} | (near if self.only is None and self.load.groups > _MANY_GROUPS else set())
        found = (chains.best("max", limit=limit, most_work=most_work) for limit in sorted(near))
        first = next(filter(None, found), None)
        self._periods.append(np.inf if first is None else first.values[0])
        return first

    def _best(self, chains: LinkedChains) -> ChainPartition | None:
        match self.goal.objective:
            case "throughput":
                return _with_least_latency(chains, self._fastest(chains))
            case "latency":
                return chains.best("sum")
            case "decode":
                return self._most_tokens(chains)
            case "bytes":
                busy = [chains.costs(c, c)[0] for c in range(len(self.classes))]
                criteria = [Criterion(self._received(chains), "sum"), Criterion(busy, "max")]
                return chain_dp(criteria, self.counts, allowed=chains.allowed, only=self.only).best()
            case _:  # devices
                received = Criterion(self._received(chains), "sum")
                tried = chain_dp([received], self.counts, allowed=chains.allowed, only=self.only, fewest_parts=True)
                fewest = tried.best()
                found = fewest and chains.best("sum", most_parts=len(fewest.classes))
                return found and replace(found.ranked_by(len(found.classes)), is_best=True)

    def pareto_front(self, tables: BoundaryTables) -> Iterator[ChainPartition]:
        """Partitions of which none is as good as another in both values: period, and latency."""
        chains, little = self.chains(tables), _MUCH_WORK / 20  # each of its points is searched
        fastest = _with_least_latency(chains, self._fastest(chains, little), little)
        soonest = chains.best("sum", most_work=little)
        if fastest is None or soonest is None:
            return
        (period, latency), longest = fastest.values, soonest.values[1]
        yield fastest
        for limit in np.linspace(period, longest, _FRONT_POINTS)[1:] if longest > period else ():
            if latency * (1 - NOTABLE) <= soonest.values[0]:
                return
            chain = soonest if limit == longest else chains.best("sum", limit=float(limit), most_work=little)
            if chain is not None and chain.values[0] < latency * (1 - NOTABLE):
                latency, period = chain.values
                yield replace(chain, values=(period, latency))

    def costs(self, found: SearchResult) -> tuple[tuple[Floats, ...], Aggregation]:
        """For each part the table of what the objective counts, and its aggregation."""
        chains = self.chains(found.tables)
        is_sum, classes = self.goal.objective in {"latency", "devices"}, found.chain.classes
        if self.goal.objective == "bytes":
            received = self._received(chains)
            return tuple(received[c] for c in classes), "sum"
        pairs = zip((classes[0], *classes), classes, strict=False)
        return tuple(chains.costs(sender, c)[is_sum] for sender, c in pairs), "sum" if is_sum else "max"

    def lower_bound(self) -> float:
        """A lower bound of the first value of any plan."""
        driven_s = driver_s("sum", self.load, self.pairs, self.goal.cluster)
        return self._value(self._least_period, float(self._work.min(axis=0).sum()) + driven_s)

    @cached_property
    def _work(self) -> Floats:
        """For each class the seconds of each group and shared item."""
        return np.hstack([self.load.work, self.load.shared_work])

    @cached_property
    def _least_period(self) -> float:
        """A lower bound of the period of any plan."""
        longest = float(self.load.work.min(axis=0).max(initial=0.0))
        return max(longest, self._fractional_period(), driver_s("max", self.load, self.pairs, self.goal.cluster))

    def lower_bound_over(self, tables: BoundaryTables) -> float:
        """A lower bound of the first value over all boundaries, from the dynamic programming."""
        chains = self.chains(tables)
        return self._value(chains.lower_bound("max"), chains.lower_bound("sum")) if self.only is None else -np.inf

    def least_over(self, tables: BoundaryTables) -> float:
        """The same for the devices that are tried; of an objective that is no time the value of the best partition."""
        if self.goal.objective in {"bytes", "devices"}:
            chain = self(tables)
            return np.inf if chain is None else chain.values[0]
        chains = self.chains(tables)
        return self._value(chains.lower_bound("max"), chains.lower_bound("sum"))

    def bound_of_all(self, tables: BoundaryTables, *, can_repeat: bool) -> float:
        """A lower bound of the first value, in whatever order the nodes of a part run: without activations.

        If parts can repeat nodes, they may need nothing from other parts.
        """
        if self.only is not None or not tables.is_complete:
            return -np.inf
        if can_repeat:
            load, nothing = tables.load, np.zeros_like(tables.received)
            load = replace(load if load.replicas is None else load.replicas.without, tensor_bytes=0 * load.tensor_bytes)
            tables = replace(tables, load=load, received=nothing, find_sent=nothing.copy, find_declared=nothing.copy)
        return replace(self, pins={}, counting=("inputs", "cache")).least_over(tables)

    def _value(self, period: float, latency: float) -> float:
        match self.goal.objective:
            case "bytes":  # any plan sends all inputs and answers, unless it may run all on the machine of the driver
                sent = float(self.load.input_bytes.sum() + sum(number for _, number, _ in self.load.answers))
                return sent if (self.pairs.sent_s[-1, :-1] > 0).all() else 0.0
            case "devices":
                room = sorted((c.memory_bytes for c in self.single for _ in c.devices), reverse=True)
                free = np.cumsum(room) - self.load.part_bytes * np.arange(1, len(room) + 1) >= self.load.total_bytes
                return float(free.argmax() + 1 if free.any() else len(room))
            case _:
                return RequestTimes((), period, latency).objective(self.goal.objective, self.goal.in_flight)

    def with_one_more(self, tables: BoundaryTables) -> float:
        """A lower bound of the first value of plans in which one device has replicable values only."""
        states = product(*(range(count + 1) for count in self.counts))
        others = replace(self, pins={}, only=frozenset(state for state in states if sum(state) < sum(self.counts)))
        return others.least_over(tables) + (self.goal.objective == "devices")

    def _fractional_period(self) -> float:
        """A lower bound of the period if groups could be divided at will.

        For any weights of the devices that add up to 1, no period is shorter than the sum over the groups of the least
        weighted time (linear programming duality).
        """
        work = self._work
        known = np.isfinite(work).all(axis=1)
        totals = work[: len(self.counts)].sum(axis=1)
        if not (known.all() and (totals > 0).all()):
            return 0.0
        speeds = 1 / totals
        weights = np.array(used_devices(self.classes)) @ (speeds / (speeds * np.array(self.counts)).sum())
        return float((weights[:, None] * work).min(axis=0).sum())

    def _received(self, chains: LinkedChains) -> list[Floats]:
        """For each class the bytes that a part receives and sends to the driver; `inf` where it does not fit."""
        near = received_bytes(chains.tables)
        far, is_far = near + chains.tables.inputs + chains.tables.answers, self.pairs.sent_s[-1] > 0
        return [np.where(fit, far if is_far[c] else near, np.inf) for c, fit in enumerate(chains.fits)]

    def _most_tokens(self, chains: LinkedChains) -> ChainPartition | None:
        """With m sequences in flight a token takes max(latency / m, period), and latency falls as the period may grow.

        So a token of s seconds is possible if the least latency for a period of s or less is at most m * s: a bisection
        narrows it down, and then better plans are asked for until there is none.
        """
        best, is_best = self._token(chains.best("sum")), True
        least = max(chains.lower_bound("max"), chains.lower_bound("sum") / self.goal.in_flight)
        while best is not None:
            token_s = best.values[0]
            is_close = token_s <= least * _CLOSE
            limit = token_s * (1 - _JUST_BELOW) if is_close else (least + token_s) / 2
            found = self._token(chains.best("sum", limit=limit))
            is_best = is_best and (found is None or found.is_best)
            if is_close and (found is None or found.values >= best.values):
                return replace(best, is_best=is_best and best.is_best)
            if found is None or found.values[1] / self.goal.in_flight > limit:
                least = limit
            if found is not None and found.values < best.values:
                best = found
        return None

    def _token(self, chain: ChainPartition | None) -> ChainPartition | None:
        return chain and chain.ranked_by(max(chain.values[0] / self.goal.in_flight, chain.values[1]))


def _bytes_of(tables: BoundaryTables, users: Hyperedges, number: Ints) -> Floats:
    """For each part the bytes of these items that its groups need, each once."""
    load = replace(tables.load, sharers=users, shared_bytes=number)
    return replace(tables, load=load, relaxation=None).shared_bytes


def _with_least_latency(
    chains: LinkedChains, fastest: ChainPartition | None, most_work: float | None = None
) -> ChainPartition | None:
    """Of the partitions with the period of the fastest one that with the least latency; its period, and its latency."""
    if fastest is None:
        return None
    soonest = chains.best("sum", limit=fastest.values[0], most_work=most_work)
    found = fastest if soonest is None else replace(soonest, values=soonest.values[::-1])
    return replace(found, is_best=fastest.is_best)
