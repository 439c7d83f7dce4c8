"""`plan` on models: file sizes, memory, limits, and the same plan in every process."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import Analysis, Plan, PlanError, UsageError, demos, verify
from graphcut.costs.caches import find_caches, nodes_touching
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import Counted, Device
from graphcut.costs.held_weights import NODE_BYTES, RECORD_BYTES
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.costs.weighing import weigh
from graphcut.drawing.scene_builders import scene_of_plan
from graphcut.planning.disk_size import serialized_sizes
from graphcut.planning.explaining import front_of
from graphcut.planning.goals import Across, At, Goal, Heads, Into, Limits, Objective, Within
from graphcut.planning.planner import default_dims, plan
from graphcut.planning.problem import problem_of
from graphcut.solving.transfers import RequestTimes
from graphcut.surgery.cutting import prepare
from graphcut.surgery.splitting import PreparedFiles

import control_flow as models
from cases import crossed, each, some
from conftest import FIXTURES, Draw, floats, model_of, simple_plan, weight
from hazards import HAZARDS

EXPORTS = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*.onnx"))
Named = Callable[[str], Analysis]
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "llm-tied": {"tied": True, "vocab": 512, "layers": 2},
    "llm-half": {"dtype": "float16", "external": True, "layers": 2},
}
MODELS = (*sorted({*models.MODELS} - {"llm"}), *OPTIONS, *EXPORTS)  # the options are those of two smaller decoders


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Named:
    """The analysis of a demo or of an export."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def find(name: str) -> Analysis:
        if name.endswith(".onnx"):
            return graphcut.analyze(graphcut.load(FIXTURES / name))
        models.write_model(name.partition("-t")[0].partition("-h")[0], folder / f"{name}.onnx", **OPTIONS.get(name, {}))
        return graphcut.analyze(graphcut.load(folder / f"{name}.onnx"))

    return find


def sizes(cut: PreparedFiles) -> list[int]:
    """What the files of each part take on disk."""
    return [part.bytes for part in cut.parts]


def whole_bytes(analysis: Analysis) -> int:
    return sizes(prepare(analysis.model, plan(analysis, Within(1 << 40, ()))))[0]


def smallest_in(error: PlanError) -> list[int]:
    """The budgets that a hint names: as it was asked, and with layers cut."""
    return [int(number) for number in re.findall(r"`Within\((\d+)\)`", error.hint)]


@crossed(("name", "layers"), MODELS, ["whole", "cut"], times=1, together=1)
def test_every_part_fits_the_budget_on_disk_and_no_budget_below_the_reported_one_works(
    name: str, layers: str, named: Named
) -> None:
    analysis, limits = named(name), Limits(inside_layers=layers == "cut")
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(16, ()), limits=limits)
    smallest = smallest_in(caught.value)[0]
    whole = whole_bytes(analysis)
    budgets = sorted({smallest, (smallest + whole) // 2, whole * 3})
    parts = []
    for budget in budgets:
        made = plan(analysis, Within(budget, ()), limits=limits)
        written = sizes(prepare(analysis.model, made))
        assert max(written) <= budget
        assert_predictions_are_close(made, written)
        parts.append(len(written))
    assert parts == sorted(parts, reverse=True)
    assert parts[-1] == 1
    try:
        less = plan(analysis, Within(smallest - 1, ()), limits=limits)
    except PlanError as error:
        assert smallest_in(error)[0] == smallest  # noqa: PT017 - whether it is refused depends on the model
    else:  # a search along orders may find less when it stops elsewhere, but then it is no proof
        assert less.outcome is not None
        assert not less.outcome.is_optimal


def test_a_documented_tensor_whose_shape_is_inferred_takes_both_on_disk(opened: Draw) -> None:
    shape = (1,) * 16
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Exp", ["a"], ["y"])]
    proto = model_of(nodes, [floats("x", *shape)], [floats("y", *shape)])
    listed = helper.make_tensor_value_info("a", TensorProto.FLOAT, None, doc_string="what it is, " * 20)
    proto.graph.value_info.append(listed)
    made = simple_plan(model := opened(proto), 2)
    assert_predictions_are_close(made, sizes(prepare(model, made)))


def test_to_declare_a_tensor_takes_what_its_message_takes(chain: Path) -> None:
    declared = serialized_sizes(graphcut.load(chain)).declarations
    graphs = {name: onnx.GraphProto(output=[floats(name, "n", 4)]) for name in "abc"}
    assert {name: declared[name] for name in graphs} == {name: graph.ByteSize() for name, graph in graphs.items()}


def assert_predictions_are_close(made: Plan, written: Sequence[int]) -> None:
    for figures, real in zip(made.metrics, written, strict=True):
        assert real <= figures.written_bytes <= real * 1.005 + 16


@crossed(("name", "recompute"), MODELS, ["auto", "never"], times=1, together=1)
def test_files_are_as_large_as_predicted_or_slightly_smaller(name: str, recompute: str, named: Named) -> None:
    analysis = named(name)
    limits = Limits(inside_layers=True, recompute="auto" if recompute == "auto" else "never")
    for goal in (Into(2), Into(3, "flops"), Into(5), Into(24, "bytes")):
        try:
            made = plan(analysis, goal, limits=limits)
        except PlanError:  # it has too few nodes
            continue
        assert_predictions_are_close(made, sizes(prepare(analysis.model, made)))


@each("name", ["llm-half", "multitask", "control-flow", "tiny-llama-int4/model.onnx"])
def test_files_are_as_large_as_prepared(name: str, named: Named, tmp_path: Path) -> None:
    analysis = named(name)
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(1, ()))
    made = plan(analysis, Within(smallest_in(caught.value)[0] * 5 // 4, ()))
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    files = [
        sum(file.stat().st_size for file in (tmp_path / "parts").glob(f"part-{i}.onnx*"))
        for i in range(len(cascade.parts))
    ]
    assert files == sizes(prepare(analysis.model, made))
    assert max(files) <= smallest_in(caught.value)[0] * 5 // 4


def test_an_output_that_another_part_reads_is_declared_once(opened: Draw) -> None:
    read = "an output that is also read inside"
    nodes = [helper.make_node("Relu", ["x"], [read], name="a"), helper.make_node("Exp", [read], ["y"], name="b")]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 8)], [floats(read, 8), floats("y", 8)])))
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(16, ()))
    apart = plan(analysis, Into(2, "bytes"))
    assert smallest_in(caught.value) == [max(part.written_bytes for part in apart.metrics)]
    assert len(plan(analysis, Within(smallest_in(caught.value)[0], ())).parts) == 2


def demo_decoder(folder: Path, layers: int) -> Analysis:
    demos.write("llm", folder / "llm.onnx", layers=layers)
    return graphcut.analyze(folder / "llm.onnx")


@pytest.mark.parametrize("name", ["unet", "multitask"])
def test_more_parts_do_not_take_longer_than_fewer_where_a_part_can_be_cut_for_little(name: str, named: Named) -> None:
    """What these send takes longer than what they compute; the first part of each can be cut in two for less."""
    analysis, values = named(name), list[float]()
    for parts in range(2, 5):
        made = plan(analysis, Into(parts), limits=Limits(inside_layers=True))
        assert made.outcome is not None
        assert made.outcome.bound is not None
        assert made.outcome.bound <= made.outcome.value == pytest.approx(max(part.busy_s for part in made.metrics))
        values.append(made.outcome.value)
    assert values == sorted(values, reverse=True)


def test_a_budget_that_two_parts_keep_is_not_given_three(tmp_path: Path) -> None:
    analysis = demo_decoder(tmp_path, 3)
    halves = plan(analysis, Into(2, "bytes"), limits=Limits(inside_layers=True))
    assert len(plan(analysis, Within(max(part.written_bytes for part in halves.metrics), ())).parts) == 2


def test_of_as_many_parts_within_a_budget_those_that_receive_fewest_bytes_are_taken(tmp_path: Path) -> None:
    analysis = demo_decoder(tmp_path, 2)
    hidden = 512 * 64 * 4  # what crosses between layers; all else can be computed again
    made = plan(analysis, Within(466_239, ()))
    assert [part.received_bytes for part in made.metrics] == [0, hidden]


def test_a_budget_that_counts_inputs_reads_models_whose_weights_are_inputs(tmp_path: Path) -> None:
    analysis = graphcut.analyze(HAZARDS["ir3_initializers_are_inputs"]().write(tmp_path))
    assert (
        max(plan(analysis, Within(SESSION_BYTES + NODE_BYTES + 2 * RECORD_BYTES + 250, ("inputs",))).budget_shares) <= 1
    )


def test_a_budget_that_counts_inputs_and_is_named_works(opened: Draw) -> None:
    """The second part has no room for the large tensor that it can compute, and for what it receives."""
    weights = [
        numpy_helper.from_array(np.array([1024, 1], dtype=np.int64), "repeats"),
        *(numpy_helper.from_array(np.zeros((16, 16), np.float32), name) for name in ("v", "w")),
    ]
    nodes = [
        helper.make_node("Tile", ["x", "repeats"], ["t"], name="tile"),
        helper.make_node("Add", ["t", "x"], ["a"], name="add"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="first"),
        helper.make_node("Sigmoid", ["a"], ["y"], name="end"),
        helper.make_node("MatMul", ["b", "w"], ["z"], name="second"),
    ]
    ends = [floats("y", 1024, 16), floats("z", 1024, 16)]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 1, 16)], ends, weights)))
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(1000, ("inputs",)))
    made = plan(analysis, Within(smallest_in(caught.value)[0], ("inputs",)))
    assert max(made.budget_shares) <= 1


def test_a_budget_is_named_after_the_first_parts_that_keep_it(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hundreds of parts are needed, to look for fewer takes many times as long as the rest of a refusal."""
    analysis = named("llm-tied")
    monkeypatch.setattr("graphcut.planning.by_goal.memory_budget._in_fewer_parts", None)
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(1 << 12))
    monkeypatch.undo()
    goal = Within(smallest_in(caught.value)[0])
    assert max(plan(analysis, goal).budget_shares) <= 1
    monkeypatch.setattr("graphcut.planning.planner._TRIES", 0)  # nothing better is found: these parts are the plan
    assert max(plan(analysis, goal).budget_shares) <= 1


def test_cuts_by_hand_that_recompute_do_not_beat_the_plan(named: Named) -> None:
    made = plan(named("unet.onnx"), Into(3))
    assert made.outcome is not None
    assert made.outcome.value <= 2.9594e-3  # after node_relu_9 and node_Conv_52
    assert not made.outcome.is_optimal


def test_of_the_fewest_parts_those_are_taken_that_receive_the_fewest_bytes_inside_a_layer_too(named: Named) -> None:
    """17 patches of 96 numbers in the middle of a layer; before, parts that kept it whole received 10,896 bytes."""
    made = plan(named("clip.onnx"), Within(1206833, ()))
    assert (len(made.parts), made.received_bytes) == (2, 17 * 96 * 4)


@pytest.mark.parametrize("name", ["multitask", "control-flow", "unet.onnx", "tiny-llama-int4/model.onnx"])
def test_a_part_fits_the_memory_of_its_device(name: str, named: Named) -> None:
    """Memory is so scarce that no device holds the model."""
    analysis = named(name)
    alone = plan(analysis, Within(1 << 40))
    needed = alone.needs[0]
    found = 0
    tried: Sequence[tuple[float, int, Objective]] = ((0.55, 4, "devices"), (0.95, 2, "throughput"))
    for share, number, objective in tried:
        memory = int(needed * share)
        devices = tuple(Device(name=f"d{i}", memory_bytes=memory, flops_per_s=1e11 / (i + 1)) for i in range(number))
        try:
            made = plan(analysis, Across(Cluster(devices=devices), objective), limits=Limits(inside_layers=True))
        except PlanError as error:
            refusal = "fits the devices|the largest device has|no plan was found .* in the memory of a device"
            assert re.search(refusal, str(error))  # noqa: PT017 - which fit is not the claim
            continue
        found += 1
        assert len(made.parts) > 1
        assert len({device.name for device in made.devices}) == len(made.parts)
        for figures, real in zip(made.metrics, sizes(prepare(analysis.model, made)), strict=True):
            assert figures.written_bytes >= real
        assert max(made.needs) <= memory
    assert found > 0


@each(("name", "parts"), [("unet.onnx", 2), ("tiny-llama-int4/model.onnx", 3), ("tiny-llama-fp32/model.onnx", 5)])
def test_a_budget_that_parts_of_the_fewest_bytes_keep_is_not_given_more_parts(
    name: str, parts: int, named: Named
) -> None:
    budget = max(part.needs for part in plan(named(name), Into(parts, "bytes")).memory)
    made = plan(named(name), Within(budget))
    assert len(made.parts) <= parts
    assert max(made.needs) <= budget
    assert made.outcome is not None
    assert (made.outcome.value, made.outcome.unit) == (len(made.parts), "parts")
    assert made.outcome.is_optimal == (made.outcome.bound == len(made.parts))


@each(
    ("name", "share", "number"),
    [("unet", 0.7, 3), ("unet.onnx", 0.8, 3)],
)
def test_where_parts_keep_a_budget_devices_with_as_much_memory_get_a_plan(
    name: str, share: float, number: int, named: Named
) -> None:
    """What a Conv takes while it is put into another order hangs on the Convs that follow: a search counts less."""
    analysis = named(name)
    budget = int(share * plan(analysis, Within(1 << 40)).needs[0])
    assert len(plan(analysis, Within(budget)).parts) <= number
    devices = (Device(name=f"d{i}", memory_bytes=budget, flops_per_s=1e10) for i in range(number))
    made = plan(analysis, Across(Cluster(devices=tuple(devices))))
    assert max(made.needs) <= budget


def test_repeated_layers_are_cut_on_devices_where_nothing_else_fits(named: Named) -> None:
    """As for a budget of memory. A refusal does not advise what was tried."""
    analysis = named("llm")
    needed = plan(analysis, Within(1 << 40)).needs[0]
    devices = [Device(name=f"d{i}", memory_bytes=int(0.8 * needed), flops_per_s=1e10) for i in range(4)]
    goal = Across(Cluster(devices=tuple(devices)))
    with pytest.raises(PlanError, match="no division fits the devices") as caught:
        plan(analysis, goal, limits=Limits(inside_layers=False))
    assert "or let layers be cut with `Limits(inside_layers=True)`" in caught.value.hint
    made = plan(analysis, goal)
    assert max(made.budget_shares) <= 1
    assert made.outcome is not None
    assert not made.outcome.keeps_layers
    with pytest.raises(PlanError, match="no division fits the devices") as caught:
        plan(analysis, Across(Cluster(devices=tuple(devices[:2]))))
    assert "inside_layers" not in caught.value.hint


def test_nothing_is_proven_of_a_plan_that_cuts_layers_by_the_first_that_kept_them(named: Named) -> None:
    """The first plan needs more than was counted; with less memory only plans that cut layers are found."""
    analysis = named("clip.onnx")
    budget = int(0.62 * plan(analysis, Within(1 << 40)).needs[0])
    devices = tuple(Device(name=name, memory_bytes=budget, flops_per_s=1e10) for name in "ab")
    made = plan(analysis, Across(Cluster(devices=devices)))
    assert max(made.budget_shares) <= 1
    assert made.outcome is not None
    assert (made.outcome.keeps_layers, made.outcome.bound, made.outcome.is_optimal) == (False, None, False)


@each("name", ["llm", "unet", "resnet"])
def test_no_plan_of_a_front_is_as_good_as_another_and_fronts_of_all_objectives_agree(name: str, named: Named) -> None:
    """The best plan is on its front, or one that is as good in both times. All are finished in the same ways."""
    goals = [Across(SLOW_LINKS, objective) for objective in ("throughput", "latency", "devices")]
    plans = [plan(named(name), goal) for goal in goals]
    for made in plans:
        assert made.times is not None
        assert all(a.period_s < b.period_s and a.latency_s > b.latency_s for a, b in itertools.pairwise(made.front))
        period, latency = made.times.period_s * (1 + 1e-6), made.times.latency_s * (1 + 1e-6)
        assert any(one.period_s <= period and one.latency_s <= latency for one in made.front)
    for one, other in itertools.permutations([one for made in plans for one in made.front], 2):
        is_worse = one.period_s > other.period_s * (1 + 1e-6), one.latency_s > other.latency_s * (1 + 1e-6)
        assert not all(is_worse), (one, other)


def test_of_plans_only_those_that_none_is_as_good_as_are_on_the_front(named: Named) -> None:
    made = plan(named("resnet"), Across(SLOW_LINKS))
    assert made.times is not None
    period, latency = made.times.period_s, made.times.latency_s

    def timed(periods: float, latencies: float) -> Plan:
        found = dataclasses.replace(made)
        found.__dict__["times"] = RequestTimes((), period * periods, latency * latencies)
        return found

    def times(*others: Plan) -> list[tuple[float, float]]:
        return [(one.period_s / period, one.latency_s / latency) for one in front_of(made, others)]

    slow, late, better, hardly = timed(2, 0.5), timed(2, 2), timed(0.5, 0.5), timed(1 + 1e-12, 0.75)
    assert times(slow, late) == [(1, 1), (2, 0.5)]
    assert times(better, slow) == [(0.5, 0.5)]
    assert times(hardly) == [(1 + 1e-12, 0.75)]
    assert times(timed(2, 0.999)) == [(1, 1)]
    assert times() == []


def test_decoding_is_planned_for_one_token(named: Named) -> None:
    analysis, goal = named("llm"), Across(SLOW_LINKS, "decode")
    assert default_dims(analysis, goal) == {"batch": 1, "seq": 1, "past": 512, "total": 513}
    assert default_dims(analysis, goal, tokens=7) == {"batch": 1, "seq": 1, "past": 7, "total": 8}
    assert default_dims(analysis, Across(SLOW_LINKS)) == {"batch": 1, "seq": 512, "past": 0, "total": 512}


def test_with_proposed_tokens_a_step_of_several_is_planned_and_its_tokens_counted(named: Named) -> None:
    """A step that feeds four tokens sends one message where four steps send four, so tokens come sooner."""
    llm, goal = named("llm"), Across(SLOW_LINKS, "decode")
    sizes = dict(default_dims(llm, goal))
    steps = {
        tokens: plan(llm, goal, costs=weigh(llm.model, {**sizes, "seq": tokens, "total": 512 + tokens}))
        for tokens in (1, 4)
    }
    rates = {tokens: made.outcome.value for tokens, made in steps.items() if made.outcome}
    assert rates == {
        tokens: pytest.approx(tokens / made.times.latency_s) for tokens, made in steps.items() if made.times
    }
    assert rates[1] < rates[4] <= 4 * rates[1]
    assert steps[4].outcome is not None
    assert steps[4].outcome.objective == "tokens a second, 1 in flight, 4 a step"


COUNTED: tuple[tuple[Counted, ...], ...] = ((), ("inputs",), ("cache",), ("inputs", "cache"))


@each("counting", COUNTED)
def test_a_budget_counts_caches_before_and_after_a_run_and_other_inputs_as_asked(
    counting: tuple[Counted, ...], named: Named
) -> None:
    analysis, limits = named("llm-tied"), Limits(recompute="never")
    graph, costs = analysis.model.graph, weigh(analysis.model, default_dims(analysis, None, "decode", 100))
    pasts = {cache.past for cache in costs.caches}
    bytes_of = {
        "inputs": sum(costs.tensor_bytes[name][0] for name in graph.reads if name not in pasts),
        "cache": sum(costs.tensor_bytes[name][0] for cache in costs.caches for name in (cache.past, cache.present)),
    }
    assert 0 < bytes_of["inputs"] < bytes_of["cache"]
    alone = plan(analysis, Into(1, "bytes"), limits=limits, costs=costs)
    held = alone.memory[0].load if counting else alone.needs[0]
    whole = held + sum(bytes_of[what] for what in counting)
    assert len(plan(analysis, Within(whole, counting), limits=limits, costs=costs).parts) == 1
    assert len(plan(analysis, Within(whole - 1, counting), limits=limits, costs=costs).parts) > 1


@pytest.mark.parametrize("by", ["layers", "time"])
def test_a_decoder_in_two_parts_has_half_of_the_layers_in_each(by: str, named: Named) -> None:
    analysis = named("llm")
    made = plan(analysis, Into(2, by))  # type: ignore[arg-type]
    modules = [{analysis.model.graph.nodes[n].module for n in row} for row in made.parts]
    layers = [{m.split("/")[1] for m in own if m.startswith("model/layers.")} for own in modules]
    assert layers == [{f"layers.{i}" for i in part} for part in ((0, 1, 2), (3, 4, 5))]
    assert "model.embed_tokens.weight" in made.partition.blocks[0].weights
    assert {name for name in made.partition.blocks[1].writes if name == "logits"} == {"logits"}
    assert made.outcome is not None
    assert made.outcome.is_optimal


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_layers_are_divided_evenly(parts: int, named: Named) -> None:
    made = plan(named("llm"), Into(parts, "layers"))
    assert made.outcome is not None
    assert (made.outcome.value, made.outcome.unit) == (6 / parts, "layers")


def test_a_model_that_repeats_nothing_has_no_layers_to_count(named: Named) -> None:
    with pytest.raises(UsageError, match="repeats no layer") as caught:
        plan(named("unet"), Into(2, "layers"))
    assert caught.value.hint == "balance `by` time, bytes or flops"


def test_tied_embeddings_count_in_both_parts(named: Named) -> None:
    analysis = named("llm-tied")
    made = plan(analysis, Into(2, "layers"))
    table = 512 * 64 * 4
    assert all("model.embed_tokens.weight" in block.weights for block in made.partition.blocks)
    assert all(figures.written_bytes >= figures.weight_bytes > table for figures in made.metrics)
    written = sizes(prepare(analysis.model, made))
    assert sum(written) > whole_bytes(analysis) + table * 9 // 10
    assert_predictions_are_close(made, written)
    # Whoever has the embedding and the head in one part needs the table once.
    apart = whole_bytes(analysis) - 1
    assert max(sizes(prepare(analysis.model, plan(analysis, Within(apart, ()))))) <= apart


@pytest.mark.parametrize("name", ["llm-tied", "tiny-llama-fp32/model.onnx", "tiny-llama-int4/model.onnx"])
def test_both_ends_of_a_cache_are_in_one_part(name: str, named: Named) -> None:
    analysis = named(name)
    graph = analysis.model.graph
    caches = find_caches(analysis.model)
    assert len(caches) >= 4
    for goal in (Into(3, "bytes"), Into(5), Within(whole_bytes(analysis) * 2 // 3, ())):
        made = plan(analysis, goal, limits=Limits(inside_layers=True))
        for pair in caches:
            holders = [{i for i, row in enumerate(made.parts) if n in row} for n in nodes_touching(graph, pair)]
            assert all(len(parts) == 1 for parts in holders)
            assert len(set.union(*holders)) == 1


GOALS = (
    Into(3, "bytes"),
    Into(3),
    Within(500_000, ()),
    Across(Cluster(devices=tuple(Device(name=f"d{i}") for i in range(3)))),
)


@pytest.mark.fuzz
@each("goal", some([GOALS[0], *GOALS[2:]], GOALS[1]))
def test_pins_and_nodes_to_avoid_are_respected(goal: Into | Within | Across, named: Named) -> None:
    analysis = named("llm")
    graph = analysis.model.graph
    pins = (("/model/layers.1/add_1", 0), ("/model/layers.2/input_layernorm/*", 1), ("/model/layers.4/add_1", 2))
    free = plan(analysis, goal)
    sent = [name for name in free.partition.wiring.boundary_tensors if name in graph.producer]
    # What reads the output of this pinned node is pinned to another part.
    avoided = next(name for name in sent if name != "/model/layers.1/add_1_output_0")
    made = plan(analysis, goal, limits=Limits(pins=pins, avoid=(avoided,)))
    home = {n: i for i, row in reversed([*enumerate(made.parts)]) for n in row}
    assert home[graph.node_index["/model/layers.1/add_1"]] == 0
    assert {home[n] for n in graph.flow if graph.nodes[n].name.startswith("/model/layers.2/input_layernorm/")} == {1}
    assert home[graph.node_index["/model/layers.4/add_1"]] == 2
    assert avoided not in made.partition.wiring.boundary_tensors
    assert made.outcome is not None
    assert made.unlimited is not None
    assert made.unlimited == free.outcome
    assert made.outcome.value >= made.unlimited.value or not made.unlimited.is_optimal


def test_where_parts_keep_a_budget_of_memory_they_keep_a_larger_one(tmp_path: Path) -> None:
    """The weights of this model are folded while a part is opened, all at once."""
    demos.write("unet", tmp_path / "unet.onnx")
    analysis = graphcut.analyze(tmp_path / "unet.onnx")
    found = [len(plan(analysis, Within(budget)).parts) for budget in (1_650_000, 1_750_000, 1_900_000)]
    assert found == sorted(found, reverse=True)


def test_a_node_is_in_the_part_that_it_is_pinned_to_where_all_nodes_have_room_in_one(named: Named) -> None:
    analysis = named("lstm.onnx")
    index = analysis.model.graph.node_index
    made = plan(analysis, Within(100_000_000), limits=Limits(pins=(("node_embedding", 0), ("node_mean", 1))))
    assert len(made.parts) == 2
    assert index["node_embedding"] in made.parts[0]
    assert index["node_mean"] in made.parts[1]


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ((("/model/layers.1/add_1", 1), ("/model/layers.4/add_1", 0)), "pinned"),
        ((("/model/layers.1/add_1", 0), ("/model/layers.1/add_1", 1)), "pinned to part 0 and to part 1"),
        ((("/model/layers.1/add_1", 0), ("/model/layers.1/self_attn/q_proj/MatMul", 1)), "must stay with it"),
    ],
    ids=["backwards", "two parts", "one layer"],
)
def test_pins_that_contradict_each_other_or_the_model_are_refused(
    pins: tuple[tuple[str, int], ...], message: str, named: Named
) -> None:
    with pytest.raises((PlanError, UsageError), match=re.escape(message)) as caught:
        plan(named("llm"), Into(2), limits=Limits(pins=pins))
    assert "pin" in caught.value.hint


def test_a_pin_that_names_nothing_or_no_part_is_refused(named: Named) -> None:
    with pytest.raises(UsageError, match="Ad_1"):
        plan(named("llm"), Into(2), limits=Limits(pins=(("/model/layers.1/Ad_1", 0),)))
    with pytest.raises(UsageError, match="there is no part -1"):
        plan(named("llm"), Into(2), limits=Limits(pins=(("/model/layers.1/add_1", -1),)))
    with pytest.raises(UsageError, match="there is no part 2"):
        plan(named("llm"), Into(2), limits=Limits(pins=(("/model/layers.1/add_1", 2),)))


def test_named_cuts_at_a_tensor_to_avoid_are_refused(named: Named) -> None:
    with pytest.raises(PlanError, match=r"'/model/layers\.1/add_1_output_0' would cross, and is to be avoided"):
        plan(named("llm"), At("/model/layers.1/add_1"), limits=Limits(avoid=("/model/layers.1/add_1",)))


def test_avoiding_everything_leaves_nothing_to_cut(named: Named) -> None:
    with pytest.raises(PlanError, match="can be cut into 1 part at most, not into 2"):
        plan(named("resnet"), Into(2), limits=Limits(avoid=("*",)))


@each("goal", [Into(2), Within("1KB")])
def test_a_node_that_holds_the_model_is_named_with_what_is_inside(goal: Goal, tmp_path: Path) -> None:
    """A decoder whose If chooses between with and without past, as Optimum exports it."""
    names = {"then_branch": "abcd", "else_branch": "efg"}
    nodes = {key: [helper.make_node("Add", ["x", "w"], [n]) for n in own] for key, own in names.items()}
    branches: dict[str, Any] = {
        key: helper.make_graph(own, key, [], [floats(own[0].output[0], 600)]) for key, own in nodes.items()
    }
    wide = helper.make_node("If", ["c"], ["y"], name="merged", **branches)
    weights = [numpy_helper.from_array(np.ones(600, np.float32), "w")]
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    onnx.save(model_of([wide], [floats("x", 600), flag], [floats("y", 600)], weights), tmp_path / "m.onnx")
    with pytest.raises(
        PlanError, match=re.escape("node 'merged' (If, with 7 nodes inside, which no cut divides)")
    ) as no:
        plan(tmp_path / "m.onnx", goal)
    assert "export what is inside as models of their own" in no.value.hint


@pytest.mark.parametrize("groups", [(), (("logits",), ("boxes",), ("depth",)), (("logits", "boxes"), ("depth",))])
def test_each_head_is_a_part_of_its_own(groups: tuple[tuple[str, ...], ...], named: Named, tmp_path: Path) -> None:
    analysis = named("multitask")
    graph = analysis.model.graph
    made = plan(analysis, Heads(groups), limits=Limits(recompute="never"))
    heads = groups or (("logits",), ("boxes",), ("depth",))
    assert len(made.parts) == len(heads) + 1
    needed = [ancestors(analysis, outputs) for outputs in heads]
    shared = {n for n in graph.flow if sum(n in nodes for nodes in needed) > 1}
    assert set(made.parts[0]) == shared
    assert [set(row) for row in made.parts[1:]] == [nodes - shared for nodes in needed]
    assert all(source == 0 for source, _ in made.partition.wiring.boundary_tensors.values())
    assert verify(analysis.model, graphcut.split(analysis.model, made, tmp_path / "parts")).is_identical


def ancestors(analysis: Analysis, outputs: Sequence[str]) -> set[int]:
    graph = analysis.model.graph
    found: set[int] = set()
    for n in reversed(graph.flow):
        if not set(outputs).isdisjoint(graph.nodes[n].writes) or any(
            r in found for name in graph.nodes[n].writes for r in graph.readers.get(name, ())
        ):
            found.add(n)
    return found


@pytest.mark.parametrize(
    ("groups", "message"),
    [((("logit",),), "no output 'logit'"), ((("logits",), ("logits", "boxes")), "is in two heads")],
)
def test_names_that_are_no_heads_are_refused(groups: tuple[tuple[str, ...], ...], message: str, named: Named) -> None:
    with pytest.raises(UsageError, match=message):
        plan(named("multitask"), Heads(groups))


def test_a_model_with_one_head_is_refused(named: Named) -> None:
    with pytest.raises(PlanError, match="share all their nodes"):
        plan(named("resnet"), Heads())


OBJECTIVES: Sequence[Objective] = ("decode", "latency", "throughput", "bytes", "devices")
SLOW_LINKS = Cluster(
    devices=(
        Device(name="a", flops_per_s=2e10, link_bytes_per_s=1e7),
        Device(name="b", flops_per_s=3e10, link_bytes_per_s=3e7),
        Device(name="c", flops_per_s=3e10, link_bytes_per_s=3e7),
    )
)


@crossed(("name", "objective"), ["llm-tied", "multitask", "clip.onnx"], OBJECTIVES, times=1, together=1)
def test_the_value_of_a_plan_is_what_its_metrics_add_up_to(name: str, objective: Objective, named: Named) -> None:
    """Without recomputing, what the search counted and what the finished parts take is the same."""
    made = plan(named(name), Across(SLOW_LINKS, objective, 2), limits=Limits(recompute="never"))
    outcome, times = made.outcome, made.times
    assert outcome is not None
    assert times is not None
    says = {
        "throughput": times.period_s,
        "latency": times.latency_s,
        "decode": 1 / max(times.period_s, times.latency_s / 2),
        "bytes": sum(f.received_bytes + f.input_bytes + f.output_bytes for f in made.metrics),
        "devices": len(made.parts),
    }
    assert outcome.value == pytest.approx(says[objective], rel=1e-9)
    assert outcome.bound is not None
    assert outcome.bound >= outcome.value if outcome.unit == "tokens/s" else outcome.bound <= outcome.value


def test_a_whole_model_on_one_device_is_proven_to_send_the_fewest_bytes(named: Named) -> None:
    """They are its inputs and its answers: any plan sends these, whatever it repeats."""
    for name in ("unet", "llm"):
        made = plan(named(name), Across(SLOW_LINKS, "bytes"))
        assert made.outcome is not None
        assert len(made.parts) == 1
        assert made.outcome.is_optimal
        assert made.outcome.bound == made.metrics[0].input_bytes + made.metrics[0].output_bytes


def test_an_output_that_another_part_reads_takes_its_time_to_the_driver_too(opened: Draw) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["t"], name="a"), helper.make_node("Exp", ["t"], ["y"], name="b")]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 250_000)], [floats("t", 250_000), floats("y", 9)])))
    made = plan(analysis, Across(SLOW_LINKS, "latency"), limits=Limits(pins=(("a", 0), ("b", 1)), recompute="never"))
    assert [device.name for device in made.devices] == ["b", "c"]
    assert made.times is not None
    assert made.times.latency_s == pytest.approx(3 * 1e6 / 3e7, rel=0.01)  # `x`, and `t` to two readers


def test_while_decoding_a_token_comes_back_in_place_of_the_logits_and_no_cache(named: Named) -> None:
    made = plan(named("llm"), Across(SLOW_LINKS, "decode"))
    assert sum(metrics.output_bytes for metrics in made.metrics) == 8


def test_sequences_never_cross_a_boundary(named: Named) -> None:
    analysis = named("control-flow")
    tensors = analysis.model.tensors
    assert any(not tensors[name].is_plain for name in analysis.model.graph.producer if name in tensors)
    made = plan(analysis, Into(4))
    assert all(tensors[name].is_plain for name in made.partition.wiring.boundary_tensors)


def test_a_budget_that_is_named_beside_a_number_of_parts_is_for_any_number(opened: Draw) -> None:
    """With so much memory this model of two weights fits into two parts, and not into one."""
    weights = [numpy_helper.from_array(np.full((64, 64), i + 1, np.float32), f"w{i}") for i in range(2)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"node {i}") for i in range(2)]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x0", 1, 64)], [floats("x2", 1, 64)], weights)))
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(1, (), 1))
    assert caught.value.hint.startswith("for any number of parts, the smallest budget that works is ")
    budget = smallest_in(caught.value)[0]
    assert len(plan(analysis, Within(budget, ())).parts) == 2
    with pytest.raises(PlanError):
        plan(analysis, Within(budget - 1, ()))
    with pytest.raises(PlanError, match="at most 1 may be made"):
        plan(analysis, Within(budget, (), 1))


def test_a_weight_that_alone_exceeds_the_budget_is_named(opened: Draw) -> None:
    weights = [
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (64, 64)), ("b", 64))
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Gemm", ["a", "w", "b"], ["c"], name="heavy"),
        helper.make_node("Tanh", ["c"], ["y"], name="last"),
    ]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 1, 64)], [floats("y", 1, 64)], weights)))
    with pytest.raises(PlanError, match=re.escape("node 'heavy' alone takes")) as caught:
        plan(analysis, Within(10_000, ()))
    largest = "; its largest weight is 'w' (16 KiB)"
    assert caught.value.hint.endswith(f"{largest}; to keep yours, divide its weights into 2 nodes in the model itself")
    with pytest.raises(PlanError) as absurd:
        plan(analysis, Within(100, ()))
    assert absurd.value.hint.endswith(largest)
    with pytest.raises(PlanError, match=re.escape("the segment of 2 nodes up to 'heavy' alone takes")) as of_segment:
        plan(analysis, Within(10_000, ()), limits=Limits(avoid=("first",)))
    assert of_segment.value.hint.endswith(largest)
    smallest = smallest_in(caught.value)[0]
    assert 65 * 64 * 4 < smallest < 65 * 64 * 4 + 1000
    assert len(plan(analysis, Within(smallest, ())).parts) >= 1


def test_a_node_alone_exceeds_just_the_budgets_below_what_it_takes(opened: Draw) -> None:
    """Others are too small for its part only together with what the part receives and sends."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "w"], ["y"]),
    ]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x", 4)], [floats("y", 4)], [weight("w", 4)])))
    with pytest.raises(PlanError) as caught:
        plan(analysis, Within(1, ()))
    alone = int(re.findall(r"alone takes (\d+) B", str(caught.value))[0])
    smallest = smallest_in(caught.value)[0]
    assert alone < smallest
    for budget in range(alone - 2, smallest):
        with pytest.raises(PlanError, match=f"alone takes {alone} B" if budget < alone else "no part fits into"):
            plan(analysis, Within(budget, ()))


def test_the_workload_sums_are_those_of_all_nodes(named: Named) -> None:
    """The sums over all groups are the sums over all nodes: nothing is lost, and nothing is counted twice."""
    for name in MODELS:
        analysis = named(name)
        costs = weigh(analysis.model)
        problem = problem_of(analysis, costs, Limits(inside_layers=True), serialized_sizes(analysis.model))
        assert sorted(n for group in problem.groups for n in group) == sorted(analysis.model.graph.flow)
        load = problem.workload([costs.flops])
        assert load.work.sum() == pytest.approx(sum(costs.flops), rel=1e-12)
        one = int(load.total_bytes) + load.part_bytes
        real = whole_bytes(analysis)
        assert real <= one <= real * 1.02 + 2048


def chain_of(nodes: int) -> list[object]:
    ops = ("Relu", "Neg", "Abs")
    return [helper.make_node(ops[i % 3], [f"t{i - 1}" if i else "x"], [f"t{i}"], name=f"n{i}") for i in range(nodes)]


def test_each_part_is_charged_with_the_repeated_nodes_that_it_needs_and_other_shared_items_take_no_time(
    opened: Draw,
) -> None:
    analysis = graphcut.analyze(opened(model_of(chain_of(3), [floats("x", 8)], [floats("t2", 8)])))  # type: ignore[arg-type]
    sizes = serialized_sizes(analysis.model)
    problem = problem_of(analysis, weigh(analysis.model), Limits(inside_layers=True), sizes, replicable=[0])
    load = problem.workload([[5.0, 1.0, 2.0]])
    assert load.work.tolist() == [[1, 2]]
    assert load.sharers.groups_of_items[0] == (0,)
    assert load.shared_work.tolist() == [[5] + [0] * (load.sharers.count - 1)]
    assert load.sharers.count > 1


def test_long_chains_are_cut_evenly_and_at_pins(opened: Draw) -> None:
    """There are more groups than boundaries that are tried: one is between pins that lie close, too."""
    analysis = graphcut.analyze(opened(model_of(chain_of(2400), [floats("x", 8)], [floats("t2399", 8)])))  # type: ignore[arg-type]
    free = Limits(inside_layers=True)
    first, second = (figures.written_bytes for figures in plan(analysis, Into(2, "bytes"), limits=free).metrics)
    assert abs(first - second) < 100  # a node takes about 50 bytes
    close = Limits(pins=(("n300", 0), ("n301", 1)), inside_layers=True)
    assert [len(row) for row in plan(analysis, Into(2, "bytes"), limits=close).parts] == [301, 2099]


def test_pins_by_glob_do_not_multiply(opened: Draw) -> None:
    """90 nodes pinned to one part and 100 to the next are ordered by one pair, not by 9,000."""
    analysis = graphcut.analyze(opened(model_of(chain_of(300), [floats("x", 8)], [floats("t299", 8)])))  # type: ignore[arg-type]
    limits = Limits(pins=(("n[1-9][0-9]", 0), ("n2??", 1)), inside_layers=True)
    problem = problem_of(analysis, weigh(analysis.model), limits, serialized_sizes(analysis.model))
    assert len(problem.workload([[1.0] * 300]).ordered) == 1
    assert len(problem.groups) == 300 - 89 - 99
    first, second = plan(analysis, Into(2), limits=limits).parts
    assert set(range(10, 100)) <= set(first)
    assert set(range(200, 300)) <= set(second)


def found_values(opened: Draw) -> Analysis:
    """Three nodes after a NonZero: nobody knows how many values it finds."""
    chain = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"], name=f"n{i + 1}") for i in range(3)]
    nodes = [helper.make_node("NonZero", ["x"], ["t0"], name="n0"), *chain]
    output = helper.make_tensor_value_info("t3", TensorProto.INT64, [1, "found"])
    return graphcut.analyze(opened(model_of(nodes, [floats("x", 4)], [output])))


def test_nothing_that_hangs_on_an_unknown_size_is_proven(opened: Draw) -> None:
    analysis = found_values(opened)
    scene = scene_of_plan(plan(analysis, Into(2)), analysis)
    assert "optimal (proven)" not in str(scene)
    assert "nothing is proven" in str(scene.details)
    assert any(
        "4 of 5 tensors have no size, such as t0" in note and "set t0.1 with `dims`" in note for note in scene.notes
    )
    assert any(text.startswith("≥ ") for word, text in scene.facts if word == "per run")
    for goal in (Into(2, "flops"), Within("1MB", ("activations",)), Across(Cluster(devices=(Device(name="a"),)))):
        outcome = plan(analysis, goal).outcome
        assert outcome is not None
        assert not outcome.is_optimal


def test_what_hangs_on_files_alone_is_proven_without_sizes(opened: Draw) -> None:
    for goal in (Into(2, "bytes"), Within("1MB", ())):
        outcome = plan(found_values(opened), goal).outcome
        assert outcome is not None
        assert outcome.is_optimal


@pytest.mark.parametrize("tensor_type", [TensorProto.UNDEFINED, TensorProto.FLOAT])
def test_a_tensor_of_unknown_type_never_crosses(tensor_type: int, opened: Draw) -> None:
    """An operator that nobody knows writes what nobody can declare, unless the model says what it is."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Strange", ["a"], ["b"], name="strange", domain="com.example"),
        helper.make_node("Neg", ["b"], ["y"], name="neg"),
    ]
    proto = model_of(nodes, [floats("x", 4)], [floats("y", 4)])
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    if tensor_type != TensorProto.UNDEFINED:
        proto.graph.value_info.append(floats("b", 4))
    analysis = graphcut.analyze(opened(proto))
    most = 2 if tensor_type == TensorProto.UNDEFINED else 3
    assert len(plan(analysis, Into(most)).parts) == most
    assert "b" not in plan(analysis, Into(2)).partition.wiring.boundary_tensors or most == 3
    with pytest.raises(PlanError, match=f"into {most} parts at most"):
        plan(analysis, Into(most + 1))


SMALLER: Mapping[str, Mapping[str, Any]] = {"llm": {"layers": 2}}
SAME = """
import sys
import graphcut
from graphcut.costs.device import Device
from graphcut.costs.cluster import Cluster
from graphcut.planning.goals import Across, Into, Within
from graphcut.planning.planner import plan

cluster = Cluster(devices=tuple(Device(name=f"d{i}", flops_per_s=1e11 / (1 + i)) for i in range(3)))
goals = [Into(2), Into(3, "bytes"), Within(250_000, ())]
goals += [Across(cluster, objective) for objective in ("throughput", "decode")]
for path in sys.argv[1:]:
    analysis = graphcut.analyze(graphcut.load(path))
    for goal in goals if path == sys.argv[1] else goals[:1]:  # the last one is searched along many orders
        try:
            made = plan(analysis, goal)  # with layers whole, and with cuts inside them
            print(made.parts, made.recomputed, made.outcome, made.reasons, made.front, made.devices)
        except graphcut.PlanError as error:
            print(error, error.hint)
"""


def test_plans_are_the_same_in_another_process(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.onnx" for name in ("llm", "multitask")]
    for path in paths:
        demos.write(path.stem, path, **SMALLER.get(path.stem, {}))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SAME, *map(str, paths), str(FIXTURES / "clip.onnx")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    said = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert said[0] == said[1]
    assert said[0].count("\n") == 5 + 1 + 1
