"""Key nodes, segments, the cut profile and its cut points, and what a model repeats."""

# ruff: noqa: S311 - seeds make the same graphs each time, and keep no secrets

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import Analysis, At, CutPoint, Model, analyze
from graphcut.analysis.liveness import Liveness
from graphcut.analysis.repeated_blocks import find_repeat
from graphcut.core.graph import Graph
from graphcut.demos import write

from cases import each
from conftest import Draw, floats, model_of


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.arange(math.prod(shape), dtype=np.float32).reshape(shape), name)


def names(analysis: Analysis, nodes: Sequence[int]) -> list[str]:
    return [analysis.model.graph.nodes[i].name for i in nodes]


# The figure: two residual blocks and two heads.
#
#   x ─▶ stem ─▶ p ─▶ left ──▶ merge ─▶ q ─▶ up ─▶ y
#           ╲         right ─▶   │             ╲
#            ╲─────────────────────────▶ skip ──▶ z
FIGURE = (
    helper.make_node("MatMul", ["x", "w"], ["p"], name="stem"),
    helper.make_node("Relu", ["p"], ["l"], name="left"),
    helper.make_node("Neg", ["p"], ["r"], name="right"),
    helper.make_node("Add", ["l", "r"], ["m"], name="merge"),
    helper.make_node("Mul", ["m", "v"], ["q"], name="scale"),
    helper.make_node("Exp", ["q"], ["y"], name="up"),
    helper.make_node("Sub", ["p", "q"], ["z"], name="skip"),
)


@pytest.fixture
def figure(opened: Draw) -> Analysis:
    outputs = [floats("y", "n", 4), floats("z", "n", 4)]
    proto = model_of(FIGURE, [floats("x", "n", 4)], outputs, [weight("w", 4, 4), weight("v", 4)])
    return analyze(opened(proto, dims={"n": 2}))


# Key nodes


def test_key_nodes_have_one_data_input_and_two_readers(figure: Analysis) -> None:
    """`stem` and `scale` read one activation and one weight; `merge` reads two activations; `left` has one reader."""
    assert names(figure, figure.key_nodes) == ["stem", "scale"]


def key_nodes_of(
    opened: Draw, *nodes: NodeProto, outputs: Sequence[str], weights: Sequence[TensorProto] = ()
) -> list[str]:
    values = [floats(name, 4) for name in outputs]
    analysis = analyze(opened(model_of(nodes, [floats("x", 4), floats("u", 4)], values, weights)))
    return names(analysis, analysis.key_nodes)


def test_a_reader_that_reads_twice_is_one_reader(opened: Draw) -> None:
    relu = helper.make_node("Relu", ["x"], ["a"], name="relu")
    square = helper.make_node("Mul", ["a", "a"], ["y"], name="square")
    assert key_nodes_of(opened, relu, square, outputs=["y"]) == []


def test_an_output_of_the_model_is_no_reader(opened: Draw) -> None:
    relu = helper.make_node("Relu", ["x"], ["a"], name="relu")
    neg = helper.make_node("Neg", ["a"], ["y"], name="neg")
    assert key_nodes_of(opened, relu, neg, outputs=["y", "a"]) == []


def test_readers_of_different_outputs_count_together(opened: Draw) -> None:
    split = helper.make_node("Split", ["x"], ["a", "b"], name="split")
    readers = [helper.make_node("Neg", [name], [f"{name}y"], name=f"neg {name}") for name in ("a", "b")]
    assert key_nodes_of(opened, split, *readers, outputs=["ay", "by"]) == ["split"]


def test_an_input_read_twice_is_one_data_input(opened: Draw) -> None:
    square = helper.make_node("Mul", ["x", "x"], ["a"], name="square")
    product = helper.make_node("Mul", ["x", "u"], ["b"], name="product")
    ends = [helper.make_node(op, [name], [f"{name}{op}"]) for name in "ab" for op in ("Neg", "Exp")]
    outputs = [f"{name}{op}" for name in "ab" for op in ("Neg", "Exp")]
    assert key_nodes_of(opened, square, product, *ends, outputs=outputs) == ["square"]


def test_constants_do_not_count_as_data_inputs(opened: Draw) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(4, np.float32)))
    add = helper.make_node("Add", ["x", "c"], ["a"], name="add")
    ends = [helper.make_node(op, ["a"], [op]) for op in ("Neg", "Exp")]
    assert key_nodes_of(opened, constant, add, *ends, outputs=["Neg", "Exp"]) == ["add"]


def test_a_capture_of_a_subgraph_is_a_data_input_of_its_node(opened: Draw) -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["a"], [f"{op}_b"])], op, [], [floats(f"{op}_b", 4)])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("ReduceSum", ["a"], ["s"], name="sum", keepdims=0),
        helper.make_node("Cast", ["s"], ["flag"], name="cast", to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=branch("Neg"), else_branch=branch("Exp")),
    ]
    assert key_nodes_of(opened, *nodes, outputs=["y"]) == ["relu"]


# Segments


def test_segments_begin_at_key_nodes(figure: Analysis) -> None:
    found = [names(figure, block.nodes) for block in figure.segments.blocks]
    assert found == [["stem", "left", "right", "merge"], ["scale", "up", "skip"]]


def test_the_dependency_maps_of_the_segments(opened: Draw) -> None:
    """The next segment reads `a`, and so does the one after it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Exp", ["a"], ["b"], name="second"),
        helper.make_node("Neg", ["b"], ["c"], name="b1"),
        helper.make_node("Abs", ["b"], ["d"], name="third"),
        helper.make_node("Add", ["c", "d"], ["e"], name="d1"),
        helper.make_node("Mul", ["a", "d"], ["f"], name="d2"),
        helper.make_node("Add", ["e", "f"], ["y"], name="end"),
    ]
    analysis = analyze(opened(model_of(nodes, [floats("x", 4)], [floats("y", 4)])))
    assert names(analysis, analysis.key_nodes) == ["first", "second", "third"]
    assert [names(analysis, block.nodes) for block in analysis.segments.blocks] == [
        ["first"],
        ["second", "b1"],
        ["third", "d1", "d2", "end"],
    ]
    wiring = analysis.segments.wiring
    assert wiring.sequential == {0: {1: ("a",)}, 1: {2: ("b", "c")}}
    assert wiring.residual == {0: {2: ("a",)}}


def test_a_model_without_key_nodes_is_one_segment(opened: Draw) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    analysis = analyze(opened(model_of(nodes, [floats("x", 4)], [floats("y", 4)])))
    assert (analysis.key_nodes, len(analysis.segments.blocks)) == ((), 1)


# The cut profile and its cut points


def test_the_profile_of_the_figure(figure: Analysis) -> None:
    """32 bytes a tensor: p, then l and p, then l, r and p, then m and p, then q and p, then p and q again."""
    assert figure.profile == (32, 64, 96, 64, 64, 64, 0)


def test_the_cut_points_of_the_figure(figure: Analysis) -> None:
    # A cut after `up` costs as little, but no node names it: `up` has no reader, `stem` and `scale` name other cuts.
    def point(node: str, position: int, sent: tuple[str, ...], before: int, *, is_key: bool) -> CutPoint:
        after = 16 * (position < 5)
        return CutPoint(node, position, sent, 32 * len(sent), True, before, after, is_key, "")

    assert figure.cut_points == (
        point("stem", 1, ("p",), 64, is_key=True),
        point("merge", 4, ("p", "m"), 64, is_key=False),
        point("scale", 5, ("p", "q"), 80, is_key=True),
    )


def random_model(seed: int) -> ModelProto:
    """Up to 12 nodes; Concat makes sizes differ, and Dropout has a second output that may have no reader."""
    draw = random.Random(seed)
    standing, nodes, sizes = ["x"], [], {"x": draw.randint(1, 3)}
    for i in range(draw.randint(1, 12)):
        wide = [name for name in standing if not name.startswith("mask")]
        if draw.random() < 0.25:
            source = draw.choice(wide)
            nodes.append(helper.make_node("Dropout", [source], [f"t{i}", f"mask{i}"], name=f"n{i}"))
            sizes[f"t{i}"] = sizes[f"mask{i}"] = sizes[source]
            standing += [f"t{i}", f"mask{i}"]
        else:
            reads = draw.sample(wide, min(len(wide), draw.randint(1, 3)))
            nodes.append(helper.make_node("Concat", reads, [f"t{i}"], name=f"n{i}", axis=0))
            sizes[f"t{i}"] = sum(sizes[name] for name in reads)
            standing.append(f"t{i}")
    read = {name for node in nodes for name in node.input}
    ends = [name for name in standing if name.startswith("t") and name not in read]
    return model_of(nodes, [floats("x", sizes["x"])], [floats(name, sizes[name]) for name in ends])


def alive_after(model: Model, index: int) -> list[str]:
    """By the definition: written at this index or before, and read later."""
    graph = model.graph
    before = graph.flow[: index + 1]
    return [
        tensor
        for node in before
        for tensor in graph.nodes[node].writes
        if any(reader not in before for reader in graph.readers.get(tensor, ()))
    ]


def local_minima(profile: Sequence[int]) -> list[int]:
    """Indices of runs of equal values below both neighbours; no cut is after the last node."""
    runs = [list(run) for _, run in groupby(range(len(profile) - 1), key=lambda i: profile[i])]
    found: list[int] = []
    for number, run in enumerate(runs):
        falls = number == 0 or profile[runs[number - 1][0]] > profile[run[0]]
        rises = number == len(runs) - 1 or profile[runs[number + 1][0]] > profile[run[0]]
        if falls and rises:
            found += run
    return found


def name_for(model: Model, index: int) -> str:
    """The last node up to an index that has readers, all of them after it."""
    graph = model.graph
    for node in reversed(graph.flow[: index + 1]):
        readers = [reader for tensor in graph.nodes[node].writes for reader in graph.readers.get(tensor, ())]
        if readers and min(readers) > graph.flow[index]:
            return graph.nodes[node].name
    return ""


def test_the_profile_and_the_cut_points_are_those_of_the_definition(opened: Draw) -> None:
    for seed in range(150):
        analysis = analyze(opened(random_model(seed)))
        model = analysis.model
        alive = [alive_after(model, index) for index in range(len(model.graph.flow))]
        profile = [sum(model.tensor_bytes[tensor][0] for tensor in tensors) for tensors in alive]
        assert list(analysis.profile) == profile, f"seed {seed}"
        named: dict[int, str] = {}
        for index in local_minima(profile):
            if (name := name_for(model, index)) and name not in named.values():
                named[index] = name
        assert {point.nodes_before - 1: point.node for point in analysis.cut_points} == named, f"seed {seed}"
        for point in analysis.cut_points:
            index = point.nodes_before - 1
            assert sorted(point.boundary_tensors) == sorted(alive[index])
            assert point.bytes == profile[index]


def test_no_node_names_two_cut_points(opened: Draw) -> None:
    for seed in range(300):
        nodes = [point.node for point in analyze(opened(random_model(seed))).cut_points]
        assert len(set(nodes)) == len(nodes), (seed, nodes)


def test_a_cut_at_a_cut_point_sends_its_bytes_or_less(opened: Draw) -> None:
    for seed in range(150):
        analysis = analyze(opened(random_model(seed)))
        sizes = analysis.model.tensor_bytes
        for point in analysis.cut_points:
            plan = graphcut.plan(analysis, At((point.node,)))
            assert sum(sizes[name][0] for name in plan.partition.wiring.boundary_tensors) <= point.bytes, (seed, point)


def test_the_node_of_every_cut_point_can_be_cut_at(tmp_path: Path) -> None:
    write("multitask", tmp_path / "m.onnx")
    analysis = analyze(graphcut.load(tmp_path / "m.onnx"))
    for point in analysis.cut_points:
        assert len(graphcut.plan(analysis, At((point.node,))).parts) == 2


def test_bytes_of_unbound_symbols_are_a_lower_bound(opened: Draw) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["y"])]
    proto = model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)])

    def point_for(**options: object) -> tuple[int, bool]:
        (point,) = analyze(opened(proto, **options)).cut_points
        return point.bytes, point.is_exact

    assert point_for() == (16, False)
    assert point_for(dims={"n": 3}) == (48, True)


def test_a_weight_that_both_sides_read_counts_in_both(opened: Draw) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "shared"], ["a"], name="one"),
        helper.make_node("Add", ["a", "own"], ["b"], name="two"),
        helper.make_node("MatMul", ["b", "shared"], ["y"], name="three"),
    ]
    proto = model_of(nodes, [floats("x", 4, 4)], [floats("y", 4, 4)], [weight("shared", 4, 4), weight("own", 4)])
    model = opened(proto)
    points = analyze(model).cut_points
    assert [(p.node, p.weights_before, p.weights_after) for p in points] == [("one", 64, 80), ("two", 80, 64)]
    assert [*Liveness(model.graph, model.graph.flow, model.tensor_bytes).weights_after] == [80, 64, 0]


def test_a_weight_behind_a_constant_expression_counts_where_it_is_read(opened: Draw) -> None:
    nodes = [
        helper.make_node("Neg", ["w"], ["c"], name="constant"),
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Add", ["a", "c"], ["y"], name="add"),
    ]
    points = analyze(opened(model_of(nodes, [floats("x", 4)], [floats("y", 4)], [weight("w", 4)]))).cut_points
    assert [(p.node, p.nodes_before, p.weights_before, p.weights_after) for p in points] == [("relu", 1, 0, 16)]


def test_one_node_has_no_cut_point(opened: Draw) -> None:
    analysis = analyze(opened(model_of([helper.make_node("Relu", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4)])))
    assert (analysis.profile, analysis.cut_points, analysis.key_nodes, analysis.repeat) == ((0,), (), (), None)


# Repeated blocks


def repeat_of(path: Path) -> str:
    return str(analyze(graphcut.load(path)).repeat)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "llm.onnx"
    write("llm", path, layers=4, hidden=16, vocab=32)
    return path


@each("layers", [2, 3, 4, 5, 6])
def test_the_layers_of_a_decoder_are_recognized(layers: int, tmp_path: Path) -> None:
    write("llm", tmp_path / "llm.onnx", layers=layers, hidden=16, vocab=32)
    assert repeat_of(tmp_path / "llm.onnx") == f"{layers} \u00d7 layer, embedding before, norm and head after"


def test_layers_are_recognized_without_names(decoder: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    proto = onnx.load(decoder)
    called: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return called.setdefault(name, f"v{draw.randrange(10**12)}")

    for node in proto.graph.node:
        node.name = f"n{draw.randrange(10**12)}"
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        node.ClearField("metadata_props")
    for field in (proto.graph.input, proto.graph.output, proto.graph.initializer, proto.graph.value_info):
        for value in field:
            value.name = new(value.name)
    onnx.save(proto, tmp_path / "nameless.onnx")
    assert repeat_of(tmp_path / "nameless.onnx") == "4 \u00d7 layer, embedding before, norm and head after"


def shuffled(proto: ModelProto, seed: int) -> ModelProto:
    """The same model, its nodes in another topological order."""
    draw = random.Random(seed)
    made = {value.name for field in (proto.graph.input, proto.graph.initializer) for value in field} | {""}
    waiting, order = list(proto.graph.node), []
    while waiting:
        node = draw.choice([node for node in waiting if made.issuperset(node.input)])
        waiting.remove(node)
        order.append(node)
        made.update(node.output)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in order]
    other = ModelProto.FromString(proto.SerializeToString())
    del other.graph.node[:]
    other.graph.node.extend(copies)
    return other


def test_layers_are_recognized_in_any_order_of_the_nodes(decoder: Path, tmp_path: Path) -> None:
    onnx.save(shuffled(onnx.load(decoder), 1), tmp_path / "shuffled.onnx")
    assert repeat_of(tmp_path / "shuffled.onnx") == "4 \u00d7 layer, embedding before, norm and head after"


def blocks(shapes: Sequence[int], *, stem: int = 3) -> ModelProto:
    """A residual network: a stem, and a block of two convolutions for each of `shapes`, all of that many channels."""
    width = shapes[0]
    nodes = [helper.make_node("Conv", ["x", "w"], ["s"], pads=[1, 1, 1, 1])]
    weights = [weight("w", width, stem, 3, 3)]
    before = "s"
    for i, channels in enumerate(shapes):
        for j, source in enumerate((before, f"r{i}0")):
            inner = width if j == 0 else channels
            weights.append(weight(f"w{i}{j}", channels, inner, 3, 3))
            nodes.append(helper.make_node("Conv", [source, f"w{i}{j}"], [f"c{i}{j}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{i}{j}"], [f"r{i}{j}"]))
        if channels == width:
            nodes.append(helper.make_node("Add", [before, f"r{i}1"], [f"b{i}"]))
        else:
            nodes.append(helper.make_node("Neg", [f"r{i}1"], [f"b{i}"]))
        before, width = f"b{i}", channels
    nodes.append(helper.make_node("GlobalAveragePool", [before], ["y"]))
    return model_of(nodes, [floats("x", 1, stem, 8, 8)], [floats("y", 1, width, 1, 1)], weights)


def test_equal_residual_blocks_are_recognized(opened: Draw) -> None:
    repeat = analyze(opened(blocks([4] * 5))).repeat
    assert repeat is not None
    assert str(repeat) == "5 \u00d7 block, convolutions before, 1 node after"
    assert repeat.blocks == tuple(tuple(range(first, first + 5)) for first in range(1, 26, 5))


def test_blocks_that_grow_do_not_repeat(opened: Draw) -> None:
    assert analyze(opened(blocks([2, 4, 6, 8, 10]))).repeat is None


def test_the_longer_of_two_repetitions_is_taken(opened: Draw) -> None:
    repeat = analyze(opened(blocks([2, 2, 4, 4, 4, 4]))).repeat
    assert repeat is not None
    assert [len(block) for block in repeat.blocks] == [5, 5, 5]


def test_a_chain_that_repeats_nothing_has_no_blocks(opened: Draw) -> None:
    ops = ["Relu", "Neg", "Exp", "Abs", "Sigmoid", "Tanh", "Floor", "Ceil"]
    nodes = [helper.make_node(op, [f"t{i}"], [f"t{i + 1}"]) for i, op in enumerate(ops)]
    assert analyze(opened(model_of(nodes, [floats("t0", 4)], [floats("t8", 4)]))).repeat is None


def test_the_same_operator_with_other_attributes_does_not_repeat(opened: Draw) -> None:
    nodes = [helper.make_node("Elu", [f"t{i}"], [f"t{i + 1}"], alpha=float(i + 1)) for i in range(8)]
    assert analyze(opened(model_of(nodes, [floats("t0", 4)], [floats("t8", 4)]))).repeat is None


def test_repeated_blocks_are_equal_and_do_not_overlap(opened: Draw) -> None:
    ops = ["Relu", "Neg", "Exp", "Abs"]
    nodes = [helper.make_node(ops[i % 4], [f"t{i}"], [f"t{i + 1}"]) for i in range(50)]
    graph: Graph = opened(model_of(nodes, [floats("t0", 4)], [floats("t50", 4)])).graph
    draw = random.Random(0)
    for _ in range(3000):
        block = [draw.randrange(3) for _ in range(draw.randint(1, 5))]
        labels = [draw.randrange(4) for _ in range(draw.randint(0, 6))]
        labels += block * draw.randint(0, 6) + [draw.randrange(4) for _ in range(draw.randint(0, 6))]
        repeat = find_repeat(graph, range(len(labels)), labels, [draw.randrange(5) for _ in labels])
        if repeat is not None:
            looks = [sorted(labels[i] for i in block) for block in repeat.blocks]
            assert looks == looks[:1] * len(looks), (labels, repeat)
            taken = [i for block in repeat.blocks for i in block]
            assert len(set(taken)) == len(taken), (labels, repeat)
            assert len(looks) >= 2
