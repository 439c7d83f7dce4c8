"""Named cuts are finished, and predicted, as cuts that a search finds."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphcut
from graphcut import Across, Analysis, At, Cluster, Device, Into, Limits, Within, demos
from graphcut.drawing.scene_builders import scene_of_plan

from conftest import FIXTURES

HALF = Limits(boundary_dtype="float16")
CUT = At("/model/layers.1/add_1")
ONE = 512 * 64 * 4
"""Bytes of the tensor between two layers."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    path = tmp_path_factory.mktemp("named") / "llm.onnx"
    demos.write("llm", path, hidden=64, layers=4, heads=4, kv_heads=2, vocab=64)
    return graphcut.analyze(path)


@pytest.mark.parametrize("limits", [Limits(), HALF], ids=["whole", "float16"])
@pytest.mark.parametrize("parts", [2, 3])
def test_the_planner_s_own_cuts_cost_the_same_when_they_are_named(
    decoder: Analysis, parts: int, limits: Limits
) -> None:
    found = graphcut.plan(decoder, Into(parts), limits=limits)
    cuts = [reason.chosen.after for reason in found.reasons]
    named = graphcut.plan(decoder, At(tuple(cuts)), limits=limits)
    assert (named.metrics, named.parts, named.times) == (found.metrics, found.parts, found.times)
    assert {entry.tensors for entry in named.recomputed} == {entry.tensors for entry in found.recomputed}


def test_cuts_that_a_user_names_recompute_what_is_cheaper_than_to_send(decoder: Analysis) -> None:
    """A mask and the rotary tables: without them a part receives the one tensor between two layers."""
    named, bare = (graphcut.plan(decoder, CUT, limits=Limits(recompute=how)) for how in ("auto", "never"))
    assert ONE <= named.metrics[1].received_bytes < ONE + 1000  # and a row of the mask, before it is a matrix
    assert bare.metrics[1].received_bytes > 8 * ONE
    assert max(part.busy_s for part in named.metrics) < max(part.busy_s for part in bare.metrics) / 2


def test_a_named_node_stays_before_its_cut() -> None:
    """Even if it is cheap enough to run again: a cut after a node sends what the node writes."""
    unet = graphcut.analyze(FIXTURES / "unet.onnx")
    graph = unet.model.graph
    for node in graph.flow[3:-3]:
        made = graphcut.plan(unet, At(graph.nodes[node].name))
        assert node in made.partition.blocks[0].nodes
        assert node not in made.partition.blocks[1].replicas


def test_float16_halves_what_named_cuts_send_and_the_files_say_the_same(tmp_path: Path, decoder: Analysis) -> None:
    whole, half = (graphcut.plan(decoder, CUT, limits=limits) for limits in (Limits(), HALF))
    assert whole.metrics[1].received_bytes - half.metrics[1].received_bytes == ONE / 2
    cascade = graphcut.split(decoder.model, half, tmp_path / "parts")
    sent = {name: cascade.tensors[name].bytes_for(half.dims)[0] for name in cascade.wiring.boundary_tensors}
    assert sum(sent.values()) == half.metrics[1].received_bytes
    shown = scene_of_plan(half, decoder).tensors
    assert sorted(tensor.bytes for tensor in shown) == sorted(sent.values())


def test_a_replayed_plan_of_named_cuts_has_the_same_figures(tmp_path: Path, decoder: Analysis) -> None:
    made = graphcut.plan(decoder, At(("/model/layers.0/add_1", "/model/layers.2/add_1")))
    graphcut.save_plan(made, decoder.model, tmp_path / "plan.json")
    assert graphcut.replay(decoder, tmp_path / "plan.json") == made


# Suggestions


@pytest.fixture(scope="module")
def unet() -> Analysis:
    return graphcut.analyze(FIXTURES / "unet.onnx")


@pytest.mark.parametrize("name", ["llm", "unet", "lstm", "clip"])
def test_a_suggestion_costs_what_it_takes_when_it_is_carried_out(name: str, decoder: Analysis) -> None:
    """All cuts are named, one of them elsewhere; what the search counts for them can be more or less."""
    analysis = decoder if name == "llm" else graphcut.analyze(FIXTURES / f"{name}.onnx")
    made = graphcut.plan(analysis, Into(2 if name == "lstm" else 3))
    cuts = [reason.chosen.after for reason in made.reasons]
    suggested = [(cut, other) for cut, reason in enumerate(made.reasons) for other in reason.alternatives]
    assert suggested
    for cut, other in suggested:
        named = graphcut.plan(analysis, At((*cuts[:cut], other.after, *cuts[cut + 1 :])))
        assert other.cost == max(part.busy_s for part in named.metrics)
        assert other.boundary_bytes == named.boundary_bytes[cut]
    assert {reason.chosen.cost for reason in made.reasons} == {max(part.busy_s for part in made.metrics)}
    assert [reason.chosen.boundary_bytes for reason in made.reasons] == [*made.boundary_bytes]


@pytest.mark.parametrize("limits", [Limits(), HALF], ids=["whole", "float16"])
def test_the_bottleneck_is_the_part_that_takes_longest_once_parts_are_finished(unet: Analysis, limits: Limits) -> None:
    made = graphcut.plan(unet, Into(3), limits=limits)
    busy = [part.busy_s for part in made.metrics]
    assert {busy[reason.bottleneck] for reason in made.reasons} == {max(busy)}


def test_suggestions_within_a_budget_keep_it(decoder: Analysis) -> None:
    """Their cost is what parts receive."""
    budget = 500_000
    made = graphcut.plan(decoder, Within(budget, ()), limits=Limits(inside_layers=True))
    cuts = [reason.chosen.after for reason in made.reasons]
    suggested = [(cut, other) for cut, reason in enumerate(made.reasons) for other in reason.alternatives]
    assert suggested
    for cut, other in suggested:
        goal = At((*cuts[:cut], other.after, *cuts[cut + 1 :]))
        ways = [graphcut.plan(decoder, goal, limits=Limits(recompute=how)) for how in ("auto", "never")]
        assert other.cost in {one.received_bytes for one in ways if max(m.written_bytes for m in one.metrics) <= budget}


def test_of_the_fewest_devices_a_cut_costs_the_seconds_of_a_request(decoder: Analysis) -> None:
    room = graphcut.plan(decoder, Into(1)).memory[0].needs * 99 // 100
    cluster = Cluster(devices=(Device(name="a", memory_bytes=room), Device(name="b", memory_bytes=room)))
    made = graphcut.plan(decoder, Across(cluster, "devices"))
    (reason,) = made.reasons
    assert made.times is not None
    assert reason.chosen.cost == made.times.latency_s
    assert [one.after for one in reason.alternatives] == ["/model/layers.0/add_1", "/model/layers.2/add_1"]
    latencies = [reason.chosen.cost, *(one.cost for one in reason.alternatives)]
    assert latencies == pytest.approx([made.times.latency_s] * 3, rel=0.01), "each sends one tensor between two layers"


def test_suggestions_are_priced_only_when_they_are_read(decoder: Analysis) -> None:
    made = graphcut.plan(decoder, Into(3))
    scene_of_plan(made, decoder)
    assert "reasons" not in vars(made)


def test_an_interleaved_plan_has_no_suggestions(decoder: Analysis) -> None:
    """Moving one of its cuts changes more than two parts."""
    cluster = Cluster(devices=(Device(name="a"), Device(name="b")))
    assert graphcut.plan(decoder, Across(cluster, interleave=True)).reasons == ()
