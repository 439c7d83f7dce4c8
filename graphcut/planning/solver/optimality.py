"""`--prove`: ask the exact solver how good the best plan there is can be, and take its plan where that is better."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from .milp import MilpProblem, solve
from .order_prefixes import prefix_tables
from .search import Evaluator, SearchResult, result_on


def prove(
    found: SearchResult, bound: float, question: MilpProblem, judge: Evaluator, *, time_limit_s: float
) -> tuple[SearchResult, float]:
    """The best plan known, and the best bound known, after the exact solver had its time.

    Args:
        found: the best plan of the search.
        bound: no plan's first rank is lower, as far as is known.
        question: the same as a mixed-integer program.
        judge: ranks the solver's plan as all others are ranked.
        time_limit_s: 0 asks nothing.
    """
    if found.is_optimal or found.ranks[0] <= bound or not time_limit_s:
        return found, bound
    answer = solve(question, time_limit_s=time_limit_s)
    if answer is None:
        return found, bound
    proven = np.ceil(answer.bound - 1e-6) if question.sense == "parts" else answer.bound
    if answer.parts:
        order = tuple(group for part in answer.parts for group in part)
        ladder = prefix_tables(question.load, order, [0, *accumulate(len(part) for part in answer.parts)])
        climb = judge(ladder)
        if climb is not None and climb.ranks < found.ranks:
            found = result_on(ladder, climb)
    return found, max(bound, min(float(proven), found.ranks[0]))
