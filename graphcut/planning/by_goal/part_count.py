"""`Into`: a given number of parts, with the most expensive part as cheap as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ...core.errors import PlanError, UsageError
from ...core.units import count
from ...costs.device import Device
from ...solving.bound_with_repeats import BoundWithRepeats
from ...solving.boundaries import BoundaryTables
from ...solving.chain_dp import ChainPartition, Criterion, chain_dp
from ...solving.cost_tables import DeviceClass, allowed_by, busy_s, memory_bytes, received_bytes, time_quantum
from ...solving.instance import Floats, Workload
from ...solving.milp import MilpProblem
from ...solving.relaxed_tables import bounded
from ...solving.search import SearchResult, search
from ..goals import Into, Measure
from ..problem import PlanningProblem
from ..results import OBJECTIVES, Solution


def plan_into(
    problem: PlanningProblem, goal: Into, device: Device, seconds: Sequence[float], *, prove_s: float = 0.0
) -> Solution:
    """The division into `goal.parts` parts whose most expensive part is cheapest; of equal ones the fewest bytes sent.

    Each part runs on `device`, where the flowing nodes take `seconds`. `prove_s` is the time limit of the exact solver.
    """
    if goal.parts > len(problem.groups):
        raise _impossible(problem, goal)
    problem.check_pins(goal.parts)
    load = problem.workload([_work(problem, goal.by, seconds)])
    link = (1 / device.link_bytes_per_s, device.latency_s) if goal.by == "time" else (0.0, 0.0)
    device_class = DeviceClass((device,), np.inf, *link)
    quantum = time_quantum(load, [device_class])

    def costs(tables: BoundaryTables) -> Floats:
        return memory_bytes(tables, ()) if goal.by == "bytes" else busy_s(tables, 0, device_class, quantum)

    def evaluate(tables: BoundaryTables) -> ChainPartition | None:
        return min_max_partition(tables, costs(tables), goal.parts, problem.pins)

    def with_one_more(tables: BoundaryTables) -> float:
        chain = chain_dp([Criterion([costs(tables)], "max")], (goal.parts - 1,)).best()
        return np.inf if chain is None else chain.values[0]

    bound = _lower_bound(load, goal)
    found = search(load, evaluate, states=goal.parts, parts=goal.parts, marked=problem.pins, lower_bound=bound)
    if found is None:
        raise _impossible(problem, goal)
    words, unit, minimized = OBJECTIVES["into"][goal.by]
    milp = MilpProblem(load, (device_class,), (goal.parts,), minimized, pins=problem.pins, no_empty_part=True)
    found, relaxed, bounds = bounded(found, bound, milp, evaluate, prove_s, with_one_more)

    @cache
    def any_repeats() -> BoundWithRepeats:
        is_time = goal.by == "time"
        prices = problem.second_prices(found.tables, seconds, device) if is_time else problem.byte_prices(found.tables)
        return problem.bound_with_repeats(found.tables, prices, np.inf, goal.parts)

    def with_repeats(value: float) -> tuple[float, list[tuple[int, ...]]]:
        if not found.tables.is_complete:
            return bounds.simple, []
        return replace(any_repeats(), limit=value).bound(bounds.simple)

    def solution(result: SearchResult, relaxed: Solution | None = None) -> Solution:
        tables, devices = (costs(result.tables),) * goal.parts, (device,) * goal.parts
        more = with_repeats if goal.by in {"time", "bytes"} else None  # to repeat nodes saves no FLOPs, and no layers
        return Solution(result, devices, words, unit, bounds, tables, "max", tuple, (), more, relaxed)

    return solution(found, None if relaxed is None else solution(relaxed))


def min_max_partition(
    tables: BoundaryTables, costs: Floats, parts: int, pins: Mapping[int, int]
) -> ChainPartition | None:
    """The partition into so many parts whose most expensive part is cheapest; of equal ones the fewest bytes sent."""
    allowed = allowed_by(tables, pins)

    def best(criterion: Criterion) -> ChainPartition | None:
        return chain_dp([criterion], (parts,), allowed=allowed).best(lambda state: state == (parts,))

    if (cheapest := best(Criterion([costs], "max"))) is None:
        return None
    most = cheapest.values[0]
    chain = best(Criterion([np.where(costs <= most, received_bytes(tables), np.inf)], "sum"))
    return chain and chain.ranked_by(most)


def _work(problem: PlanningProblem, by: Measure, seconds: Sequence[float]) -> list[float]:
    match by:
        case "time":
            return list(seconds)
        case "flops":
            return [float(number) for number in problem.costs.flops]
        case "bytes":
            return [0.0] * len(problem.graph.flow)
        case "layers":
            if (repeat := problem.analysis.repeat) is None:
                raise UsageError("this model repeats no layer to count", hint="balance `by` time, bytes or flops")
            marked = {next(node for node in block if node in problem.home) for block in repeat.blocks}
            return [float(node in marked) for node in problem.graph.flow]


def _lower_bound(load: Workload, goal: Into) -> float:
    """The larger of an equal share of everything and the most expensive group."""
    if goal.by == "bytes":
        least = load if load.replicas is None else load.replicas.without
        return max(load.total_bytes / goal.parts, float(least.single_bytes.max(initial=0))) + load.part_bytes
    total = float(load.work[0].sum() + load.shared_work[0].sum())
    return max(total / goal.parts, float(load.work[0].max(initial=0.0)))


def _impossible(problem: PlanningProblem, goal: Into) -> PlanError:
    groups = len(problem.groups)
    if problem.pins and groups >= goal.parts:
        hint = "leave a pin out, or ask for more parts"
        return PlanError(f"no cut into {count(goal.parts, 'part')} puts every pinned node into its part", hint=hint)
    hint = f"ask for fewer parts{', or avoid less' * bool(problem.limits.avoid)}"
    hint += ", or let layers be cut with `Limits(inside_layers=True)`" * problem.keeps_layers
    message = f"the model can be cut into {count(groups, 'part')} at most, not into {goal.parts}"
    largest = max(range(groups), key=problem.inside)
    if problem.inside(largest) > len(problem.graph.flow):
        message += f": most is in {problem.describe(largest)}"
        hint = "export what is inside as models of their own, such as a decoder with and one without past"
    return PlanError(message, hint=hint)
