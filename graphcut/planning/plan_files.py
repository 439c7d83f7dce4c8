"""Plan files: `plan.json`, to be read, edited and replayed."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import msgspec
from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..core.atomic_files import write_file
from ..core.errors import GraphcutError, UsageError
from ..core.graph import Graph, partition
from ..core.records import as_json, read_record
from ..core.wiring import DependencyMap
from ..costs.device import Device
from ..costs.device_groups import DeviceGroup, ModeCosts, Rank
from ..costs.matching import Coverage
from ..costs.tables import CostRow, CostTable
from ..costs.weighing import weigh
from ..loading.model import Model
from ..solving.instance import Parts
from ..solving.recompute import Recomputed
from .goals import Across, At, Goal, Limits, check_goal
from .node_names import guess
from .planner import with_metrics
from .plans import ANY_DEVICE, Plan, check_limits, check_part_limits
from .predictions import PartMetrics
from .results import FrontPlan, Optimality, Reason

FORMAT: Final = "graphcut.plan/1"

_PLANNED: Final = ("outcome", "inside_layers", "unlimited", "front", "modes", "reasons", "recomputed", "coverage")
"""What a plan says that no longer holds once its file is edited; names in `Plan` and in `PlanFile`."""


class PlannedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a plan."""

    nodes: tuple[str, ...]  #: the names of its nodes.
    #: the names of the nodes that other parts may have too: nodes of earlier parts that it runs as well, and constant
    #: nodes, which a replay adds by itself.
    replicas: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  #: names of its input tensors; a replay divides the graph anew.
    writes: tuple[str, ...] = ()  #: names of its output tensors, likewise.
    device: Device | None = None  #: the device that runs it; None if it has ranks, or the plan is for no devices.
    ranks: tuple[Rank, ...] = ()  #: the devices that divide its layers among them.
    predicted: PartMetrics | None = None  #: its predicted metrics; a replay computes them anew if the file was edited.


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan as a document: the content of a plan file, and what the command `plan` prints as JSON."""

    format: Literal["graphcut.plan/1"] = FORMAT  #: `graphcut.plan/1`.
    model: str  #: the path of the model, relative to the folder of the plan file.
    graph: str  #: digest of its graph, without weights.
    goal: Goal  #: what the plan is for.
    limits: Limits  #: its constraints.
    #: the sizes of symbolic dimensions that it was made for, in the order in which they are reported.
    dims: dict[str, int]
    assumed: tuple[str, ...] = ()  #: those in `dims` that nobody gave.
    #: digest of all else. If it no longer matches, the file was edited: a replay takes what the plan is (its goal,
    #: limits, dims, cost model, and the nodes, replicas and devices of its parts), and computes the rest anew.
    planned: str = ""
    outcome: Optimality | None  #: how good the plan is; None for named cuts.
    gap: float | None = None  #: how much worse than the best plan at most: 0.02 is 2 %.
    inside_layers: Optimality | None = None  #: the same with cuts inside layers, if it is known to be better.
    unlimited: Optimality | None = None  #: the same without pins and nodes to avoid.
    front: tuple[FrontPlan, ...] = ()  #: the Pareto front of seconds between two requests, and of one.
    modes: tuple[ModeCosts, ...] = ()  #: what ranks exchange, joined as planned, and in the other way.
    reasons: tuple[Reason, ...] = ()  #: why each cut is where it is.
    recomputed: tuple[Recomputed, ...] = ()  #: what parts compute instead of receiving it.
    coverage: Coverage | None = None  #: how many nodes a cost model matched, if one was given.
    uncounted: dict[str, int] = {}  #: how many nodes of each operator have no known FLOPs.
    parts: tuple[PlannedPart, ...]  #: in an order in which they can run. To move a node, move its name.
    sequential: DependencyMap = {}  #: tensors from a part to the next, by the indices of parts.
    residual: DependencyMap = {}  #: tensors that skip a part, by the indices of parts.
    cost_model: tuple[CostRow, ...] = ()  #: the rows of the cost model that it was made with, if one was given.

    @property
    def digest(self) -> str:
        """What `planned` is if nobody edited the file. The order in which a part names its nodes means nothing."""
        parts = (
            changed(part, nodes=tuple(sorted(part.nodes)), replicas=tuple(sorted(part.replicas))) for part in self.parts
        )
        content = changed(self, planned="", parts=tuple(parts))
        return f"sha256:{hashlib.sha256(msgspec.json.encode(content)).hexdigest()}"


def save_plan(made: Plan, model: Model, path: str | Path) -> None:
    """Write a plan of `model` to a file; the same plan gives the same bytes.

    Raises:
        GraphcutError: the file can't be written.
    """
    path = Path(path)
    write_file(path, as_json(plan_file(made, model, path.parent)))  # dims stay in their order


def plan_file(made: Plan, model: Model, folder: Path) -> PlanFile:
    """A plan of `model` as a document, for a file in `folder`."""
    record = PlanFile(
        model=model.path_from(folder),
        graph=model.digest,
        dims=dict(made.dims),
        assumed=tuple(name for name in made.dims if name not in model.dims),
        gap=None if made.outcome is None else made.outcome.gap,
        uncounted={} if made.costs is None else dict(made.costs.uncounted),
        parts=tuple(_parts(made)),
        sequential=made.partition.wiring.sequential,
        residual=made.partition.wiring.residual,
        cost_model=made.table.rows if made.table else (),
        **{name: getattr(made, name) for name in ("goal", "limits", *_PLANNED)},
    )
    return changed(record, planned=record.digest)


def _parts(made: Plan) -> Iterable[PlannedPart]:
    for i, block in enumerate(made.partition.blocks):
        device = made.devices[i] if made.devices else None
        yield PlannedPart(
            nodes=made.graph.names(block.nodes),
            replicas=made.graph.names(block.replicas),
            reads=block.reads,
            writes=block.writes,
            device=None if isinstance(device, DeviceGroup) else device,
            ranks=device.ranks if isinstance(device, DeviceGroup) else (),
            predicted=made.metrics[i] if made.metrics else None,
        )


def read_plan(path: str | Path) -> PlanFile:
    """The content of a plan file, with the edits that somebody made; `replay` makes a plan of it.

    Raises:
        UsageError: the file is a model.
        RecordError: it can't be read, or holds no plan.
    """
    return read_record(Path(path), PlanFile, FORMAT, "plan again", "`save_plan(...)` writes one")


def replay(analysis: Analysis, path: str | Path) -> Plan:
    """The plan in a file, for the model that it was made for.

    Its metrics, optimality and reasons are those of the file. If somebody edited the file they no longer hold: metrics
    are then computed anew, as for a file without any, and the rest is unknown.

    Raises:
        UsageError: it is for another model, or an edit is not possible.
        PlanError: it does not keep its own limits.
        RecordError: it does not have the format of a plan file.
    """
    record, model = read_plan(path), analysis.model
    if record.graph != model.digest:
        message = f"{path} is a plan for {PurePosixPath(record.model).name}, not for {model.title}: the graphs differ"
        raise UsageError(message, hint=f"plan this model, such as with `Into({len(record.parts)})`")
    check_goal(record.goal)
    parts = _checked_parts(model.graph, record.parts, path)
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
    made = with_metrics(analysis, made, weigh(model, made.dims))
    if record.planned != record.digest:
        check_part_limits(made)
        return made
    metrics = tuple(part.predicted for part in record.parts if part.predicted is not None)
    known = {name: getattr(record, name) for name in _PLANNED if name != "reasons"}
    return replace(made, metrics=metrics or made.metrics, explain=lambda: record.reasons, **known)


def _devices(record: PlanFile, path: str | Path) -> tuple[Device, ...]:
    """The device of each part: one of the cluster, or without a cluster the one that predictions assume."""
    for i, part in enumerate(record.parts):
        if isinstance(record.goal, Across) and part.device is None and not part.ranks:
            raise UsageError(f"{path}: part {i} has no device", hint="give it one of the cluster, or plan again")
        named = next((rank.device for rank in part.ranks), part.device)
        if not isinstance(record.goal, Across | At) and named and named.name != ANY_DEVICE.name:
            message = f"{path}: part {i} names the device {named.name!r}, but this plan is for no cluster"
            raise UsageError(message, hint="plan for devices with `Across`, or take the device out")
    devices = tuple(DeviceGroup.of(part.ranks) if part.ranks else part.device or ANY_DEVICE for part in record.parts)
    return devices if any(part.device or part.ranks for part in record.parts) else ()


def _checked_parts(graph: Graph, planned: Sequence[PlannedPart], path: str | Path) -> Parts:
    """The flowing nodes of each part. Each has one home, before the parts that repeat it; they can run in order."""
    index, homes = graph.node_index, dict[str, int]()
    for i, part in enumerate(planned):
        if (unknown := next((name for name in (*part.nodes, *part.replicas) if name not in index), None)) is not None:
            hint = f"{guess(graph, unknown)}names are those of the model"
            raise UsageError(f"{path} names the node {unknown!r}, which the model does not have", hint=hint)
        for name in part.nodes:
            if graph.nodes[index[name]].is_constant:
                raise UsageError(f"{path}: {name!r} is a constant, which every part has", hint="take its name out")
            if name in homes:
                where = f"twice in part {i}" if homes[name] == i else f"in parts {homes[name]} and {i}"
                raise UsageError(f"{path}: node {name!r} is {where}", hint="name it once")
            homes[name] = i
        repeated = (name for name in part.replicas if not graph.nodes[index[name]].is_constant)
        if (unknown := next((name for name in repeated if homes.get(name, i) >= i), None)) is not None:
            hint = "move it to 'nodes'"
            raise UsageError(f"{path}: part {i} repeats {unknown!r}, which no part before it holds", hint=hint)
        if not part.nodes:
            raise UsageError(f"{path}: part {i} has no nodes", hint="take the part out")
    if (missing := next((name for name in graph.names(graph.flow) if name not in homes), None)) is not None:
        raise UsageError(f"{path}: node {missing!r} is in no part", hint="put its name among the nodes of one")
    flowing = set(graph.flow)
    parts = tuple(tuple(sorted(flowing & {index[n] for n in (*part.nodes, *part.replicas)})) for part in planned)
    try:
        partition(graph, parts)
    except GraphcutError as error:
        raise UsageError(f"{path}: these parts can't run in this order: {error}", hint="move a node back") from None
    return parts
