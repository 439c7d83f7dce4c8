"""Comparing a model with its parts: which ways run, what is compared, what is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from rich.console import Console

import graphcut
from graphcut import At, Cascade, CascadeError, RunError, UsageError
from graphcut.benchmarking import comparison
from graphcut.benchmarking.comparison import WayResult, bench, largest_difference
from graphcut.benchmarking.contender import BenchmarkRun
from graphcut.benchmarking.ways import WAYS
from graphcut.cli.result_tables import draw_benchmark
from graphcut.drawing.terminal.runs import draw_run_log
from graphcut.drawing.terminal.screen import screen_on
from graphcut.workers.executors.protocol import Step
from graphcut.workers.run_log import RunLog

from cases import each
from command_line import Run, run
from conftest import floats, model_of

__all__ = ["run"]

X = {"x": np.array([[-1, 0, 1, 2]], np.float32)}


@pytest.fixture
def cascade(chain: Path) -> Cascade:
    """Relu and Exp, Neg, then Add, which also reads the first part."""
    model = graphcut.load(chain)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("exp", "neg"))))


def said(drawn: object, width: int = 120) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn)
    return capture.get()


def test_every_way_runs_and_gives_the_same_outputs(cascade: Cascade) -> None:
    found = bench(cascade, X, rounds=1)
    assert [one.way for one in found] == list(WAYS)
    assert [one.error for one in found] == [""] * len(WAYS)
    assert all(one.run_s > 0 and one.cpu_s >= 0 and one.load_s > 0 for one in found)
    # Exp and Neg of four numbers: no way to run them rounds differently.
    assert [one.difference for one in found] == [0.0] * len(WAYS)
    assert found[0].ratio == 1


def test_a_way_that_fails_is_listed_with_its_error(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.write_bytes(file.read_bytes() + b"\x00")
    whole, parts = bench(cascade, X, ways=["parts"], rounds=1)
    assert not whole.error
    assert parts.error == f"{file} was changed after the model was cut"
    lines = said(draw_benchmark([whole, parts], screen_on(Console(width=400))), 400).splitlines()
    assert lines[-1] == f"parts, all loaded: not measured: {file} was changed after the model was cut"


def test_the_whole_model_must_exist(cascade: Cascade) -> None:
    cascade.source.unlink()
    with pytest.raises(CascadeError, match=r"the whole model .* does not exist"):
        bench(cascade, X, rounds=1)


@each(
    ("answers", "said"),
    [
        (["no memory"], r"chain\.onnx can't be run: no memory"),
        ([BenchmarkRun(run_s=1), "no memory"], r"chain\.onnx ran once and then failed: no memory"),
    ],
)
def test_the_whole_model_must_run(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, answers: list[object], said: str
) -> None:
    monkeypatch.setattr(comparison, "_measured", lambda _: answers.pop(0))
    with pytest.raises(RunError, match=said):
        bench(cascade, X, ways=[], rounds=1)


def test_inputs_must_be_numbers(cascade: Cascade) -> None:
    with pytest.raises(UsageError, match="input 'x' is not an array of numbers"):
        bench(cascade, {"x": np.array(["a"])}, rounds=1)


def test_the_command_prints_a_table_or_a_record(cascade: Cascade, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words: Sequence[str | Path] = ("bench", cascade.root, "--rounds", "1", "--way", "parts")
    measured: list[Sequence[WayResult]] = []

    def once(*wanted: Any, **options: Any) -> Sequence[WayResult]:  # noqa: ANN401 - those of `bench`
        measured.append(measured[0] if measured else bench(*wanted, **options))
        return measured[0]

    monkeypatch.setattr("graphcut.bench", once)
    table, record = run(*words), run(*words, "--json")
    assert (table.code, len(measured)) == (0, 2), table.err
    assert [line[:18].strip() for line in table.out.splitlines()] == [
        "way to run it",
        "whole model",
        "parts, all loaded",
    ]
    assert [one["way"] for one in json.loads(record.out)["ways"]] == ["whole", "parts"]


def test_it_is_an_error_if_no_way_to_run_the_parts_could_be_measured(cascade: Cascade, run: Run) -> None:
    file = cascade.file(cascade.parts[0])
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    done = run("bench", cascade.root, "--rounds", "1", "--way", "parts", "--way", "whole-one-thread")
    assert done.code == 3, done.err
    assert "not measured: " in " ".join(done.out.split())


def test_the_error_for_an_unknown_way_lists_the_ways(cascade: Cascade, run: Run) -> None:
    done = run("bench", cascade.root, "--way", "swimming")
    assert done.code == 2
    assert "there is no way 'swimming' to run a cascade" in done.err
    assert "whole, whole-one-thread" in done.err.replace("'", "")


def test_the_table_shows_ratios_and_whether_outputs_are_the_same() -> None:
    rows = [
        WayResult(way="whole", title="whole model", ratio=1.0, difference=0.0),
        WayResult(way="mapped", title="mapped", ratio=1.5, difference=6.7e-6),
    ]
    lines = said(draw_benchmark(rows, screen_on(Console()))).splitlines()
    assert lines[1].split("  ")[0] == "whole model"
    assert "1.00" in lines[1]
    assert "same bits" in lines[1]
    assert "1.50" in lines[2]
    assert "within 6.7e-06" in lines[2]


def test_the_run_report_shows_the_time_of_each_part_and_deaths() -> None:
    log = RunLog(2, 2)
    log.arrived(0.0)
    log.runnable(0, 0, 0.0)
    log.started(0, Step(0, (0,), ()), 0.5)
    log.done(0, Step(0, (0,), ()), (1.0,), 1.5)
    log.runnable(1, 0, 1.5)
    log.started(1, Step(0, (1,), ()), 1.5)
    log.done(1, Step(0, (1,), ()), (0.5,), 2.0)
    log.deaths.append((1, "it was killed", 2.0))
    log.placements.update({1: {"CUDAExecutionProvider": 3, "CPUExecutionProvider": 1}})
    log.copied_bytes = 3 << 20
    log.rebalances.append(((1,), 1.0))
    log.delivered(0, 2.0, failed=False)
    text = said(draw_run_log(log, ["part-0.onnx", "part-1.onnx"], ["worker 0", "worker 1"], screen_on(Console())))
    assert text.splitlines()[0] == "1 input in 1.5 s, 0.7 a second."
    first = text.splitlines()[2].split()
    assert first == ["part-0.onnx", "1", "1", "s", "500", "ms", "worker", "0"]
    assert "busy: worker 0 67%, worker 1 33%" in text
    assert text.splitlines()[4:] == [
        "busy: worker 0 67%, worker 1 33%",
        "copied to and from devices: 3 MiB",
        "part-1.onnx runs 1 node with CPUExecutionProvider, 3 nodes with CUDAExecutionProvider",
        "worker 1 ended (it was killed)",
        "rebalanced 1 time: parts moved between workers",
    ]


def test_the_run_report_counts_idle_workers_and_micro_batches() -> None:
    log = RunLog(1, 3)
    log.runnable(0, 0, 0.0)
    log.started(1, Step(0, (0,), ()), 0.0)
    log.done(1, Step(0, (0,), ()), (1.0,), 1.0)
    log.delivered(0, 2.0, failed=False)
    workers = ["worker 0", "worker 1", "worker 2"]
    text = said(draw_run_log(log, ["part-0.onnx"], workers, screen_on(Console()), noun="piece"))
    assert text.splitlines()[0] == "1 piece in 2 s, 0.5 a second."
    assert text.splitlines()[-1] == "busy: worker 1 50%, 2 workers never"


def test_another_model_than_the_one_that_was_cut_is_refused(cascade: Cascade, tmp_path: Path, run: Run) -> None:
    nodes = [helper.make_node("Neg", ["other"], ["y"])]
    onnx.save(model_of(nodes, [floats("other", 2)], [floats("y", 2)]), tmp_path / "other.onnx")
    done = run("bench", cascade.root, "--model", tmp_path / "other.onnx")
    assert done.code == 3
    assert f"was not cut from {tmp_path / 'other.onnx'}: the graphs differ" in done.err


def test_the_expected_time_includes_transfers_and_loading_is_not_waiting() -> None:
    log = RunLog(1, 1)
    log.arrived(0.0)
    log.runnable(0, 0, 0.0)
    log.loaded(0, {}, 3.0)
    log.started(0, Step(0, (0,), ()), 3.5)
    log.done(0, Step(0, (0,), ()), (1.0,), 6.5)  # three seconds, of which the part ran for one
    assert log.waited_s == [0.5]
    assert log.expected_s(0, (0,)) == 1 + 2


def test_a_nan_in_one_array_is_an_infinite_difference() -> None:
    nan = np.array([np.nan, 1.0])
    assert largest_difference([(nan, np.array([2.0, 1.0]))]) == np.inf
    assert largest_difference([(nan, np.array([np.nan, 1.5]))]) == 0.5
    assert largest_difference([(np.array([1 + 0j]), np.array([1 + 5j]))]) == 5
    for other in (np.array([2.0]), np.array(["a", "b"])):
        assert largest_difference([(nan, nan), (other, nan)]) is None


def test_the_run_report_shows_the_peak_memory_of_workers_if_known() -> None:
    log = RunLog(1, 2)
    for memory_bytes in (2**20, 3 * 2**20, 0):
        log.memory(1, memory_bytes)
    assert log.memory_bytes == {1: 3 * 2**20}
    assert "memory: b 3 MiB" in said(draw_run_log(log, ["p"], ["a", "b"], screen_on(Console())))
