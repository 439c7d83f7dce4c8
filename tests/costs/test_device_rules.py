"""Rules of devices: files, which nodes they let run, and why not others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, helper, numpy_helper

import graphcut
from graphcut import Model, RecordError, device_support, read_cluster, read_rules, shipped_rules, weigh
from graphcut.costs.device_rules import AttributeRule, DeviceRules, OperatorRule, RefusedNodes
from graphcut.costs.device_support import refusals

from cases import each
from conftest import doubling, floats, model_of

Read = Callable[[str], DeviceRules]
Open = Callable[[ModelProto], Model]
WEIGHT = numpy_helper.from_array(np.zeros((2, 2, 1, 1), dtype=np.float32), "w")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def written(text: str) -> DeviceRules:
        (tmp_path / "npu.toml").write_text(text, encoding="utf-8")
        return read_rules(tmp_path / "npu.toml")

    return written


def convolution(*sizes: int | str, **attributes: Any) -> ModelProto:  # noqa: ANN401
    """A convolution with a kernel of 1, and behind it Relu."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", **attributes),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    shape = sizes or (1, 2, 4, 4)
    return model_of(nodes, [floats("x", *shape)], [floats("y", *shape)], [WEIGHT])


def why(model: Model, *operators: OperatorRule, **rules: Any) -> list[str | None]:  # noqa: ANN401
    """Why each node is refused."""
    made = DeviceRules(name="npu", operators=operators, **rules)
    return [None if one is None else f"{one.kind}: {one.why}" for one in refusals(weigh(model), made)]


def test_a_rule_file_is_read_with_sizes_in_words(read: Read) -> None:
    found = read(
        """
        name = "npu"
        types = ["float16"]
        largest_tensor_bytes = "16MB"
        largest_part_bytes = "3.5GB"
        refused = [{ nodes = ["/head/*"], why = "wrong numbers" }]
        [[operators]]
        ops = ["Conv"]
        opset_from = 11
        largest_tensor_bytes = "1MiB"
        attributes = [{ name = "group", any_of = [1] }]
        """
    )
    conv = OperatorRule(
        ops=("Conv",), opset_from=11, largest_tensor_bytes=2**20, attributes=(AttributeRule(name="group", any_of=(1,)),)
    )
    assert found == DeviceRules(
        name="npu",
        types=("float16",),
        largest_tensor_bytes=16_000_000,
        largest_part_bytes=3_500_000_000,
        refused=(RefusedNodes(nodes=("/head/*",), why="wrong numbers"),),
        operators=(conv,),
    )


@each(
    "text, message, hint",
    [
        (
            'name = "a"\ntypes = ["float"]',
            "there is no element type 'float'; did you mean 'float64'? types are",
            "rule-file",
        ),
        (
            'name = "a"\n[[operators]]\nops = ["Convolution"]',
            "operators[0]: ONNX has no operator 'Convolution'",
            "domain",
        ),
        ('name = "a"\nop = 1', "Object contains unknown field `op`", "rule-file"),
        (
            'name = "a"\n[[operators]]\nops = ["Conv"]\nranks = ["4"]',
            "operators[0].ranks[0]: Expected `int`",
            "rule-file",
        ),
        ('name = "a"\nlargest_part_bytes = "much"', "much", ""),
        ('name = "a"\nmost_part_nodes = 0', "most_part_nodes: Expected `int` >= 1", "rule-file"),
        ('name = "a"\nlargest_tensor_bytes = -1', "largest_tensor_bytes: Expected `int` >= 1", "rule-file"),
        ("name = ", "is not TOML", "rule-file"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, message: str, hint: str, read: Read) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "npu.toml" in str(caught.value)
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_names_those_that_are_shipped() -> None:
    with pytest.raises(RecordError) as caught:
        read_rules("npu2.toml")
    assert "coreml, rknn, tidl, xnnpack" in caught.value.hint


def test_a_node_needs_one_rule_that_takes_it(opened: Open) -> None:
    model = opened(convolution())
    conv, relu = OperatorRule(ops=("Conv",)), OperatorRule(ops=("Relu",))
    assert why(model) == [None, None]
    assert why(model, conv) == [None, "operator: no such operator"]
    assert why(model, OperatorRule(ops=("Conv",), ranks=(3,)), conv, relu) == [None, None]


@each(
    "rule, reason",
    [
        (OperatorRule(ops=("Conv",), opset_to=5), "opset: opset 17, and it has 1 to 5"),
        (OperatorRule(ops=("Conv",), types=("float16",)), "type: type float32"),
        (OperatorRule(ops=("Conv",), ranks=(3, 5)), "rank: rank 4"),
        (
            OperatorRule(ops=("Conv",), attributes=(AttributeRule(name="dilations", any_of=(1,)),)),
            "attribute: dilations is 2, 2",
        ),
        (
            OperatorRule(ops=("Conv",), attributes=(AttributeRule(name="dilations", at_most=1),)),
            "attribute: dilations is 2, 2",
        ),
        (OperatorRule(ops=("Conv",), attributes=(AttributeRule(name="group", at_least=2),)), "attribute: group is 1"),
        (OperatorRule(ops=("Conv",), largest_tensor_bytes=127), "size: a tensor of more than 127 B"),
        (OperatorRule(ops=("Conv",), constant_inputs=(0, 1)), "input: input 0 is no constant"),
    ],
)
def test_a_rule_says_what_it_refuses(rule: OperatorRule, reason: str, opened: Open) -> None:
    """The group is left out: its default is 1."""
    assert why(opened(convolution(dilations=[2, 2])), rule, OperatorRule(ops=("Relu",))) == [reason, None]


def test_what_an_operator_does_not_say_is_as_for_the_whole_device(opened: Open) -> None:
    model, relu = opened(convolution()), OperatorRule(ops=("Relu",))
    own = OperatorRule(ops=("Conv",), types=("float32",))
    assert why(model, own, relu, types=("float16",)) == [None, "type: type float32"]


def test_a_shape_is_static_once_its_symbols_have_numbers(opened: Open) -> None:
    model = opened(convolution("n", 2, 4, 4))
    assert why(model, static_shapes=True) == ["shape: dynamic shape"] * 2
    (row,) = {
        row.helps for row in device_support(weigh(model), DeviceRules(name="npu", static_shapes=True)).unsupported
    }
    assert row == "`dims` for n"
    assert why(graphcut.load(model, dims={"n": 1}), static_shapes=True) == [None, None]


def test_constant_integers_have_any_type(opened: Open) -> None:
    shape = numpy_helper.from_array(np.array([4], dtype=np.int64), "s")
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    model = opened(model_of([node], [floats("x", 2, 2)], [floats("y", 4)], [shape]))
    assert why(model, types=("float32",)) == [None]


def test_nodes_are_told_by_names_and_globs(opened: Open) -> None:
    model = opened(convolution())
    assert why(model, nodes=("c*",)) == [None, "node: not named in the rules"]
    assert why(model, refused=(RefusedNodes(nodes=("c*",), why="too slow"),)) == ["node: too slow", None]


def test_what_is_inside_a_node_counts(opened: Open) -> None:
    def branch(op: str) -> GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}.y"])], op, [], [floats(f"{op}.y", 2)])

    test = helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch("Relu"), else_branch=branch("Tanh"))
    condition = helper.make_tensor_value_info("c", 9, [])
    model = opened(model_of([test], [condition, floats("x", 2)], [floats("y", 2)], []))
    choice, relu = OperatorRule(ops=("If",)), OperatorRule(ops=("Relu",))
    assert why(model, choice, relu) == ["operator: Tanh inside"]
    assert why(model, choice, OperatorRule(ops=("Relu", "Tanh"))) == [None]


def test_a_function_is_judged_by_what_it_does(opened: Open) -> None:
    model = opened(doubling(2))
    ops = {node.op_type for function in model.proto.functions for node in function.node if not node.domain}
    known = OperatorRule(ops=tuple(sorted(ops)))
    assert [reason for reason in why(model, known) if reason] == []
    assert "inside" in str(why(model, OperatorRule(ops=("Conv",)))[0])


def test_shares_are_of_all_flops_and_of_all_time(opened: Open) -> None:
    model = opened(convolution())
    costs = weigh(model)
    found = device_support(costs, DeviceRules(name="npu", operators=(OperatorRule(ops=("Conv",)),)))
    (row,) = found.unsupported
    assert (found.nodes, found.supported, row.op, row.nodes) == (2, 1, "Relu", ("relu",))
    assert row.flops_share == costs.flops[1] / sum(costs.flops)
    assert row.flops_share + found.flops_share == pytest.approx(1)


@each("name", shipped_rules())
def test_shipped_rules_name_their_source_and_version(name: str) -> None:
    rules = read_rules(name)
    assert rules.source.startswith("https://")
    assert rules.version
    assert rules.operators


def test_devices_of_a_cluster_name_rule_files_beside_it_or_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "npu.toml").write_text('name = "npu"\nranks = [4]\n', encoding="utf-8")
    text = '[[devices]]\nname = "a"\nrules = "npu.toml"\n[[devices]]\nname = "b"\nrules = "xnnpack"\n'
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert [device.rules for device in cluster.devices] == [read_rules(tmp_path / "npu.toml"), read_rules("xnnpack")]


def test_what_is_printed_as_json_can_be_read_as_rules(tmp_path: Path, opened: Open) -> None:
    from graphcut.drawing.json_records import dumps

    rules = read_rules("tidl")
    (tmp_path / "npu.json").write_text(dumps(device_support(weigh(opened(convolution())), rules)), encoding="utf-8")
    assert json.loads((tmp_path / "npu.json").read_text(encoding="utf-8"))["format"] == "graphcut.support/1"
    assert read_rules(tmp_path / "npu.json") == rules
