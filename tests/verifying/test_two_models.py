"""`compare_models` names the nodes of the second model that add an error of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from encoders import save_sentence_encoder
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import SessionConfig, UsageError
from graphcut.core.errors import OpeningError
from graphcut.running.values import Feeds
from graphcut.verifying import sections, two_models
from graphcut.verifying.causes import causes_of
from graphcut.verifying.matching import matched_tensors
from graphcut.verifying.numerical import EXACT, run_whole

from cases import each, seeded
from conftest import FIXTURES, floats, model_of, of_unknown_operator
from hazards import HAZARDS

OPERATORS = ("Add", "Sub", "Max", "Min")
X = {"x": np.linspace(-2, 2, 8, dtype=np.float32)}


def random_model(rng: np.random.Generator, nodes: int) -> ModelProto:
    """Nodes that each read two earlier tensors, or a weight and one; the last ones are outputs."""
    names, made = ["x"], list[NodeProto]()
    weights = [numpy_helper.from_array(rng.standard_normal(8).astype(np.float32), f"w{i}") for i in range(nodes)]
    for i in range(nodes):
        one, two = (names[-1 - int(rng.integers(min(len(names), 6)))] for _ in range(2))
        reads = [one, f"w{i}"] if rng.random() < 0.5 else [one, two]
        made.append(helper.make_node(OPERATORS[rng.integers(2)], reads, [f"t{i}"], name=f"n{i}"))
        names.append(f"t{i}")
    read = {name for node in made for name in node.input}
    outputs = [floats(name, 8) for name in names[1:] if name not in read]
    return model_of(made, [floats("x", 8)], outputs, [w for w in weights if w.name in read])


def changed(model: ModelProto, indices: Sequence[int]) -> ModelProto:
    """Another operator in these nodes, or other values of their weight."""
    other = ModelProto()
    other.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in other.graph.initializer}
    for i in indices:
        node = other.graph.node[i]
        if tensor := weights.get(node.input[1]):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.5), tensor.name))
        else:
            node.op_type = "Max" if node.op_type == "Add" else "Add"
    return other


def all_values(model: ModelProto) -> dict[str, Any]:
    whole = ModelProto()
    whole.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node]
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return dict(zip(names, ort.InferenceSession(whole.SerializeToString(), options).run(names, X), strict=True))


@seeded(4)
def test_of_one_change_at_a_random_place_the_node_is_named_and_no_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, 40)
    place = int(rng.integers(40))
    other = changed(model, [place])
    found = graphcut.compare_models(model, other, inputs=[X], tolerance=0)
    values, others = all_values(model), all_values(other)
    differs = any(not np.array_equal(values[one.name], others[one.name]) for one in model.graph.output)
    assert found.same is not differs
    if differs:
        assert [(one.error.tensor, one.node) for one in found.culprits] == [(f"t{place}", f"n{place}")]
        assert found.culprits[0].nodes == (f"n{place}",)
        read = dict.fromkeys(name for name in model.graph.node[place].input if not name.startswith("w"))
        assert found.culprits[0].sources == tuple((name, name) for name in read)


@seeded(4)
def test_of_several_changes_no_node_is_named_that_computes_the_same_from_the_same_values(seed: int) -> None:
    """Also where the other model has other names for a third of the tensors; the table has the values of both."""
    rng = np.random.default_rng(100 + seed)
    model = random_model(rng, 60)
    places = [int(place) for place in rng.integers(60, size=5)]
    other = changed(model, places)
    values, others = all_values(model), all_values(other)
    renamed = {f"t{i}" for i in range(60) if rng.random() < 0.33} - {one.name for one in model.graph.output}
    for node in other.graph.node:
        node.input[:] = [f"{name}'" if name in renamed else name for name in node.input]
        node.output[:] = [f"{name}'" if name in renamed else name for name in node.output]
    found = graphcut.compare_models(model, other, inputs=[X], tolerance=0)
    named = {name for one in (*found.culprits, *found.harmless) for name in one.nodes}
    assert named
    assert all(any(f"n{place}" in one.nodes for place in places) for one in (*found.culprits, *found.harmless))
    for error in found.errors:
        ours, theirs = values[error.tensor].astype(np.float64), others[error.other.rstrip("'")].astype(np.float64)
        noise = np.square(ours - theirs).sum()
        expected = 10 * np.log10(np.square(ours).sum() / noise) if noise and ours.any() else -inf if noise else inf
        assert error.db == pytest.approx(expected)


def test_an_error_that_is_inherited_is_told_from_one_that_is_added() -> None:
    names = ["x", *(f"at/{i}" for i in range(20))]
    chain = [helper.make_node("Neg", [a], [b], name=b) for a, b in pairwise(names)]
    model = model_of(chain, [floats("x", 8)], [floats("at/19", 8)])
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.node[12].op_type = "Abs"
    found = graphcut.compare_models(model, other, inputs=[X])
    assert [one.node for one in found.culprits] == ["at/12"]
    assert [one.causes for one in found.culprits] == [("Abs instead of Neg",)]
    assert np.isinf(found.table["db"][:12]).all()
    assert np.isfinite(found.table["db"][12:]).all()
    assert np.isfinite(found.table["own_db"]).nonzero()[0].tolist() == [12]
    assert found.worst_db == found.table["db"][19] < 30


def test_values_are_compared_slice_by_slice_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, 20)
    other = changed(model, [7, 12])
    whole = graphcut.compare_models(model, other, inputs=[X])
    monkeypatch.setattr(sections, "SLICE_BYTES", 100)
    runs = list[int]()
    run = sections.Side.run

    def counted(
        side: sections.Side, targets: Sequence[str], values: Feeds, given: Iterable[str] | None = None
    ) -> object:
        runs.append(len(targets))
        return run(side, targets, values, given)

    monkeypatch.setattr(sections.Side, "run", counted)
    assert graphcut.compare_models(model, other, inputs=[X]).errors == whole.errors
    assert len(runs) > 20
    assert max(runs[:20]) <= 3


def test_a_slice_holds_as_many_tensors_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SLICE_BYTES", 2 * 12 * 4)
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(5)]
    model, config = graphcut.load(model_of(nodes, [floats("t0", 12)], [floats("t5", 12)])), SessionConfig()
    pair = sections.Pair(model, model, config, config, has_histograms=False)
    assert [*pair._slices({})] == [["t1", "t2"], ["t3", "t4"], ["t5"]]


def transformer(mask: float, scale: float = 1.0) -> ModelProto:
    """Scores, of which some are masked, their softmax, and a norm."""
    nodes = [
        helper.make_node("Greater", ["seen", "zero"], ["is_seen"], "test"),
        helper.make_node("Where", ["is_seen", "zero", "mask"], ["masked"], "fill"),
        helper.make_node("Add", ["x", "masked"], ["scores"], "add"),
        helper.make_node("Softmax", ["scores"], ["shares"], "softmax"),
        helper.make_node("LayerNormalization", ["shares", "scale"], ["y"], "layer/norm"),
    ]
    weights = [
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(mask, np.float32), "mask"),
        numpy_helper.from_array(np.full(8, scale, np.float32), "scale"),
    ]
    return model_of(nodes, [floats("x", 2, 8), floats("seen", 2, 8)], [floats("y", 2, 8)], weights)


SEEN = {
    "x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32),
    "seen": np.array([[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]], np.float32),
}


@each("mask", [-65504.0, -10000.0, -inf])
def test_a_mask_of_another_value_is_harmless(mask: float) -> None:
    found = graphcut.compare_models(transformer(-3.4e38), transformer(mask), inputs=[SEEN], tolerance=None)
    assert found
    if found.worst_db < inf:
        assert "fill" in [one.node for one in found.harmless]


def test_a_broken_norm_is_named_though_a_harmless_mask_differs_before_it() -> None:
    found = graphcut.compare_models(transformer(-3.4e38), transformer(-65504, 1.25), inputs=[SEEN])
    assert not found
    assert [one.node for one in found.culprits] == ["layer/norm"]
    assert found.culprits[0].error.module == "layer"
    cause = "LayerNormalization: 'scale' is 1.25 times what it was: differs in 8 of 8 values, by at most 0.25"
    assert found.culprits[0].causes == (cause,)
    assert [one.node for one in found.harmless] == ["fill"]
    assert "\nharmless: 'fill': " in str(found)
    models = transformer(-3.4e38), transformer(-65504, 1.25)
    assert graphcut.compare_models(*models, inputs=[SEEN], ignore=["layer/*"])
    with pytest.raises(UsageError, match="every output"):
        graphcut.compare_models(*models, inputs=[SEEN], ignore=["?"])


def test_floats_of_other_types_agree_by_default_and_not_to_the_bit(tmp_path: Path) -> None:
    """The same network in float32 and float16, each tensor under its name; large tensors, too."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((100, 100)).astype(np.float32)
    paths = list[Path]()
    kinds = (TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)
    for (kind, dtype), factor in ((kinds[0], 1), (kinds[1], 1), (kinds[1], 1.01)):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="product"), helper.make_node("Relu", ["a"], ["y"])]
        ends = [helper.make_tensor_value_info(name, kind, [100, 100]) for name in ("x", "y")]
        weight = numpy_helper.from_array((values / 20 * factor).astype(dtype), "w")
        paths.append(tmp_path / f"{len(paths)}.onnx")
        onnx.save(model_of(nodes, ends[:1], ends[1:], [weight]), paths[-1])
    feeds = [{"x": values}]
    found = graphcut.compare_models(*paths[:2], inputs=feeds)
    assert (found.same, found.culprits) == (True, ())
    assert [(change.kind, change.is_rounding) for change in found.changes] == [("weight", True)]
    assert 55 < found.worst_db < 90
    assert graphcut.compare_models(*paths[:2], inputs=feeds, tolerance=5e-3)
    assert not graphcut.compare_models(*paths[:2], inputs=feeds, tolerance=0)
    found = graphcut.compare_models(paths[0], paths[2], inputs=feeds)
    assert [one.node for one in found.culprits] == ["product"]
    assert [change.is_rounding for change in found.changes] == [False]
    assert "is 1.01 times what it was" in found.culprits[0].causes[0]


def quantized(factor: float) -> ModelProto:
    """A product whose weight and input are in int8, and then dequantized with a scale that is `factor` times it."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((32, 32)).astype(np.float32)
    step, steps = np.float32(6 / 255), (np.abs(weight).max(0) / 127).astype(np.float32)
    weights = [
        numpy_helper.from_array(np.round(weight / steps).astype(np.int8), "w_quantized"),
        numpy_helper.from_array(steps, "w_scale"),
        numpy_helper.from_array(np.zeros(32, np.int8), "w_zero"),
        numpy_helper.from_array(np.array(step), "scale"),
        numpy_helper.from_array(np.array(step * factor, np.float32), "other_scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
        numpy_helper.from_array(weight, "w"),
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"), helper.make_node("Relu", ["a"], ["y"], "relu")]
    if factor:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], "q"),
            helper.make_node("DequantizeLinear", ["xq", "other_scale", "zero"], ["xd"], "dq"),
            helper.make_node("DequantizeLinear", ["w_quantized", "w_scale", "w_zero"], ["wd"], "dqw", axis=1),
            helper.make_node("MatMul", ["xd", "wd"], ["a"], "product"),
            nodes[1],
        ]
    used = {name for node in nodes for name in node.input}
    return model_of(nodes, [floats("x", "n", 32)], [floats("y", "n", 32)], [w for w in weights if w.name in used])


def test_what_int8_loses_is_no_error_and_a_wrong_scale_is() -> None:
    feeds = [{"x": np.random.default_rng(2).uniform(-3, 3, (4, 32)).astype(np.float32)}]
    found = graphcut.compare_models(quantized(0), quantized(1), inputs=feeds)
    assert (found.same, found.culprits) == (True, ())
    assert 30 < found.worst_db < 50
    found = graphcut.compare_models(quantized(0), quantized(1.5), inputs=feeds)
    assert [one.error.node for one in found.culprits] == ["product"]
    assert found.culprits[0].causes == ("DequantizeLinear, QuantizeLinear added",)
    assert found.culprits[0].nodes == ("q", "dq", "product")


def test_int8_loses_more_of_small_numbers_if_one_of_them_is_large() -> None:
    """Its steps are those of the largest number: it loses a tenth of what the 2,048 numbers add up to."""
    x = np.random.default_rng(2).normal(0, 0.01, (64, 32)).astype(np.float32)
    x[0, 0] = 3
    found = graphcut.compare_models(quantized(0), quantized(1), inputs=[{"x": x}])
    assert found.worst_db < 25
    assert (found.same, found.culprits) == (True, ())


def test_what_int4_in_blocks_loses_is_no_error_and_a_quarter_of_its_scales_doubled_is(tmp_path: Path) -> None:
    model, other = (FIXTURES / f"tiny-llama-{kind}" / "model.onnx" for kind in ("fp32", "int4"))
    assert graphcut.compare_models(model, other)
    faulty = onnx.load(other)
    node = [node for node in faulty.graph.node if node.op_type == "MatMulNBits"][10]
    scales = next(tensor for tensor in faulty.graph.initializer if tensor.name == node.input[2])
    values = numpy_helper.to_array(scales).copy()
    values[: len(values) // 4] *= 2
    scales.CopyFrom(numpy_helper.from_array(values, scales.name))
    onnx.save(faulty, tmp_path / "faulty.onnx")
    found = graphcut.compare_models(model, tmp_path / "faulty.onnx")
    assert [one.node for one in found.culprits] == [node.name]


CODES = {8: np.int8, 4: ml_dtypes.int4, 2: ml_dtypes.int2}
SCALES: dict[str, tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]] = {
    "tensor": ((1, 128 * 96, 1), (), {}),
    "channel": ((1, 128, 96), (96,), {"axis": 1}),
    "block": ((4, 32, 96), (4, 96), {"axis": 0, "block_size": 32}),
}
"""What shares a scale: the weight with these numbers along axis 1, the shape of the scales, and the attributes."""


def product_with(
    bits: int = 0, shared: str = "tensor", factor: float = 1.0, share: float = 1.0, most: float = 0.0
) -> ModelProto:
    """A product whose weight is in floats, or in codes behind DequantizeLinear, a share of their scales too large.

    One number of the weight is at least `most`; the others have the standard deviation 1.
    """
    weight = np.random.default_rng(1).standard_normal((128, 96)).astype(np.float32)
    weight[3, 5] = max(weight[3, 5], most)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"), helper.make_node("Relu", ["a"], ["y"], "relu")]
    weights = [numpy_helper.from_array(weight, "w")]
    if bits:
        groups, shape, attributes = SCALES[shared]
        codes_up_to = np.float32(max(1, 2 ** (bits - 1) - 1))
        scales = np.abs(weight.reshape(groups)).max(1, keepdims=True) / codes_up_to
        codes = np.round(weight.reshape(groups) / scales).reshape(weight.shape).astype(CODES[bits])
        scales.reshape(-1)[: max(1, round(share * scales.size))] *= factor
        nodes = [helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], "dq", **attributes), *nodes]
        weights = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales.reshape(shape), "scales")]
    return model_of(nodes, [floats("x", "n", 128)], [floats("y", "n", 96)], weights, opset=25)


WIDE = [{"x": np.random.default_rng(2).standard_normal((8, 128)).astype(np.float32)}]


@pytest.mark.parametrize("shared", SCALES)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_what_weights_behind_dequantize_linear_lose_is_no_error(bits: int, shared: str) -> None:
    found = graphcut.compare_models(product_with(), product_with(bits, shared), inputs=WIDE)
    assert (found.same, found.culprits) == (True, ())
    assert [(change.kind, change.is_rounding) for change in found.changes] == [("weight", True)]


@pytest.mark.parametrize("most", [0.0, 20.0, 80.0])
def test_a_cause_says_that_a_weight_is_rounded(most: float) -> None:
    """A number of 80 standard deviations makes steps of 0.63."""
    found = graphcut.compare_models(product_with(most=most), product_with(8, most=most), inputs=WIDE, tolerance=0)
    (cause,) = found.culprits[0].causes
    assert re.fullmatch(r"MatMul: 'w' is rounded: differs in [\d,]+ of 12,288 values, by at most 0\.\d+", cause)


@pytest.mark.parametrize("shared", SCALES)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("factor", "share"), [(1.5, 1.0), (2.0, 0.25)])
def test_wrong_scales_of_weights_behind_dequantize_linear_are_named(
    bits: int, shared: str, factor: float, share: float
) -> None:
    found = graphcut.compare_models(product_with(), product_with(bits, shared, factor, share), inputs=WIDE)
    assert [one.node for one in found.culprits] == ["product"]


def test_one_wrong_scale_of_many_is_named_in_eight_bits() -> None:
    found = graphcut.compare_models(product_with(), product_with(8, "channel", 1.5, 1 / 96), inputs=WIDE)
    assert [one.node for one in found.culprits] == ["product"]


def embedding(factor: float) -> ModelProto:
    """Rows of a table of floats, or of int8 codes that are dequantized after it."""
    table = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    step = np.abs(table).max() / 127
    values = {"table": np.round(table / step).astype(np.int8) if factor else table, "scale": np.float32(step * factor)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], "gather")]
    nodes += [helper.make_node("DequantizeLinear", ["rows", "scale"], ["y"], "dq")] if factor else []
    nodes[-1].output[0] = "y"
    weights = [numpy_helper.from_array(np.asarray(values[name]), name) for name in (*values,)[: 1 + bool(factor)]]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [16])
    return model_of(nodes, [ids], [floats("y", 16, 32)], weights)


def test_codes_are_not_compared_with_floats_as_if_they_were_values() -> None:
    feeds = [{"ids": np.arange(16)}]
    found = graphcut.compare_models(embedding(0), embedding(1), inputs=feeds)
    assert (found.same, found.culprits) == (True, ())
    kept = [(change.text, change.is_rounding) for change in found.changes if change.kind == "weight"]
    assert kept == [("Gather: 'table' is int8, was float32", True)]
    found = graphcut.compare_models(embedding(0), embedding(1.5), inputs=feeds)
    assert [one.causes for one in found.culprits] == [("DequantizeLinear added",)]


def test_random_tensors_are_not_compared() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("RandomNormalLike", ["a"], ["noise"]),
        helper.make_node("Add", ["a", "noise"], ["y"]),
        helper.make_node("Neg", ["a"], ["z"]),
    ]
    model = model_of(nodes, [floats("x", 8)], [floats("y", 8), floats("z", 8)])
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.node[3].op_type = "Abs"
    assert graphcut.compare_models(model, model, inputs=[X])
    found = graphcut.compare_models(model, other, inputs=[X])
    assert [one.tensor for one in found.outputs] == ["z"]
    assert [one.tensor for one in found.errors] == ["a", "z"]


def test_models_with_more_inputs_or_other_outputs_are_refused() -> None:
    one, two = (model_of([helper.make_node("Relu", [a], [b])], [floats(a, 8)], [floats(b, 8)]) for a, b in ("xy", "xz"))
    assert graphcut.compare_models(one, two)  # matched by their position
    more = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Neg", ["x"], ["v"])]
    with pytest.raises(UsageError, match=r"^no output of graph\.onnx can be compared with one of graph\.onnx$"):
        graphcut.compare_models(one, model_of(more, [floats("x", 8)], [floats("z", 9), floats("v", 9)]))
    three = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [floats("x", 8), floats("w", 8)], [floats("y", 8)])
    with pytest.raises(UsageError, match=r"^no input of graph\.onnx can be compared with 'w'$"):
        graphcut.compare_models(one, three)


def test_a_model_with_a_sequence_and_random_numbers_has_no_changes_to_itself() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["pair"], "pair"),
        helper.make_node("ConcatFromSequence", ["pair"], ["y"], "join", axis=0),
        helper.make_node("RandomNormalLike", ["x"], ["drawn"], "draw"),
        helper.make_node("Add", ["x", "drawn"], ["z"], "add"),
    ]
    model = model_of(nodes, [floats("x", 8)], [floats("y", 16), floats("z", 8)])
    assert graphcut.compare_models(model, model).changes == ()


def test_of_models_that_can_not_be_opened_inputs_are_not_blamed(tmp_path: Path) -> None:
    proto, model = of_unknown_operator(), tmp_path / "m.onnx"
    proto.graph.output.append(floats("a", "n", 2))
    onnx.save(proto, model)
    with pytest.raises(OpeningError, match=r"^ONNX Runtime can't open the model: "):
        graphcut.compare_models(model, model)


def edited(model: ModelProto, op: str, edit: Callable[[ModelProto, NodeProto], None]) -> ModelProto:
    """A copy in which the last node of this operator is edited."""
    other = ModelProto()
    other.CopyFrom(model)
    edit(other, [node for node in other.graph.node if node.op_type == op][-1])
    return other


def transpose_weight(model: ModelProto, node: NodeProto) -> None:
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weight).T), weight.name))


def reverse_weight(model: ModelProto, node: NodeProto) -> None:
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weight)[::-1]), weight.name))


def swap(_: ModelProto, node: NodeProto) -> None:
    node.input[0], node.input[1] = node.input[1], node.input[0]


def turn(_: ModelProto, node: NodeProto) -> None:
    node.attribute[0].i = -2


def double(_: ModelProto, node: NodeProto) -> None:
    node.attribute[0].f *= 2


def raise_more(_: ModelProto, node: NodeProto) -> None:
    node.input.append("at/b")


def spread(model: ModelProto, _: NodeProto) -> None:
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.linspace(-0.2, 0.2, 8, dtype=np.float32), "floor"))


def clip(model: ModelProto, node: NodeProto) -> None:
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.float32), name) for value, name in ((-0.1, "least"), (0.1, "most"))
    )
    name, place = node.output[0], list(model.graph.node).index(node)
    node.output[0] = "wide"
    model.graph.node.insert(place + 1, helper.make_node("Clip", ["wide", "least", "most"], [name], "clip"))


@each(
    "op,edit,cause",
    [
        ("MatMul", transpose_weight, "is transposed: differs in"),
        ("MatMul", reverse_weight, "MatMul: 'w1' differs in 64 of 64 values"),
        ("Sub", swap, "Sub: input 0 is"),
        ("Softmax", turn, "Softmax: axis is -2, was -1"),
        ("LeakyRelu", double, "LeakyRelu: alpha is 0.2, was 0.1"),
        ("Max", raise_more, "Max: 3 inputs, were 2"),
        ("Max", spread, "Max: 'floor' has the shape [8], was []"),
        ("Tanh", clip, "Clip added"),
    ],
)
def test_what_is_wrong_with_a_node_is_said(op: str, edit: Callable[[ModelProto, NodeProto], None], cause: str) -> None:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32) / 3, f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["at/a"], "n0"),
        helper.make_node("Tanh", ["at/a"], ["at/b"], "n1"),
        helper.make_node("Sub", ["at/b", "at/a"], ["at/c"], "n2"),
        helper.make_node("LeakyRelu", ["at/c"], ["at/d"], "n3", alpha=0.1),
        helper.make_node("Max", ["at/d", "floor"], ["at/e"], "n4"),
        helper.make_node("Softmax", ["at/e"], ["at/f"], "n5", axis=-1),
        helper.make_node("MatMul", ["at/f", "w1"], ["y"], "n6"),
    ]
    weights.append(numpy_helper.from_array(np.array(-0.2, np.float32), "floor"))
    model = model_of(nodes, [floats("x", 8, 8)], [floats("y", 8, 8)], weights)
    found = graphcut.compare_models(model, edited(model, op, edit), inputs=[{"x": SQUARE}])
    assert [one.error.node for one in found.culprits] == [[node.name for node in nodes if node.op_type == op][-1]]
    assert any(cause in text for text in found.culprits[0].causes)


def rows_of(table: int, factor: float) -> ModelProto:
    """Rows of a table, at places that are multiplied by a factor."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"], "scale"),
        helper.make_node("Cast", ["scaled"], ["places"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "places"], ["y"]),
        helper.make_node("Neg", ["scaled"], ["z"]),
    ]
    values = {"factor": np.array(factor, np.float32), "table": np.arange(2 * table, dtype=np.float32).reshape(table, 2)}
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    return model_of(nodes, [floats("x", 3)], [floats("y", 3, 2), floats("z", 3)], weights)


def test_places_that_a_smaller_table_does_not_have_are_no_error_of_the_lookup() -> None:
    """The first model can't look them up; what it computes besides is compared all the same."""
    found = graphcut.compare_models(rows_of(4, 1), rows_of(8, 2), inputs=[{"x": np.array([0, 1, 3], np.float32)}])
    assert [(one.error.node, one.effect_db) for one in found.culprits] == [("scale", -inf)]
    assert {one.tensor: one.own_db for one in found.errors if one.tensor != "scaled"} == dict.fromkeys(
        ("places", "y", "z"), inf
    )
    side = sections.Side(graphcut.load(rows_of(4, 1)), ("scaled", "places"), EXACT)
    values = {"scaled": np.array([1, 2, 3], np.float32), "places": np.array([0, 2, 6])}
    for names in (["y", "z"], ["z", "y"]):
        made = sections.run_or_halve(side, names, values)
        assert {name: np.asarray(value).tolist() for name, value in made.items()} == {"z": [-1, -2, -3]}


def test_a_conversion_of_an_input_that_the_other_model_lacks_is_another_operator() -> None:
    models = []
    for op, read in (("Cast", "more"), ("Neg", "x")):
        attributes = {"to": TensorProto.FLOAT} if op == "Cast" else {}
        nodes = [
            helper.make_node(op, [read], ["c"], "of c", "", "", None, **attributes),
            helper.make_node("Add", ["x", "c"], ["y"]),
        ]
        inputs = [floats("x", 4), helper.make_tensor_value_info("more", TensorProto.INT64, [4])]
        models.append(model_of(nodes, inputs[: 2 - (op == "Neg")], [floats("y", 4)]))
    feeds = {"x": np.ones(4, np.float32), "more": np.arange(4)}
    assert graphcut.compare_models(*models, inputs=[feeds]).culprits[0].causes == ("Neg instead of Cast",)


def test_an_input_that_is_the_output_has_the_error_of_its_type_alone() -> None:
    one, two = (helper.make_tensor_value_info("x", kind, [4]) for kind in (TensorProto.FLOAT, TensorProto.FLOAT16))
    third = {"x": np.full(4, 1 / 3, np.float32)}
    found = graphcut.compare_models(model_of([], [one], [one]), model_of([], [two], [two]), inputs=[third])
    assert (found.same, found.errors) == (True, ())
    difference = np.float32(1 / 3) - np.float32(np.float16(1 / 3))
    assert found.worst_db == pytest.approx(20 * np.log10(np.float32(1 / 3) / abs(difference)))


def test_an_equal_output_does_not_hide_what_is_wrong_with_another() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"], "neg"), helper.make_node("Mul", ["x", "w"], ["z"], "mul")]
    models = [
        model_of(nodes, [floats("x", 2)], [floats("y", 2), floats("z", 2)], [numpy_helper.from_array(value, "w")])
        for value in (np.ones(2, np.float32), np.full(2, 3, np.float32))
    ]
    found = graphcut.compare_models(*models, inputs=[{"x": np.ones(2, np.float32)}])
    assert [one.node for one in found.culprits] == ["mul"]


def test_equal_nodes_and_weights_differ_in_their_type_or_in_how_they_are_run() -> None:
    nodes, config = [helper.make_node("Neg", ["x"], ["y"], "neg")], SessionConfig()
    model = model_of(nodes, [floats("x", 2)], [floats("y", 2)])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in "xy"]
    halves = model_of(nodes, ends[:1], ends[1:])
    for other, how in ((model, "the difference is in how they are run"), (halves, "the type is float16, was float32")):
        pair = sections.Pair(graphcut.load(model), graphcut.load(other), config, config, has_histograms=False)
        assert causes_of(pair, "y") == (f"the same nodes and weights: {how}",)


def test_the_rounding_of_what_a_node_reads_is_no_error_of_its_own() -> None:
    """In float16 2000.6 is 2001, of which both divisors leave 1; of what the second model has there they do not."""
    models = []
    for kind, scale, divisor in ((np.float32, 1.0, 2000), (np.float16, 0.75, 1000)):
        nodes = [
            helper.make_node("Mul", ["x", "scale"], ["a"], "mul"),
            helper.make_node("Mod", ["a", "divisor"], ["y"], "mod", fmod=1),
        ]
        values = {"scale": np.array([scale], kind), "divisor": np.array([divisor], kind)}
        ends = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1]) for n in "xy"]
        weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
        models.append(model_of(nodes, ends[:1], ends[1:], weights))
    found = graphcut.compare_models(*models, inputs=[{"x": np.array([2000.6], np.float32)}])
    assert {error.node: error.own_db for error in found.errors}["mod"] == np.inf


SQUARE = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)


@pytest.mark.parametrize(("factor", "agrees"), [(3.0, True), (6.0, False)])
def test_numbers_that_are_nearly_equal_differ_by_what_their_rounding_amounts_to(factor: float, *, agrees: bool) -> None:
    """A hundred-thousandth of them, which a rounding in float32 changes by half a percent."""
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 2, 64).astype(np.float32)
    feeds = {"x": x, "z": x + 1e-5 * rng.standard_normal(64).astype(np.float32)}
    after = [helper.make_node("Sub", ["x", "z"], ["d"]), helper.make_node("Mul", ["d", "w"], ["y"])]
    before = [helper.make_node("Mul", [name, "w"], [f"{name} times"]) for name in feeds]
    before.append(helper.make_node("Sub", ["x times", "z times"], ["y"]))
    models = []
    for nodes, value in ((after, 3.0), (before, factor)):
        weights = [numpy_helper.from_array(np.array(value, np.float32), "w")]
        models.append(model_of(nodes, [floats(name, 64) for name in feeds], [floats("y", 64)], weights))
    found = graphcut.compare_models(*models, inputs=[feeds])
    assert (found.same, found.worst_db < 60) == (agrees, True)


def test_the_noise_of_codes_is_that_of_half_a_step_of_their_range() -> None:
    """Of 256 steps over 4 deviations to either side, and of 16 over those that 32 numbers have on average."""
    assert sections.quantization_noise(8, sections.block_crest([])) == pytest.approx(2 * 4 / 256 / 12**0.5)
    assert sections.block_crest([32]) == pytest.approx((2 * np.log(64)) ** 0.5)
    assert sections.block_crest([16, 128]) == sections.block_crest([128])


def test_two_exports_without_a_common_name_are_matched(tmp_path: Path) -> None:
    """Every tensor has another name, and so have inputs, outputs and weights; one weight is another one."""
    save_sentence_encoder(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    other = ModelProto()
    other.CopyFrom(model)
    for node in other.graph.node:
        node.input[:] = [name and f"other/{name}" for name in node.input]
        node.output[:] = [f"other/{name}" for name in node.output]
        node.name = ""
    named: list[Any] = [*other.graph.input, *other.graph.output, *other.graph.initializer]
    for value in named:
        value.name = f"other/{value.name}"
    weight = next(tensor for tensor in other.graph.initializer if tensor.name == "other/layer.1.out.weight")
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    found = graphcut.compare_models(model, other)
    assert {error.other for error in found.errors} == {f"other/{error.tensor}" for error in found.errors}
    computed = sum(node.op_type not in {"Constant", "Cast"} for node in model.graph.node)
    assert len(found.errors) == computed  # a cast is matched by its name alone
    assert "'layer.1.out.weight' is -1 times what it was" in found.culprits[0].causes[0]


def test_equal_operators_outside_of_modules_that_read_other_tensors_are_not_matched() -> None:
    graphs = []
    for op in ("Sin", "Cos"):
        steps = (("x", op), (f"{op}/0", "Exp"), (f"{op}/1", "Neg"))
        ends = (f"{op}/0", f"{op}/1", f"{op}/y")
        nodes = [helper.make_node(kind, [read], [end]) for (read, kind), end in zip(steps, ends, strict=True)]
        graphs.append(graphcut.load(model_of(nodes, [floats("x", 2)], [floats(f"{op}/y", 2)])).graph)
    assert matched_tensors(graphs[0], graphs[1], lambda *_: True) == {"x": "x", "Sin/y": "Cos/y"}


def test_names_that_are_counted_up_are_matched_where_three_of_four_stand_for_the_same() -> None:
    graphs = []
    for first in ("Sin", "Cos"):
        rest = enumerate(("Exp", "Abs", "Neg"))
        nodes = [helper.make_node(first, ["x"], ["val_0"])]
        nodes += [helper.make_node(op, [f"val_{i}"], [f"val_{i + 1}"]) for i, op in rest]
        graphs.append(graphcut.load(model_of(nodes, [floats("x", 2)], [floats("val_3", 2)])).graph)
    names = ("x", "val_0", "val_1", "val_2", "val_3")
    assert matched_tensors(graphs[0], graphs[1], lambda *_: True) == {name: name for name in names}


def test_an_error_beside_a_mask_is_seen() -> None:
    """A tenth beside -10000: 100 dB of all numbers, and 20 dB of those that are no mask."""
    weights = [numpy_helper.from_array(np.array([-1e4, -1e4, -1e4, 0, 0, 0, 0, 0], np.float32), "mask")]
    weights.append(numpy_helper.from_array(np.array(1, np.float32), "one"))
    weights.append(numpy_helper.from_array(np.array(1.1, np.float32), "factor"))
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["at/a"]),
        helper.make_node("Add", ["at/a", "mask"], ["at/b"], "add"),
    ]
    nodes.append(helper.make_node("Softmax", ["at/b"], ["y"]))
    model = model_of(nodes, [floats("x", 8)], [floats("y", 8)], weights)
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.node[1].output[0] = "wide"
    other.graph.node.insert(2, helper.make_node("Mul", ["wide", "factor"], ["at/b"], "tenth"))
    found = graphcut.compare_models(model, other, inputs=[X])
    assert [one.error.node for one in found.culprits] == ["add"]
    assert found.culprits[0].error.own_db == pytest.approx(20, abs=0.1)


@each("shift", [0, 1])
def test_names_that_are_counted_up_are_matched_unless_they_are_shifted(shift: int) -> None:
    """A node in the middle; with a `shift` all names after it are those of the tensors before."""
    ops = ["Neg", "Abs", "Tanh", "Relu", "Sin", "Cos", "Sigmoid", "Exp", "Tanh", "Neg"]
    names = [f"val_{i}" for i in range(len(ops))]
    nodes = [helper.make_node(op, [a], [b], f"n{b}") for op, a, b in zip(ops, ["x", *names], names, strict=False)]
    model = model_of(nodes, [floats("x", 8)], [floats("val_9", 8)])
    later = [f"val_{i + shift}" for i in range(4, 10)]
    middle = helper.make_node("Ceil", ["val_3"], ["val_4" if shift else "new"], "added")
    reads = [middle.output[0], *later]
    rest = [helper.make_node(op, [a], [b], f"n{b}") for op, a, b in zip(ops[4:], reads, later, strict=False)]
    other = model_of([*nodes[:4], middle, *rest], [floats("x", 8)], [floats(later[-1], 8)])
    found = graphcut.compare_models(model, other, inputs=[X])
    assert [one.nodes[0] for one in found.culprits] == ["added"]
    numbers = {int(one.tensor[4:]): int(one.other[4:]) for one in found.errors}
    assert all(there == here + shift * (here > 3) for here, there in numbers.items())


def masked_rows(mask: float, factor: float = 1.0) -> ModelProto:
    """Rows of shares, of which the last two see nothing: NaN with a mask of -inf. The output has the first two."""
    nodes = [
        helper.make_node("Where", ["is_seen", "zero", "mask"], ["at/mask"], "fill"),
        helper.make_node("Add", ["x", "at/mask"], ["at/scores"], "add"),
        helper.make_node("Softmax", ["at/scores"], ["at/shares"], "softmax"),
        helper.make_node("MatMul", ["at/shares", "w"], ["at/mixed"], "mix"),
        helper.make_node("Gather", ["at/mixed", "rows"], ["y"], "gather", axis=0),
    ]
    values = {"zero": np.float32(0), "mask": np.float32(mask), "rows": np.arange(2), "w": SQUARE * np.float32(factor)}
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    inputs = [floats("x", 4, 8), helper.make_tensor_value_info("is_seen", TensorProto.BOOL, [4, 8])]
    return model_of(nodes, inputs, [floats("y", 2, 8)], weights)


@each("masks", [(-1e4, -inf), (-inf, -1e4)])
def test_nan_in_rows_that_are_not_read_is_harmless_and_hides_no_fault_after_it(masks: tuple[float, float]) -> None:
    is_seen = np.arange(4)[:, None] < np.array([2] * 5 + [1] * 3)
    feeds = [{"x": SQUARE[:4], "is_seen": is_seen}]
    assert graphcut.compare_models(*map(masked_rows, masks), inputs=feeds)
    found = graphcut.compare_models(masked_rows(masks[0]), masked_rows(masks[1], 1.5), inputs=feeds)
    assert [error.broken for error in found.errors] == [19, 19, 16, 16, 0]  # 3 numbers of row 1, and rows 2 and 3
    assert ([one.node for one in found.culprits], [one.node for one in found.harmless]) == (["mix"], ["fill"])


def test_a_difference_that_only_graph_optimizations_make_names_what_they_fuse() -> None:
    """ONNX Runtime's fused norm loses what is small beside a mean of 3000; the nodes one by one do not."""

    def node(op: str, reads: Sequence[str], name: str, axes: Sequence[int] | None = None) -> NodeProto:
        return helper.make_node(op, reads, [name], name, axes=axes)

    nodes = [
        node("Neg", ["x"], "at/in"),
        node("ReduceMean", ["at/in"], "at/mean", axes=[-1]),
        node("Sub", ["at/in", "at/mean"], "at/centred"),
        node("Pow", ["at/centred", "two"], "at/squared"),
        node("ReduceMean", ["at/squared"], "at/variance", axes=[-1]),
        node("Add", ["at/variance", "epsilon"], "at/shifted"),
        node("Sqrt", ["at/shifted"], "at/deviation"),
        node("Div", ["at/centred", "at/deviation"], "at/normal"),
        node("Mul", ["at/normal", "scale"], "at/scaled"),
        node("Add", ["at/scaled", "bias"], "at/norm"),
        node("Tanh", ["at/norm"], "y"),
    ]
    values = {"two": np.float32(2), "epsilon": np.float32(1e-5), "scale": np.ones(64, "f"), "bias": np.zeros(64, "f")}
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    model = model_of(nodes, [floats("x", 4, 64)], [floats("y", 4, 64)], weights)
    small = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    optimized = replace(graphcut.EXACT, optimize="all")
    assert graphcut.compare_models(model, model, inputs=[{"x": small}], config=optimized)
    found = graphcut.compare_models(model, model, inputs=[{"x": small + 3000}], config=optimized)
    assert (found.same, found.culprits, found.changes) == (False, (), ())
    inside = [one.name for one in nodes[1:-2]]
    assert found.fused in inside
    assert f"graph optimizations across {found.fused!r} make a difference" in str(found)


def test_a_difference_that_no_further_output_prevents_is_told_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimized run that gives another output, whichever tensors are outputs beside it."""
    run = run_whole

    def changed_run(model: graphcut.Model, feeds: Feeds, wanted: Sequence[str], *, config: SessionConfig) -> Feeds:
        made = run(model, feeds, wanted, config=config)
        return {**made, "y": made["y"].numpy() * 1.5} if config.optimize == "all" else made

    monkeypatch.setattr(two_models, "run_whole", changed_run)
    model = transformer(-1e4)
    found = graphcut.compare_models(model, model, inputs=[SEEN], config=replace(graphcut.EXACT, optimize="all"))
    assert (found.same, found.culprits, found.fused) == (False, (), "")
    assert "no tensor that was compared shows where" in str(found)


def test_histograms_have_all_numbers_of_both_sides() -> None:
    model = transformer(-3.4e38)
    feeds = {**SEEN, "seen": np.arange(16, dtype=np.float32).reshape(2, 8) // 3}
    found = graphcut.compare_models(model, transformer(-3.4e38, 1.25), inputs=[feeds], histograms=True)
    add, norm = (next(error.histogram for error in found.errors if error.node == n) for n in ("add", "layer/norm"))
    assert add is not None
    assert norm is not None
    assert (sum(add.counts[0]), add.others, add.step) == (13, (3, 3), 1)  # 3 of 16 are masked
    values = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    bins = np.linspace(norm.low, norm.high, 33)
    assert (norm.low, norm.high) == pytest.approx((values.min() * 1.25, values.max() * 1.25))
    for counts, factor in zip(norm.counts, (1.0, 1.25), strict=True):
        inside = [int(((values * factor >= a) & (values * factor < b)).sum()) for a, b in pairwise(bins[1:-1])]
        assert list(counts[1:-1]) == inside
        assert sum(counts) == 16


def test_a_cast_that_takes_the_name_of_what_it_converts_is_added_and_the_node_before_it_is_the_same() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    model = model_of(nodes, [floats("x", 8, 8)], [floats("y", 8, 8)], [numpy_helper.from_array(SQUARE, "w")])
    inside = [
        helper.make_node("Cast", ["x"], ["x16"], "to_half", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["x16", "w"], ["y16"], "product16"),
        helper.make_node("Cast", ["y16"], ["y"], "from_half", to=TensorProto.FLOAT),
    ]
    half = [numpy_helper.from_array((SQUARE * 1.5).astype(np.float16), "w")]
    other = model_of(inside, [floats("x", 8, 8)], [floats("y", 8, 8)], half)
    found = graphcut.compare_models(model, other, inputs=[{"x": SQUARE}])
    kinds = [(change.kind, change.node) for change in found.changes]
    assert kinds == [("added", "to_half"), ("added", "from_half"), ("weight", "product")]
    assert any("'w' is 1.5 times what it was" in cause for cause in found.culprits[0].causes)


@pytest.mark.parametrize("name", ["sparse_initializers", "sparse_constant_on_both_sides"])
def test_sparse_constants_are_compared(name: str, tmp_path: Path) -> None:
    path = HAZARDS[name]().write(tmp_path)
    assert graphcut.compare_models(path, path)
