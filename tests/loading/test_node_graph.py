"""What is read of a graph for people: attributes without defaults, types, values, subgraphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphcut import load
from graphcut.loading.model import Model
from graphcut.loading.node_graph import NodeGraph, node_graph

from cases import each
from conftest import doubling, floats, model_of
from control_flow import MODELS, write_model


def read(model: Model) -> NodeGraph:
    return node_graph(model, model.graph.flow, model.tensor_bytes)


def typed(graph: NodeGraph, tensors: tuple[int, ...]) -> list[tuple[str, str]]:
    return [(graph.tensors[tensor], graph.types[tensor]) for tensor in tensors]


def test_a_node_has_its_attributes_that_are_not_usual_and_what_it_reads() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", ""], ["c"], "conv", pads=[1, 1, 1, 1], strides=[1, 1], group=1),
        helper.make_node("Constant", [], ["shape"], value_ints=[0, -1]),
        helper.make_node("Reshape", ["c", "shape"], ["r"], "reshape"),
        helper.make_node("Cast", ["r"], ["y"], "cast", to=TensorProto.FLOAT16),
    ]
    weight = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = read(load(model_of(nodes, [x], [y], [weight])))
    assert graph.nodes == ("conv", "reshape", "cast")
    assert graph.attributes == (("pads = 1, 1, 1, 1",), (), ("to = float16",))
    assert [typed(graph, own) for own in graph.reads] == [
        [("x", "float32[n,3,8,8] · ≥ 768 B"), ("w", "float32[4,3,3,3] · 432 B")],
        [("c", "float32[n,4,8,8] · ≥ 1 KiB"), ("shape", "int64[2] = 0, -1")],
        [("r", "float32[n,256] · ≥ 1 KiB")],
    ]
    assert [graph.tensors[own[0]] for own in graph.writes] == ["c", "r", "y"]
    assert (typed(graph, graph.inputs)[0][0], typed(graph, graph.outputs)[0][0]) == ("x", "y")


@each("name", MODELS)
def test_reads_and_writes_are_those_of_the_graph(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx")
    order = model.graph.flow[::-1]  # any order: that of a cut profile is part by part
    graph = node_graph(model, order, model.tensor_bytes)
    nodes = [model.graph.nodes[i] for i in order]
    assert graph.nodes == tuple(node.name for node in nodes)
    assert [{graph.tensors[i] for i in own} for own in graph.reads] == [
        {*node.reads, *node.weights, *node.constants} for node in nodes
    ]
    assert [tuple(graph.tensors[i] for i in own) for own in graph.writes] == [node.writes for node in nodes]


def test_subgraphs_have_their_nodes_and_what_they_capture(tmp_path: Path) -> None:
    write_model("control-flow", tmp_path / "model.onnx")
    graph = read(load(tmp_path / "model.onnx"))
    bodies = {graph.nodes[node]: [name for name, _ in found] for node, found in graph.bodies.items()}
    assert bodies == {
        "/enter/Swish": ["function"],
        "/choose/If": ["then_branch", "else_branch"],
        "/repeat/Loop": ["body"],
        "/accumulate/Scan": ["body"],
    }
    ((_, loop),) = graph.bodies[graph.nodes.index("/repeat/Loop")]
    assert isinstance(loop, NodeGraph)
    assert loop.ops == ("Mod", "Cast", "If", "Identity", "ReduceMean")
    assert [loop.tensors[i] for i in loop.inputs] == ["turn", "go_on", "carried", "/enter/Swish_output_0", "gain"]
    assert ("repeat.body.two", "int64[] = 2") in typed(loop, loop.reads[0])
    branches = loop.bodies[loop.ops.index("If")]
    found = [(name, branch.ops) for name, branch in branches if isinstance(branch, NodeGraph)]
    assert found == [("then_branch", ("Add",)), ("else_branch", ("Mul",))]


def test_a_call_names_its_function_which_is_there_once() -> None:
    """Thirteen functions that each call the next one twice stand for 8,192 nodes."""
    graph = read(load(doubling(13)))
    assert [(node.ops, dict(node.bodies)) for node in (graph, graph.functions[0], graph.functions[-1])] == [
        (("own.F0",), {0: (("function", 0),)}),
        (("own.F1", "own.F1"), {0: (("function", 1),), 1: (("function", 1),)}),
        (("Relu", "Relu"), {}),
    ]
    assert len(graph.functions) == 13


def test_a_function_says_which_attributes_the_call_gives() -> None:
    softmax = helper.make_node("Softmax", ["p"], ["q"], "softmax")
    softmax.attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="along")
    model = model_of([helper.make_node("S", ["x"], ["y"], domain="own", along=0)], [floats("x", 2)], [floats("y", 2)])
    model.opset_import.append(helper.make_opsetid("own", 1))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "S", ["p"], ["q"], [softmax], opsets, ["along"]))
    graph = read(load(model))
    assert graph.attributes == (("along = 0",),)
    (function,) = graph.functions
    assert (function.nodes, function.attributes) == (("softmax",), (("axis = @along",),))
    assert [typed(function, own) for own in (function.inputs, function.outputs)] == [[("p", "")], [("q", "")]]
