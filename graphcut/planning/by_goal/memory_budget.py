"""`Within`: no part over a memory budget, in the fewest parts; of these the fewest bytes, of these the most even."""

from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import PlanError, UsageError
from ...core.units import size
from ...costs.device import Device
from ..goals import Within
from ..instance import Workload
from ..problem import PlanningProblem
from ..results import Solution, optimality_of
from ..solver.boundaries import BoundaryTables
from ..solver.chain_dp import ChainPartition, Criterion, chain_dp, min_max_cost
from ..solver.cost_tables import DeviceClass, allowed_by, memory_bytes, received_bytes
from ..solver.milp import MilpProblem, prove
from ..solver.program import Program
from ..solver.search import search


def plan_within(problem: PlanningProblem, goal: Within, device: Device, *, prove_s: float = 0.0) -> Solution:
    """The division into the fewest parts none of which takes more than `goal.memory_bytes`.

    Of these the one whose parts receive the fewest bytes, and of these the one whose largest part is smallest. If no
    division fits, the hint of the PlanError names the smallest budget that does.
    """
    if goal.memory_bytes < 1:
        raise UsageError(f"a part can't have {goal.memory_bytes} bytes", hint="allow more, such as --memory 512MiB")
    program, evaluator = within_program(problem, goal, device, len(problem.groups)), _BudgetEvaluator(problem, goal)
    found = search(program.load, evaluator, marked=problem.pins, lower_bound=program.lower_bound)
    if found is None:
        raise _impossible(problem, goal, program.load, evaluator.smallest)
    milp = replace(program.milp, counts=(len(found.parts),))
    found, bound = prove(found, program.lower_bound, milp, evaluator, time_limit_s=prove_s)
    parts = len(found.parts)
    fits = memory_bytes(found.tables, goal.counting) <= goal.memory_bytes
    costs = np.where(fits, received_bytes(found.tables), np.inf)
    outcome = optimality_of("parts", float(parts), bound, "parts", is_optimal=found.is_optimal)
    return Solution(found, (device,) * parts, outcome, (costs,) * parts, "sum")


def within_program(problem: PlanningProblem, goal: Within, device: Device, most_parts: int) -> Program:
    """What `plan_within` solves, if no more than `most_parts` are needed."""
    load = problem.workload([[0.0] * len(problem.graph.flow)], goal.counting)
    room = goal.memory_bytes - load.part_bytes
    fewest = np.inf if room <= 0 else max(1.0, float(np.ceil(load.total_bytes / room)))
    device_class = DeviceClass((device,), float(goal.memory_bytes), 0.0, 0.0)
    milp = MilpProblem(load, (device_class,), (most_parts,), "parts", pins=problem.pins)
    return Program(load, _BudgetEvaluator(problem, goal), milp, fewest, marked=problem.pins)


@dataclass
class _BudgetEvaluator:
    """Finds the best partition, and remembers the smallest budget that some boundaries would have met."""

    problem: PlanningProblem
    goal: Within
    smallest: float = np.inf

    def __call__(self, tables: BoundaryTables) -> ChainPartition | None:
        needed = memory_bytes(tables, self.goal.counting)
        self.smallest = min(self.smallest, min_max_cost(needed))
        if self.smallest > self.goal.memory_bytes:
            return None
        fits = needed <= self.goal.memory_bytes
        criteria = [
            Criterion([np.where(fits, received_bytes(tables), np.inf)], "sum"),
            Criterion([np.where(fits, needed, np.inf)], "max"),
        ]
        allowed = allowed_by(tables, self.problem.pins)
        chain = chain_dp(criteria, (tables.load.groups,), allowed=allowed, fewest_parts=True).best()
        return chain and chain.ranked_by(len(chain.classes))


def _impossible(problem: PlanningProblem, goal: Within, load: Workload, smallest: float) -> PlanError:
    budget = size(goal.memory_bytes)
    if smallest <= goal.memory_bytes:
        return PlanError(f"parts of {budget} are possible, but not with these pins", hint="leave a pin out")
    hint = f"the smallest budget that works is --memory {int(smallest)} ({size(int(smallest))})"
    group = int(load.single_bytes.argmax())
    needed = int(load.single_bytes[group]) + load.part_bytes
    if needed <= goal.memory_bytes:
        return PlanError(f"no part fits into {budget} together with its inputs and outputs", hint=hint)
    if len(problem.groups[group]) == 1:
        pieces = -(-needed // goal.memory_bytes)
        hint += f"; to keep yours, divide its weights into {pieces} nodes in the model itself"
    return PlanError(
        f"{problem.describe(group)} alone needs {size(needed)}, more than the budget of {budget}", hint=hint
    )
