"""Between fused layers only the sum is sent: its norm is computed again from it, with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_decoders import SIMPLIFIED, VOCABULARY, WIDTH, WITH_MEAN, fused_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, helper, numpy_helper

import graphcut
from graphcut import Cascade, Into, Model, PlanError, SessionConfig
from graphcut.loading.derived_tensors import copies
from graphcut.loading.fingerprint import graph_digest
from graphcut.planning.goals import Limits, Recomputing
from graphcut.planning.plan_files import replay, save_plan
from graphcut.running.values import to_value
from graphcut.verifying.structural import prove
from graphcut.workers.executors.processes import ProcessExecutor
from graphcut.workers.executors.protocol import Done, Ready, Step

from cases import each
from tampering import edit_manifest, edit_part, redo_digests

TOKENS = {"batch": 1, "seq": 96}
ONE = TOKENS["seq"] * WIDTH * 4
"""Bytes of one tensor between two layers."""


def cut(folder: Path, proto: ModelProto, recompute: Recomputing = "auto", parts: int = 4) -> tuple[Model, Cascade]:
    onnx.save(proto, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx", dims=TOKENS)
    pins = tuple((f"/model/layers.{i}/{name}/MatMul", i) for i in range(parts) for name in ("up", "down"))
    made = graphcut.plan(model, Into(parts), limits=Limits(pins, inside_layers=False, recompute=recompute))
    return model, graphcut.split(model, made, folder / recompute, force=True)


@pytest.fixture(scope="module")
def cascades(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cascade]:
    folder = tmp_path_factory.mktemp("cascades")
    return {each: cut(folder, fused_decoder(), each)[1] for each in ("never", "auto")}


@pytest.fixture
def model(cascades: Mapping[str, Cascade]) -> Model:
    return graphcut.load(cascades["auto"].source, dims=TOKENS)


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """One that a test may change."""
    return cut(tmp_path, fused_decoder(2), parts=2)[1]


# What crosses


def boundary_bytes(cascade: Cascade) -> dict[str, int]:
    """The boundary tensors of a manifest, and their bytes."""
    sizes = {name: tensor.bytes_for(TOKENS)[0] for name, tensor in cascade.tensors.items()}
    return {name: sizes[name] for name in cascade.wiring.boundary_tensors}


def test_one_tensor_crosses_each_boundary_instead_of_two(cascades: Mapping[str, Cascade]) -> None:
    assert boundary_bytes(cascades["never"]) == {f"{name}{i}": ONE for i in range(3) for name in ("norm", "sum")}
    assert boundary_bytes(cascades["auto"]) == {f"sum{i}": ONE for i in range(3)}


def test_pinned_nodes_stay_in_their_parts_though_a_part_that_recomputes_would_be_faster_elsewhere(
    cascade: Cascade,
) -> None:
    names = {node.name for node in onnx.load(cascade.root / cascade.parts[1].file).graph.node}
    assert {f"/model/layers.1/{name}/MatMul" for name in ("up", "down")} <= names


def sent(cascade: Cascade, feeds: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """The bytes of all tensors that worker processes write for each other when each runs a part."""
    executor, total = ProcessExecutor(cascade, SessionConfig(threads=1), {}), 0
    try:
        held = {name: executor.put(to_value(value, cascade.tensors[name]), name) for name, value in feeds.items()}
        for i, part in enumerate(cascade.parts):
            executor.start(i, [i])
            while not isinstance(executor.next_event(60), Ready):
                pass
            executor.run(i, Step(0, (i,), part.writes), {name: held[name] for name in part.reads})
            event = executor.next_event(60)
            assert isinstance(event, Done)
            held |= event.outputs
            total += sum(event.outputs[name].spec.size_bytes for name in part.writes if name != "logits")
    finally:
        executor.close()
    return total


def test_processes_send_half_the_bytes(cascades: Mapping[str, Cascade]) -> None:
    feeds = {"input_ids": np.arange(96).reshape(1, 96) % VOCABULARY}
    assert {name: sent(made, feeds) for name, made in cascades.items()} == {"never": 6 * ONE, "auto": 3 * ONE}


def test_the_search_counts_it(model: Model) -> None:
    """The plan knows of it before it decides: the bottleneck is what one tensor costs, and equals what is reached."""
    never, auto = (
        graphcut.plan(model, Into(4), limits=Limits(inside_layers=False, recompute=each)) for each in ("never", "auto")
    )
    assert never.outcome is not None
    assert auto.outcome is not None
    assert auto.outcome.value < 0.8 * never.outcome.value
    assert auto.outcome.value == pytest.approx(max(part.busy_s for part in auto.metrics))
    assert [part.received_bytes for part in auto.metrics] == [0, ONE, ONE, ONE]


def test_part_files_are_no_larger_than_planned(tmp_path: Path) -> None:
    onnx.save(fused_decoder(), tmp_path / "model.onnx")
    made = graphcut.plan(tmp_path / "model.onnx", Into(4))
    cascade = graphcut.split(tmp_path / "model.onnx", made)
    for part, metrics in zip(cascade.parts, made.metrics, strict=True):
        files = [cascade.file(part), *(cascade.root / name for name in part.data)]
        assert sum(file.stat().st_size for file in files) <= metrics.written_bytes


@each("sum_of_last", ["", "sum0@shape", "sum0@zeros"])
def test_a_norm_without_a_sum_or_whose_copy_needs_a_name_of_the_model_is_not_computed_again(sum_of_last: str) -> None:
    proto = fused_decoder()
    norms = [node for node in proto.graph.node if node.op_type == SIMPLIFIED]
    norms[-1].output[:] = ["norm3", "", "", sum_of_last]
    read = graphcut.load(proto).graph.nodes
    rewritten = [node.name for node in read if node.rewrite is not None]
    assert rewritten == [node.name for node in (norms[1:] if sum_of_last else norms[:-1])]


# What it computes


def plain_run(cascade: Cascade, feeds: Mapping[str, np.ndarray[Any, Any]], level: str) -> np.ndarray[Any, Any]:
    """A loop over cascade.json that knows nothing of graphcut."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    held = dict(feeds)
    for part in json.loads(cascade.path.read_text(encoding="utf-8"))["parts"]:
        session = ort.InferenceSession(cascade.root / part["file"], options)
        outputs = session.run(part["writes"], {name: held[name] for name in part["reads"]})
        held.update(zip(part["writes"], outputs, strict=True))
    return held["logits"]


@each("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@each("op", [SIMPLIFIED, WITH_MEAN])
@each("has_bias", [False, True])
def test_the_bits_are_those_of_the_model(op: str, level: str, tmp_path: Path, *, has_bias: bool) -> None:
    model, cascade = cut(tmp_path, fused_decoder(op=op, has_bias=has_bias))
    assert [part.derived for part in cascade.parts] == [{}, {"norm0": "sum0"}, {"norm1": "sum1"}, {"norm2": "sum2"}]
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.path, options)
    for shape in ((1, 5), (3, 7)):
        feeds = {"input_ids": np.arange(np.prod(shape)).reshape(shape) % VOCABULARY}
        np.testing.assert_array_equal(plain_run(cascade, feeds, level), session.run(None, feeds)[0], strict=True)


def test_verify_proves_it_and_runs_find_no_difference(model: Model, cascades: Mapping[str, Cascade]) -> None:
    found = graphcut.verify(model, cascades["auto"])
    assert (found.proof.objections, found.proof.replicas, found.proof.approximate) == ((), 3, 0)
    assert (found.same, found.is_identical, found.reason) == (True, True, "")


def test_merging_gives_the_model_back(model: Model, cascades: Mapping[str, Cascade], tmp_path: Path) -> None:
    whole = graphcut.merge(cascades["auto"], tmp_path / "whole.onnx")
    assert graph_digest(whole.proto) == graph_digest(model.proto)
    assert whole.proto.graph.node == model.proto.graph.node
    assert {v.name: v for v in whole.proto.graph.value_info} == {v.name: v for v in model.proto.graph.value_info}


def test_the_manifest_says_what_is_derived(cascades: Mapping[str, Cascade]) -> None:
    part = cascades["auto"].parts[1]
    assert (part.reads, part.writes, part.derived) == (("sum0",), ("sum1",), {"norm0": "sum0"})
    assert part.replicas == ("/model/layers.0/SkipSimplifiedLayerNormalization",)
    assert part.nodes == len(onnx.load(cascades["auto"].file(part)).graph.node) == 5 + 2


# What verify finds


def named(proto: ModelProto, output: str) -> NodeProto:
    return next(node for node in proto.graph.node if output in node.output)


def fill(value: float) -> Callable[[ModelProto], None]:
    def change(proto: ModelProto) -> None:
        zeros = numpy_helper.from_array(np.array([value], np.float32))
        named(proto, "sum0@zeros").attribute[0].t.CopyFrom(zeros)

    return change


def read_another_scale(proto: ModelProto) -> None:
    named(proto, "norm0").input[2] = "scale1"


def change_epsilon(proto: ModelProto) -> None:
    named(proto, "norm0").attribute[0].f = 1e-3


def change_operator(proto: ModelProto) -> None:
    node = named(proto, "norm0")
    node.op_type, node.input[3:] = WITH_MEAN, []


def read_no_zeros(proto: ModelProto) -> None:
    named(proto, "norm0").input[1] = "sum0"
    for node in [named(proto, "sum0@zeros"), named(proto, "sum0@shape")]:
        proto.graph.node.remove(node)


REWRITTEN = "node '/model/layers.0/SkipSimplifiedLayerNormalization' differs from the model's"


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        (fill(0.0), "node 'sum0@zeros' differs from the model's"),
        (fill(1e-7), "node 'sum0@zeros' differs from the model's"),
        (read_another_scale, REWRITTEN),
        (change_epsilon, REWRITTEN),
        (change_operator, REWRITTEN),
        (read_no_zeros, REWRITTEN),
    ],
)
def test_a_changed_rewritten_replica_is_found(
    change: Callable[[ModelProto], None], objection: str, cascade: Cascade
) -> None:
    edit_part(cascade, 1, change)
    redo_digests(cascade.path)
    objections = prove(graphcut.load(cascade.source), graphcut.open_cascade(cascade.path)).objections
    assert any(objection in sentence for sentence in objections), objections


def test_a_rewritten_replica_that_is_not_declared_is_found(cascade: Cascade) -> None:
    edit_manifest(cascade.path, lambda record: record["parts"][1].update(derived={}))
    objections = prove(graphcut.load(cascade.source), graphcut.open_cascade(cascade.path)).objections
    assert f"part-1.onnx: {REWRITTEN}" in objections


# The rule, as ONNX Runtime computes it


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38]


@st.composite
def runs(draw: Callable[..., Any]) -> tuple[str, dict[str, np.ndarray[Any, Any]], bool]:
    """An operator, inputs in many scales with special values among them, and whether to optimize."""
    op = draw(st.sampled_from([SIMPLIFIED, WITH_MEAN]))
    batch, tokens, width = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 130))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    scale = 10.0 ** draw(st.integers(-40, 30))
    x, skip = (random.normal(0, scale, (batch, tokens, width)).astype(np.float32) for _ in range(2))
    for _ in range(draw(st.integers(0, 3))):
        row = random.integers(batch), random.integers(tokens), slice(None, random.integers(width) + 1)
        x[row] = skip[row] = draw(st.sampled_from(SPECIAL))
    feeds = {"x": x, "skip": skip[:1] if draw(st.booleans()) else skip}
    for name in ("scale", "shift", "bias"):
        if name == "scale" or draw(st.booleans()):
            feeds[name] = random.normal(0, 1, width).astype(np.float32)
    if op == SIMPLIFIED:
        feeds.pop("shift", None)
    return op, feeds, draw(st.booleans())


def original_and_copy(
    op: str, dtype: type[np.floating], feeds: Mapping[str, np.ndarray[Any, Any]], *, is_optimized: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What a node writes, and what its rewritten replica writes, in models of their own."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    order = ["x", "skip", "scale", "bias"] if op == SIMPLIFIED else ["x", "skip", "scale", "shift", "bias"]
    node = helper.make_node(
        op, [name if name in feeds else "" for name in order], ["norm", "", "", "sum"],
        domain="com.microsoft", epsilon=1e-5,
    )  # fmt: skip
    weights = [numpy_helper.from_array(value, name) for name, value in feeds.items() if value.ndim == 1]

    def ran(nodes: list[NodeProto], inputs: Mapping[str, np.ndarray[Any, Any]], *outputs: str) -> list[Any]:
        declared = [helper.make_tensor_value_info(name, kind, ["b", "t", "w"]) for name in (*inputs, *outputs)]
        graph = helper.make_graph(nodes, "g", declared[: len(inputs)], declared[len(inputs) :], weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if is_optimized else levels.ORT_DISABLE_ALL
        session = ort.InferenceSession(made.SerializeToString(), options)
        return list(session.run(list(outputs), dict(inputs)))

    norm, total = ran([node], {name: feeds[name] for name in ("x", "skip")}, "norm", "sum")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, kind, None) for name in ("x", "skip")],
        [helper.make_tensor_value_info(name, kind, None) for name in ("norm", "sum")], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = graphcut.load(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    (own,) = model.graph.nodes
    return norm, ran(list(copies(own, model.proto.graph.node[0])), {"sum": total}, "norm")[0]


def bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All NaNs have the same bits."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).view(f"u{values.itemsize}")


@settings(max_examples=150, deadline=None)
@given(runs())
def test_a_rewritten_replica_writes_the_bits_of_its_original(
    case: tuple[str, dict[str, np.ndarray[Any, Any]], bool],
) -> None:
    op, feeds, is_optimized = case
    original, copy = original_and_copy(op, np.float32, feeds, is_optimized=is_optimized)
    np.testing.assert_array_equal(bits(copy), bits(original))


def test_in_half_precision_it_does_not() -> None:
    random = np.random.default_rng(0)
    feeds = {name: random.normal(0, 1, (1, 8, 64)).astype(np.float16) for name in ("x", "skip")}
    feeds["scale"] = np.ones(64, np.float16)
    original, copy = original_and_copy(SIMPLIFIED, np.float16, feeds, is_optimized=False)
    assert not np.array_equal(copy, original)
    np.testing.assert_allclose(copy, original, atol=4e-3)


# Half precision, and what is refused


def test_half_precision_is_sent_whole_unless_asked(tmp_path: Path) -> None:
    model, whole = cut(tmp_path, fused_decoder(dtype=np.float16))
    assert {part.derived == {} for part in whole.parts} == {True}
    _, halved = cut(tmp_path, fused_decoder(dtype=np.float16), "approximate")
    assert sum(boundary_bytes(halved).values()) * 2 == sum(boundary_bytes(whole).values())
    found = graphcut.verify(model, halved)
    assert (found.same, found.proof.approximate) == (True, 3)
    assert "3 replicas, 3 of them approximate" in found.structure_summary


def test_an_edited_plan_does_not_repeat_what_would_be_approximate(tmp_path: Path) -> None:
    onnx.save(fused_decoder(dtype=np.float16), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx", dims=TOKENS)
    save_plan(graphcut.plan(model, Into(2), limits=Limits(recompute="approximate")), model, tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    record["limits"]["recompute"] = "auto"
    (tmp_path / "plan.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(PlanError, match="is repeated, and its copy need not give the same bits"):
        replay(graphcut.analyze(model), tmp_path / "plan.json")
