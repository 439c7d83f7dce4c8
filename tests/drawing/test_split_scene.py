"""The scene of a split: everything that its plan tells, about the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import graphcut
from graphcut import Across, Analysis, At, Cluster, Device, Heads, Into, Limits, Plan, Within, demos
from graphcut.core.arguments import Storage
from graphcut.core.manifest import Cascade
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_plan, scene_of_split
from graphcut.planning.goals import Goal, counted_by

from cases import each

CLUSTER = Cluster(
    devices=(
        Device(name="jetson", memory_bytes=40_000_000, flops_per_s=5e11),
        Device(name="laptop", memory_bytes=80_000_000),
    )
)
GOALS: dict[str, Goal] = {
    "into": Into(3, "layers"),
    "within": Within(30_000, ()),
    "counted": Within(20_000_000, ("activations", "cache")),
    "across": Across(CLUSTER),
    "heads": Heads((("logits",),)),
}


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Of a decoder of three layers."""
    path = tmp_path_factory.mktemp("split") / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=3, heads=2, kv_heads=1, vocab=32)
    return graphcut.analyze(graphcut.load(path))


def file_sizes(cascade: Cascade, index: int) -> int:
    """Bytes of the files of a part on disk."""
    part = cascade.parts[index]
    return sum((cascade.root / name).stat().st_size for name in (part.file, *part.data))


@each("name", GOALS)
def test_a_split_shows_all_that_its_plan_tells(analysis: Analysis, tmp_path: Path, name: str) -> None:
    made = graphcut.plan(analysis, GOALS[name])
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    planned, cut = scene_of_plan(made, analysis), scene_of_split(cascade, made, analysis)
    assert (cut.facts, cut.tensors, cut.buses, cut.profile) == (
        planned.facts,
        planned.tensors,
        planned.buses,
        planned.profile,
    )
    assert (cut.notes, cut.details, cut.other_plans) == (planned.notes, planned.details, planned.other_plans)
    assert cut.next_command == f"graphcut verify {tmp_path / 'parts'}"
    for i, (one, other) in enumerate(zip(cut.cards, planned.cards, strict=True)):
        # Memory is that of the plan and of the manifest; files are those that lie there.
        needed = other.need_bytes if counted_by(GOALS[name]) else file_sizes(cascade, i)
        assert one == replace(other, name=f"part-{i}.onnx", need_bytes=needed)


def test_a_card_of_a_split_knows_its_device_and_its_budget(analysis: Analysis, tmp_path: Path) -> None:
    made = graphcut.plan(analysis, Across(CLUSTER, "bytes"))
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    cards = scene_of_split(cascade, made, analysis).cards
    assert [(card.device, card.budget_bytes) for card in cards] == [
        (device.name, device.memory_bytes) for device in made.devices
    ]
    assert [card.busy_s for card in cards] == [part.busy_s for part in made.metrics]
    alone = scene_of_cascade(graphcut.open_cascade(cascade.root))
    assert [card.device for card in alone.cards] == [device.name for device in made.devices]


def test_sentences_name_the_files(analysis: Analysis, tmp_path: Path) -> None:
    made = graphcut.plan(analysis, Into(3), limits=Limits(pins=(("/lm_head/MatMul", 2),)))
    assert made.recomputed
    assert made.reasons
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    cut, planned = scene_of_split(cascade, made, analysis), scene_of_plan(made, analysis)
    for said, promised in ((cut.recomputed, planned.recomputed), (cut.reasons(), planned.reasons())):
        expected = promised
        for i in range(3):
            expected = tuple(sentence.replace(f"p{i}", f"part-{i}.onnx") for sentence in expected)
        assert said == expected
    assert ("limits", "/lm_head/MatMul in part-2.onnx") in cut.details
    largest = max(range(3), key=lambda i: file_sizes(cascade, i))
    assert cut.sentence.startswith(f"Cut into 3 parts. The largest, part-{largest}.onnx, has ")


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_for_a_plan_without_predictions_the_scene_is_that_of_the_cascade(tmp_path: Path, weights: Storage) -> None:
    """Two ways to the same scene: from the plan, and from the files."""
    path = tmp_path / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=3, heads=2, kv_heads=1, vocab=32)
    analysis = graphcut.analyze(graphcut.load(path, dims={"batch": 1, "seq": 4}))
    named = graphcut.plan(analysis, At(("/model/layers.0/add_1", "/model/layers.1/add_1")))
    made = Plan(named.goal, named.graph, named.parts, dims=named.dims)
    cascade = graphcut.split(analysis.model, made, weights=weights)
    assert scene_of_split(cascade, made, analysis) == scene_of_cascade(cascade, analysis.model)
