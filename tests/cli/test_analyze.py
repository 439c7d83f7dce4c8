"""`graphcut analyze`."""

from __future__ import annotations

from pathlib import Path

import graphcut

from command_line import Run, llm, run

__all__ = ["llm", "run"]


def test_cuts_are_tab_separated_lines(run: Run, llm: Path) -> None:
    result = run("analyze", llm, "--cuts", "--dim", "batch=1", "--dim", "seq=4", "--dim", "past=0", "--dim", "total=4")
    assert (result.code, result.err) == (0, "")
    head, *rows = (line.split("\t") for line in result.out.splitlines())
    assert head == ["node", "bytes", "exact", "tensors", "weights_before", "weights_after", "key", "module"]
    model = graphcut.load(llm, dims={"batch": 1, "seq": 4, "past": 0, "total": 4})
    points = graphcut.analyze(model).cut_points
    assert [row[0] for row in rows] == [point.node for point in points]
    assert [row[1] for row in rows] == [str(point.bytes) for point in points]
    assert [row[3].split(",") for row in rows] == [list(point.boundary_tensors) for point in points]
    assert {row[6] for row in rows} == {"yes", "no"}


def test_n_cuts_are_the_n_cheapest_in_order(run: Run, llm: Path) -> None:
    points = graphcut.analyze(graphcut.load(llm)).cut_points
    (_, *rows) = run("analyze", llm, "--cuts", "3").out.splitlines()
    found = [row.split("\t")[0] for row in rows]
    assert len(found) == 3
    assert [point.node for point in points if point.node in found] == found
    dearest = max(point.bytes for point in points if point.node in found)
    assert dearest <= min(point.bytes for point in points if point.node not in found)


def test_cuts_may_have_no_value_anywhere_on_the_line(run: Run, llm: Path) -> None:
    everything = run("analyze", llm, "--cuts").out
    assert run("analyze", "--cuts", llm).out == everything
    assert run("analyze", "--cuts", "9999", llm).out == everything
    assert run("analyze", llm, "--cuts", "0").out == everything.splitlines(keepends=True)[0]  # what columns mean
    assert run("analyze", llm, "--cuts=2").out == run("analyze", "--cuts", "2", llm).out


def test_a_negative_number_of_cuts_is_misuse(run: Run, llm: Path) -> None:
    assert run("analyze", llm, "--cuts=-1").code == 2
