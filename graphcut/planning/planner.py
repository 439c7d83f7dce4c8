"""Planning: the best parts for a goal, with what they recompute.

The search decides which groups of nodes form a part. Parts are then finished in several ways: they recompute cheap
values, or receive them. The best of these candidates is the plan, and its lower bound holds for all such choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import ceil, inf
from typing import Final

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis, AnalysisLike, analyze
from ..core.errors import PlanError, UsageError
from ..costs.caches import DecoderProfile, sized_dims
from ..costs.matching import cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs, weigh
from ..solving.search import SMALL
from .by_goal.memory_budget import named_budget, plan_within
from .by_goal.output_heads import parts_of_heads
from .candidate import Candidate
from .explaining import explained, front_of
from .finishing import most_planned
from .goals import Across, At, Goal, Heads, Into, Limits, Within, check_goal, with_less_memory
from .plans import ANY_DEVICE, Plan, check_limits, checked, same_parts
from .results import Optimality, places
from .searching import Searched, Searcher

_TRIES: Final = 10  #: so often a goal is searched again with less memory, each time down to _STEP of it at least.
_STEP: Final = 0.85
_MORE: Final = 0.005  #: by so much more each time than the time before.


def plan(
    source: AnalysisLike,
    goal: Goal,
    *,
    limits: Limits | None = None,
    costs: Costs | None = None,
    table: CostTable | None = None,
    prove_s: float = 0.0,
) -> Plan:
    """The best plan for a goal. The same arguments give the same plan.

    Args:
        source: the analysis of the model, the model, or its path.
        goal: `At`, `Into`, `Within`, `Across` or `Heads`.
        limits: its constraints.
        costs: FLOPs and bytes of the nodes; by default for `default_dims`.
        table: a cost model whose values replace computed ones.
        prove_s: time limit of the exact solver, which is asked if the search can't prove that its plan is optimal.

    Raises:
        TypeError: the goal is not a goal.
        UsageError: the goal or the limits name what the model does not have, or would leave a part empty.
        PlanError: no plan meets the goal; the hint says what would.
    """
    check_goal(goal)
    analysis = analyze(source)
    model, limits = analysis.model, limits or Limits()
    if not model.graph.flow:
        hint = "run the model as it is"
        raise PlanError(f"{model.title} has nothing to cut: no node depends on an input", hint=hint)
    costs = costs or weigh(model, default_dims(analysis, goal))
    if table is not None and not cover(table, costs)[1].matched:
        hint = f"its first row is called {table.rows[0].module!r}" if table.rows else "it has no rows"
        raise UsageError(f"the cost model matched no node of {model.title}", hint=hint)
    planner = _Planner(analysis, goal, limits, _sending(costs, limits, goal), table)
    return planner.named(goal) if isinstance(goal, At | Heads) else planner.optimized(goal, prove_s)


def default_dims(
    analysis: Analysis, goal: Goal | None = None, profile: DecoderProfile | None = None, tokens: int | None = None
) -> Mapping[str, int]:
    """`sized_dims`, as an analysis has them; for the objective `decode` those of one token with 512 in the cache."""
    is_decoding = isinstance(goal, Across) and goal.objective == "decode"
    if profile is None and tokens is None and not is_decoding:
        return analysis.sized.dims
    return sized_dims(analysis.model, profile, tokens, default="decode" if is_decoding else "prefill")


def with_metrics(source: AnalysisLike, made: Plan, costs: Costs) -> Plan:
    """A plan without metrics (edited, or made by hand) with those of its parts, and with what they recompute."""
    phases = costs.model.phases
    is_apart = all(len({phases[node] for node in part if node in phases} - {2}) <= 1 for part in made.parts)
    sending = _sending(costs, made.limits, made.goal if is_apart else None)
    return _Planner(analyze(source), made.goal, made.limits, sending, made.table).with_repeated(made)


def _sending(costs: Costs, limits: Limits, goal: Goal | None) -> Costs:
    """The costs if tensors cross as the limits say; the same ones, with what they have computed, if they do already.

    Of tokens a second those of a step, without what a pipeline of models runs once; for no goal all counts, as where a
    part has nodes that run once and nodes of each step, and so runs both.
    """
    is_step = isinstance(goal, Across) and goal.objective == "decode"
    once = frozenset(node for node, phase in costs.model.phases.items() if is_step and phase == 0)
    sends_half = limits.boundary_dtype is not None
    is_alike = (costs.sends_half, costs.run_before) == (sends_half, once)
    return costs if is_alike else replace(costs, sends_half=sends_half, run_before=once)


@dataclass(frozen=True)
class _Planner(Searcher):
    """Makes the plan for a goal of what a search finds."""

    def optimized(self, goal: Searched, prove_s: float) -> Plan:
        """The best plan found; an error names a budget only if a plan was found that keeps it."""
        try:
            return checked(self.within_budgets(goal, prove_s))
        except PlanError as error:
            if self.keeps_phases and self.analysis.model.phases:
                costs = _sending(self.costs, self.limits, None)  # what runs once may run again at each step
                return replace(self, keeps_phases=False, costs=costs).optimized(goal, prove_s)
            if not isinstance(goal, Within) or "activations" not in goal.counting or not error.budget_bytes:
                raise
            named, budget = named_budget(error.budget_bytes), self._met(goal, error.budget_bytes)
            hint = error.hint.replace(named, named_budget(budget)) if budget else "allow more memory"
            raise PlanError(str(error), hint=hint, budget_bytes=budget) from None

    def _met(self, goal: Within, budget: int) -> int:
        """This budget or one near it, for which a plan is found; 0 if there is none after some tries.

        For a small model it is lowered to what that plan needs, as long as a plan is found for that, too.
        """
        met = 0
        for _ in range(_TRIES):
            try:
                most = max(self._any_within(changed(goal, memory_bytes=budget, most_parts=None)).needs)
            except PlanError as error:
                if met:
                    break
                budget = max(budget + budget // 50, error.budget_bytes)
            else:
                met, budget = budget, min(most, budget - 1)
                if len(self.graph.flow) > SMALL:
                    break
        return met

    def _any_within(self, goal: Within) -> Plan:
        """A plan for a budget, found as fast as possible."""
        planner = replace(self, goal=goal)
        with suppress(PlanError):
            return planner.first_found(goal)
        return planner.within_budgets(goal, 0.0, is_thorough=False)

    def within_budgets(self, goal: Searched, prove_s: float, *, is_thorough: bool = True) -> Plan:
        """The best plan found whose parts keep their budgets in the order in which ONNX Runtime runs their nodes.

        The search counts what is alive when groups run in its own order. Where a part then needs more than its budget,
        the search is repeated with less memory; if it `is_thorough`, also where it counts more, and for parts of the
        fewest bytes. Its bound stays that of the first search.
        """
        least, first = inf, None
        planners = (self, replace(self, is_cautious=True)) if is_thorough else (self,)
        for made in chain.from_iterable(planner.tried(goal, prove_s) for planner in planners):
            first = first or made.outcome
            if max(made.budget_shares) <= 1 and made.outcome is not None and first is not None:
                is_alike = first.keeps_layers == made.outcome.keeps_layers
                is_optimal = is_alike and first.is_optimal and made.outcome.value == first.value
                outcome = changed(made.outcome, bound=first.bound if is_alike else None, is_optimal=is_optimal)
                known, is_last = same_parts(made, outcome=outcome), is_optimal or not is_thorough
                return known if is_last else next(self._in_fewer(goal, outcome, len(made.parts)), known)
            least = min(least, max(made.budget_shares))
        if isinstance(goal, Within) and is_thorough:
            with suppress(PlanError):
                return (next(self._in_fewer(goal, first, _TRIES), None) if first else None) or self.first_found(goal)
        budget = ceil(least * goal.memory_bytes) if isinstance(goal, Within) else 0
        what = "a part" if budget else "a device"
        hint = f"allow {named_budget(budget)}; less may be enough" if budget else f"try {least:.2f} times that much"
        message = f"no plan was found in which ONNX Runtime runs each part in the memory of {what}"
        raise PlanError(message, hint=hint, budget_bytes=budget)

    def tried(self, goal: Searched, prove_s: float) -> Iterator[Plan]:
        """The best plans for less memory each time, as long as one is found; see `within_budgets`."""
        low, high, share, factor = 0.0, 1.0, 1.0, 1.0
        for tries in range(_TRIES):
            try:
                made = self._as_plan(self.best(with_less_memory(goal, share), prove_s), goal)
            except PlanError:
                if share == 1 and not self.is_cautious:
                    raise
                low = share
            else:
                yield made
                # More than by the excess, each time: else plans that are counted a little too low may be found again.
                factor = max(min(1 / max(made.budget_shares), 1 - _MORE * tries), _STEP)
                high = share
            if high - low < _MORE:
                break
            share = max(high * factor, (low + high) / 2)

    def _in_fewer(self, goal: Searched, known: Optimality, most: int) -> Iterator[Plan]:
        """Plans of a small model for a budget, in fewer than `most` parts: those of the fewest bytes each may fit."""
        bound = known.bound or 0.0
        is_small = isinstance(goal, Within) and len(self.graph.flow) <= SMALL
        for parts in range(max(2, ceil(bound), most - _TRIES), most if is_small else 0):
            with suppress(PlanError):
                smallest = Into(parts, "bytes")
                best = replace(self, goal=smallest).best(smallest, 0.0)
                made = self._planned(best.made.parts, best.made.devices, best.made.recomputed)
                if max(made.budget_shares) <= 1:
                    outcome = changed(known, value=float(parts), is_optimal=parts <= bound)
                    yield same_parts(self._as_plan(replace(best, made=made), goal), outcome=outcome)

    def first_found(self, goal: Within) -> Plan:
        """A plan from the first parts that a search finds where it can most easily, each node in one of them."""
        limits = self.limits if self.limits.inside_layers is not None else changed(self.limits, inside_layers=True)
        problem = replace(self._problem(goal, limits, with_replicable=False), is_cautious=True)
        solution = plan_within(problem, goal, ANY_DEVICE, is_refined=False)
        made = self._planned(problem.nodes_of(solution.found.parts), solution.devices, ())
        if max(made.budget_shares) > 1:
            raise PlanError("the first parts that were found take more memory than was counted")
        bound = solution.bounds.simple
        return self._as_plan(Candidate(problem, solution, made, made.minimized(solution.value), bound, False), goal)

    def _as_plan(self, best: Candidate, goal: Searched) -> Plan:
        """The plan of a candidate, with all that is known of it."""
        free = changed(self.limits, pins=(), avoid=())
        costs, rows = best.solution.part_costs, places(best.solution, best.problem)
        front = [
            next(self.finished(best.problem, one.found.parts, one.devices, most_planned(self.goal, one)))
            for one in best.solution.find_front()
        ]
        return same_parts(
            best.made,
            outcome=best.known_outcome(self.goal),
            inside_layers=best.inside_layers,
            unlimited=None if free == self.limits else replace(self, limits=free).best(goal, 0.0).outcome,
            front=front_of(best.made, front),
            modes=tuple(self.modes(best.made)),
            explain=partial(explained, replace(self), best.made, costs, rows),
            model=self.analysis.model,
        )

    def named(self, goal: At | Heads) -> Plan:
        """The plan whose parts the goal names, finished as parts that are found."""
        if isinstance(goal, Heads):
            parts = parts_of_heads(self.graph, goal)
            check_limits(Plan(goal, self.graph, parts, limits=self.limits))
            made = self.with_replicas(parts, (ANY_DEVICE,) * len(parts), (), inf)
            return same_parts(made, model=self.analysis.model)
        made = self.at(goal)
        check_limits(made)
        return same_parts(made, model=self.analysis.model, devices=())
