"""Schedules: of a plan in its page and in SVG files; tests/cli/test_simulate.py draws runs."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from graphcut import Across, Cluster, Device, analyze, demos, load, plan
from graphcut.drawing.plan_schedules import schedules_of_plan
from graphcut.drawing.scene_builders import scene_of_plan, scene_of_ranks
from graphcut.drawing.schedule import Schedule, schedule_of
from graphcut.drawing.svg.document import svg_of
from graphcut.drawing.svg.schedule_chart import schedule_svg
from graphcut.drawing.terminal.schedule import schedule_rows
from graphcut.drawing.terminal.screen import Screen
from graphcut.surgery.cutting import prepare
from graphcut.surgery.splitting import write
from graphcut.workers.run_log import RunLog, Span
from graphcut.workers.scheduling.requests import ScheduledPart

from browser import Show

PARTS = (
    ScheduledPart("p0", ("x",), ("a",)),
    ScheduledPart("p1", ("a",), ("b",)),
    ScheduledPart("p2", ("a", "b"), ("y",)),
)


def test_a_schedule_has_the_first_requests_and_the_exchanges_between_devices() -> None:
    """Part 0 is on device 2, the others on device 0; request 3 is not among the first, and -1 rebuilds states."""
    log = RunLog(3, 3, is_tracing=True)
    log.spans = [
        *(Span(2, 0, request, 10.0 + request, 1.0) for request in range(4)),
        *(Span(0, part, 0, 10.5 + part, 0.5) for part in (1, 2)),
        Span(2, 0, -1, 9.0, 1.0),
    ]
    log.answered = 4
    assert schedule_of(log, ("unused", "idle", "first"), PARTS, "run") == Schedule(
        title="run",
        devices=("first", "unused"),
        runs=(
            Span(0, 0, 0, 0.0, 1.0),
            Span(0, 0, 1, 1.0, 1.0),
            Span(1, 1, 0, 1.5, 0.5),
            Span(0, 0, 2, 2.0, 1.0),
            Span(1, 2, 0, 2.5, 0.5),
        ),
        exchanges=((0, 2), (0, 4)),
    )


def test_the_chart_draws_each_run_and_exchange_to_scale() -> None:
    runs = (Span(0, 0, 0, 0.0, 1.0), Span(1, 1, 0, 1.5, 0.5))
    drawn = schedule_svg(Schedule(title="run", devices=("a", "b"), runs=runs, exchanges=((0, 1),)))
    assert re.findall(r"<title>(part.*?)</title>", drawn) == [
        "part 0, request 1, on a: 1 s, from 0 µs on",
        "part 1, request 1, on b: 500 ms, from 1.5 s on",
    ]
    (first, second) = (
        list(map(float, found)) for found in re.findall(r'"block" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    )
    assert first[1] == 2 * second[1]
    assert second[0] - first[0] == 1.5 * first[1]
    assert len(re.findall('class="exchange"', drawn)) == 1


def test_on_the_terminal_blocks_have_their_numbers_and_requests_their_lines() -> None:
    runs = (Span(0, 0, 0, 0.0, 0.5), Span(0, 0, 1, 0.5, 0.5), Span(1, 12, 0, 0.5, 0.25), Span(1, 12, 1, 1.0, 0.01))
    schedule = Schedule(title="run", devices=("hub", "pi"), runs=runs, exchanges=((0, 2), (1, 3)))
    assert [str(line) for line in schedule_rows(schedule, Screen(45))] == [
        "schedule  run: 1.01 s, 2 exchanges between devices",
        "hub  0──────────────────0━━━━━━━━━━━━━━━━━━━ ",
        "pi                      12────────          ━",
        "a block is a part, with its number; requests: 1 ──  2 ━━  3 ╌╌  ",
    ]


def cluster(*names: str, flops_per_s: float = 3e9) -> Cluster:
    return Cluster(devices=tuple(Device(name=name, flops_per_s=flops_per_s, link_bytes_per_s=1e9) for name in names))


def test_a_plan_of_a_decoder_has_the_schedule_of_a_prompt_and_of_tokens(show: Show, tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=4, heads=2, kv_heads=1, vocab=32)
    analysis = analyze(load(tmp_path / "llm.onnx"))
    made = plan(analysis, Across(cluster("a", "b")))
    prompt, token = schedules_of_plan(made, analysis.model)
    assert prompt.devices == token.devices == tuple(device.name for device in made.devices)
    for found in (prompt, token):
        assert {(run.part, run.request) for run in found.runs} == {
            (part, request) for part in (0, 1) for request in range(3)
        }
        for before, after in found.exchanges:
            assert found.runs[before].request == found.runs[after].request
            assert found.runs[before].began_s + found.runs[before].seconds <= found.runs[after].began_s
        for row in (0, 1):
            own = [run for run in found.runs if run.worker == row]
            assert all(a.began_s + a.seconds <= b.began_s for a, b in pairwise(own))
    assert sum(run.seconds for run in token.runs) < sum(run.seconds for run in prompt.runs) / 10
    scene = scene_of_plan(made, analysis)
    assert "a prompt of each of 3 sequences in flight, simulated" in svg_of(scene)
    page = show(scene)
    titles = page.evaluate("[...document.querySelectorAll('#schedule .run')].map((one) => one.title)")
    assert [title.partition(":")[0] for title in titles] == [
        f"part {run.part}, request {run.request + 1}"
        for found in (prompt, token) for row in (0, 1) for run in found.runs if run.worker == row
    ]  # fmt: skip
    page.evaluate("document.querySelectorAll('#schedule .run')[5].click()")
    assert page.evaluate("document.querySelector('#panel h2').textContent").startswith("p1")
    page.evaluate("location.hash = '#cut=/model/layers.1/add_1'")
    page.wait_for("document.querySelectorAll('#schedule .run').length === 2 * 3")  # parts and requests


def test_a_plan_whose_layers_are_divided_has_a_row_for_each_rank(tmp_path: Path) -> None:
    """The parts are those that `split` makes: the page of a plan and that of its split have the same schedules."""
    demos.write("llm", tmp_path / "llm.onnx", hidden=16, layers=2, heads=2, kv_heads=2, vocab=32)
    analysis = analyze(load(tmp_path / "llm.onnx"))
    made = plan(analysis, Across(cluster("a", "b", flops_per_s=1e9), "latency", ranks=2))
    assert made.has_groups
    found = schedules_of_plan(made, analysis.model)
    prepared = prepare(analysis.model, made, tmp_path / "parts")
    split = write(prepared)
    for schedule in found:
        assert {(schedule.devices[run.worker], run.part) for run in schedule.runs} == {
            (part.device, i) for i, part in enumerate(split.parts)
        }
        for before, after in schedule.exchanges:
            assert schedule.runs[before].worker != schedule.runs[after].worker
            assert {*split.parts[schedule.runs[before].part].writes} & {*split.parts[schedule.runs[after].part].reads}
    assert [schedule.title[:8] for schedule in found] == ["a prompt", "a token "]
    assert (
        scene_of_ranks(split, prepared.plan, prepared.source).schedules()
        == found
        == scene_of_plan(made, analysis).schedules()
    )


def test_interleaved_parts_share_the_row_of_their_device(tmp_path: Path) -> None:
    demos.write("resnet", tmp_path / "resnet.onnx")
    analysis = analyze(load(tmp_path / "resnet.onnx"))
    made = plan(analysis, Across(cluster("a", "b"), interleave=True))
    (found,) = schedules_of_plan(made, analysis.model)
    of_part = [device.name for device in made.devices]
    assert {(run.part, found.devices[run.worker]) for run in found.runs} == {*enumerate(of_part)}
