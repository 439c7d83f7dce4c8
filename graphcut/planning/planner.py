"""The best parts for a goal: candidates that repeat cheap values or send them, compared by what they reach in the end.

A candidate is searched with each replicable node charged to every part that needs it, or with none replicated. Then
each of its parts recomputes what is cheaper to compute again than to receive, and the finished candidate is valued.
The lower bound is of another problem, which no plan that the limits admit can beat (relaxation.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import inf
from typing import Final, assert_never

import numpy as np
from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..core.errors import PlanError
from ..core.graph import Graph, Partition, partition
from ..costs.caches import nodes_touching
from ..costs.device import Device, run_s
from ..costs.matching import apply_table
from ..costs.tables import CostTable
from ..costs.weighing import Costs
from .by_goal.cluster_mapping import across_program, plan_across
from .by_goal.memory_budget import plan_within, within_program
from .by_goal.part_count import into_program, plan_into
from .disk_size import SerializedSizes, serialized_sizes
from .goals import Across, Goal, Into, Limits, Within
from .node_names import find_nodes
from .objective import cost_of, slack_s, value_of
from .predictions import PartMetrics, part_metrics
from .problem import PlanningProblem, problem_of
from .relaxation import LeastTransfer, Repeating
from .replicable import replicable_nodes
from .results import LayerChoice, Optimality, Solution, optimality_of
from .solver.cost_tables import device_classes
from .solver.program import Program
from .solver.recompute import Recomputed, TransferPrices, recompute

_TOLERANCE: Final = 1e-9  #: times that differ by this share differ only in the order of additions.

LARGE_GAIN: Final = 0.1
"""Repeated layers are cut without being asked if that makes the objective smaller by this share."""

ANY_DEVICE: Final = Device(name="any")
"""The device of every part if no cluster is given: a small computer in a wired network."""

SearchedGoal = Into | Within | Across
"""The goals that a search finds parts for."""


@dataclass(frozen=True)
class Candidate:
    """Finished parts: with what they recompute."""

    problem: PlanningProblem  #: what was searched.
    solution: Solution  #: the parts as searched.
    parts: tuple[tuple[int, ...], ...]  #: the nodes of each part.
    recomputed: tuple[Recomputed, ...]  #: what parts compute instead of receiving it.
    value: float  #: what the goal minimizes (for tokens a second the seconds of a token).
    received_bytes: int  #: bytes that all parts receive.

    def is_better_than(self, other: "Candidate") -> bool:
        """Whether its value is smaller, or equal with fewer bytes received."""
        if abs(self.value - other.value) > _TOLERANCE * other.value:
            return self.value < other.value
        return self.received_bytes < other.received_bytes


@dataclass(frozen=True)
class Planner:
    """The arguments of `plan`, and what several of its steps compute from them."""

    analysis: Analysis  #: the analysed model.
    goal: Goal  #: what the plan is for.
    limits: Limits  #: its constraints.
    costs: Costs  #: FLOPs and bytes of the nodes.
    table: CostTable | None  #: a cost model whose values replace computed ones.

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.analysis.model.graph

    @cached_property
    def sizes(self) -> SerializedSizes:
        """Bytes on disk."""
        return serialized_sizes(self.analysis.model)

    @cached_property
    def seconds(self) -> Callable[[Device], Sequence[float]]:
        """The seconds of each flowing node on a device."""
        table = self.table
        if table is None:
            return cache(lambda device: run_s(self.costs, device))
        return cache(lambda device: apply_table(self.costs, table, device)[0])

    def metrics(self, made: Partition, devices: Sequence[Device]) -> tuple[PartMetrics, ...]:
        """The predicted metrics of each part on its device."""
        cluster = self.goal.cluster if isinstance(self.goal, Across) else None
        return part_metrics(made, self.costs, self.sizes, devices, self.seconds, cluster)

    def best(self, goal: SearchedGoal, prove_s: float) -> tuple[Candidate, Optimality, LayerChoice | None]:
        """The best candidate, how good it is, and whether it cuts repeated layers if that was left open.

        Layers stay whole unless cutting them is necessary, or saves a part, a device or a tenth of anything else.
        """
        if self.limits.inside_layers is not None or self.analysis.repeat is None:
            found = self._best_of_both(goal, self.limits, prove_s)
            return found, self._optimality(goal, found, self.limits, prove_s), None
        inside = changed(self.limits, inside_layers=True)
        try:
            whole = self._best_of_both(goal, changed(self.limits, inside_layers=False), prove_s)
        except PlanError:
            cut = self._best_of_both(goal, inside, prove_s)
            return cut, self._optimality(goal, cut, inside, prove_s), LayerChoice(is_cut=True)
        outcome = self._optimality(goal, whole, inside, prove_s)
        if not _is_much_better(outcome, _bound_of(outcome), whole.value):
            return whole, outcome, LayerChoice(is_cut=False)
        cut = self._best_of_both(goal, inside, prove_s)
        outcome_of_cut = self._optimality(goal, cut, inside, prove_s)
        if _is_much_better(outcome, cut.value, whole.value):
            return cut, outcome_of_cut, LayerChoice(is_cut=True, other=outcome)
        is_better = cut.value < whole.value * (1 - _TOLERANCE)
        return whole, outcome, LayerChoice(is_cut=False, other=outcome_of_cut if is_better else None)

    def _best_of_both(self, goal: SearchedGoal, limits: Limits, prove_s: float) -> Candidate:
        """The better of two candidates: with replicable nodes in all parts that need them, and with none replicated."""
        problem = self._problem(limits, self._replicable(limits))
        problems = [problem, self._problem(limits)] if problem.replicable else [problem]
        found: list[Candidate] = []
        for i, each in enumerate(problems):
            try:
                found.append(self._finished(goal, each, self._solve(each, goal, prove_s / len(problems))))
            except PlanError:
                if i == len(problems) - 1 and not found:
                    raise
        return found[1] if found[1:] and found[1].is_better_than(found[0]) else found[0]

    def _solve(self, problem: PlanningProblem, goal: SearchedGoal, prove_s: float) -> Solution:
        match goal:
            case Into():
                return plan_into(problem, goal, ANY_DEVICE, self.seconds(ANY_DEVICE), prove_s=prove_s)
            case Within():
                return plan_within(problem, goal, ANY_DEVICE, prove_s=prove_s)
            case Across():
                return plan_across(problem, goal, self.seconds, prove_s=prove_s)
            case _:
                assert_never(goal)

    def _finished(self, goal: SearchedGoal, problem: PlanningProblem, solution: Solution) -> Candidate:
        parts, devices = problem.nodes_of(solution.found.parts), solution.devices
        parts, recomputed = self.with_replicas(parts, devices, problem.replicable, _most_planned(goal, solution))
        metrics = self.metrics(partition(self.graph, parts), devices)
        value = value_of(goal, metrics, solution.outcome.value)
        return Candidate(problem, solution, parts, recomputed, value, sum(part.received_bytes for part in metrics))

    def _optimality(self, goal: SearchedGoal, found: Candidate, limits: Limits, prove_s: float) -> Optimality:
        """How good a candidate is among all plans that `limits` admit, whatever their parts repeat."""
        outcome = found.solution.outcome
        problem = self._problem(limits, least=self._least_transfers(goal, limits, found.value))
        is_same = not (found.problem.replicable or problem.least_transfers) and problem.groups == found.problem.groups
        bound = _bound_of(outcome) if is_same else self._program(problem, goal, found).bound(prove_s)
        return optimality_of(outcome.objective, found.value, min(bound, found.value), outcome.unit)

    def _program(self, problem: PlanningProblem, goal: SearchedGoal, found: Candidate) -> Program:
        match goal:
            case Into():
                return into_program(problem, goal, ANY_DEVICE, self.seconds(ANY_DEVICE))[0]
            case Within():
                return within_program(problem, goal, ANY_DEVICE, len(found.parts))
            case Across():
                return across_program(problem, goal, self.seconds)[0]
            case _:
                assert_never(goal)

    def _problem(
        self, limits: Limits, replicable: Collection[int] = (), least: Mapping[str, LeastTransfer] | None = None
    ) -> PlanningProblem:
        return problem_of(self.analysis, self.costs, limits, self.sizes, replicable, least)

    def _replicable(self, limits: Limits) -> frozenset[int]:
        if limits.recompute == "never":
            return frozenset()
        slowest = min(self._devices, key=lambda device: device.flops_per_s)
        run_s = dict(zip(self.graph.flow, self.seconds(slowest), strict=True))
        s_per_byte = 2 / max(device.link_bytes_per_s for device in self._devices)
        kept, avoided = self._kept(limits), find_nodes(self.graph, limits.avoid)
        return replicable_nodes(self.graph, self.costs, run_s, s_per_byte, kept=kept, avoided=avoided)

    def _least_transfers(self, goal: SearchedGoal, limits: Limits, value: float) -> dict[str, LeastTransfer]:
        """See `Repeating.least_transfers`, for plans that are better than `value`."""
        if limits.recompute == "never":
            return {}
        fastest = np.min([self.seconds(device) for device in self._devices], axis=0).tolist()
        s_per_byte = 1 / ANY_DEVICE.link_bytes_per_s
        counts_activations = isinstance(goal, Within) and "activations" in goal.counting
        if isinstance(goal, Across):
            s_per_byte = min(each.s_per_byte for each in device_classes(goal.cluster))
            counts_activations = any(device.memory_bytes is not None for device in goal.cluster.devices)
        run_s = dict(zip(self.graph.flow, fastest, strict=True))
        repeating = Repeating(self.graph, self.costs, self._kept(limits), run_s, s_per_byte)
        return repeating.least_transfers(slack_s(goal, value, sum(fastest)), with_readers=not counts_activations)

    @property
    def _devices(self) -> tuple[Device, ...]:
        return self.goal.cluster.devices if isinstance(self.goal, Across) else (ANY_DEVICE,)

    def _kept(self, limits: Limits) -> frozenset[int]:
        """Nodes that must be in one part only: they touch a cache, or are pinned."""
        pinned = find_nodes(self.graph, [pattern for pattern, _ in limits.pins])
        return frozenset(pinned.union(*(nodes_touching(self.graph, pair) for pair in self.costs.caches)))

    def with_replicas(
        self, parts: tuple[tuple[int, ...], ...], devices: Sequence[Device], planned: Sequence[int], most: float
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[Recomputed, ...]]:
        """The parts with what they recompute, as long as it fits their memory and no part costs more than `most`.

        A part that would cost more repeats only the nodes that it was `planned` to run. See `cost_of`.
        """
        if self.limits.recompute == "never":
            return parts, ()
        kept = self._kept(self.limits)
        repeatable: dict[int, frozenset[int]] = {}
        while True:
            made, found = recompute(self.graph, parts, cache(self.prices(devices, repeatable)), kept)
            metrics = self.metrics(partition(self.graph, made), devices)
            narrowed = dict(repeatable)
            for part in (entry.part for entry in found):
                if not self._fits(devices[part], metrics[part]):
                    narrowed[part] = frozenset(planned if part not in repeatable else ())
                elif cost_of(self.goal, metrics[part]) > most * (1 + _TOLERANCE):
                    narrowed.setdefault(part, frozenset(planned))
            if narrowed == repeatable:
                return made, found
            repeatable.update(narrowed)

    def prices(
        self, devices: Sequence[Device], repeatable: Mapping[int, frozenset[int]] | None = None
    ) -> Callable[[int], TransferPrices]:
        """For each part what repeating and sending cost; `repeatable` is what some parts may repeat at most.

        A byte takes the link of the device that sends it and the link of the one that receives it, once each.
        """
        avoided = find_nodes(self.graph, self.limits.avoid)
        unsent = frozenset(name for node in avoided for name in self.graph.nodes[node].writes)
        sizes = {name: number for name, (number, _) in self.costs.tensor_bytes.items()}

        def prices_of(part: int) -> TransferPrices:
            device, sender = devices[part], devices[part - 1]
            run_s = dict(zip(self.graph.flow, self.seconds(device), strict=True))
            s_per_byte = 1 / device.link_bytes_per_s + 1 / sender.link_bytes_per_s
            return TransferPrices(run_s, s_per_byte, sizes, unsent, (repeatable or {}).get(part))

        return prices_of

    def _fits(self, device: Device, part: PartMetrics) -> bool:
        """Whether the memory of a part is enough. May say no where it is enough, never yes where it is not."""
        alive = part.activation_bytes + part.cache_bytes
        if isinstance(self.goal, Within):
            return part.written_bytes + (alive if self.goal.counting else 0) <= self.goal.memory_bytes
        return device.memory_bytes is None or part.written_bytes + alive <= device.memory_bytes


def _most_planned(goal: SearchedGoal, solution: Solution) -> float:
    """What the most expensive part costs as planned; `inf` if the goal does not compare parts. See `cost_of`."""
    match goal:
        case Into() | Across(objective="throughput" | "latency" | "decode" | "devices"):
            boundaries = pairwise(solution.found.chain.boundaries)
            return max(float(table[j, i]) for table, (i, j) in zip(solution.costs, boundaries, strict=True))
        case _:
            return inf


def _bound_of(outcome: Optimality) -> float:
    """The bound of what is minimized: for tokens a second of the seconds of a token."""
    return outcome.bound if outcome.unit != "tokens/s" else 1 / outcome.bound


def _is_much_better(outcome: Optimality, value: float, than: float) -> bool:
    return value < than if outcome.unit in {"parts", "devices"} else value <= than * (1 - LARGE_GAIN)
