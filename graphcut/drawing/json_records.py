"""The JSON pen: everything that an analysis, a cascade or a report holds, under a versioned schema."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from ..analysis.cut_points import Analysis, CutPoint
from ..core.manifest import Cascade
from ..core.wiring import DependencyMap, Tensor, Wiring
from ..loading.model import Model
from ..planning.explanations import CandidateCut
from ..planning.plans import Plan
from ..surgery.splitting import PreparedFiles

if TYPE_CHECKING:  # these load ONNX Runtime
    from ..verifying.numerical import TensorComparison
    from ..verifying.verification import Verification


def dumps(record: object) -> str:
    """`record` as JSON text, the same for the same content."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def builtins(record: msgspec.Struct) -> dict[str, Any]:
    """A record as it stands in its file."""
    made: dict[str, Any] = msgspec.to_builtins(record)
    return made


def analysis_record(analysis: Analysis) -> dict[str, Any]:
    """`graphcut.analysis/1`: the model's interface, key nodes, segments with their maps, every cut point, repeats."""
    model, graph = analysis.model, analysis.model.graph
    repeat = analysis.repeat
    return {
        "schema": "graphcut.analysis/1",
        "model": str(model.path),
        "nodes": len(graph.nodes),
        "flowing_nodes": len(graph.flow),
        "weight_bytes": model.weight_bytes,
        "dims": dict(model.dims),
        "inputs": [_tensor(model.tensors[name]) for name in graph.reads],
        "outputs": [_tensor(model.tensors[name]) for name in graph.writes],
        "notes": list(model.notes),
        "key_nodes": [graph.nodes[i].name for i in analysis.key_nodes],
        "dominators": [graph.nodes[i].name for i in analysis.dominators],
        "segments": [
            {
                "nodes": [graph.nodes[i].name for i in block.nodes],
                "reads": list(block.reads),
                "writes": list(block.writes),
            }
            for block in analysis.segments.blocks
        ],
        **_maps(analysis.segments.wiring),
        "profile_bytes": list(analysis.profile),
        "cut_points": [_cut_point(point) for point in analysis.cut_points],
        "repeat": None
        if repeat is None
        else {
            "count": len(repeat.blocks),
            "blocks": [[graph.nodes[i].name for i in block] for block in repeat.blocks],
            "block": repeat.block,
            "before": repeat.before,
            "after": repeat.after,
        },
    }


def plan_record(made: Plan, model: Model) -> dict[str, Any]:
    """`graphcut.planned/1`: parts with their figures, what crosses, how good the plan is, and why."""
    names = [node.name for node in made.graph.nodes]
    outcome = made.outcome
    return {
        "schema": "graphcut.planned/1",
        "model": str(model.path),
        "goal": msgspec.to_builtins(made.goal),
        "limits": msgspec.to_builtins(made.limits),
        "dims": dict(made.dims),
        "outcome": None if outcome is None else {**msgspec.to_builtins(outcome), "gap": _finite(outcome.gap)},
        "without_limits": None if made.unlimited is None else msgspec.to_builtins(made.unlimited),
        "front": [{"period_s": period, "latency_s": latency} for period, latency in made.front],
        "parts": [
            {
                "nodes": [names[i] for i in block.nodes],
                "replicas": [names[i] for i in block.replicas],
                "reads": list(block.reads),
                "writes": list(block.writes),
                "device": msgspec.to_builtins(made.devices[i]) if made.devices else None,
                "predicted": msgspec.to_builtins(made.metrics[i]) if made.metrics else None,
            }
            for i, block in enumerate(made.partition.blocks)
        ],
        **_maps(made.partition.wiring),
        "recomputed": [
            {
                "part": found.part,
                "nodes": [names[i] for i in found.nodes],
                "tensors": list(found.tensors),
                "saved_bytes": found.saved_bytes,
                "cost_s": found.cost_s,
            }
            for found in made.recomputed
        ],
        "reasons": [
            {
                **_place(reason.chosen),
                "decided_by_part": reason.bottleneck,
                "next_best": [_place(place) for place in reason.alternatives],
            }
            for reason in made.reasons
        ],
        "uncounted": {} if made.costs is None else dict(made.costs.uncounted),
        "coverage": None if made.coverage is None else asdict(made.coverage),
    }


def _place(place: CandidateCut) -> dict[str, Any]:
    return {"after": place.after, "cost": place.cost, "crossing_bytes": place.crossing_bytes}


def cascade_record(cascade: Cascade) -> dict[str, Any]:
    """`graphcut.view/1`: the manifest, with the dependency maps that follow from it."""
    return {
        "schema": "graphcut.view/1",
        "cascade": str(cascade.path),
        "manifest": msgspec.to_builtins(cascade.manifest),
        **_maps(cascade.wiring),
    }


def dry_run_record(cut: PreparedFiles) -> dict[str, Any]:
    """`graphcut.dry-run/1`: the files that a split would write, and what they take."""
    return {
        "schema": "graphcut.dry-run/1",
        "folder": str(cut.folder),
        "manifest": cut.manifest_name,
        "parts": [
            {
                "file": part.name,
                "bytes": part.model.ByteSize(),
                "data": dict(part.data) if part.layout is not None else {},
                "nodes": len(part.model.graph.node),
                "reads": list(part.block.reads),
                "writes": list(part.block.writes),
            }
            for part in cut.parts
        ],
        "bytes": cut.bytes_to_write,
    }


def verification_record(report: Verification) -> dict[str, Any]:
    """`graphcut.report/1`: the answer, the proof, and every tensor that was compared."""
    first = report.first_difference
    return {
        "schema": "graphcut.report/1",
        "same": report.same,
        "identical": report.is_identical,
        "proof": {
            "holds": report.proof.holds,
            "objections": list(report.proof.objections),
            "nodes": report.proof.nodes,
            "replicas": report.proof.replicas,
            "weight_bytes": report.proof.weight_bytes,
        },
        "runs": [[_compared(tensor) for tensor in run] for run in report.runs],
        "first_difference": None if first is None else _compared(first),
        "failure": report.failure,
        "refusal": report.refusal,
        "reason": report.reason,
        "random": report.is_random,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(tensor)
    return found


def _maps(wiring: Wiring) -> dict[str, Any]:
    return {"sequential": _map(wiring.sequential), "residual": _map(wiring.residual)}


def _map(found: DependencyMap) -> dict[str, dict[str, list[str]]]:
    return {str(s): {str(t): list(names) for t, names in row.items()} for s, row in found.items()}


def _cut_point(point: CutPoint) -> dict[str, Any]:
    return {
        "node": point.node,
        "position": point.nodes_before,
        "bytes": point.bytes,
        "exact": point.is_exact,
        "crossing": list(point.boundary_tensors),
        "weights_before": point.weights_before,
        "weights_after": point.weights_after,
        "key": point.is_key,
        "module": point.module,
    }


def _compared(tensor: TensorComparison) -> dict[str, Any]:
    return {
        "tensor": tensor.tensor,
        "part": tensor.part,
        "output": tensor.is_output,
        "identical": tensor.is_identical,
        "random": tensor.is_random,
        "max_abs": _finite(tensor.max_abs),
        "max_rel": _finite(tensor.max_rel),
        "max_ulps": tensor.max_ulps,
        "allowed": tensor.allowed,
        "passes": tensor.passes,
    }


def _finite(number: float) -> float | str:
    """JSON has no infinity."""
    return number if number < float("inf") else "inf"
