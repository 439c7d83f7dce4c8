"""Plans on the terminal: several widths, without UTF-8 or colour, hostile names."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import helper
from rich.console import Console, RenderableType

import graphcut
from graphcut import Across, Analysis, At, Cluster, Device, Heads, Into, Plan, Within, demos
from graphcut.drawing.cut_costs import cut_costs_of
from graphcut.drawing.json_records import dumps
from graphcut.drawing.scene_builders import scene_of_plan
from graphcut.drawing.terminal.cost_table import draw_cost_table
from graphcut.drawing.terminal.scene import draw_scene
from graphcut.drawing.terminal.screen import screen_on
from graphcut.planning.goals import Goal
from graphcut.planning.plan_files import plan_file
from graphcut.planning.results import MetricUnit, quantity

from cases import each
from conftest import floats, model_of

CLUSTER = Cluster(
    devices=(
        Device(name="jetson", flops_per_s=5e11),
        Device(name="a-laptop-with-a-name-as-long-as-some-have"),
        Device(name="[red]"),
    )
)
GOALS: Mapping[str, Goal] = {
    "at": At(("/model/layers.0/add_1", "/model/layers.2/add_1")),
    "into": Into(4),
    "layers": Into(4, "layers"),
    "within": Within(30_000, ()),
    "across": Across(CLUSTER),
    "decode": Across(CLUSTER, "decode", 3),
    "heads": Heads((("logits",),)),
}
NUMBER = re.compile(r"\d[\d.,]* (?:[KMGT]i)?B\b|\d[\d.]* (?:µs|us|ms|s|min)\b|\d[\d.]* ?[kMGTP]?FLOP\b")


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Of a decoder of four layers."""
    path = tmp_path_factory.mktemp("drawing") / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=4, heads=2, kv_heads=1, vocab=32)
    return graphcut.analyze(graphcut.load(path))


@pytest.fixture(scope="module")
def plans(analysis: Analysis) -> Mapping[str, Plan]:
    return {name: graphcut.plan(analysis, goal) for name, goal in GOALS.items()}


@each(
    ("goal", "name"),
    [
        (Into(2, "bytes"), "written_bytes"),
        (Into(2, "layers"), ""),
        (Across(CLUSTER, "latency"), "latency_s"),
        (Across(CLUSTER, "bytes"), ""),
    ],
)
def test_the_page_compares_cuts_by_what_the_goal_minimizes_if_it_can_tell(
    analysis: Analysis, goal: Goal, name: str
) -> None:
    """Bytes of a plan for a cluster are those received, not those of the largest file."""
    data = cut_costs_of(analysis.model, graphcut.plan(analysis, goal))
    assert data is not None
    assert data["value"] == name


def console(width: int, *, encoding: str = "utf-8", is_terminal: bool = False, **more: str) -> Console:
    """One that writes to memory, in that encoding."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(
        file=file,
        width=width,
        height=50,
        force_terminal=is_terminal,
        highlight=False,
        legacy_windows=False,
        _environ=more,
    )


def printed(shown: RenderableType, at: Console) -> str:
    at.print(shown)
    assert isinstance(at.file, io.TextIOWrapper)
    at.file.flush()
    raw = at.file.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def drawn(made: Plan, analysis: Analysis, at: Console, *, explain: bool = True) -> str:
    return printed(draw_scene(scene_of_plan(made, analysis), screen_on(at), explain=explain), at)


# Widths


@each("width", [80, 100, 200])
@each("name", GOALS)
def test_no_line_is_wider_than_the_terminal(
    analysis: Analysis, plans: Mapping[str, Plan], name: str, width: int
) -> None:
    assert max(map(len, drawn(plans[name], analysis, console(width)).splitlines())) <= width


@each("width", [80, 100, 200])
@each("name", GOALS)
def test_no_number_and_no_title_is_ever_cut_short(
    analysis: Analysis, plans: Mapping[str, Plan], name: str, width: int
) -> None:
    """Names lose their beginnings; where there is still no room, whole columns stay away."""
    narrow = drawn(plans[name], analysis, console(width))
    assert "…" not in narrow.replace("… and ", "")
    wide = NUMBER.findall(drawn(plans[name], analysis, console(10_000)))
    assert set(NUMBER.findall(" ".join(narrow.split()))) <= set(wide)


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_table_keeps_what_decides(analysis: Analysis, plans: Mapping[str, Plan], width: int) -> None:
    """Which part, what it takes on disk, and how long it takes."""
    narrow = drawn(plans["into"], analysis, console(width), explain=False)
    for i, part in enumerate(plans["into"].metrics):
        row = next(line for line in narrow.splitlines() if line.startswith(f"p{i} "))
        assert quantity(part.busy_s, "s") in row
        assert quantity(part.written_bytes, "bytes") in row


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Analysis]:
    """A chain in 64 parts, and one tensor that all of them read."""
    nodes = [helper.make_node("Relu", ["x"], ["t0"], name="first")]
    nodes += [helper.make_node("Add", [f"t{i}", "t0"], [f"t{i + 1}"], name=f"add{i}") for i in range(66)]
    path = tmp_path_factory.mktemp("many") / "chain.onnx"
    onnx.save(model_of(nodes, [floats("x", 1, 64)], [floats("t66", 1, 64)]), path)
    found = graphcut.analyze(graphcut.load(path))
    return graphcut.plan(found, Into(64, "bytes")), found


@pytest.mark.parametrize("width", [80, 200, 10_000])
def test_64_parts_are_a_row_each_and_fit(many: tuple[Plan, Analysis], width: int) -> None:
    made, found = many
    lines = drawn(made, found, console(width), explain=False).splitlines()
    assert [line.split()[0] for line in lines if re.match(r"p\d+ ", line)][:64] == [f"p{i}" for i in range(64)]
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines if not line.startswith("… and "))


def test_one_part_crosses_nothing(analysis: Analysis) -> None:
    made = graphcut.plan(analysis, Into(1))
    text = drawn(made, analysis, console(80))
    assert "no tensor crosses a boundary" in text
    assert "cut 0" not in text
    assert "One part holds the whole model." in text
    assert "1 parts" not in text


def test_parts_that_repeat_the_same_share_a_line(analysis: Analysis, plans: Mapping[str, Plan]) -> None:
    made = plans["layers"]
    assert len({(found.nodes, found.tensors) for found in made.recomputed}) < len(made.recomputed)
    text = drawn(made, analysis, console(10_000), explain=False)
    assert text.count("instead of receiving") == len({(found.nodes, found.tensors) for found in made.recomputed})


# Encodings and colours


@each("name", GOALS)
def test_without_utf_8_all_signs_are_ascii(analysis: Analysis, plans: Mapping[str, Plan], name: str) -> None:
    """The micro sign, too: printing it would fail."""
    assert drawn(plans[name], analysis, console(200, encoding="ascii")).isascii()


def test_a_cost_model_is_drawn_without_utf_8(analysis: Analysis) -> None:
    at, costs = console(200, encoding="ascii"), graphcut.weigh(analysis.model)
    row = graphcut.table_of(costs).rows[0]
    timed = graphcut.CostTable((type(row)(module=row.module, num_flops=5, time_s=5e-6),))
    assert printed(draw_cost_table(timed, costs, screen_on(at)), at).isascii()


@each(("encoding", "sign"), [("utf-8", "✓"), ("UTF8", "✓"), ("ascii", "ok"), ("latin-1", "ok")])
def test_signs_follow_the_encoding(encoding: str, sign: str) -> None:
    assert screen_on(console(80, encoding=encoding)).plain("✓") == sign


@each("name", GOALS)
def test_colours_add_no_information(analysis: Analysis, plans: Mapping[str, Plan], name: str) -> None:
    plain = drawn(plans[name], analysis, console(120))
    coloured = drawn(plans[name], analysis, console(120, is_terminal=True, TERM="xterm-256color"))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_no_color_is_respected(analysis: Analysis, plans: Mapping[str, Plan]) -> None:
    text = drawn(plans["into"], analysis, console(120, is_terminal=True, TERM="xterm-256color", NO_COLOR="1"))
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;5)[0-9;]*m", text)


# Names that mean something to a terminal

NAMES: Sequence[str] = ("[red]", "[/]", "[bold]x[/bold]", ":smile:", "%s{0}", "back\\slash", "a b")


@each("width", [80, 200])
@each("name", NAMES)
def test_a_name_is_shown_as_it_is(tmp_path: Path, name: str, width: int) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], [f"{name}:0"], name=name),
        helper.make_node("Exp", [f"{name}:0"], ["b"], name=f"{name}2"),
        helper.make_node("Neg", ["b"], ["y"], name="last"),
    ]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), tmp_path / "m.onnx")
    found = graphcut.analyze(graphcut.load(tmp_path / "m.onnx"))
    cluster = Cluster(devices=(Device(name=name, memory_bytes=10**6), Device(name=f"{name}!")))
    for goal in (At((name,)), Into(2), Across(cluster)):
        made = graphcut.plan(found, goal)
        text = drawn(made, found, console(width))
        assert width == 80 or made.graph.nodes[made.parts[0][-1]].name in text  # a narrow table has no room for it
        assert all(tensor in text for tensor in made.partition.wiring.boundary_tensors)
        if isinstance(goal, Across):
            assert made.devices[0].name in text
        assert json.loads(dumps(plan_file(made, found.model, Path())))["parts"][0]["nodes"][0] == name


def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    """An escape in a name would be obeyed by the terminal."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="clear\x1b[2J\nhere"),
        helper.make_node("Neg", ["a"], ["y"], name="last"),
    ]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), tmp_path / "m.onnx")
    found = graphcut.analyze(graphcut.load(tmp_path / "m.onnx"))
    text = drawn(graphcut.plan(found, Into(2)), found, console(200))
    assert "\x1b" not in text
    assert not any(line.strip() == "here" for line in text.splitlines())


# Quantities


@each(
    ("value", "unit", "text"),
    [
        (0.00797, "s", "7.97 ms"),
        (4096.0, "bytes", "4 KiB"),
        (1.0, "parts", "1 part"),
        (3.0, "parts", "3 parts"),
        (1.0, "layers", "1 layer"),
        (12.0, "layers", "12 layers"),
        (386e6, "flops", "386 MFLOP"),
        (12.0, "flops", "12 FLOP"),
        (566.4, "tokens/s", "566 tokens/s"),
        (1860.0, "tokens/s", "1,860 tokens/s"),
    ],
)
def test_a_quantity_is_said_in_its_unit(value: float, unit: MetricUnit, text: str) -> None:
    assert quantity(value, unit) == text
