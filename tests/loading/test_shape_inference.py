"""What is known of types and shapes: from whom, and which of them is believed."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

import graphcut
import graphcut.demos
from graphcut import At, Cascade, Model, ModelError, Tensor, UsageError, load
from graphcut.core.tensors import BITS, Dim
from graphcut.loading import bound_sizes
from graphcut.loading.bound_sizes import infer_bound
from graphcut.loading.shape_inference import dtype_from_ort, tensor_of_type, type_proto
from graphcut.running.process_memory import PeakMemory, resident_bytes

from cases import each
from conftest import ORT_VERSION, Draw, floats, model_of


def ints(name: str, *shape: int | str | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def vector(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def through(*nodes: NodeProto, noted: ValueInfoProto | None = None) -> ModelProto:
    """x[n,4] → a → ... → y, where a is not declared unless `noted`."""
    model = model_of(nodes, [floats("x", "n", 4)], [floats("y", None, None)])
    if noted is not None:
        model.graph.value_info.append(noted)
    model.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("other", 1)])
    return model


def relu_then_neg(noted: ValueInfoProto | None = None) -> ModelProto:
    return through(helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"]), noted=noted)


def custom_then_neg(noted: ValueInfoProto | None = None) -> ModelProto:
    """An operator that nobody knows."""
    steps = [helper.make_node("Foo", ["x"], ["a"], domain="other"), helper.make_node("Neg", ["a"], ["y"])]
    return through(*steps, noted=noted)


def said(tensors: Mapping[str, Tensor], *names: str) -> list[str]:
    return [str(tensors[name]) for name in names]


def cut(model: Model, at: str, folder: Path) -> Cascade:
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At((at,))), folder)


# Between messages and words

ELEMENTS = st.sampled_from([*BITS, "string"])


def words() -> st.SearchStrategy[str]:
    inner = st.recursive(
        ELEMENTS,
        lambda word: st.one_of(
            word.map("sequence({})".format),
            word.map("optional({})".format),
            st.builds("map({}, {})".format, st.sampled_from(["string", "int64", "uint8"]), word),
        ),
        max_leaves=4,
    )
    return st.one_of(inner, ELEMENTS.map("sparse({})".format))


DIMS = st.one_of(st.none(), st.integers(0, 2**62), st.sampled_from(["n", "batch size", "2*n"]))


@settings(deadline=None)
@given(words(), st.one_of(st.none(), st.lists(DIMS, max_size=4).map(tuple)))
def test_a_type_survives_conversion_to_a_message_and_back(word: str, shape: tuple[Dim, ...] | None) -> None:
    tensor = Tensor(name="t", dtype=word, shape=None if "(" in word else shape)
    assert tensor_of_type("t", TypeProto.FromString(type_proto(tensor).SerializeToString())) == tensor


@each(
    ("kind", "tensor"),
    [
        (floats("t", 2, "n", None).type, Tensor(name="t", dtype="float32", shape=(2, "n", None))),
        (floats("t").type, Tensor(name="t", dtype="float32", shape=())),
        (helper.make_tensor_type_proto(TensorProto.DOUBLE, None), Tensor(name="t", dtype="float64", shape=None)),
        (
            helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
            Tensor(name="t", dtype="sequence(float32)", shape=None),
        ),
        (
            helper.make_optional_type_proto(
                helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, None))
            ),
            Tensor(name="t", dtype="optional(sequence(bool))", shape=None),
        ),
        (
            helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
            Tensor(name="t", dtype="map(string, float32)", shape=None),
        ),
        (
            helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2, 2]),
            Tensor(name="t", dtype="sparse(float32)", shape=None),
        ),
        (TypeProto(), Tensor(name="t", dtype="undefined", shape=None)),
    ],
)
def test_each_kind_of_type_has_a_dtype(kind: TypeProto, tensor: Tensor) -> None:
    assert tensor_of_type("t", kind) == tensor


def test_a_negative_size_or_empty_symbol_is_unknown() -> None:
    kind = floats("t", -1, 3).type
    kind.tensor_type.shape.dim.add().dim_param = ""
    assert tensor_of_type("t", kind).shape == (None, 3, None)


def test_symbols_that_are_not_wanted_are_unknown_dimensions() -> None:
    assert tensor_of_type("t", floats("t", "n", "unk__0", 3).type, symbols={"n"}).shape == ("n", None, 3)


def test_a_scalar_is_declared_as_one_and_an_unknown_rank_is_not() -> None:
    scalar, unknown = (type_proto(Tensor(name="t", dtype="float32", shape=shape)) for shape in ((), None))
    assert (scalar.tensor_type.HasField("shape"), unknown.tensor_type.HasField("shape")) == (True, False)


@each(
    ("theirs", "ours"),
    [
        ("tensor(float)", "float32"),
        ("tensor(double)", "float64"),
        ("tensor(float16)", "float16"),
        ("tensor(int64)", "int64"),
        ("tensor(string)", "string"),
        ("sparse_tensor(float)", "sparse(float32)"),
        ("seq(tensor(float))", "sequence(float32)"),
        ("optional(tensor(double))", "optional(float64)"),
        ("optional(seq(tensor(bool)))", "optional(sequence(bool))"),
        ("map(string,tensor(float))", "map(string, float32)"),
        ("seq(map(int64,tensor(float)))", "sequence(map(int64, float32))"),
    ],
)
def test_types_of_onnx_runtime_are_translated(theirs: str, ours: str) -> None:
    assert dtype_from_ort(theirs) == ours
    assert tensor_of_type("t", type_proto(Tensor(name="t", dtype=ours, shape=None))).dtype == ours


def test_onnx_runtime_and_the_message_give_the_same_dtype() -> None:
    """One model that hands every kind of value through, asked both ways."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    kinds = [tensor, helper.make_sequence_type_proto(tensor), helper.make_optional_type_proto(tensor)]
    reads, writes = ([helper.make_value_info(f"{end}{i}", kind) for i, kind in enumerate(kinds)] for end in "xy")
    steps = [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(kinds))]
    session = ort.InferenceSession(
        model_of(steps, reads, writes).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    theirs = [dtype_from_ort(output.type) for output in session.get_outputs()]
    assert (
        theirs
        == [tensor_of_type("y", kind).dtype for kind in kinds]
        == ["float32", "sequence(float32)", "optional(float32)"]
    )


# Declared and inferred


def test_inference_fills_what_is_not_declared(opened: Draw) -> None:
    assert said(opened(relu_then_neg()).tensors, "x", "a", "y") == ["float32[n,4]"] * 3


def test_a_declared_type_is_used_if_inference_finds_nothing(opened: Draw) -> None:
    assert said(opened(custom_then_neg(floats("a", "m", 7))).tensors, "a") == ["float32[m,7]"]


def test_each_source_fills_the_gaps_of_the_other(opened: Draw) -> None:
    steps = [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)]
    model = through(*steps, noted=ints("a", None, "found"))
    assert said(opened(model).tensors, "a") == ["int64[2,found]"]


def test_contradicting_sizes_are_unknown(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "n", 5))).tensors, "a") == ["float32[n,?]"]


def test_contradicting_ranks_are_unknown(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "n", 4, 1))).tensors, "a") == ["float32[…]"]


def test_a_stale_number_does_not_freeze_a_symbol(opened: Draw) -> None:
    """The inputs were made dynamic after the fact, as many a recipe has it, and the value_info was forgotten."""
    (size, _) = opened(relu_then_neg(floats("a", 1, 4))).tensors["a"].shape or ()
    assert size in {"n", None}


def test_parts_accept_what_the_model_accepts_despite_stale_value_info(opened: Draw, tmp_path: Path) -> None:
    model = opened(relu_then_neg(floats("a", 1, 4)))
    x = np.ones((3, 4), np.float32)
    (whole,) = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert graphcut.run(cut(model, "a", tmp_path / "parts"), {"x": x})["y"].tolist() == whole.tolist()


def test_stale_value_info_of_one_tensor_does_not_affect_others(opened: Draw) -> None:
    steps = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    assert said(opened(through(*steps, noted=floats("a", "n", 5))).tensors, "a", "b") == [
        "float32[n,?]",
        "float32[n,4]",
    ]


def test_the_symbols_of_the_author_are_kept(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "rows", 4))).tensors, "a") == ["float32[rows,4]"]


def test_symbols_that_inference_generates_are_unknown_dimensions(opened: Draw) -> None:
    steps = [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)]
    model = opened(through(*steps))
    assert said(model.tensors, "a", "y") == said(model.boundary_types, "a", "y") == ["int64[2,?]", "float32[2,?]"]


def test_a_symbol_of_an_earlier_inference_is_not_confused_with_a_new_one(opened: Draw) -> None:
    """`unk__0` stands in the file for b; today's inference would call a's size so."""
    steps = [
        helper.make_node("NonZero", ["x"], ["a"]),
        helper.make_node("NonZero", ["z"], ["b"]),
        helper.make_node("Identity", ["a"], ["y"]),
        helper.make_node("Identity", ["b"], ["y2"]),
    ]
    model = model_of(steps, [floats("x", 4), floats("z", 4)], [ints("y", 1, None), ints("y2", 1, None)])
    model.graph.value_info.append(ints("b", 1, "unk__0"))
    a, b = said(opened(model).boundary_types, "a", "b")
    assert a == "int64[1,?]"
    assert b in {"int64[1,unk__0]", "int64[1,?]"}


def test_the_symbols_of_an_earlier_inference_mean_nothing_in_a_merged_model_either(tmp_path: Path) -> None:
    models = []
    for x, y, where in (("x", "y", "w"), ("y", "z", "where")):
        steps = [helper.make_node("Relu", [x], [y]), helper.make_node("NonZero", [x], [where])]
        models.append(model_of(steps, [floats(x, 4)], [floats(y, 4), ints(where, 1, "unk__0")]))
    both = graphcut.merge_models(models, tmp_path / "both.onnx")
    assert [dim.dim_param for dim in both.proto.graph.output[-1].type.tensor_type.shape.dim] == ["", "graph/unk__0"]
    assert said(both.tensors, "w", "where") == ["int64[1,?]", "int64[1,?]"]


def test_a_scalar_is_known_to_be_one_and_an_unknown_rank_is_not_taken_for_one(opened: Draw) -> None:
    steps = [
        helper.make_node("ReduceSum", ["x"], ["scalar"], keepdims=0),
        helper.make_node("Reshape", ["x", "shape"], ["unknown"]),
        helper.make_node("Add", ["scalar", "unknown"], ["y"]),
    ]
    model = model_of(steps, [floats("x", "n", 4), ints("shape", "rank")], [helper.make_empty_tensor_value_info("y")])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert said(opened(model).tensors, "scalar", "unknown", "y") == ["float32[]", "float32[…]", "float32[…]"]


def test_types_are_inferred_through_functions_and_subgraphs(opened: Draw) -> None:
    twice = helper.make_function(
        "other", "Twice", ["p"], ["q"], [helper.make_node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 17)]
    )
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["z"])], "body", [], [floats("z", None, None)])
    steps = [
        helper.make_node("Twice", ["x"], ["a"], domain="other"),
        helper.make_node("If", ["c"], ["b"], then_branch=body, else_branch=body),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    model = through(*steps)
    model.functions.append(twice)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    assert said(opened(model).tensors, "a", "b", "c") == ["float32[n,4]", "float32[n,4]", "bool[]"]


def test_sequences_and_optionals_are_known_too(opened: Draw) -> None:
    steps = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("SequenceAt", ["s", "i"], ["e"]),
        helper.make_node("OptionalGetElement", ["o"], ["g"]),
        helper.make_node("Add", ["e", "g"], ["y"]),
    ]
    model = model_of(steps, [floats("x", "n", 4)], [floats("y", "n", 4)], [numpy_helper.from_array(np.array(0), "i")])
    found = opened(model).tensors
    assert [found[name].dtype for name in "sog"] == ["sequence(float32)", "optional(float32)", "float32"]
    assert found["s"].shape is None


def test_the_type_of_an_output_without_type_is_inferred(opened: Draw) -> None:
    """As ONNX Runtime has it, which takes such a model; the checker of onnx does not."""
    model = relu_then_neg()
    model.graph.initializer.append(vector("w", 1, 2, 3))
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=vector("", 1, 2)))
    model.graph.node.append(helper.make_node("Abs", ["x"], ["f"]))
    model.graph.output.extend(ValueInfoProto(name=name) for name in "wkf")
    assert said(opened(model).tensors, "w", "k", "f") == ["int64[3]", "int64[2]", "float32[n,4]"]


def test_an_unknown_element_type_is_refused_or_undefined(opened: Draw) -> None:
    model = relu_then_neg()
    model.graph.input[0].type.tensor_type.elem_type = 99
    with contextlib.suppress(ModelError):
        assert opened(model).tensors["x"].dtype == "undefined"


def test_inference_does_not_change_the_model(opened: Draw) -> None:
    steps = [helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Neg", ["a"], ["y"])]
    model = opened(through(*steps, noted=floats("a", None, 5)))
    before = model.proto.SerializeToString(deterministic=True)
    assert model.tensors.keys() == model.boundary_types.keys() == {"x", "a", "y"}
    assert model.proto.SerializeToString(deterministic=True) == before


# What only ONNX Runtime knows


def test_onnx_runtime_knows_its_own_operators_and_keeps_symbols(opened: Draw) -> None:
    steps = [helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Neg", ["a"], ["y"])]
    assert said(opened(through(*steps)).tensors, "a") == ["float32[n,4]"]


def test_onnx_runtime_is_not_used_if_all_ranks_are_known(opened: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **__: pytest.fail("ONNX Runtime was asked"))
    assert said(opened(relu_then_neg()).tensors, "a") == ["float32[n,4]"]


def test_weights_stay_on_disk_when_onnx_runtime_is_asked(tmp_path: Path) -> None:
    """Otherwise it would read the 64 MiB, and keep them in the order in which it multiplies."""
    length = 4096 * 4096 * 4
    large = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4096] * 2, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(length))):
        large.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(length)
    steps = [
        helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    model = model_of(steps, [floats("x", "n", 4096)], [floats("y", "n", 4096)], [large])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    before, peak = resident_bytes(), PeakMemory()
    if peak.is_since_start:
        pytest.skip("the peak of a process can't be reset here")
    assert said(load(tmp_path / "model.onnx").tensors, "a") == ["float32[n,4096]"]
    assert peak.bytes - before < length / 2


def test_symbols_that_onnx_runtime_generates_are_unknown_dimensions(opened: Draw) -> None:
    steps = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Gelu", ["f"], ["a"], domain="com.microsoft"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    assert said(opened(through(*steps)).tensors, "a") == ["float32[2,?]"]


def test_a_scalar_of_onnx_runtime_is_told_from_an_unknown_rank(opened: Draw) -> None:
    """Its Python interface says [] for both."""
    steps = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Gelu", ["s"], ["scalar"], domain="com.microsoft"),
        helper.make_node("Reshape", ["x", "shape"], ["u"]),
        helper.make_node("Gelu", ["u"], ["unknown"], domain="com.microsoft"),
        helper.make_node("Add", ["scalar", "unknown"], ["y"]),
    ]
    model = through(*steps)
    model.graph.input.append(ints("shape", "rank"))
    found = opened(model).tensors
    assert said(found, "scalar", "unknown") == ["float32[]", "float32[…]"]


def test_onnx_runtime_finds_external_weights(opened: Draw) -> None:
    """Inline they lie in the model itself, and the skeleton that it is asked about has none of them."""
    weight = numpy_helper.from_array(np.ones((4, 600), np.float32), "w")
    steps = [
        helper.make_node("FusedMatMul", ["x", "w"], ["a"], domain="com.microsoft"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    model = through(*steps)
    model.graph.initializer.append(weight)
    assert said(opened(model).tensors, "a") == ["float32[n,600]"]


def test_an_unknown_type_is_undefined(opened: Draw) -> None:
    model = opened(custom_then_neg())
    assert model.tensors["a"] == Tensor(name="a", dtype="undefined", shape=None)
    assert said(model.tensors, "x", "y") == ["float32[n,4]", "float32[?,?]"]
    assert model.tensor_bytes["a"] == (0, False)


def test_a_cut_at_a_tensor_of_unknown_type_is_refused(opened: Draw, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        cut(opened(custom_then_neg()), "a", tmp_path / "parts")
    assert str(caught.value) == ("the type of 'a' is unknown to the model, to ONNX shape inference and to ONNX Runtime")
    assert caught.value.hint == "cut somewhere else, or add a value_info for it to the model"
    assert not (tmp_path / "parts").exists()


def test_with_a_value_info_the_cut_is_accepted(opened: Draw, tmp_path: Path) -> None:
    parts = cut(opened(custom_then_neg(floats("a", "n", 4))), "a", tmp_path / "parts")
    assert str(parts.tensors["a"]) == "float32[n,4]"


def test_onnx_runtime_still_reads_a_large_shape_operand(opened: Draw, tmp_path: Path) -> None:
    """It refuses a Split whose sizes lie in another file: "Cannot parse data from external tensors"."""
    sizes = vector("sizes", *[1] * 130)
    slices = [f"s{i}" for i in range(130)]
    steps = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Split", ["a", "sizes"], slices, axis=1),
        helper.make_node("Add", ["s0", "s129"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    model = opened(model_of(steps, [floats("x", "n", 130)], [floats("y", "n", 1)], [sizes]))
    assert said(model.tensors, "s0", "b") == ["float32[n,1]", "float32[n,1]"]
    x = np.arange(260, dtype=np.float32).reshape(2, 130)
    for place in ("a", "b"):
        parts = cut(model, place, tmp_path / place)
        assert graphcut.run(parts, {"x": x})["y"].tolist() == [[-129.0], [-389.0]]


# Symbols that inference lost


def rows_of_reshaped() -> ModelProto:
    """x[n,s,4] → a[n,s*4], the shape computed as exporters do it."""
    steps = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["rows"]),
        helper.make_node("Mul", ["rows", "one"], ["same"]),
        helper.make_node("Concat", ["same", "rest"], ["goal"], axis=0),
        helper.make_node("Reshape", ["x", "goal"], ["a"]),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    weights = [vector("zero", 0), vector("one", 1), vector("rest", -1)]
    return model_of(steps, [floats("x", "n", "s", 4)], [floats("y", None, None)], weights)


def test_an_unknown_dimension_gets_the_symbol_it_is_equal_to(opened: Draw) -> None:
    model = opened(rows_of_reshaped())
    assert said(model.tensors, "a") == ["float32[?,?]"]
    assert said(model.boundary_types, "a") == ["float32[n,?]"]


def test_a_known_dimension_is_not_renamed(opened: Draw) -> None:
    model = rows_of_reshaped()
    model.graph.value_info.append(floats("a", "rows", None))
    assert said(opened(model).boundary_types, "a") == ["float32[rows,?]"]


def test_parts_declare_the_numbers_of_a_model_without_symbols(opened: Draw) -> None:
    """Behind an operator of which onnx infers nothing: else ONNX Runtime would not know them in the next part."""
    weights = [
        numpy_helper.from_array(np.ones((16, 1, 16), np.uint8), "w"),
        numpy_helper.from_array(np.ones(16, np.float32), "s"),
        numpy_helper.from_array(np.array([0, 0, 4, 4]), "shape"),
    ]
    nodes = [
        helper.make_node("MatMulNBits", "xws", "a", domain="com.microsoft", K=32, N=16, bits=4, block_size=32),
        helper.make_node("Add", ["s", "a"], ["added"]),
        helper.make_node("Reshape", ["added", "shape"], ["b"]),
        helper.make_node("Sin", ["b"], ["y"]),
    ]
    made = model_of(nodes, [floats("x", 1, 8, 32)], [floats("y", None, None, None, None)], weights)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert said(opened(made).boundary_types, "a", "b") == ["float32[1,8,16]", "float32[1,8,4,4]"]


def cached(*pasts: str) -> ModelProto:
    """A decoder's cache: what is past and what is new, joined; the mask is as long as both."""
    steps = [helper.make_node("Concat", [*(f"k{i}" for i in range(len(pasts))), "x"], ["all"], axis=1)]
    steps += [helper.make_node("Identity", ["all"], ["y"]), helper.make_node("Identity", ["mask"], ["m"])]
    old = [floats(f"k{i}", "batch", past, 4) for i, past in enumerate(pasts)]
    inputs = [*old, floats("x", "batch", "sequence_length", 4), floats("mask", "batch", "total_sequence_length")]
    return model_of(steps, inputs, [floats("y", None, None, None), floats("m", None, None)])


def test_past_and_new_tokens_add_up_to_the_total(opened: Draw) -> None:
    boundary = opened(cached("past_sequence_length")).boundary_types
    assert said(boundary, "all", "m") == [
        "float32[batch,total_sequence_length,4]",
        "float32[batch,total_sequence_length]",
    ]


def test_with_two_past_symbols_no_total_is_guessed(opened: Draw) -> None:
    assert said(opened(cached("past_a", "past_b")).boundary_types, "all") == ["float32[batch,?,4]"]


@each("kernel", [(1, 3), (3, 3), (3, 1), (3, 5), (7, 9), (13, 29)])
def test_a_dimension_near_a_symbol_is_not_named_after_it(opened: Draw, kernel: tuple[int, int]) -> None:
    """A convolution without padding makes a picture smaller; its width is not its height for that."""
    weight = numpy_helper.from_array(np.ones((1, 1, *kernel), np.float32), "w")
    steps = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    expected: list[Dim] = [size if side == 1 else None for side, size in zip(kernel, ("height", "width"), strict=True)]
    assert opened(
        model_of(steps, [floats("x", 1, 1, "height", "width")], [floats("y", 1, 1, None, None)], [weight])
    ).boundary_types["a"].shape == (1, 1, *expected)


def test_dims_give_every_size_that_depends_on_them(opened: Draw) -> None:
    model = opened(cached("past_sequence_length"))
    dims = {"batch": 2, "past_sequence_length": 5, "sequence_length": 3}
    bound = infer_bound(model.proto, dims, {"all", "m"})
    assert said(bound, "all", "m") == ["float32[2,8,4]", "float32[2,?]"]
    assert said(model.tensors, "all") == ["float32[batch,?,4]"]


def test_dims_give_the_bytes(opened: Draw, tmp_path: Path) -> None:
    opened(cached("past_sequence_length"))
    dims = {"batch": 2, "past_sequence_length": 5, "sequence_length": 3}
    assert load(tmp_path / "model.onnx", dims=dims).tensor_bytes == {
        "k0": (2 * 5 * 4 * 4, True),
        "x": (2 * 3 * 4 * 4, True),
        "mask": (2 * 4, False),  # at least one token
        "all": (2 * 8 * 4 * 4, True),
        "y": (2 * 8 * 4 * 4, True),
        "m": (2 * 4, False),
    }


# Sizes that follow from values: what exporters write, once symbols are numbers


def dims_of(*names: str) -> list[NodeProto]:
    """The sizes of x[n,s,4] as the vector `shape`, and each of those named as a scalar of that name."""
    axes = {"n": "zero", "s": "one"}
    return [
        helper.make_node("Shape", ["x"], ["shape"]),
        *(helper.make_node("Gather", ["shape", axes[name]], [name]) for name in names),
    ]


def arithmetic(*steps: NodeProto, inputs: tuple[ValueInfoProto, ...] = (), opset: int = 17) -> ModelProto:
    """A model of x[n,s,4] that gives out a, which has whatever shape."""
    scalars = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("zero", 0), ("one", 1))]
    weights = [*scalars, vector("first", 0), vector("second", 1), vector("three", 3), vector("rest", -1)]
    weights.append(numpy_helper.from_array(np.array([1, 1, 2], np.float32), "scales"))
    end = ValueInfoProto(name="a")
    return model_of(steps, [floats("x", "n", "s", 4), *inputs], [end], weights, opset=opset)


def node(op: str, reads: str, writes: str, **attributes: Any) -> NodeProto:  # noqa: ANN401 - those of any operator
    return helper.make_node(op, ["" if name == "-" else name for name in reads.split()], writes.split(), **attributes)


def minus_ones() -> NodeProto:
    return node("ConstantOfShape", "three", "ones", value=vector("", -1))


IDIOMS: dict[str, tuple[list[NodeProto], str]] = {
    "positions": ([*dims_of("s"), node("Range", "zero s one", "a")], "s"),
    "a causal mask": (
        [
            *dims_of("s"),
            node("Range", "zero s one", "r"),
            node("Unsqueeze", "r second", "column"),
            node("LessOrEqual", "r column", "a"),
        ],
        "s s",
    ),
    "torch's expand, where -1 keeps a size": (
        [
            *dims_of("n", "s"),
            node("Unsqueeze", "n first", "n1"),
            node("Unsqueeze", "s first", "s1"),
            node("Concat", "n1 rest s1 rest", "goal", axis=0),
            node("Shape", "goal", "length"),
            node("ConstantOfShape", "length", "ones", value=vector("", 1)),
            node("Mul", "ones rest", "minus"),
            node("Equal", "goal minus", "keeps"),
            node("Where", "keeps ones goal", "sizes"),
            node("Unsqueeze", "x second", "x4"),
            node("Expand", "x4 sizes", "a"),
        ],
        # x4[n,1,s,4] spread over [n,1,s,1]
        "n 1 s 4",
    ),
    "half of it": ([*dims_of("s"), node("Div", "s two", "h"), node("Range", "zero h one", "a")], "s//2"),
    "as much as fits": (
        [*dims_of("s"), node("Min", "s two", "least"), node("Range", "zero least one", "a")],
        "min(s,2)",
    ),
    "sizes through floats": (
        [
            *dims_of(),
            node("Cast", "shape", "sizes", to=TensorProto.FLOAT),
            node("Mul", "sizes scales", "scaled"),
            node("Floor", "scaled", "whole"),
            node("Resize", "x - - goal", "a"),
        ],
        "n s 8",
    ),
    "what is counted in a constant": (
        [
            minus_ones(),
            node("NonZero", "ones", "where"),
            *dims_of("s"),
            node("Shape", "where", "found"),
            node("Gather", "found one", "three_of_them"),
            node("Mul", "three_of_them s", "size"),
            node("Range", "zero size one", "a"),
        ],
        "3*s",
    ),
    "how much there is": ([node("Size", "x", "size"), node("Range", "zero size one", "a")], "4*n*s"),
    "repeats": (
        [
            *dims_of("s"),
            node("Unsqueeze", "s first", "s1"),
            node("Sub", "s1 second", "less"),
            node("Max", "less second", "times"),
            node("Concat", "second times second", "repeats", axis=0),
            node("Tile", "x repeats", "a"),
        ],
        "n s*max(s-1,1) 4",
    ),
}
IDIOMS["sizes through floats"][0].insert(4, node("Cast", "whole", "goal", to=TensorProto.INT64))


def sizes_when_run(model: ModelProto, feeds: Mapping[str, object], name: str) -> tuple[int, ...]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Optimised, whole numbers are wrong: DivMulFusion makes n / n = 1 of (1 / n) * n, which is 0 for n = 2.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return tuple(session.run([name], feeds)[0].shape)


@each("idiom", IDIOMS)
@each(("n", "s"), [(2, 5), (1, 1), (3, 2)])
def test_sizes_are_computed_through_values_that_depend_on_sizes(idiom: str, n: int, s: int) -> None:
    steps, formulas = IDIOMS[idiom]
    model = arithmetic(*steps)
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.int64), "two"))
    expected = tuple(eval(formula, {"n": n, "s": s}) for formula in formulas.split())  # noqa: S307 - ours, above
    assert infer_bound(model, {"n": n, "s": s}, {"a"})["a"].shape == expected
    assert sizes_when_run(model, {"x": np.zeros((n, s, 4), np.float32)}, "a") == expected


def test_a_size_that_depends_on_a_symbol_without_number_is_unknown() -> None:
    model = arithmetic(*IDIOMS["how much there is"][0])
    assert said(infer_bound(model, {"n": 2}, {"a"}), "a") == ["int64[?]"]


def test_a_size_that_depends_on_input_values_is_unknown() -> None:
    model = arithmetic(node("Range", "zero many one", "a"), inputs=(ints("many"),))
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == ["int64[?]"]


def many_by_default() -> ModelProto:
    """An input of one number, which is 7 where the user gives none, and as many numbers."""
    model = arithmetic(node("Range", "zero many one", "r"), node("Identity", "r", "a"), inputs=(ints("many"),))
    model.graph.initializer.append(numpy_helper.from_array(np.array(7, np.int64), "many"))
    return model


def test_a_size_that_depends_on_a_default_is_unknown() -> None:
    model = many_by_default()
    assert said(infer_bound(model, {}, {"a"}), "a") == ["int64[?]"]
    model.ir_version = 3  # then every weight is listed among the inputs, and none may be fed
    others = [weight for weight in model.graph.initializer if weight.name != "many"]
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in others)
    assert said(infer_bound(model, {}, {"a"}), "a") == ["int64[7]"]


def test_parts_accept_an_overridden_default_as_the_model_does(opened: Draw, tmp_path: Path) -> None:
    model = many_by_default()
    model.graph.output[0].CopyFrom(ints("a", None))
    parts = cut(opened(model), "r", tmp_path / "parts")
    assert str(parts.tensors["r"]) == "int64[?]"
    assert graphcut.run(parts, {"x": np.zeros((1, 1, 4), np.float32), "many": np.array(3)})["a"].tolist() == [0, 1, 2]


def test_a_random_value_is_not_evaluated() -> None:
    steps = [
        node("RandomUniform", "", "drawn", shape=[1], low=1.0, high=9.0),
        node("Cast", "drawn", "goal", to=TensorProto.INT64),
        node("ConstantOfShape", "goal", "a"),
    ]
    assert said(infer_bound(arithmetic(*steps), {}, {"a"}), "a") == ["float32[?]"]


def test_arithmetic_of_sizes_takes_no_reference_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 12 MiB, and most models compute nothing else of sizes."""
    monkeypatch.setitem(sys.modules, "onnx.reference", None)  # to import it fails
    model = arithmetic(
        *dims_of("s"),
        node("Mul", "s s", "size"),
        node("Range", "zero size one", "all"),
        node("Gather", "all s", "same"),
        node("Unsqueeze", "same first", "shape_of_a"),
        node("ConstantOfShape", "shape_of_a", "a"),
    )
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == ["float32[3]"]


def test_axes_that_are_attributes_are_evaluated() -> None:
    """As exports before opset 13 have them."""
    steps = [*dims_of("s"), node("Unsqueeze", "s", "shape_of_a", axes=[0]), node("ConstantOfShape", "shape_of_a", "a")]
    assert said(infer_bound(arithmetic(*steps, opset=11), {"n": 2, "s": 3}, {"a"}), "a") == ["float32[3]"]


@each("opset, sizes", [(17, "6"), (13, "?")])
def test_functions_of_the_operators_of_the_model_are_evaluated(opset: int, sizes: str) -> None:
    """One that imports another version of them can't be put into the graph."""
    body, opsets = [node("Add", "p p", "q")], [helper.make_opsetid("", opset)]
    call = node("Twice", "s", "size", domain="own")
    model = arithmetic(*dims_of("s"), call, node("Range", "zero size one", "a"))
    model.functions.append(helper.make_function("own", "Twice", ["p"], ["q"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == [f"int64[{sizes}]"]
    assert sizes_when_run(model, {"x": np.zeros((2, 3, 4), np.float32)}, "a") == (6,)


def graph(*steps: NodeProto, reads: tuple[ValueInfoProto, ...] = (), writes: str = "t") -> GraphProto:
    return helper.make_graph(steps, "inner", reads, [ValueInfoProto(name=name) for name in writes.split()])


def loop(limit: str, go_on: NodeProto, collected: NodeProto) -> list[NodeProto]:
    """`a` is what a loop over `x` collects; `go_on` writes whether there is another step, from `go`."""
    reads = (ints("i"), helper.make_tensor_value_info("go", TensorProto.BOOL, []), floats("h", None, None, None))
    body = graph(go_on, node("Relu", "h", "h2"), collected, reads=reads, writes="more h2 c")
    return [*dims_of("s"), node("Loop", f"{limit} - x", "last a", body=body)]


INNER: dict[str, tuple[list[NodeProto], str]] = {
    "the branch that a size decides": (
        [
            *dims_of("s"),
            node("Equal", "s one", "yes"),
            node(
                "If",
                "yes",
                "size",
                then_branch=graph(node("Identity", "s", "t")),
                else_branch=graph(node("Add", "s s", "t")),
            ),
            node("Range", "zero size one", "a"),
        ],
        "s if s == 1 else 2*s",
    ),
    "what both branches have": (
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Cast", "total", "yes", to=TensorProto.BOOL),
            node("If", "yes", "a", then_branch=graph(node("Neg", "x", "t")), else_branch=graph(node("Relu", "x", "t"))),
        ],
        "n, s, 4",
    ),
    "what every step of a loop collects": (
        loop("s", node("Identity", "go", "more"), node("Neg", "h2", "c")),
        "s, n, s, 4",
    ),
}


@each("idiom", INNER)
@each(("n", "s"), [(2, 5), (1, 1)])
def test_sizes_are_computed_in_subgraphs(idiom: str, n: int, s: int) -> None:
    steps, formula = INNER[idiom]
    model, expected = arithmetic(*steps), np.atleast_1d(eval(formula, {"n": n, "s": s}))  # noqa: S307 - ours, above
    assert infer_bound(model, {"n": n, "s": s}, {"a"})["a"].shape == tuple(expected)
    assert sizes_when_run(model, {"x": np.zeros((n, s, 4), np.float32)}, "a") == tuple(expected)


def test_what_a_loop_collects_until_a_value_stops_it_has_no_size_along_its_steps() -> None:
    stops = node("Less", "h_sum h_sum", "more")
    steps = loop("s", stops, node("Neg", "h2", "c"))
    steps[-1].attribute[0].g.node.insert(0, node("ReduceSum", "h", "h_sum", keepdims=0))
    assert said(infer_bound(arithmetic(*steps), {"n": 2, "s": 3}, {"a", "last"}), "a", "last") == [
        "float32[?,2,3,4]",
        "float32[2,3,4]",
    ]


@pytest.mark.parametrize(("op", "steps"), [("Equal", "3"), ("Less", "?")])
def test_what_a_loop_collects_has_a_size_if_it_is_known_to_begin(op: str, steps: str) -> None:
    *sizes, repeated = loop("s", node("Identity", "go", "more"), node("Neg", "h2", "c"))
    repeated.input[1] = "begins"
    model = arithmetic(*sizes, node(op, "s s", "begins"), repeated)
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == [f"float32[{steps},2,3,4]"]


def test_what_a_loop_changes_has_no_size() -> None:
    """The sizes before the loop are not those after it."""
    steps = loop("s", node("Identity", "go", "more"), node("Neg", "h2", "c"))
    steps[-1].attribute[0].g.node[1].CopyFrom(node("Concat", "h h", "h2", axis=1))
    found = infer_bound(arithmetic(*steps), {"n": 2, "s": 3}, {"a", "last"})
    assert said(found, "a", "last") == ["float32[3,2,?,4]", "float32[2,?,4]"]


def test_a_size_that_a_loop_changes_only_in_its_sixth_step_is_not_that_of_before() -> None:
    """Each step hands its sizes on to the next of six states. Four visits of the body do not see the last change."""
    states = [helper.make_tensor_value_info(f"h{i}", TensorProto.FLOAT, None) for i in range(6)]
    steps = [node("Concat", "h0 h0", "g0", axis=1), node("Identity", "go", "more")]
    steps += [node("Identity", f"h{i}", f"g{i + 1}") for i in range(5)]
    reads = ints("i"), helper.make_tensor_value_info("go", TensorProto.BOOL, []), *states
    body = graph(*steps, reads=reads, writes=" ".join(["more", *(f"g{i}" for i in range(6))]))
    ends = " ".join(f"e{i}" for i in range(5))
    model = arithmetic(*dims_of("s"), node("Loop", f"s - {'x ' * 6}", f"{ends} a", body=body))
    assert infer_bound(model, {"n": 2, "s": 6}, {"a"})["a"].shape is None
    assert sizes_when_run(model, {"x": np.zeros((2, 6, 4), np.float32)}, "a") == (2, 12, 4)


def test_a_branch_that_a_value_decides_has_what_both_have() -> None:
    branches = {"then_branch": graph(node("Neg", "x", "t")), "else_branch": graph(node("Concat", "x x", "t", axis=1))}
    steps = [node("ReduceSum", "x", "sum", keepdims=0), node("Cast", "sum", "yes", to=TensorProto.BOOL)]
    model = arithmetic(*steps, node("If", "yes", "a", **branches))
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == ["float32[2,?,4]"]


@pytest.mark.parametrize(("levels", "sizes"), [(4, "3"), (5, "?")])
def test_sizes_are_computed_in_subgraphs_that_are_in_up_to_three_others(levels: int, sizes: str) -> None:
    """A loop inside a loop is visited as often as the outer one, so there must be an end."""
    inner = node("Range", "zero s one", "t0")
    for level in range(levels):
        written = "a" if level + 1 == levels else f"t{level + 1}"
        body = graph(inner, writes=f"t{level}")
        inner = node("If", "yes", written, then_branch=body, else_branch=body)
    model = arithmetic(*dims_of("s"), node("Equal", "s s", "yes"), inner)
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == [f"int64[{sizes}]"]


def test_no_value_grows_with_the_numbers_of_the_symbols() -> None:
    """A mask of 10^18 elements has a size, and nobody makes it to find out."""
    steps = [
        *IDIOMS["a causal mask"][0][:-1],
        node("LessOrEqual", "r column", "mask"),
        node("NonZero", "mask", "where"),
        node("Shape", "mask", "sizes"),
        node("Expand", "one sizes", "a"),
    ]
    found = infer_bound(arithmetic(*steps), {"n": 10**9, "s": 10**9}, {"mask", "where", "a"})
    assert said(found, "mask", "where", "a") == [
        "bool[1000000000,1000000000]",
        "int64[2,?]",
        "int64[1000000000,1000000000]",
    ]


def test_weights_in_files_are_not_read() -> None:
    steps = [node("Gather", "table zero", "many"), node("Add", "many one", "more"), node("Range", "zero more one", "a")]
    model = arithmetic(*steps)
    weight = model.graph.initializer.add(name="table", data_type=TensorProto.INT64, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="nowhere.bin")
    assert said(infer_bound(model, {}, {"a"}), "a") == ["int64[?]"]


def masked(layers: int) -> ModelProto:
    """A mask as long as x is, added to x in each of `layers`: with one token its open size spreads to all of them."""
    steps = [*IDIOMS["a causal mask"][0][:-1], node("LessOrEqual", "r column", "mask")]
    steps += [node("Unsqueeze", "mask first", "m3"), node("Cast", "m3", "m", to=TensorProto.FLOAT)]
    steps += [node("Transpose", "x", "h0", perm=[0, 2, 1])]
    steps += [node("Add", f"h{i} m", f"h{i + 1}") for i in range(layers)]
    return arithmetic(*steps, node("Identity", f"h{layers}", "a"))


@pytest.mark.parametrize(("few", "first_nodes"), [(1, 5000), (3, 5000), (500, 5000), (500, 2), (500, 9), (1, 9)])
def test_all_sizes_that_depend_on_one_unknown_size_are_found(
    few: int, first_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_sizes, "BATCH", few)
    monkeypatch.setattr(bound_sizes, "FEW_NODES", first_nodes)
    model = masked(12)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 1
    model.graph.node.extend(node("Range", "zero s one", f"p{i}") for i in range(3))  # which do not depend on the mask
    names = {name for step in model.graph.node for name in step.output}
    found = infer_bound(model, {"n": 2, "s": 1}, names)
    assert {str(tensor) for name, tensor in found.items() if name.startswith("h")} == {"float32[2,1,1]"}
    assert not [str(tensor) for tensor in found.values() if tensor.shape is None or None in tensor.shape]


def test_stale_value_info_is_not_used_for_an_unknown_size() -> None:
    model = arithmetic(*IDIOMS["positions"][0])
    model.graph.value_info.append(ints("s", 9))
    model.graph.output[0].CopyFrom(ints("a", 9))
    assert said(infer_bound(model, {"n": 2, "s": 3}, {"a"}), "a") == ["int64[3]"]


@pytest.mark.parametrize("others", [0, 40])
@each(
    ("size", "named"),
    [
        ([], "s"),
        ([node("Add", "s n", "size")], "?"),
        ([node("Mul", "s n", "size")], "?"),
        ([node("Sub", "s n", "less"), node("Abs", "less", "size")], "?"),
        ([node("Add", "s one", "size")], "?"),
        ([node("Add", "s s", "twice"), node("Sub", "twice s", "size")], "s"),
        ([node("Mul", "s n", "area"), node("Div", "area n", "size")], "s"),
        ([node("Min", "s hundred", "size")], "?"),
        ([node("Div", "s two", "half"), node("Mul", "half two", "size")], "?"),
    ],
)
def test_a_computed_size_is_named_only_if_it_is_equal_to_a_symbol(
    others: int, opened: Draw, size: list[NodeProto], named: str
) -> None:
    """Whatever other symbols there are."""
    steps = [*dims_of("n", "s"), *size, node("Range", f"zero {'size' if size else 's'} one", "r")]
    model = arithmetic(*steps, node("Cast", "r", "a", to=TensorProto.FLOAT))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.int64), "two"))
    for i in range(others):
        model.graph.node.append(node("Neg", f"other{i}", f"negated{i}"))
        model.graph.input.append(floats(f"other{i}", f"o{i}"))
        model.graph.output.append(floats(f"negated{i}", f"o{i}"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(100, np.int64), "hundred"))
    model.graph.output[0].CopyFrom(floats("a", None))
    assert said(opened(model).boundary_types, "r") == [f"int64[{named}]"]


def decoder_of_anonymous_caches(layers: int) -> ModelProto:
    """As torch.onnx.export writes it if dynamic_axes names inputs alone: sizes of outputs have their own symbols."""
    steps, inputs, outputs, hidden = list[NodeProto](), [floats("x0", "batch", "seq", 4)], list[ValueInfoProto](), "x0"
    for i in range(layers):
        steps.append(node("Concat", f"past.{i} {hidden}", f"present.{i}", axis=1))
        steps.append(node("Transpose", f"present.{i}", f"keys.{i}", perm=[0, 2, 1]))
        steps.append(node("MatMul", f"{hidden} keys.{i}", f"scores.{i}"))
        steps.append(node("MatMul", f"scores.{i} present.{i}", f"x{i + 1}"))
        inputs.append(floats(f"past.{i}", "batch", "past", 4))
        outputs.append(floats(f"present.{i}", f"Concatpresent.{i}_dim_0", f"Concatpresent.{i}_dim_1", 4))
        hidden = f"x{i + 1}"
    return model_of(steps, inputs, [*outputs, floats(hidden, "batch", "seq", 4)])


def test_a_thousand_symbols_are_bound_within_a_second(opened: Draw) -> None:
    """Primes that grow with each symbol had 240 digits, and were never found."""
    model, start = opened(decoder_of_anonymous_caches(500)), time.process_time()
    types = model.boundary_types
    assert time.process_time() - start < 1
    assert len({dim for tensor in types.values() for dim in tensor.shape or () if isinstance(dim, str)}) == 1003
    assert said(types, *(f"scores.{i}" for i in range(500))) == [
        f"float32[batch,seq,Concatpresent.{i}_dim_1]" for i in range(500)
    ]


def test_numbers_for_many_symbols_are_different_primes() -> None:
    for seed in (1, 2):
        numbers = bound_sizes.random_primes(100, seed)
        assert len({*numbers}) == 100
        assert all(number % divisor for number in numbers for divisor in range(2, 1449))  # 1449**2 > 2**21
        assert 10_007 <= min(numbers) < max(numbers) < 1 << 21
    assert bound_sizes.random_primes(100, 1) != bound_sizes.random_primes(100, 2)
    assert 1451**2 not in bound_sizes.random_primes(32_897, 5)  # of numbers up to 1451**2 + 7


NUMBERS = bound_sizes.distant_primes(10_007, 12)
NEAR = range(-64, 65)


def test_no_sum_or_difference_of_the_primes_is_near_another_one() -> None:
    for numbers in (*itertools.combinations_with_replacement(NUMBERS, 2), *itertools.combinations(NUMBERS, 3)):
        signs = itertools.product((1, -1), repeat=len(numbers))
        made = {sum(sign * number for sign, number in zip(some, numbers, strict=True)) for some in signs}
        assert not {found + gap for found in made for gap in NEAR} & (set(NUMBERS) - set(numbers))


def test_no_small_multiple_or_fraction_of_a_prime_is_another_one() -> None:
    for number, times, part in itertools.product(NUMBERS, range(1, 65), range(1, 65)):
        rounded = {number * times // part, -(-number * times // part)}
        assert not rounded & (set(NUMBERS) - {number})


def test_the_size_of_a_decoders_mask_is_known_and_named(tmp_path: Path) -> None:
    graphcut.demos.write("llm", tmp_path / "llm.onnx", layers=2)
    mask = "/model/causal_mask/Where_output_0"
    for seq in (5, 1):
        dims = {"batch": 2, "past": 7, "seq": seq, "total": 7 + seq}
        model = load(tmp_path / "llm.onnx", dims=dims)
        assert model.tensor_bytes[mask] == (2 * 1 * seq * (7 + seq) * 4, True)
        assert all(is_exact for _, is_exact in model.tensor_bytes.values())
    assert str(model.tensors[mask]) == "float32[batch,1,?,?]"
    assert str(model.boundary_types[mask]) == "float32[batch,1,seq,total]"


SCALARS = ("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_shape_computations_give_the_sizes_of_onnx_runtime(data: st.DataObject) -> None:
    standing, steps = ["n", "s", "one", "two", "seven"], dims_of("n", "s")
    for i in range(data.draw(st.integers(1, 8))):
        op, left, right = (data.draw(st.sampled_from(some)) for some in (SCALARS, standing, standing))
        if op in {"Div", "Mod"}:  # division by zero is nobody's; the signs of both are those of C, and of Python
            steps += [node("Abs", right, f"p{i}"), node("Max", f"p{i} one", f"d{i}"), node("Abs", left, f"l{i}")]
            left, right = f"l{i}", f"d{i}"
        steps.append(node(op, f"{left} {right}", f"v{i}"))
        standing.append(f"v{i}")
    limit = [node("Abs", standing[-1], "positive"), node("Min", "positive many", "size")]
    model = arithmetic(*steps, *limit, node("Range", "zero size one", "a"))
    more = {"two": 2, "seven": 7, "many": 10_000}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), name) for name, v in more.items())
    n, s = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9))
    shape = sizes_when_run(model, {"x": np.zeros((n, s, 4), np.float32)}, "a")
    assert infer_bound(model, {"n": n, "s": s}, {"a"})["a"].shape == shape


# What has no size


def reshaped_by_a_range(domain: str) -> ModelProto:
    """`x` through an operator of `domain`, and then broadcast to as many rows as a Range over its columns has."""
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain=domain),
        helper.make_node("Shape", ["g"], ["columns"], start=1),
        helper.make_node("Squeeze", ["columns"], ["n"]),
        helper.make_node("Mul", ["n", "two"], ["twice"]),
        helper.make_node("Range", ["zero", "twice", "one"], ["r"]),
        helper.make_node("Unsqueeze", ["r", "ones"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Gelu", ["c"], ["h"], domain=domain),
        helper.make_node("Add", ["g", "h"], ["y"]),
    ]
    values = {"zero": 0, "one": 1, "two": 2, "ones": [1]}
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in values.items()]
    model = model_of(nodes, [floats("x", 1, 6)], [ValueInfoProto(name="y")], weights, opset=20)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_a_model_without_symbols_has_all_sizes_that_its_shapes_decide(domain: str, opened: Draw) -> None:
    """Nothing is to be bound, and operators of ONNX Runtime are asked of it."""
    sizes = opened(reshaped_by_a_range(domain)).sizes
    assert sizes.unknown == ()
    assert {name: sizes.bytes[name] for name in ("r", "h", "y")} == {"r": (96, True), "h": (48, True), "y": (288, True)}


def test_a_symbol_without_number_counts_as_one_in_computed_sizes_too(opened: Draw) -> None:
    proto = reshaped_by_a_range("")
    proto.graph.input[0].CopyFrom(floats("x", 1, "n"))
    model = opened(proto)
    assert model.sizes.unknown == ()
    assert (model.tensor_bytes["y"], model.with_dims({"n": 6}).tensor_bytes["y"]) == ((8, False), (288, True))


def test_a_size_that_depends_on_values_has_none_until_its_own_symbol_is_bound(opened: Draw) -> None:
    proto = model_of(
        [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Neg", ["i"], ["y"])],
        [floats("x", 4)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, "found"])],
    )
    assert opened(proto).sizes.unknown == ("i", "y")
    assert load(opened(proto), dims={"found": 3}).tensor_bytes["y"] == (24, True)


def test_dimensions_without_a_name_are_bound_by_tensor_and_axis(opened: Draw) -> None:
    """An input of any size, and positions that only a run knows: the sizes of both, and of what follows, are set."""
    steps = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Neg", ["i"], ["y"])]
    model = opened(model_of(steps, [floats("x", None, 4)], [ValueInfoProto(name="y")]))
    assert (model.symbols, model.sizes.unknown, model.tensor_bytes["x"]) == (("x.0",), ("i", "y"), (16, False))
    assert model.sizes.open_dims == ("i.1",)
    bound = load(model, dims={"x.0": 3, "i.1": 5})
    assert bound.sizes.unknown == ()
    assert bound.tensor_bytes == {"x": (48, True), "i": (80, True), "y": (80, True)}


@each("name", ["x.1", "x.2", "i.0", "other.0", "x."])
def test_a_dimension_that_has_a_number_or_is_not_there_is_refused(name: str, opened: Draw) -> None:
    steps = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Neg", ["i"], ["y"])]
    model = opened(model_of(steps, [floats("x", None, 4)], [ValueInfoProto(name="y")]))
    with pytest.raises(UsageError, match=f"has no symbolic dimension '{name}'") as refused:
        load(model, dims={name: 3})
    similar = "did you mean 'x.0'? " if name != "other.0" else ""
    assert refused.value.hint == f"{similar}its symbolic dimensions: x.0"


@pytest.mark.skipif(ORT_VERSION <= (1, 24), reason="ONNX Runtime 1.24 takes exponential time to open it")
def test_deeply_nested_loops_are_not_looked_into(opened: Draw) -> None:
    """Each level would multiply the time. What they write has no size, and the model is read all the same."""
    steps = [node("Identity", "h", "h2"), node("Identity", "go", "more")]
    for level in range(30):
        reads = (ints(f"i{level}"), helper.make_tensor_value_info("go", TensorProto.BOOL, []), floats("h", None))
        body = graph(*steps, reads=reads, writes="more h2")
        steps = [node("Loop", "many - h", "h2", body=body), node("Identity", "go", "more")]
    model = model_of(
        [node("Loop", "many - x", "y", body=body)],
        [floats("x", "n")],
        [ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.array(3), "many")],
    )
    assert load(opened(model), dims={"n": 2}).sizes.unknown == ("y",)
