"""`--boundary-dtype float16`: half the bytes, with the loss measured and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fused_decoders import WIDTH, fused_decoder
from onnx import helper, numpy_helper

import graphcut
from graphcut import At, Cascade, Into, Model
from graphcut.drawing.card_builders import own_nodes
from graphcut.loading.fingerprint import graph_digest
from graphcut.planning.goals import Goal, Limits
from graphcut.verifying.structural import prove

from conftest import floats, model_of
from tampering import edit_manifest, edit_part, redo_digests

HALF = Limits(boundary_dtype="float16")
TOKENS = {"batch": 1, "seq": 96}
ONE = TOKENS["seq"] * WIDTH * 2
"""Bytes of one tensor between two layers, in half precision."""


def cut(folder: Path, proto: onnx.ModelProto, goal: Goal, limits: Limits = HALF) -> tuple[Model, Cascade]:
    onnx.save(proto, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx", dims=TOKENS if proto.graph.input[0].name == "input_ids" else {})
    return model, graphcut.split(model, graphcut.plan(model, goal, limits=limits), folder / "parts", force=True)


def product_and_best(*, scale: float = 0.3) -> onnx.ModelProto:
    """a = x · w, which is an output too; y = a times its largest entry in each row, whose indices cross as well."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("ArgMax", ["a"], ["best"], name="best", axis=-1, keepdims=1),
        helper.make_node("GatherElements", ["a", "best"], ["top"], name="top", axis=1),
        helper.make_node("Mul", ["a", "top"], ["y"], name="y"),
    ]
    weights = np.random.default_rng(0).normal(0, scale, (16, 16)).astype(np.float32)
    boundaries = [floats("x", 4, 16)], [floats("a", 4, 16), floats("y", 4, 16)]
    return model_of(nodes, *boundaries, [numpy_helper.from_array(weights, "w")])


def test_it_is_half_of_one_tensor_that_crosses_between_fused_layers(tmp_path: Path) -> None:
    model, cascade = cut(tmp_path, fused_decoder(), Into(4))
    metrics = graphcut.plan(model, Into(4), limits=HALF).metrics
    assert [part.received_bytes for part in metrics] == [0, ONE, ONE, ONE]
    sent = [cascade.tensors[name] for name in cascade.wiring.boundary_tensors]
    assert [(tensor.dtype, tensor.bytes_for(TOKENS)[0]) for tensor in sent] == [("float16", ONE)] * 3
    assert [part.activation_bytes for part in cascade.parts] == [part.activation_bytes for part in metrics]
    for part, planned in zip(cascade.parts, metrics, strict=True):
        files = [cascade.file(part), *(cascade.root / name for name in part.data)]
        assert sum(file.stat().st_size for file in files) <= planned.written_bytes


def test_who_writes_casts_and_who_reads_casts_back(tmp_path: Path) -> None:
    """Integers, inputs and outputs of the model stay as they are."""
    _, cascade = cut(tmp_path, product_and_best(), At("best"))
    first, second = cascade.parts
    assert (first.reads, first.writes, first.derived) == (("x",), ("a", "best", "a@float16"), {"a@float16": "a"})
    assert (second.reads, second.writes, second.derived) == (("a@float16", "best"), ("y",), {"a": "a@float16"})
    assert cascade.tensors["a@float16"].dtype == "float16"
    assert (first.replicas, second.replicas) == ((), ())


def test_verify_proves_the_rest_and_measures_the_loss(tmp_path: Path) -> None:
    model, cascade = cut(tmp_path, product_and_best(), At("best"))
    found = graphcut.verify(model, cascade)
    assert (found.proof.objections, found.proof.nodes, found.proof.halves, found.same) == ((), 4, 1, True)
    assert found.is_identical is False
    worst = max(tensor.max_abs for run in found.runs for tensor in run)
    assert 0 < worst < 1e-2
    assert {tensor.tensor for tensor in found.runs[0] if tensor.is_identical} == {"a", "best"}
    sentence = "float32 tensors are sent as float16, as asked, so that outputs differ"
    assert found.reason == f"{sentence}: by at most {worst:.3g} in these runs"
    assert graphcut.verify(model, cascade, structural_only=True).reason == sentence


def test_what_float16_can_not_hold_is_a_difference(tmp_path: Path) -> None:
    model, cascade = cut(tmp_path, product_and_best(scale=1e5), At("best"))
    found = graphcut.verify(model, cascade)
    assert found.first_difference is not None
    assert (found.same, found.first_difference.tensor, found.first_difference.max_abs) == (False, "y", np.inf)


@pytest.mark.parametrize("proto", [product_and_best(), fused_decoder(2)], ids=["products", "decoder"])
def test_merging_gives_the_model_back(proto: onnx.ModelProto, tmp_path: Path) -> None:
    goal = Into(2) if proto.graph.input[0].name == "input_ids" else At("best")
    model, cascade = cut(tmp_path, proto, goal)
    whole = graphcut.merge(cascade, tmp_path / "whole.onnx")
    assert graph_digest(whole.proto) == graph_digest(model.proto)


def test_a_cascade_is_drawn_with_its_model(tmp_path: Path) -> None:
    model, cascade = cut(tmp_path, fused_decoder(), Into(4))
    rows = own_nodes(cascade, model)
    assert sorted(node for row in rows for node in row) == list(model.graph.flow)


def test_a_changed_cast_is_found(tmp_path: Path) -> None:
    def cast_from_another(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].input[0] = "best"

    model, cascade = cut(tmp_path, product_and_best(), At("best"))
    edit_part(cascade, 1, cast_from_another)
    redo_digests(cascade.path)
    objections = prove(model, graphcut.open_cascade(cascade.path)).objections
    assert any("node 'a@cast' differs from the model's" in sentence for sentence in objections), objections


def test_a_tensor_of_the_model_is_no_cast_of_another(tmp_path: Path) -> None:
    """A model may have a tensor of such a name: then nothing is derived from it."""
    proto = product_and_best()
    proto.graph.node.append(helper.make_node("Cast", ["a@float16"], ["c"], name="c", to=onnx.TensorProto.FLOAT))
    proto.graph.node.insert(1, helper.make_node("Cast", ["a"], ["a@float16"], name="own", to=onnx.TensorProto.FLOAT16))
    proto.graph.output.append(floats("c", 4, 16))
    model, cascade = cut(tmp_path, proto, At("best"))
    assert [part.derived for part in cascade.parts] == [{}, {}]
    assert graphcut.verify(model, cascade).is_identical
    edit_manifest(cascade.path, lambda record: record["parts"][1].update(derived={"a": "a@float16"}))
    (objection,) = prove(model, graphcut.open_cascade(cascade.path)).objections
    assert objection == "part-1.onnx: the manifest derives 'a' from 'a@float16', for which there is no rule"
