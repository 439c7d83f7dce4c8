"""Why each cut of a plan is where it is: what crosses there, and what the next best cuts would cost."""

from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from .instance import Floats
from .problem import PlanningProblem
from .results import Solution

_MOST_ALTERNATIVES: Final = 2


class CandidateCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cut, all other cuts of the plan left where they are."""

    after: str  #: the last node before it.
    #: the objective with this cut, in the unit of the outcome; but for parts within a budget it is bytes received, for
    #: the fewest devices seconds of one request, and for tokens seconds between two.
    cost: float
    crossing_bytes: int  #: bytes that cross, each tensor once.


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The explanation of one cut."""

    chosen: CandidateCut  #: the cut of the plan.
    bottleneck: int  #: the part with the greatest cost.
    alternatives: tuple[CandidateCut, ...]  #: the next best cuts, the best first.


def reasons(solution: Solution, problem: PlanningProblem) -> tuple[Reason, ...]:
    """One reason for each cut, in order."""
    steps = zip(solution.costs, pairwise(solution.found.chain.boundaries), strict=True)
    costs = np.array([float(table[j, i]) for table, (i, j) in steps])
    return tuple(_reason(solution, problem, costs, cut) for cut in range(len(costs) - 1))


def _reason(solution: Solution, problem: PlanningProblem, costs: Floats, cut: int) -> Reason:
    """The cost of each boundary between those before and after the cut, from the tables of the parts on both sides."""
    tables = solution.found.tables
    before, here, after = solution.found.chain.boundaries[cut : cut + 3]
    combine = np.add if solution.aggregation == "sum" else np.maximum
    total = combine(solution.costs[cut][:, before], solution.costs[cut + 1][after, :])
    rest = np.delete(costs, [cut, cut + 1])
    if len(rest):
        total = combine(total, rest.sum() if solution.aggregation == "sum" else rest.max())

    def candidate(boundary: int) -> CandidateCut:
        node = problem.groups[tables.groups_between(0, boundary)[-1]][-1]
        return CandidateCut(problem.graph.nodes[node].name, float(total[boundary]), int(tables.sent[boundary, 0]))

    chosen = candidate(here)
    ascending = [int(i) for i in np.argsort(total, kind="stable") if np.isfinite(total[i]) and i != here]
    others = [candidate(i) for i in reversed(ascending[: 4 * _MOST_ALTERNATIVES])]
    by_node = {other.after: other for other in others if other.after != chosen.after}
    alternatives = sorted(by_node.values(), key=lambda other: other.cost)[:_MOST_ALTERNATIVES]
    return Reason(chosen, int(costs.argmax()), tuple(alternatives))
