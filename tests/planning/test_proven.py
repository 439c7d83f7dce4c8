"""What is called proven is beaten by no option and by no division, whichever replicable values its parts compute."""

# ruff: noqa: S311 - seeds make the same models each time, and keep no secrets

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Analysis, Plan, demos
from graphcut.core.errors import GraphcutError
from graphcut.core.graph import partition
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import Device, run_s
from graphcut.costs.weighing import Costs, weigh
from graphcut.planning.disk_size import serialized_sizes
from graphcut.planning.goals import Across, Into, Limits, Recomputing, Within
from graphcut.planning.planner import plan
from graphcut.planning.plans import ANY_DEVICE
from graphcut.planning.predictions import part_metrics
from graphcut.planning.replicable import replicable_nodes

from cases import crossed, seeded
from conftest import Draw, floats, model_of

SearchedGoal = Into | Within | Across
PAIR = Cluster(devices=(Device(name="a"), Device(name="b", flops_per_s=3e10)))


def random_model(seed: int) -> ModelProto:
    """Nodes that compute little and write much, products with light and heavy weights, nodes that read two tensors."""
    draw = random.Random(seed)
    names, rows, nodes, weights = ["x"], {"x": 1}, [], []
    for i in range(draw.randint(3, 5)):
        name, read = f"t{i}", draw.choice(names[-3:]) if i else "x"
        kind = draw.choice(("repeat", "heavy", "light", "add", "add", "unary")) if i else "repeat"
        if kind == "repeat" and rows[read] == 1:  # cheap to compute, dear to send
            repeats = numpy_helper.from_array(np.array([draw.choice((8, 64, 512)), 1], dtype=np.int64), f"r{i}")
            weights.append(repeats)
            nodes.append(helper.make_node("Tile", [read, f"r{i}"], [name], name=f"n{i}"))
            rows[name] = int(numpy_helper.to_array(repeats)[0])
        elif kind in {"heavy", "light"}:
            width = 600 if kind == "heavy" else 16
            down = np.zeros((16, width), dtype=np.float32), np.zeros((width, 16), dtype=np.float32)
            weights += [numpy_helper.from_array(down[k], f"w{i}{k}") for k in (0, 1)]
            nodes.append(helper.make_node("MatMul", [read, f"w{i}0"], [f"{name}m"], name=f"n{i}m"))
            nodes.append(helper.make_node("MatMul", [f"{name}m", f"w{i}1"], [name], name=f"n{i}"))
            rows[name] = rows[read]
        elif kind == "add":
            other = draw.choice([other for other in names if rows[read] == 1 or rows[other] in {1, rows[read]}])
            nodes.append(helper.make_node("Add", [read, other], [name], name=f"n{i}"))
            rows[name] = max(rows[read], rows[other])
        else:
            nodes.append(helper.make_node(draw.choice(("Relu", "Exp", "Tanh")), [read], [name], name=f"n{i}"))
            rows[name] = rows[read]
        names.append(name)
    is_read = {name for node in nodes for name in node.input}
    ends = [name for name in names[1:] if name not in is_read]
    return model_of(nodes, [floats("x", 1, 16)], [floats(name, rows[name], 16) for name in ends], weights)


def divisions(analysis: Analysis, most: int, replicable: Collection[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All parts that can run one after another, with all sets of replicable nodes that each may repeat.

    Each part holds a node that is not replicable, or nothing is repeated.
    """
    graph = analysis.model.graph
    edges = [(graph.producer[name], n) for n in graph.flow for name in graph.nodes[n].reads if name in graph.producer]
    for labels in itertools.product(range(most), repeat=len(graph.flow)):
        home = dict(zip(graph.flow, labels, strict=True))
        if set(labels) != set(range(max(labels) + 1)) or any(home[a] > home[b] for a, b in edges):
            continue
        own = [[n for n in graph.flow if home[n] == part] for part in range(max(labels) + 1)]
        yield tuple(map(tuple, own))
        if all(set(nodes) - set(replicable) for nodes in own):
            choices = [list(subsets([n for n in replicable if home[n] < part])) for part in range(len(own))]
            for repeated in itertools.product(*choices):
                yield tuple(tuple(sorted((*a, *b))) for a, b in zip(own, repeated, strict=True))


def subsets(nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(nodes, k) for k in range(len(nodes) + 1))


def least(analysis: Analysis, costs: Costs, goal: SearchedGoal, most: int) -> float:
    """The least value of all divisions, on all devices; what a budget does not admit does not count."""
    graph, sizes = analysis.model.graph, serialized_sizes(analysis.model)
    devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
    slowest = min(devices, key=lambda device: device.flops_per_s)
    seconds = dict(zip(graph.flow, run_s(costs, slowest), strict=True))
    s_per_byte = 2 / max(device.link_bytes_per_s for device in devices)
    replicable = replicable_nodes(costs, seconds, s_per_byte, (), ())
    best = np.inf
    for parts in divisions(analysis, most, sorted(replicable)):
        if isinstance(goal, Into) and len(parts) != goal.parts:
            continue
        made = partition(graph, parts)
        if not all(block.nodes for block in made.blocks):
            continue
        choices = itertools.permutations(devices, len(parts)) if len(devices) > 1 else [devices * len(parts)]
        for chosen in choices:
            metrics = part_metrics(made, costs, sizes, chosen, lambda device: run_s(costs, device), goal)
            if not isinstance(goal, Within) or max(part.written_bytes for part in metrics) <= goal.memory_bytes:
                one = Plan(goal, graph, parts, devices=tuple(chosen), costs=costs, metrics=metrics)
                best = min(best, one.minimized(np.inf))
    return best


def minimized(made: Plan) -> tuple[float, float]:
    """Value and bound of what the goal minimizes."""
    assert made.outcome is not None
    value, bound = made.outcome.value, made.outcome.bound
    assert bound is not None
    return (value, bound) if made.outcome.unit != "tokens/s" else (1 / value, 1 / bound)


def goals_for(analysis: Analysis, costs: Costs, draw: random.Random) -> Iterator[SearchedGoal]:
    """Goals of each kind; budgets are close to the sizes of parts."""
    yield from (Into(2), Into(3), Into(2, "bytes"), Into(2, "flops"))
    for parts in (2, 3):
        try:
            sizes = plan(analysis, Into(parts, "bytes"), costs=costs).metrics
        except GraphcutError:
            continue
        yield Within(max(part.written_bytes for part in sizes) + draw.randint(-150, 150), ())
    yield from (Across(PAIR, objective, 2) for objective in ("throughput", "latency", "decode", "bytes", "devices"))


@seeded(5, 122)  # 122: small inputs, and values that parts compute again
def test_no_division_beats_a_bound_and_so_none_beats_what_is_proven(seed: int, opened: Draw) -> None:
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    for goal in goals_for(analysis, costs, random.Random(seed)):
        try:
            value, bound = minimized(plan(analysis, goal, costs=costs, limits=Limits(inside_layers=True)))
        except GraphcutError:
            continue
        best = least(analysis, costs, goal, goal.parts if isinstance(goal, Into) else 2 + isinstance(goal, Within))
        assert bound * (1 - 1e-9) <= best, goal
        assert bound <= value, goal
        never = plan(analysis, goal, costs=costs, limits=Limits(inside_layers=True, recompute="never"))
        assert bound * (1 - 1e-9) <= minimized(never)[0], goal


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


@pytest.mark.parametrize(("goal", "layers", "last"), [(Into(2, "bytes"), 2, 12), (Within(int(10.6 * 2**16), ()), 3, 9)])
def test_layers_are_kept_whole_where_no_cut_inside_them_is_better(
    goal: Into | Within, layers: int, last: int, opened: Draw
) -> None:
    analysis = graphcut.analyze(opened(layered(layers, last)))
    made, whole = (plan(analysis, goal, limits=Limits(inside_layers=inside)) for inside in (None, False))
    assert made.outcome is not None
    assert (made.outcome.is_optimal, made.outcome.keeps_layers) == (True, False)
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
