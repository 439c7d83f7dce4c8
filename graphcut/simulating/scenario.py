"""What is played: parts, what they take on each device of a world, and who runs which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from msgspec.structs import replace as changed

from ..analysis.cut_points import analyze
from ..core.errors import UsageError
from ..core.manifest import Cascade
from ..core.product import Product
from ..costs.device import Device, run_s
from ..costs.weighing import Costs, weigh
from ..loading.model import Model, load
from ..planning.cluster import ScheduledFailure, SimulatedCluster
from ..planning.goals import Across
from ..planning.plans import Plan, with_metrics
from ..running.run_log import RunLog
from ..running.scheduling.assignment import scheduled_parts
from ..running.scheduling.load_balancing import even_bounds
from ..running.scheduling.requests import ScheduledPart

_SHOWN: Final = 8
"""Names that a message lists."""


@dataclass(frozen=True, repr=False)
class Scenario(Product):
    """Parts in a world.

    Attributes:
        units: the parts, in an order in which they can run.
        weight_bytes: what must be loaded for each part.
        reads: what a request brings along.
        outputs: what it is answered with.
        tensor_bytes: what each tensor takes that a part writes.
        world: the devices, their links, and what goes wrong.
        owns: the parts that each device is to run.
        seconds: what each part takes, by the device.
    """

    units: tuple[ScheduledPart, ...]
    weight_bytes: tuple[int, ...]
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    tensor_bytes: Mapping[str, int]
    world: SimulatedCluster
    owns: tuple[tuple[int, ...], ...]
    seconds: tuple[tuple[float, ...], ...]

    @property
    def can_fail(self) -> bool:
        """Can a device fail there?"""
        return bool(self.world.failures) or any(fault.mean_up_s is not None for fault in self.world.faults)

    def without_failures(self) -> Scenario:
        """The same where no device fails; what is lost on links still is."""
        faults = tuple(changed(fault, mean_up_s=None, mean_down_s=None) for fault in self.world.faults)
        return replace(self, world=changed(self.world, faults=faults, failures=()))

    def with_failures(self, failures: Sequence[ScheduledFailure]) -> Scenario:
        """The same where devices fail at known times, too.

        Raises:
            UsageError: there is no such device.
        """
        known = [device.name for device in self.world.devices]
        for failure in failures:
            if failure.device not in known:
                raise UsageError(f"there is no device {failure.device!r} to fail", hint=f"there are {_listed(known)}")
        return replace(self, world=changed(self.world, failures=(*self.world.failures, *failures)))

    def copied(self, copies: int) -> Scenario:
        """So many worlds like this one side by side, on one router: any of them may do a step of any request.

        The devices of the first keep their names, `pi` of the second is called `pi#2`. Failures at known times are
        those of the first.

        Raises:
            UsageError: there are none, or a device is called like a copy.
        """
        if copies < 1:
            raise UsageError(f"{copies} copies can't run anything", hint="take 1 or more")
        try:
            world = _copied(self.world, copies)
        except ValueError as error:
            raise UsageError(f"{error}, counting copies", hint="call devices of the cluster without #") from None
        return replace(self, world=world, owns=self.owns * copies, seconds=self.seconds * copies)


def scenario_of_plan(made: Plan, model: Model, world: SimulatedCluster | None) -> Scenario:
    """A plan in a world; without one, in the cluster that it was made for.

    Parts are where the plan puts them. If it was made for no cluster, they are spread over the devices in order. What a
    part was predicted to take holds on its device, and is scaled by the roofline for others.

    Raises:
        UsageError: there is no world, or it lacks some of the devices of the plan.
    """
    if world is None:
        world = _own_world(made)
    made = made if made.metrics else with_metrics(analyze(model), made, weigh(model, made.dims))
    costs = made.costs or weigh(model, made.dims)
    blocks, graph = made.partition.blocks, made.graph
    place = {node: i for i, node in enumerate(graph.flow)}
    held = [[place[n] for n in (*block.nodes, *block.replicas) if n in place] for block in blocks]
    scales = [
        figures.run_s / (_roofline(costs, device, [nodes])[0] or figures.run_s or 1.0)
        for figures, device, nodes in zip(made.metrics, made.devices, held, strict=True)
    ]
    units = tuple(
        ScheduledPart(f"part {i}", block.reads, block.writes, f.written_bytes + f.activation_bytes + f.cache_bytes)
        for i, (block, f) in enumerate(zip(blocks, made.metrics, strict=True))
    )
    seconds = _per_device(world, lambda device: _scaled(_roofline(costs, device, held), scales))
    named = [device.name for device in made.devices] if isinstance(made.goal, Across) else None
    return Scenario(
        units,
        tuple(figures.weight_bytes for figures in made.metrics),
        graph.reads,
        graph.writes,
        {name: costs.tensor_bytes[name][0] for block in blocks for name in block.writes},
        world,
        _owned(world, named, seconds[0]),
        seconds,
    )


def scenario_of_cascade(cascade: Cascade, world: SimulatedCluster) -> Scenario:
    """A cascade in a world: its parts are opened to see what they take, by the roofline.

    Raises:
        UsageError: the world lacks some of the devices that the parts were planned for.
        GraphcutError: a part can't be opened.
    """
    dims = cascade.manifest.dims
    weighed = [weigh(load(cascade.file(part)), dims) for part in cascade.parts]
    seconds = _per_device(world, lambda device: tuple(sum(run_s(costs, device)) for costs in weighed))
    named = [part.device for part in cascade.parts if part.device is not None]
    return Scenario(
        tuple(scheduled_parts(cascade, {})),
        tuple(part.weight_bytes for part in cascade.parts),
        cascade.manifest.reads,
        cascade.manifest.writes,
        {n: costs.tensor_bytes[n][0] for part, costs in zip(cascade.parts, weighed, strict=True) for n in part.writes},
        world,
        _owned(world, named if len(named) == len(cascade.parts) else None, seconds[0]),
        seconds,
    )


def scenario_of_log(cascade: Cascade, log: RunLog, *, overhead_s: float = 0.0) -> Scenario:
    """What was measured on one machine: each part takes on each worker what it took there on average.

    Between workers of one machine tensors take no time of their own. A part belongs to all workers that ran it.

    Args:
        cascade: what ran.
        log: of that run.
        overhead_s: what a step took on average on top of its parts, until it was heard of there and here.
    """
    known = {key: total.seconds / total.runs for key, total in log.part_totals.items() if total.runs}
    parts = range(len(cascade.parts))
    usual = [log.total_of(part).seconds / max(1, log.total_of(part).runs) for part in parts]
    workers = range(log.workers)
    return Scenario(
        tuple(scheduled_parts(cascade, {})),
        tuple(part.weight_bytes for part in cascade.parts),
        cascade.manifest.reads,
        cascade.manifest.writes,
        {name: 0 for part in cascade.parts for name in part.writes},
        SimulatedCluster(
            devices=tuple(Device(name=f"worker {worker}", latency_s=overhead_s / 2) for worker in workers)
        ),
        tuple(tuple(part for part in parts if (part, worker) in known) for worker in workers),
        tuple(tuple(known.get((part, worker), usual[part]) for part in parts) for worker in workers),
    )


def _own_world(made: Plan) -> SimulatedCluster:
    if not isinstance(made.goal, Across):
        raise UsageError(
            "the plan was made for no cluster, so it does not say where its parts run",
            hint="name a file that lists devices with --cluster",
        )
    return SimulatedCluster(devices=made.goal.cluster.devices, links=made.goal.cluster.links)


def _roofline(costs: Costs, device: Device, parts: Sequence[Sequence[int]]) -> list[float]:
    """Seconds that the nodes of each part take, by the roofline."""
    seconds = run_s(costs, device)
    return [sum(seconds[i] for i in nodes) for nodes in parts]


def _scaled(seconds: Sequence[float], scales: Sequence[float]) -> tuple[float, ...]:
    return tuple(time * scale for time, scale in zip(seconds, scales, strict=True))


def _per_device(
    world: SimulatedCluster, seconds: Callable[[Device], tuple[float, ...]]
) -> tuple[tuple[float, ...], ...]:
    """What the parts take on each device; devices that compute alike are looked at once."""
    found: dict[tuple[float, ...], tuple[float, ...]] = {}
    made = []
    for device in world.devices:
        kind = (device.flops_per_s, device.bytes_per_s, device.dispatch_s)
        if kind not in found:
            found[kind] = seconds(device)
        made.append(found[kind])
    return tuple(made)


def _owned(
    world: SimulatedCluster, named: Sequence[str] | None, seconds: Sequence[float]
) -> tuple[tuple[int, ...], ...]:
    """The parts of each device: where they were planned, or else in order, as even as can be, as `stream` does it."""
    names = [device.name for device in world.devices]
    if named is None:
        bounds = even_bounds([time or 1e-12 for time in seconds], min(len(seconds), len(names)))
        return (*(tuple(range(*span)) for span in pairwise(bounds)), *((),) * (len(names) + 1 - len(bounds)))
    if stranger := next((name for name in named if name not in names), None):
        raise UsageError(
            f"part {named.index(stranger)} is to run on {stranger!r}, which is no device of this cluster",
            hint=f"name the cluster that it was planned for, or plan for this one; it has {_listed(names)}",
        )
    return tuple(tuple(i for i, at in enumerate(named) if at == name) for name in names)


def _copied(world: SimulatedCluster, copies: int) -> SimulatedCluster:
    def names(between: tuple[str, str], copy: int) -> tuple[str, str]:
        return _copy_name(between[0], copy), _copy_name(between[1], copy)

    numbers = range(1, copies + 1)
    return SimulatedCluster(
        devices=tuple(changed(one, name=_copy_name(one.name, copy)) for copy in numbers for one in world.devices),
        links=tuple(changed(one, between=names(one.between, copy)) for copy in numbers for one in world.links),
        faults=tuple(
            changed(
                one,
                device=None if one.device is None else _copy_name(one.device, copy),
                between=None if one.between is None else names(one.between, copy),
            )
            for copy in numbers
            for one in world.faults
        ),
        failures=world.failures,
    )


def _copy_name(name: str, copy: int) -> str:
    return name if copy == 1 else f"{name}#{copy}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown}, and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
