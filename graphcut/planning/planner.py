"""Planning: the best parts for a goal, with what they recompute.

The search decides which groups of nodes form a part. Parts are then finished in several ways: they recompute cheap
values, or receive them. The best of these candidates is the plan, and its lower bound holds for all such choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from math import ceil, inf, isclose
from typing import Final

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis, AnalysisLike, analyze
from ..core.errors import PlanError, UsageError, check_positive
from ..costs.caches import DecoderProfile, sized_dims
from ..costs.device import least_widening
from ..costs.matching import cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs, weigh
from ..sharding.rank_costs import RankCosts
from ..solving.search import SMALL
from .by_goal.cluster_mapping import plan_across
from .by_goal.fewest_crossings import plan_crossings
from .by_goal.interleaved_mapping import plan_interleaved
from .by_goal.memory_budget import fewest_parts, named_budget, plan_within
from .by_goal.output_heads import parts_of_heads
from .by_goal.part_count import plan_into
from .candidate import Candidate
from .explaining import explained, front_of
from .finishing import TOLERANCE, Finisher, most_planned
from .goals import Across, At, Goal, Heads, Into, Limits, Within, check_goal, with_less_memory
from .plans import ANY_DEVICE, Plan, check_limits, check_part_count, check_part_limits, same_parts
from .problem import PlanningProblem, problem_of
from .results import Solution, places

_LARGE_GAIN: Final = 0.1  #: repeated layers are cut without being asked if that saves this share.
_TRIES: Final = 10  #: so often a goal is searched again with less memory, each time down to _STEP of it at least.
_STEP: Final = 0.85
_MORE: Final = 0.005  #: by so much more each time than the time before.
_NEIGHBOURS: Final = 8  #: so many other boundaries are tried for each cut where a plan is not proven.
_FAR: Final = 1.5  #: such a multiple of a simple bound is far above it.
_MOST_FROM_FEWER: Final = 6  #: more parts are not made from those with one less, which all have to be planned first.
_Searched = Into | Within | Across  #: the goals that a search finds parts for.


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
class _Planner(Finisher):
    """Searches for the best plan."""

    #: of a pipeline of models, no part has nodes that run once and nodes of each step. If no plan is found, it may.
    keeps_phases: bool = True
    is_cautious: bool = False  #: see `PlanningProblem`.

    def optimized(self, goal: _Searched, prove_s: float) -> Plan:
        """The best plan found; an error names a budget only if a plan was found that keeps it."""
        try:
            return self.within_budgets(goal, prove_s)
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
        return planner.within_budgets(goal, 0.0)

    def within_budgets(self, goal: _Searched, prove_s: float) -> Plan:
        """The best plan found whose parts keep their budgets in the order in which ONNX Runtime runs their nodes.

        The search counts what is alive when groups run in its own order. Where a part then needs more than its budget,
        the search is repeated with less memory. Its bound stays that of the first search.
        """
        least, first = inf, None
        for made in chain(self.tried(goal, prove_s), replace(self, is_cautious=True).tried(goal, prove_s)):
            first = first or made.outcome
            if max(made.budget_shares) <= 1 and made.outcome is not None and first is not None:
                is_alike = first.keeps_layers == made.outcome.keeps_layers
                is_optimal = is_alike and first.is_optimal and made.outcome.value == first.value
                bound = first.bound if is_alike else None
                outcome = changed(made.outcome, bound=bound, is_optimal=is_optimal)
                check_part_count(made)
                check_part_limits(made)
                return same_parts(made, outcome=outcome)
            least = min(least, max(made.budget_shares))
        if isinstance(goal, Within):
            with suppress(PlanError):
                return self.first_found(goal)
        budget = ceil(least * goal.memory_bytes) if isinstance(goal, Within) else 0
        what = "a part" if budget else "a device"
        hint = f"allow {named_budget(budget)}; less may be enough" if budget else f"try {least:.2f} times that much"
        message = f"no plan was found in which ONNX Runtime runs each part in the memory of {what}"
        raise PlanError(message, hint=hint, budget_bytes=budget)

    def tried(self, goal: _Searched, prove_s: float) -> Iterator[Plan]:
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

    def first_found(self, goal: Within) -> Plan:
        """A plan from the first parts that a search finds where it can most easily, each node in one of them."""
        limits = self.limits if self.limits.inside_layers is not None else changed(self.limits, inside_layers=True)
        problem = replace(self._problem(goal, limits, with_replicable=False), is_cautious=True)
        solution = plan_within(problem, goal, ANY_DEVICE, is_refined=False)
        made = self._planned(problem.nodes_of(solution.found.parts), solution.devices, ())
        if max(made.budget_shares) > 1:
            raise PlanError("the first parts that were found take more memory than was counted")
        check_part_count(made)
        check_part_limits(made)
        bound = solution.bounds.simple
        return self._as_plan(Candidate(problem, solution, made, made.minimized(solution.value), bound, False), goal)

    def _as_plan(self, best: Candidate, goal: _Searched) -> Plan:
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

    def best(self, goal: _Searched, prove_s: float) -> Candidate:
        """The best candidate. Repeated layers are cut if that is needed or makes the plan much better.

        Much better is a part less, or a tenth less of what the most expensive part costs; for a memory budget also a
        tenth fewer bytes that parts receive, in models that are not large.
        """
        if self.limits.inside_layers is not None or self.analysis.repeat is None:
            return self._best_of_all(goal, self.limits, prove_s)
        kept, inside = (changed(self.limits, inside_layers=value) for value in (False, True))
        if isinstance(goal, Across):
            return self._best_on_devices(goal, kept, inside, prove_s)
        return self._best_in_any_layers(goal, kept, inside, prove_s)

    def _best_in_any_layers(self, goal: Into | Within, kept: Limits, inside: Limits, prove_s: float) -> Candidate:
        """The best candidate with layers kept whole, unless one that cuts them is much better."""
        try:
            whole = self._best_of_all(goal, kept, prove_s)
        except PlanError:
            if isinstance(goal, Within):
                return self._best_of_all(goal, inside, prove_s)
            raise
        expense, is_enough = whole.made.expense, False
        if isinstance(goal, Within) and whole.value <= fewest_parts(problem := self._problem(goal, inside), goal):
            whole = replace(whole, bound=whole.value, keeps_layers=False)
            is_enough = whole.value <= 1 or len(problem.groups) > SMALL
        elif isinstance(goal, Into):  # equal parts, with no more transfers, would not be much cheaper
            is_enough = sum(expense) / len(expense) >= max(expense) * (1 - _LARGE_GAIN)
        if is_enough:
            return whole
        cut = self._best_of_all(goal, inside, prove_s)
        is_lighter = cut.made.received_bytes < whole.made.received_bytes * (1 - _LARGE_GAIN)
        if isinstance(goal, Within) and cut.value == whole.value and is_lighter:
            return replace(cut, bound=max(cut.bound, whole.bound))
        if cut.value < whole.value * (1 if isinstance(goal, Within) else 1 - _LARGE_GAIN):
            return cut
        if cut.value < whole.value:
            whole = replace(whole, inside_layers=cut.outcome)
        is_bound = (cut.outcome.bound or 0.0) >= whole.value
        return replace(whole, bound=whole.value, keeps_layers=False) if is_bound else whole

    def _best_on_devices(self, goal: Across, kept: Limits, inside: Limits, prove_s: float) -> Candidate:
        """Repeated layers are cut if nothing else fits, and are divided unasked if that does not fit either."""
        if self.refused:  # a layer need not run on any one device
            return self._best_of_all(goal, inside, prove_s)
        is_asked = goal.ranks is not None or goal.objective == "latency"
        alone = goal if is_asked else changed(goal, ranks=1)
        with suppress(PlanError):
            return self._best_of_all(alone, kept, prove_s)
        try:
            return self._best_of_all(alone, inside, prove_s)
        except PlanError:
            if not is_asked and self._dividing(goal):
                with suppress(PlanError):
                    return self._best_of_all(changed(goal, ranks=len(goal.cluster.devices)), kept, 0.0)
            raise

    def _best_of_all(self, goal: _Searched, limits: Limits, prove_s: float) -> Candidate:
        """The best of several candidates, made until one is proven to be optimal.

        The parts are searched with each replicable node in all that need it, at the least that these nodes can cost a
        part, and with each of them in one part.
        """
        problem = self._problem(goal, limits)
        once_each = partial(self._problem, goal, limits, with_replicable=False)
        try:
            solution = self._solve(problem, goal, prove_s)
        except PlanError:
            if not problem.repeated:
                raise
            plain = once_each()
            return self._best_without_replicas(goal, problem, self._solve(plain, goal, prove_s), plain)
        best, bound = self._best_finished(problem, solution), solution.bound
        if solution.relaxed is not None and not best.outcome.is_optimal:
            best = best.or_better(self._best_finished(problem, solution.relaxed, is_relaxed=True))
        if problem.repeated and not best.outcome.is_optimal:
            with suppress(PlanError):
                once = self._solve(plain := once_each(), goal, 0.0)
                best = best.or_better(self._best_finished(plain, once))
                if once.outcome.is_optimal:
                    bound = max(bound, min(solution.bounds.of_own_nodes, once.bound))
        best = self._or_from_fewer(goal, best, problem, solution.bounds.simple)
        return self._with_any_repeats(replace(best, bound=bound), problem, solution)

    def _or_from_fewer(self, goal: _Searched, best: Candidate, problem: PlanningProblem, simple: float) -> Candidate:
        """The candidate, or the best with one part less, one of them cut in two: where sending takes far longer."""
        is_far = best.value > simple * _FAR and len(problem.groups) <= SMALL and not problem.pins
        if not (is_far and isinstance(goal, Into) and goal.by == "time" and 2 < goal.parts <= _MOST_FROM_FEWER):
            return best
        with suppress(PlanError):  # there may be phases for more parts than that
            fewer = self._best_of_all(changed(goal, parts=goal.parts - 1), problem.limits, 0.0)
            more = fewer.solution.with_one_cut_more(_NEIGHBOURS) if fewer.value < best.value else ()
            finished = partial(self._best_finished, fewer.problem, is_relaxed=True)
            best = reduce(Candidate.or_better, map(finished, more), best)
        return best

    def _best_without_replicas(
        self, goal: _Searched, problem: PlanningProblem, once: Solution, plain: PlanningProblem
    ) -> Candidate:
        """The best candidate where not every part can have all replicable nodes that it needs.

        `once` has each node in one part. What no choice of replicas beats is a plan that pays nothing for them.
        """
        best, bound = self._best_finished(plain, once), inf
        with suppress(PlanError):
            free = replace(problem, are_replicas_free=True)
            solution = self._solve(free, goal, 0.0)
            best = best.or_better(self._best_finished(free, solution, is_relaxed=True))
            bound = solution.bound
        best = replace(best, bound=min(bound, once.bound if once.outcome.is_optimal else once.bounds.simple))
        return self._with_any_repeats(best, plain, once)

    def _with_any_repeats(self, best: Candidate, problem: PlanningProblem, solution: Solution) -> Candidate:
        """The candidate, or a better one; its bound is one of all plans, whatever nodes their parts repeat."""
        bound_of, goal = solution.bound_with_repeats, self.goal
        is_limited = isinstance(goal, Across) and any(device.memory_bytes for device in goal.cluster.devices)
        if bound_of is None or (problem.limits.recompute == "never" and not is_limited):
            return best
        bound, first_bound, value = best.bound, best.bound, inf
        by_time = isinstance(goal, Into) and goal.by == "time"
        tried = {(id(best.problem), best.solution.found.parts)}
        while best.value < value * (1 - TOLERANCE) and best.value > solution.bounds.simple * (1 + TOLERANCE):
            value = best.value
            bound, chains = bound_of(value)
            if not chains or not (by_time or isinstance(goal, Within)):
                break
            parts = goal.parts if isinstance(goal, Into) else int(value) - 1
            chains = [one for one in chains if len(one) > parts or not (by_time or problem.pins)]
            tries = [(problem, solution.between(boundaries)) for boundaries in chains]
            if by_time:
                others = best.solution.with_one_cut_elsewhere(_NEIGHBOURS, best.problem.pins)
                tries += [(best.problem, other) for other in others]
            for of, other in tries:
                if (key := (id(of), other.found.parts)) not in tried:
                    best = best.or_better(self._best_finished(of, other, is_relaxed=True))
                    tried.add(key)
        return replace(best, bound=min(bound, first_bound))

    def _problem(self, goal: _Searched, limits: Limits, *, with_replicable: bool = True) -> PlanningProblem:
        nodes = self.replicable(goal) if with_replicable else (frozenset[int](),) * 2
        devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
        found = problem_of(self.analysis, self.costs, limits, self.counted_sizes, *nodes)
        phases = found.phases if self.keeps_phases else {}
        device, is_cautious = least_widening(devices), self.is_cautious
        return replace(found, device=device, kept=self.kept, phases=phases, is_cautious=is_cautious)

    def _solve(self, problem: PlanningProblem, goal: _Searched, prove_s: float) -> Solution:
        if isinstance(goal, Into):
            return plan_into(problem, goal, ANY_DEVICE, self.seconds(ANY_DEVICE), prove_s=prove_s)
        if isinstance(goal, Within):
            return plan_within(problem, goal, ANY_DEVICE, prove_s=prove_s)
        return self._across(problem, goal, prove_s)

    def _across(self, problem: PlanningProblem, goal: Across, prove_s: float) -> Solution:
        """The best plan for a cluster. Layers are divided if that is asked for, or nothing else fits."""
        is_asked = goal.ranks is not None or goal.objective == "latency"
        ranks = self._dividing(goal) if is_asked else None
        if goal.objective == "crossings":
            return plan_crossings(problem, goal, self.seconds)
        if goal.interleave:
            return plan_interleaved(problem, goal, self.seconds, prove_s=prove_s)
        try:
            return plan_across(problem, goal, self.seconds, ranks, prove_s)
        except PlanError as error:
            if not is_asked and (ranks := self._dividing(goal)):
                with suppress(PlanError):
                    return plan_across(problem, goal, self.seconds, ranks)
            raise error from None

    def _dividing(self, goal: Across) -> RankCosts | None:
        """What divided layers cost; None where none can or may be divided. It takes longer than most plans."""
        check_positive(goal.ranks, f"layers can't be divided among {goal.ranks} devices")
        has_rules = any(device.rules is not None or device.compiles for device in goal.cluster.devices)
        is_free = not (self.limits.boundary_dtype or goal.interleave or has_rules)
        is_free = is_free and goal.objective in {"throughput", "latency", "decode"}
        if (goal.ranks or 1) > 1 and not is_free:
            raise UsageError(
                "layers are divided for throughput, latency or decode, without interleaving, boundary dtype or rules",
                hint="leave out `ranks`; or `interleave`, `boundary_dtype`, and rules of devices",
            )
        ranks = self.rank_costs if is_free and goal.ranks != 1 and len(goal.cluster.devices) > 1 else None
        return ranks if ranks and ranks.division((1, 1)).classes else None

    def _best_finished(self, problem: PlanningProblem, solution: Solution, *, is_relaxed: bool = False) -> Candidate:
        """The parts with the replicas that serve the objective best, of several choices."""
        found = list[Candidate]()
        for made in self.finished(problem, solution.found.parts, solution.devices, most_planned(self.goal, solution)):
            fits = max(made.budget_shares) <= 1
            value = made.minimized(solution.value) if fits or not is_relaxed else inf
            value = solution.value if isclose(value, solution.value, rel_tol=TOLERANCE) else value
            found.append(Candidate(problem, solution, made, value, solution.bound, problem.keeps_layers))
            if fits and found[-1].outcome.is_optimal and not isinstance(self.goal, Within):
                break
        return reduce(Candidate.or_better, [one for one in found if max(one.made.budget_shares) <= 1] or found)
