"""`graphcut diff`: what changed from one plan or cascade to another, on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from test_show import House, house, orphan, run

from graphcut.drawing.changes.differences import changes_between
from graphcut.drawing.json_records import dumps
from graphcut.drawing.terminal.changes import draw_changes

from command_line import Result, Run

__all__ = ["house", "orphan", "run"]


def test_diff_prints_what_the_functions_return(run: Run, house: House) -> None:
    changes = changes_between(house.scene("plan"), house.scene("cascade"))
    result = run("diff", house.plan, house.cascade)
    assert (result.code, result.err) == (0, "")
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    console.print(draw_changes(changes, console))
    assert isinstance(console.file, io.StringIO)
    assert result.out == console.file.getvalue()
    result = run("diff", house.plan, house.cascade, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out == dumps(changes) + "\n"


def test_changes_are_written_as_json(run: Run, house: House, tmp_path: Path) -> None:
    goal = tmp_path / "changes.json"
    assert run("diff", house.plan, house.cascade, "-o", goal) == Result(0, "", f"wrote {goal}\n")
    assert goal.read_text(encoding="utf-8") == run("diff", house.plan, house.cascade, "--json").out


def test_a_model_can_not_be_compared(run: Run, house: House) -> None:
    result = run("diff", house.plan, house.model)
    assert (result.code, result.error[0]) == (2, "llm.onnx is not cut: there are no parts to compare")


def test_both_things_take_the_model_that_is_named(
    run: Run, house: House, orphan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Path(shutil.copy(house.plan, tmp_path))
    result = run("diff", plan, orphan, "--model", house.model, "--json")
    assert result.code == 0
    assert json.loads(result.out)["nodes"] is not None


def test_a_missing_second_thing_is_an_error(run: Run, house: House, tmp_path: Path) -> None:
    result = run("diff", house.plan, tmp_path / "none.json")
    assert (result.code, result.error[0]) == (3, f"{tmp_path / 'none.json'} does not exist")
