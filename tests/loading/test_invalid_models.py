"""Models that are refused when they are loaded, with the place: tensors, nodes, subgraphs, functions, texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google.protobuf
import onnx
import onnxruntime as ort
import pytest
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from graphcut import ModelError, load, split
from graphcut.planning.goals import Into

from cases import each
from conftest import ORT_VERSION, Draw, doubling, floats, model_of

OWN = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
FLAG = helper.make_tensor_value_info("c", TensorProto.BOOL, [])


def node(op: str, reads: str = "x", writes: str = "y", **attributes: Any) -> NodeProto:  # noqa: ANN401 - as onnx.helper has it
    return helper.make_node(op, reads.split(), writes.split(), **attributes)


def one(*nodes: NodeProto, weights: Sequence[TensorProto] = (), inputs: Sequence[ValueInfoProto] = ()) -> ModelProto:
    return model_of(nodes, [floats("x", 2), *inputs], [floats("y", 2)], weights)


def function(name: str, *nodes: NodeProto) -> FunctionProto:
    return helper.make_function("own", name, ["p"], ["q"], list(nodes), OWN)


def calling(*functions: FunctionProto) -> ModelProto:
    model = one(node("F0", domain="own"))
    model.opset_import.append(OWN[1])
    model.functions.extend(functions)
    return model


def refusal(opened: Draw, model: ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        opened(model)
    assert caught.value.hint
    return str(caught.value)


# Values of tensors
def test_a_type_that_onnx_does_not_know_is_named(opened: Draw) -> None:
    weight = TensorProto(name="w", data_type=99, dims=[2], raw_data=bytes(2))
    model = one(node("Custom", "x w", domain="own"), weights=[weight])
    assert refusal(opened, model) == "tensor 'w' has the data type 99, which is unknown here"


def floats_of(size: int, **values: Any) -> TensorProto:  # noqa: ANN401 - as protobuf has it
    return TensorProto(data_type=TensorProto.FLOAT, dims=[size], **values)


@each("dims", [[], [0], [2]])
def test_a_weight_without_a_type_is_refused_as_by_onnx_runtime(opened: Draw, dims: list[int]) -> None:
    model = one(node("Add", "x w"), weights=[TensorProto(name="w", dims=dims)])
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert refusal(opened, model) == "tensor 'w' has the data type 0, which is unknown here"


def test_a_weight_with_a_negative_size_is_refused(opened: Draw) -> None:
    """Two negative sizes have a positive product."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1, -2], float_data=[1, 2])
    assert refusal(opened, one(node("Add", "x w"), weights=[weight])) == "tensor 'w' has the shape [-1, -2]"


@each(
    ("tensor", "held"),
    [
        (floats_of(2), "0 values, and by its shape [2] 2"),
        (
            TensorProto(data_type=TensorProto.FLOAT, dims=[2], float_data=[1, 2, 3]),
            "3 values, and by its shape [2] 2",
        ),
        (
            TensorProto(data_type=TensorProto.FLOAT, dims=[2], int32_data=[1, 2]),
            "0 values, and by its shape [2] 2",
        ),
        (
            TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(12)),
            "12 bytes, and by its shape [2] 8",
        ),
        (
            TensorProto(data_type=TensorProto.COMPLEX64, dims=[], float_data=[1]),
            "1 value, and by its shape [] 2",
        ),
        (
            TensorProto(data_type=TensorProto.INT4, dims=[3], int32_data=[1, 2, 3]),
            "3 bytes, and by its shape [3] 2",
        ),
        (
            TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"a"]),
            "1 value, and by its shape [2] 2",
        ),
    ],
    ids=["none", "too many", "in another field", "raw", "complex", "4 bits", "strings"],
)
def test_an_initializer_that_does_not_fit_its_shape_is_refused(opened: Draw, tensor: TensorProto, held: str) -> None:
    tensor.name = "w"
    assert refusal(opened, one(node("Add", "x w"), weights=[tensor])) == f"the initializer 'w' has {held}"


@each(
    "tensor",
    [
        TensorProto(data_type=TensorProto.INT4, dims=[3], int32_data=[1, 2]),
        TensorProto(data_type=TensorProto.COMPLEX64, dims=[], float_data=[1, 2]),
        TensorProto(data_type=TensorProto.FLOAT16, dims=[2], int32_data=[1, 2]),
        TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(8), float_data=[1]),
        TensorProto(data_type=TensorProto.FLOAT, dims=[0]),
    ],
    ids=["4 bits", "complex", "half", "raw comes first", "empty"],
)
def test_values_that_fit_are_taken(opened: Draw, tensor: TensorProto) -> None:
    tensor.name = "w"
    assert opened(one(node("Custom", "x w", domain="own"), weights=[tensor])).graph.weights.keys() == {"w"}


@pytest.mark.skipif(not hasattr(TensorProto, "FLOAT6E2M3"), reason="onnx has this type from 1.23 on")
@pytest.mark.parametrize("values", [{"int32_data": [1, 2, 3]}, {"raw_data": bytes(3)}])
def test_floats_of_6_bits_are_one_in_a_number_and_four_in_three_bytes(opened: Draw, values: dict[str, Any]) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT6E2M3, dims=[3], **values)
    read = opened(one(node("Custom", "x w", domain="own"), weights=[tensor]))
    assert read.graph.weights["w"].bytes == 3


EMPTY = TensorProto(data_type=TensorProto.FLOAT, dims=[2])


def branch(*nodes: NodeProto) -> dict[str, Any]:
    graph = helper.make_graph([*nodes], "branch", [], [floats("z", 2)])
    return {"then_branch": graph, "else_branch": graph}


@each(
    ("model", "place"),
    [
        (one(node("Constant", "", "w", value=EMPTY), node("Add", "x w")), "a tensor of the Constant node 'w'"),
        (
            one(node("If", "c", **branch(node("Constant", "", "z", name="inner", value=EMPTY))), inputs=[FLAG]),
            "a tensor of the Constant node 'inner'",
        ),
        (calling(function("F0", node("Constant", "", "q", value=EMPTY))), "a tensor of the Constant node 'q'"),
        (
            one(
                node(
                    *("Constant", "", "w"),
                    sparse_value=SparseTensorProto(
                        values=EMPTY, indices=helper.make_tensor("i", TensorProto.INT64, [2], [0, 1]), dims=[2]
                    ),
                ),
                node("Add", "x w"),
            ),
            "a tensor of the Constant node 'w'",
        ),
    ],
    ids=["Constant", "branch", "function", "sparse"],
)
def test_a_constant_without_its_values_is_refused_wherever_it_is(opened: Draw, model: ModelProto, place: str) -> None:
    assert refusal(opened, model) == f"{place} has 0 values, and by its shape [2] 2"


def test_a_model_that_lost_a_weight_is_not_split(tmp_path: Path) -> None:
    onnx.save(
        one(node("Relu", "x", "a"), node("Add", "a w"), weights=[TensorProto(name="w", data_type=1, dims=[2])]),
        tmp_path / "m.onnx",
    )
    with pytest.raises(ModelError, match="the initializer 'w' has 0 values"):
        split(tmp_path / "m.onnx", Into(2), tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


# Nodes
def body(*inputs: str, outputs: str) -> dict[str, Any]:
    graph = helper.make_graph([], "body", [floats(name) for name in inputs], [floats(name) for name in outputs.split()])
    return {"body": graph}


def giving(*outputs: str) -> GraphProto:
    return helper.make_graph(
        [node("Constant", "", name, value_floats=[1.0]) for name in outputs],
        "branch",
        [],
        [floats(name) for name in outputs],
    )


@each(
    ("broken", "message"),
    [
        (node("Add", "x"), "the Add node 'y' has 1 input, and its operator has at least 2"),
        (node("Relu", "x x"), "the Relu node 'y' has 2 inputs, and its operator has at most 1"),
        (node("Concat", "x x", name="join"), "the Concat node 'join' has no attribute 'axis'"),
        (node("If", "x"), "the If node 'y' has no attribute 'else_branch'"),
        (
            node("If", "x", else_branch=1, then_branch=2),
            "the attribute 'else_branch' of the If node 'y' is not a graph",
        ),
        (
            node("If", "x", then_branch=giving("a", "b"), else_branch=giving("a")),
            "a branch of the If node 'y' has 2 outputs, and the node 1",
        ),
        (node("Loop", "x x x"), "the Loop node 'y' has no attribute 'body'"),
        (
            node("Loop", "x x x", **body("i", "c", outputs="c")),
            "the body of the Loop node 'y' has 2 inputs, and gets 3",
        ),
        (
            node("Loop", "x x x", **body("i", "c", "v", outputs="c")),
            "the body of the Loop node 'y' has 1 output, and needs 2",
        ),
        (node("Scan", "x", **body("v", outputs="v")), "the Scan node 'y' has no attribute 'num_scan_inputs'"),
        (
            node("Scan", "x", num_scan_inputs=1, **body("a", "b", outputs="a")),
            "the body of the Scan node 'y' has 2 inputs, and gets 1",
        ),
    ],
)
def test_a_node_that_does_not_fit_its_operator_is_refused(opened: Draw, broken: NodeProto, message: str) -> None:
    assert refusal(opened, one(broken)) == message


def test_a_node_of_a_branch_and_of_a_function_is_refused_too(opened: Draw) -> None:
    broken = "the Add node 'bad' has 1 input, and its operator has at least 2"
    assert refusal(opened, one(node("If", "c", **branch(node("Add", "x", "z", name="bad"))), inputs=[FLAG])) == broken
    assert refusal(opened, calling(function("F0", node("Add", "p", "q", name="bad")))) == broken


def test_operators_that_onnx_does_not_know_are_not_checked(opened: Draw) -> None:
    assert opened(one(node("Add", "x", domain="own"))).graph.nodes[0].op == "own.Add"
    assert opened(one(node("NoSuchOperator"))).graph.nodes[0].op == "NoSuchOperator"


def test_the_newest_rules_hold_for_subgraphs_of_a_version_that_onnx_does_not_know(opened: Draw) -> None:
    model = one(node("If", "x"))
    model.opset_import[0].version = 2**40
    assert refusal(opened, model) == "the If node 'y' has no attribute 'else_branch'"


def test_an_input_without_a_type_is_refused_as_by_onnx_runtime(opened: Draw) -> None:
    model = one(node("Relu"))
    model.graph.input[0].ClearField("type")
    assert refusal(opened, model) == "the input 'x' of the model has no type"


# Functions
def call(name: str, reads: str = "p", writes: str = "q") -> NodeProto:
    return node(name, reads, writes, domain="own")


def test_functions_that_call_each_other_are_refused(opened: Draw) -> None:
    assert refusal(opened, calling(function("F0", call("F0")))) == "functions call themselves: 'F0' calls 'F0'"
    message = refusal(opened, calling(function("F0", call("F1")), function("F1", call("F0"))))
    assert message in {
        f"functions call themselves: {a} calls {b} calls {a}" for a, b in (("'F0'", "'F1'"), ("'F1'", "'F0'"))
    }


@pytest.mark.parametrize(
    ("reads", "writes", "said"), [("x x", "y", "2 inputs, and its operator has at most 1"), ("x", "y z", "2 outputs")]
)
def test_a_call_with_more_values_than_its_function_has_is_refused(
    opened: Draw, reads: str, writes: str, said: str
) -> None:
    """onnx's inliner ends with an assertion."""
    model = calling(function("F0", node("Relu", "p", "q")))
    model.graph.node[0].CopyFrom(node("F0", reads, writes, domain="own"))
    assert refusal(opened, model).startswith(f"the F0 node 'y' has {said}")


@each("depth", [100, 101, 300])
def test_functions_that_call_each_other_deeper_than_onnx_runtime_takes_are_refused(opened: Draw, depth: int) -> None:
    inner = [call(f"F{i + 1}") for i in range(depth - 1)]
    model = calling(*(function(f"F{i}", one) for i, one in enumerate([*inner, node("Relu", "p", "q")])))
    if depth > 100:
        said = f"functions call each other {depth} deep, and ONNX Runtime takes at most 100"
        assert refusal(opened, model) == said
    else:
        assert len(opened(model).graph.nodes) == 1
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        is_taken = True
    except Exception:  # noqa: BLE001 - several classes
        is_taken = False
    assert is_taken == (depth <= 100 or ORT_VERSION < (1, 32))


@each("depth", [40, 1000])
def test_subgraphs_that_are_nested_too_deeply_are_named(tmp_path: Path, depth: int) -> None:
    """Protobuf does not write such a message, but a file may have it."""

    def field(number: int, body: bytes) -> bytes:
        rest, length = len(body), b""
        while rest > 127:
            length, rest = length + bytes([rest & 127 | 128]), rest >> 7
        return bytes([number << 3 | 2]) + length + bytes([rest]) + body

    graph = model_of([node("Relu")], [floats("x", 2)], [floats("y", 2)]).graph.SerializeToString()
    for _ in range(depth):
        branch = field(1, b"then_branch") + field(6, graph)
        graph = field(1, field(4, b"If") + field(5, branch)) + field(12, floats("y", 2).SerializeToString())
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + field(7, graph) + field(8, OWN[0].SerializeToString()))
    is_said = depth > 40 or not google.protobuf.__version__.startswith("4")  # which does not say why
    said = "nests subgraphs too deeply" if is_said else "is not an ONNX model"
    with pytest.raises(ModelError, match=said):
        load(tmp_path / "m.onnx")


def test_functions_that_stand_for_too_many_nodes_are_refused_before_they_are_copied(opened: Draw) -> None:
    assert opened(doubling(17)).graph.nodes[0].name == "y"
    said = "the calls of functions stand for 262,144 nodes, and at most 200,000 are read"
    assert refusal(opened, doubling(18)) == said


# Texts
TEXTS = ("producer_name", "producer_version", "domain", "doc_string")


@each("field", TEXTS)
def test_a_text_of_the_model_that_is_not_utf_8_is_named(tmp_path: Path, field: str) -> None:
    model = one(node("Relu"))
    setattr(model, field, "spoiled")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString().replace(b"spoiled", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"))
    with pytest.raises(ModelError, match=f"the {field} of the model is not UTF-8"):
        load(tmp_path / "m.onnx")


def test_the_name_of_an_attribute_in_a_function_is_checked(tmp_path: Path) -> None:
    model = calling(function("F0", node("Custom", "p", "q", domain="own", spoiled=1)))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString().replace(b"spoiled", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"))
    with pytest.raises(ModelError, match="the model has a name that is not UTF-8"):
        load(tmp_path / "m.onnx")
