"""Each hazard is cut and gives the same answers bit by bit, or is refused for the right reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphcut
from graphcut import At, Cascade, GraphcutError, Model, SessionConfig, UsageError
from graphcut.core.arguments import Storage
from graphcut.core.graph import partition
from graphcut.loading.fingerprint import graph_digest
from graphcut.planning.plans import Plan
from graphcut.verifying.numerical import compare
from graphcut.verifying.structural import prove

from cases import crossed, each
from hazards import HAZARDS
from hazards.hazard import Hazard
from tampering import CHANGES, missed

CUTTABLE = {name: hazard for name, make in HAZARDS.items() if (hazard := make()).cut and hazard.runs}


def cut(hazard: Hazard, folder: Path, *, weights: Storage = "copy") -> tuple[Model, Cascade]:
    model = graphcut.load(hazard.write(folder))
    plan = graphcut.plan(graphcut.analyze(model), At(hazard.cut))
    return model, graphcut.split(model, plan, weights=weights, digest=True)


@crossed(("name", "weights"), CUTTABLE, ["copy", "share"], times=1, together=32)
def test_a_hazard_is_split_and_nothing_is_lost(name: str, weights: Storage, tmp_path: Path) -> None:
    hazard = CUTTABLE[name]
    model, cascade = cut(hazard, tmp_path, weights=weights)
    assert prove(model, cascade).objections == ()
    assert graphcut.verify_files(cascade).objections == ()
    parts = [onnx.load(cascade.file(part)) for part in cascade.parts]
    assert hazard.objections(parts) == []
    for feeds in hazard.ways_to_feed():
        assert [c for c in compare(model, cascade, feeds, optimized=False) if not c.is_identical] == []


@crossed(("name", "first"), CUTTABLE, range(3), times=1, together=16)
def test_each_change_of_a_cascade_is_found(name: str, first: int, tmp_path: Path) -> None:
    """A third of the changes for each hazard, in turn."""
    model, cascade = cut(CUTTABLE[name], tmp_path)
    assert graphcut.verify(model, cascade, structural_only=True)
    assert missed(model, cascade, tmp_path / "copy", tuple(CHANGES)[first::3]) == []


@each("name", CUTTABLE, together=16)
def test_the_cascade_gives_the_outputs_of_the_model(name: str, tmp_path: Path) -> None:
    """Not as graphcut reads it: the reference is ONNX Runtime on the untouched file."""
    hazard = CUTTABLE[name]
    model, cascade = cut(hazard, tmp_path)
    if any(node.is_stateful for node in model.graph.nodes) or has_types_without_numpy(model):
        pytest.skip("random, or of a type that the plain Python interface can't take")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, hazard.feeds)
    ours = graphcut.run(cascade, hazard.feeds, config=SessionConfig(optimize="none"))
    assert list(ours) == [output.name for output in session.get_outputs()]
    for mine, theirs in zip(ours.values(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def has_types_without_numpy(model: Model) -> bool:
    names = (*model.graph.reads, *model.graph.writes)
    return any("bfloat" in model.tensors[name].dtype or "float8" in model.tensors[name].dtype for name in names)


@each("name", CUTTABLE)
def test_merging_restores_the_graph(name: str, tmp_path: Path) -> None:
    model, cascade = cut(CUTTABLE[name], tmp_path)
    whole = graphcut.merge(cascade, tmp_path / "whole.onnx")
    bare = onnx.ModelProto()
    bare.CopyFrom(model.proto)
    bare.ClearField("training_info")
    assert graph_digest(whole.proto) == graph_digest(bare)


@each("name", CUTTABLE)
def test_the_same_cut_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    model, first = cut(CUTTABLE[name], tmp_path)
    plan = graphcut.plan(graphcut.analyze(model), At(CUTTABLE[name].cut))
    second = graphcut.split(model, plan, tmp_path / "again.parts")
    for file in sorted(first.root.iterdir()):
        assert file.read_bytes() == (second.root / file.name).read_bytes()


def test_a_cyclic_assignment_is_refused_with_the_tensor_that_closes_the_cycle(tmp_path: Path) -> None:
    hazard = HAZARDS["cyclic_assignment"]()
    model = graphcut.load(hazard.write(tmp_path))
    assert hazard.assign is not None
    rows: list[list[int]] = [[] for _ in range(max(hazard.assign.values()) + 1)]
    for tensor, part in hazard.assign.items():
        rows[part].append(model.graph.producer[tensor])
    with pytest.raises(GraphcutError, match=hazard.refused):
        partition(model.graph, rows)
    with pytest.raises(GraphcutError, match="before any part writes it"):
        graphcut.split(model, Plan(At(()), model.graph, tuple(map(tuple, rows))), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_duplicate_node_names_are_refused_with_the_name(tmp_path: Path) -> None:
    with pytest.raises(graphcut.ModelError, match="nodes are named 'twin'") as caught:
        graphcut.load(HAZARDS["duplicate_node_names"]().write(tmp_path))
    assert "name of its own" in caught.value.hint


def test_a_model_without_nodes_has_nothing_to_cut(tmp_path: Path) -> None:
    model = graphcut.load(HAZARDS["no_nodes"]().write(tmp_path))
    with pytest.raises(graphcut.PlanError, match="nothing to cut"):
        graphcut.plan(graphcut.analyze(model), At(("k",)))


def test_a_cut_at_a_constant_is_refused(tmp_path: Path) -> None:
    model = graphcut.load(HAZARDS["constants_on_both_sides"]().write(tmp_path))
    constant = next(node.name for node in model.graph.nodes if node.is_constant)
    with pytest.raises(UsageError, match="is a constant"):
        graphcut.plan(graphcut.analyze(model), At((constant,)))
