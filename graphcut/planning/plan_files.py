"""Plan files: `plan.json`, to be read, edited and replayed."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import msgspec
from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..core.atomic_files import replacing, write_errors
from ..core.errors import GraphcutError, RecordError, UsageError
from ..core.graph import Graph, partition
from ..core.manifest import read_record
from ..costs.device import Device
from ..costs.device_groups import DeviceGroup, ModeCosts, Rank
from ..costs.matching import Coverage
from ..costs.tables import CostRow, CostTable
from ..costs.weighing import weigh
from ..loading.fingerprint import graph_digest
from ..loading.model import Model
from ..solving.recompute import Recomputed
from .goals import Across, At, Goal, Limits
from .node_names import guess
from .planner import with_metrics
from .plans import ANY_DEVICE, Plan, check_limits
from .predictions import PartMetrics
from .results import FrontPlan, Optimality, Reason

FORMAT: Final = "graphcut.plan/1"

_PLANNED: Final = ("outcome", "inside_layers", "unlimited", "front", "modes", "reasons", "coverage")
"""What a plan says that no longer holds once its file is edited; fields of `Plan` and of `PlanFile`."""


class RecomputedNodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a part computes instead of receiving it: `Recomputed` with names of nodes."""

    #: the names of the nodes that it runs for that. One that no other part needs is its own, not repeated.
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]  #: what it need not receive.
    saved_bytes: int  #: bytes that it receives less.
    cost_s: float  #: seconds that it runs longer.


class PlannedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a plan."""

    nodes: tuple[str, ...]  #: the names of its nodes.
    repeats: tuple[str, ...] = ()  #: the names of nodes of other parts that it runs as well.
    device: Device | None = None  #: the device that runs it; None if it has ranks, or the plan is for no devices.
    ranks: tuple[Rank, ...] = ()  #: the devices that divide its layers among them.
    predicted: PartMetrics | None = None  #: its predicted metrics; a replay computes them anew if the file was edited.
    #: what it saves by nodes that other parts run as well; computed anew likewise.
    recomputed: RecomputedNodes | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a plan file."""

    format: Literal["graphcut.plan/1"]  #: `graphcut.plan/1`.
    model: str  #: the path of the model, relative to the folder of the plan file.
    graph: str  #: digest of its graph, without weights.
    goal: Goal  #: what the plan is for.
    limits: Limits  #: its constraints.
    #: the sizes of symbolic dimensions that it was made for, in the order in which they are reported.
    dims: dict[str, int]
    assumed: tuple[str, ...] = ()  #: those in `dims` that nobody gave.
    #: digest of all of the above, of the cost model, and of the parts as planned. If it no longer matches, the file was
    #: edited, and the following fields do not hold.
    planned: str = ""
    outcome: Optimality | None  #: how good the plan is.
    inside_layers: Optimality | None = None  #: the same with cuts inside layers, if it is known to be better.
    unlimited: Optimality | None = None  #: the same without pins and nodes to avoid.
    front: tuple[FrontPlan, ...] = ()  #: the Pareto front of seconds between two requests, and of one.
    modes: tuple[ModeCosts, ...] = ()  #: what ranks exchange, joined as planned, and in the other way.
    reasons: tuple[Reason, ...] = ()  #: why each cut is where it is.
    coverage: Coverage | None = None  #: how many nodes a cost model matched, if one was given.
    parts: tuple[PlannedPart, ...]  #: in an order in which they can run. To move a node, move its name.
    cost_model: tuple[CostRow, ...] = ()  #: the rows of the cost model that it was made with, if one was given.

    @property
    def digest(self) -> str:
        """What `planned` is if nobody edited the file. The order in which a part names its nodes means nothing."""
        parts = [(sorted(part.nodes), sorted(part.repeats), part.ranks or part.device) for part in self.parts]
        content = (self.model, self.graph, self.goal, self.limits, self.dims, self.cost_model, parts)
        return f"sha256:{hashlib.sha256(msgspec.json.encode(content, order='deterministic')).hexdigest()}"


def save_plan(made: Plan, model: Model, path: str | Path) -> None:
    """Write a plan for `model` to `path`; the same bytes for the same plan. An existing file is replaced.

    Raises:
        GraphcutError: the file can't be written.
    """
    path = Path(path)
    record = PlanFile(
        format=FORMAT,
        model=model.path_from(path.parent),
        graph=graph_digest(model.proto),
        goal=made.goal,
        limits=made.limits,
        dims=dict(made.dims),
        assumed=tuple(name for name in made.dims if name not in model.dims),
        parts=tuple(_parts(made)),
        cost_model=made.table.rows if made.table else (),
        **{name: getattr(made, name) for name in _PLANNED},
    )
    record = changed(record, planned=record.digest)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"  # dims stay in their order
    with write_errors(path), replacing(path) as new:
        new.write_bytes(text)


def _parts(made: Plan) -> Iterable[PlannedPart]:
    def names(nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(made.graph.nodes[node].name for node in nodes)

    recomputed = {
        one.part: RecomputedNodes(
            nodes=names(one.nodes), tensors=one.tensors, saved_bytes=one.saved_bytes, cost_s=one.cost_s
        )
        for one in made.recomputed
    }
    seen: set[int] = set()
    for i, nodes in enumerate(made.parts):
        device = made.devices[i] if made.devices else None
        yield PlannedPart(
            nodes=names(node for node in nodes if node not in seen),
            repeats=names(node for node in nodes if node in seen),
            device=None if isinstance(device, DeviceGroup) else device,
            ranks=device.ranks if isinstance(device, DeviceGroup) else (),
            predicted=made.metrics[i] if made.metrics else None,
            recomputed=recomputed.get(i),
        )
        seen.update(nodes)


def read_plan(path: str | Path) -> PlanFile:
    path = Path(path)
    try:
        return read_record(path, PlanFile, FORMAT, "plan again")
    except OSError as error:
        hint = "`save_plan(...)` writes one"
        raise RecordError(f"{path} can't be read: {error.strerror}", hint=hint) from None


def replay(analysis: Analysis, path: str | Path) -> Plan:
    """The plan in a file, for the model that it was made for.

    Its metrics, optimality and reasons are those of the file. If somebody edited the file they no longer hold: metrics
    are then computed anew, and the rest is unknown.

    Raises:
        UsageError: it is for another model, or an edit is not possible.
        PlanError: it does not keep its own limits.
        RecordError: it does not have the format of a plan file.
    """
    record, model = read_plan(path), analysis.model
    if record.graph != graph_digest(model.proto):
        raise UsageError(
            f"{path} is a plan for {PurePosixPath(record.model).name}, not for {model.path.name}: the graphs differ",
            hint=f"plan this model, such as with `Into({len(record.parts)})`",
        )
    parts = tuple(tuple(sorted({*_indices(model.graph, (*part.nodes, *part.repeats), path)})) for part in record.parts)
    _check(model.graph, record.parts, parts, path)
    made = Plan(
        record.goal,
        model.graph,
        parts,
        devices=_devices(record, path),
        limits=record.limits,
        dims=record.dims,
        table=CostTable(record.cost_model) if record.cost_model else None,
        model=model.with_dims({name: n for name, n in record.dims.items() if name not in record.assumed}),
    )
    check_limits(made)
    if isinstance(made.goal, At):
        return made
    made = with_metrics(analysis, made, weigh(model, made.dims))
    return _as_planned(made, record, path) if record.planned == record.digest else made


def _devices(record: PlanFile, path: str | Path) -> tuple[Device, ...]:
    """The device of each part: one of the cluster, or without a cluster the one that predictions assume."""
    for i, part in enumerate(record.parts):
        if isinstance(record.goal, Across) and part.device is None and not part.ranks:
            raise UsageError(f"{path}: part {i} has no device", hint="give it one of the cluster, or plan again")
        named = next((rank.device for rank in part.ranks), part.device)
        if not isinstance(record.goal, Across | At) and named and named.name != ANY_DEVICE.name:
            raise UsageError(
                f"{path}: part {i} names the device {named.name!r}, but this plan is for no cluster",
                hint="plan for devices with `Across`, or take the device out",
            )
    devices = tuple(DeviceGroup.of(part.ranks) if part.ranks else part.device or ANY_DEVICE for part in record.parts)
    return devices if any(part.device or part.ranks for part in record.parts) else ()


def _as_planned(made: Plan, record: PlanFile, path: str | Path) -> Plan:
    metrics = tuple(part.predicted for part in record.parts if part.predicted is not None)
    recomputed = (
        Recomputed(i, tuple(_indices(made.graph, one.nodes, path)), one.tensors, one.saved_bytes, one.cost_s)
        for i, one in enumerate(part.recomputed for part in record.parts)
        if one is not None
    )
    return replace(
        made,
        metrics=metrics if len(metrics) == len(record.parts) else made.metrics,
        recomputed=tuple(recomputed),
        **{name: getattr(record, name) for name in _PLANNED},
    )


def _indices(graph: Graph, names: Iterable[str], path: str | Path) -> list[int]:
    found = []
    for name in names:
        if name not in graph.node_index:
            raise UsageError(
                f"{path} names the node {name!r}, which the model does not have",
                hint=f"{guess(graph, name)}names are those of the model",
            )
        found.append(graph.node_index[name])
    return found


def _check(graph: Graph, planned: Sequence[PlannedPart], parts: Sequence[Sequence[int]], path: str | Path) -> None:
    """Every flowing node has one home, which is before the parts that repeat it, and the parts can run in order."""
    homes: dict[str, int] = {}
    for i, part in enumerate(planned):
        for name in part.nodes:
            if name in homes:
                where = f"twice in part {i}" if homes[name] == i else f"in parts {homes[name]} and {i}"
                raise UsageError(f"{path}: node {name!r} is {where}", hint="name it once")
            homes[name] = i
        unknown = next((name for name in part.repeats if homes.get(name, i) >= i), None)
        if unknown is not None:
            raise UsageError(
                f"{path}: part {i} repeats {unknown!r}, which no part before it holds", hint="move it to 'nodes'"
            )
        if not part.nodes:
            raise UsageError(f"{path}: part {i} has no nodes", hint="take the part out")
    missing = next((graph.nodes[i].name for i in graph.flow if graph.nodes[i].name not in homes), None)
    if missing is not None:
        raise UsageError(f"{path}: node {missing!r} is in no part", hint="put its name among the nodes of one")
    constant = next((name for name in homes if graph.nodes[graph.node_index[name]].is_constant), None)
    if constant is not None:
        raise UsageError(f"{path}: {constant!r} is a constant, which every part has", hint="take its name out")
    try:
        partition(graph, parts)
    except GraphcutError as error:
        raise UsageError(f"{path}: these parts can't run in this order: {error}", hint="move a node back") from None
