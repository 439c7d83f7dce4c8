"""`graphcut show A B`: what changed from one thing to another, on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from test_command import Said, Say
from test_show_command import PENS, House, house, orphan, say

from graphcut.drawing.changes import changes_between
from graphcut.drawing.json_records import dumps
from graphcut.drawing.terminal.changes import draw_changes

__all__ = ["house", "orphan", "say"]


def test_what_changed_between_two_things_is_what_the_functions_tell(say: Say, house: House) -> None:
    changes = changes_between(house.scene("plan"), house.scene("cascade"))
    said = say("show", house.plan, house.cascade)
    assert (said.code, said.err) == (0, "")
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    console.print(draw_changes(changes, console))
    assert isinstance(console.file, io.StringIO)
    assert said.out == console.file.getvalue()
    for word in (("--json",), ("--to", "json")):
        said = say("show", house.plan, house.cascade, *word)
        assert (said.code, said.err) == (0, "")
        assert said.out == dumps(changes) + "\n"


def test_what_changed_goes_into_a_file_as_json(say: Say, house: House, tmp_path: Path) -> None:
    goal = tmp_path / "changes.json"
    assert say("show", house.plan, house.cascade, "--json", "-o", goal) == Said(0, "", f"wrote {goal}\n")
    assert goal.read_text(encoding="utf-8") == say("show", house.plan, house.cascade, "--json").out


@pytest.mark.parametrize("pen", [*PENS, "lingualinked"])
def test_what_changed_is_drawn_by_no_other_pen(say: Say, house: House, pen: str) -> None:
    said = say("show", house.plan, house.cascade, "--to", pen)
    assert (said.code, *said.complaint) == (
        2,
        f"a comparison is shown on the terminal or as JSON, not as {pen}",
        "use --json, or name one thing",
    )


def test_a_model_that_is_not_cut_has_no_parts_that_changed(say: Say, house: House) -> None:
    said = say("show", house.plan, house.model)
    assert (said.code, said.complaint[0]) == (2, "llm.onnx is not cut: there are no parts to compare")


def test_both_things_take_the_model_that_is_named(
    say: Say, house: House, orphan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Path(shutil.copy(house.plan, tmp_path))
    said = say("show", plan, orphan, "--model", house.model, "--json")
    assert said.code == 0
    assert json.loads(said.out)["nodes"] is not None


def test_a_thing_that_is_missing_is_told_of_two(say: Say, house: House, tmp_path: Path) -> None:
    said = say("show", house.plan, tmp_path / "none.json")
    assert (said.code, said.complaint[0]) == (3, f"{tmp_path / 'none.json'} does not exist")
