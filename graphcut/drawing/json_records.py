"""The documents that `--json` prints: msgspec records, each with a versioned name under `format`.

`msgspec.json.schema` makes the JSON schema of each. A key has the name of the attribute that it comes from. Infinite
numbers are null, since JSON has no infinity. The keys of dependency maps are indices of parts or of segments.
"""

import json
import re
from functools import partial

import msgspec

from ..analysis.cut_points import Analysis, CutPoint
from ..core.manifest import Cascade, Manifest
from ..core.tensors import Tensor
from ..core.wiring import DependencyMap
from ..sharding.axes.classes import axis_classes
from ..simulating.results import SimulationResult


def dumps(record: object, *, indent: int = 2) -> str:
    """`record` as JSON, a line without `indent`; the same content gives the same text. Only what prints is in it."""
    lines = msgspec.json.format(msgspec.json.encode(record), indent=indent).decode().split("\n")
    in_ascii = partial(re.sub, "[^ -~]+", lambda found: json.dumps(found[0])[1:-1])
    return "\n".join(line if line.isprintable() else in_ascii(line) for line in lines)


class SegmentRecord(msgspec.Struct, frozen=True):
    """Nodes, and the tensors that they read and write together."""

    nodes: tuple[str, ...]  #: names of its nodes.
    reads: tuple[str, ...]  #: names of the tensors that it reads.
    writes: tuple[str, ...]  #: names of the tensors that others read.


class RepeatRecord(msgspec.Struct, frozen=True):
    """The block that a model repeats most."""

    blocks: tuple[tuple[str, ...], ...]  #: the names of the nodes of each block.
    block: str  #: what a block is called.
    before: str  #: what is before the blocks.
    after: str  #: what is after them.


class AxisClassRecord(msgspec.Struct, frozen=True):
    """Axes of tensors that are divided alike; see docs/explanation/sharding.md."""

    units: int  #: how many units they consist of; 1 if they can't be divided.
    axes: dict[str, int]  #: the weights that have such an axis, each with its index.
    nodes: tuple[str, ...]  #: the nodes that are divided along it.
    blocked_by: dict[str, str]  #: the nodes that need such an axis whole, each with its operator or the reason.


class AnalysisRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.analysis/1"):
    """An analysis of a model."""

    model: str  #: path of the model.
    nodes: int  #: number of nodes.
    flowing_nodes: int  #: number of nodes that an input reaches.
    weight_bytes: int  #: bytes of all weights.
    dims: dict[str, int]  #: the numbers that sizes were computed for.
    inputs: tuple[Tensor, ...]  #: the model's inputs.
    outputs: tuple[Tensor, ...]  #: the model's outputs.
    notes: tuple[str, ...]  #: notes on how the model was read.
    key_nodes: tuple[str, ...]  #: names of the key nodes.
    dominators: tuple[str, ...]  #: names of the nodes on every path.
    segments: tuple[SegmentRecord, ...]  #: the nodes between key nodes.
    sequential: DependencyMap  #: tensors from a segment to the next, by their indices.
    residual: DependencyMap  #: tensors that skip a segment, by the indices of segments.
    profile_bytes: tuple[int, ...]  #: bytes alive after each flowing node.
    cut_points: tuple[CutPoint, ...]  #: where the model can be cut.
    repeat: RepeatRecord | None  #: the repeated block; null if none.
    axis_classes: tuple[AxisClassRecord, ...]  #: the axes along which nodes multiply by weights.


def analysis_record(analysis: Analysis) -> AnalysisRecord:
    """The document of an analysis."""
    model, graph, segments, repeat = analysis.model, analysis.model.graph, analysis.segments, analysis.repeat
    blocks = () if repeat is None else tuple(graph.names(block) for block in repeat.blocks)
    return AnalysisRecord(
        axis_classes=tuple(
            AxisClassRecord(
                units=one.units,
                axes={use.tensor: layout.axis for use, layout in one.layouts.items() if use.tensor in one.weights},
                nodes=graph.names(one.factors),
                blocked_by={graph.nodes[blocker.node].name: blocker.reason for blocker in one.blockers},
            )
            for one in axis_classes(model)
        ),
        model=str(model.path),
        nodes=len(graph.nodes),
        flowing_nodes=len(graph.flow),
        weight_bytes=model.weight_bytes,
        dims=dict(analysis.sized.dims),
        inputs=tuple(model.tensors[name] for name in graph.reads),
        outputs=tuple(model.tensors[name] for name in graph.writes),
        notes=tuple(model.notes),
        key_nodes=graph.names(analysis.key_nodes),
        dominators=graph.names(analysis.dominators),
        segments=tuple(SegmentRecord(graph.names(one.nodes), one.reads, one.writes) for one in segments.blocks),
        sequential=segments.wiring.sequential,
        residual=segments.wiring.residual,
        profile_bytes=tuple(analysis.profile),
        cut_points=analysis.cut_points,
        repeat=None if repeat is None else RepeatRecord(blocks, repeat.block, repeat.before, repeat.after),
    )


class CascadeRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.view/1"):
    """A cascade, or one that would be written: its manifest, and the tensors between its parts."""

    cascade: str  #: path of the manifest.
    manifest: Manifest  #: the manifest; for a dry run without digests of weights.
    sequential: DependencyMap  #: tensors from a part to the next, by their indices.
    residual: DependencyMap  #: tensors that skip a part, by the indices of parts.
    would_write: dict[str, int] | None = None  #: for a dry run the bytes of each file but the manifest.


def cascade_record(cascade: Cascade, would_write: dict[str, int] | None = None) -> CascadeRecord:
    """The document of a cascade."""
    maps = {name: getattr(cascade.wiring, name) for name in ("sequential", "residual")}
    return CascadeRecord(cascade=str(cascade.path), manifest=cascade.manifest, would_write=would_write, **maps)


class SimulationRecord(SimulationResult, frozen=True, kw_only=True, tag_field="format", tag="graphcut.simulated/1"):
    """A simulation of `source`, which is a plan file or a cascade."""

    source: str  #: the plan file or cascade.


def simulation_record(result: SimulationResult, source: str) -> SimulationRecord:
    """The document of a simulation of `source`."""
    return SimulationRecord(**msgspec.structs.asdict(result), source=source)
