"""The documents that `--json` prints: msgspec records, each with a versioned name under `schema`.

`schema_types` lists them, and `msgspec.json.schema` makes the JSON schema of each. A key has the name of the attribute
that it comes from. Infinite numbers are null, since JSON has no infinity. The keys of dependency maps are indices of
parts or of segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..analysis.cut_points import Analysis, CutPoint
from ..core.graph import Block
from ..core.manifest import Cascade, Manifest
from ..core.wiring import DependencyMap, Tensor
from ..costs.device import Device
from ..costs.matching import Coverage
from ..loading.model import Model
from ..planning.explanations import Reason
from ..planning.goals import Goal, Limits
from ..planning.plans import Plan
from ..planning.predictions import PartMetrics
from ..planning.results import Optimality
from ..simulating.results import SimulationResult
from ..surgery.splitting import PreparedFiles
from .changes.record import Changes

if TYPE_CHECKING:  # it loads ONNX Runtime
    from ..verifying.verification import Verification


def dumps(record: object) -> str:
    """`record` as indented JSON; the same content gives the same text."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def schema_types() -> dict[str, type[msgspec.Struct]]:
    """The type of each document, by the name under its key `schema`."""
    from .run_records import BenchmarkRecord, GenerationRecord  # they load ONNX Runtime

    types: tuple[type[msgspec.Struct], ...]
    types = (AnalysisRecord, PlanRecord, CascadeRecord, DryRunRecord, VerificationRecord, Changes, SimulationRecord)
    return {str(record.__struct_config__.tag): record for record in (*types, BenchmarkRecord, GenerationRecord)}


class SegmentRecord(msgspec.Struct, frozen=True):
    """Nodes, and the tensors that they read and write together."""

    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class RepeatRecord(msgspec.Struct, frozen=True):
    """The block that a model repeats most: the nodes of each, what to call a block, what is before and after them."""

    blocks: tuple[tuple[str, ...], ...]
    block: str
    before: str
    after: str


class AnalysisRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.analysis/1"):
    """An analysis: interface, key nodes, dominators, segments and the tensors between them, profile, cut points."""

    model: str
    nodes: int
    flowing_nodes: int
    weight_bytes: int
    dims: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    notes: tuple[str, ...]
    key_nodes: tuple[str, ...]
    dominators: tuple[str, ...]
    segments: tuple[SegmentRecord, ...]
    sequential: DependencyMap
    residual: DependencyMap
    profile_bytes: tuple[int, ...]
    cut_points: tuple[CutPoint, ...]
    repeat: RepeatRecord | None


def analysis_record(analysis: Analysis) -> AnalysisRecord:
    """The document of an analysis."""
    model, graph, segments, repeat = analysis.model, analysis.model.graph, analysis.segments, analysis.repeat
    names = [node.name for node in graph.nodes]
    return AnalysisRecord(
        model=str(model.path),
        nodes=len(names),
        flowing_nodes=len(graph.flow),
        weight_bytes=model.weight_bytes,
        dims=dict(model.dims),
        inputs=tuple(model.tensors[name] for name in graph.reads),
        outputs=tuple(model.tensors[name] for name in graph.writes),
        notes=tuple(model.notes),
        key_nodes=tuple(names[i] for i in analysis.key_nodes),
        dominators=tuple(names[i] for i in analysis.dominators),
        segments=tuple(
            SegmentRecord(tuple(names[i] for i in block.nodes), block.reads, block.writes) for block in segments.blocks
        ),
        sequential=segments.wiring.sequential,
        residual=segments.wiring.residual,
        profile_bytes=tuple(analysis.profile),
        cut_points=analysis.cut_points,
        repeat=None
        if repeat is None
        else RepeatRecord(
            tuple(tuple(names[i] for i in block) for block in repeat.blocks), repeat.block, repeat.before, repeat.after
        ),
    )


class PlannedPartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A planned part; `device` and `predicted` are null if the goal only names nodes."""

    nodes: tuple[str, ...]
    replicas: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    device: Device | None
    predicted: PartMetrics | None


class RecomputedRecord(msgspec.Struct, frozen=True):
    """What a part recomputes: the nodes, the tensors it need not receive, the bytes saved, the seconds it takes."""

    part: int
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    saved_bytes: int
    cost_s: float


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.planned/1"):
    """A plan: its parts and the tensors between them, how good it is, and why.

    A `gap` of 0.02 means at most 2 % worse than the best plan. `without_limits` is the outcome without pins and tensors
    to avoid, `front` are plans that trade period for latency (seconds of each), `uncounted` are operators without known
    FLOPs, `coverage` is what of a cost model was used.
    """

    model: str
    goal: Goal
    limits: Limits
    dims: dict[str, int]
    outcome: Optimality | None
    gap: float | None
    without_limits: Optimality | None
    front: tuple[tuple[float, float], ...]
    parts: tuple[PlannedPartRecord, ...]
    sequential: DependencyMap
    residual: DependencyMap
    recomputed: tuple[RecomputedRecord, ...]
    reasons: tuple[Reason, ...]
    uncounted: dict[str, int]
    coverage: Coverage | None


def plan_record(plan: Plan, model: Model) -> PlanRecord:
    """The document of a plan for `model`."""
    names, wiring = [node.name for node in plan.graph.nodes], plan.partition.wiring

    def part(index: int, block: Block) -> PlannedPartRecord:
        return PlannedPartRecord(
            nodes=tuple(names[i] for i in block.nodes),
            replicas=tuple(names[i] for i in block.replicas),
            reads=block.reads,
            writes=block.writes,
            device=plan.devices[index] if plan.devices else None,
            predicted=plan.metrics[index] if plan.metrics else None,
        )

    return PlanRecord(
        model=str(model.path),
        goal=plan.goal,
        limits=plan.limits,
        dims=dict(plan.dims),
        outcome=plan.outcome,
        gap=None if plan.outcome is None else plan.outcome.gap,
        without_limits=plan.unlimited,
        front=plan.front,
        parts=tuple(part(index, block) for index, block in enumerate(plan.partition.blocks)),
        sequential=wiring.sequential,
        residual=wiring.residual,
        recomputed=tuple(
            RecomputedRecord(one.part, tuple(names[i] for i in one.nodes), one.tensors, one.saved_bytes, one.cost_s)
            for one in plan.recomputed
        ),
        reasons=plan.reasons,
        uncounted={} if plan.costs is None else dict(plan.costs.uncounted),
        coverage=plan.coverage,
    )


class CascadeRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.view/1"):
    """A cascade: its manifest, and the tensors between its parts."""

    cascade: str
    manifest: Manifest
    sequential: DependencyMap
    residual: DependencyMap


def cascade_record(cascade: Cascade) -> CascadeRecord:
    """The document of a cascade."""
    wiring = cascade.wiring
    return CascadeRecord(
        cascade=str(cascade.path),
        manifest=cascade.manifest,
        sequential=wiring.sequential,
        residual=wiring.residual,
    )


class PreparedPartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A part that would be written, and the sizes of its data files by name."""

    file: str
    bytes: int
    data: dict[str, int]
    nodes: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class DryRunRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.dry-run/1"):
    """The files that a split would write."""

    folder: str
    manifest: str
    parts: tuple[PreparedPartRecord, ...]
    bytes: int


def dry_run_record(prepared: PreparedFiles) -> DryRunRecord:
    """The document of a split that was only prepared."""
    parts = (
        PreparedPartRecord(
            file=part.name,
            bytes=part.model.ByteSize(),
            data=dict(part.data) if part.layout is not None else {},
            nodes=len(part.model.graph.node),
            reads=part.block.reads,
            writes=part.block.writes,
        )
        for part in prepared.parts
    )
    return DryRunRecord(
        folder=str(prepared.folder),
        manifest=prepared.manifest_name,
        parts=tuple(parts),
        bytes=prepared.bytes_to_write,
    )


class ProofRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The structural comparison: whether it holds, what speaks against it, and how much was compared."""

    holds: bool
    objections: tuple[str, ...]
    nodes: int
    replicas: int
    weight_bytes: int


class ComparedTensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a run, made by `part`; it passes if it is identical or random, or if `max_abs` is allowed."""

    tensor: str
    part: int
    is_output: bool
    is_identical: bool
    is_random: bool
    max_abs: float | None
    max_rel: float | None
    max_ulps: int
    allowed: float
    passes: bool


class VerificationRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.report/1"):
    """A verification: the answer (`same`), the structural proof, and every tensor that was compared, run by run.

    `failure` is why the cascade rejected inputs that the model accepts, `refusal` why nothing was run, `reason` why a
    difference is allowed; each is empty if that did not happen. `is_random`: random nodes made a difference.
    """

    same: bool
    is_identical: bool
    proof: ProofRecord
    runs: tuple[tuple[ComparedTensorRecord, ...], ...]
    first_difference: ComparedTensorRecord | None
    failure: str
    refusal: str
    reason: str
    is_random: bool


def verification_record(verification: Verification) -> VerificationRecord:
    """The document of a verification."""
    return msgspec.convert(verification, VerificationRecord, from_attributes=True)


class SimulationRecord(SimulationResult, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.simulated/1"):
    """A simulation of `source`, which is a plan file or a cascade."""

    source: str


def simulation_record(result: SimulationResult, source: str) -> SimulationRecord:
    """The document of a simulation of `source`."""
    return SimulationRecord(**msgspec.structs.asdict(result), source=source)
