"""Why a cluster has no plan."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...core.errors import PlanError
from ...core.units import count, size
from ...solving.cost_tables import DeviceClass
from ...solving.instance import Workload
from ..problem import PlanningProblem

_MOST_NAMED: Final = 4  #: a message names so many sizes that were assumed.


def check_all_can_run(problem: PlanningProblem, load: Workload) -> None:
    """Raise a PlanError if no device can run some node: a search takes for given that one can."""
    if (homeless := np.isinf(load.work).all(axis=0)).any():
        what = problem.describe(int(homeless.argmax()))
        raise PlanError(f"no device of the cluster can run {what}", hint="add a device that can")


def impossible(problem: PlanningProblem, load: Workload, classes: Sequence[DeviceClass]) -> PlanError:
    """The error that there is no plan for a cluster; it says why, as far as that is known."""
    if problem.pins:
        return PlanError("no plan for this cluster keeps all pins", hint="leave a pin out")
    classes = [c for c in classes if not c.members]
    room = sum(c.memory_bytes * len(c.devices) for c in classes)
    if room == np.inf:
        return PlanError("no plan puts every node on a device that can run it", hint="add a device that can run all")
    hint = "give devices more memory, or add one"
    hint += "; or let layers be cut with `Limits(inside_layers=True)`" * problem.keeps_layers
    group, largest = int(load.single_bytes.argmax()), int(max(c.memory_bytes for c in classes))
    needed, has = int(load.single_bytes[group]) + load.part_bytes, size(largest)
    if needed > largest:
        message = f"{problem.describe(group)} alone needs {size(needed)}, and the largest device has {has}"
        return PlanError(message, hint=hint)
    assumed = {n: number for n, number in problem.costs.dims.items() if n not in problem.analysis.model.dims}
    named = [f"{name}={number}" for name, number in [*assumed.items()][:_MOST_NAMED]]
    sizes = f" for {', '.join(named)}" if named else ""
    if max(assumed.values(), default=1) > 1:
        hint += "; or set smaller sizes with `dims`"
    parts = f"parts hold {size(int(load.total_bytes))} or more, and activations{sizes}"
    devices = count(sum(len(c.devices) for c in classes), "device")
    message = f"no division fits the devices: {parts}; the largest of {devices} has {has}, all have {size(int(room))}"
    return PlanError(message, hint=hint)
