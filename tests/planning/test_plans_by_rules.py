"""A node goes only where the rules of a device let it run; plans against brute force."""

# ruff: noqa: S311 - seeds make the same models each time, and keep no secrets

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from onnx import ModelProto, helper
from test_all_plans import Repeated, divisions, minimized, random_model

import graphcut
from graphcut import Across, Analysis, Cluster, Limits, PlanError, UsageError
from graphcut.core.graph import partition
from graphcut.costs.device import Device, run_s
from graphcut.costs.device_rules import DeviceRules, RefusedNodes
from graphcut.costs.device_support import possible_s
from graphcut.costs.weighing import Costs, weigh
from graphcut.drawing.sentences import plan_notes
from graphcut.planning.disk_size import serialized_sizes
from graphcut.planning.plan_files import replay, save_plan
from graphcut.planning.planner import plan
from graphcut.planning.plans import Plan
from graphcut.planning.predictions import part_metrics

from cases import each, seeded
from conftest import Draw, floats, model_of


def rules_refusing(names: list[str]) -> DeviceRules:
    return DeviceRules(name="few", refused=(RefusedNodes(nodes=tuple(names)),) if names else ())


def random_cluster(analysis: Analysis, draw: random.Random) -> Cluster:
    """An accelerator that refuses some nodes, and a device that refuses none, or few."""
    names = [analysis.model.graph.nodes[node].name for node in analysis.model.graph.flow]
    refused = [name for name in names if draw.random() < 0.3]
    others = [name for name in names if draw.random() < 0.1 and name not in refused] * (draw.random() < 0.3)
    devices: tuple[Device, ...] = (
        Device(name="npu", flops_per_s=draw.choice((1e11, 1e9)), rules=rules_refusing(refused)),
        Device(name="cpu", flops_per_s=draw.choice((1e11, 1e9)), rules=rules_refusing(others)),
    )
    if draw.random() < 0.3:
        devices += (Device(name="third", rules=rules_refusing(refused + others)),)
    return Cluster(devices=devices, overlap=draw.choice(("all", "none")))


def on_devices(parts: int, goal: Across) -> Iterator[tuple[Device, ...]]:
    devices = goal.cluster.devices
    return itertools.product(devices, repeat=parts) if goal.interleave else itertools.permutations(devices, parts)


def least(analysis: Analysis, costs: Costs, goal: Across, limits: Limits, most: int) -> float:
    """The least value of all plans of at most so many parts in which each node is where it can run."""
    graph, sizes, best = analysis.model.graph, serialized_sizes(analysis.model), inf

    def seconds(device: Device) -> tuple[float, ...]:
        return tuple(possible_s(costs, device, run_s(costs, device)))

    once = {n for d in goal.cluster.devices for n, s in zip(graph.flow, seconds(d), strict=True) if s == inf}

    def repeats(parts: Repeated) -> bool:
        nodes = [node for part in parts for node in part]
        return any(nodes.count(node) > 1 for node in once)

    for parts in divisions(analysis, most, limits):
        if repeats(parts):
            continue
        made = partition(graph, parts)
        for chosen in on_devices(len(parts), goal):
            metrics = part_metrics(made, costs, sizes, chosen, seconds, goal)
            if all(one.run_s < inf for one in metrics):
                best = min(best, Plan(goal, graph, parts, devices=chosen, costs=costs, metrics=metrics).minimized(inf))
    return best


def assert_runs_where_it_can(made: Plan, costs: Costs) -> None:
    for nodes, device in zip(made.parts, made.devices, strict=True):
        seconds = dict(zip(made.graph.flow, possible_s(costs, device, run_s(costs, device)), strict=True))
        assert all(seconds[node] < inf for node in nodes)


@seeded(6, together=6)
def test_no_plan_on_devices_with_rules_beats_the_bound_and_each_node_is_where_it_can_run(
    seed: int, opened: Draw
) -> None:
    draw = random.Random(3000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    goal = Across(
        random_cluster(analysis, draw), draw.choice(("throughput", "latency", "decode", "bytes", "devices")), ranks=1
    )
    limits = Limits(inside_layers=True, recompute=draw.choice(("auto", "never")))
    best = least(analysis, costs, goal, limits, len(goal.cluster.devices))
    if best == inf:
        with pytest.raises(PlanError):
            plan(analysis, goal, costs=costs, limits=limits)
        return
    made = plan(analysis, goal, costs=costs, limits=limits)
    assert_runs_where_it_can(made, costs)
    value, bound = minimized(made)
    assert bound <= best * (1 + 1e-6), (goal, limits, value, bound, best)
    assert best <= value * (1 + 1e-9), (goal, limits, value, bound, best)
    if made.outcome is not None and made.outcome.is_optimal:
        assert value <= best * (1 + 1e-6), (goal, limits, value, bound, best)


@seeded(4, together=4)
def test_no_interleaved_plan_beats_the_bound_and_each_node_is_where_it_can_run(seed: int, opened: Draw) -> None:
    draw = random.Random(4000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    goal = Across(random_cluster(analysis, draw), interleave=True)
    limits = Limits(inside_layers=True, recompute="never")
    most = 3
    best = least(analysis, costs, goal, limits, most)
    if best == inf:
        with pytest.raises(PlanError):
            plan(analysis, goal, costs=costs, limits=limits)
        return
    made = plan(analysis, goal, costs=costs, limits=limits)
    assert_runs_where_it_can(made, costs)
    value, bound = minimized(made)
    assert bound <= best * (1 + 1e-6), (goal, value, bound, best)
    assert len(made.parts) > most or best <= value * (1 + 1e-9), (goal, value, bound, best)


def chain_of(*ops: str) -> ModelProto:
    """Nodes called by their operators and places; Transpose has no FLOPs."""
    names = ["x", *(f"t{i}" for i in range(len(ops)))]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], name=f"{op}.{i}") for i, op in enumerate(ops)]
    return model_of(nodes, [floats("x", 8, 8)], [floats(names[-1], 8, 8)])


def beside_a_cpu(*refused: str) -> Cluster:
    """An accelerator that is faster at everything, and a CPU."""
    return Cluster(
        devices=(
            Device(name="npu", flops_per_s=1e12, bytes_per_s=1e12, dispatch_s=1e-7, rules=rules_refusing([*refused])),
            Device(name="cpu"),
        )
    )


def test_a_node_without_flops_between_two_that_the_accelerator_refuses_is_on_the_cpu_with_them(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Relu", "Transpose", "Relu", "Exp")))
    made = plan(analysis, Across(beside_a_cpu("Relu*"), "crossings"))
    assert [made.graph.names(part) for part in made.parts] == [
        ("Exp.0",),
        ("Relu.1", "Transpose.2", "Relu.3"),
        ("Exp.4",),
    ]
    assert [device.name for device in made.devices] == ["npu", "cpu", "npu"]
    assert made.outcome is not None
    assert (made.outcome.value, made.outcome.is_optimal) == (2, True)
    flops = weigh(analysis.model).flops
    share = (flops[0] + flops[4]) / sum(flops)
    notes = [text for text in plan_notes(made, analysis.model) if "of the FLOPs" in text]
    assert notes == [f"npu runs {share:.1%} of the FLOPs, in 2 parts"]


def test_it_is_said_of_an_accelerator_that_can_run_no_node(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Relu")))
    made = plan(analysis, Across(beside_a_cpu("*"), "crossings"))
    assert [device.name for device in made.devices] == ["cpu"]
    assert "npu runs 0.0% of the FLOPs, in 0 parts" in plan_notes(made, analysis.model)


def test_a_node_with_flops_stays_on_the_accelerator_whatever_it_crosses(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Relu", "Exp", "Relu", "Exp")))
    made = plan(analysis, Across(beside_a_cpu("Relu*"), "crossings"))
    assert [device.name for device in made.devices] == ["npu", "cpu", "npu", "cpu", "npu"]


@seeded(8, together=8)
def test_no_plan_with_nodes_where_they_are_fastest_has_fewer_crossings(seed: int, opened: Draw) -> None:
    """Proven with two kinds of devices; with three there is a bound."""
    draw = random.Random(5000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs, graph = weigh(analysis.model), analysis.model.graph
    refused, others = ([name for name in graph.names(graph.flow) if draw.random() < 0.4] for _ in range(2))
    cluster = beside_a_cpu(*refused)
    if is_third := draw.random() < 0.5:
        third = replace(cluster.devices[0], name="third", dispatch_s=2e-7, rules=rules_refusing(others))
        cluster = replace(cluster, devices=(*cluster.devices, third))
    made = plan(analysis, Across(cluster, "crossings"), costs=costs, limits=Limits(inside_layers=True))
    assert_runs_where_it_can(made, costs)
    assert sorted(node for part in made.parts for node in part) == sorted(graph.flow)
    seconds = [possible_s(costs, device, run_s(costs, device)) for device in cluster.devices]
    allowed = {
        n: {i for i, one in enumerate(row) if one == min(row) or (one < inf and not flops)}
        for n, flops, row in zip(graph.flow, costs.flops, zip(*seconds, strict=True), strict=True)
    }
    least = next(
        number - 1
        for number in range(1, len(graph.flow) + 1)
        for parts in divisions(analysis, number, Limits(recompute="never"))
        if len(parts) == number and all(set.intersection(*(allowed[node] for node in part)) for part in parts)
    )
    assert made.outcome is not None
    assert made.outcome.bound is not None
    assert made.outcome.bound <= least <= made.outcome.value
    assert made.outcome.value == least or not made.outcome.is_optimal
    assert made.outcome.is_optimal or is_third


def limited(**limits: int) -> Across:
    cluster = beside_a_cpu("Relu*")
    npu, cpu = cluster.devices
    return Across(
        replace(cluster, devices=(replace(npu, rules=replace(rules_refusing(["Relu*"]), **limits)), cpu)), "crossings"
    )


def test_parts_have_no_more_nodes_than_rules_allow(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Exp", "Exp", "Relu", "Exp")))
    made = plan(analysis, limited(most_part_nodes=2))
    assert [len(part) for part in made.parts] == [2, 1, 1, 1]
    assert made.outcome is not None
    assert (made.outcome.value, made.outcome.bound) == (3, 2)


@each("objective", ["throughput", "latency", "decode", "bytes", "devices", "crossings", "interleaved"])
def test_limits_of_a_part_are_kept_or_an_error_whatever_the_objective(objective: str, opened: Draw) -> None:
    """The chain needs two parts on the accelerator, each with an input; one part would have two."""
    goal = limited(most_part_nodes=1)
    is_interleaved = objective == "interleaved"
    goal = graphcut.Across(
        goal.cluster, "throughput" if is_interleaved else cast(Any, objective), interleave=is_interleaved
    )
    analysis = graphcut.analyze(opened(chain_of("Exp", "Exp", "Relu")))
    try:
        made = plan(analysis, goal)
    except PlanError as error:
        assert "most_part_nodes of its rules is 1" in str(error)  # noqa: PT017 - either is right
        assert objective != "crossings"
    else:
        on_npu = [part for part, device in zip(made.parts, made.devices, strict=True) if device.name == "npu"]
        assert all(len(part) == 1 for part in on_npu)


@each(
    ("ops", "message"),
    [
        (("Exp", "Relu"), "part 1 has 'Relu.1', which 'npu' can't run: named in the rules"),
        (("Exp", "Exp", "Exp"), "part 0 on 'npu' has 2, and most_part_nodes of its rules is 1"),
    ],
)
def test_a_plan_that_was_edited_is_held_to_the_rules(
    ops: tuple[str, ...], message: str, opened: Draw, tmp_path: Path
) -> None:
    analysis = graphcut.analyze(opened(chain_of(*ops)))
    save_plan(plan(analysis, limited(most_part_nodes=1)), analysis.model, tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    first, second, *rest = record["parts"]
    second["device"] = first["device"]
    if rest:
        first["nodes"] += second["nodes"]
        record["parts"] = [first, *rest]
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with pytest.raises(PlanError, match=re.escape(message)):
        replay(analysis, tmp_path / "plan.json")


def test_a_model_of_which_an_accelerator_can_run_nothing_is_one_part_on_the_cpu(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Relu", "Relu")))
    made = plan(analysis, Across(beside_a_cpu("*"), "crossings"))
    assert [device.name for device in made.devices] == ["cpu"]
    npu = beside_a_cpu("*").devices[0]
    alone = Cluster(devices=(npu,))
    for goal in (Across(alone, "crossings"), Across(alone, interleave=True), Across(alone)):
        with pytest.raises(PlanError, match=r"no device of the cluster can run node 'Relu\.0'") as caught:
            plan(analysis, goal)
        assert caught.value.hint == "add a device that can"


@each("is_chain, bound", [(True, 2), (False, 1)])
def test_of_three_kinds_of_devices_the_crossings_of_a_path_are_proven(is_chain: bool, bound: int, opened: Draw) -> None:  # noqa: FBT001 - a case
    """Each runs one node. With one beside the other two there are two crossings, too, but not all ways are tried."""
    names = ["a", "b", "c"]
    reads = ["x", "a", "b" if is_chain else "x"]
    nodes = [helper.make_node("Exp", [read], [name], name=name) for read, name in zip(reads, names, strict=True)]
    ends = [floats(name, 2) for name in (names[-1:] if is_chain else names)]
    devices = (Device(name=f"for {one}", rules=rules_refusing([n for n in names if n != one])) for one in names)
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 2)], ends)))
    outcome = plan(analysis, Across(Cluster(devices=tuple(devices)), "crossings")).outcome
    assert outcome is not None
    assert (outcome.value, outcome.bound, outcome.is_optimal) == (2, bound, is_chain)


def test_nodes_are_not_pinned_where_crossings_are_counted(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Relu", "Relu")))
    with pytest.raises(UsageError, match="nodes can't be pinned where crossings are counted"):
        plan(analysis, Across(beside_a_cpu("*"), "crossings"), limits=Limits(pins=(("Relu.0", 0),)))


def test_a_device_too_small_for_a_node_that_it_supports_says_so_and_what_to_do(opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Relu")))
    with pytest.raises(
        PlanError, match=r"part 0 on 'npu' has [\d,]+, and largest_part_bytes of its rules is 8"
    ) as caught:
        plan(analysis, limited(largest_part_bytes=8))
    assert caught.value.hint == "refuse a node of the part in the rules, so that another device runs it"


@each("limit", ["largest_part_bytes", "most_part_inputs", "most_part_outputs"])
def test_a_plan_with_a_larger_part_than_rules_allow_is_an_error(limit: str, opened: Draw) -> None:
    analysis = graphcut.analyze(opened(chain_of("Exp", "Relu")))
    with pytest.raises(PlanError, match=rf"part 0 on 'npu' has [\d,]+, and {limit} of its rules is 0"):
        plan(analysis, limited(**{limit: 0}))
