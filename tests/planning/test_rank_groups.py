"""Plans whose layers are divided among devices: against all groups and shares on small models, and run as parts."""

# ruff: noqa: S311 - seeds make the same models and clusters each time, and keep no secrets

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Across, Cluster, Device, Limits, Plan, PlanError, SimulatedCluster, UsageError, Within, demos
from graphcut.analysis.cut_points import Analysis, analyze
from graphcut.costs.cluster import NetworkLink, Overlap
from graphcut.costs.device import run_s
from graphcut.costs.device_groups import DeviceGroup, Rank, RankMode, ranks_of, tried_groups
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.costs.weighing import Costs, weigh
from graphcut.drawing.sentences import plan_notes
from graphcut.planning.goals import Objective
from graphcut.planning.planner import plan, with_metrics
from graphcut.sharding.rank_costs import RankCosts

from cases import each, seeded, some
from conftest import floats, model_of, weight

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "decode")
OVERLAPS: tuple[Overlap, ...] = ("all", "none")
FAST = tuple(Device(name=name, link_bytes_per_s=1e9, latency_s=1e-5) for name in "ab")


def chain(draw: random.Random) -> ModelProto:
    """Products and Relus in a row; the columns of the products can be divided."""
    nodes, weights, width, name = [], [], 16, "x"
    for i in range(draw.randint(3, 5)):
        if i % 2:
            nodes.append(helper.make_node("Relu", [name], [f"t{i}"], name=f"n{i}"))
        else:
            after = draw.choice((64, 256, 512))
            weights.append(numpy_helper.from_array(np.zeros((width, after), np.float32), f"w{i}"))
            nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [f"t{i}"], name=f"n{i}"))
            width = after
        name = f"t{i}"
    return model_of(nodes, [floats("x", 64, 16)], [floats(name, 64, width)], weights)


def cluster_of(draw: random.Random, overlap: Overlap) -> Cluster:
    """Three devices of different speed, over links of which some are so fast that ranks pay."""
    devices = tuple(
        Device(
            name=name,
            flops_per_s=draw.choice((1e8, 3e8, 1e9)),
            link_bytes_per_s=draw.choice((1e7, 1e8, 1e10)),
            latency_s=draw.choice((1e-7, 1e-5, 1e-3)),
        )
        for name in "abc"
    )
    links = (NetworkLink(between=("a", "b"), bytes_per_s=1e9, latency_s=1e-6),) if draw.random() < 0.3 else ()
    return Cluster(devices=devices, links=links, overlap=overlap, origin=draw.choice(("a", None)))


def chains_of_devices(hosts: Sequence[Device], parts: int) -> Iterator[tuple[Device, ...]]:
    """All ways to give each part a device or a group, none of which shares a device with another."""
    for chosen in itertools.permutations(hosts, parts):
        names = [rank.device.name for host in chosen for rank in ranks_of(host)]
        if len(names) == len({*names}):
            yield chosen


def all_plans(analysis: Analysis, goal: Across, costs: Costs, most_ranks: int) -> Iterator[Plan]:
    """Every division of a chain, on every choice of devices and tried groups."""
    devices, flow = goal.cluster.devices, analysis.model.graph.flow
    ranks = RankCosts(costs, goal.cluster, goal.mode, lambda device: run_s(costs, device))
    groups = [group for _, group in tried_groups([[d] for d in devices], most_ranks, ranks.shares_to_try)]
    for parts in range(1, len(devices) + 1):
        for cuts in itertools.combinations(range(1, len(flow)), parts - 1):
            blocks = tuple(flow[i:j] for i, j in itertools.pairwise((0, *cuts, len(flow))))
            for chosen in chains_of_devices((*devices, *groups), parts):
                made = Plan(goal, analysis.model.graph, blocks, devices=chosen, limits=Limits(recompute="never"))
                yield with_metrics(analysis, made, costs)


@each("overlap", OVERLAPS)
@seeded(3)
def test_a_plan_is_the_best_of_all_divisions_on_all_devices_and_groups(
    seed: int, overlap: Overlap, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    (tmp_path / "model.onnx").write_bytes(chain(draw).SerializeToString())
    analysis, cluster = analyze(tmp_path / "model.onnx"), cluster_of(draw, overlap)
    costs, limits = weigh(analysis.model), Limits(recompute="never", inside_layers=True)
    found = list(all_plans(analysis, Across(cluster), costs, 3))
    for objective in OBJECTIVES:
        goal = Across(cluster, objective, in_flight=2 if objective == "decode" else 1, ranks=3)
        times = [made.times for made in found]
        best = min(one.objective(goal.objective, goal.in_flight) for one in times if one is not None)
        made = plan(analysis, goal, limits=limits, costs=costs)
        assert made.times is not None
        assert made.outcome is not None
        assert made.times.objective(goal.objective, goal.in_flight) == pytest.approx(best, rel=1e-6)
        assert made.outcome.is_optimal
        bound = made.outcome.bound
        assert bound is not None
        assert (1 / bound if objective == "decode" else bound) <= best * (1 + 1e-6)


@seeded(3)
def test_a_plan_that_avoids_or_pins_a_node_is_the_best_of_those_that_do(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    (tmp_path / "model.onnx").write_bytes(chain(draw).SerializeToString())
    analysis, cluster = analyze(tmp_path / "model.onnx"), cluster_of(draw, "all")
    costs, flow = weigh(analysis.model), analysis.model.graph.flow
    index = draw.randrange(len(flow) - 1)
    node, part = flow[index], draw.randint(0, min(index, 1))
    goal = Across(cluster, draw.choice(OBJECTIVES), ranks=3)
    found = [(made.partition.blocks, made.times) for made in all_plans(analysis, goal, costs, 3)]
    avoiding = [times for blocks, times in found if all(block.nodes[-1] != node for block in blocks)]
    pinned = [times for blocks, times in found if part < len(blocks) and node in blocks[part].nodes]
    limits = Limits(recompute="never", inside_layers=True)
    for allowed, more in ((avoiding, {"avoid": (f"n{node}",)}), (pinned, {"pins": ((f"n{node}", part),)})):
        made = plan(analysis, goal, limits=replace(limits, **more), costs=costs)
        best = min(one.objective(goal.objective, goal.in_flight) for one in allowed if one is not None)
        assert made.times is not None
        assert made.times.objective(goal.objective, goal.in_flight) == pytest.approx(best, rel=1e-6)
        assert made.outcome is not None
        assert made.outcome.is_optimal


@each("pins", [(), (("n", 0),)])
def test_more_devices_than_nodes_divide_the_only_node(pins: tuple[tuple[str, int], ...]) -> None:
    """A product of 2 * 64 * 16 * 512 FLOPs: half of them on each device."""
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    analysis = analyze(
        graphcut.load(model_of([product], [floats("x", 64, 16)], [floats("y", 64, 512)], [weight("w", 16, 512)]))
    )
    near = Device(name="a", flops_per_s=1e8, bytes_per_s=1e15, dispatch_s=0, link_bytes_per_s=1e15, latency_s=0)
    cluster = Cluster(devices=(near, replace(near, name="b")), origin="a")
    made = plan(analysis, Across(cluster, "latency", ranks=2), limits=Limits(pins=pins))
    assert [len(ranks_of(device)) for device in made.devices] == [2]
    assert made.outcome is not None
    assert made.outcome.is_optimal
    assert made.outcome.value == pytest.approx(64 * 16 * 512 / 1e8, rel=1e-6)


def decoder(folder: Path, **options: int) -> Path:
    demos.write("llm", folder / "model.onnx", external=None, **options)
    return folder / "model.onnx"


def test_layers_are_divided_unasked_where_cutting_them_does_not_fit_either(tmp_path: Path) -> None:
    model = graphcut.load(decoder(tmp_path, hidden=256, layers=2, vocab=4000), dims=TOKEN)
    needed = plan(model, Within(1 << 40)).needs[0]
    cluster = Cluster(devices=tuple(Device(name=name, memory_bytes=int(0.4 * needed)) for name in "abcd"))
    with pytest.raises(PlanError, match="no division fits the devices"):
        plan(model, Across(cluster, ranks=1), limits=Limits(inside_layers=True))
    made = plan(model, Across(cluster))
    assert made.has_groups
    assert max(made.budget_shares) <= 1


def test_a_request_is_divided_over_fast_links_and_not_over_slow_ones(tmp_path: Path) -> None:
    model = decoder(tmp_path, hidden=256, layers=2)
    made = plan(model, Across(Cluster(devices=FAST), "latency"))
    (group,) = made.devices
    assert isinstance(group, DeviceGroup)
    assert group.shares == (1, 1)
    notes = [*plan_notes(made, graphcut.load(model))]
    assert not any("slows a request" in note or "no other plan" in note for note in notes)
    exact, summed = made.modes
    assert (exact.mode, exact.exchanges_per_layer, summed.mode, summed.exchanges_per_layer) == ("exact", 4, "sum", 2)
    assert exact.latency_s == made.times.latency_s  # type: ignore[union-attr]
    alone = plan(model, Across(Cluster(devices=FAST), "latency", ranks=1))
    assert made.outcome.value < alone.outcome.value  # type: ignore[union-attr]
    slow = tuple(Device(name=name, latency_s=0.1) for name in "ab")
    assert not plan(model, Across(Cluster(devices=slow), "latency")).has_groups
    assert not plan(model, Across(Cluster(devices=FAST))).has_groups  # a pipeline has more throughput


TOKEN = {"batch": 1, "seq": 1, "past": 15, "total": 16}


@pytest.mark.parametrize(("bytes_per_s", "is_divided"), [(1e8, True), (1e10, False)])
def test_the_layers_of_a_token_are_divided_where_that_is_faster_and_else_not(
    bytes_per_s: float, *, is_divided: bool, tmp_path: Path
) -> None:
    """Where memory is fast, the exchanges take longer than the weights that a rank need not read."""
    model = graphcut.load(decoder(tmp_path, hidden=256, layers=2), dims=TOKEN)
    device = Device(name="a", bytes_per_s=bytes_per_s, link_bytes_per_s=1e9, latency_s=1e-4)
    cluster = Cluster(devices=(device, replace(device, name="b")))
    made = plan(model, Across(cluster, "latency"))
    assert made.has_groups == is_divided
    assert not plan(model, Across(cluster, "decode")).has_groups  # several sequences keep both busy without


@pytest.mark.fuzz
@pytest.mark.parametrize("kibibytes", some([(12200, 12200, 11100, 11100)], (11400,) * 4), ids=str)
def test_a_layer_too_big_for_every_device_is_divided_and_computes_the_model(
    kibibytes: tuple[int, ...], tmp_path: Path
) -> None:
    model = graphcut.load(decoder(tmp_path, hidden=512, layers=2, heads=8, kv_heads=4), dims=TOKEN)
    room = [Device(name=f"d{i}", memory_bytes=size << 10) for i, size in enumerate(kibibytes)]
    cluster = Cluster(devices=tuple(room))
    with pytest.raises(PlanError, match=r"alone needs 11\.9 MiB"):
        plan(model, Across(cluster, ranks=1), limits=Limits(inside_layers=False))
    made = plan(model, Across(cluster), limits=Limits(inside_layers=False))
    assert made.has_groups
    # Of a token's work exchanges take the most.
    notes = [*plan_notes(made, model)]
    assert any(re.search(r"slows a request: .+; d0 alone would take", note) for note in notes)
    assert "layers are divided since no other plan that was found fits these devices; see `ranks`" in notes
    cascade = graphcut.split(model, made, tmp_path / "parts")
    for device in room:
        files = {name for part in cascade.parts if part.device == device.name for name in part.contents}
        assert sum((cascade.root / name).stat().st_size for name in files) <= (device.memory_bytes or 0)
    report = graphcut.verify(model, cascade)
    assert report.same
    assert report.is_identical


def test_a_plan_file_with_ranks_gives_the_same_parts(tmp_path: Path) -> None:
    model = graphcut.load(decoder(tmp_path, hidden=256, layers=2))
    made = plan(model, Across(Cluster(devices=FAST), "latency"))
    graphcut.save_plan(made, model, tmp_path / "plan.json")
    again = graphcut.replay(analyze(model), tmp_path / "plan.json")
    assert (again.devices, again.outcome, again.modes, again.metrics) == (
        made.devices,
        made.outcome,
        made.modes,
        made.metrics,
    )
    first, second = (graphcut.split(model, one, tmp_path / f"{i}") for i, one in enumerate((made, again)))
    assert [part.sha256 for part in first.parts] == [part.sha256 for part in second.parts]


@each(("mode", "moved"), [("exact", 2), ("sum", 3)])
def test_a_rank_reads_the_pieces_that_it_joins_and_writes_the_whole(mode: RankMode, moved: int) -> None:
    """Halves of 1 KiB, or sums that each have all 2 KiB, at 1,000 bytes a second of memory; links take no time."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    model = graphcut.load(model_of(nodes, [floats("x", 8, 16)], [floats("y", 8, 64)], [weight("w", 16, 64)]))
    devices = tuple(
        Device(name=name, bytes_per_s=1e3, link_bytes_per_s=1e15, latency_s=0.0, dispatch_s=0.0) for name in "ab"
    )
    costs = RankCosts(weigh(model), Cluster(devices=devices), mode, lambda _: [0.0] * 2)
    seconds = costs.seconds_of(DeviceGroup.of([Rank(device, 1) for device in devices]))
    assert seconds == pytest.approx([moved * 2.048, 0.0], rel=1e-4)


def test_what_the_first_rank_computes_alone_is_sent_to_the_others() -> None:
    """It sends 512 bytes of `s`; of `a` each rank receives half. Links carry 1,000 bytes a second."""
    steps = (("Softmax", ["x"], "s"), ("MatMul", ["x", "w"], "a"), ("Softmax", ["a"], "b"), ("Add", ["b", "s"], "y"))
    nodes = [helper.make_node(op, reads, [end]) for op, reads, end in steps]
    model = graphcut.load(model_of(nodes, [floats("x", 8, 16)], [floats("y", 8, 16)], [weight("w", 16, 16)]))
    devices = tuple(Device(name=name, link_bytes_per_s=1e3, latency_s=0.0, dispatch_s=0.0) for name in "ab")
    costs = RankCosts(weigh(model), Cluster(devices=devices), "exact", lambda _: [0.0] * 4)
    group = DeviceGroup.of([Rank(device, 1) for device in devices])
    assert costs.seconds_of(group)[0] == pytest.approx(0.512, rel=1e-4)
    assert costs.exchanged(group, range(4))[1] == 512 + 256


def test_a_rank_without_units_of_a_node_takes_no_time_for_it() -> None:
    """Two times four columns, in 1 s each. The third rank, which takes 5 s to begin a node, only joins them."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    model = graphcut.load(model_of(nodes, [floats("x", 8, 16)], [floats("y", 8, 8)], [weight("w", 16, 8)]))
    devices = [
        Device(name=name, link_bytes_per_s=1e15, bytes_per_s=1e15, latency_s=0.0, dispatch_s=dispatch_s)
        for name, dispatch_s in (("a", 0.0), ("b", 0.0), ("c", 5.0))
    ]
    costs = RankCosts(weigh(model), Cluster(devices=tuple(devices)), "exact", lambda one: [2.0 + one.dispatch_s, 0.0])
    group = DeviceGroup.of([Rank(device, 1) for device in devices])
    assert costs.seconds_of(group)[0] == pytest.approx(1.0 + 5.0, rel=1e-4)


def test_only_the_first_rank_holds_what_it_alone_computes_and_each_a_share_of_what_is_divided() -> None:
    """An LSTM with weights of 1.25 MiB, which is not repeated; 8 KiB of a product are divided."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=256),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "p"], ["y"]),
    ]
    weights = [weight("w", 1, 1024, 64), weight("r", 1, 1024, 256), weight("p", 256, 8)]
    model = graphcut.load(model_of(nodes, [floats("x", 5, 1, 64)], [floats("y", 1, 1, 8)], weights))
    devices = Device(name="a"), Device(name="b")
    costs = RankCosts(weigh(model), Cluster(devices=devices), "exact", lambda _: [0.0] * 3)
    saved = [(set(nodes), numbers) for nodes, numbers in costs.saved_bytes((1, 1), costs.costs.held(devices[0]))]
    of_weights = [numbers for nodes, numbers in saved if nodes and numbers != [-SESSION_BYTES] * 2]
    assert [sum(column) for column in zip(*of_weights, strict=True)] == [4 << 10, (4 << 10) + (5 << 18)]


def test_weights_of_ranks_are_in_one_file_each(tmp_path: Path) -> None:
    model = graphcut.load(decoder(tmp_path, hidden=256, layers=1))
    made = plan(model, Across(Cluster(devices=FAST), "latency"))
    assert made.has_groups
    with pytest.raises(UsageError, match="only a plan for a cluster has groups of devices"):
        graphcut.split(model, dataclasses.replace(made, goal=graphcut.Into(1)), tmp_path / "parts")
    with pytest.raises(UsageError, match="in one file"):
        graphcut.split(model, made, tmp_path / "parts", max_shard_bytes=10_000)


def test_a_rank_needs_its_parts_and_what_the_largest_computes(tmp_path: Path) -> None:
    """What two parts read of its file, 128 KiB of the embedding, it holds once."""
    model = graphcut.load(decoder(tmp_path, hidden=256, layers=2, tied=True))
    made = plan(model, Across(Cluster(devices=FAST), "latency"))
    parts = [part for part in graphcut.split(model, made, tmp_path / "parts").parts if part.rank == 1]
    read = np.zeros((tmp_path / "parts" / "part-rank-1.onnx.data").stat().st_size, int)
    digests = (data.digest for part in parts for data in part.data.values() if data.digest)
    for start, size in (span for digest in digests for span in digest.ranges):
        read[start : start + size] += 1
    assert np.bincount(read).tolist()[2:] == [128 << 10]
    memory = [part.memory for part in parts if part.memory is not None]
    computed = max(one.inputs + max(one.opening, one.activations) for one in memory)
    needed = sum(one.load + one.states for one in memory) - (128 << 10) + computed
    (group,) = made.devices
    first, second = ranks_of(group)

    def with_memory(memory_bytes: int) -> Plan:
        ranks = [first, Rank(replace(second.device, memory_bytes=memory_bytes), second.share)]
        return dataclasses.replace(made, devices=(DeviceGroup.of(ranks),))

    graphcut.split(model, with_memory(needed), tmp_path / "again")
    with pytest.raises(PlanError, match=f"the ranks on 'b' need {needed:,} bytes, but it has {needed - 1:,}"):
        graphcut.split(model, with_memory(needed - 1), tmp_path / "never")


@pytest.mark.parametrize(("speeds", "mode"), [((1, 1), "exact"), ((2, 1, 1), "sum")])
def test_ranks_that_are_simulated_take_the_time_of_the_plan(
    speeds: tuple[int, ...], mode: RankMode, tmp_path: Path
) -> None:
    model = decoder(tmp_path, layers=2)
    near = Device(name="near", link_bytes_per_s=1e10, latency_s=1e-7, dispatch_s=1e-7)
    devices = [replace(near, name=f"d{i}", flops_per_s=1e8 * s, bytes_per_s=1e8 * s) for i, s in enumerate(speeds)]
    cluster = SimulatedCluster(devices=tuple(devices))
    made = plan(model, Across(cluster.planned, "latency", mode=mode))
    assert [len(ranks_of(device)) for device in made.devices] == [len(speeds)]
    cascade = graphcut.split(model, made, tmp_path / "parts")
    result = graphcut.simulate(graphcut.scenario_of_cascade(cascade, cluster), requests=2, window=1)
    assert made.times is not None
    assert result.latency is not None
    assert result.latency.mean == pytest.approx(made.times.latency_s, rel=0.02)
    unsplit = graphcut.simulate(graphcut.scenario_of_plan(made, graphcut.load(model), None), requests=2, window=1)
    assert unsplit.latency is not None
    assert unsplit.latency.mean == pytest.approx(result.latency.mean, rel=1e-12)


def test_the_parts_of_groups_decode_the_tokens_of_the_model(tmp_path: Path) -> None:
    model = decoder(tmp_path, hidden=512, layers=2, heads=8, kv_heads=4, tied=True)
    room = tuple(Device(name=name, memory_bytes=12200 << 10) for name in "abcd")
    loaded, goal = graphcut.load(model, dims=TOKEN), Across(Cluster(devices=room), "decode")
    assert not plan(loaded, goal).has_groups  # layers that are cut fit, too
    cascade = graphcut.split(loaded, plan(loaded, goal, limits=Limits(inside_layers=False)), tmp_path / "parts")
    assert {part.rank for part in cascade.parts} == {0, 1, 2, 3}
    whole = graphcut.split(model, graphcut.Into(1), tmp_path / "whole")
    expected = graphcut.generate(whole, [[1, 15, 27]], max_tokens=8).all()
    assert graphcut.generate(cascade, [[1, 15, 27]], max_tokens=8, via="threads").all() == expected


def test_ranks_that_nobody_can_plan_are_refused(tmp_path: Path) -> None:
    model, cluster = decoder(tmp_path, layers=1), Cluster(devices=FAST)
    for goal, limits in (
        (Across(cluster, "bytes", ranks=2), Limits()),
        (Across(cluster, interleave=True, ranks=2), Limits()),
        (Across(cluster, ranks=2), Limits(boundary_dtype="float16")),
    ):
        with pytest.raises(UsageError, match="layers are divided for"):
            plan(model, goal, limits=limits)
    with pytest.raises(UsageError, match="among 0 devices"):
        plan(model, Across(cluster, ranks=0))
