"""What is simulated: parts, the time they take on each device of a cluster, and which device runs which part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import mul

from msgspec.structs import asdict
from msgspec.structs import replace as changed

from ..core.errors import UsageError, check_names, check_positive
from ..core.file_checks import check_unchanged
from ..core.manifest import Cascade
from ..core.product import Product
from ..core.states import travelling
from ..core.tensors import Tensor
from ..costs.cluster import ScheduledFailure, SimulatedCluster
from ..costs.device import Device, run_s
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from ..loading.opening import load
from ..planning.goals import Across
from ..planning.planner import with_metrics
from ..planning.plans import Plan
from ..planning.predictions import driven_bytes
from ..surgery.ranks import prepare_groups
from ..workers.scheduling.assignment import scheduled_parts
from ..workers.scheduling.load_balancing import even_bounds, spans_of
from ..workers.scheduling.requests import ScheduledPart

PartsByDevice = tuple[tuple[int, ...], ...]  #: for each device, the indices of parts.
SecondsByDevice = tuple[tuple[float, ...], ...]  #: for each device, the run time of each part.


@dataclass(frozen=True, repr=False)
class Scenario(Product):
    """Parts on the devices of a cluster."""

    parts: tuple[ScheduledPart, ...]  #: the parts, in topological order.
    weight_bytes: tuple[int, ...]  #: the weights of each part.
    inputs: tuple[str, ...]  #: the input tensors of a request.
    outputs: tuple[str, ...]  #: the output tensors of a request.
    tensor_bytes: Mapping[str, int]  #: the size of each input that the driver sends, and of each tensor of a part.
    cluster: SimulatedCluster  #: the devices, their links, and what goes wrong.
    assignment: PartsByDevice  #: for each device, the indices of the parts that it runs.
    seconds: SecondsByDevice  #: for each device, the run time of each part.
    is_exact: bool = True  #: whether all tensors have a size; else `seconds` and `tensor_bytes` are lower bounds.
    assumed: Mapping[str, int] = field(default_factory=dict)  #: sizes of the inputs that nobody gave.
    in_flight: int | None = None  #: requests in flight by default; None for twice the devices that have a part.
    #: of a pipeline of models, whose requests are steps, the parts that run once for all steps.
    done: tuple[int, ...] = ()

    def without_failures(self) -> Scenario:
        """The same without device failures; links still lose messages."""
        faults = tuple(changed(fault, mean_up_s=None, mean_down_s=None) for fault in self.cluster.faults)
        return replace(self, cluster=changed(self.cluster, faults=faults, failures=()))

    def with_failures(self, failures: Sequence[ScheduledFailure]) -> Scenario:
        """The same with additional scheduled failures.

        Raises:
            UsageError: the cluster has no such device.
        """
        known = [device.name for device in self.cluster.devices]
        check_names((one.device for one in failures), known, "there is no device", "there are", " to fail")
        return replace(self, cluster=changed(self.cluster, failures=(*self.cluster.failures, *failures)))

    def copied(self, copies: int) -> Scenario:
        """Several copies of the cluster on one router; each copy of a part may run a step of any request.

        Devices of the first copy keep their names; `pi` is `pi#2` in the second. Scheduled failures are those of the
        first copy.

        Raises:
            UsageError: `copies` is below 1, or a device has the name of a copy.
        """
        check_positive(copies, f"{copies} copies can't run anything")
        try:
            cluster = _copied(self.cluster, copies)
        except ValueError as error:
            raise UsageError(f"{error}, counting copies", hint="use device names without #") from None
        return replace(self, cluster=cluster, assignment=self.assignment * copies, seconds=self.seconds * copies)


def scenario_of_plan(
    plan: Plan, model: Model, cluster: SimulatedCluster | None, outputs: Sequence[str] | None = None
) -> Scenario:
    """A plan on a cluster, by default the cluster that it was made for.

    Parts run where the plan puts them; those of a plan for no cluster are spread over the devices in order. The
    predicted time of a part holds on its planned device, and is scaled by the roofline model for others. `outputs` are
    those that requests ask for, by default those of the plan. Where devices divide layers, parts are those of `split`.

    Raises:
        UsageError: there is no cluster, or it lacks a device of the plan.
    """
    if plan.has_groups:
        prepared = prepare_groups(model, plan, "")
        return scenario_of_plan(prepared.plan, prepared.source, cluster, outputs)
    if cluster is None:
        if not isinstance(plan.goal, Across):
            message = "the plan was not made for a cluster, so it has no device speeds"
            raise UsageError(message, hint="name one with `cluster`")
        cluster = SimulatedCluster(**asdict(plan.goal.cluster))
    plan = plan if plan.metrics else with_metrics(model, plan, weigh(model, plan.dims))
    costs = plan.costs or weigh(model, plan.dims)
    blocks, graph, seconds = plan.partition.blocks, plan.graph, _predicted_seconds(plan, costs, cluster)
    goal, planned = Across(cluster.planned), None
    if isinstance(plan.goal, Across):
        goal, planned = plan.goal, [device.name for device in plan.devices]
    sent = driven_bytes(goal if outputs is None else changed(goal, outputs=tuple(outputs)), costs, blocks)
    sizes = {name: costs.sent_bytes[name][0] for block in blocks for name in block.writes} | sent
    weight_bytes = tuple(metrics.weight_bytes for metrics in plan.metrics)
    rows = enumerate(zip(blocks, plan.memory, strict=True))
    parts = tuple(ScheduledPart(f"part {i}", one.reads, one.writes, memory.needs) for i, (one, memory) in rows)
    answers = tuple(name for name in graph.writes if name in sent)
    assumed = _assumed((model.tensors[name] for name in graph.reads), plan.dims, (plan.model or model).dims)
    in_flight = goal.in_flight if goal.objective == "decode" else None
    is_exact, assignment = costs.sizes.are_exact, _assignment(cluster, planned, seconds[0])
    found = Scenario(
        parts, weight_bytes, graph.reads, answers, sizes, cluster, assignment, seconds, is_exact, assumed, in_flight
    )
    return _of_steps(found, model.stepwise, model.phases_of(blocks))


def scenario_of_cascade(
    cascade: Cascade, cluster: SimulatedCluster, source: Model | None = None, outputs: Sequence[str] | None = None
) -> Scenario:
    """A cascade on a cluster, with part times from the roofline model; `outputs` are asked for, see `travelling`.

    Some sizes of a part may depend on values that it receives: they are known if its `source` is given.

    Raises:
        UsageError: the cluster lacks a device that a part was planned for.
        GraphcutError: a part can't be opened.
    """
    found = {} if source is None else source.with_dims(cascade.manifest.dims).sizes.found
    inner = {f"{name}.{i}": n for name, tensor in found.items() for i, n in enumerate(tensor.shape or ())}
    dims = {**{name: n for name, n in inner.items() if isinstance(n, int)}, **cascade.manifest.dims}
    for part in cascade.parts:
        check_unchanged(cascade, {part.file: part.sha256})
    costs_by_part = [weigh(load(cascade.file(part)), dims) for part in cascade.parts]
    seconds = _seconds_by_device(cluster, lambda device: tuple(sum(run_s(costs, device)) for costs in costs_by_part))
    planned = [part.device for part in cascade.parts if part.device is not None]
    tensors = [(costs, (*part.reads, *part.writes)) for part, costs in zip(cascade.parts, costs_by_part, strict=True)]
    sizes = {name: costs.tensor_bytes[name][0] for costs, names in tensors for name in names}
    manifest = cascade.manifest
    sent = travelling(manifest, cascade.parts, manifest.states, defaultdict(int, sizes), outputs)
    tensor_bytes = {name: sizes[name] for part in cascade.parts for name in part.writes} | sent
    assignment = _assignment(cluster, planned if len(planned) == len(cascade.parts) else None, seconds[0])
    parts, weight_bytes = tuple(scheduled_parts(cascade)), tuple(part.weight_bytes for part in cascade.parts)
    inputs, answers = manifest.reads, tuple(name for name in manifest.writes if name in sent)
    is_exact = all(costs.sizes.are_exact for costs in costs_by_part)
    assumed = _assumed((cascade.tensors[name] for name in inputs), dims, manifest.given_dims)
    scenario = Scenario(
        parts, weight_bytes, inputs, answers, tensor_bytes, cluster, assignment, seconds, is_exact, assumed
    )
    return _of_steps(scenario, manifest.stepwise, cascade.phases)


def _of_steps(scenario: Scenario, stepwise: Sequence[str], phases: Sequence[int]) -> Scenario:
    """A scenario whose requests are steps, if parts are of a pipeline with steps: what runs once is there."""
    if not stepwise:
        return scenario
    done = tuple(part for part, phase in enumerate(phases) if phase != 1)
    return replace(scenario, inputs=tuple(name for name in scenario.inputs if name in stepwise), done=done)


def _assumed(inputs: Iterable[Tensor], dims: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of inputs that nobody gave: a symbol without a number counts as 1."""
    names = (name for tensor in inputs for name in tensor.dim_names)
    return {name: dims.get(name, 1) for name in names if isinstance(name, str) and name not in given}


def _predicted_seconds(plan: Plan, costs: Costs, cluster: SimulatedCluster) -> SecondsByDevice:
    """The part times that a plan predicts for its devices, and scaled by the roofline model for others."""
    graph = plan.graph
    nodes_by_part = [[graph.flow_index[node] for node in graph.running(one)] for one in plan.partition.blocks]

    def roofline_s(device: Device) -> list[float]:
        seconds = run_s(costs, device)
        return [sum(seconds[node] for node in nodes) for nodes in nodes_by_part]

    own_s = [roofline_s(device)[part] for part, device in enumerate(plan.devices)]
    scales = [part.run_s / (own or part.run_s or 1.0) for part, own in zip(plan.metrics, own_s, strict=True)]
    return _seconds_by_device(cluster, lambda device: tuple(map(mul, roofline_s(device), scales)))


def _seconds_by_device(cluster: SimulatedCluster, seconds_of: Callable[[Device], tuple[float, ...]]) -> SecondsByDevice:
    """The part times on each device, computed once for all devices that are the same but for their names."""
    seconds = cache(seconds_of)
    return tuple(seconds(changed(device, name="any")) for device in cluster.devices)


def _assignment(cluster: SimulatedCluster, planned: Sequence[str] | None, seconds: Sequence[float]) -> PartsByDevice:
    """The parts of each device: as planned, or else in order with balanced times, as `stream` does it."""
    names = [device.name for device in cluster.devices]
    if planned is None:
        spans = spans_of(even_bounds([time or 1e-12 for time in seconds], min(len(seconds), len(names))))
        return (*spans, *((),) * (len(names) - len(spans)))
    hint = "name the cluster that it was planned for, or plan for this one; it has"
    check_names(planned, names, "a part is planned for", hint, ", which is not a device of this cluster")
    return tuple(tuple(part for part, device in enumerate(planned) if device == name) for name in names)


def _copied(cluster: SimulatedCluster, copies: int) -> SimulatedCluster:
    devices, links, faults = [], [], []
    for suffix in ("", *(f"#{copy}" for copy in range(2, copies + 1))):
        devices += [changed(device, name=device.name + suffix) for device in cluster.devices]
        links += [changed(link, between=tuple(name + suffix for name in link.between)) for link in cluster.links]
        for fault in cluster.faults:
            between = fault.between and tuple(name + suffix for name in fault.between)
            faults.append(changed(fault, device=fault.device and fault.device + suffix, between=between))
    copied = {"devices": tuple(devices), "links": tuple(links), "faults": tuple(faults)}
    return SimulatedCluster(**asdict(cluster) | copied)  # msgspec's `replace` checks nothing before version 0.20
