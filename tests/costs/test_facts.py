"""What a manifest says of a model is found in time proportional to the model."""

from __future__ import annotations

import sys
from types import FrameType

from onnx import ModelProto, helper

from graphcut import Model
from graphcut.costs.facts import model_facts

from conftest import Draw, floats, model_of


def caches(number: int) -> ModelProto:
    """A model with so many caches, each of which grows by the same values."""
    names = [f"past_key_values.{i // 2}.{('key', 'value')[i % 2]}" for i in range(number)]
    nodes = [
        helper.make_node("Concat", [name, "new"], [name.replace("past_key_values", "present")], axis=2, name=name)
        for name in names
    ]
    shape = ("batch", 2, "past", 4)
    return model_of(
        nodes,
        [floats("new", "batch", 2, 1, 4), *(floats(name, *shape) for name in names)],
        [floats(node.output[0], "batch", 2, "total", 4) for node in nodes],
    )


def calls_for(model: Model) -> int:
    """How many functions are called to find what the manifest says of a model and its caches."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    model.boundary_types  # noqa: B018 - types of tensors are inferred before
    sys.setprofile(count)
    try:
        facts = model_facts(model, ())
    finally:
        sys.setprofile(None)
    assert [state.past for state in facts["states"]] == list(model.graph.reads[1:])
    return calls


def test_the_work_for_192_caches_is_proportional_to_their_number(opened: Draw) -> None:
    some, many = (calls_for(opened(caches(number))) for number in (48, 192))
    assert many <= 4 * some
