"""Axis classes and their division: what belongs together, what blocks a class, who gets how many units."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from graphcut import Model, UsageError
from graphcut.core.tensors import BITS, ELEMENT_TYPES
from graphcut.costs.device_groups import RankMode
from graphcut.loading.operations import operations_of
from graphcut.sharding.axes.classes import Blocker, _common, _units
from graphcut.sharding.axes.division import Divider, StageShares, apportion
from graphcut.sharding.axes.factors import Place
from graphcut.sharding.axes.layouts import Layout, common_layouts

from conftest import floats, model_of, weight

Open = Callable[[ModelProto], Model]


def mlp(*between: NodeProto, out: str = "h") -> ModelProto:
    """x → MatMul → h → ... → MatMul → y, with eight columns between."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], name="up"),
        *between,
        helper.make_node("MatMul", [out, "down"], ["y"], name="down"),
    ]
    return model_of(nodes, [floats("x", "n", 6)], [floats("y", "n", 6)], [weight("up", 6, 8), weight("down", 8, 6)])


def divided(model: Model, mode: RankMode) -> list[list[str]]:
    """The names of the nodes of each divided class."""
    names = [node.name for node in model.graph.nodes]
    division = Divider(model, mode).divide((1, 1))
    return [sorted(names[node] for node in found.factors) for found in division.classes]


def test_an_input_or_output_that_a_node_does_not_have_has_no_shape(opened: Open) -> None:
    up = operations_of(opened(mlp()))[0]
    assert ([up.read(slot) for slot in range(3)], up.written(1)) == ([("n", 6), (6, 8), None], None)


def test_a_contracted_axis_ends_a_class_with_a_sum(opened: Open) -> None:
    relu = helper.make_node("Relu", ["h"], ["r"], name="relu")
    division = Divider(opened(mlp(relu, out="r")), "sum").divide((1, 1))
    assert [join.tensor for join in division.joins] == ["y"]
    assert division.joins[0].is_sum
    assert division.classes[0].axes.units == 2  # columns of a weight are divided in fours


def test_a_rank_without_a_share_gets_no_units(opened: Open) -> None:
    division = Divider(opened(mlp()), "sum").divide((1, 0, 1))
    assert [found.units for found in division.classes] == [(1, 0, 1)]


def test_nodes_of_a_stage_with_one_rank_are_not_candidates_for_a_division(opened: Open) -> None:
    second = mlp(helper.make_node("Relu", ["h"], ["r"], name="relu"), out="r")
    first = [
        helper.make_node("MatMul", ["w", "a"], ["b"], name="a"),
        helper.make_node("MatMul", ["b", "c"], ["x"], name="c"),
    ]
    second.graph.ClearField("input")
    nodes = [*first, *second.graph.node]
    weights = [*second.graph.initializer, weight("a", 6, 8), weight("c", 8, 6)]
    model = opened(model_of(nodes, [floats("w", "n", 6)], [floats("y", "n", 6)], weights))
    stages = [StageShares({0, 1}, (1, 0)), StageShares({2, 3, 4}, (1, 1))]
    division = Divider(model, "sum").divide((1, 1), stages)
    assert (sorted(division.class_of), division.alone) == ([2, 3, 4], {})


def test_exact_joins_before_the_contraction_and_divides_the_columns_after_it(opened: Open) -> None:
    relu = helper.make_node("Relu", ["h"], ["r"], name="relu")
    model = opened(mlp(relu, out="r"))
    assert divided(model, "sum") == [["down", "relu", "up"]]
    assert divided(model, "exact") == [["relu", "up"], ["down"]]
    assert [(j.tensor, j.is_sum) for j in Divider(model).divide((1, 1)).joins] == [("r", False), ("y", False)]


@pytest.mark.parametrize("op", ["Softmax", "Hardmax"])
def test_an_operator_that_needs_an_axis_whole_or_has_no_rule_blocks_its_class(op: str, opened: Open) -> None:
    model = opened(mlp(helper.make_node(op, ["h"], ["s"], name="whole"), out="s"))
    names = [node.name for node in model.graph.nodes]
    found = Divider(model, "sum").divide((1, 1))
    assert {(names[b.node], b.reason) for one in found.analysis.classes for b in one.blockers} == {("whole", op)}
    # Its neighbours are divided by themselves: the output of `up` is joined at once, `down` reads whole rows.
    assert divided(model, "sum") == [["up"], ["down"]]


def test_a_tensor_that_a_subgraph_reads_blocks_its_class_and_a_weight_that_one_reads_does_not(opened: Open) -> None:
    """The whole tensor is there for the subgraph if its writer is divided by itself, as before any other reader."""
    cut = helper.make_node("MatMul", ["h", "down"], ["t"])
    then = helper.make_graph([cut], "then", [], [floats("t", "n", 6)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [floats("e", "n", 6)])
    choice = helper.make_node("If", ["is so"], ["i"], then_branch=then, else_branch=other, name="choice")
    proto = mlp(choice)
    proto.graph.input.append(helper.make_tensor_value_info("is so", TensorProto.BOOL, []))
    proto.graph.output.append(floats("i", "n", 6))
    model = opened(proto)
    found = Divider(model, "sum").divide((1, 1))
    names = [node.name for node in model.graph.nodes]
    assert {(names[b.node], b.reason) for one in found.analysis.classes for b in one.blockers} == {("choice", "If")}
    assert divided(model, "sum") == [["up"], ["down"]]


def test_one_bias_that_two_layers_share_does_not_tie_them_together(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], name="first"),
        helper.make_node("Add", ["p", "zero"], ["q"], name="bias"),
        helper.make_node("Softmax", ["q"], ["s"], name="whole"),
        helper.make_node("MatMul", ["s", "b"], ["t"], name="second"),
        helper.make_node("Add", ["t", "zero"], ["y"], name="bias again"),
    ]
    weights = [weight("a", 8, 8), weight("b", 8, 8), weight("zero", 8)]
    model = opened(model_of(nodes, [floats("x", 3, 8)], [floats("y", 3, 8)], weights))
    assert divided(model, "exact") == [["bias again", "second"], ["first"]]


def test_a_node_with_two_axes_in_a_class_blocks_it(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0], name="turn"),
        helper.make_node("MatMul", ["t", "h"], ["y"], name="square"),
    ]
    model = opened(model_of(nodes, [floats("x", 3, 6)], [floats("y", 8, 8)], [weight("w", 6, 8)]))
    found = Divider(model).divide((1, 1))
    assert divided(model, "exact") == [["product"]]
    assert [join.tensor for join in found.joins] == ["h"]


def test_queries_keys_and_values_in_one_weight_are_divided_each_by_itself(opened: Open) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["qkv"], name="product"),
        helper.make_node("Add", ["qkv", "b"], ["qkvb"], name="bias"),
        helper.make_node("Split", ["qkvb", "sizes"], ["q", "k"], axis=1, name="cut"),
        helper.make_node("Reshape", ["q", "heads"], ["qh"], name="q heads"),
        helper.make_node("Reshape", ["k", "kv heads"], ["kh"], name="k heads"),
        helper.make_node("Expand", ["kh", "repeat"], ["kr"], name="repeat"),
        helper.make_node("Add", ["qh", "kr"], ["y"], name="together"),
    ]
    weights = [weight("w", 6, 24), weight("b", 24)]
    shapes = {"sizes": [16, 8], "heads": [3, 2, 2, 4], "kv heads": [3, 2, 1, 4], "repeat": [3, 2, 2, 4]}
    weights += [numpy_helper.from_array(np.array(values), name) for name, values in shapes.items()]
    model = opened(model_of(nodes, [floats("x", 3, 6)], [floats("y", 3, 2, 2, 4)], weights))
    division = Divider(model).divide((1, 1))
    (found,) = division.classes
    assert found.axes.units == 2
    layouts = {use.tensor: layout for use, layout in found.axes.layouts.items()}
    assert layouts["w"] == Layout(1, (16, 8))
    assert [found.runs(layouts["w"], rank) for rank in (0, 1)] == [((0, 8), (16, 20)), ((8, 16), (20, 24))]
    assert layouts["kh"] == Layout(1, (2,))


@pytest.mark.parametrize(
    ("segments", "units", "runs"),
    [
        ((4, 8), 6, 2),  # 2 and 4 items of 2 elements
        ((5, 5), 5, 1),  # each ends within an item of 2
        ((6,), 4, 1),  # are no four equal items
    ],
)
def test_a_run_of_a_segment_holds_whole_items(segments: tuple[int, ...], units: int, runs: int) -> None:
    assert _units(segments, Place(slot=0, axis=0), units) == runs


def test_elements_of_segments_with_labels_may_go_anywhere() -> None:
    assert _units((3, 9), Place(0, 0, segments=(3, 9), labels=(0, 1)), 3) == 3


def test_segments_of_keys_are_those_of_the_weight_behind_its_queries() -> None:
    """Of 12 columns, 8 are of queries; a later Split cuts the keys into 1 and 3."""
    product = [("w", Place(1, 1)), ("qk", Place(0, 1))]
    labels = (0, 1)
    cut = [("qk", Place(0, 1, (8, 4), labels)), ("q", Place(0, 1, labels=(0,))), ("k", Place(1, 1, labels=(1,)))]
    keys = [("k", Place(0, 1, (1, 3), labels)), ("k0", Place(0, 1, labels=(0,))), ("k1", Place(1, 1, labels=(1,)))]
    found = common_layouts({"w": 12, "qk": 12, "q": 8, "k": 4, "k0": 1, "k1": 3}, [product, cut, keys])
    assert found == {"w": (8, 1, 3), "qk": (8, 1, 3), "q": (8,), "k": (1, 3), "k0": (1,), "k1": (3,)}


def test_axes_without_common_segments_of_whole_sizes_have_no_layout() -> None:
    """Six columns in 2 and 4 are no three rows of 2 each: the first of two such rows ends at a half of the second."""
    rows = [("columns", Place(0, 1)), ("rows", Place(0, 1))]
    assert common_layouts({"columns": 6, "rows": 3}, [rows]) == {"columns": (6,), "rows": (3,)}
    cut = [("columns", Place(0, 1, (1, 5))), ("b", Place(0, 1))]
    assert common_layouts({"columns": 6, "rows": 3, "b": 6}, [rows, cut]) is None


@pytest.mark.parametrize(("parts", "has_layout"), [(63, True), (64, True), (65, False)])
def test_an_axis_has_up_to_64_segments(parts: int, *, has_layout: bool) -> None:
    places = [("all", Place(0, 0, (2,) * parts)), ("one", Place(0, 0))]
    assert (common_layouts({"all": 2 * parts, "one": 2}, [places]) is not None) == has_layout


def test_an_axis_of_unknown_size_is_one_unit_without_segments() -> None:
    assert _common((0, 4), [(4, [(0, Place(0, 0)), (1, Place(1, 0))])]) == ([], 1)


@pytest.mark.parametrize(
    ("kind", "groups", "inner", "units"), [("int4", 3, 2, [3]), ("uint2", 8, 1, [2]), ("uint2", 2, 1, [])]
)
def test_channels_of_few_bits_are_divided_into_whole_bytes(
    kind: str, groups: int, inner: int, units: list[int], opened: Open
) -> None:
    """A channel of two numbers of 4 bits is a byte, four of one number of 2 bits are; two of these stay together."""
    values, shape = bytes(-(-groups * inner * BITS[kind] // 8)), [groups, inner, 1, 1]
    narrow = TensorProto(name="narrow", data_type=ELEMENT_TYPES[kind].number, dims=shape, raw_data=values)
    nodes = [
        helper.make_node("DequantizeLinear", ["narrow", "scale"], ["wide"]),
        helper.make_node("Conv", ["x", "wide"], ["h"], group=groups),
        helper.make_node("Conv", ["h", "last"], ["y"]),
    ]
    weights = [narrow, weight("scale"), weight("last", 3, groups, 1, 1)]
    ends = floats("x", 1, groups * inner, 4, 4), floats("y", 1, 3, 4, 4)
    model = opened(model_of(nodes, ends[:1], ends[1:], weights, opset=25))
    classes = [found.axes for found in Divider(model, "sum").divide((1, 1)).classes]
    assert [one.units for one in classes if "narrow" in {use.tensor for use in one.layouts}] == units


def test_units_are_whole_and_ranks_that_got_less_come_first_next_time() -> None:
    owed = [Fraction(0)] * 3
    given = []
    for _ in range(3):
        units, owed = apportion(4, (1, 1, 1), owed, 100)
        given.append(units)
    assert given == [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
    assert owed == [0, 0, 0]


@pytest.mark.parametrize(
    ("units", "shares", "owed", "most", "expected"),
    [
        (3, (1, 0, 1), (-100, 0, -100), 3, (2, 0, 1)),  # the second one has no share, and owes nothing
        (4, (10, 1), (0, 0), 3, (3, 1)),  # 3.6 and 0.4
        (4, (10, 1), (0, 0), 4, (4, 0)),
    ],
)
def test_what_is_left_of_units_is_given_to_a_rank_with_a_share_and_room(
    units: int, shares: tuple[int, ...], owed: tuple[int, ...], most: int, expected: tuple[int, ...]
) -> None:
    assert apportion(units, shares, [Fraction(debt) for debt in owed], units * 100, most=most)[0] == expected


@pytest.mark.parametrize(
    ("mode", "rows", "received"),
    [("exact", 3, (3 * 8 * 4 + 3 * 6 * 4) // 2), ("sum", 3, 3 * 6 * 4), ("exact", "n", None)],
)
def test_a_rank_receives_what_it_lacks_of_joined_pieces_and_the_sums_of_the_others(
    mode: RankMode, rows: int | str, received: int | None, opened: Open
) -> None:
    """Half of each tensor that two ranks join; of a sum, all of the other one's."""
    proto = mlp(helper.make_node("Relu", ["h"], ["r"], name="relu"), out="r")
    for value in (*proto.graph.input, *proto.graph.output):
        value.CopyFrom(floats(value.name, rows, 6))
    received_bytes, is_exact = Divider(opened(proto), mode).divide((1, 1)).received_bytes
    assert is_exact == (received is not None)
    assert received in {None, received_bytes}


@pytest.mark.parametrize("shares", [(1,), (2, 0), (1, -1, 3)])
def test_shares_that_divide_nothing_are_refused(shares: tuple[int, ...], opened: Open) -> None:
    with pytest.raises(UsageError, match="don't divide anything"):
        Divider(opened(mlp())).divide(shares)


def test_what_is_not_divided_is_named_with_what_blocks_it(opened: Open) -> None:
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=4, name="cell")]
    weights = [weight("w", 1, 16, 6), weight("r", 1, 16, 4)]
    model = opened(model_of(nodes, [floats("x", 5, 1, 6)], [floats("y", 1, 1, 4)], weights))
    assert Divider(model).divide((1, 1)).alone == {0: Blocker(0, "no rule for its weights, or too few columns")}


def test_a_tensor_that_one_node_reads_divided_and_whole_is_joined(opened: Open) -> None:
    nodes = [
        helper.make_node(op, reads, writes, name=writes[0])
        for op, reads, writes in (("MatMul", ["x", "w"], ["h"]), ("MatMul", ["h", "h"], ["y"]))
    ]
    model = opened(model_of(nodes, [floats("x", 8, 6)], [floats("y", 8, 8)], [weight("w", 6, 8)]))
    found = Divider(model).divide((1, 1))
    assert [sorted(one.factors) for one in found.classes] == [[0, 1]]
    assert [join.tensor for join in found.joins] == ["h", "y"]


def test_a_bias_alone_makes_no_class(opened: Open) -> None:
    node = helper.make_node("Gemm", ["a", "b", "bias"], ["y"])
    model = model_of([node], [floats("a", 8, 8), floats("b", 8, 8)], [floats("y", 8, 8)], [weight("bias", 8)])
    assert divided(opened(model), "exact") == []
