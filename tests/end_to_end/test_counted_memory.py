"""What a plan counts while a part runs is what ONNX Runtime takes: its order, its peak, and so the budgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, helper

import graphcut
from graphcut import Across, Cascade, Cluster, Device, Into, Model, Within, demos, load
from graphcut.core.errors import PlanError
from graphcut.costs.held_weights import NODE_BYTES
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.costs.weighing import execution_order, peak_bytes
from graphcut.inputs.generating import generate_inputs
from graphcut.running.stage import SessionConfig, session_options
from graphcut.running.values import symbol_sizes

from cases import each, seeded
from conftest import FIXTURES, ORT_VERSION, Draw, floats, model_of

LEVELS = ort.GraphOptimizationLevel
KIB = 1 << 10
ROW = 64 * KIB  #: bytes of a row of 16,384 numbers.

has_memory = pytest.mark.skipif(ORT_VERSION < (1, 25), reason="profiles have no memory before ONNX Runtime 1.25")


def kernels(
    file: Path, feeds: dict[str, Any], level: ort.GraphOptimizationLevel = LEVELS.ORT_DISABLE_ALL
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The events of the kernels of one run in a session as graphcut makes them, and the outputs."""
    options = session_options(SessionConfig(threads=1))
    options.graph_optimization_level = level
    options.enable_profiling, options.profile_file_prefix = True, str(file)
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    events = json.loads(Path(session.end_profiling()).read_bytes())
    return [event for event in events if event["name"].endswith("_kernel_time")], list(outputs)


def measured_peak(events: Sequence[dict[str, Any]]) -> int:
    """The most bytes of tensors that ONNX Runtime held after a kernel, above what it held before the first one."""
    held = [int(event["args"]["mem_bytes_requested_in_use"]) for event in events]
    return max(held) - held[0] + int(events[0]["args"]["mem_requested_in_use_delta"])


def random_dag(random: Random) -> ModelProto:
    """Nodes that read some of the rows before them and write one row or 8. What nobody reads is an output."""
    rows, nodes = ["x"], list[NodeProto]()
    for i in range(random.randint(2, 14)):
        read = random.sample(rows, random.randint(1, min(3, len(rows))))
        nodes.append(helper.make_node("Max", read, [f"t{i}"], name=f"max{i}"))
        if random.random() < 0.5:
            nodes.append(helper.make_node("Concat", [f"t{i}"] * 8, [f"wide{i}"], axis=0, name=f"concat{i}"))
            nodes.append(helper.make_node("ReduceMax", [f"wide{i}"], [f"narrow{i}"], axes=[0], name=f"reduce{i}"))
        rows.append(f"narrow{i}" if nodes[-1].op_type == "ReduceMax" else f"t{i}")
    inner = {name for node in nodes for name in node.input}
    outputs = [floats(row, 1, 64) for row in rows[1:] if row not in inner or random.random() < 0.2]
    return model_of(nodes, [floats("x", 1, 64)], outputs)


@seeded(5)
def test_nodes_run_in_the_order_that_is_counted(seed: int, opened: Draw) -> None:
    model = opened(random_dag(Random(seed)))  # noqa: S311
    events, _ = kernels(model.path, {"x": np.ones((1, 64), np.float32)})
    names = [model.graph.nodes[n].name for n in execution_order(model.graph, model.graph.flow)]
    assert [event["name"].removesuffix("_kernel_time") for event in events] == names


@has_memory
@seeded(5)
def test_the_peak_of_onnx_runtime_is_not_above_what_is_counted(seed: int, opened: Draw) -> None:
    model = opened(random_dag(Random(seed)))  # noqa: S311
    events, _ = kernels(model.path, {"x": np.ones((1, 64), np.float32)})
    counted = peak_bytes(model.graph, model.graph.flow, model.tensor_bytes, writes=model.graph.writes)
    assert measured_peak(events) <= counted - 256, "x is held by the caller"


def opened_example(name: str, folder: Path) -> tuple[Model, dict[str, Any]]:
    """A demo or a fixture, with generated inputs, for the sizes of these."""
    path = FIXTURES / name
    if not path.exists():
        path = folder / f"{name}.onnx"
        demos.write(name, path)
    model = load(path)
    feeds = generate_inputs(model)
    sizes = symbol_sizes({name: np.shape(value) for name, value in feeds.items()}, model.boundary_types)
    return model.with_dims({name: number for name, number in sizes.items() if name in model.symbols}), feeds


def measured_parts(cascade: Cascade, feeds: dict[str, Any], level: ort.GraphOptimizationLevel) -> list[int]:
    """The peak of each part, without its inputs, which the caller holds."""
    held, peaks = dict(feeds), []
    for part in cascade.parts:
        events, outputs = kernels(cascade.file(part), held, level)
        held |= dict(zip(part.writes, outputs, strict=True))
        peaks.append(measured_peak(events))
    return peaks


@has_memory
@each("name", ["llm", "unet", "resnet", "multitask", "clip.onnx", "tiny-llama-fp32/model.onnx"])
def test_parts_take_no_more_than_their_plan_says(name: str, tmp_path: Path) -> None:
    """With fusions too, except for those to blocked channels, which pad narrow convolutions to full blocks."""
    model, feeds = opened_example(name, tmp_path)
    made = graphcut.plan(model, Into(3))
    cascade = graphcut.split(model, made, tmp_path / "parts")
    assert made.costs is not None
    sizes = made.costs.tensor_bytes
    for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_EXTENDED):
        for part, metrics, peak in zip(cascade.parts, made.metrics, measured_parts(cascade, feeds, level), strict=True):
            assert peak <= metrics.activation_bytes - sum(sizes[tensor][0] for tensor in part.reads)


# Budgets


def wide_branches(number: int, rows: int) -> ModelProto:
    """Branches from x that each become `rows` rows and one again; the file lists all wide tensors first."""
    wide = [helper.make_node("Concat", ["x"] * rows, [f"w{i}"], axis=0, name=f"wide{i}") for i in range(number)]
    narrow = [helper.make_node("ReduceMax", [f"w{i}"], [f"n{i}"], axes=[0], name=f"narrow{i}") for i in range(number)]
    end = helper.make_node("Max", [f"n{i}" for i in range(number)], ["y"], name="end")
    return model_of([*wide, *narrow, end], [floats("x", 1, 16384)], [floats("y", 1, 16384)])


@has_memory
def test_a_budget_is_kept_though_the_order_of_the_file_would_break_it(opened: Draw, tmp_path: Path) -> None:
    """In the order of the file 12 branches of 16 rows are alive at once: 12 MiB. ONNX Runtime runs one at a time."""
    model = opened(wide_branches(12, 16))
    budget = SESSION_BYTES + 25 * NODE_BYTES + 30 * ROW
    made = graphcut.plan(model, Within(budget, ("activations",)))
    assert len(made.parts) == 1
    assert max(made.needs) <= budget
    cascade = graphcut.split(model, made, tmp_path / "parts")
    (peak,) = measured_parts(cascade, {"x": np.ones((1, 16384), np.float32)}, LEVELS.ORT_DISABLE_ALL)
    assert peak <= made.memory[0].activations < 30 * ROW


def late_branch() -> ModelProto:
    """y needs a, a narrow tensor made of a wide one, and b, a wide one. ONNX Runtime makes b first: it is listed last.

    Then both wide tensors are alive at once. In the order of the file they are not.
    """
    nodes = [
        helper.make_node("Concat", ["x"] * 16, ["wide"], axis=0, name="wide"),
        helper.make_node("ReduceMax", ["wide"], ["a"], axes=[0], name="a"),
        helper.make_node("Concat", ["x"] * 16, ["b"], axis=0, name="b"),
        helper.make_node("Max", ["b", "a"], ["both"], name="both"),
        helper.make_node("ReduceMax", ["both"], ["y"], axes=[0], name="y"),
    ]
    return model_of(nodes, [floats("x", 1, 16384)], [floats("y", 1, 16384)])


@has_memory
@each("rows", [17, 24, 30, 34, 35])
def test_no_plan_breaks_its_budget(rows: int, opened: Draw, tmp_path: Path) -> None:
    """Whatever the order in which the search counts: ONNX Runtime takes what is printed, or there is no plan."""
    model, budget = opened(late_branch()), rows * ROW + SESSION_BYTES + 5 * NODE_BYTES
    cluster = Cluster(devices=tuple(Device(name=name, memory_bytes=budget) for name in "abcd"))
    for goal in (Within(budget, ("activations",)), Across(cluster)):
        try:
            made = graphcut.plan(model, goal)
        except PlanError:
            assert rows < 35
            continue
        assert max(made.needs) <= budget
        cascade = graphcut.split(model, made, tmp_path / f"parts{type(goal).__name__}")
        peaks = measured_parts(cascade, {"x": np.ones((1, 16384), np.float32)}, LEVELS.ORT_DISABLE_ALL)
        assert all(peak <= one.activations for peak, one in zip(peaks, made.memory, strict=True))


def test_a_count_of_parts_is_not_proven_by_an_order_of_nodes(opened: Draw) -> None:
    """All files fit into one part, so fewer parts than two are not excluded by files; the search tries some orders."""
    outcome = graphcut.plan(opened(late_branch()), Within(34 * ROW + SESSION_BYTES, ("activations",))).outcome
    assert outcome is not None
    assert (outcome.value > 1) is not outcome.is_optimal
