"""Names that a model defines twice: what ONNX Runtime runs is taken, and what differs is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, ModelError, load, split, verify
from graphcut.surgery.merging import merge

from cases import each
from conftest import ORT_VERSION, Draw, floats, model_of


def constant(output: str, *values: float, name: str = "") -> NodeProto:
    value = numpy_helper.from_array(np.array(values, np.float32))
    return helper.make_node("Constant", [], [output], name=name, value=value)


def add(a: str, b: str, output: str, name: str = "") -> NodeProto:
    return helper.make_node("Add", [a, b], [output], name=name)


def two(*nodes: NodeProto, size: int = 2) -> ModelProto:
    return model_of(nodes, [floats("x", size)], [floats("y", size)])


SHARED = two(
    *(constant("a", 1, 2, name="c"), constant("b", 3, 4, name="c"), constant("d", 5, 6, name="first")),
    *(add("x", "a", "t", "first"), add("t", "b", "u", "second"), add("u", "d", "y", "third")),
)
"""Two Constants of one name, as in silero-vad, and one with the name of another node."""


def test_constants_of_one_name_are_named_after_their_outputs(opened: Draw) -> None:
    model = opened(SHARED)
    assert [node.name for node in model.graph.nodes] == ["a", "b", "d", "first", "second", "third"]
    assert model.notes == ("3 Constant nodes that share a name are named after their outputs",)
    assert [node.name for node in model.proto.graph.node] == ["c", "c", "first", "first", "second", "third"]


def test_a_name_made_for_a_constant_is_not_that_of_another_node(opened: Draw) -> None:
    model = opened(
        two(constant("a", 1, 2, name="c"), constant("b", 3, 4, name="c"), add("a", "b", "t", "b"), add("t", "x", "y"))
    )
    assert [node.name for node in model.graph.nodes] == ["a", "b'", "b", "y"]


REPEATED = two(
    *(constant("a", 1, 2, name="one"), add("x", "a", "t", "first")),
    *(constant("a", 1, 2, name="two"), add("t", "a", "y", "second")),
)


def test_a_constant_written_again_with_the_same_value_is_removed_with_a_note(opened: Draw) -> None:
    model = opened(REPEATED)
    assert [node.name for node in model.graph.nodes] == ["one", "first", "second"]
    assert model.notes == ("removed 1 Constant node defined again with the same values",)


@each(
    "again",
    [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(np.array([1, 2], np.float32), "named")),
        helper.make_node("Constant", [], ["a"], value=helper.make_tensor("", TensorProto.FLOAT, [2], [1, 2])),
        helper.make_node("Constant", [], ["a"], value_floats=[1, 2]),
        helper.make_node("Constant", [], ["a"], value_floats=[1, 2], doc_string="the same"),
    ],
)
def test_values_are_equal_however_a_constant_is_written(again: NodeProto, opened: Draw) -> None:
    """ONNX Runtime's own gpt2_past.onnx writes 48 names twice."""
    model = opened(two(constant("a", 1, 2), add("x", "a", "t"), again, add("t", "a", "y")))
    assert model.notes == ("removed 1 Constant node defined again with the same values",)


@pytest.mark.parametrize("proto", [SHARED, REPEATED], ids=["shared", "repeated"])
def test_such_a_model_is_cut_verified_and_merged(proto: ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "m.onnx")
    cascade = split(tmp_path / "m.onnx", At("first"), tmp_path / "parts")
    report = verify(tmp_path / "m.onnx", cascade)
    assert (report.proof.holds, report.is_identical) == (True, True)
    merge(cascade, tmp_path / "merged.onnx")
    x = np.array([10, 20], np.float32)
    outputs = [
        ort.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].tolist()
        for name in ("m.onnx", "merged.onnx")
    ]
    assert outputs[0] == outputs[1] == graphcut.run(cascade, {"x": x})["y"].tolist()


def test_constants_that_give_one_tensor_different_values_are_refused(opened: Draw) -> None:
    with pytest.raises(ModelError) as caught:
        opened(two(constant("a", 1, 2), constant("a", 1, 3), add("x", "a", "y")))
    assert str(caught.value) == "the model is invalid: two Constant nodes define 'a', with different values"


@each("again, is_same", [(["a", "b"], True), (["a", "c"], False), ([1, 2], False)])
def test_texts_are_compared_too(again: list[object], is_same: bool, opened: Draw) -> None:  # noqa: FBT001 - a case
    weights = [
        numpy_helper.from_array(np.array(values, object if isinstance(values[0], str) else np.int64), "w")
        for values in (["a", "b"], again)
    ]
    model = model_of([helper.make_node("Identity", ["w"], ["t"]), add("x", "x", "y")], [floats("x", 2)], [], weights)
    model.graph.output.extend([floats("y", 2), helper.make_tensor_value_info("t", TensorProto.STRING, [2])])
    if is_same:
        assert opened(model).notes == ("removed 1 initializer defined again with the same values",)
    else:
        with pytest.raises(ModelError, match="two initializers define 'w', with different values"):
            opened(model)


LARGE = 1000
"""Floats of a weight that is left in the file."""


def with_weights(*values: float) -> ModelProto:
    """A model with an initializer `w` for each value."""
    weights = [numpy_helper.from_array(np.full(LARGE, value, np.float32), "w") for value in values]
    return model_of([add("x", "w", "y")], [floats("x", LARGE)], [floats("y", LARGE)], weights)


def test_a_large_initializer_defined_again_with_the_same_values_is_removed_with_a_note(opened: Draw) -> None:
    model = opened(with_weights(1, 1))
    assert [weight.name for weight in model.proto.graph.initializer] == ["w"]
    assert model.notes == ("removed 1 initializer defined again with the same values",)


def test_initializers_of_one_name_with_different_values_are_refused(opened: Draw) -> None:
    with pytest.raises(ModelError) as caught:
        opened(with_weights(1, 2))
    assert str(caught.value) == "the model is invalid: two initializers define 'w', with different values"


def test_an_initializer_and_a_constant_of_one_name_are_one_if_they_are_equal(tmp_path: Path) -> None:
    """ONNX Runtime takes the Constant node."""
    for value, expected in ((2, 22), (3, 23)):
        nodes = [constant("a", 1, value, name="c"), add("x", "a", "y", "add")]
        weight = numpy_helper.from_array(np.array([1, 2], np.float32), "a")
        path = tmp_path / f"{value}.onnx"
        onnx.save(model_of(nodes, [floats("x", 2)], [floats("y", 2)], [weight]), path)
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert session.run(None, {"x": np.array([10, 20], np.float32)})[0][1] == expected
    model = load(tmp_path / "2.onnx")
    assert model.notes == ("removed 1 Constant node defined again with the same values",)
    assert [node.name for node in model.graph.nodes] == ["add"]
    with pytest.raises(ModelError, match="an initializer and a Constant node define 'a', with different") as caught:
        load(tmp_path / "3.onnx")
    assert caught.value.hint.startswith("ONNX Runtime takes the Constant node, other tools another")


@each("ir_version", [3, 10])
def test_a_constant_with_the_name_of_an_input_is_its_default(ir_version: int, tmp_path: Path) -> None:
    """As ONNX Runtime has it, which takes no such input before IR 4."""
    nodes = [constant("a", 1, 2, name="c"), add("x", "a", "t", "first"), add("t", "a", "y", "second")]
    proto = model_of(nodes, [floats("x", 2), floats("a", 2)], [floats("y", 2)])
    proto.ir_version = ir_version
    onnx.save(proto, tmp_path / "m.onnx")
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    model = load(tmp_path / "m.onnx")
    optional = [one.name for one in session.get_overridable_initializers()]
    assert optional == [name for name in model.graph.reads if name in model.graph.weights]
    assert model.notes == ("1 Constant node with the name of an input: read as its default",)
    cascade = split(model, At("first"))
    assert verify(tmp_path / "m.onnx", cascade).is_identical
    x = {"x": np.array([10, 20], np.float32)}
    for feeds in (x, *({**x, name: np.array([5, 6], np.float32)} for name in optional)):
        assert np.array_equal(graphcut.run(cascade, feeds)["y"], session.run(None, feeds)[0])


@pytest.mark.parametrize("inner", ["Relu", "Neg"])
def test_a_function_defined_twice_is_refused_as_by_onnx_runtime(tmp_path: Path, inner: str) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = two(helper.make_node("F", ["x"], ["y"], domain="own"))
    model.opset_import.append(opsets[1])
    for op in ("Relu", inner):
        model.functions.append(
            helper.make_function("own", "F", ["p"], ["q"], [helper.make_node(op, ["p"], ["q"])], opsets)
        )
    onnx.save(model, tmp_path / "m.onnx")
    if ORT_VERSION >= (1, 27):  # before, it takes the last definition
        with pytest.raises(Exception, match="own:F"):
            ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    with pytest.raises(ModelError, match=r"the function 'own\.F' is defined 2 times"):
        load(tmp_path / "m.onnx")
