"""`--prove`: ask the exact solver for a lower bound, and take its plan where that is better."""

from itertools import accumulate

from .milp import MilpProblem, solve
from .order_prefixes import prefix_tables
from .search import Evaluator, SearchResult, better, result_on


def prove(
    found: SearchResult, lower_bound: float, problem: MilpProblem, evaluate: Evaluator, *, time_limit_s: float
) -> tuple[SearchResult, float]:
    """The best result and the best lower bound of the first value known after the exact solver has had its time.

    It solves `problem` unless `found` is optimal already or the time limit is 0; `evaluate` values its plan.
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
