"""The numerical check: tensor by tensor, with the tolerance of half precision and of optimizations, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from small_cascades import (
    F16,
    F32,
    F64,
    INFINITE,
    X,
    add,
    additions,
    cascade,
    cut_proto,
    model,
    node,
    tamper,
    values,
)

import graphcut
from graphcut import Cascade, Model
from graphcut.verifying.numerical import HALF_TOLERANCES, TensorComparison, compare, half_tolerance
from graphcut.verifying.placement_check import PlacementCheck
from graphcut.verifying.structural import Proof
from graphcut.verifying.verification import _reason

from conftest import floats, model_of

__all__ = ["cascade", "model"]


def compared(tensor: str, part: int, **fields: Any) -> TensorComparison:  # noqa: ANN401 - fields of many types
    flags = {"is_output": False, "is_identical": True, "is_random": False}
    numbers = {"max_abs": 0.0, "max_rel": 0.0, "max_ulps": 0, "allowed": 0.0}
    return TensorComparison(tensor=tensor, part=part, **{**flags, **numbers, **fields})


def test_every_output_and_every_boundary_tensor_is_compared(model: Model, cascade: Cascade) -> None:
    found = compare(model, cascade, X, optimized=False)
    assert found == (compared("c", 0), compared("e", 1), compared("y", 2, is_output=True))


def test_the_first_boundary_tensor_that_differs_is_named(tmp_path: Path) -> None:
    """2, 3 and 4 plus 1 are 3, 4 and 5; plus 1.5 they are 3.5, 4.5 and 5.5."""
    model, cascade = cut_proto(tmp_path, additions(0, 1, 0, 0), "s0", "s1", "s2")
    found = compare(model, tamper(cascade, 1, add(1.5)), {"x": np.array([2, 3, 4], F32)}, optimized=False)
    wrong = {"is_identical": False, "max_abs": 0.5, "max_rel": 0.5 / 3, "max_ulps": 2**21}
    assert found == (
        compared("s0", 0),
        compared("s1", 1, **wrong),
        compared("s2", 2, **wrong),
        compared("s3", 3, is_output=True, **wrong),
    )
    assert [tensor.passes for tensor in found] == [True, False, False, False]


def test_a_difference_makes_the_result_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cascade = cut_proto(tmp_path, additions(0, 1, 0), "s0", "s1")
    cascade = tamper(cascade, 1, add(1.5))
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 3, 0, 0))
    report = graphcut.verify(model, cascade, inputs=[{"x": np.array([2], F32)}])
    assert not report
    assert (report.same, report.is_identical, report.is_random) == (False, False, False)
    assert report.first_difference is not None
    assert (report.first_difference.tensor, report.first_difference.part) == ("s1", 1)


def test_the_sign_of_a_zero_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are compared: -0.0 + -0.0 is -0.0, and -0.0 + 0.0 is 0.0."""
    model, cascade = cut_proto(tmp_path, additions(-0.0, -0.0), "s0")
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 2, 0, 0))
    feeds = {"x": np.array([-0.0], F32)}
    assert graphcut.verify(model, cascade, inputs=[feeds]).is_identical
    report = graphcut.verify(model, tamper(cascade, 1, add(0.0)), inputs=[feeds])
    assert not report.is_identical
    assert not report, "bit-identical is required, and these bits differ"


def test_a_large_integer_that_differs_by_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=np.int64), "s0")
    monkeypatch.setattr("graphcut.verifying.verification.prove", lambda *_: Proof((), 2, 0, 0))
    feeds = {"x": np.array([2**60], np.int64)}
    assert graphcut.verify(model, cascade, inputs=[feeds])
    assert not graphcut.verify(model, tamper(cascade, 1, add(2, np.int64)), inputs=[feeds])


def test_nan_is_identical_to_nan(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    found = compare(model, cascade, {"x": np.array([np.nan, np.inf, -np.inf], F32)}, optimized=False)
    assert found == (compared("s0", 0), compared("s1", 1, is_output=True))


def test_nan_in_place_of_a_number_is_found(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    feeds = {"x": np.array([1], F32)}
    (_, last) = compare(model, tamper(cascade, 1, add(np.nan)), feeds, optimized=False)
    assert (last.max_abs, last.passes) == (INFINITE, False)


# Half precision


@pytest.mark.parametrize(("dtype", "fraction"), [(F16, 2e-3), (F32, 0.0), (F64, 0.0)])
def test_a_model_that_computes_in_half_precision_has_a_tolerance(
    tmp_path: Path, dtype: type[np.generic], fraction: float
) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=dtype), "s0")
    assert half_tolerance(model) == fraction
    report = graphcut.verify(model, cascade, inputs=[{"x": np.array([2], dtype)}])
    assert report
    assert [tensor.allowed for run in report.runs for tensor in run] == [3 * fraction, 4 * fraction]
    assert ("half precision" in report.reason) == bool(fraction)
    assert (f"{fraction:g} of a tensor's largest value" in report.reason) == bool(fraction)


def test_bfloat16_has_the_tolerance_of_its_precision() -> None:
    assert HALF_TOLERANCES == {"float16": 2e-3, "bfloat16": 1.6e-2, "tf32": 2e-3}


# On a provider that computes in another type (tests/verifying/test_placement.py)


def on(computes: str) -> PlacementCheck:
    """Parts that run on a provider; here the CPU's computes for it."""
    return PlacementCheck(providers=("NpuExecutionProvider",), computes=computes)


def test_where_a_provider_computes_in_float16_four_times_what_rounding_changes_is_allowed(tmp_path: Path) -> None:
    """1/3 + 1000 - 1000: float16 has steps of 0.5 there, and gives 0.5."""
    model, cascade = cut_proto(tmp_path, additions(1000, -1000), "s0")
    feeds = {"x": np.array([1 / 3], F32)}
    found = compare(model, cascade, feeds, optimized=False, placed=on("float16"))
    exact = F32(F32(1 / 3) + F32(1000))
    assert [tensor.allowed for tensor in found] == pytest.approx([8e-3 * exact, 4 * (0.5 - (exact - 1000))])
    assert all(tensor.is_identical for tensor in found)
    for error, passes in ((0.6, True), (0.7, False)):
        (_, last) = compare(model, tamper(cascade, 1, add(error - 1000)), feeds, optimized=False, placed=on("float16"))
        assert last.passes is passes, error


def test_what_is_larger_than_the_numbers_of_float16_may_become_the_largest(tmp_path: Path) -> None:
    """A mask of -1e9 on an NPU is -65504; and what is computed from it is judged."""
    model, cascade = cut_proto(tmp_path, additions(-1e9, 1), "s0")
    (mask, last) = compare(model, cascade, {"x": np.array([0], F32)}, optimized=False, placed=on("float16"))
    assert mask.allowed == pytest.approx(4 * (1e9 - 65504))
    assert last.allowed == pytest.approx(4 * (1e9 - 65504))


@pytest.mark.parametrize(
    ("opset", "computes", "allowed"),
    [(10, "float16", 4 / 6), (17, "bfloat16", 4 / 3), (10, "bfloat16", 6.4e-2 / 3)],  # bfloat16 gives 0
)
def test_roundings_are_made_by_operators_of_the_models_opset_where_it_has_the_type(
    tmp_path: Path, opset: int, computes: str, allowed: float
) -> None:
    proto = additions(1000, -1000)
    proto.opset_import[0].version = opset
    model, cascade = cut_proto(tmp_path, proto, "s0")
    feeds = {"x": np.array([1 / 3], F32)}
    (_, last) = compare(model, cascade, feeds, optimized=False, placed=on(computes))
    assert last.allowed == pytest.approx(allowed, rel=1e-3)


def test_roundings_take_no_name_of_the_model(tmp_path: Path) -> None:
    ends = (["x", "k"], "x@half"), (["x@half", "m"], "@low")
    nodes = [helper.make_node("Add", reads, [name], name=name) for reads, name in ends]
    proto = model_of(nodes, [floats("x", 1)], [floats("@low", 1)], [values("k", [1000.0]), values("m", [-1000.0])])
    model, cascade = cut_proto(tmp_path, proto, "x@half")
    (_, last) = compare(model, cascade, {"x": np.array([1 / 3], F32)}, optimized=False, placed=on("float16"))
    assert last.allowed == pytest.approx(4 / 6, rel=1e-3)


def test_an_integer_may_change_four_times_as_much_as_by_rounding(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["s"], name="s"), helper.make_node("Cast", ["s"], ["y"], to=6)]
    ends = [floats("x", 1)], [helper.make_tensor_value_info("y", 6, [1])]
    model, cascade = cut_proto(tmp_path, model_of(nodes, *ends, [values("k", [1.0])]), "s")
    for number, allowed in ((4098.6, 8), (4096.0, 0)):  # float16 has steps of 4 there, and gives 4100
        feeds = {"x": np.array([number], F32)}
        (_, last) = compare(model, cascade, feeds, optimized=False, placed=on("float16"))
        assert last.allowed == allowed


def test_where_a_provider_computes_in_float32_what_optimizations_change_decides(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    feeds = {"x": np.array([2], F32)}
    found = compare(model, cascade, feeds, optimized=False, placed=on("float32"))
    assert [tensor.allowed for tensor in found] == pytest.approx([3e-5, 4e-5])
    (_, last) = compare(model, tamper(cascade, 1, add(1.0001)), feeds, optimized=False, placed=on("float32"))
    assert not last.passes


@pytest.mark.parametrize(("level", "may_round"), [(4, True), (1, False)])
def test_a_product_of_4_bits_may_round_what_it_reads_to_8_bits_where_the_model_says_so(
    tmp_path: Path, level: int, *, may_round: bool
) -> None:
    """As OpenVINO's does on the CPU, whatever the model says: to 127 steps up to the largest of 32 numbers."""
    x = np.random.default_rng(0).normal(size=(1, 32)).astype(F32)
    weights = np.arange(16 * 16, dtype=np.uint8).reshape(16, 1, 16)  # of two each; 8 is 0
    sizes: dict[str, Any] = {"K": 32, "N": 16, "bits": 4, "block_size": 32, "accuracy_level": level}
    product = helper.make_node("MatMulNBits", ["a", "w", "s"], ["y"], "y", domain="com.microsoft", **sizes)
    given = [values("w", weights, np.uint8), values("s", np.ones(16)), values("one", [1])]
    nodes = [helper.make_node("Mul", ["x", "one"], ["a"], "a"), product]
    proto = model_of(nodes, [floats("x", 1, 32)], [floats("y", 1, 16)], given)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model, cascade = cut_proto(tmp_path, proto, "a")
    (_, last) = compare(model, cascade, {"x": x}, optimized=False, placed=on("float32"))
    numbers = np.stack([weights & 15, weights >> 4], -1).reshape(16, 32) - 8.0
    step = np.abs(x).max() / 127
    error = float(np.abs((np.rint(x / step) * step - x) @ numbers.T).max())
    assert last.allowed == pytest.approx(4 * error if may_round else 1e-5 * np.abs(x @ numbers.T).max(), rel=1e-2)
    said = _reason(model, Proof((), 2, 0, 0), [(last,)], on("float32"), optimized=False)
    assert ("by 8 bits where products of 4 bits may round" in said) is may_round


def test_where_the_type_of_a_provider_is_not_known_finite_numbers_pass(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1), "s0")
    feeds = {"x": np.array([2], F32)}
    for summand, passes in ((9.0, True), (np.inf, False)):
        (_, last) = compare(model, tamper(cascade, 1, add(summand)), feeds, optimized=False, placed=on(""))
        assert last.passes is passes


def test_each_boundary_on_the_way_may_round_once(tmp_path: Path) -> None:
    """Four roundings are allowed anyway. The last of seven parts reads what six others rounded."""
    model, cascade = cut_proto(tmp_path, additions(*[1] * 7, dtype=F16), *(f"s{i}" for i in range(6)))
    found = compare(model, cascade, {"x": np.array([2], F16)}, optimized=False)
    roundings = [tensor.allowed / (value * 2e-3 / 4) for value, tensor in enumerate(found, 3)]
    assert roundings == pytest.approx([4, 4, 4, 4, 5, 6, 7])


def test_half_precision_beyond_the_tolerance_differs(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=F16), "s0")
    feeds = {"x": np.array([2], F16)}
    within = compare(model, tamper(cascade, 1, add(1 + 2**-8, F16)), feeds, optimized=False)
    assert [(tensor.is_identical, tensor.passes) for tensor in within] == [(True, True), (False, True)]
    beyond = compare(model, tamper(cascade, 1, add(1 + 2**-6, F16)), feeds, optimized=False)
    assert [(tensor.is_identical, tensor.passes) for tensor in beyond] == [(True, True), (False, False)]


def test_integers_are_exact_in_a_model_of_half_precision(tmp_path: Path) -> None:
    """The tolerance is one of rounding: an index of 1000 that is 1001 is wrong."""
    nodes = [
        helper.make_node("Add", ["ids", "k"], ["shifted"], name="shifted"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Neg", ["r"], ["half"], name="neg"),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("h", TensorProto.FLOAT16, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("shifted", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("half", TensorProto.FLOAT16, [1]),
    ]
    proto = model_of(nodes, inputs, outputs, [values("k", [1], np.int64)])
    model, cascade = cut_proto(tmp_path, proto, "shifted")
    feeds = {"ids": np.array([1000]), "h": np.array([1], F16)}
    found = compare(model, tamper(cascade, 0, add(2, np.int64)), feeds, optimized=False)
    assert {tensor.tensor: tensor.passes for tensor in found} == {"shifted": False, "half": True}


def layer_norm() -> ModelProto:
    """A norm of float16: ONNX Runtime keeps its mean in float32, and a boundary after it rounds."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], name="mean", axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["centred"], name="centred"),
        helper.make_node("Mul", ["centred", "centred"], ["square"], name="square"),
        helper.make_node("ReduceMean", ["square"], ["variance"], name="variance", axes=[-1]),
        helper.make_node("Sqrt", ["variance"], ["deviation"], name="deviation"),
        helper.make_node("Div", ["centred", "deviation"], ["normal"], name="normal"),
        helper.make_node("Add", ["normal", "k0"], ["y"], name="y"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 2]) for name in ("x", "y")]
    return model_of(nodes, ends[:1], ends[1:], [values("k0", [1], F16)], opset=17)


TWO_NEIGHBOURS = {"x": np.array([[1, 1 + 2**-10]], F16)}
"""Their mean is between them: as float16 it is one of them, so that one number less the mean is 0."""


@pytest.mark.parametrize("optimized", [False, True])
def test_a_rounding_that_a_norm_amplifies_is_explained_and_no_difference(tmp_path: Path, *, optimized: bool) -> None:
    """The norm of two numbers is -1 and 1; with the rounded mean it is 0 and the square root of 2."""
    model, cascade = cut_proto(tmp_path, layer_norm(), "mean")
    report = graphcut.verify(model, cascade, inputs=[TWO_NEIGHBOURS], optimized=optimized)
    last = report.runs[0][-1]
    assert (last.tensor, last.max_abs > 0.4 > last.allowed, last.is_explained) == ("y", True, True)
    assert (report.same, report.is_identical, report.first_difference) == (True, False, None)
    assert report.reason.endswith(
        f"'y' differs by {last.max_abs:.3g}, with the bits of the model's nodes run part by part"
    )


@pytest.mark.parametrize("optimized", [False, True])
def test_a_fault_behind_an_amplified_rounding_is_found(tmp_path: Path, *, optimized: bool) -> None:
    """One bit of a weight: less than what rounding changes, and not explained by it."""
    model, cascade = cut_proto(tmp_path, layer_norm(), "mean")
    wrong = tamper(cascade, 1, add(1 + 2**-10, F16))
    *_, last = compare(model, wrong, TWO_NEIGHBOURS, optimized=optimized)
    assert (last.is_explained, last.passes) == (False, False)


def test_an_integer_that_a_rounding_decides_is_explained(tmp_path: Path) -> None:
    """2048 + 0.75 + 0.75 is 2049.5, of which 2049 is left; where each sum is rounded to float16, it is 2048."""
    proto = additions(0.75, 0.75, dtype=F16)
    proto.graph.node.append(helper.make_node("Cast", ["s1"], ["token"], name="token", to=TensorProto.INT64))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("token", TensorProto.INT64, ["n"]))
    model, cascade = cut_proto(tmp_path, proto, "s0")
    *_, last = compare(model, cascade, {"x": np.array([2048], F16)}, optimized=False)
    assert (last.max_abs, last.allowed, last.is_explained, last.passes) == (1.0, 0.0, True, True)


def test_near_zero_half_precision_may_differ_by_its_smallest_number(tmp_path: Path) -> None:
    """Half of 3 times the smallest number is 1.5, which a boundary rounds to 2; 0.9 of 1.5 is 1, and of 2 it is 2."""
    smallest = 2.0**-24
    nodes = [helper.make_node("Mul", ["x", "half"], ["a"], name="a"), helper.make_node("Mul", ["a", "most"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1]) for name in ("x", "y")]
    proto = model_of(nodes, ends[:1], ends[1:], [values("half", [0.5], F16), values("most", [0.9], F16)])
    *_, last = compare(*cut_proto(tmp_path, proto, "a"), {"x": np.array([3 * smallest], F16)}, optimized=False)
    assert (last.max_abs, last.allowed, last.is_explained, last.passes) == (smallest, smallest, False, True)


# With optimisations


def test_with_optimizations_only_outputs_are_compared_with_the_noise_allowed(model: Model, cascade: Cascade) -> None:
    report = graphcut.verify(model, cascade, inputs=[X], optimized=True)
    assert report
    ((only,),) = report.runs
    assert only.tensor == "y"
    assert only.allowed > 0
    assert report.reason == (
        "with graph optimizations, 4 times what they change in the unsplit model is allowed, at least 1e-5"
    )


def test_a_wrong_part_differs_by_more_than_the_noise(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, additions(0, 1), "s0")
    feeds = {"x": np.array([2], F32)}
    (only,) = compare(model, tamper(cascade, 1, add(1.001)), feeds, optimized=True)
    assert only.allowed == pytest.approx(3e-5)
    assert not only.passes


@pytest.mark.parametrize("optimized", [False, True])
def test_a_wrong_token_is_found_though_it_is_within_a_hundred_thousandth(tmp_path: Path, *, optimized: bool) -> None:
    """Token 151000 is not token 151001."""
    model, cascade = cut_proto(tmp_path, additions(1, 1, dtype=np.int64), "s0")
    feeds = {"x": np.array([150998])}
    *_, last = compare(model, tamper(cascade, 1, add(2, np.int64)), feeds, optimized=optimized)
    assert (last.max_abs, last.allowed, last.passes) == (1.0, 0.0, False)


# Models that draw random numbers


def noisy(*ends: onnx.NodeProto, output: onnx.ValueInfoProto) -> ModelProto:
    """Noise of the shape of x, drawn at `noise`, which does not stand first in its model and does in its part."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("RandomNormalLike", ["a"], ["r"], name="noise"),
        *ends,
    ]
    return model_of(nodes, [floats("x", 8)], [output])


ADDED = (helper.make_node("Add", ["r", "a"], ["y"], name="add"),)


def test_a_random_model_is_reported_as_random(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, noisy(*ADDED, output=floats("y", 8)), "relu")
    report = graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])
    assert (report.is_random, report.same, report.proof.holds) == (True, True, True)


def test_a_random_tensor_that_no_output_depends_on_is_no_difference(tmp_path: Path) -> None:
    """What crosses is random; the output is its length."""
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    ends = helper.make_node("Neg", ["r"], ["n"], name="neg"), helper.make_node("Shape", ["n"], ["y"], name="shape")
    model, cascade = cut_proto(tmp_path, noisy(*ends, output=output), "relu", "noise", "neg")
    assert [part.reads for part in cascade.parts] == [("x",), ("a",), ("r",), ("n",)]
    assert graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])


def test_a_dropout_that_is_off_allows_no_difference(tmp_path: Path) -> None:
    """It draws nothing: what comes after it is the same in every run, and must be the same in the cascade."""
    nodes = [
        helper.make_node("Dropout", ["x", "ratio", "training"], ["d"], name="dropout"),
        helper.make_node("Add", ["d", "k"], ["y"], name="add"),
    ]
    weights = [values("ratio", 0.5), values("training", False, np.bool_), values("k", [1.0])]
    model, cascade = cut_proto(tmp_path, model_of(nodes, [floats("x", 2)], [floats("y", 2)], weights), "dropout")
    found = compare(model, tamper(cascade, 1, add(2.0)), {"x": np.ones(2, F32)}, optimized=False)
    assert [(tensor.tensor, tensor.is_identical, tensor.passes) for tensor in found] == [
        ("d", True, True),
        ("y", False, False),
    ]


def test_a_wrong_part_of_a_random_model_is_found_by_the_proof(tmp_path: Path) -> None:
    model, cascade = cut_proto(tmp_path, noisy(*ADDED, output=floats("y", 8)), "noise")
    cascade = tamper(cascade, 1, lambda proto: setattr(node(proto, "add"), "op_type", "Sub"))
    report = graphcut.verify(model, cascade, inputs=[{"x": np.ones(8, F32)}])
    assert not report
    assert report.proof.objections == ("part-1.onnx: node 'add' differs from the model's",)
