"""Plans of pipelines of models: no part has nodes that run once and nodes of each step, and none such is better."""

# ruff: noqa: S311 - seeds make the same models each time, and keep no secrets

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import graphcut
from graphcut import Across, Analysis, Cluster, Device, Into, Limits, Plan, Within, weigh
from graphcut.planning.planner import with_metrics

from cases import seeded

NODES = 4


def save(path: Path, draw: random.Random, reads: tuple[str, ...], writes: str) -> None:
    """Nodes that read one or two tensors before them; what nobody reads is summed up into one output."""
    made, nodes = list(reads), []
    for i in range(NODES - 1):
        sources = draw.sample(made, min(len(made), draw.randint(1, 2)))
        kind = "Add" if len(sources) == 2 else draw.choice(("Softmax", "Tanh", "Neg"))
        nodes.append(helper.make_node(kind, sources, [f"{writes}{i}"]))
        made.append(f"{writes}{i}")
    read = {name for node in nodes for name in node.input}
    nodes.append(helper.make_node("Sum", [name for name in made if name not in read], [writes]))
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in (*reads, writes)]
    graph = helper.make_graph(nodes, "g", types[:-1], types[-1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def pipeline(folder: Path, seed: int) -> Analysis:
    draw = random.Random(seed)
    save(folder / "a.onnx", draw, ("x",), "h")
    save(folder / "b.onnx", draw, ("h", "t"), "logits")
    text = '[models]\na = { file = "a.onnx" }\nb = { file = "b.onnx", runs = "each step" }\n'
    (folder / "p.toml").write_text(text, encoding="utf-8")
    return graphcut.analyze(folder / "p.toml")


def divisions(analysis: Analysis, parts: int) -> list[tuple[tuple[int, ...], ...]]:
    """All parts that can run one after another, each of one phase, and first those that run once."""
    graph, phases = analysis.model.graph, analysis.model.phases
    edges = [(graph.producer[name], i) for i in graph.flow for name in graph.nodes[i].reads if name in graph.producer]
    found = []
    for labels in product(range(parts), repeat=len(graph.flow)):
        of = dict(zip(graph.flow, labels, strict=True))
        made = [tuple(i for i in graph.flow if of[i] == part) for part in range(parts)]
        kinds = [{phases[i] for i in part} for part in made]
        is_pure = all(len(kind) == 1 for kind in kinds) and kinds == sorted(kinds, key=max)
        if is_pure and all(of[a] <= of[b] for a, b in edges):
            found.append(tuple(made))
    return found


@seeded(4)
def test_no_plan_that_keeps_phases_apart_is_better(seed: int, tmp_path: Path) -> None:
    analysis = pipeline(tmp_path, seed)
    limits, costs, graph = Limits(recompute="never", inside_layers=True), weigh(analysis.model), analysis.model.graph
    devices = tuple(Device(name=f"{i}", flops_per_s=1e9 * (i + 1), link_bytes_per_s=1e7) for i in range(2))
    goals: list[Into | Across] = [Into(2), Into(3), Across(Cluster(devices=devices), "decode")]
    for goal in goals:
        made = graphcut.plan(analysis, goal, limits=limits)
        assert all(len({analysis.model.phases[node] for node in part}) == 1 for part in made.parts)
        assert made.outcome is not None
        assert made.outcome.is_optimal
        plans = [
            with_metrics(analysis, Plan(goal, graph, parts, devices=way, limits=limits), costs)
            for parts in divisions(analysis, goal.parts if isinstance(goal, Into) else 2)
            for way in ((),) * isinstance(goal, Into) or (devices, devices[::-1])
        ]
        assert worth(made) == pytest.approx(min(map(worth, plans)), rel=1e-9), goal


def worth(made: Plan) -> float:
    """Seconds of the slowest part, or of a step."""
    if isinstance(made.goal, Into):
        return max(part.busy_s for part in made.metrics)
    assert made.times is not None
    return made.times.objective("decode", 1)


def test_a_step_does_not_pay_for_what_runs_once(tmp_path: Path) -> None:
    analysis = pipeline(tmp_path, 0)
    cluster = Cluster(devices=(Device(name="a", link_bytes_per_s=1e3), Device(name="b", link_bytes_per_s=1e3)))
    made = graphcut.plan(analysis, Across(cluster, "decode"))
    assert made.times is not None
    once, step = made.metrics
    assert (once.run_s, once.input_bytes, once.sent_bytes) == (0, 0, 0)
    assert made.times.latency_s < 64 * 64 * 4 / 1e3 * 2.5, "t is sent, and what h becomes is not sent again"
    assert step.run_s > 0


def test_a_part_has_several_phases_only_where_nothing_else_is_asked_for(tmp_path: Path) -> None:
    model = pipeline(tmp_path, 1).model
    assert len(graphcut.plan(model, Into(1)).parts) == 1
    assert len(graphcut.plan(model, Within("1GB")).parts) == 2


SEQUENCES = {
    "a": "(float[2,4] x) => (seq(float) h) { n = Neg(x) e = Exp(n) h = SplitToSequence(e) }",
    "b": "(seq(float) h, float[1,4] t) => (float[k,4] logits) "
    "{ c = SequenceInsert(h, t) d = ConcatFromSequence<axis = 0>(c) logits = Tanh(d) }",
}


def test_a_sequence_that_is_made_once_and_read_at_each_step_does_not_cross(tmp_path: Path) -> None:
    """So a part has nodes of both phases."""
    text = '[models]\na = { file = "a.onnx" }\nb = { file = "b.onnx", runs = "each step" }\n'
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    for name, body in SEQUENCES.items():
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {name} {body}')
        onnx.save(model, tmp_path / f"{name}.onnx")
    analysis = graphcut.analyze(tmp_path / "p.toml")
    graph = analysis.model.graph
    assert [analysis.model.phases[graph.producer[name]] for name in ("h", "c")] == [0, 1]
    for parts in (2, 3):
        assert "h" not in graphcut.plan(analysis, Into(parts)).partition.wiring.boundary_tensors


def test_a_part_of_several_phases_pays_for_all_of_them_at_each_step(tmp_path: Path) -> None:
    analysis = pipeline(tmp_path, 0)
    alone = Cluster(devices=(Device(name="a", flops_per_s=1e9),))
    made = graphcut.plan(analysis, Across(alone, "decode"))
    assert len(made.parts) == 1
    all_of_it = graphcut.plan(analysis, Across(alone, "latency"))
    assert made.metrics[0].run_s == all_of_it.metrics[0].run_s > 0
