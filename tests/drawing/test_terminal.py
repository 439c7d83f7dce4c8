"""The terminal renderer: several widths, without UTF-8 or colour, hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import graphcut
from graphcut import At
from graphcut.drawing.scene import BoundaryTensor, Card, CutProfile, OtherPlan, Scene
from graphcut.drawing.terminal.lanes import lanes
from graphcut.drawing.terminal.profile_strip import profile_strip
from graphcut.drawing.terminal.screen import Screen
from graphcut.drawing.terminal.simulation import draw_simulation
from graphcut.drawing.terminal.tables import Column, table
from graphcut.drawing.terminal.verification import draw_verification
from graphcut.simulating.results import DeviceUse, Latency, SimulationResult
from graphcut.verifying.numerical import TensorComparison

import scenes_by_hand as by_hand
from cases import each
from golden_terminal import decoder_analysis, decoder_plan, screen, unet_cascade

SCENES: dict[str, Callable[[], Scene]] = {
    **{f"{n}-parts": partial(by_hand.decoder, n, nodes=200) for n in (1, 2, 4, 8, 9, 16, 64)},
    "heads": by_hand.heads,
    "fork": by_hand.fork,
    "hostile": by_hand.hostile,
    "uncut": partial(by_hand.uncut, 200),
    "analysis": decoder_analysis,
    "plan": decoder_plan,
    "cascade": unet_cascade,
}
MADE: dict[str, Scene] = {}
SIZE = re.compile(r"\d[\d.,]* (?:[KMGT]i)?B\b")


def scene_of(name: str) -> Scene:
    if name not in MADE:
        MADE[name] = SCENES[name]()
    return MADE[name]


def plain(renderables: Sequence[object], width: int = 200) -> list[str]:
    console = Console(width=width, _environ={}, highlight=False)
    with console.capture() as captured:
        for one in renderables:
            console.print(one)
    return [line.rstrip() for line in captured.get().splitlines()]


# Widths and encodings


@each("encoding", ["utf-8", "ascii"])
@each("width", [80, 120, 200])
@each("name", SCENES)
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(name: str, width: int, encoding: str) -> None:
    if name == "hostile" and encoding == "ascii":
        pytest.skip("ASCII has no letters for its names; the command writes them as escapes")
    lines = screen(scene_of(name), width, encoding, explain=True).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []


@each("width", [80, 120, 200])
@each("name", SCENES)
def test_no_size_is_cut_short(name: str, width: int) -> None:
    """Every size is shown as in a pipe, where nothing is shortened."""
    assert sizes_in(screen(scene_of(name), width)) <= sizes_in(screen(scene_of(name), 10_000))


def sizes_in(text: str) -> set[str]:
    """The sizes in a text, without the scale of the profile, which depends on the width."""
    lines = [line for line in text.splitlines() if not re.match(r" +[\d.]+ \w+  ", line)]
    return set(SIZE.findall(" ".join(" ".join(lines).split())))


@each("name", [name for name in SCENES if name != "hostile"])
def test_a_pipe_gets_lines_that_a_person_can_read(name: str) -> None:
    """Sentences are not wrapped; pictures and tables fit a wide screen."""
    lines = screen(scene_of(name), 10_000).splitlines()
    assert max(len(line) for line in lines if re.match(r"part|p\d|boundary|/|cut|  ", line)) < 400


@each("name", [name for name in SCENES if name != "hostile"])
def test_without_utf_8_all_signs_are_ascii(name: str) -> None:
    assert screen(scene_of(name), 120, "ascii", explain=True).isascii()


@each("name", SCENES)
def test_colours_add_no_information(name: str) -> None:
    coloured = screen(scene_of(name), 120, TERM="xterm-256color")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == screen(scene_of(name), 120)


def test_no_color_is_respected() -> None:
    text = screen(scene_of("4-parts"), 120, TERM="xterm-256color", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;5)[0-9;]*m", text)


@each("name", ["[red]", "[/]", ":smile:", "back\\slash", "%s{0}"])
def test_a_name_is_shown_as_it_is(name: str) -> None:
    card = by_hand.card(0, name=name, device=f"{name}1", content=f"{name}2", last_node=f"{name}3")
    scene = by_hand.scene(
        [card, by_hand.card(1)],
        [by_hand.tensor(f"{name}4", 0, 1)],
        title=f"{name}5",
        details=(("inputs", f"{name}6"),),
        recomputed=(f"{name}7",),
        reasons=lambda: (f"{name}8\n{name}9",),
        notes=(f"{name}10",),
    )
    text = screen(scene, 200, explain=True)
    assert [f"{name}{i}" for i in ("", *range(1, 11)) if f"{name}{i}" not in text] == []


def test_a_name_cannot_move_the_cursor() -> None:
    text = screen(scene_of("hostile"), 200, explain=True)
    assert not set(text) & {"\x1b", "\x00", "\r", "\u202e"}


# Pieces


def test_the_sentence_is_below_the_title() -> None:
    head, sentence, *_ = screen(scene_of("4-parts"), 10_000).splitlines()
    assert head == "llama-3-8b-fp16.onnx  1,491 nodes, 15 GiB weights  batch=1, seq=512"
    assert sentence == scene_of("4-parts").sentence


def budgets(*parts: tuple[int, int | None]) -> list[str]:
    """What the table shows of parts that need so much of so much."""
    cards = [by_hand.card(i, need_bytes=need, budget_bytes=budget) for i, (need, budget) in enumerate(parts)]
    lines = screen(by_hand.scene(cards), 200).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("part "))
    found = [re.search(r"(?:━* *│━*|no limit)", line) for line in lines[start + 1 : start + 1 + len(parts)]]
    return [lines[start], *(match[0] for match in found if match)]


def test_a_bar_ends_at_the_tick_if_a_part_needs_all_of_its_budget() -> None:
    title, *bars = budgets((50, 100), (100, 100), (1, 100))
    assert "of 100 B" in title
    assert bars == ["━━━━━     │", "━━━━━━━━━━│", "━         │"]


def test_a_part_over_its_budget_goes_beyond_the_tick_by_one_cell_or_more() -> None:
    """The widest bar has ten cells: of twice the budget, the budget has five."""
    assert budgets((200, 100), (101, 100), (100, 100))[1:] == ["━━━━━│━━━━━", "━━━━━│━", "━━━━━│"]


def test_devices_have_budgets_of_their_own_or_none() -> None:
    title, *bars = budgets((50, 100), (50, 200), (50, None))
    assert "of its budget" in title
    assert bars == ["━━━━━     │", "━━        │", "no limit"]


def picture(parts: int, tensors: Sequence[BoundaryTensor], width: int = 120) -> list[str]:
    scene = by_hand.scene([by_hand.card(i) for i in range(parts)], tensors)
    return plain(lanes(scene, Screen(width)), width)


def test_a_lane_goes_from_the_part_that_makes_a_tensor_to_its_last_reader() -> None:
    found = picture(4, [by_hand.tensor("near", 1, 2), by_hand.tensor("far", 0, 1, 3)])
    assert [line.partition("MiB  ")[2] for line in found[1:3]] == ["      ■─────●", "■╌╌╌╌╌●╌╌╌╌╌╌╌╌╌╌╌●"]
    assert found[0].endswith("p0    p1    p2    p3")


def test_many_parts_stand_closer() -> None:
    found = picture(12, [by_hand.tensor("far", 0, 11), by_hand.tensor("near", 9, 10)])
    assert found[0].endswith("p0 p1 p2 p3 p4 p5 p6 p7 p8 p9 10 11")
    assert found[1].endswith(f"■{'╌' * 32}●")
    assert found[2].endswith(f"{' ' * 27}■──●")


def test_in_few_columns_few_parts_stand_closer_too() -> None:
    assert picture(8, [by_hand.tensor("all", 0, 7)], 58)[0].endswith("p0 p1 p2 p3 p4 p5 p6 p7")


@pytest.mark.parametrize(("parts", "width"), [(16, 60), (33, 10_000)])
def test_without_room_for_lines_there_are_words(parts: int, width: int) -> None:
    found = picture(
        parts,
        [
            by_hand.tensor("all", 0, *range(1, parts)),
            by_hand.tensor("some", 0, 2, 4, 5, 7),
            by_hand.tensor("many", 0, *range(2, 14, 2)),
        ],
        width,
    )
    assert [re.split(r"B  ", line)[-1] for line in found[1:4]] == [
        f"p0 ╌╌> p1-p{parts - 1}",
        "p0 ╌╌> p2, p4-p5, p7",
        "p0 ╌╌> p2, p4, 6 parts, up to p12",
    ]


def test_many_tensors_are_grouped_by_their_ends() -> None:
    many = [by_hand.tensor(f"t{i}", 0, 1, size=1 << 10) for i in range(15)]
    found = picture(3, [*many, by_hand.tensor("last", 1, 2, size=7, is_exact=False)])
    assert [re.sub(r" +", " ", line) for line in found[1:3]] == [
        "t0 and 14 more float16[1,512,4096] 15 KiB ■─────●",
        "last float16[1,512,4096] ≥ 7 B ■─────●",
    ]


def test_of_very_many_tensors_the_residual_ones_are_shown() -> None:
    chain = [by_hand.tensor(f"t{i}", i, i + 1, size=1 << 20) for i in range(19)]
    found = picture(20, [by_hand.tensor("mask", 0, *range(1, 20), size=1), *chain])
    assert found[1].startswith("mask ")
    assert found[14] == "… and 7 more tensors, 7 MiB"


def profile(alive: Sequence[int], keys: Sequence[int] = (), parts: Sequence[int] = ()) -> CutProfile:
    nothing, sure = (0,) * len(alive), (True,) * len(alive)
    names = tuple(f"n{i}" for i in range(len(alive)))
    return CutProfile(
        nodes=names,
        ops=names,
        modules=((),) * len(alive),
        alive=tuple(alive),
        exact=sure,
        tensors=nothing,
        weights=nothing,
        keys=tuple(keys),
        parts=tuple(parts),
        cut_options=(),
    )


def test_a_profile_shows_the_lowest_of_each_column_in_eighths() -> None:
    """20 columns of 2 nodes; four rows of eighths: all of 32 eighths, 16, 1 at least where there is anything."""
    alive = [64, 90, 32, 32, 1, 500, *[0, 7] * 17, 0]
    _, *rows, marks = [line[12:] for line in plain(profile_strip(profile(alive), [2], "cut", Screen(32)))]
    assert [row.rstrip() for row in rows] == ["█", "█", "██", "██▁"]
    assert marks.rstrip() == " ▲"


def test_key_nodes_cuts_and_parts_are_marked_below() -> None:
    alive = [8] * 12 + [0]
    drawn = profile(alive, keys=[0, 5, 9], parts=[0] * 6 + [1] * 7)
    lines = plain(profile_strip(drawn, [5], "cut", Screen(80, is_ascii=True)))
    assert lines[0] == "cut profile  bytes alive, lowest per column   ^ cut   . key node"
    assert lines[1:5] == [
        "       8 B  @@@@@@@@@@@@",
        "            @@@@@@@@@@@@",
        "       4 B  @@@@@@@@@@@@",
        "       0 B  @@@@@@@@@@@@",
    ]
    assert lines[5] == "            .    ^   ."
    assert lines[6] == "             p0     p1"


def test_other_plans_are_listed_and_the_chosen_one_is_marked() -> None:
    others = (OtherPlan(0.001, 0.003, is_chosen=True), OtherPlan(0.002, 0.0025, is_chosen=False))
    text = screen(replace(scene_of("2-parts"), other_plans=others), 80)
    assert "  1 ms      3 ms      this plan\n  2 ms      2.5 ms\n" in text


def test_reasons_are_given_when_asked_for() -> None:
    scene = replace(scene_of("2-parts"), reasons=lambda: ("cut 0 after here\nbecause\nnext best after there",))
    assert "cut 0 after here\n  because\n  next best after there\n" in screen(scene, 80, explain=True)
    assert "cut 0" not in screen(scene, 80)
    bare = screen(replace(scene, reasons=tuple), 80, explain=True)
    assert bare.removeprefix(screen(replace(scene, reasons=tuple), 80)).split("\n") == [
        "",
        "dependency maps",
        "         0  1",
        "part-0   0 ██",
        "part-1   ·  1",
        "a row's part writes, a column's reads; higher is more bytes",
        "",
    ]


# Tables


def shown(columns: Sequence[Column], width: int) -> list[str]:
    return plain([table(Screen(width), columns)], width)


NAMES = Column("name", [Text("/model/layers.0/mlp"), Text("/short")], min_width=8)
NUMBERS = Column("bytes", ["123 GiB", "4 B"])


def test_a_table_with_room_shows_everything() -> None:
    assert shown([NAMES, NUMBERS], 40) == [
        "name                   bytes",
        "/model/layers.0/mlp  123 GiB",
        "/short                   4 B",
    ]


def test_names_lose_their_middle_and_numbers_nothing() -> None:
    assert shown([NAMES, NUMBERS], 19) == ["name          bytes", "/mo.../mlp  123 GiB", "/short          4 B"]


def test_columns_are_left_out_before_names_are_too_short() -> None:
    spare = Column("spare", ["1", "2"], drop_order=1)
    first = Column("first", ["3", "4"], drop_order=2)
    assert shown([NAMES, spare, first, NUMBERS], 42)[0].split() == ["name", "spare", "first", "bytes"]
    assert shown([NAMES, spare, first, NUMBERS], 30)[0].split() == ["name", "spare", "bytes"]
    assert shown([NAMES, spare, first, NUMBERS], 20)[0].split() == ["name", "bytes"]


def test_letters_of_two_columns_count_as_two() -> None:
    wide = Column("name", [Text("名前名前名前名前"), Text("x")], min_width=4)
    for line in shown([wide, NUMBERS], 18):
        assert cell_len(line) <= 18
    assert shown([wide, NUMBERS], 18)[1].endswith("123 GiB")


def test_a_part_without_predictions_shows_weights_and_what_it_sends() -> None:
    lines = screen(scene_of("heads"), 100).splitlines()
    titles = ["part", "contains", "nodes", "weights", "weights and graph", "reads", "writes", "sends"]
    assert lines[3].split() == " ".join(titles).split()


def test_unknown_values_get_no_column() -> None:
    cards: list[Card] = [by_hand.card(i, busy_s=0.5) for i in range(2)]
    assert "activations" not in screen(by_hand.scene(cards), 200)
    known = [replace(card, activation_bytes=7, flops=3 * 10**9, intensity=2.5) for card in cards]
    text = screen(by_hand.scene(known), 200)
    assert all(word in text for word in ("activations", "7 B", "3 GFLOP", "FLOP/B", "2.5", "500 ms"))


# Results


def simulated(**changes: object) -> SimulationResult:
    """100 requests on one device."""
    use = DeviceUse(name="a", parts=(0,), steps=9, computing=0.5, fetching=0, messaging=0, down=0, failures=0)
    kept: dict[str, Any] = {
        "requests": 100,
        "answered": 100,
        "failed": 0,
        "stopped": "",
        "rate_per_s": None,
        "window": 2,
    }
    kept |= {"seed": 0, "total_s": 2.0, "per_s": 50.0, "lost": 0, "restarted": 0, "devices": (use,), "links": ()}
    return SimulationResult(**{**kept, "latency": Latency(mean=1, p50=1, p90=1, p99=1, max=1), **changes})


def test_requests_that_are_not_answered_have_no_latency_and_are_counted() -> None:
    nothing = {"answered": 0, "per_s": 0.0, "latency": None, "failed": 100, "restarted": 7, "lost": 1}
    text = plain(
        [draw_simulation(simulated(**nothing, without_failures=simulated()), Path("plan.json"), Screen(100))], 100
    )
    assert not [line for line in text if "latency" in line]
    assert "note: 100 requests failed: workers ended at every attempt" in text
    assert "7 requests restarted: a device that failed had tensors that nothing else has" in text
    whole = plain([draw_simulation(simulated(without_failures=simulated()), Path("plan.json"), Screen(100))], 100)
    assert [" ".join(line.split()) for line in whole if "latency" in line] == [
        "latency mean 1 s p50 1 s p90 1 s p99 1 s max 1 s",
        "mean latency 1 s 1 s",
        "p99 latency 1 s 1 s",
    ]


def test_a_verification_says_what_differs_and_why_nothing_was_compared(chain: Path) -> None:
    cascade = graphcut.split(chain, At("exp"))
    found = graphcut.verify(chain, cascade)
    kept: dict[str, Any] = {"tensor": "b", "is_identical": False, "max_rel": 0.5, "max_ulps": 12345}
    random, wrong = (
        TensorComparison(**kept, max_abs=2.0, allowed=1.5, part=1, is_output=True, is_random=one)
        for one in (True, False)
    )
    text = plain(
        [draw_verification(replace(found, runs=((random, wrong),), failure="no such shape"), cascade, Screen(100))], 100
    )
    assert text[-4:] == [
        "  the cascade rejects inputs that the model accepts: no such shape",
        "  the first output that differs: 'b', from part-1.onnx",
        "  max abs 2 (allowed 1.5), max rel 0.5, 12,345 ulps",
        "  some tensors depend on random nodes: for these, only the structure was compared",
    ]
    inner = replace(found, runs=((replace(wrong, is_output=False),),))
    assert "  the first boundary tensor that differs: 'b', from part-1.onnx" in plain(
        [draw_verification(inner, cascade, Screen(100))]
    )
