"""`split --report`: the page holds all that is known of what was cut, and may lie among the parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_show import CUTS, House, house, printed, run

import graphcut
from graphcut.drawing.html import html_of
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_split

from command_line import Run, holdings

__all__ = ["house", "run"]


def test_a_split_draws_its_report(run: Run, house: House, tmp_path: Path) -> None:
    parts, page = tmp_path / "parts", tmp_path / "report.html"
    result = run("split", house.model, "--at-nodes", ",".join(CUTS), "-o", parts, "--report", page)
    assert result.code == 0
    scene = scene_of_cascade(graphcut.open_cascade(parts), graphcut.load(house.model))
    assert page.read_text(encoding="utf-8") == html_of(scene)
    assert f"wrote {page}\n" in result.err


def test_a_split_that_was_planned_draws_all_that_the_plan_says(run: Run, house: House, tmp_path: Path) -> None:
    parts, page = tmp_path / "parts", tmp_path / "report.html"
    result = run("split", house.model, "--num-splits", 3, "-o", parts, "--report", page)
    assert result.code == 0
    model = graphcut.load(house.model)
    analysis = graphcut.analyze(model)
    scene = scene_of_split(graphcut.open_cascade(parts), graphcut.plan(analysis, graphcut.Into(3)), analysis)
    assert page.read_text(encoding="utf-8") == html_of(scene)
    assert [line.rstrip() for line in result.out.splitlines()] == printed(scene, explain=False)


@pytest.mark.parametrize("weights", ["copy", "share"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_report_may_be_in_the_folder_of_the_parts(
    run: Run,
    house: House,
    tmp_path: Path,
    weights: str,
    is_named: bool,  # noqa: FBT001 - a case
) -> None:
    """In a folder that is made meanwhile; and again, with --force, as often as one likes."""
    model = Path(shutil.copy(house.model, tmp_path))
    folder = tmp_path if weights == "share" else tmp_path / ("parts" if is_named else "llm.parts")
    page = folder / "report.html"
    words = ("split", model, "--weights", weights, "--report", page, *(("-o", folder) if is_named else ()))
    assert run(*words, "--num-splits", 2).code == 0
    first = page.read_text(encoding="utf-8")
    result = run(*words, "--num-splits", 3)
    assert (result.code, result.error[0]) == (2, f"{page} already exists")
    assert run(*words, "--num-splits", 3, "--force").code == 0
    assert page.read_text(encoding="utf-8") != first
    assert not any(name.startswith(".") for name in holdings(tmp_path))
    assert run("verify", folder if weights == "copy" else tmp_path / "llm.cascade.json", "--structural").code == 0


def test_a_report_in_a_folder_stays_where_a_split_fails(run: Run, house: House, tmp_path: Path) -> None:
    parts, page = tmp_path / "parts", tmp_path / "parts" / "report.html"
    words = ("split", house.model, "--num-splits", 2, "-o", parts, "--report", page)
    assert run(*words).code == 0
    (parts / "mine.txt").touch()
    before = {name: (tmp_path / name).read_bytes() for name in holdings(tmp_path) if (tmp_path / name).is_file()}
    result = run(*words, "--force")
    assert (result.code, result.error[0]) == (2, f"{parts} contains 'mine.txt', which belongs to no cascade there")
    assert {
        name: (tmp_path / name).read_bytes() for name in holdings(tmp_path) if (tmp_path / name).is_file()
    } == before


@pytest.mark.parametrize(
    ("output", "report", "way_out"),
    [
        ("g", "g", "g/report.html"),
        ("g.html", "g.html", "g.html/report.html"),
        ("g/parts", "g", "g/parts/report.html"),
        ("g", "h/../g", "g/report.html"),
    ],
)
def test_a_report_where_the_parts_go_is_refused_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, report: str, way_out: str
) -> None:
    """Even before the model is opened, which is not there."""
    monkeypatch.chdir(tmp_path)
    result = run("split", "none.onnx", "--num-splits", 2, "-o", output, "--report", report, "--force")
    assert (result.code, *result.error) == (
        2,
        f"{report} can't be both the report and a folder of the parts",
        f"choose a file, such as --report {way_out}",
    )
    assert holdings(tmp_path) == set()


def test_a_report_deeper_in_the_folder_of_the_parts_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    result = run("split", house.model, "--num-splits", 2, "-o", parts, "--report", parts / "more" / "report.html")
    assert (result.code, result.error[0]) == (2, f"there is no folder {parts / 'more'}")
    assert holdings(tmp_path) == set()


@pytest.mark.parametrize("name", ["there.html", "none/report.html"])
def test_a_report_that_can_not_be_written_stops_a_split_before_it_begins(
    run: Run, house: House, tmp_path: Path, name: str
) -> None:
    (tmp_path / "there.html").write_text("mine", encoding="utf-8")
    result = run(
        "split", house.model, "--at-nodes", ",".join(CUTS), "-o", tmp_path / "parts", "--report", tmp_path / name
    )
    assert result.code == 2
    assert result.error[0].startswith(
        {"there.html": str(tmp_path / name), "none/report.html": "there is no folder"}[name]
    )
    assert holdings(tmp_path) == {"there.html"}
    assert (tmp_path / "there.html").read_text(encoding="utf-8") == "mine"


def test_a_dry_run_draws_no_report(run: Run, house: House, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "parts", "--report", tmp_path / "report.html", "--dry-run")
    assert run("split", house.model, "--at-nodes", CUTS[0], *words).code == 0
    assert holdings(tmp_path) == set()
