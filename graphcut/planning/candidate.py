"""A candidate for the plan: parts that were found, and the plan that became of them."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace as changed

from .by_goal.memory_budget import fewest_parts
from .finishing import TOLERANCE
from .goals import Goal, Into, Within
from .plans import Plan
from .problem import PlanningProblem
from .results import Optimality, Solution, optimality_of


@dataclass(frozen=True)
class Candidate:
    """Parts that were found, and the plan that became of them."""

    problem: PlanningProblem  #: what was searched.
    solution: Solution  #: the parts as searched.
    made: Plan  #: the parts with what they recompute, and their metrics.
    value: float  #: what the goal minimizes; see `Plan.minimized`.
    bound: float  #: a lower bound of the value of any plan.
    keeps_layers: bool  #: the bound is one of plans that do not cut layers.
    inside_layers: Optimality | None = None  #: see `Plan.inside_layers`.

    @property
    def outcome(self) -> Optimality:
        found = optimality_of(self.solution, self.value, min(self.bound, self.value))
        return changed(found, keeps_layers=self.keeps_layers)

    def known_outcome(self, goal: Goal) -> Optimality:
        """The outcome; nothing is proven of a value that hangs on tensors without a size, or on an order of nodes."""
        outcome, counting = self.outcome, goal.counting if isinstance(goal, Within) else ("work",)
        is_of_files = (isinstance(goal, Into) and goal.by in {"bytes", "layers"}) or not counting
        if self.problem.costs.sizes.unknown and not is_of_files:
            return changed(outcome, is_optimal=False, bound=None)
        if isinstance(goal, Within) and "activations" in counting and outcome.is_optimal:
            bound = fewest_parts(self.problem, goal)
            return changed(outcome, is_optimal=outcome.value <= bound, bound=bound)
        return outcome

    def or_better(self, other: Candidate) -> Candidate:
        """The one with the smaller value; of equal ones the one with fewer bytes received; of such the first."""
        if abs(self.value - other.value) > TOLERANCE * self.value:
            return min(self, other, key=lambda one: one.value)
        return min(self, other, key=lambda one: one.made.received_bytes)
