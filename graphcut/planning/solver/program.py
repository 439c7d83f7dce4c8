"""A planning problem for the solver: a plan by search, and a lower bound of what any plan reaches."""

from collections.abc import Collection
from dataclasses import dataclass

from ..instance import Workload
from .milp import MilpProblem, prove, solve
from .search import Evaluator, SearchResult, complete_tables, search


@dataclass(frozen=True)
class Program:
    """What is to be minimized over which divisions of a workload."""

    load: Workload  #: the workload.
    evaluate: Evaluator  #: finds the best partition over given boundaries.
    milp: MilpProblem  #: the same as a mixed-integer program, for more time.
    lower_bound: float  #: a lower bound that is known without a search.
    states: int = 1  #: see `search`.
    parts: int = 1  #: see `search`.
    marked: Collection[int] = ()  #: see `search`.
    is_exact: bool = True  #: whether `evaluate` finds the best one.

    def best(self, time_limit_s: float) -> tuple[SearchResult, float] | None:
        """The best result found, and the lower bound known then; None where nothing meets the goal."""
        found = search(
            self.load,
            self.evaluate,
            states=self.states,
            parts=self.parts,
            marked=self.marked,
            lower_bound=self.lower_bound,
        )
        if found is None:
            return None
        return prove(found, self.lower_bound, self.milp, self.evaluate, time_limit_s=time_limit_s)

    def bound(self, time_limit_s: float) -> float:
        """A lower bound of the first value: the optimum where all order ideals can be tried."""
        tables = complete_tables(self.load, states=self.states, parts=self.parts)
        chain = self.evaluate(tables) if tables is not None and self.is_exact else None
        if chain is not None:
            return chain.values[0]
        if not time_limit_s:
            return self.lower_bound
        return max(self.lower_bound, solve(self.milp, time_limit_s=time_limit_s).bound)
