"""What changed between two plans or cascades: parts, nodes, cuts, tensors, numbers; on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import graphcut
from graphcut import Analysis, At, Into, UsageError, demos
from graphcut.drawing.changes.differences import changes_between
from graphcut.drawing.changes.record import Changes, TextChange
from graphcut.drawing.json_records import dumps
from graphcut.drawing.scene import BoundaryTensor, Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan
from graphcut.drawing.terminal.changes import draw_changes
from graphcut.drawing.terminal.screen import screen_on

import scenes_by_hand as by_hand
from cases import each
from scenes_by_hand import KIB, MIB

# Nine nodes, each in a layer of its own.


def cut(*ends: int, tensors: Sequence[BoundaryTensor] = (), **changes: object) -> Scene:
    """Nine nodes in parts that end after so many of them, the last part aside."""
    bounds = [0, *ends, 9]
    homes = tuple(part for part, (start, stop) in enumerate(pairwise(bounds)) for _ in range(start, stop))
    profile = replace(by_hand.profile(9, 1), parts=homes if ends else ())
    cards = [by_hand.card(i, nodes=homes.count(i), need_bytes=homes.count(i) * MIB) for i in range(len(ends) + 1)]
    return by_hand.scene(cards, tensors, profile=profile, **changes)


TYPE = "float16[1,512,4096]"


def name(index: int) -> str:
    return f"/model/layers.{index}/add"


def moves(changes: Changes) -> list[tuple[int, int, Sequence[str], str]]:
    return [(flow.old, flow.new, flow.nodes, flow.content) for flow in changes.nodes or () if not flow.stays]


def cuts(changes: Changes) -> list[tuple[str, str]]:
    return [(found.kind, found.node) for found in changes.cuts or ()]


def parts(changes: Changes) -> list[tuple[int | None, int | None]]:
    return [(pair.old, pair.new) for pair in changes.parts]


# Nodes, cuts, parts


def test_nothing_changed_between_a_scene_and_itself() -> None:
    scene = cut(3, 6, tensors=[by_hand.tensor("t", 0, 1)])
    found = changes_between(scene, scene)
    assert found.sentence == (
        "3 parts (as before); no cut moved; the same tensors cross boundaries; "
        "the largest part has as much as before of weights and graph."
    )
    assert found.before == found.after
    assert moves(found) == []
    assert cuts(found) == [("stays", name(2)), ("stays", name(5))]
    assert parts(found) == [(0, 0), (1, 1), (2, 2)]


def test_a_cut_that_moves_moves_the_nodes_between() -> None:
    found = changes_between(cut(3, 6), cut(3, 8))
    assert moves(found) == [(2, 1, (name(6), name(7)), "layers 6-7")]
    assert cuts(found) == [("stays", name(2)), ("went", name(5)), ("came", name(7))]
    assert found.sentence.startswith("3 parts (as before); 1 cut moved; 2 of 9 nodes moved to another part; ")


def test_dividing_a_part_does_not_move_the_nodes_of_later_parts() -> None:
    """p1 and p2 are p2 and p3 now; the part with most of p0 is p0 still."""
    found = changes_between(cut(4, 6), cut(1, 4, 6))
    assert parts(found) == [(None, 0), (0, 1), (1, 2), (2, 3)]
    assert moves(found) == [(0, 0, (name(0),), "layer 0")]
    assert found.sentence.startswith("4 parts (before: 3); 1 cut added; 1 of 9 nodes moved to another part")


def test_joining_two_parts_removes_one() -> None:
    found = changes_between(cut(2, 6), cut(6))
    assert parts(found) == [(1, 0), (2, 1), (0, None)]
    assert cuts(found) == [("went", name(1)), ("stays", name(5))]
    assert "1 cut removed" in found.sentence


def test_a_model_in_one_part_has_no_cuts() -> None:
    found = changes_between(cut(), cut(5))
    assert cuts(found) == [("came", name(4))]
    assert parts(found) == [(0, 0), (None, 1)]
    assert cuts(changes_between(cut(), cut())) == []


@each(("ends", "others"), [((1,), (2, 5)), ((3, 6), (1, 2, 8)), ((1, 2, 3, 4), (5,)), ((), (1, 8))])
def test_the_reverse_has_the_opposite_changes(ends: Sequence[int], others: Sequence[int]) -> None:
    there, back = changes_between(cut(*ends), cut(*others)), changes_between(cut(*others), cut(*ends))
    opposite = {"came": "went", "went": "came", "stays": "stays"}
    assert cuts(back) == [(opposite[kind], node) for kind, node in cuts(there)]
    assert [(flow.new, flow.old, flow.nodes) for flow in sorted(back.nodes or (), key=lambda f: (f.new, f.old))] == [
        (flow.old, flow.new, flow.nodes) for flow in sorted(there.nodes or (), key=lambda f: (f.old, f.new))
    ]
    assert sum(len(flow.nodes) for flow in there.nodes or ()) == 9


# What crosses


def test_tensors_are_added_removed_and_kept() -> None:
    before = cut(3, 6, tensors=[by_hand.tensor("a", 0, 1, 2), by_hand.tensor("b", 1, 2, size=MIB)])
    after = cut(3, 6, tensors=[by_hand.tensor("a", 0, 1), by_hand.tensor("c", 1, 2, size=3 * MIB)])
    found = changes_between(before, after)
    assert [(one.tensor, one.kind) for one in found.tensors] == [("a", "stays"), ("b", "went"), ("c", "came")]
    assert (found.before.sequential, found.before.residual, found.before.sent.bytes) == (2, 1, 5 * MIB)
    assert (found.after.sequential, found.after.residual, found.after.sent.bytes) == (2, 0, 7 * MIB)
    assert (found.before.busiest.bytes, found.after.busiest.bytes) == (5 * MIB, 4 * MIB)
    assert "2 MiB more crosses boundaries" in found.sentence


def test_an_unknown_size_is_not_compared() -> None:
    before = cut(3, tensors=[by_hand.tensor("a", 0, 1, size=MIB, is_exact=False)])
    found = changes_between(before, cut(3, tensors=[by_hand.tensor("b", 0, 1)]))
    assert "cross" not in found.sentence
    assert (found.before.sent.is_exact, found.after.sent.is_exact) == (False, True)
    assert "≥ 1 MiB" in drawn(found)
    assert "+3 MiB" not in drawn(found)


# Figures


def test_the_numbers_are_largest_slowest_and_balance() -> None:
    def timed(*seconds: float, budget: int) -> Scene:
        scene = cut(3, 6)
        cards = [replace(one, busy_s=time, budget_bytes=budget) for one, time in zip(scene.cards, seconds, strict=True)]
        return replace(scene, cards=tuple(cards))

    found = changes_between(timed(1, 2, 3, budget=4 * MIB), timed(2, 2.4, 1.6, budget=2 * MIB))
    assert (found.before.slowest, found.before.slowest_s, found.before.balance) == (2, 3, 1.5)
    assert (found.after.slowest, found.after.slowest_s) == (1, 2.4)
    assert found.after.balance == pytest.approx(1.2)
    assert (found.before.over, found.after.over) == (0, 3)
    assert found.sentence.endswith("; the slowest part takes 20 % less.")
    text = drawn(found)
    assert "p2, 3 s" in text
    assert "p1, 2.4 s" in text
    assert "2 MiB, over" in text


def test_sizes_for_other_dims_are_not_compared_in_the_sentence() -> None:
    before = cut(3, dims={"seq": 1, "batch": 2})
    found = changes_between(before, cut(3, dims={"batch": 2, "seq": 8}))
    assert found.sentence == "2 parts (as before); no cut moved."
    assert found.notes == ("sizes and times are for different dims: seq=1 before, seq=8 now",)
    many = changes_between(before, cut(3, dims=dict.fromkeys(("batch", "seq", "past", "total", "length"), 2)))
    assert many.notes[0].endswith("dims: seq=1 before, length=2, past=2, seq=2, 1 more now")
    same = changes_between(before, cut(3, dims={"batch": 2, "seq": 1}))
    assert same.notes == ()


def test_the_details_of_a_plan_are_compared_only_with_those_of_a_plan() -> None:
    """A cascade does not know what its plan recomputed."""
    one = cut(3, details=(("goal", "into 2, by time"),), recomputed=("p1 computes a", "p1 computes b"))
    other = cut(3, details=(("goal", "into 2, by bytes"),), recomputed=("p1 computes b", "p1 computes c"))
    found = changes_between(one, other)
    assert found.details == (TextChange("goal", ("into 2, by time",), ("into 2, by bytes",)),)
    assert found.recomputed == TextChange("recomputed", ("p1 computes a",), ("p1 computes c",))
    cascade = changes_between(one, cut(3))
    assert (cascade.details, cascade.recomputed) == ((), TextChange("recomputed"))


# Not comparable


def test_a_model_that_is_not_cut_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"model\.onnx is not cut") as caught:
        changes_between(cut(3), by_hand.uncut(9))
    assert caught.value.hint == "name two plans, two cascades, or a plan and a cascade"


def test_scenes_of_different_models_are_refused() -> None:
    scene = cut(3)
    assert scene.profile is not None
    nodes = (*scene.profile.nodes[:-1], "other")
    with pytest.raises(UsageError, match=r"only the first has the node '/model/layers\.8/add' \(Add\)"):
        changes_between(scene, replace(scene, profile=replace(scene.profile, nodes=nodes)))
    heavier = replace(scene.profile, weights=tuple(number + 1 for number in scene.profile.weights))
    with pytest.raises(UsageError, match="the same names, but their weights have different sizes"):
        changes_between(scene, replace(scene, profile=heavier))
    with pytest.raises(UsageError, match=r"one is model\.onnx, the other is that\.onnx"):
        changes_between(scene, replace(scene, title="that.onnx", profile=None))


def test_without_the_model_parts_are_matched_by_index() -> None:
    found = changes_between(cut(3), replace(cut(3, 6), profile=None))
    assert (found.nodes, found.cuts) == (None, None)
    assert parts(found) == [(0, 0), (1, 1), (None, 2)]
    assert found.notes == ("model.onnx is not at hand, so it is unknown which nodes moved; name it with `model`",)
    assert found.nodes is None


# Real ones


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    path = tmp_path_factory.mktemp("changes") / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=4, heads=2, kv_heads=1, vocab=32)
    return graphcut.analyze(graphcut.load(path, dims={"batch": 1, "seq": 4, "past": 0, "total": 4}))


def planned(analysis: Analysis, goal: At | Into) -> Scene:
    return scene_of_plan(graphcut.plan(analysis, goal), analysis)


@pytest.fixture(scope="module")
def scenes(analysis: Analysis) -> Mapping[Into, Scene]:
    return {goal: planned(analysis, goal) for goal in (Into(2), Into(3), Into(4), Into(4, "layers"))}


def test_moving_a_cut_by_a_layer_moves_its_nodes(analysis: Analysis) -> None:
    """Each layer ends with its `add_1`; by hand: of layers 0-3, cut after 1, and then after 2."""
    before = planned(analysis, At(("/model/layers.1/add_1",)))
    found = changes_between(before, planned(analysis, At(("/model/layers.2/add_1",))))
    (moved,) = [flow for flow in found.nodes or () if not flow.stays]
    layer = [node.name for node in analysis.model.graph.nodes if "/layers.2/" in node.name and not node.is_constant]
    assert (moved.old, moved.new, moved.content) == (1, 0, "layer 2")
    assert set(moved.nodes) == set(layer)
    assert cuts(found) == [("went", "/model/layers.1/add_1"), ("came", "/model/layers.2/add_1")]
    assert {one.tensor for one in found.tensors if one.kind == "came"} == {"/model/layers.2/add_1_output_0"}


def test_a_plan_and_its_cascade_have_the_same_cuts(analysis: Analysis, tmp_path: Path) -> None:
    made = graphcut.plan(analysis, Into(3))
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    found = changes_between(scene_of_plan(made, analysis), scene_of_cascade(cascade, analysis.model))
    assert found.sentence.startswith("3 parts (as before); no cut moved; the same tensors cross")
    assert moves(found) == []


def test_an_analysis_is_an_error(chain: Path) -> None:
    scene = scene_of_analysis(graphcut.analyze(graphcut.load(chain)))
    with pytest.raises(UsageError, match=r"chain\.onnx is not cut"):
        changes_between(scene, scene)


# Drawn


def drawn(changes: Changes, width: int = 80, encoding: str = "utf-8", **environment: str) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        height=50,
        force_terminal="TERM" in environment,
        highlight=False,
        legacy_windows=False,
        _environ=environment,
    )
    console.print(draw_changes(changes, screen_on(console)))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


@each("encoding", ["utf-8", "ascii"])
@each("width", [80, 200])
@each("goals", [(Into(2), Into(4)), (Into(4, "layers"), Into(3))])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(
    scenes: Mapping[Into, Scene], goals: tuple[Into, Into], width: int, encoding: str
) -> None:
    one, other = (scenes[goal] for goal in goals)
    lines = drawn(changes_between(one, other), width, encoding).splitlines()
    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]


def test_no_color_is_respected() -> None:
    found = changes_between(cut(3), cut(4))
    assert "\x1b[" in drawn(found, TERM="xterm")
    assert "\x1b[3" not in drawn(found, TERM="xterm", NO_COLOR="1")


def test_of_many_rows_those_that_changed_are_shown() -> None:
    tensors = [by_hand.tensor(f"t{i}", 0, 1, size=KIB) for i in range(30)]
    text = drawn(changes_between(cut(3, tensors=tensors), cut(3, tensors=[*tensors[:29], by_hand.tensor("new", 0, 1)])))
    assert "… and 17 more tensors" in text
    assert "-  t29" in text
    assert "+  new" in text


def test_devices_and_budgets_of_parts_and_readers_far_apart_are_said_in_few_words() -> None:
    def placed(*devices: tuple[str, int | None]) -> Scene:
        scene = cut(2, 4, 5, 6, 7, tensors=[by_hand.tensor("far", 0, 1, 3, 5)])
        hosts = [*devices, *[("c", None)] * (len(scene.cards) - len(devices))]
        cards = [
            replace(one, device=name, budget_bytes=limit) for one, (name, limit) in zip(scene.cards, hosts, strict=True)
        ]
        return replace(scene, cards=tuple(cards))

    text = drawn(changes_between(placed(("a", 4 * MIB), ("b", MIB)), placed(("a", 4 * MIB), ("c", None))), 120)
    assert re.findall(r"(?m)^p[01] .*$", text) == [
        "p0    a       2      2 MiB              4 MiB",
        "p1    b → c   2      2 MiB              1 MiB, over → no limit",
    ]
    assert "p0 ╌╌> 3 parts" in text


def test_a_name_cannot_move_the_cursor() -> None:
    def hostile(end: int) -> Scene:
        scene = cut(end, tensors=[by_hand.tensor(by_hand.HOSTILE, 0, 1)], title=by_hand.HOSTILE)
        assert scene.profile is not None
        nodes = tuple(f"{by_hand.HOSTILE}\x1b[2J{i}" for i in range(9))
        modules = (((f"{by_hand.HOSTILE}\x1b[2J", None),),) * 9
        return replace(scene, profile=replace(scene.profile, nodes=nodes, modules=modules))

    found = changes_between(hostile(3), hostile(5))
    assert "\x1b" not in drawn(found, 400)
    assert "[red]" in drawn(found, 400)


def test_the_json_has_everything() -> None:
    found = changes_between(
        cut(3, tensors=[by_hand.tensor("a", 0, 1)]), cut(4, tensors=[by_hand.tensor("b", 0, 1, size=KIB)])
    )
    record = json.loads(dumps(found))
    assert record["format"] == "graphcut.changes/1"
    assert record["cuts"] == [
        {"node": name(2), "kind": "went", "bytes": 4 * MIB, "is_exact": True},
        {"node": name(3), "kind": "came", "bytes": KIB, "is_exact": True},
    ]
    assert record["nodes"][1] == {
        "old": 1,
        "new": 0,
        "nodes": [name(3)],
        "content": "layer 3",
        "weight_bytes": MIB,
        "stays": False,
    }
    flow = {"source": 0, "readers": [1], "is_exact": True, "is_exchange": None, "type": TYPE}
    assert record["tensors"] == [
        {
            "tensor": "a",
            "kind": "went",
            "before": {**flow, "bytes": 4 * MIB, "tensor": "a"},
            "after": None,
        },
        {
            "tensor": "b",
            "kind": "came",
            "before": None,
            "after": {**flow, "bytes": KIB, "tensor": "b"},
        },
    ]
    assert [part["after"]["nodes"] for part in record["parts"]] == [4, 5]
