"""What is known of types and shapes: from whom, and which of them is believed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, Model, ModelError, Tensor, load, shapes
from graphcut.shapes import describe, infer_bound, type_of, word_from_ort
from graphcut.wiring import BITS, Dim

from conftest import Draw, floats, model_of


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
def test_a_type_is_read_as_it_was_written(word: str, shape: tuple[Dim, ...] | None) -> None:
    tensor = Tensor(name="t", dtype=word, shape=None if "(" in word else shape)
    assert describe("t", TypeProto.FromString(type_of(tensor).SerializeToString())) == tensor


@pytest.mark.parametrize(
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
def test_each_kind_of_type_has_a_word(kind: TypeProto, tensor: Tensor) -> None:
    assert describe("t", kind) == tensor


def test_a_size_that_is_below_nothing_or_called_nothing_is_open() -> None:
    kind = floats("t", -1, 3).type
    kind.tensor_type.shape.dim.add().dim_param = ""
    assert describe("t", kind).shape == (None, 3, None)


def test_symbols_that_are_not_wanted_are_left_open() -> None:
    assert describe("t", floats("t", "n", "unk__0", 3).type, symbols={"n"}).shape == ("n", None, 3)


def test_a_scalar_is_declared_as_one_and_an_unknown_rank_is_not() -> None:
    scalar, unknown = (type_of(Tensor(name="t", dtype="float32", shape=shape)) for shape in ((), None))
    assert (scalar.tensor_type.HasField("shape"), unknown.tensor_type.HasField("shape")) == (True, False)


@pytest.mark.parametrize(
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
def test_the_words_of_onnx_runtime_are_translated(theirs: str, ours: str) -> None:
    assert word_from_ort(theirs) == ours
    assert describe("t", type_of(Tensor(name="t", dtype=ours, shape=None))).dtype == ours


def test_onnx_runtime_and_the_message_say_the_same_word() -> None:
    """One model that hands every kind of value through, asked both ways."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    kinds = [tensor, helper.make_sequence_type_proto(tensor), helper.make_optional_type_proto(tensor)]
    reads, writes = ([helper.make_value_info(f"{end}{i}", kind) for i, kind in enumerate(kinds)] for end in "xy")
    steps = [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(kinds))]
    session = ort.InferenceSession(
        model_of(steps, reads, writes).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    theirs = [word_from_ort(output.type) for output in session.get_outputs()]
    assert (
        theirs == [describe("y", kind).dtype for kind in kinds] == ["float32", "sequence(float32)", "optional(float32)"]
    )


# Declared and inferred


def test_inference_fills_what_is_not_declared(opened: Draw) -> None:
    assert said(opened(relu_then_neg()).tensors, "x", "a", "y") == ["float32[n,4]"] * 3


def test_what_is_declared_is_believed_where_inference_finds_nothing(opened: Draw) -> None:
    assert said(opened(custom_then_neg(floats("a", "m", 7))).tensors, "a") == ["float32[m,7]"]


def test_each_source_fills_the_gaps_of_the_other(opened: Draw) -> None:
    steps = [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)]
    model = through(*steps, noted=ints("a", None, "found"))
    assert said(opened(model).tensors, "a") == ["int64[2,found]"]


def test_sizes_that_contradict_each_other_are_left_open(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "n", 5))).tensors, "a") == ["float32[n,?]"]


def test_ranks_that_contradict_each_other_leave_the_rank_open(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "n", 4, 1))).tensors, "a") == ["float32[…]"]


def test_a_stale_number_does_not_freeze_a_symbol(opened: Draw) -> None:
    """The inputs were made dynamic after the fact, as many a recipe has it, and the value_info was forgotten."""
    (size, _) = opened(relu_then_neg(floats("a", 1, 4))).tensors["a"].shape or ()
    assert size in {"n", None}


def test_parts_take_what_the_whole_takes_whatever_a_stale_note_says(opened: Draw, tmp_path: Path) -> None:
    model = opened(relu_then_neg(floats("a", 1, 4)))
    x = np.ones((3, 4), np.float32)
    (whole,) = ort.InferenceSession(model.path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert graphcut.run(cut(model, "a", tmp_path / "parts"), {"x": x})["y"].tolist() == whole.tolist()


def test_a_stale_note_on_one_tensor_does_not_spread(opened: Draw) -> None:
    steps = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    assert said(opened(through(*steps, noted=floats("a", "n", 5))).tensors, "a", "b") == [
        "float32[n,?]",
        "float32[n,4]",
    ]


def test_the_name_that_the_author_gave_is_kept(opened: Draw) -> None:
    assert said(opened(relu_then_neg(floats("a", "rows", 4))).tensors, "a") == ["float32[rows,4]"]


def test_names_that_inference_made_up_are_left_out(opened: Draw) -> None:
    steps = [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)]
    model = opened(through(*steps))
    assert said(model.tensors, "a", "y") == said(model.border, "a", "y") == ["int64[2,?]", "float32[2,?]"]


def test_a_name_that_inference_made_up_in_an_earlier_life_is_not_taken_for_that_of_another_tensor(opened: Draw) -> None:
    """`unk__0` stands in the file for b; today's inference would call a's size so."""
    steps = [
        helper.make_node("NonZero", ["x"], ["a"]),
        helper.make_node("NonZero", ["z"], ["b"]),
        helper.make_node("Identity", ["a"], ["y"]),
        helper.make_node("Identity", ["b"], ["y2"]),
    ]
    model = model_of(steps, [floats("x", 4), floats("z", 4)], [ints("y", 1, None), ints("y2", 1, None)])
    model.graph.value_info.append(ints("b", 1, "unk__0"))
    a, b = said(opened(model).border, "a", "b")
    assert a == "int64[1,?]"
    assert b in {"int64[1,unk__0]", "int64[1,?]"}


def test_a_scalar_is_known_to_be_one_and_an_unknown_rank_is_not_taken_for_one(opened: Draw) -> None:
    steps = [
        helper.make_node("ReduceSum", ["x"], ["scalar"], keepdims=0),
        helper.make_node("Reshape", ["x", "shape"], ["unknown"]),
        helper.make_node("Add", ["scalar", "unknown"], ["y"]),
    ]
    model = model_of(steps, [floats("x", "n", 4), ints("shape", "rank")], [helper.make_empty_tensor_value_info("y")])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert said(opened(model).tensors, "scalar", "unknown", "y") == ["float32[]", "float32[…]", "float32[…]"]


def test_types_are_inferred_through_functions_and_bodies(opened: Draw) -> None:
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


def test_an_output_that_the_model_only_names_is_known_by_what_writes_it(opened: Draw) -> None:
    """As ONNX Runtime has it, which takes such a model; the checker of onnx does not."""
    model = relu_then_neg()
    model.graph.initializer.append(vector("w", 1, 2, 3))
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=vector("", 1, 2)))
    model.graph.node.append(helper.make_node("Abs", ["x"], ["f"]))
    model.graph.output.extend(ValueInfoProto(name=name) for name in "wkf")
    assert said(opened(model).tensors, "w", "k", "f") == ["int64[3]", "int64[2]", "float32[n,4]"]


def test_an_element_type_that_onnx_does_not_have_is_refused_or_unknown(opened: Draw) -> None:
    model = relu_then_neg()
    model.graph.input[0].type.tensor_type.elem_type = 99
    with contextlib.suppress(ModelError):
        assert opened(model).tensors["x"].dtype == "undefined"


def test_looking_changes_nothing(opened: Draw) -> None:
    steps = [helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Neg", ["a"], ["y"])]
    model = opened(through(*steps, noted=floats("a", None, 5)))
    before = model.proto.SerializeToString(deterministic=True)
    assert model.tensors.keys() == model.border.keys() == {"x", "a", "y"}
    assert model.proto.SerializeToString(deterministic=True) == before


# What only ONNX Runtime knows


def test_onnx_runtime_knows_its_own_operators_and_keeps_symbols(opened: Draw) -> None:
    steps = [helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Neg", ["a"], ["y"])]
    assert said(opened(through(*steps)).tensors, "a") == ["float32[n,4]"]


def test_onnx_runtime_is_not_asked_when_there_is_no_gap(opened: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(shapes, "_session_outputs", asked)
    assert said(opened(relu_then_neg()).tensors, "a") == ["float32[n,4]"]


def test_names_that_onnx_runtime_made_up_are_left_out(opened: Draw) -> None:
    steps = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Gelu", ["f"], ["a"], domain="com.microsoft"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    assert said(opened(through(*steps)).tensors, "a") == ["float32[2,?]"]


def test_onnx_runtime_s_scalar_is_told_from_its_unknown_rank(opened: Draw) -> None:
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


def test_onnx_runtime_finds_weights_where_they_lie(opened: Draw) -> None:
    """Inline they lie in the model itself, and the skeleton that it is asked about has none of them."""
    weight = numpy_helper.from_array(np.ones((4, 600), np.float32), "w")
    steps = [
        helper.make_node("FusedMatMul", ["x", "w"], ["a"], domain="com.microsoft"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    model = through(*steps)
    model.graph.initializer.append(weight)
    assert said(opened(model).tensors, "a") == ["float32[n,600]"]


def test_what_nobody_knows_is_undefined_and_what_follows_is_as_declared(opened: Draw) -> None:
    model = opened(custom_then_neg())
    assert model.tensors["a"] == Tensor(name="a", dtype="undefined", shape=None)
    assert said(model.tensors, "x", "y") == ["float32[n,4]", "float32[?,?]"]
    assert model.tensor_bytes["a"] == (0, False)


def test_a_cut_at_what_nobody_knows_is_refused_with_a_way_out(opened: Draw, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        cut(opened(custom_then_neg()), "a", tmp_path / "parts")
    assert str(caught.value) == (
        "the type of 'a' is not known: neither the model says it, nor ONNX shape inference, nor ONNX Runtime"
    )
    assert caught.value.hint == "cut somewhere else, or add a value_info for it to the model"
    assert not (tmp_path / "parts").exists()


def test_the_way_out_leads_out(opened: Draw, tmp_path: Path) -> None:
    parts = cut(opened(custom_then_neg(floats("a", "n", 4))), "a", tmp_path / "parts")
    assert str(parts.tensors["a"]) == "float32[n,4]"


def test_a_large_operand_that_decides_shapes_is_still_one_to_onnx_runtime(opened: Draw, tmp_path: Path) -> None:
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


def test_at_a_border_a_size_gets_the_name_of_the_symbol_it_is_equal_to(opened: Draw) -> None:
    model = opened(rows_of_reshaped())
    assert said(model.tensors, "a") == ["float32[?,?]"]
    assert said(model.border, "a") == ["float32[n,?]"]


def test_a_size_that_stands_already_is_not_renamed(opened: Draw) -> None:
    model = rows_of_reshaped()
    model.graph.value_info.append(floats("a", "rows", None))
    assert said(opened(model).border, "a") == ["float32[rows,?]"]


def cached(*pasts: str) -> ModelProto:
    """A decoder's cache: what is past and what is new, joined; the mask is as long as both."""
    steps = [helper.make_node("Concat", [*(f"k{i}" for i in range(len(pasts))), "x"], ["all"], axis=1)]
    steps += [helper.make_node("Identity", ["all"], ["y"]), helper.make_node("Identity", ["mask"], ["m"])]
    old = [floats(f"k{i}", "batch", past, 4) for i, past in enumerate(pasts)]
    inputs = [*old, floats("x", "batch", "sequence_length", 4), floats("mask", "batch", "total_sequence_length")]
    return model_of(steps, inputs, [floats("y", None, None, None), floats("m", None, None)])


def test_past_and_new_tokens_together_are_all_of_them(opened: Draw) -> None:
    border = opened(cached("past_sequence_length")).border
    assert said(border, "all", "m") == [
        "float32[batch,total_sequence_length,4]",
        "float32[batch,total_sequence_length]",
    ]


def test_where_it_is_not_clear_what_is_past_no_sum_is_guessed(opened: Draw) -> None:
    assert said(opened(cached("past_a", "past_b")).border, "all") == ["float32[batch,?,4]"]


@pytest.mark.parametrize("kernel", [(1, 3), (3, 3), (3, 1), (3, 5), (7, 9), (13, 29)])
def test_a_size_that_is_merely_near_another_is_not_called_so(opened: Draw, kernel: tuple[int, int]) -> None:
    """A convolution without padding makes a picture smaller; its width is not its height for that."""
    weight = numpy_helper.from_array(np.ones((1, 1, *kernel), np.float32), "w")
    steps = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    expected: list[Dim] = [size if side == 1 else None for side, size in zip(kernel, ("height", "width"), strict=True)]
    assert opened(
        model_of(steps, [floats("x", 1, 1, "height", "width")], [floats("y", 1, 1, None, None)], [weight])
    ).border["a"].shape == (1, 1, *expected)


def test_numbers_for_symbols_give_every_size_that_follows_from_them(opened: Draw) -> None:
    model = opened(cached("past_sequence_length"))
    dims = {"batch": 2, "past_sequence_length": 5, "sequence_length": 3}
    bound = infer_bound(model.proto, dims, {"all", "m"})
    assert said(bound, "all", "m") == ["float32[2,8,4]", "float32[2,?]"]
    assert said(model.tensors, "all") == ["float32[batch,?,4]"]


def test_bytes_follow_from_numbers_for_symbols(opened: Draw, tmp_path: Path) -> None:
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
