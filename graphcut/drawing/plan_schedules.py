"""The schedules of a plan for a cluster, from simulations of a few requests."""

from contextlib import suppress

from ..core.errors import GraphcutError
from ..costs.caches import find_caches, sized_dims
from ..loading.model import Model
from ..planning.goals import Across
from ..planning.plans import Plan
from ..workers.run_log import RunLog
from .schedule import REQUESTS, Schedule, schedule_of


def schedules_of_plan(plan: Plan, model: Model) -> tuple[Schedule, ...]:
    """The schedule of a plan for a cluster, simulated; of a decoder that of a prompt and that of single tokens.

    Where devices divide layers, its parts are those that `split` makes, one for each rank and exchange. There is none
    where `split` refuses the plan: its ranks may need more memory than was planned, or its file was edited.
    """
    if not isinstance(plan.goal, Across):
        return ()
    with suppress(GraphcutError):
        if not find_caches(model):
            return (_simulated(plan, model, f"{REQUESTS} requests in flight, simulated"),)
        sized, found = plan.model or model, []
        for title, dims in (("a prompt", sized_dims(sized)), ("a token", sized_dims(sized, default="decode"))):
            made = Plan(plan.goal, plan.graph, plan.parts, plan.devices, plan.limits, dims, table=plan.table)
            made = plan if {**plan.dims} == {**dims} else made
            found.append(_simulated(made, model, f"{title} of each of {REQUESTS} sequences in flight, simulated"))
        return tuple(found)
    return ()


def _simulated(plan: Plan, model: Model, title: str) -> Schedule:
    from ..simulating.scenario import scenario_of_plan  # imports onnxruntime, which other plans need not
    from ..simulating.simulator import simulate

    scenario = scenario_of_plan(plan, model, None)
    devices = [device.name for device in scenario.cluster.devices]
    log = RunLog(len(scenario.parts), len(devices), is_tracing=True)
    simulate(scenario, requests=REQUESTS, window=REQUESTS, log=log)
    return schedule_of(log, devices, scenario.parts, title)
