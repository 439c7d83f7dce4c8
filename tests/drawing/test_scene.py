"""Scenes of an analysis, a plan, a cascade. The expected numbers are computed by hand."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

import graphcut
from graphcut import Across, Analysis, At, Cluster, Device, Heads, Into, Limits, Model, Plan, Within, cli, demos
from graphcut.analysis.cut_points import CutPoint
from graphcut.core.errors import CascadeError
from graphcut.core.text import printable
from graphcut.core.units import duration, size
from graphcut.costs.held_weights import NODE_BYTES
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.drawing.html import html_of
from graphcut.drawing.scene import BoundaryTensor, BoundaryTotals, Card, CutProfile, Scene, buses_of
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan
from graphcut.drawing.sentences import answer, plan_notes
from graphcut.planning.goals import Goal
from graphcut.planning.results import FrontPlan

from cases import each
from conftest import Draw, floats, model_of
from control_flow import write_model
from tampering import edit_manifest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def card(name: str, **changes: object) -> Card:
    """A part of which little is known."""
    usual = Card(
        name=name,
        device="",
        content="",
        nodes=1,
        replicas=0,
        weight_bytes=0,
        need_bytes=0,
        budget_bytes=None,
        activation_bytes=None,
        flops=None,
        busy_s=None,
        reads=(),
        writes=(),
        depth=0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


# The chain: a = relu(x), b = exp(a), c = neg(b), y = add(c, a). Each tensor has 4 n floats.


def boundary_tensor(name: str, type_: str, size: int, source: int, *readers: int) -> BoundaryTensor:
    return BoundaryTensor(tensor=name, type=type_, bytes=size, is_exact=True, source=source, readers=readers)


A = boundary_tensor("a", "float32[n,4]", 32, 0, 2)
B = boundary_tensor("b", "float32[n,4]", 32, 0, 1)
C = boundary_tensor("c", "float32[n,4]", 32, 1, 2)
BUSES = buses_of((A, B, C))
CHAIN = CutProfile(
    nodes=("relu", "exp", "neg", "add"),
    ops=("Relu", "Exp", "Neg", "Add"),
    modules=((), (), (), ()),
    alive=(32, 64, 64, 0),
    exact=(True, True, True, True),
    tensors=(1, 2, 2, 0),
    weights=(0, 0, 0, 0),
    keys=(0,),
    parts=(),
    cut_options=(CutPoint("relu", 1, ("a",), 32, True, 0, 0, True, ""),),
)
CHAIN_CUT = {
    "order": (0, 1, 2, 3),
    "ends": (3,),
    "tensors": ("x", "a", "b", "c", "y"),
    "writers": (-1, 0, 1, 2, 3),
    "readers": ((0,), (1, 3), (2,), (3,), ()),
    "bytes": (32,) * 5,
    "exact": (True,) * 5,
    "prices": (32,) * 5,
    "weights": (),
    "users": (),
    "dims": {"n": 2},
}
THREE = (
    card("p0", nodes=2, reads=("x",), writes=("a", "b"), last_node="exp"),
    card("p1", reads=("b",), writes=("c",), depth=1, last_node="neg"),
    card("p2", reads=("c", "a"), writes=("y",), depth=2, last_node="add"),
)


def test_what_crosses_the_most_balanced_cut_is_said_with_what_is_recomputed_for_it(tmp_path: Path) -> None:
    """The table of cut points has more bytes for the same cut: those that cross if nothing is recomputed."""
    demos.write("unet", tmp_path / "unet.onnx")
    analysis = graphcut.analyze(graphcut.load(tmp_path / "unet.onnx", dims={"batch": 1}))
    scene = scene_of_analysis(analysis)
    made = graphcut.plan(analysis, At(scene.next_command.rpartition(" ")[2]))
    (one,) = made.recomputed
    assert f"({size(made.boundary_bytes[0])}) crosses there" in scene.sentence
    assert scene.sentence.endswith(f" {len(one.nodes)} nodes instead of receiving {size(one.saved_bytes)}.")


def test_the_scene_of_a_model(chain: Path) -> None:
    """`a` is alive over two of four nodes that do not use it: it is long-lived."""
    analysis = graphcut.analyze(graphcut.load(chain, dims={"n": 2}))
    before, after = (duration(part.busy_s) for part in graphcut.plan(analysis, At("relu")).metrics)
    scene = scene_of_analysis(analysis)
    assert scene.notes[0].startswith(
        "times are estimates (shares 58 % off at most where measured), for devices with 100 GFLOP/s"
    )
    assert replace(scene, notes=()) == Scene(
        title="chain.onnx",
        sentence="1 cut point. The most balanced one is after relu: 1 tensor (32 B) crosses there, "
        f"with {before} and 0 B of weights before it and {after} and 0 B of weights after it.",
        facts=(("nodes", "4"), ("weights", "0 B"), ("dims", "n=2")),
        dims={"n": 2},
        profile=replace(CHAIN, modules=()),
        next_command=f"graphcut split {chain} --at-nodes relu",
        details=(
            ("inputs", "x float32[n,4]"),
            ("outputs", "y float32[n,4]"),
            ("key nodes", "1 key node, 1 segment; 0 tensors skip over a segment"),
            ("dominators", "2 nodes on every path; a cut at one of them sends only its outputs"),
        ),
        model=str(chain),
        segments=("relu",),
    )
    assert scene.cut_model() == CHAIN_CUT


@pytest.mark.parametrize("name", ["relu", "a,b", 'say "hi", you', "-x", "it's $(rm)"])
def test_the_next_command_cuts_there_whatever_the_names(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell reads it, and the command after that."""
    path = tmp_path / "my models" / "it's.onnx"
    path.parent.mkdir()
    nodes = [helper.make_node("Relu", ["x"], ["a"], name=name), helper.make_node("Exp", ["a"], ["y"], name="last")]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), path)
    following = scene_of_analysis(graphcut.analyze(graphcut.load(path))).next_command
    monkeypatch.setattr("sys.argv", shlex.split(following))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in {0, None}
    first, _ = graphcut.open_cascade("it's.parts").parts
    assert first.writes == ("a",)


def test_the_scene_of_a_plan(chain: Path) -> None:
    analysis = graphcut.analyze(graphcut.load(chain, dims={"n": 2}))
    named = graphcut.plan(analysis, At(("exp", "neg")))
    bare = Plan(named.goal, named.graph, named.parts, dims=named.dims)
    scene = scene_of_plan(bare, analysis)
    assert scene == Scene(
        title="chain.onnx",
        sentence="Cut into 3 parts. The largest, p0, has 0 B of weights. At most 64 B crosses a boundary in one run; "
        "1 tensor (32 B) skips over a part.",
        facts=(("nodes", "4"), ("weights", "0 B"), ("dims", "n=2")),
        dims={"n": 2},
        cards=tuple(replace(one, measure="weights") for one in THREE),
        tensors=(A, B, C),
        buses=BUSES,
        profile=replace(CHAIN, parts=(0, 0, 1, 2)),
        details=(("goal", "cut at the given nodes"),),
        model=str(chain),
    )
    assert scene.cut_model() == CHAIN_CUT
    assert scene.boundaries == (BoundaryTotals(64, True, 2), BoundaryTotals(64, True, 2))
    assert scene.profile is not None
    assert scene.profile.cuts == (1, 2)
    assert [scene.received(part) for part in range(3)] == [
        BoundaryTotals(0, True, 0),
        BoundaryTotals(32, True, 1),
        BoundaryTotals(64, True, 2),
    ]
    assert [scene.sent(part) for part in range(3)] == [
        BoundaryTotals(64, True, 2),
        BoundaryTotals(32, True, 1),
        BoundaryTotals(0, True, 0),
    ]


def test_the_scene_of_a_cascade(chain: Path, tmp_path: Path) -> None:
    model = graphcut.load(chain, dims={"n": 2})
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("exp", "neg"))), tmp_path / "parts")
    # Fed x, the first writes a and b; the second makes c of b, the last y of a and c: 32 bytes each.
    needed = [SESSION_BYTES + nodes * NODE_BYTES + number for nodes, number in ((2, 96), (1, 64), (1, 96))]
    bare = Scene(
        title="chain.onnx",
        sentence="Cut into 3 parts. The largest, part-0.onnx, needs 521 KiB. "
        "At most 64 B crosses a boundary in one run; 1 tensor (32 B) skips over a part.",
        facts=(("dims", "n=2"),),
        dims={"n": 2},
        cards=tuple(
            replace(one, name=f"part-{i}.onnx", need_bytes=needed[i], measure="needs", last_node="")
            for i, one in enumerate(THREE)
        ),
        tensors=(A, B, C),
        buses=BUSES,
        next_command=f"graphcut verify {tmp_path / 'parts'}",
    )
    assert scene_of_cascade(cascade) == bare
    scene = scene_of_cascade(cascade, model)
    assert scene.cut_model() == CHAIN_CUT
    assert scene == replace(
        bare,
        facts=(("nodes", "4"), ("weights", "0 B"), ("dims", "n=2")),
        dims={"n": 2},
        cards=tuple(replace(one, last_node=THREE[i].last_node) for i, one in enumerate(bare.cards)),
        profile=replace(CHAIN, parts=(0, 0, 1, 2)),
        model=str(chain),
    )


def test_a_cascade_of_another_model_is_refused(chain: Path, tmp_path: Path) -> None:
    model = graphcut.load(chain)
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("exp",))), tmp_path / "parts")
    demos.write("resnet", tmp_path / "other.onnx")
    with pytest.raises(CascadeError, match=r"was not cut from .*other\.onnx: its parts hold other nodes"):
        scene_of_cascade(cascade, graphcut.load(tmp_path / "other.onnx"))


# Demos


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Analysis]:
    """A demo, opened; the decoder for 16 tokens."""
    folder = tmp_path_factory.mktemp("demos")
    dims = {"llm": {"batch": 1, "seq": 16, "past": 0, "total": 16}, "control-flow": {}}

    def opened(name: str) -> Analysis:
        path = folder / f"{name}.onnx"
        if not path.exists():
            write_model(name, path)
        return graphcut.analyze(graphcut.load(path, dims=dims.get(name, {"batch": 1})))

    return opened


DEMOS = ("llm", "unet", "resnet", "multitask", "control-flow")
GOALS: Sequence[Goal] = (
    Into(1),
    Into(3),
    Heads(),
    Within(200_000, ()),
    Within(20_000_000, ("activations", "inputs", "cache")),
    Across(Cluster(devices=(Device(name="small", memory_bytes=1_500_000), Device(name="large", flops_per_s=4e11)))),
)


def possible(analysis: Analysis, goal: Goal) -> graphcut.Plan:
    try:
        return graphcut.plan(analysis, goal)
    except graphcut.PlanError:
        pytest.skip("no plan meets this goal")


def test_heads_have_the_same_depth(demo: Callable[[str], Analysis]) -> None:
    """The trunk ends in 64 x 4 x 4 floats that two heads read; the third reads 16 x 16 x 16 from its middle."""
    analysis = demo("multitask")
    scene = scene_of_plan(graphcut.plan(analysis, Heads()), analysis)
    assert [(one.content, one.depth) for one in scene.cards] == [
        ("stage 0-3", 0),
        ("logits", 1),
        ("boxes", 1),
        ("depth", 1),
    ]
    assert scene.tensors == (
        boundary_tensor("/trunk/stage.1/Add_output_0", "float32[batch,16,16,16]", 16 * KIB, 0, 3),
        boundary_tensor("/trunk/stage.3/Add_output_0", "float32[batch,64,4,4]", 4 * KIB, 0, 1, 2),
    )
    # Both skip a part: the first skips two heads, the second skips the first head.
    assert scene.boundaries == (
        BoundaryTotals(20 * KIB, True, 2),
        BoundaryTotals(20 * KIB, True, 2),
        BoundaryTotals(16 * KIB, True, 1),
    )
    assert "At most 20 KiB crosses a boundary in one run; 2 tensors (20 KiB) skip over parts." in scene.sentence


def test_between_layers_the_residual_stream_and_what_all_layers_read_is_alive(
    demo: Callable[[str], Analysis],
) -> None:
    """16 tokens: a stream of 64 floats each; a mask of 16 x 16; sine and cosine of 16 floats each."""
    profile = scene_of_analysis(demo("llm")).profile
    assert profile is not None
    ends = [profile.nodes.index(f"/model/layers.{layer}/add_1") for layer in range(5)]
    assert [profile.alive[end] for end in ends] == [16 * 64 * 4 + 3 * 16 * 16 * 4] * 5
    assert [profile.tensors[end] for end in ends] == [4] * 5


@each("name", DEMOS)
def test_the_profile_of_a_scene_is_that_of_the_analysis(demo: Callable[[str], Analysis], name: str) -> None:
    analysis = demo(name)
    profile = scene_of_analysis(analysis).profile
    assert profile is not None
    assert profile.alive == analysis.profile
    assert profile.keys == tuple(analysis.model.graph.flow.index(node) for node in analysis.key_nodes)
    assert profile.cut_options == analysis.cut_points


@each("goal", GOALS)
@each("name", DEMOS)
def test_a_plan_and_its_cascade_have_the_same_profile_and_boundary_totals(
    demo: Callable[[str], Analysis], tmp_path: Path, name: str, goal: Goal
) -> None:
    analysis = demo(name)
    try:
        made = graphcut.plan(analysis, goal, limits=Limits(recompute="never"))
    except (graphcut.PlanError, graphcut.UsageError):
        pytest.skip("no plan meets this goal")
    planned = scene_of_plan(made, analysis)
    assert planned.profile is not None
    if len(planned.cards) > 1:
        assert planned.profile.parts == tuple(i for i, block in enumerate(made.partition.blocks) for _ in block.nodes)
        assert [(planned.profile.alive[cut], planned.profile.tensors[cut]) for cut in planned.profile.cuts] == [
            (total.bytes, total.tensors) for total in planned.boundaries
        ]
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    cut = scene_of_cascade(cascade, analysis.model)
    assert cut.profile is not None
    assert (cut.profile.nodes, cut.profile.parts) == (planned.profile.nodes, planned.profile.parts)
    assert [one.tensor for one in cut.tensors] == [one.tensor for one in planned.tensors]
    for one, other in zip(cut.cards, planned.cards, strict=True):
        assert (one.content, one.depth, one.nodes, one.replicas) == (
            other.content,
            other.depth,
            other.nodes,
            other.replicas,
        )


@each("goal", GOALS[3:])
@each("name", DEMOS)
def test_no_part_of_a_plan_that_fits_is_drawn_over_its_budget(
    demo: Callable[[str], Analysis], name: str, goal: Goal
) -> None:
    analysis = demo(name)
    scene = scene_of_plan(possible(analysis, goal), analysis)
    budgets = {one.budget_bytes for one in scene.cards}
    assert budgets <= ({goal.memory_bytes} if isinstance(goal, Within) else {1_500_000, None})
    assert not any(one.is_over for one in scene.cards)


def test_the_need_of_a_part_includes_what_its_budget_counts(chain: Path) -> None:
    """Fed x, and while neg runs a, b, c live; while add does a, c, y. Of 32 bytes each."""
    analysis = graphcut.analyze(graphcut.load(chain, dims={"n": 2}))
    held = SESSION_BYTES + 4 * NODE_BYTES
    for counting, more in ((("inputs",), 32), (("activations",), 96), (("activations", "inputs", "cache"), 128)):
        made = graphcut.plan(analysis, Within(10**6, counting))  # type: ignore[arg-type]
        assert [one.need_bytes for one in scene_of_plan(made, analysis).cards] == [held + more]


def test_a_plan_that_leaves_little_memory_says_so(demo: Callable[[str], Analysis]) -> None:
    analysis = demo("llm")
    whole = scene_of_plan(graphcut.plan(analysis, Within(1 << 40)), analysis).cards[0].need_bytes
    tight = "p0 leaves less than 5 % of the memory for what a plan does not count"
    for budget, is_tight in ((whole, True), (whole * 21 // 20, True), (whole * 20 // 19 + 1, False)):
        assert (tight in scene_of_plan(graphcut.plan(analysis, Within(budget)), analysis).notes) is is_tight


def test_weights_that_several_parts_use_are_said_to_be_held_by_each(opened: Draw) -> None:
    """Two layers with the weight of 4 KiB, and one with its own of 1 KiB."""
    nodes = [helper.make_node("MatMul", [f"x{i}", "ab"[i == 2]], [f"x{i + 1}"], name=f"n{i}") for i in range(3)]
    weights = [helper.make_tensor(n, 1, [32, s], [1.0] * 32 * s) for n, s in (("a", 32), ("b", 8))]
    analysis = graphcut.analyze(opened(model_of(nodes, [floats("x0", 1, 32)], [floats("x3", 1, 8)], weights)))
    said = "4 KiB of weights are in several parts, which use them: 9 KiB in all, not 5 KiB"
    for cut, is_said in (("n0", True), ("n1", False)):
        made = graphcut.plan(analysis, graphcut.At((cut,)))
        assert (said in scene_of_plan(made, analysis).notes) is is_said


def test_only_nodes_that_several_parts_hold_count_as_replicas(demo: Callable[[str], Analysis], tmp_path: Path) -> None:
    """The manifest lists all constants; those that one part alone has are no copies of anything."""
    analysis = demo("llm")
    made = graphcut.plan(analysis, Into(3))
    holders: dict[int, int] = {}
    for block in made.partition.blocks:
        for node in {*block.nodes, *block.replicas}:
            holders[node] = holders.get(node, 0) + 1
    expected = [sum(holders[node] > 1 for node in block.replicas) for block in made.partition.blocks]
    cascade = graphcut.split(analysis.model, made, tmp_path / "parts")
    for scene in (scene_of_plan(made, analysis), scene_of_cascade(cascade, analysis.model)):
        assert [one.replicas for one in scene.cards] == expected


def test_a_profile_marks_lower_bounds(opened: Callable[[ModelProto], Model]) -> None:
    """How many elements are not nought is not known before a run; what follows of them is not either."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("NonZero", ["a"], ["b"], name="nonzero"),
        helper.make_node("Cast", ["b"], ["c"], name="cast", to=1),
        helper.make_node("ReduceSum", ["c"], ["y"], name="sum", keepdims=0),
    ]
    model = opened(model_of(nodes, [floats("x", 4)], [floats("y")]))
    profile = scene_of_analysis(graphcut.analyze(model)).profile
    assert profile is not None
    assert profile.nodes == ("relu", "nonzero", "cast", "sum")
    assert profile.exact == (True, False, False, True)


# Sentences


def tensor(size: int, source: int, *readers: int, is_exact: bool = True) -> BoundaryTensor:
    return replace(boundary_tensor("t", "float32[?]", size, source, *readers), is_exact=is_exact)


P = [card(f"part-{i}", need_bytes=(i + 1) * GIB, budget_bytes=4 * GIB) for i in range(4)]


@each(
    ("cards", "tensors", "sentence"),
    [
        (P[:1], [], "One part holds the whole model. It has 1 GiB of weights and graph, of its 4 GiB budget."),
        (
            P[:2],
            [],
            (
                "Cut into 2 parts. The largest, part-1, has 2 GiB of weights and graph, "
                "of its 4 GiB budget. No tensor crosses a boundary."
            ),
        ),
        (
            P[:2],
            [tensor(4 * MIB, 0, 1)],
            (
                "Cut into 2 parts. The largest, part-1, has 2 GiB of weights and graph, of its 4 GiB budget. "
                "4 MiB crosses the boundary in one run."
            ),
        ),
        (
            P,
            [tensor(512 * KIB, 0, 1, 2, 3), tensor(256 * KIB, 0, 2), tensor(4 * MIB, 1, 2)],
            (
                "Cut into 4 parts. The largest, part-3, has 4 GiB of weights and graph, of its 4 GiB budget. "
                "At most 4.75 MiB crosses a boundary in one run; 2 tensors (768 KiB) skip over parts."
            ),
        ),
        (
            [card("a", need_bytes=3 * MIB), card("b", need_bytes=MIB), card("c")],
            [tensor(100, 0, 2), tensor(7, 1, 2, is_exact=False)],
            (
                "Cut into 3 parts. The largest, a, has 3 MiB of weights and graph. "
                "At least 107 B crosses the busiest boundary; "
                "1 tensor (100 B) skips over a part."
            ),
        ),
        (
            [card("a", need_bytes=1), card("b")],
            [tensor(0, 0, 1, is_exact=False)],
            (
                "Cut into 2 parts. The largest, a, has 1 B of weights and graph. "
                "The sizes of the boundary tensors are unknown."
            ),
        ),
        (
            [
                card("p0", device="x", need_bytes=9, budget_bytes=10),
                card("p1", device="y", need_bytes=50, budget_bytes=99),
            ],
            [],
            (
                "Cut into 2 parts. The part closest to its budget, p0 on x, has 9 B of weights and graph, "
                "of its 10 B budget. "
                "No tensor crosses a boundary."
            ),
        ),
        (
            [card("p0", need_bytes=502, budget_bytes=444), card("p1", need_bytes=465, budget_bytes=444)],
            [],
            (
                "Cut into 2 parts. The largest, p0, has 502 B of weights and graph, "
                "over its 444 B budget. 2 parts are over budget. "
                "No tensor crosses a boundary."
            ),
        ),
    ],
)
def test_the_answer_is_a_sentence(cards: Sequence[Card], tensors: Sequence[BoundaryTensor], sentence: str) -> None:
    assert answer(Scene("", "", cards=tuple(cards), tensors=tuple(tensors))) == sentence


def test_a_model_without_a_cut_point_says_so(opened: Callable[[ModelProto], Model]) -> None:
    model = opened(model_of([helper.make_node("Relu", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4)]))
    scene = scene_of_analysis(graphcut.analyze(model))
    assert scene.sentence == "No cut point: fewer than two nodes depend on an input."
    assert scene.next_command == ""


@each(
    ("text", "expected"),
    [
        ("/model/Add", "/model/Add"),
        ("größe 層 é", "größe 層 é"),
        ("a\x1b[2J\n", r"a\x1b[2J\n"),
        ("x\u202ey\ud800", r"x\u202ey\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_parts_that_recompute_the_same_share_a_sentence(demo: Callable[[str], Analysis]) -> None:
    analysis = demo("llm")
    made = graphcut.plan(analysis, Into(3, "layers"))
    scene = scene_of_plan(made, analysis)
    assert len(made.recomputed) > 1
    assert len(scene.recomputed) == len({(one.nodes, one.tensors) for one in made.recomputed})
    assert scene.recomputed[0].startswith("p1, p2 each recompute /model/")


def test_the_chosen_plan_of_a_front_is_marked(demo: Callable[[str], Analysis]) -> None:
    analysis = demo("llm")
    devices = tuple(Device(name=f"board-{i}", flops_per_s=5e10) for i in range(3))
    for objective, chosen in (("throughput", 0), ("latency", -1)):
        made = graphcut.plan(analysis, Across(Cluster(devices=devices), objective))  # type: ignore[arg-type]
        others = scene_of_plan(made, analysis).other_plans
        assert [FrontPlan(one.period_s, one.latency_s, one.after, one.devices) for one in others] == [*made.front]
        assert [other.is_chosen for other in others].index(True) == range(len(others))[chosen]


def test_a_plan_for_a_gpu_says_what_its_memory_does_not_count(chain: Path) -> None:
    """As measured: docs/explanation/measurements.md. Of the CPU all is counted."""
    analysis = graphcut.analyze(chain)
    gpu, cpu = Device(name="gpu", provider="CUDAExecutionProvider"), Device(name="cpu")
    made = graphcut.plan(analysis, Across(Cluster(devices=(gpu, cpu))))
    for device, said in ((gpu, ["140 to 200 MiB for each part, and 0.8 GiB for a process"]), (cpu, [])):
        notes = plan_notes(replace(made, devices=(device,) * len(made.parts)), analysis.model)
        assert [note.partition(": ")[2].partition(" (")[0] for note in notes if "is not counted" in note] == said


def test_a_manifest_that_tells_no_memory_leaves_the_files_to_be_measured(chain: Path) -> None:
    cascade = graphcut.split(chain, At("exp"))
    edit_manifest(cascade.path, lambda record: [part.pop("memory") for part in record["parts"]])
    cards = scene_of_cascade(graphcut.open_cascade(cascade.path)).cards
    files = [(cascade.root / f"part-{i}.onnx").stat().st_size for i in range(2)]
    assert [(one.need_bytes, one.measure) for one in cards] == [(number, "weights and graph") for number in files]


def test_an_output_that_is_a_constant_is_in_no_part_that_a_page_could_cut(opened: Draw) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="y"), helper.make_node("Constant", [], ["c"], value_float=1.0)]
    scene = scene_of_analysis(
        graphcut.analyze(opened(model_of(nodes, [floats("x", 2)], [floats("y", 2), floats("c")])))
    )
    assert scene.cut_model() is None
    assert "<html" in html_of(scene)


def test_what_parts_cost_elsewhere_is_not_in_the_page_where_devices_differ(chain: Path) -> None:
    analysis, plain = graphcut.analyze(chain), Device(name="a")
    native = Device(name="b", native=("float16",))
    for hosts, limits, is_known in (
        ((plain, Device(name="b")), Limits(), True),
        ((plain, native), Limits(), False),
        ((plain, Device(name="b")), Limits(boundary_dtype="float16"), False),
    ):
        made = graphcut.plan(analysis, Across(Cluster(devices=hosts)), limits=limits)
        assert (scene_of_plan(made, analysis).cut_costs() is not None) == is_known


def test_operators_whose_operations_are_not_known_are_named(opened: Draw) -> None:
    nodes = [helper.make_node("Mystery", [a], [b], domain="com.acme") for a, b in (("x", "m"), ("m", "y"))]
    proto = model_of(nodes, [floats("x", 2)], [floats("y", 2)])
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    model = opened(proto)
    notes = plan_notes(graphcut.plan(model, At("m")), model)
    assert "operators without known FLOPs count as 0: com.acme.Mystery (2)" in notes
