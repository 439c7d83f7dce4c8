"""From a file to a graph: what is kept, what is dropped and said, and what is refused."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from graphcut import GraphcutError, Model, ModelError, UsageError, load
from graphcut.core.graph import Node, Weight
from graphcut.loading.external_data import ByteRange, read_bytes
from graphcut.loading.graph_reader import module_of
from graphcut.loading.subgraphs import (
    captures,
    function_key,
    functions_called,
    is_stateful,
    names_in,
    tensors_in,
)
from graphcut.loading.tensor_values import values_bytes

from cases import each
from conftest import Draw, floats, model_of

DAMAGED = "the model is damaged or was cut wrongly; check it with onnx.checker.check_model"


def node(text: str, **attributes: Any) -> NodeProto:  # noqa: ANN401 - as onnx.helper has it
    """`"Add: x w > y"` is an Add of x and w that writes y; `_` is an input or output left out."""
    op, _, rest = text.partition(":")
    reads, _, writes = rest.partition(">")
    domain, _, op = op.rpartition(".")
    inputs, outputs = (["" if name == "_" else name for name in side.split()] for side in (reads, writes))
    made = helper.make_node(op, inputs, outputs, **attributes)
    made.domain = domain
    return made


def weight(name: str, *values: float) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32), name)


def drawn(
    *nodes: NodeProto | str, weights: Sequence[TensorProto] = (), reads: str = "x", writes: str = "y"
) -> ModelProto:
    """A model of float tensors of two."""
    steps = [node(step) if isinstance(step, str) else step for step in nodes]
    return model_of(steps, [floats(n, 2) for n in reads.split()], [floats(n, 2) for n in writes.split()], weights)


def body(
    *nodes: NodeProto | str, reads: str = "", writes: str = "z", weights: Sequence[TensorProto] = ()
) -> GraphProto:
    return drawn(*nodes, reads=reads, writes=writes, weights=weights).graph


def branch(condition: str, writes: str, *nodes: NodeProto | str, inner: str = "z") -> NodeProto:
    """An If with the same body for both cases."""
    made = body(*nodes, writes=inner)
    return helper.make_node("If", [condition], writes.split(), then_branch=made, else_branch=made)


def function(name: str, *nodes: NodeProto | str, overload: str = "") -> FunctionProto:
    steps = [node(step) if isinstance(step, str) else step for step in nodes]
    made = helper.make_function("own", name, ["p"], ["q"], steps, [helper.make_opsetid("", 17)])
    made.overload = overload
    return made


def with_functions(model: ModelProto, *functions: FunctionProto) -> ModelProto:
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def names(model: Model) -> list[str]:
    return [node.name for node in model.graph.nodes]


def refusal(opened: Draw, model: ModelProto) -> ModelError:
    with pytest.raises(ModelError) as caught:
        opened(model)
    return caught.value


# Initializers


def test_in_ir_3_an_initializer_among_the_inputs_is_a_weight(opened: Draw) -> None:
    model = drawn("Add: x w > y", reads="x w unused", weights=[weight("w", 1, 2), weight("unused", 3)])
    model.ir_version = 3
    read = opened(model)
    assert read.graph.reads == ("x",)
    assert read.graph.weights == {"w": Weight("w", 8, is_default=False)}
    assert (read.graph.nodes[0].reads, read.graph.nodes[0].weights) == (("x",), ("w",))
    assert [value.name for value in read.proto.graph.input] == ["x", "w"]


def test_since_ir_4_an_initializer_among_the_inputs_is_a_default(opened: Draw) -> None:
    read = opened(drawn("Add: x d > y", reads="x d unused", weights=[weight("d", 1, 2), weight("unused", 3)]))
    assert read.graph.reads == ("x", "d", "unused")
    assert read.graph.weights == {"d": Weight("d", 8, is_default=True), "unused": Weight("unused", 4, is_default=True)}
    assert (read.graph.nodes[0].reads, read.graph.nodes[0].weights) == (("x", "d"), ())


def test_a_node_that_reads_a_default_is_not_constant(opened: Draw) -> None:
    read = opened(drawn("Neg: d > a", "Add: x a > y", reads="x d", weights=[weight("d", 1, 2)]))
    assert [node.is_constant for node in read.graph.nodes] == [False, False]


def test_initializers_that_no_node_reads_are_removed(opened: Draw) -> None:
    dead, given_out = weight("dead", 1, 2), weight("given", 3, 4)
    read = opened(
        drawn(
            "Add: x w > y",
            "Add: x dead > nobody",
            weights=[weight("unused", 1), weight("w", 1, 2), dead, given_out],
            writes="y given",
        )
    )
    assert list(read.graph.weights) == ["w", "given"]
    assert [tensor.name for tensor in read.proto.graph.initializer] == ["w", "given"]
    assert read.weight_bytes == 16


def test_an_initializer_that_a_subgraph_reads_is_kept_and_one_that_it_redefines_is_not(opened: Draw) -> None:
    hiding = body("Add: w hidden > z", weights=[weight("hidden", 1, 2)])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=hiding, else_branch=hiding)
    read = opened(
        drawn(node("Cast: x > c", to=TensorProto.BOOL), choice, weights=[weight("w", 1, 2), weight("hidden", 9, 9)])
    )
    assert list(read.graph.weights) == ["w"]
    assert read.graph.nodes[1].weights == ("w",)


def test_a_sparse_initializer_has_the_name_of_its_values(opened: Draw) -> None:
    def sparse(name: str) -> SparseTensorProto:
        indices = numpy_helper.from_array(np.array([1], np.int64))
        return SparseTensorProto(values=weight(name, 5), indices=indices, dims=[2])

    model = drawn("Add: x s > y")
    model.graph.sparse_initializer.extend([sparse("s"), sparse("unused")])
    read = opened(model)
    assert read.graph.weights == {"s": Weight("s", 4 + 8, is_default=False)}
    assert [s.values.name for s in read.proto.graph.sparse_initializer] == ["s"]


@each(
    ("tensor", "number"),
    [
        (TensorProto(data_type=TensorProto.FLOAT, dims=[2, 3]), 24),
        (TensorProto(data_type=TensorProto.FLOAT), 4),
        (TensorProto(data_type=TensorProto.FLOAT, dims=[0, 7]), 0),
        (TensorProto(data_type=TensorProto.DOUBLE, dims=[3]), 24),
        (TensorProto(data_type=TensorProto.BFLOAT16, dims=[3]), 6),
        (TensorProto(data_type=TensorProto.FLOAT8E5M2, dims=[3]), 3),
        (TensorProto(data_type=TensorProto.INT4, dims=[3]), 2),
        (TensorProto(data_type=TensorProto.UINT2, dims=[5]), 2),
        (TensorProto(data_type=TensorProto.BOOL, dims=[3]), 3),
        (TensorProto(data_type=TensorProto.COMPLEX128, dims=[3]), 48),
        (TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"abc", b"d"]), 4),
    ],
)
def test_the_size_of_the_values_of_a_tensor(tensor: TensorProto, number: int) -> None:
    assert values_bytes(tensor) == number


def test_an_unknown_data_type_is_refused(opened: Draw) -> None:
    model = drawn("Add: x w > y", weights=[TensorProto(name="w", data_type=99, dims=[2])])
    assert "'w'" in str(refusal(opened, model))


# Order, dead nodes, circles


def test_nodes_are_in_the_order_of_their_messages(opened: Draw) -> None:
    read = opened(drawn("Neg: x > b", "Abs: x > a", "Add: a b > y"))
    assert names(read) == ["b", "a", "y"]
    assert [node.output[0] for node in read.proto.graph.node] == ["b", "a", "y"]
    assert (read.dropped, read.notes) == ((), ())
    assert read.graph.nodes[2] == Node("y", "Add", ("a", "b"), ("y",), (), (), False, False, "")


def test_nodes_that_no_output_depends_on_are_removed_with_a_note(opened: Draw) -> None:
    read = opened(drawn("Neg: x > dead", "Abs: dead > deader", "Relu: x > y", "Identity: x >"))
    assert names(read) == ["y"]
    assert [node.op_type for node in read.proto.graph.node] == ["Relu"]
    assert read.dropped == ("dead", "deader", "Identity_3")
    assert read.notes == ("removed 3 nodes that no output depends on, such as 'dead'",)


def test_a_node_with_one_needed_output_keeps_all_outputs(opened: Draw) -> None:
    read = opened(drawn(node("Split: x > a b _", axis=0, num_outputs=3), "Neg: b > y"))
    assert read.graph.nodes[0].writes == ("a", "b")
    assert list(read.proto.graph.node[0].output) == ["a", "b", ""]


def test_unsorted_nodes_are_sorted_with_a_note(opened: Draw) -> None:
    read = opened(drawn("Add: a b > y", "Neg: x > b", "Abs: b > a", "Relu: a > dead"))
    assert names(read) == ["b", "a", "y"]
    assert [node.output[0] for node in read.proto.graph.node] == ["b", "a", "y"]
    assert read.notes == (
        "the nodes were not in topological order; they were sorted",
        "removed 1 node that no output depends on, such as 'dead'",
    )


def test_a_node_comes_after_the_tensors_that_its_subgraph_captures(opened: Draw) -> None:
    read = opened(drawn(branch("c", "y", "Neg: late > z"), "Abs: x > late", node("Cast: x > c", to=TensorProto.BOOL)))
    assert names(read) == ["late", "c", "y"]


@settings(deadline=None)
@given(st.integers(1, 7), st.randoms())
def test_sorting_keeps_the_order_of_the_file_where_it_can(folder: Path, number: int, chance: random.Random) -> None:
    steps = [f"Max: {' '.join(chance.choices(['x', *(f't{k}' for k in range(i))], k=2))} > t{i}" for i in range(number)]
    chance.shuffle(steps)
    model = drawn(*steps, writes=" ".join(f"t{i}" for i in range(number)))
    onnx.save(model, folder / "model.onnx")
    standing, waiting, naive = {"x"}, list(model.graph.node), []
    while waiting:
        ready = next(step for step in waiting if standing.issuperset(step.input))
        waiting.remove(ready)
        naive.append(ready.output[0])
        standing.add(ready.output[0])
    assert names(load(folder / "model.onnx")) == naive


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loading")


def test_a_reversed_chain_of_three_thousand_nodes_is_sorted(opened: Draw) -> None:
    chain = [node(f"Neg: t{i} > t{i + 1}") for i in range(3000)]
    read = opened(drawn(*reversed(chain), reads="t0", writes="t3000"))
    assert names(read) == [f"t{i + 1}" for i in range(3000)]


def test_a_cycle_is_refused(opened: Draw) -> None:
    caught = refusal(opened, drawn("Add: x b > a", "Neg: a > b", "Neg: b > y"))
    assert str(caught) == "the model has a cycle through node 'a'"
    assert caught.hint == "ONNX graphs are acyclic; check the model with onnx.checker.check_model"


def test_a_node_that_reads_its_own_output_is_a_cycle(opened: Draw) -> None:
    assert "cycle through node 'y'" in str(refusal(opened, drawn("Add: x y > y")))
    assert "cycle through node 'y'" in str(refusal(opened, drawn(branch("x", "y", "Neg: y > z"))))


def test_the_node_that_the_message_names_is_on_the_cycle(opened: Draw) -> None:
    """And not one that only waits for the circle, wherever it stands in the file."""
    caught = refusal(opened, drawn("Neg: b > y", "Add: x b > a", "Neg: a > b"))
    assert "cycle through node 'a'" in str(caught) or "cycle through node 'b'" in str(caught)


# Tensors that no node writes, or two do


def test_a_tensor_that_no_node_writes_is_refused(opened: Draw) -> None:
    caught = refusal(opened, drawn("Add: x ghost > y"))
    assert (str(caught), caught.hint) == ("node 'y' reads 'ghost', which no node writes", DAMAGED)


def test_a_tensor_that_no_node_writes_is_refused_in_a_subgraph_too(opened: Draw) -> None:
    inner = branch("c", "z", "Add: x ghost > z2", inner="z2")
    model = drawn(node("Cast: x > c", to=TensorProto.BOOL), branch("c", "y", inner))
    assert str(refusal(opened, model)) == "node 'y' reads 'ghost', which no node writes"


def test_names_of_a_subgraph_are_unknown_outside(opened: Draw) -> None:
    model = drawn(node("Cast: x > c", to=TensorProto.BOOL), branch("c", "a", "Neg: x > z"), "Add: a z > y")
    assert str(refusal(opened, model)) == "node 'y' reads 'z', which no node writes"


@each(
    ("model", "tensor"),
    [
        (drawn("Neg: x > a", node("Abs: x > a", name="it"), "Add: x a > y"), "a"),
        (drawn(node("Split: x > y y", name="it")), "y"),
        (drawn(node("Neg: x > w", name="it"), "Add: x w > y", weights=[weight("w", 1, 2)]), "w"),
        (drawn(node("Neg: x > x", name="it"), "Neg: x > y"), "x"),
    ],
    ids=["two nodes", "one node", "initializer", "input"],
)
def test_a_tensor_written_twice_is_refused(opened: Draw, model: ModelProto, tensor: str) -> None:
    caught = refusal(opened, model)
    assert (str(caught), caught.hint) == (f"node 'it' writes {tensor!r}, which is already written", DAMAGED)


def test_an_output_that_no_node_writes_is_refused(opened: Draw) -> None:
    caught = refusal(opened, drawn("Neg: x > y", writes="y ghost"))
    assert (str(caught), caught.hint) == ("the output 'ghost' of the model is written by no node", DAMAGED)


def test_an_empty_name_is_no_tensor(opened: Draw) -> None:
    read = opened(drawn("Clip: x _ m > y", node("Dropout: y > z _"), writes="y z", reads="x m"))
    assert [(node.reads, node.writes) for node in read.graph.nodes] == [(("x", "m"), ("y",)), (("y",), ("z",))]


# Bodies


def test_captures_are_the_names_that_no_inner_scope_defines() -> None:
    """Each name says whether it is captured, and from how deep."""
    deepest = body(
        "Add: outer0 own2 > t2",
        "Add: outer2 hidden1 > own2",  # reads what a later node writes, all the same its own
        "Max: t2 own2 w2 outer1 > z2",
        weights=[weight("w2", 1, 2)],
        writes="z2 outer3",
    )
    middle = body(
        "Neg: in1 > hidden1", helper.make_node("If", ["in1"], ["z1"], then_branch=deepest), reads="in1", writes="z1"
    )
    top = helper.make_node("Loop", ["n", "", "x"], ["y"], body=middle)
    assert captures(top) == ["outer0", "outer2", "outer1", "outer3"]


def test_sibling_subgraphs_have_names_of_their_own() -> None:
    top = helper.make_node("Op", [], ["y"], domain="own")
    several = top.attribute.add(name="bodies", type=onnx.AttributeProto.GRAPHS)
    several.graphs.extend([body("Neg: a > b", writes="b"), body("Neg: b > a", writes="a")])
    assert captures(top) == ["a", "b"]


def test_names_in_a_graph_are_those_that_nobody_reads_too() -> None:
    inner = body("Neg: a > b", reads="in1", writes="b", weights=[weight("unread", 1)])
    inner.sparse_initializer.add().values.name = "sparse"
    branches = helper.make_node("If", ["c"], ["y"], then_branch=inner)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["a"]), branches], "g", [], [])
    assert names_in(graph) == {"a", "b", "in1", "sparse", "unread", "y"}


def test_a_captured_tensor_is_one_of_the_reads(opened: Draw) -> None:
    read = opened(
        drawn(
            node("Cast: x > c", to=TensorProto.BOOL),
            "Neg: x > a",
            node("Constant: > k", value=weight("", 1, 2)),
            branch("c", "y", branch("c", "z", "Max: a w k x > z2", inner="z2")),
            weights=[weight("w", 1, 2)],
        )
    )
    choice = read.graph.nodes[3]
    assert (choice.reads, choice.weights, choice.constants) == (("c", "a", "x"), ("w",), ("k",))
    assert read.graph.readers["a"] == (3,)


# Names, operators, constants


def test_a_node_without_a_name_has_that_of_its_first_output(opened: Draw) -> None:
    read = opened(
        drawn(node("Split: x > _ b c"), node("Neg: b > y", name="b"), node("Neg: c > z", name="b'"), writes="y z")
    )
    assert names(read) == ["b''", "b", "b'"]
    assert read.graph.node_index == {"b''": 0, "b": 1, "b'": 2}


def test_the_two_spellings_of_the_onnx_domain_are_the_same(opened: Draw) -> None:
    read = opened(drawn("ai.onnx.Neg: x > a", "Neg: a > b", "com.microsoft.Gelu: b > y"))
    assert [node.op for node in read.graph.nodes] == ["Neg", "Neg", "com.microsoft.Gelu"]


def test_a_node_that_depends_on_no_input_is_constant(opened: Draw) -> None:
    read = opened(
        drawn(
            node("Constant: > k", value=weight("", 1, 2)),
            "Add: k w > k2",
            "Identity: k2 > k3",
            "Add: x k3 > y",
            weights=[weight("w", 1, 2)],
        )
    )
    assert [node.is_constant for node in read.graph.nodes] == [True, True, True, False]
    assert (read.graph.nodes[1].weights, read.graph.nodes[1].constants) == (("w",), ("k",))
    assert read.graph.nodes[3] == Node("y", "Add", ("x",), ("y",), (), ("k3",), False, False, "")
    assert (read.graph.flow, read.graph.constants_for(["k3"])) == ((3,), (0, 1, 2))


# What two runs may answer differently


def stateful(step: NodeProto | str, *functions: FunctionProto) -> bool:
    made = node(step) if isinstance(step, str) else step
    return is_stateful(made, {function_key(function): function for function in functions})


@each(
    ("step", "differs"),
    [
        ("Add: x x > y", False),
        ("ai.onnx.Add: x x > y", False),
        ("com.microsoft.Gelu: x > y", False),
        ("RandomNormal: > y", True),
        ("RandomUniformLike: x > y", True),
        ("Multinomial: x > y", True),
        ("Bernoulli: x > y", True),
        ("Dropout: x > y", False),
        ("Dropout: x ratio > y", False),
        ("Dropout: x ratio _ > y", False),
        ("Dropout: x ratio training > y", True),
        ("com.microsoft.BitmaskDropout: x ratio training > y", True),
        ("com.microsoft.BiasDropout: x bias > y", False),
        ("com.microsoft.BiasDropout: x bias _ ratio training > y", True),  # the third input is a residual
        ("com.microsoft.BiasDropout: x bias residual ratio training > y", True),
        ("com.microsoft.Sampling: ids length > y", True),  # draws tokens, from a seed among its inputs
        ("com.microsoft.GreedySearch: ids length > y", False),
        ("other.Add: x x > y", True),  # who knows
        ("other.Source: > y", True),
    ],
)
def test_an_operator_that_may_be_random_is_stateful(step: str, differs: bool) -> None:  # noqa: FBT001
    assert stateful(step) == differs


def test_a_random_node_in_subgraphs_and_functions_makes_the_node_stateful() -> None:
    noise = function("Noise", "RandomNormalLike: p > q")
    wrap = function("Wrap", "own.Noise: p > q")
    choose = function("Choose", branch("p", "q", "own.Wrap: p > z"))
    calm = function("Calm", "Neg: p > q")
    assert stateful(branch("c", "y", branch("c", "z", "Bernoulli: x > z2", inner="z2")))
    assert stateful("own.Choose: x > y", noise, wrap, choose)
    assert stateful(branch("c", "y", "own.Wrap: x > z"), noise, wrap)
    assert not stateful("own.Calm: x > y", noise, wrap, calm)
    assert not stateful(branch("c", "y", "own.Calm: x > z"), noise, calm)


def test_a_function_that_calls_itself_is_visited_once() -> None:
    """Not valid ONNX, and no reason to hang."""
    loop = function("Loop", "own.Loop: p > q")
    assert not stateful("own.Loop: x > y", loop)
    assert functions_called([node("own.Loop: x > y")], {function_key(loop): loop}) == {("own", "Loop", ""): None}


def test_the_same_operator_is_stateful_depending_on_its_inputs(opened: Draw) -> None:
    read = opened(drawn("Dropout: x r > a", "Dropout: a r t > b", "Dropout: b r _ > y", reads="x r t"))
    assert [node.is_stateful for node in read.graph.nodes] == [False, True, False]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("is_raw", [False, True])
def test_a_dropout_is_stateful_where_an_initializer_says_that_it_trains(
    opened: Draw, *, is_raw: bool, trains: bool
) -> None:
    training = helper.make_tensor("t", TensorProto.BOOL, [], bytes([trains]) if is_raw else [trains], raw=is_raw)
    weights = [numpy_helper.from_array(np.array(0.5, np.float32), "r"), training]
    model = model_of([node("Dropout: x r t > y")], [floats("x", 2)], [floats("y", 2)], weights)
    assert [node.is_stateful for node in opened(model).graph.nodes] == [trains]


def test_names_in_a_function_are_not_those_of_the_graph(opened: Draw) -> None:
    off, on = (numpy_helper.from_array(np.array(value)) for value in (False, True))
    noise = function("Noise", node("Constant: > t", value=on), "Dropout: p _ t > q")
    nodes = node("Constant: > t", value=off), "Dropout: x _ t > a", "own.Noise: a > y"
    read = opened(with_functions(drawn(*nodes), noise))
    assert [node.is_stateful for node in read.graph.nodes] == [False, False, True]


def test_a_stateful_node_is_never_constant(opened: Draw) -> None:
    """A random node reads nothing, and an unknown operator may read a clock: both stand in the flow, once."""
    random_body = branch("k", "s", node("RandomNormal: > z", shape=[2]))
    model = drawn(
        node("RandomNormal: > r", shape=[2]),
        "other.Clock: > c",
        node("Constant: > k", value=numpy_helper.from_array(np.array(1, np.bool_))),
        random_body,
        "Max: x r c s > y",
    )
    read = opened(model)
    assert [(node.is_constant, node.is_stateful) for node in read.graph.nodes] == [
        (False, True),
        (False, True),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert read.graph.flow == (0, 1, 3, 4)


# Functions


def test_functions_that_no_node_calls_are_removed(opened: Draw) -> None:
    kept = [function("Inner", "Neg: p > q"), function("Outer", branch("p", "q", "own.Inner: p > z"))]
    read = opened(
        with_functions(
            drawn(node("Cast: x > c", to=TensorProto.BOOL), branch("c", "y", "own.Outer: x > z"), "own.Dead: x > dead"),
            function("Unused", "own.Inner: p > q"),
            *kept,
            function("Dead", "Abs: p > q"),
        )
    )
    assert list(read.proto.functions) == kept
    assert list(read.functions) == [("own", "Inner", ""), ("own", "Outer", "")]


def test_only_the_overload_that_is_called_is_kept(opened: Draw) -> None:
    called = node("own.F: x > y", overload="b")
    model = drawn(called)
    model.ir_version = 10
    with_functions(model, function("F", "Neg: p > q", overload="a"), function("F", "Abs: p > q", overload="b"))
    assert list(opened(model).functions) == [("own", "F", "b")]


def test_a_function_in_the_onnx_domain_is_found_by_both_spellings(opened: Draw) -> None:
    made = function("Mine", "RandomNormalLike: p > q")
    made.domain = "ai.onnx"
    read = opened(with_functions(drawn("Mine: x > y"), made))
    assert list(read.functions) == [("", "Mine", "")]
    assert read.graph.nodes[0].is_stateful


def test_tensors_are_found_in_every_field_of_a_model() -> None:
    def named(name: str) -> TensorProto:
        return weight(name, 1)

    def sparse(name: str) -> SparseTensorProto:
        return SparseTensorProto(values=named(f"{name}.values"), indices=named(f"{name}.indices"))

    deep = node("Op: >", t=named("t"), tensors=[named("tensors0"), named("tensors1")], sparse_tensor=sparse("s"))
    deep.attribute.add(name="several", type=onnx.AttributeProto.SPARSE_TENSORS).sparse_tensors.append(sparse("ss"))
    inner = body(deep, weights=[named("body")])
    inner.sparse_initializer.append(sparse("body.s"))
    several = node("Op: >")
    several.attribute.add(name="graphs", type=onnx.AttributeProto.GRAPHS).graphs.append(body(weights=[named("graphs")]))
    model = drawn(branch("c", "y"), several, weights=[named("top")])
    model.graph.node[0].attribute[0].g.CopyFrom(inner)
    made = function("F", node("Constant: > q", value=named("constant")))
    made.attribute_proto.add(name="a", type=onnx.AttributeProto.TENSOR).t.CopyFrom(named("default"))
    with_functions(model, made)
    assert [tensor.name for tensor in tensors_in(model)] == [
        *("s.values", "s.indices", "t", "tensors0", "tensors1", "ss.values", "ss.indices"),
        *("body", "body.s.values", "body.s.indices", "graphs", "top", "constant", "default"),
    ]
    assert [tensor.name for tensor in tensors_in(made)] == ["constant", "default"]


# Modules


@each(
    ("name", "module"),
    [
        ("/model/layers.0/mlp/MatMul", "model/layers.0/mlp"),
        ("model/layers.0/Add", "model/layers.0"),
        ("/Add", ""),
        ("Add_17", ""),
        ("", ""),
    ],
)
def test_a_module_is_read_from_the_name_of_a_node(name: str, module: str) -> None:
    assert module_of(node("Add: x x > y", name=name)) == module


def noted(name: str = "/by/name/Add", **notes: str) -> str:
    made = node("Add: x x > y", name=name)
    for key, value in notes.items():
        made.metadata_props.add(key="pkg.torch.onnx.name_scopes" if key == "scopes" else key, value=value)
    return module_of(made)


def test_the_metadata_of_torch_comes_before_the_name() -> None:
    """As torch 2.9 writes it for a Linear in a Sequential: each scope with its whole path, the node itself last."""
    assert noted(scopes="['', 'network', 'network.0', 'linear']") == "network/0"
    assert noted(scopes="['', 'linear']") == ""


def test_both_metadata_entries_of_torch_give_the_same_module() -> None:
    namespace = ": __main__.Net/network: torch.nn.Sequential/network.0: torch.nn.Linear/linear: aten.linear.default"
    assert noted(namespace=namespace) == noted(scopes="['', 'network', 'network.0', 'linear']") == "network/0"
    assert noted(namespace=": __main__.Net/linear: aten.linear.default") == ""


@each(
    "scopes",
    ["5", "None", "'text'", "{1: 2}", "{[]: 1}", "[1, 2, 3]", "[", "[]", "['alone']", "(" * 500, "-" * 100_000 + "1"],
)
def test_metadata_of_another_form_is_ignored(scopes: str) -> None:
    assert noted(scopes=scopes) == "by/name"


# Symbols


def test_symbols_are_in_the_order_of_the_inputs(opened: Draw) -> None:
    model = drawn("Add: x z > y")
    del model.graph.input[:]
    model.graph.input.extend([floats("x", "rows", 2), floats("z", "batch", "rows", None)])
    assert opened(model).symbols == ("rows", "batch", "z.2")


def test_an_unknown_symbol_is_refused_and_the_known_ones_are_listed(chain: Path) -> None:
    with pytest.raises(GraphcutError) as caught:
        load(chain, dims={"n": 2, "batch": 1})
    assert str(caught.value) == "chain.onnx has no symbolic dimension 'batch'"
    assert caught.value.hint == "its symbolic dimensions: n"


def test_a_size_is_at_most_2_to_the_power_of_56(opened: Draw) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = opened(model_of(nodes, [floats("x", "n", 0)], [floats("y", "n", 0)]))
    assert load(model, dims={"n": 2**56}).tensor_bytes == {"x": (0, True), "y": (0, True)}
    with pytest.raises(GraphcutError, match=f"'n' can't be {2**56 + 1}"):
        load(model, dims={"n": 2**56 + 1})


def test_an_unknown_symbol_is_refused_for_a_model_without_symbols(opened: Draw, tmp_path: Path) -> None:
    opened(drawn("Neg: x > y"))
    with pytest.raises(GraphcutError) as caught:
        load(tmp_path / "model.onnx", dims={"n": 2})
    assert caught.value.hint == "its symbolic dimensions: none"


@pytest.mark.parametrize("number", [-1, 1.5])
def test_what_is_no_size_is_refused(number: int, chain: Path) -> None:
    with pytest.raises(GraphcutError, match=f"dimension 'n' can't be {number}"):
        load(chain, dims={"n": number})


def test_dims_are_used_for_sizes_and_leave_the_model_unchanged(chain: Path) -> None:
    free, bound = load(chain), load(chain, dims={"n": 3})
    assert free.proto == bound.proto
    assert free.tensor_bytes["a"] == (16, False)  # one row at least
    assert bound.tensor_bytes["a"] == (48, True)
    assert bound.tensors == free.tensors
    with pytest.raises(TypeError):
        bound.dims["n"] = 4  # type: ignore[index]


# Data in other files


def external(tmp_path: Path, *entries: tuple[str, str], number: int = 4, data_type: int = TensorProto.FLOAT) -> Path:
    """x + w, where w lies in w.bin: floats from 0, six more than w has."""
    tensor = TensorProto(name="w", data_type=data_type, dims=[number], data_location=TensorProto.EXTERNAL)
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(np.arange(max(10, number + 6), dtype=np.float32).tobytes())
    path = tmp_path / "model.onnx"
    path.write_bytes(drawn("Add: x w > y", weights=[tensor]).SerializeToString())
    return path


LOCATION = ("location", "w.bin")


@each(
    ("entries", "first"),
    [
        ([], 0),
        ([("offset", "8")], 2),
        ([("length", "1024")], 0),
        ([("offset", "24"), ("length", "1024"), ("checksum", "any")], 6),
        ([("offset", "024")], 6),
    ],
)
def test_the_range_of_a_weight_is_found(tmp_path: Path, entries: list[tuple[str, str]], first: int) -> None:
    model = load(external(tmp_path, LOCATION, *entries, number=256))
    assert model.data == {"w.bin": (tmp_path / "w.bin", 262 * 4)}
    span = model.range_of(model.proto.graph.initializer[0])
    assert span == ByteRange(tmp_path / "w.bin", first * 4, 1024)
    assert np.frombuffer(read_bytes(span), np.float32).tolist() == list(range(first, first + 256))


def test_a_small_weight_is_in_the_message_wherever_it_is_stored(tmp_path: Path) -> None:
    model = load(external(tmp_path, LOCATION, ("offset", "8"), ("length", "16")))
    assert model.proto.graph.initializer[0] == numpy_helper.from_array(np.arange(2, 6, dtype=np.float32), "w")
    onnx.save(onnx.load(model.path), tmp_path / "inline.onnx")
    assert load(tmp_path / "inline.onnx").digest == model.digest


@each(
    ("entries", "said"),
    [
        ([("offset", "28")], "the weights of 'w' are bytes 28 to 44 of w.bin, which has 40"),
        ([("offset", "-4")], "the weights of 'w' are bytes -4 to 12 of w.bin, which has 40"),
        ([("offset", str(1 << 70))], f"the weights of 'w' are bytes {1 << 70:,} to {(1 << 70) + 16:,} of w.bin"),
        (
            [("length", "12")],
            "the weights of 'w' have 16 bytes by their type and shape, but the model says 12",
        ),
        (
            [("length", "20")],
            "the weights of 'w' have 16 bytes by their type and shape, but the model says 20",
        ),
        ([("length", "-16")], "the weights of 'w' are bytes 0 to -16 of w.bin"),
    ],
)
def test_a_range_that_does_not_fit_is_refused_with_the_numbers(
    tmp_path: Path, entries: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load(external(tmp_path, LOCATION, *entries))
    assert str(caught.value).startswith(said)
    assert caught.value.hint


@each("key", ["offset", "length"])
@each("text", ["", "16x", "16.0", "0x10", "1e1", "1_6", " 16", "+16", "١٦", "9" * 5000])
def test_an_offset_or_length_that_is_not_a_plain_number_is_refused(tmp_path: Path, key: str, text: str) -> None:
    """ONNX Runtime accepts digits and a minus sign, Python's `int` more."""
    with pytest.raises(ModelError) as caught:
        load(external(tmp_path, LOCATION, (key, text)))
    assert str(caught.value) == f"the weights of 'w' have the {key} {text!r}, which is not a number"
    assert caught.value.hint == "save the model again with the tool that wrote it"


@pytest.mark.parametrize("second", ["other.bin", "../w.bin"])
def test_two_locations_for_one_weight_are_refused(tmp_path: Path, second: str) -> None:
    """ONNX Runtime: "TensorProto external data has duplicate 'location' entries"."""
    for entries in ([LOCATION, ("location", second)], [("location", second), LOCATION]):
        with pytest.raises(ModelError, match="'w'"):
            load(external(tmp_path, *entries))


def test_a_weight_without_a_location_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the weights of 'w' are in '', which is not a file name"):
        load(external(tmp_path))


def test_an_external_weight_of_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load(external(tmp_path, LOCATION, data_type=99))
    assert "offset" not in str(caught.value)
    assert "'w'" in str(caught.value)


def test_4_bit_weights_are_packed(tmp_path: Path) -> None:
    model = load(external(tmp_path, LOCATION, number=5, data_type=TensorProto.INT4))
    assert model.proto.graph.initializer[0].raw_data == (tmp_path / "w.bin").read_bytes()[:3]


def test_an_empty_weight_may_be_anywhere_in_its_file(tmp_path: Path) -> None:
    model = load(external(tmp_path, LOCATION, ("offset", "40"), number=0))
    assert model.proto.graph.initializer[0].raw_data == b""


def test_a_file_with_many_weights_is_listed_once(tmp_path: Path) -> None:
    tensors = []
    for name, location in (("a", "w.bin"), ("b", "w.bin"), ("c", "sub/w.bin")):
        tensors.append(
            TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
        )
        tensors[-1].external_data.add(key="location", value=location)
    (tmp_path / "sub").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (tmp_path / "sub/w.bin").write_bytes(bytes(9))
    (tmp_path / "model.onnx").write_bytes(drawn("Sum: x a b c > y", weights=tensors).SerializeToString())
    assert load(tmp_path / "model.onnx").data == {
        "w.bin": (tmp_path / "w.bin", 8),
        "sub/w.bin": (tmp_path / "sub/w.bin", 9),
    }


def test_a_model_in_a_hugging_face_cache_is_read_through_its_links(tmp_path: Path) -> None:
    """Model and data are links into `blobs/`, and the inline weight lies in the model itself."""
    snapshot, blobs = tmp_path / "snapshots/5f3a", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    inline, outside = (
        numpy_helper.from_array(np.full(500, value, np.float32), name) for name, value in (("i", 1), ("o", 2))
    )
    path = tmp_path / "model.onnx"
    onnx.save(
        model_of([node("Sum: x o > y")], [floats("x", 500)], [floats("y", 500)], [outside]),
        path,
        save_as_external_data=True,
        location="w.bin",
    )
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(inline)
    model.graph.node[0].input.append("i")
    (blobs / "aa11").write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").rename(blobs / "bb22")
    (snapshot / "model.onnx").symlink_to("../../blobs/aa11")
    (snapshot / "w.bin").symlink_to("../../blobs/bb22")
    opened = load(snapshot / "model.onnx")
    found = {tensor.name: read_bytes(opened.range_of(tensor)) for tensor in opened.proto.graph.initializer}
    assert found == {"i": inline.raw_data, "o": np.full(500, 2, np.float32).tobytes()}
    assert {path.resolve() for path, _ in opened.data.values()} == {blobs / "aa11", blobs / "bb22"}


def test_training_info_is_kept_with_a_note(opened: Draw) -> None:
    model = drawn("Neg: x > y")
    model.training_info.add().algorithm.name = "sgd"
    read = opened(model)
    assert read.proto.training_info[0].algorithm.name == "sgd"
    assert read.notes == ("training_info refers to weights of the whole model; parts don't contain it",)


def with_spoiled_text(folder: Path, text: bytes) -> Path:
    """A model one text of which is not UTF-8, as protobuf's `string` has to be; upb hands it out as bytes."""
    first = node("Relu: x_in > mid_", name="node")
    first.metadata_props.add(key="namespace", value="meta/Neg")
    inputs, outputs = [floats("x_in", "symb")], [floats("y", "symb")]
    model = model_of([first, node("Neg: mid_ > y")], inputs, outputs, [weight("idle", 1)])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(text, b"\xff\xfe\xfd\xfc"))
    return path


@each("text", [b"Relu", b"node", b"mid_", b"x_in", b"symb", b"idle"])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        load(with_spoiled_text(tmp_path, text))
    assert caught.value.hint


def test_metadata_that_is_not_utf_8_is_refused_or_ignored(tmp_path: Path) -> None:
    with contextlib.suppress(ModelError):
        assert names(load(with_spoiled_text(tmp_path, b"meta"))) == ["node", "y"]


@each(
    ("shape", "elem", "is_refused"),
    [
        ((2, 4), TensorProto.FLOAT, False),
        ((2, 5), TensorProto.FLOAT, False),
        (("n", 4), TensorProto.FLOAT, False),
        ((2, 4), TensorProto.INT32, True),
        ((3, 5), TensorProto.FLOAT, True),
        ((2, 4, 1), TensorProto.FLOAT, True),
    ],
)
def test_a_named_state_must_be_able_to_become_its_input(
    shape: tuple[int | str, ...], elem: int, tmp_path: Path, *, is_refused: bool
) -> None:
    """It may grow along one axis."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["z"])]
    reads = [floats("x", 2, 4), helper.make_tensor_value_info("s", elem, shape)]
    writes = [floats("y", 2, 4), helper.make_tensor_value_info("z", elem, shape)]
    onnx.save(model_of(nodes, reads, writes), tmp_path / "m.onnx")
    if is_refused:
        with pytest.raises(UsageError, match=r"'z' is .*, and can't become the input 'x', which is float32\[2,4\]"):
            load(tmp_path / "m.onnx", states={"x": "z"})
    else:
        assert load(tmp_path / "m.onnx", states={"x": "z"}).states == {"x": "z"}


def test_models_that_differ_in_dims_alone_are_sized_once_for_the_same_numbers(opened: Draw) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = opened(model_of(nodes, [floats("x", "n")], [floats("y", "n")]))
    first, again, other = (model.with_dims({"n": n}) for n in (2, 2, 3))
    assert first.sizes is again.sizes
    assert (first.tensor_bytes["y"], other.tensor_bytes["y"], model.tensor_bytes["y"]) == (
        (8, True),
        (12, True),
        (4, False),
    )
