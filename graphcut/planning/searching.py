"""The search: the best candidate for a goal, of the parts that are found and the ways to finish them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf, isclose
from typing import Final

from msgspec.structs import replace as changed

from ..core.errors import PlanError, UsageError, check_positive
from ..costs.device import least_widening
from ..sharding.rank_costs import RankCosts
from ..solving.search import SMALL
from .by_goal.cluster_mapping import plan_across
from .by_goal.fewest_crossings import plan_crossings
from .by_goal.interleaved_mapping import plan_interleaved
from .by_goal.memory_budget import fewest_parts, plan_within
from .by_goal.part_count import plan_into
from .candidate import Candidate
from .finishing import TOLERANCE, Finisher, most_planned
from .goals import Across, Into, Limits, Within
from .plans import ANY_DEVICE
from .problem import PlanningProblem, problem_of
from .results import Solution

_LARGE_GAIN: Final = 0.1  #: repeated layers are cut without being asked if that saves this share.
_NEIGHBOURS: Final = 8  #: so many other boundaries are tried for each cut where a plan is not proven.
_FAR: Final = 1.5  #: such a multiple of a simple bound is far above it.
_MOST_FROM_FEWER: Final = 6  #: more parts are not made from those with one less, which all have to be planned first.
Searched = Into | Within | Across  #: the goals that a search finds parts for.


@dataclass(frozen=True)
class Searcher(Finisher):
    """Searches for the best parts, and finishes them."""

    #: of a pipeline of models, no part has nodes that run once and nodes of each step. If no plan is found, it may.
    keeps_phases: bool = True
    is_cautious: bool = False  #: see `PlanningProblem`.

    def best(self, goal: Searched, prove_s: float) -> Candidate:
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
            return self._best_of_all(goal, inside, prove_s)
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

    def _best_of_all(self, goal: Searched, limits: Limits, prove_s: float) -> Candidate:
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

    def _or_from_fewer(self, goal: Searched, best: Candidate, problem: PlanningProblem, simple: float) -> Candidate:
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
        self, goal: Searched, problem: PlanningProblem, once: Solution, plain: PlanningProblem
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

    def _problem(self, goal: Searched, limits: Limits, *, with_replicable: bool = True) -> PlanningProblem:
        nodes = self.replicable(goal) if with_replicable else (frozenset[int](),) * 2
        devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
        found = problem_of(self.analysis, self.costs, limits, self.counted_sizes, *nodes)
        found = replace(found, device=least_widening(devices), kept=self.kept, is_cautious=self.is_cautious)
        return found if self.keeps_phases else replace(found, phases={})

    def _solve(self, problem: PlanningProblem, goal: Searched, prove_s: float) -> Solution:
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
