"""States found by structure: which output an input becomes through operators that keep it, whatever its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from decoders import (
    with_attention,
    with_branches,
    with_buffer,
    with_combined,
    with_concat,
    with_group_query_attention,
    with_lstm,
    with_tensor_scatter,
)
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from graphcut import Model, load
from graphcut.costs.caches import decoder_sizes, find_caches, token_axis

from cases import each
from conftest import FIXTURES, floats, model_of
from control_flow import write_model

Open = Callable[..., Model]

PAST, NEW = floats("p", "batch", 2, "before", 8), floats("n", "batch", 2, "seq", 8)
PRESENT, OUT = floats("q", "batch", 2, "after", 8), floats("y", "batch", 2, "after", 8)


def found(model: Model) -> list[tuple[str, str, int | None]]:
    return [(cache.past, cache.present, token_axis(model, cache)) for cache in find_caches(model)]


def node(op: str, reads: Sequence[str], writes: Sequence[str], **attributes: int | Sequence[int]) -> NodeProto:
    return helper.make_node(op, reads, writes, None, None, None, None, **attributes)


def keeping(*nodes: NodeProto, past: ValueInfoProto = PAST, present: ValueInfoProto = PRESENT) -> ModelProto:
    """`p` becomes `q` by way of `nodes`, and `k` is used on the way."""
    return model_of([*nodes, node("Neg", ["k"], ["y"])], [past, NEW], [present, OUT])


@each(
    ("draw", "axes"),
    [
        (with_concat, [2] * 4),
        (with_combined, [3] * 2),
        (with_buffer, [2] * 4),
        (with_tensor_scatter, [2] * 4),
        (with_group_query_attention, [2] * 4),
        (with_attention, [2] * 4),
        (with_lstm, [None] * 2),
    ],
)
def test_the_axis_of_tokens_is_known_where_there_is_one(
    opened: Open, draw: Callable[[], ModelProto], axes: list[int | None]
) -> None:
    assert [axis for _, _, axis in found(opened(draw()))] == axes


def test_an_encoders_caches_are_states_that_do_not_grow_by_tokens(opened: Open) -> None:
    model = opened(with_branches())
    axes = {past: axis for past, _, axis in found(model)}
    assert len(axes) == 8
    assert {axis for past, axis in axes.items() if "decoder" in past} == {2}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Concat", ["p", "n"], ["q"], axis=2), node("Relu", ["q"], ["k"])],
        [
            node("Cast", ["p"], ["wide"], to=TensorProto.DOUBLE),
            node("Cast", ["n"], ["more"], to=TensorProto.DOUBLE),
            node("Concat", ["wide", "more"], ["k_wide"], axis=2),
            node("Cast", ["k_wide"], ["q"], to=TensorProto.FLOAT),
            node("Abs", ["k_wide"], ["used"]),
            node("Cast", ["used"], ["k"], to=TensorProto.FLOAT),
        ],
        [
            node("Transpose", ["p"], ["turned"], perm=[0, 2, 1, 3]),
            node("Transpose", ["n"], ["more"], perm=[0, 2, 1, 3]),
            node("Concat", ["turned", "more"], ["both"], axis=1),
            node("Transpose", ["both"], ["q"], perm=[0, 2, 1, 3]),
            node("Transpose", ["both"], ["back"], perm=[0, 2, 1, 3]),
            node("Relu", ["back"], ["k"]),
        ],
    ],
    ids=["concat", "through casts", "through transposes"],
)
def test_a_state_is_followed(opened: Open, nodes: Sequence[NodeProto]) -> None:
    assert found(opened(keeping(*nodes))) == [("p", "q", 2)]


def test_a_state_is_followed_into_branches_and_functions(opened: Open) -> None:
    grown = helper.make_graph([node("Concat", ["p", "n"], ["a"], axis=2)], "b", [], [floats("a", *"bcde")])
    other = helper.make_graph([node("Identity", ["n"], ["o"])], "b", [], [floats("o", *"bcde")])
    chosen = helper.make_node("If", ["flag"], ["q"], then_branch=grown, else_branch=other)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    nodes = [chosen, node("Relu", ["q"], ["k"]), node("Neg", ["k"], ["y"])]
    assert found(opened(model_of(nodes, [PAST, NEW, flag], [PRESENT, OUT]))) == [("p", "q", 2)]

    opsets = [helper.make_opsetid("", 17)]
    body = [node("Concat", ["old", "add"], ["all"], axis=2)]
    grow = helper.make_function("local", "Grow", ["old", "add"], ["all"], body, opsets)
    called = helper.make_node("Grow", ["p", "n"], ["q"], domain="local")
    proto = model_of([called, *nodes[1:]], [PAST, NEW], [PRESENT, OUT])
    proto.functions.append(grow)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert found(opened(proto)) == [("p", "q", 2)]


def test_a_concatenation_that_is_only_an_output_is_not_a_state(opened: Open) -> None:
    proto = model_of([node("Concat", ["p", "n"], ["q"], axis=2)], [PAST, NEW], [PRESENT])
    assert found(opened(proto)) == []


def test_an_output_that_does_not_fit_the_input_is_not_a_state(opened: Open) -> None:
    nodes = [node("Concat", ["p", "n"], ["q"], axis=1), node("Relu", ["q"], ["k"])]
    wider = floats("q", "batch", 4, "seq", 8)
    past = floats("p", "batch", 2, "seq", 8)
    assert found(opened(keeping(*nodes, past=past, present=wider))) == []


def test_an_input_that_becomes_two_outputs_is_not_a_state(opened: Open) -> None:
    nodes = [
        node("Concat", ["p", "n"], ["q"], axis=2),
        node("Identity", ["q"], ["twin"]),
        node("Relu", ["q"], ["k"]),
        node("Neg", ["k"], ["y"]),
    ]
    assert found(opened(model_of(nodes, [PAST, NEW], [PRESENT, floats("twin", "batch", 2, "after", 8), OUT]))) == []


@each("name", ["resnet", "unet", "multitask", "control-flow"])
def test_models_without_states_have_none(tmp_path: Path, name: str) -> None:
    write_model(name, tmp_path / "demo.onnx")
    assert find_caches(load(tmp_path / "demo.onnx")) == ()


@pytest.mark.parametrize("name", ["clip", "lstm", "unet"])
def test_exports_without_states_have_none(name: str) -> None:
    assert find_caches(load(FIXTURES / f"{name}.onnx")) == ()


def test_a_recurrent_state_is_not_a_cache_of_tokens(opened: Open) -> None:
    assert decoder_sizes(opened(with_lstm())) is None


def test_states_named_by_the_user_take_precedence(opened: Open) -> None:
    model = opened(with_concat(), states={"past_key_values.0.key": "present.1.key"})
    assert [cache.present for cache in find_caches(model)] == ["present.1.key", "present.0.value", "present.1.value"]
