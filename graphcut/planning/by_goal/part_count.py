"""Into so many parts, the heaviest as light as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ...core.errors import PlanError, UsageError
from ...core.units import count
from ...costs.device import Device
from ..goals import Into, Measure
from ..instance import Floats, Workload
from ..problem import PlanningProblem
from ..results import MetricUnit, Solution, optimality_of
from ..solver.boundaries import BoundaryTables
from ..solver.chain_dp import ChainPartition, Criterion, chain_dp_table
from ..solver.cost_tables import DeviceClass, allowed_by, busy_s, memory_bytes, received_bytes, time_quantum
from ..solver.milp import MilpProblem, Sense
from ..solver.optimality import prove
from ..solver.search import search

_UNITS: Final[dict[Measure, MetricUnit]] = {"time": "s", "layers": "layers", "bytes": "bytes", "flops": "flops"}
_WORDS: Final[dict[Measure, str]] = {
    "time": "time of the slowest part",
    "layers": "layers of the part with most",
    "bytes": "bytes of the largest part",
    "flops": "FLOPs of the heaviest part",
}


def plan_into(
    task: PlanningProblem, goal: Into, device: Device, seconds: Sequence[float], *, prove_s: float = 0.0
) -> Solution:
    """The division into `goal.parts` parts whose heaviest is lightest; of these the one that receives the fewest bytes.

    Args:
        task: what is planned.
        goal: how many parts, and what is balanced.
        device: the device that each part runs on.
        seconds: what it takes for each flowing node.
        prove_s: how long the exact solver may take.

    Raises:
        UsageError: there is no such number of parts, or no layers to balance.
        PlanError: the model can't be cut into so many parts.
    """
    if goal.parts < 1:
        raise UsageError(f"a model can't be cut into {goal.parts} parts", hint="ask for 1 or more")
    if goal.parts > len(task.groups):
        raise _impossible(task, goal)
    if stranger := next((part for part in task.pins.values() if part >= goal.parts), None):
        raise UsageError(f"there is no part {stranger}", hint=f"parts are counted from 0, up to {goal.parts - 1}")
    load = task.load([_work(task, goal.by, seconds)])
    free = DeviceClass((device,), np.inf, 0.0, 0.0)
    kind = DeviceClass((device,), np.inf, 1 / device.link_bytes_per_s, device.latency_s) if goal.by == "time" else free
    grain = time_quantum(load, [kind])

    def price(ladder: BoundaryTables) -> Floats:
        return memory_bytes(ladder, ()) if goal.by == "bytes" else busy_s(ladder, 0, kind, grain)

    def judge(ladder: BoundaryTables) -> ChainPartition | None:
        return lightest(ladder, price(ladder), goal.parts, task.pins)

    bound = _bound(load, goal)
    found = search(load, judge, states=goal.parts, parts=goal.parts, marked=task.pins, good_enough=bound)
    if found is None:
        raise _impossible(task, goal)
    sense: Sense = "size" if goal.by == "bytes" else "period"
    question = MilpProblem(load, (kind,), (goal.parts,), sense, pins=task.pins, exactly=True)
    found, bound = prove(found, bound, question, judge, time_limit_s=prove_s)
    outcome = optimality_of(_WORDS[goal.by], found, bound, _UNITS[goal.by])
    return Solution(found, (device,) * goal.parts, outcome, (price(found.ladder),) * goal.parts, "max")


def lightest(ladder: BoundaryTables, costs: Floats, parts: int, pins: Mapping[int, int]) -> ChainPartition | None:
    """The climb of so many steps whose dearest is cheapest; of equal ones the one that receives the fewest bytes."""
    allowed = allowed_by(ladder, pins)

    def is_all(state: tuple[int, ...]) -> bool:
        return state == (parts,)

    best = chain_dp_table([Criterion([costs], "max")], (parts,), allowed=allowed).best(is_all)
    if best is None:
        return None
    light = np.where(costs <= best.ranks[0], received_bytes(ladder), np.inf)
    climb = chain_dp_table([Criterion([light], "sum")], (parts,), allowed=allowed).best(is_all)
    return None if climb is None else ChainPartition(climb.rungs, climb.kinds, (best.ranks[0], *climb.ranks))


def _work(task: PlanningProblem, by: Measure, seconds: Sequence[float]) -> list[float]:
    match by:
        case "time":
            return list(seconds)
        case "flops":
            return [float(number) for number in task.costs.flops]
        case "bytes":
            return [0.0] * len(task.graph.flow)
        case "layers":
            repeat = task.analysis.repeat
            if repeat is None:
                raise UsageError(
                    "this model repeats no layer, so there are none to count", hint="balance --by time, bytes or flops"
                )
            marked = {next(node for node in block if node in task.home) for block in repeat.blocks}
            return [float(node in marked) for node in task.graph.flow]


def _bound(load: Workload, goal: Into) -> float:
    """No division does better: a share of everything, and what one group takes alone."""
    if goal.by == "bytes":
        everything = float(load.held.sum() + load.shared.sum())
        return max(everything / goal.parts, float(load.alone.max(initial=0))) + load.part_bytes
    return max(float(load.work[0].sum()) / goal.parts, float(load.work[0].max(initial=0.0)))


def _impossible(task: PlanningProblem, goal: Into) -> PlanError:
    groups = len(task.groups)
    if task.pins and groups >= goal.parts:
        return PlanError(
            f"no cut into {count(goal.parts, 'part')} puts every pinned node into its part",
            hint="leave a pin out, or ask for more parts",
        )
    hint = "ask for fewer parts"
    if task.limits.avoid:
        hint += ", or avoid less"
    if task.analysis.repeat is not None and not task.limits.inside_layers:
        hint += ", or let layers be cut with --inside-layers"
    return PlanError(f"the model can be cut into {count(groups, 'part')} at most, not into {goal.parts}", hint=hint)
