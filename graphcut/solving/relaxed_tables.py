"""Lower bounds over all choices of replicas: each part takes the least that any choice of its own would cost it.

A part computes each replicable value that it needs, or receives it. What the cheapest choice costs the part itself is a
minimum cut (Hwang and El Gamal, 1995). Who sends the value is not charged, so no plan is below these tables, whatever
its parts replicate. The plan that the solver finds on them is often one that keeps them: then it is optimal.

Example: two groups of 5 s need a value that takes 3 s to compute and 2 s to receive.

    >>> from .instance import Workload
    >>> from .order_ideals import ideal_tables
    >>> none, users = Hyperedges.of([]), Hyperedges.of([(0, 1)])
    >>> from workloads import workload  # tests/workloads.py
    >>> without = workload([[5, 5]], [])
    >>> replicas = Replicas(users, ((),), np.array([[3.0]]), *(np.array([n]) for n in (0, 2, 0)), without)
    >>> load = replace(without, sharers=users, shared_bytes=np.array([0]), shared_work=replicas.work, replicas=replicas)
    >>> tables = ideal_tables(load, most=9)
    >>> tables.work(0, s_per_byte=1)[3].tolist()  # of the parts {0, 1}, {1} and {0}: both compute it
    [13.0, 8.0, 8.0, 0.0]
    >>> relaxation = Relaxation(tables, replicas, _needed(tables, replicas))
    >>> relaxation.tables.work(0, s_per_byte=1)[3].tolist()  # who is not first can receive it
    [13.0, 7.0, 7.0, 0.0]
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from ..core.graph import grouped
from .boundaries import BoundaryTables, Relaxation
from .instance import Hyperedges, Ints, Replicas
from .milp import MilpProblem, prove
from .search import Evaluator, SearchResult, result_on

_EXACT_VALUES: Final = 50  #: so many powers of two add up exactly in float64.


class LowerBounds(NamedTuple):
    """Lower bounds of what is minimized, whatever parts replicate."""

    simple: float  #: of all plans; it takes no search.
    of_own_nodes: float  #: of plans whose parts each hold a node that is not replicable.
    of_all: float  #: of all plans.


def bounded(  # noqa: PLR0917 - all that is known
    found: SearchResult,
    simple: float,
    problem: MilpProblem,
    evaluate: Evaluator,
    prove_s: float,
    with_one_more: Callable[[BoundaryTables], float],
    lower_bound_over: Callable[[BoundaryTables], float] = lambda _: -np.inf,
) -> tuple[SearchResult, SearchResult | None, LowerBounds]:
    """The result after `prove`, the best one on relaxed tables, and lower bounds of the first value of plans.

    The bound `simple` is known before. `with_one_more` finds one of plans with a part more, which holds nothing but
    replicable values. `lower_bound_over` serves where `evaluate` may miss the best.
    """
    found, bound = prove(found, simple, problem, evaluate, time_limit_s=prove_s)
    tables, replicas = found.tables, found.tables.load.replicas
    if not tables.is_complete or found.chain.values[0] <= bound:
        return found, None, LowerBounds(simple, bound, bound)
    if replicas is None:
        bound = bound if found.is_optimal else max(bound, lower_bound_over(tables))
        return found, None, LowerBounds(simple, bound, bound)
    relaxation = Relaxation(tables, replicas, _needed(tables, replicas))
    best = result_on(relaxation.tables, evaluate)
    if best is None or best.chain.values[0] <= bound:
        return found, best, LowerBounds(simple, bound, bound)
    own = best.chain.values[0] if best.chain.is_best else max(bound, lower_bound_over(best.tables))
    more = max(bound, with_one_more(relaxation._replace(is_first=False).tables))
    return found, best, LowerBounds(simple, own, min(own, more))


def _needed(tables: BoundaryTables, replicas: Replicas) -> tuple[list[list[int]], Ints]:
    """Sets of values, and for each part the index of the set that its groups read."""
    by_groups = grouped((groups, value) for value, groups in enumerate(replicas.readers.groups_of_items))
    by_groups.pop((), None)
    # Of more kinds of values than sums can tell apart the last are left out: a part takes no less with them.
    kinds = dict(list(by_groups.items())[:_EXACT_VALUES])
    edges, bits = Hyperedges.of(list(kinds)), np.left_shift(1, np.arange(len(kinds)))
    sums = replace(tables, load=replace(tables.load, sharers=edges, shared_bytes=bits)).shared_bytes
    masks, kind = np.unique(sums, return_inverse=True)
    sets = [[v for i, values in enumerate(kinds.values()) if int(mask) >> i & 1 for v in values] for mask in masks]
    return sets, np.asarray(kind).reshape(sums.shape)
