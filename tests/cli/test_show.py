"""`graphcut show`: every thing through every renderer, and what is result where that can't be."""

from __future__ import annotations

import base64
import io
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from rich.console import Console

import graphcut
from graphcut import demos
from graphcut.cli.argument_names import in_options
from graphcut.core.manifest import Cascade
from graphcut.drawing.dot import dot_of
from graphcut.drawing.html import html_of
from graphcut.drawing.mermaid import mermaid_of
from graphcut.drawing.opening import scene_at
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_cascade, scene_of_plan
from graphcut.drawing.svg.document import svg_of
from graphcut.drawing.terminal.scene import draw_scene
from graphcut.drawing.terminal.screen import screen_on

from command_line import Result, Run, holdings, run

__all__ = ["CUTS", "RENDERERS", "house", "orphan", "printed", "run"]

CUTS = ("/model/layers.0/add_1", "/model/layers.1/add_1")
THINGS = ("model", "plan", "cascade")
RENDERERS: Mapping[str, Callable[[Scene], str]] = {
    "html": html_of,
    "svg": svg_of,
    "dot": dot_of,
    "mermaid": mermaid_of,
}


@dataclass(frozen=True)
class House:
    """A decoder of three layers, a plan for it that is saved, and a cascade of it; for reading only."""

    model: Path
    plan: Path
    cascade: Path

    def place(self, thing: str) -> Path:
        return {"model": self.model, "plan": self.plan, "cascade": self.cascade}[thing]

    def opened(self) -> Cascade:
        return graphcut.open_cascade(self.cascade)

    def scene(self, thing: str) -> Scene:
        model = graphcut.load(self.model)
        analysis = graphcut.analyze(model)
        if thing == "model":
            return said(scene_of_analysis(analysis))
        if thing == "cascade":
            return said(scene_of_cascade(self.opened(), model))
        return said(scene_of_plan(graphcut.replay(analysis, self.plan), analysis))


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    home = tmp_path_factory.mktemp("show")
    path = home / "llm.onnx"
    demos.write("llm", path, hidden=16, layers=3, heads=2, kv_heads=1, vocab=32)
    model = graphcut.load(path)
    analysis = graphcut.analyze(model)
    graphcut.save_plan(graphcut.plan(analysis, graphcut.Into(3)), model, home / "plan.json")
    cascade = graphcut.split(model, graphcut.plan(analysis, graphcut.At(CUTS)), home / "llm.parts")
    return House(path, home / "plan.json", cascade.root)


def said(scene: Scene) -> Scene:
    """The scene with notes as the command says them, with options where the library names arguments."""
    return replace(scene, notes=tuple(in_options(note, "show") for note in scene.notes))


def printed(scene: Scene, *, explain: bool = True) -> list[str]:
    """What the terminal's renderer draws where nothing limits its width."""
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    console.print(draw_scene(scene, screen_on(console), explain=explain))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


# Every thing, every renderer


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("thing", THINGS)
def test_show_prints_what_the_renderer_returns(run: Run, house: House, thing: str, renderer: str) -> None:
    result = run("show", house.place(thing), "--to", renderer)
    if thing == "model" and renderer == "mermaid":
        assert result.code == 2
        assert result.error[0].endswith("is not cut: there are no parts to draw")
    else:
        assert result == Result(0, RENDERERS[renderer](house.scene(thing)), "")


@pytest.mark.parametrize("thing", THINGS)
def test_the_terminal_is_the_default_format(run: Run, house: House, thing: str) -> None:
    result = run("show", house.place(thing))
    assert result.code == 0
    assert [line.rstrip() for line in result.out.splitlines()] == printed(house.scene(thing))
    assert run("show", house.place(thing), "--to", "terminal") == result


def test_the_next_command_is_on_stderr(run: Run, house: House) -> None:
    following = house.scene("model").next_command
    assert following.startswith("graphcut split ")
    assert run("show", house.model).err == f"next: {following}\n"
    assert run("show", house.plan).err == ""
    assert run("show", house.cascade).err.startswith("next: graphcut verify ")


def test_notes_name_options(run: Run, house: House) -> None:
    """In the library, from which they come, they name arguments."""
    assert [note for note in scene_at(house.model).notes if note.endswith("; set others with `dims`")]
    for words in (("analyze", house.model), ("show", house.model), ("show", house.model, "--to", "html")):
        result = run(*words)
        assert (result.code, "; set others with --dim" in result.out, "`dims`" in result.out) == (0, True, False)


def test_a_manifest_names_its_cascade(run: Run, house: House) -> None:
    assert run("show", house.cascade / "cascade.json", "--to", "svg").out == svg_of(house.scene("cascade"))


def test_a_folder_of_a_cascade_may_have_the_name_of_a_model(run: Run, house: House, tmp_path: Path) -> None:
    folder = shutil.copytree(house.cascade, tmp_path / "llm.onnx")
    for command in ("show", "verify"):
        result = run(command, folder, "--model", house.model)
        assert (result.code, result.out) == (0, run(command, house.cascade, "--model", house.model).out)


def test_dims_size_the_picture_of_a_model(run: Run, house: House) -> None:
    dims = {"batch": 1, "seq": 16, "past": 0, "total": 16}
    words = [word for name, number in dims.items() for word in ("--dim", f"{name}={number}")]
    expected = svg_of(said(scene_of_analysis(graphcut.analyze(graphcut.load(house.model, dims=dims)))))
    assert run("show", house.model, "--to", "svg", *words).out == expected != svg_of(house.scene("model"))


def test_dims_size_the_picture_of_a_cascade(run: Run, house: House, orphan: Path) -> None:
    """With its model or without: as if it had been cut with them."""
    dims = {"batch": 1, "seq": 16, "past": 0, "total": 16}
    words = [word for name, number in dims.items() for word in ("--dim", f"{name}={number}")]
    for place, model in ((house.cascade, graphcut.load(house.model, dims=dims)), (orphan, None)):
        found = graphcut.open_cascade(place)
        sized = replace(found, manifest=changed(found.manifest, dims=dims, assumed=()))
        assert run("show", place, "--to", "svg", *words).out == svg_of(said(scene_of_cascade(sized, model)))
    assert all(lane.is_exact for lane in scene_of_cascade(sized).tensors)


@pytest.mark.parametrize("thing", ["model", "cascade"])
def test_an_unknown_dim_is_refused(run: Run, house: House, thing: str) -> None:
    result = run("show", house.place(thing), "--dim", "sequence=3")
    assert result.code == 2
    assert "'sequence'" in result.error[0]
    assert "seq" in result.error[1]


def test_a_plan_takes_no_dims(run: Run, house: House) -> None:
    result = run("show", house.plan, "--dim", "seq=3")
    assert (result.code, *result.error) == (
        2,
        f"the predictions of {house.plan} are for fixed sizes",
        "plan again with other --dim",
    )


@pytest.mark.parametrize("words", [(kind, "--to", "json") for kind in ("plan", "cascade")])
def test_dims_that_would_change_nothing_are_refused(run: Run, house: House, words: tuple[str, ...]) -> None:
    result = run("show", house.place(words[0]), *words[1:], "--dim", "seq=3")
    assert result.code == 2
    assert result.error[0].startswith("--dim does not apply to the ")
    assert result.error[1] == "leave --dim out"


@pytest.mark.parametrize("words", [(kind, "--to", "json") for kind in ("model", "plan", "cascade")])
def test_a_model_that_would_change_nothing_is_refused(run: Run, house: House, words: tuple[str, ...]) -> None:
    result = run("show", house.place(words[0]), *words[1:], "--model", house.model)
    assert result.code == 2
    assert result.error[0].startswith("--model does not apply to the ")
    assert result.error[1] == "leave --model out"


def test_a_model_belongs_to_no_other_model(run: Run, house: House) -> None:
    result = run("show", house.model, "--model", house.model)
    assert (result.code, result.error[0]) == (2, f"{house.model} is a model itself")


# What a plan result


@pytest.mark.parametrize(
    "goal",
    [
        ("--num-splits", 3),
        ("--num-splits", 3, "--dim", "seq=16", "--profile", "prefill:16"),
        ("--memory", "30KiB", "--count", "files"),
        ("--at-nodes", CUTS[0]),
        ("--at-nodes", CUTS[0], "--dim", "seq=16", "--dim", "batch=1", "--dim", "total=16", "--dim", "past=0"),
    ],
)
def test_a_saved_plan_is_shown_as_it_was_printed_with_reasons(
    run: Run, house: House, tmp_path: Path, goal: tuple[object, ...]
) -> None:
    plan = house.model.with_name(f"{tmp_path.name}.json")
    told = run("plan", house.model, *goal, "-o", plan)
    assert told.code == 0
    shown = run("show", plan).out.replace(" of `graphcut split`", "")  # `show` has no option of `plan`
    assert set(told.out.splitlines()) <= set(shown.splitlines())
    assert goal[0] == "--at-nodes" or "next best after" in shown


# JSON


def test_the_json_of_a_plan_is_its_file(run: Run, house: House) -> None:
    result = run("show", house.plan, "--to", "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == json.loads(house.plan.read_text(encoding="utf-8"))


def test_the_json_of_a_cascade_holds_its_manifest(run: Run, house: House) -> None:
    result = run("show", house.cascade, "--to", "json")
    assert (result.code, result.err) == (0, "")
    manifest = (house.cascade / "cascade.json").read_text(encoding="utf-8")
    assert json.loads(result.out)["manifest"] == json.loads(manifest)


def test_the_json_of_a_model_is_that_of_analyze(run: Run, house: House) -> None:
    result = run("show", house.model, "--to", "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == json.loads(run("analyze", house.model, "--json").out)


def test_the_json_of_a_plan_asks_for_no_model(run: Run, house: House, tmp_path: Path) -> None:
    alone = Path(shutil.copy(house.plan, tmp_path))
    assert json.loads(run("show", alone, "--to", "json").out)["model"] == "llm.onnx"


# Into a file


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_picture_in_a_file_is_the_one_on_stdout(run: Run, house: House, tmp_path: Path, renderer: str) -> None:
    goal = tmp_path / "picture"
    assert run("show", house.plan, "--to", renderer, "-o", goal) == Result(0, "", f"wrote {goal}\n")
    assert goal.read_text(encoding="utf-8") == RENDERERS[renderer](house.scene("plan"))
    assert holdings(tmp_path) == {"picture"}


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("a.html", "html"),
        ("a.htm", "html"),
        ("a.svg", "svg"),
        ("a.SVG", "svg"),
        ("a.dot", "dot"),
        ("a.gv", "dot"),
        ("a.mmd", "mermaid"),
        ("a.mermaid", "mermaid"),
        ("a.json", "json"),
    ],
)
def test_the_format_follows_from_the_file_name(run: Run, house: House, tmp_path: Path, name: str, to: str) -> None:
    assert run("show", house.plan, "-o", tmp_path / name) == Result(0, "", f"wrote {tmp_path / name}\n")
    assert (tmp_path / name).read_text(encoding="utf-8") == run("show", house.plan, "--to", to).out


@pytest.mark.parametrize(("command", "things"), [("show", ("plan",)), ("compare", ("plan", "cascade"))])
def test_a_text_file_holds_what_the_terminal_shows(
    run: Run, house: House, tmp_path: Path, command: str, things: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [house.place(thing) for thing in things]
    shown = run(command, *places).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(command, *places, "-o", tmp_path / "a.txt").code == 0
    text = (tmp_path / "a.txt").read_text(encoding="utf-8")
    assert text.splitlines() == [line.rstrip() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--to", "svg", "-o", "a.png"), ("a.png is not a file name for svg", "write -o a.svg")),
        (
            ("--to", "svg", "-o", "a.html"),
            ("a.html is not a file name for svg", "write -o a.svg, or leave out --to for html"),
        ),
        (
            ("--to", "json", "-o", "a.svg"),
            ("a.svg is not a file name for json", "write -o a.json, or leave out --to for svg"),
        ),
        (
            ("-o", "a.png"),
            (
                "a.png: no format is known by this file name",
                "use one of .html, .svg, .dot, .mmd, .json, .txt; or add --to",
            ),
        ),
        (
            ("-o", "picture"),
            (
                "picture: no format is known by this file name",
                "use one of .html, .svg, .dot, .mmd, .json, .txt; or add --to",
            ),
        ),
    ],
)
def test_a_file_name_of_another_format_is_refused(
    run: Run, house: House, words: tuple[str, ...], error: tuple[str, str]
) -> None:
    result = run("show", house.plan, *words)
    assert (result.code, result.error) == (2, error)


def test_an_existing_file_is_replaced_only_with_force(run: Run, house: House, tmp_path: Path) -> None:
    goal = tmp_path / "picture.svg"
    goal.write_text("mine", encoding="utf-8")
    result = run("show", house.model, "--to", "svg", "-o", goal)
    assert (result.code, *result.error) == (
        2,
        f"{goal} already exists",
        "choose another name, or add --force",
    )
    assert goal.read_text(encoding="utf-8") == "mine"
    assert run("show", house.model, "--to", "svg", "-o", goal, "--force").code == 0
    assert goal.read_text(encoding="utf-8") == svg_of(house.scene("model"))


def test_a_folder_is_never_replaced_by_a_picture(run: Run, house: House, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine").touch()
    result = run("show", house.model, "--to", "svg", "-o", tmp_path / "kept", "--force")
    assert result.code in {2, 3}
    assert result.error[0].startswith(str(tmp_path / "kept"))
    assert holdings(tmp_path) == {"kept", "kept/mine"}


def test_a_file_in_no_folder_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    result = run("show", house.model, "--to", "svg", "-o", tmp_path / "none" / "picture.svg")
    assert (result.code, result.error[0]) == (2, f"there is no folder {tmp_path / 'none'}")


@pytest.mark.parametrize("renderer", ["terminal", "json"])
def test_a_file_that_was_asked_for_is_written_or_refused(run: Run, house: House, tmp_path: Path, renderer: str) -> None:
    result = run("show", house.model, "--to", renderer, "-o", tmp_path / "shown")
    assert (tmp_path / "shown").exists() or result.code == 2


# What has moved, and what is gone


def test_a_plan_whose_model_has_moved_is_shown_with_it(run: Run, house: House, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    plan = Path(shutil.copy(house.plan, tmp_path / "far"))
    result = run("show", plan)
    assert (result.code, *result.error) == (
        2,
        f"the model of {plan} is not at {plan.with_name('llm.onnx')}",
        "name it with --model",
    )
    assert run("show", plan, "--to", "svg", "--model", house.model).out == svg_of(house.scene("plan"))


def test_a_plan_in_another_folder_finds_its_model(
    run: Run, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs, and when the folders move together."""
    (tmp_path / "a" / "plans").mkdir(parents=True)
    (tmp_path / "a" / "models").mkdir()
    model = Path(shutil.copy(house.model, tmp_path / "a" / "models" / "my.onnx"))
    plan = tmp_path / "a" / "plans" / "plan.json"
    assert run("plan", model, "--num-splits", 3, "-o", plan).code == 0
    assert json.loads(plan.read_text())["model"] == "../models/my.onnx"
    (tmp_path / "a").rename(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b" / "plans")
    assert run("show", "plan.json").code == 0
    (tmp_path / "b" / "models" / "my.onnx").unlink()
    result = run("show", "plan.json")
    assert result.error == (
        f"the model of plan.json is not at {tmp_path / 'b' / 'models' / 'my.onnx'}",
        "name it with --model",
    )


def test_a_plan_finds_its_model_in_the_current_folder(
    run: Run, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    plan = Path(shutil.copy(house.plan, tmp_path / "far"))
    monkeypatch.chdir(house.model.parent)
    expected = svg_of(house.scene("plan"))
    assert run("show", plan, "--to", "svg").out == expected


def test_a_model_of_the_same_name_is_not_taken_for_that_of_a_plan(
    run: Run, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "here").mkdir()
    plan = Path(shutil.copy(house.plan, tmp_path / "far"))
    demos.write("llm", tmp_path / "here" / "llm.onnx", hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    monkeypatch.chdir(tmp_path / "here")
    result = run("show", plan)
    assert (result.code, *result.error) == (
        2,
        f"llm.onnx is not the model of {plan}: the graphs differ",
        "name it with --model",
    )


def test_a_model_beside_a_plan_that_is_another_does_not_hide_its_own(
    run: Run, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Path(shutil.copy(house.plan, tmp_path))
    demos.write("multitask", tmp_path / "llm.onnx")
    monkeypatch.chdir(house.model.parent)
    assert run("show", plan, "--to", "svg").out == svg_of(house.scene("plan"))


def test_a_plan_for_another_model_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    demos.write("llm", other, hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    result = run("show", house.plan, "--model", other)
    assert result.code == 2
    assert result.error[0] == f"{house.plan} is a plan for llm.onnx, not for other.onnx: the graphs differ"


@pytest.fixture
def orphan(house: House, tmp_path: Path) -> Path:
    """A cascade without its model."""
    return Path(shutil.copytree(house.cascade, tmp_path / "orphan" / "llm.parts"))


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_cascade_whose_model_is_gone_is_shown_all_the_same(run: Run, orphan: Path, renderer: str) -> None:
    scene = said(scene_of_cascade(graphcut.open_cascade(orphan)))
    assert scene.profile is None
    assert run("show", orphan, "--to", renderer) == Result(0, RENDERERS[renderer](scene), "")


def test_a_cascade_whose_model_is_gone_is_shown_on_the_terminal(run: Run, orphan: Path) -> None:
    result = run("show", orphan)
    assert result.code == 0
    assert [line.rstrip() for line in result.out.splitlines()] == printed(
        said(scene_of_cascade(graphcut.open_cascade(orphan)))
    )


def test_a_cascade_whose_model_has_moved_is_shown_with_it(run: Run, house: House, orphan: Path) -> None:
    expected = said(scene_of_cascade(graphcut.open_cascade(orphan), graphcut.load(house.model)))
    assert expected.profile is not None
    assert run("show", orphan, "--to", "svg", "--model", house.model).out == svg_of(expected)


def test_a_cascade_of_another_model_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    demos.write("multitask", other)
    result = run("show", house.cascade, "--model", other)
    assert result.code == 3
    assert result.error[0] == f"{house.cascade / 'cascade.json'} was not cut from {other}: the graphs differ"


def test_a_cascade_of_a_larger_model_of_the_same_names_is_refused(run: Run, house: House, tmp_path: Path) -> None:
    """All nodes of two layers are found again in a cascade of three."""
    other = tmp_path / "other.onnx"
    demos.write("llm", other, hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    assert run("show", house.cascade, "--model", other).code == 3


def test_a_cascade_whose_model_was_replaced_is_shown_all_the_same(run: Run, orphan: Path) -> None:
    demos.write("multitask", orphan.with_name("llm.onnx"))
    assert run("show", orphan).code == 0


@pytest.mark.parametrize("thing", ["plan", "cascade"])
def test_a_model_that_is_named_has_to_be_there(run: Run, house: House, tmp_path: Path, thing: str) -> None:
    result = run("show", house.place(thing), "--model", tmp_path / "none.onnx")
    assert result.code in {2, 3}
    assert result.error[0] == f"there is no file {tmp_path / 'none.onnx'}"


# What is no thing


@pytest.mark.parametrize("renderer", ["terminal", "svg", "json"])
@pytest.mark.parametrize("name", ["none.onnx", "none.json", "none"])
def test_a_missing_thing_is_an_error(run: Run, tmp_path: Path, name: str, renderer: str) -> None:
    result = run("show", tmp_path / name, "--to", renderer)
    assert result.code in {2, 3}
    assert str(tmp_path / name) in result.error[0]
    assert "defect" not in result.error[1]


@pytest.mark.parametrize("renderer", ["terminal", *RENDERERS, "json"])
def test_a_folder_without_a_cascade_is_an_error(run: Run, tmp_path: Path, renderer: str) -> None:
    result = run("show", tmp_path, "--to", renderer)
    assert (result.code, *result.error) == (
        3,
        f"{tmp_path} has no cascade.json",
        "name the folder or the manifest that `graphcut split` made",
    )


@pytest.mark.parametrize("content", ["", "{}", "[1]", "hello", '{"format": "graphcut.plan/1"}'])
def test_another_json_file_is_an_error(run: Run, tmp_path: Path, content: str) -> None:
    place = tmp_path / "thing.json"
    place.write_text(content, encoding="utf-8")
    result = run("show", place)
    assert result.code == 3
    assert result.error[0].startswith(str(place))
    assert "defect" not in result.error[1]


def test_an_unknown_format_is_misuse(run: Run, house: House) -> None:
    result = run("show", house.model, "--to", "pdf")
    assert result.code == 2
    assert "pdf" in result.error[0]


def test_open_shows_the_page_in_a_browser(
    run: Run, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without -o it is a temporary file, whose path is said; without a browser this is an error."""
    opened: list[str] = []

    def start(address: str) -> bool:
        opened.append(address)
        return len(opened) < 3

    monkeypatch.setattr("webbrowser.open", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("show", house.plan, "--open", "-o", tmp_path / "page.html").code == 0
    result = run("show", house.plan, "--open")
    (page,) = tmp_path.glob("plan-*.html")
    assert result == Result(0, "", f"wrote {page}\n")
    assert opened == [(tmp_path / "page.html").as_uri(), page.as_uri()]
    assert page.read_text(encoding="utf-8") == html_of(house.scene("plan"))
    failed = run("show", house.plan, "--open", "-o", tmp_path / "other.html")
    assert (failed.code, failed.err.splitlines()[1:]) == (
        3,
        ["error: no browser could be started", f" hint: open {tmp_path / 'other.html'} yourself"],
    )
    assert run("show", house.plan, "--open", "--to", "svg").error[0] == "--open shows the page, not svg"
    assert [*tmp_path.glob("plan-*.html")] == [page]


def test_what_compare_found_is_a_layer_of_the_page_alone(run: Run, tmp_path: Path) -> None:
    demos.write("multitask", tmp_path / "m.onnx")
    assert run("compare", "m.onnx", "m.onnx", "-o", "same.json").code == 0
    assert run("show", "m.onnx", "--compare", "same.json", "-o", "m.html").code == 0
    data = (tmp_path / "m.html").read_text().partition('id="data">')[2].partition("<")[0]
    assert b'"title":"error (same.json)"' in zlib.decompress(base64.b64decode(data))
    assert run("show", "m.onnx", "--compare", "same.json", "-o", "m.svg").error[0] == "--compare applies to --to html"
