"""Plans on disk: `plan.json`, to be looked at, edited and replayed."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import msgspec
from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..core.atomic_files import replacing
from ..core.errors import GraphcutError, RecordError, UsageError, validation_message
from ..core.graph import Graph, partition
from ..costs.device import Device
from ..costs.matching import Coverage
from ..costs.weighing import weigh
from ..loading.fingerprint import graph_digest
from ..loading.model import Model
from .explanations import Reason
from .goals import At, Goal, Limits
from .node_names import guess
from .plans import Plan, check_limits, with_metrics
from .predictions import PartMetrics
from .results import Optimality
from .solver.recompute import Recomputed

FORMAT: Final = "graphcut.plan/1"


class Again(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a part computes instead of receiving it: see `Recomputed`.

    Attributes:
        nodes: the names of the nodes that it runs for that. One that no other part needs is its own, not repeated.
        tensors: what need not be sent to it.
        saved_bytes: bytes that it receives less.
        cost_s: seconds that it runs longer.
    """

    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    saved_bytes: int
    cost_s: float


class PlannedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a plan.

    Attributes:
        nodes: the names of its nodes.
        repeats: the names of nodes of other parts that it computes for itself as well.
        device: what runs it; None where the plan is for no devices.
        predicted: what it takes, as it was planned; of parts that were edited a replay computes it anew.
        recomputed: what is saved by nodes that other parts run, too; the same holds of it.
    """

    nodes: tuple[str, ...]
    repeats: tuple[str, ...] = ()
    device: Device | None = None
    predicted: PartMetrics | None = None
    recomputed: Again | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in a plan file.

    Attributes:
        format: `graphcut.plan/1`.
        model: the path of the model, relative to the folder of the plan file.
        graph: digest of its graph, weights left out.
        goal: what was wanted.
        limits: what constrained it.
        dims: the numbers that sizes were evaluated for, in the order in which they are told.
        planned: digest of all of the above and of what stands in the parts, as they were planned. Where it no longer
            fits, somebody has edited the file, and what follows does not hold of this plan.
        outcome: how good the plan is.
        unlimited: the same without pins and what to avoid.
        front: other plans worth having: seconds between two requests, and of one.
        reasons: why each cut is where it is.
        coverage: what of a cost model fitted the model, where one was given.
        parts: in an order in which they can run. To move a node, move its name.
    """

    format: Literal["graphcut.plan/1"]
    model: str
    graph: str
    goal: Goal
    limits: Limits
    dims: dict[str, int]
    planned: str = ""
    outcome: Optimality | None
    unlimited: Optimality | None = None
    front: tuple[tuple[float, float], ...] = ()
    reasons: tuple[Reason, ...] = ()
    coverage: Coverage | None = None
    parts: tuple[PlannedPart, ...]

    @property
    def digest(self) -> str:
        """What `planned` is for a plan that nobody edited. In which order a part names its nodes means nothing."""
        parts = [(sorted(part.nodes), sorted(part.repeats), part.device) for part in self.parts]
        said = (self.model, self.graph, self.goal, self.limits, self.dims, parts)
        return f"sha256:{hashlib.sha256(msgspec.json.encode(said, order='deterministic')).hexdigest()}"


def save_plan(made: Plan, model: Model, path: str | Path) -> None:
    """Write a plan for `model` to `path`; the same bytes for the same plan. A file that stands there is replaced.

    Raises:
        GraphcutError: the disk refuses.
    """
    path = Path(path)
    record = PlanFile(
        format=FORMAT,
        model=model.path_from(path.parent),
        graph=graph_digest(model.proto),
        goal=made.goal,
        limits=made.limits,
        dims=dict(made.dims),
        outcome=made.outcome,
        unlimited=made.unlimited,
        front=made.front,
        reasons=made.reasons,
        coverage=made.coverage,
        parts=tuple(_parts(made)),
    )
    record = changed(record, planned=record.digest)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"  # dims stay in their order
    try:
        with replacing(path) as new:
            new.write_bytes(text)
    except OSError as error:
        raise GraphcutError(f"writing {path} failed: {error.strerror or error}", hint="nothing was changed") from error


def _parts(made: Plan) -> Iterator[PlannedPart]:
    nodes = made.graph.nodes
    again = {
        one.part: Again(
            nodes=tuple(nodes[node].name for node in one.nodes),
            tensors=one.tensors,
            saved_bytes=one.saved_bytes,
            cost_s=one.cost_s,
        )
        for one in made.recomputed
    }
    seen: set[int] = set()
    for i, row in enumerate(made.parts):
        yield PlannedPart(
            nodes=tuple(nodes[node].name for node in row if node not in seen),
            repeats=tuple(nodes[node].name for node in row if node in seen),
            device=made.devices[i] if made.devices else None,
            predicted=made.metrics[i] if made.metrics else None,
            recomputed=again.get(i),
        )
        seen.update(row)


def read_plan(path: str | Path) -> PlanFile:
    """What stands in a plan file, read strictly.

    Raises:
        UsageError: it can't be read.
        RecordError: it does not fit the format.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}", hint="`graphcut plan MODEL ... -o FILE` writes one"
        ) from None
    hint = "plan again, or use the graphcut that wrote it"
    try:
        found = msgspec.json.decode(raw)
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, str) and version != FORMAT:
            raise RecordError(f"{path}: its format is {version!r}, and this graphcut reads {FORMAT!r}", hint=hint)
        return msgspec.json.decode(raw, type=PlanFile)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {validation_message(error)}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is no plan: {error}", hint=hint) from None


def replay(analysis: Analysis, path: str | Path) -> Plan:
    """The plan that stands in a file, for the model it was made for.

    How good it is, and why, was found when it was planned, and is said again. Where somebody has edited the file that
    does not hold any more: what the parts take is computed anew then, and the rest is not known.

    Raises:
        UsageError: it is for another model, or what was edited can't be.
        PlanError: it does not keep its own limits.
        RecordError: it does not fit the format.
    """
    record, model = read_plan(path), analysis.model
    if record.graph != graph_digest(model.proto):
        raise UsageError(
            f"{path} is a plan for {PurePosixPath(record.model).name}, not for {model.path.name}: the graphs differ",
            hint=f"plan again: `graphcut plan {shlex.quote(str(model.path))} --num-splits {len(record.parts)}`",
        )
    rows = [
        sorted({*_places(model.graph, part.nodes, path), *_places(model.graph, part.repeats, path)})
        for part in record.parts
    ]
    _check(model.graph, record.parts, rows, path)
    devices = tuple(part.device for part in record.parts if part.device is not None)
    made = Plan(
        record.goal,
        model.graph,
        tuple(map(tuple, rows)),
        devices=devices if len(devices) == len(rows) else (),
        limits=record.limits,
        dims=record.dims,
        model=model,
    )
    check_limits(made)
    if isinstance(made.goal, At):
        return made
    made = with_metrics(analysis, made, weigh(model, made.dims))
    return _as_planned(made, record, path) if record.planned == record.digest else made


def _as_planned(made: Plan, record: PlanFile, path: str | Path) -> Plan:
    """A plan with what its file says of it."""
    figures = tuple(part.predicted for part in record.parts if part.predicted is not None)
    return replace(
        made,
        metrics=figures if len(figures) == len(record.parts) else made.metrics,
        outcome=record.outcome,
        unlimited=record.unlimited,
        front=record.front,
        reasons=record.reasons,
        coverage=record.coverage,
        recomputed=tuple(
            Recomputed(
                part=i,
                nodes=tuple(_places(made.graph, again.nodes, path)),
                tensors=again.tensors,
                saved_bytes=again.saved_bytes,
                cost_s=again.cost_s,
            )
            for i, part in enumerate(record.parts)
            if (again := part.recomputed) is not None
        ),
    )


def _places(graph: Graph, names: Sequence[str], path: str | Path) -> list[int]:
    for name in names:
        if name not in graph.node_index:
            raise UsageError(
                f"{path} names the node {name!r}, which the model does not have",
                hint=f"{guess(graph, name)}names stand in the model as they are written",
            )
    return [graph.node_index[name] for name in names]


def _check(graph: Graph, parts: Sequence[PlannedPart], rows: Sequence[Sequence[int]], path: str | Path) -> None:
    """Every flowing node has one home, and its part stands before those that repeat it."""
    homes: dict[str, int] = {}
    for i, part in enumerate(parts):
        for name in part.nodes:
            if name in homes:
                where = f"twice in part {i}" if homes[name] == i else f"in parts {homes[name]} and {i}"
                raise UsageError(f"{path}: node {name!r} stands {where}", hint="name it once")
            homes[name] = i
        strange = next((name for name in part.repeats if homes.get(name, i) >= i), None)
        if strange is not None:
            raise UsageError(
                f"{path}: part {i} repeats {strange!r}, which no part before it holds", hint="move it to `nodes`"
            )
        if not part.nodes:
            raise UsageError(f"{path}: part {i} has no nodes", hint="take the part out")
    missing = next((graph.nodes[i].name for i in graph.flow if graph.nodes[i].name not in homes), None)
    if missing is not None:
        raise UsageError(f"{path}: node {missing!r} stands in no part", hint="put its name among the nodes of one")
    constant = next((name for name in homes if graph.nodes[graph.node_index[name]].is_constant), None)
    if constant is not None:
        raise UsageError(f"{path}: {constant!r} is a constant, which every part has", hint="take its name out")
    try:
        partition(graph, rows)
    except GraphcutError as error:
        raise UsageError(f"{path}: these parts can't run in this order: {error}", hint="move a node back") from None
