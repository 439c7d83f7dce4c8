"""No part over a budget: the fewest parts, of these the fewest bytes, of these the most even."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import PlanError, UsageError
from ...core.units import size
from ...costs.device import Device
from ..goals import Within
from ..instance import Workload
from ..problem import PlanningProblem
from ..results import Solution, optimality_of
from ..solver.boundaries import BoundaryTables
from ..solver.chain_dp import ChainPartition, Criterion, chain_dp_table, min_max_cost
from ..solver.cost_tables import DeviceClass, allowed_by, memory_bytes, received_bytes
from ..solver.milp import MilpProblem
from ..solver.optimality import prove
from ..solver.search import search


def plan_within(task: PlanningProblem, goal: Within, device: Device, *, prove_s: float = 0.0) -> Solution:
    """The division into the fewest parts none of which takes more than `goal.memory_bytes`.

    Of these the one whose parts receive the fewest bytes, and of these the one whose largest part is smallest.

    Raises:
        UsageError: the budget is no size.
        PlanError: no division fits. The hint names the smallest budget that does.
    """
    if goal.memory_bytes < 1:
        raise UsageError(f"a part can't be of {goal.memory_bytes} bytes", hint="allow something with --memory 512MiB")
    load = _load(task, goal)
    judge = _Judge(task, goal)
    found = search(load, judge, marked=task.pins, good_enough=_bound(load, goal))
    if found is None:
        raise _impossible(task, goal, load, judge.smallest)
    kind = DeviceClass((device,), float(goal.memory_bytes), 0.0, 0.0)
    question = MilpProblem(load, (kind,), (len(found.parts),), "parts", pins=task.pins)
    found, bound = prove(found, _bound(load, goal), question, judge, time_limit_s=prove_s)
    outcome = optimality_of("parts", found, bound, "parts")
    number = len(found.parts)
    fits = memory_bytes(found.ladder, goal.counting) <= goal.memory_bytes
    costs = np.where(fits, received_bytes(found.ladder), np.inf)
    return Solution(found, (device,) * number, outcome, (costs,) * number, "sum")


@dataclass
class _Judge:
    """Ranks the climbs of a ladder, and remembers the smallest budget that some ladder would have met."""

    task: PlanningProblem
    goal: Within
    smallest: float = np.inf

    def __call__(self, ladder: BoundaryTables) -> ChainPartition | None:
        needed = memory_bytes(ladder, self.goal.counting)
        self.smallest = min(self.smallest, min_max_cost(needed))
        if self.smallest > self.goal.memory_bytes:
            return None
        fits = needed <= self.goal.memory_bytes
        terms = [
            Criterion([np.where(fits, received_bytes(ladder), np.inf)], "sum"),
            Criterion([np.where(fits, needed, np.inf)], "max"),
        ]
        allowed = allowed_by(ladder, self.task.pins)
        climb = chain_dp_table(terms, (ladder.load.groups,), allowed=allowed, enough=True).best()
        return (
            None if climb is None else ChainPartition(climb.rungs, climb.kinds, (float(len(climb.kinds)), *climb.ranks))
        )


def _load(task: PlanningProblem, goal: Within) -> Workload:
    return task.load([[0.0] * len(task.graph.flow)], goal.counting)


def fewest_parts(task: PlanningProblem, goal: Within) -> float:
    """No division has fewer parts: everything, divided by what a part has room for."""
    return _bound(_load(task, goal), goal)


def _bound(load: Workload, goal: Within) -> float:
    room = goal.memory_bytes - load.part_bytes
    return np.inf if room <= 0 else max(1.0, float(np.ceil((load.held.sum() + load.shared.sum()) / room)))


def _impossible(task: PlanningProblem, goal: Within, load: Workload, smallest: float) -> PlanError:
    if smallest <= goal.memory_bytes:
        return PlanError(
            f"parts of {size(goal.memory_bytes)} are possible, but not with these pins", hint="leave a pin out"
        )
    hint = f"the smallest budget that works is --memory {int(smallest)} ({size(int(smallest))})"
    group = int(load.alone.argmax())
    needed = int(load.alone[group]) + load.part_bytes
    if needed <= goal.memory_bytes:
        return PlanError(f"no part fits into {size(goal.memory_bytes)} with what it is fed and gives out", hint=hint)
    if len(task.groups[group]) == 1:
        pieces = -(-needed // goal.memory_bytes)
        hint += f"; to keep yours, its weights would have to be divided into {pieces} nodes in the model itself"
    return PlanError(
        f"{task.called(group)} alone needs {size(needed)}, and a part may take {size(goal.memory_bytes)}", hint=hint
    )
