"""`--prove`: ask the exact solver for a lower bound, and take its plan where that is better."""

from __future__ import annotations

from itertools import accumulate

from .milp import MilpProblem, solve
from .order_prefixes import prefix_tables
from .search import Evaluator, SearchResult, better, result_on


def prove(
    found: SearchResult, lower_bound: float, problem: MilpProblem, evaluate: Evaluator, *, time_limit_s: float
) -> tuple[SearchResult, float]:
    """The best plan and the best lower bound known after the exact solver has had its time.

    Args:
        found: the best plan of the search.
        lower_bound: the lower bound known so far of the first value of any plan.
        problem: the same as a mixed-integer program.
        evaluate: values the solver's plan as all others are valued.
        time_limit_s: 0 does not ask the solver.
    """
    if found.is_optimal or found.chain.values[0] <= lower_bound or not time_limit_s:
        return found, lower_bound
    answer = solve(problem, time_limit_s=time_limit_s)
    if answer is None:
        return found, lower_bound
    if answer.parts:
        order = tuple(group for part in answer.parts for group in part)
        tables = prefix_tables(problem.load, order, [0, *accumulate(map(len, answer.parts))])
        found = better(found, result_on(tables, evaluate)) or found
    return found, max(lower_bound, min(answer.bound, found.chain.values[0]))
