"""The schedules of a plan for a cluster, from simulations of a few requests."""

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..costs.weighing import weigh
from ..planning.goals import Across
from ..planning.planner import default_dims, with_metrics
from ..planning.plans import Plan
from ..running.run_log import RunLog
from ..simulating.scenario import scenario_of_plan
from ..simulating.simulator import simulate
from .schedule import REQUESTS, Schedule, schedule_of


def schedules_of_plan(plan: Plan, analysis: Analysis) -> tuple[Schedule, ...]:
    """The schedule of a plan for a cluster, simulated; of a decoder that of a prompt and that of single tokens."""
    if not isinstance(plan.goal, Across) or plan.has_groups or plan.costs is None:
        return ()
    if not plan.costs.caches:
        return (_simulated(plan, analysis, f"{REQUESTS} requests in flight"),)
    goal = changed(plan.goal, objective="decode")
    found = []
    for title, wanted in (("a prompt", None), ("a token", goal)):
        dims = default_dims(analysis, wanted)
        costs = plan.costs if {**plan.costs.dims} == {**dims} else weigh(analysis.model, dims)
        made = with_metrics(analysis, Plan(goal, plan.graph, plan.parts, plan.devices, plan.limits), costs)
        found.append(_simulated(made, analysis, f"{title} of each of {REQUESTS} sequences in flight"))
    return tuple(found)


def _simulated(plan: Plan, analysis: Analysis, title: str) -> Schedule:
    scenario = scenario_of_plan(plan, analysis.model, None)
    devices = [device.name for device in scenario.cluster.devices]
    log = RunLog(len(scenario.parts), len(devices), is_tracing=True)
    simulate(scenario, requests=REQUESTS, window=REQUESTS, log=log)
    return schedule_of(log, devices, scenario.parts, title)
