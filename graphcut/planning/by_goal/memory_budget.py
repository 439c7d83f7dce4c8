"""`Within`: no part over a memory budget, in the fewest parts; of these the fewest bytes, of these the most even."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...core.errors import PlanError
from ...core.units import size
from ...costs.device import Device
from ...solving.boundaries import BoundaryTables
from ...solving.chain_dp import Aggregation, ChainPartition, Criterion, best_chain, chain_dp
from ...solving.cost_tables import DeviceClass, allowed_by, memory_bytes, received_bytes
from ...solving.instance import Floats, Workload
from ...solving.milp import MilpProblem
from ...solving.relaxed_tables import bounded
from ...solving.search import SMALL, Evaluator, SearchResult, result_on, search
from ..goals import Within
from ..problem import PlanningProblem
from ..results import Solution
from .part_count import min_max_partition

_MOST_PIECES: Final = 64  #: to divide the weights of a node into more is no advice.


def plan_within(
    problem: PlanningProblem, goal: Within, device: Device, *, prove_s: float = 0.0, is_refined: bool = True
) -> Solution:
    """The division into the fewest parts none of which takes more than `goal.memory_bytes`.

    Of these the one whose parts receive the fewest bytes, and of these the one whose largest part is smallest. If no
    division fits, the hint of the PlanError names the smallest budget that does. If it is not `is_refined`, the first
    division that is found.
    """
    load = problem.workload([[0.0] * len(problem.graph.flow)], goal.counting)
    evaluator = _BudgetEvaluator(problem, goal)
    least = _lower_bound(load, goal)  # of a small model, plans with as few parts are searched for fewer bytes
    stop = 1.0 if load.groups <= SMALL else least
    found = search(load, evaluator, marked=problem.pins, lower_bound=stop, is_refined=is_refined)
    if found is None:
        raise _impossible(problem, goal, load, evaluator)
    found = _in_fewer_parts(problem, goal, found, evaluator) if is_refined else found
    device_class = DeviceClass((device,), float(goal.memory_bytes), 0.0, 0.0)
    milp = MilpProblem(load, (device_class,), (len(found.parts),), "parts", pins=problem.pins)

    def with_one_more(tables: BoundaryTables) -> float:
        chain = _BudgetEvaluator(replace(problem, pins={}), goal)(tables)
        return np.inf if chain is None else chain.values[0] + 1

    found, relaxed, bounds = bounded(found, _lower_bound(load, goal), milp, evaluator, prove_s, with_one_more)

    def with_repeats(value: float) -> tuple[float, list[tuple[int, ...]]]:
        if not found.tables.is_complete:
            return bounds.simple, []
        limit, fewer = goal.memory_bytes, int(value) - 1
        prices = problem.byte_prices(found.tables, goal.counting)
        chains = problem.bound_with_repeats(found.tables, prices, limit, fewer).chains() if fewer else []
        return (max(bounds.simple, len(chains[0]) - 1.0) if chains else value), chains

    def solution(result: SearchResult, relaxed: Solution | None = None) -> Solution:
        devices = (device,) * len(result.parts)
        fits = memory_bytes(result.tables, goal.counting, goal.memory_bytes) <= goal.memory_bytes
        costs = (np.where(fits, received_bytes(result.tables), np.inf),) * len(devices)
        return Solution(result, devices, "parts", "parts", bounds, costs, "sum", tuple, (), with_repeats, relaxed)

    return solution(found, None if relaxed is None else solution(relaxed))


def _in_fewer_parts(problem: PlanningProblem, goal: Within, found: SearchResult, evaluate: Evaluator) -> SearchResult:
    """The result, or one with fewer parts: the search for the smallest parts also gets closer where none fits yet."""
    load = found.tables.load
    least = max(2.0, _lower_bound(load, goal))  # the whole model as one part is on any boundaries
    while not found.tables.is_complete and (parts := len(found.parts) - 1) >= least:

        def smallest(tables: BoundaryTables, parts: int = parts) -> ChainPartition | None:
            return min_max_partition(tables, memory_bytes(tables, goal.counting), parts, problem.pins)

        budget, pins = float(goal.memory_bytes), problem.pins
        fewer = search(load, smallest, states=parts, parts=parts, marked=pins, lower_bound=budget)
        if fewer is None or fewer.chain.values[0] > budget:
            break
        found = result_on(fewer.tables, evaluate) or found
    return found


@dataclass
class _BudgetEvaluator:
    """Finds the best partition, and remembers the smallest budget that some boundaries would have met."""

    problem: PlanningProblem
    goal: Within
    smallest: float = np.inf
    tables: BoundaryTables | None = None  #: those of all order ideals, if they were tried.

    def __call__(self, tables: BoundaryTables) -> ChainPartition | None:
        self.tables = tables if tables.is_complete else None
        most = max(self.smallest, self.goal.memory_bytes)  # no larger part matters
        needed = memory_bytes(replace(tables), self.goal.counting, most)  # what a copy has computed is not kept
        if self.smallest > self.goal.memory_bytes and (least := self._best(tables, (needed, "max"))):
            self.smallest = min(self.smallest, least.values[0])
        if self.smallest > self.goal.memory_bytes:
            return None
        fits = np.where(needed <= self.goal.memory_bytes, 1.0, np.inf)
        return self._best(tables, (fits, "sum"), (tables.received, "sum"), (needed, "max"))

    def _best(self, tables: BoundaryTables, *criteria: tuple[Floats, Aggregation]) -> ChainPartition | None:
        """The partition that is best by these criteria; where there are several, the first one counts the parts."""
        if not self.problem.pins:
            return best_chain(criteria)
        rows, allowed = [Criterion([costs], how) for costs, how in criteria], allowed_by(tables, self.problem.pins)
        return chain_dp(rows, (tables.load.groups,), allowed=allowed, fewest_parts=len(rows) > 1).best()


def fewest_parts(problem: PlanningProblem, goal: Within) -> float:
    """A lower bound of the number of parts: all bytes, divided by what one part has room for."""
    return _lower_bound(problem.workload([[0.0] * len(problem.graph.flow)], goal.counting), goal)


def _lower_bound(load: Workload, goal: Within) -> float:
    room = goal.memory_bytes - load.part_bytes
    return np.inf if room <= 0 else max(1.0, float(np.ceil(load.total_bytes / room)))


def _is_smallest(problem: PlanningProblem, goal: Within, tables: BoundaryTables | None, budget: float) -> bool:
    """Whether no plan meets a smaller budget than the one that is possible over these boundaries."""
    if tables is None or "activations" in goal.counting:
        return False
    if problem.limits.recompute == "never":
        return True
    prices = problem.byte_prices(tables, goal.counting)
    return not problem.bound_with_repeats(tables, prices, budget - 1, len(problem.groups)).chains()


def named_budget(number: int) -> str:
    """A budget in hints."""
    return f"`Within({number})` ({size(number)})"


def _impossible(problem: PlanningProblem, goal: Within, load: Workload, tried: _BudgetEvaluator) -> PlanError:
    smallest = tried.smallest
    budget = size(goal.memory_bytes)
    if smallest == np.inf:
        return PlanError("no division was found that keeps these pins", hint="leave a pin out")
    number, named = int(smallest), named_budget(int(smallest))
    is_smallest = _is_smallest(problem, goal, tried.tables, smallest)
    hint = "" if goal.most_parts is None else "for any number of parts, "
    hint += f"the smallest budget that works is {named}" if is_smallest else f"allow {named}; less may be enough"
    group = int(load.single_bytes.argmax())
    needed = int(load.single_bytes[group]) + load.part_bytes
    if needed <= goal.memory_bytes:
        message = f"no part fits into {budget} together with its inputs and outputs"
        return PlanError(message, hint=hint, budget_bytes=number)
    weights = [problem.graph.weights[name] for i in problem.groups[group] for name in problem.graph.weights_of(i)]
    if largest := max(weights, key=lambda weight: weight.bytes, default=None):
        hint += f"; its largest weight is {largest.name!r} ({size(largest.bytes)})"
    pieces = -(-needed // goal.memory_bytes)
    if len(problem.groups[group]) == 1 and (problem.inside(group) or pieces <= _MOST_PIECES):
        way = f"divide its weights into {pieces} nodes in the model itself"
        hint += f"; to keep yours, {'export what is inside as models of their own' if problem.inside(group) else way}"
    text = f"{problem.describe(group)} alone takes {size(needed)}, more than the budget of {budget}"
    return PlanError(text, hint=hint, budget_bytes=number)
