"""What is called proven is beaten by no option; `test_all_plans.py` compares it with all divisions of random models."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Plan, demos
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import Device
from graphcut.planning.goals import Across, Into, Limits, Recomputing, Within
from graphcut.planning.planner import plan

from cases import crossed
from conftest import Draw, floats, model_of, weight

SearchedGoal = Into | Within | Across
PAIR = Cluster(devices=(Device(name="a"), Device(name="b", flops_per_s=3e10)))


def minimized(made: Plan) -> tuple[float, float]:
    """Value and bound of what the goal minimizes."""
    assert made.outcome is not None
    value, bound = made.outcome.value, made.outcome.bound
    assert bound is not None
    return (value, bound) if made.outcome.unit != "tokens/s" else (1 / value, 1 / bound)


def layered(layers: int, last: int = 0) -> ModelProto:
    """Equal layers of four products with weights of 64 KiB, and behind them one with `last` times as much."""
    nodes, weights, read = [], [], "x"
    for layer, kind in itertools.product(range(layers), ("Relu", "Tanh", "Sigmoid", "Softplus")):
        name = f"/layers.{layer}/{kind}"
        weights.append(numpy_helper.from_array(np.zeros((128, 128), dtype=np.float32), f"{name}.weight"))
        nodes.append(helper.make_node("MatMul", [read, f"{name}.weight"], [f"{name}.in"], name=f"{name}/MatMul"))
        nodes.append(helper.make_node(kind, [f"{name}.in"], [f"{name}.out"], name=name))
        read = f"{name}.out"
    if last:
        weights.append(numpy_helper.from_array(np.zeros((128, 128 * last), dtype=np.float32), "last"))
        nodes.append(helper.make_node("MatMul", [read, "last"], ["y"], name="last"))
    end = floats("y", 1, 128 * last) if last else floats(read, 1, 128)
    return model_of(nodes, [floats("x", 1, 128)], [end], weights)


@pytest.mark.parametrize(
    ("layers", "parts", "products", "inside"),
    [(4, 2, [16, 16], None), (3, 2, [12, 12], True), (11, 2, [40, 48], None)],
)
def test_layers_are_cut_unasked_where_that_saves_a_tenth(
    layers: int, parts: int, products: list[int], inside: Literal[True] | None, opened: Draw
) -> None:
    analysis, goal = graphcut.analyze(opened(layered(layers))), Into(parts, "bytes")
    made = plan(analysis, goal, limits=Limits(recompute="never"))  # to repeat a node may save a byte of a name
    assert sorted(map(len, made.parts)) == products
    assert made.outcome is not None
    assert (made.outcome.is_optimal, made.outcome.keeps_layers) == (True, inside is None)
    asked = Limits(inside_layers=inside or False, recompute="never")
    assert made.parts == plan(analysis, goal, limits=asked).parts


def test_layers_are_kept_whole_where_a_cut_inside_them_is_little_better_and_that_is_named(opened: Draw) -> None:
    """Of three layers two are in a part; a cut before the bias of the second one saves 4 %."""
    nodes, weights, name = [], [], "x"
    for i in range(3):
        weights += [weight(f"w{i}", 16, 16), weight(f"b{i}", 16)]
        nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [f"a{i}"], f"layer{i}/product"))
        nodes.append(helper.make_node("Add", [f"a{i}", f"b{i}"], [name := f"c{i}"], f"layer{i}/add"))
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 1, 16)], [floats(name, 1, 16)], weights)))
    made = plan(analysis, Into(2, "bytes"), limits=Limits(recompute="never"))
    assert [*map(len, made.parts)] == [4, 2]
    assert made.outcome is not None
    assert made.inside_layers is not None
    assert 0.95 < made.inside_layers.value / made.outcome.value < 0.97


@pytest.mark.parametrize(("goal", "layers", "last"), [(Into(2, "bytes"), 2, 12), (Within(int(10.6 * 2**16), ()), 3, 9)])
def test_layers_are_kept_whole_where_no_cut_inside_them_is_better(
    goal: Into | Within, layers: int, last: int, opened: Draw
) -> None:
    analysis = graphcut.analyze(opened(layered(layers, last)))
    made, whole = (plan(analysis, goal, limits=Limits(inside_layers=inside)) for inside in (None, False))
    assert made.outcome is not None
    assert (made.outcome.is_optimal, made.outcome.keeps_layers, made.inside_layers) == (True, False, None)
    assert made.parts == whole.parts


def test_layers_are_kept_whole_if_that_is_asked_for(opened: Draw) -> None:
    limits = Limits(inside_layers=False, recompute="never")
    kept = plan(graphcut.analyze(opened(layered(3))), Into(2, "bytes"), limits=limits)
    assert sorted(map(len, kept.parts)) == [8, 16]
    assert kept.outcome is not None
    assert (kept.outcome.is_optimal, kept.outcome.keeps_layers) == (True, True)


RECOMPUTING: tuple[Recomputing, ...] = ("auto", "never")
OPTIONS = [(inside, recompute) for inside in (None, False, True) for recompute in RECOMPUTING]


@crossed(
    ("name", "goal"), ["llm", "unet", "multitask"], [Into(2), Within(400_000, ()), Across(PAIR)], times=1, together=1
)
def test_no_option_beats_a_bound_and_so_none_beats_what_is_proven(
    name: str, goal: SearchedGoal, tmp_path: Path
) -> None:
    """A plan that keeps layers whole is compared with all that do."""
    demos.write(name, tmp_path / "m.onnx", **({"layers": 1} if name == "llm" else {}))  # type: ignore[arg-type]
    analysis = graphcut.analyze(tmp_path / "m.onnx")
    values, bounds = {}, dict[bool, float]()
    for inside, recompute in OPTIONS:
        made = plan(analysis, goal, limits=Limits(inside_layers=inside, recompute=recompute))
        assert made.outcome is not None
        values[inside, recompute], bound = minimized(made)
        if recompute == "auto":
            bounds[made.outcome.keeps_layers] = max(bound, bounds.get(made.outcome.keeps_layers, 0.0))
    whole = min(values[False, recompute] for recompute in RECOMPUTING)
    assert bounds.get(True, 0.0) * (1 - 1e-9) <= whole
    assert bounds.get(False, 0.0) * (1 - 1e-9) <= min(values.values())
