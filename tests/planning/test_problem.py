"""What nodes cost that a part may run again or receive, on models small enough to add up by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut.core.errors import PlanError
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import COUNTING, Device
from graphcut.costs.weighing import weigh
from graphcut.planning.by_goal.memory_budget import plan_within
from graphcut.planning.by_goal.part_count import plan_into
from graphcut.planning.disk_size import memory_sizes, serialized_sizes
from graphcut.planning.goals import Into, Limits, Within
from graphcut.planning.planner import plan
from graphcut.planning.predictions import counted_bytes
from graphcut.planning.problem import problem_of
from graphcut.solving.transfers import SentTensor, request_times

from conftest import Draw, floats, model_of, weight


def test_a_part_may_receive_the_smaller_output_of_a_node_that_writes_two(opened: Draw) -> None:
    """A Split of 3 s writes 3,996 bytes for the first part and 4 bytes for the second one; a link takes 1,000 a second.

    The second part computes for 9 s. So that it receives the 4 bytes is better than that it runs the Split again.
    """
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["large", "small"], "split", axis=1),
        helper.make_node("Relu", ["large"], ["a"], "first"),
        helper.make_node("Add", ["a", "small"], ["y"], "second"),
    ]
    sizes = numpy_helper.from_array(np.array([999, 1]), "sizes")
    model = opened(model_of(nodes, [floats("x", 1, 1000)], [floats("y", 1, 999)], [sizes]))
    problem = problem_of(
        graphcut.analyze(model),
        weigh(model),
        Limits(),
        serialized_sizes(model),
        replicable=[model.graph.node_index["split"]],
    )
    devices = [Device(name=name, link_bytes_per_s=1000, latency_s=0) for name in "ab"]
    sent = [SentTensor(3996, 0, (1,)), SentTensor(4, 0, (1,))]
    best = request_times(sent, [3 + 5, 9], devices, Cluster(devices=tuple(devices), overlap="none"))
    bounds = plan_into(problem, Into(2), devices[0], [3, 5, 9]).bounds
    assert bounds.of_own_nodes == pytest.approx(max(best.busy_s)) == 9 + 3.996 + 0.004


def test_what_only_repeated_nodes_read_needs_no_memory_while_other_nodes_run(opened: Draw) -> None:
    """Of a tensor of 1 MiB a part computes one row of 64 bytes, for all its other nodes: they need little more."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["large"], "tile"),
        helper.make_node("ReduceMax", ["large"], ["row"], "reduce", axes=[0]),
        helper.make_node("Add", ["x", "row"], ["a"], "first"),
        helper.make_node("Mul", ["a", "row"], ["y"], "second"),
    ]
    times = numpy_helper.from_array(np.array([16384, 1]), "times")
    model = opened(model_of(nodes, [floats("x", 1, 16)], [floats("y", 1, 16)], [times]))
    repeated = [model.graph.node_index[name] for name in ("tile", "reduce")]
    sizes = memory_sizes(model, serialized_sizes(model))
    problem = problem_of(graphcut.analyze(model), weigh(model), Limits(), sizes, replicable=repeated)
    needed = counted_bytes(plan(model, Into(1)).memory[0], COUNTING)
    goal = Within(needed + 1024, COUNTING)
    assert plan_within(problem, goal, Device(name="d")).found.parts == ((0, 1),)


def test_outputs_that_no_input_changes_count_where_they_are_written(opened: Draw, tmp_path: Path) -> None:
    """The part of the last node writes them: an initializer, what constant nodes compute, and the default of an input.

    A budget that is smaller is refused by the plan, not after the parts were written.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Constant", [], ["grid"], "grid", value=weight("values", 50, 50)),
        helper.make_node("Mul", ["grid", "grid"], ["computed"], "square"),
        helper.make_node("Neg", ["a"], ["y"], "last"),
    ]
    ends = [floats("y", 4), floats("computed", 50, 50), floats("stored", 50, 50), floats("given", 50, 50)]
    weights = [weight("stored", 50, 50), weight("given", 50, 50)]
    model = opened(model_of(nodes, [floats("x", 4), floats("given", 50, 50)], ends, weights))
    for parts in (1, 2):
        made = plan(model, Into(parts, "bytes"))
        cascade = graphcut.split(model, made, tmp_path / str(parts))
        files = [sum(one.stat().st_size for one in cascade.path.parent.glob(f"{part.file}*")) for part in cascade.parts]
        assert all(size <= one.written_bytes for size, one in zip(files, made.metrics, strict=True))
        assert made.metrics[-1].written_bytes < files[-1] + 100
    with pytest.raises(PlanError, match=r"'last' alone takes 29\.8 KiB"):
        plan(model, Within(20_000, ()))
