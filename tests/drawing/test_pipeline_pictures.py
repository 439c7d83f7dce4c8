"""Pictures of pipelines of models: which models a part holds, when it runs, and where the steps begin again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import graphcut
from graphcut import Into
from graphcut.drawing.dot import dot_of
from graphcut.drawing.html import html_of
from graphcut.drawing.mermaid import mermaid_of
from graphcut.drawing.opening import scene_at
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan
from graphcut.drawing.svg.document import svg_of

from cases import each
from families import FAMILIES
from scenes_by_hand import data_of, pipeline

MODELS = {"diffusion": ["text", "unet", "vae"], "whisper": ["encoder", "keys", "decoder"]}
RUNS = {"diffusion": ["once", "each of 4 steps", "at the end"], "whisper": ["once", "each step"]}


def written(name: str, folder: Path) -> Path:
    FAMILIES[name].write(folder / name)
    if name == "diffusion":
        shutil.copy(Path(__file__).parent.parent / "families" / "diffusion.toml", folder / name / "pipeline.toml")
    return folder / name


def runs(scene: Scene) -> list[str]:
    return [card.runs for card in scene.cards]


@each("name", MODELS)
def test_each_part_says_which_models_it_holds_and_when_it_runs(name: str, tmp_path: Path) -> None:
    analysis = graphcut.analyze(graphcut.load(written(name, tmp_path)))
    plan = graphcut.plan(analysis, Into(4))
    planned = scene_of_plan(plan, analysis)
    cascade = graphcut.split(analysis.model, plan, tmp_path / "parts")
    shown = scene_at(cascade.root)
    for scene in (planned, shown):
        assert scene.title == name
        assert list(dict.fromkeys(runs(scene))) == RUNS[name]
        held = [card.content.partition(":")[0].split(", ") for card in scene.cards]
        assert list(dict.fromkeys(model for models in held for model in models)) == MODELS[name]
        for models, part in zip(held, plan.parts, strict=True):
            wrote = [analysis.model.graph.nodes[node].writes[0] for node in part]
            assert models == list(dict.fromkeys(analysis.model.labels[one] for one in wrote))
    shutil.rmtree(tmp_path / name)
    assert runs(scene_at(cascade.root)) == runs(planned), "without the models too"


def test_a_part_that_runs_too_often_is_named_and_a_cut_is_proposed_of_the_folder(tmp_path: Path) -> None:
    folder = written("whisper", tmp_path)
    analysis = graphcut.analyze(graphcut.load(folder))
    whole, cut = (scene_of_plan(graphcut.plan(analysis, Into(number)), analysis).notes for number in (1, 2))
    assert "all of p0 runs at each step, also what could run once: allow more parts" in whole
    assert not [note for note in cut if "at each step" in note]
    assert scene_of_analysis(analysis).next_command.startswith(f"graphcut split {folder} --at-nodes ")


def test_a_model_alone_has_no_phases(tmp_path: Path) -> None:
    written("diffusion", tmp_path)
    file = tmp_path / "diffusion" / "unet" / "model.onnx"
    scene = scene_at(graphcut.split(file, Into(2), tmp_path / "parts").root)
    assert runs(scene) == ["", ""]
    assert "next step" not in dot_of(scene) + mermaid_of(scene)


def test_an_edge_goes_back_from_the_last_part_of_each_step_to_the_first() -> None:
    dot, mermaid = dot_of(pipeline(3)), mermaid_of(pipeline(3))
    assert '  p4 -> p2 [label="next step" style=dotted constraint=false]' in dot
    assert '  p4 -.->|"next step"| p2' in mermaid
    for text in (dot, mermaid):
        groups = re.findall(r'(?:label=|d\d\[)"([^"]*)"\]?\n((?: {4}p\d.*\n)+)', text)
        held = {name: re.findall(r"^    (p\d)", lines, re.MULTILINE) for name, lines in groups}
        assert held == {"once": ["p0", "p1"], "each of 4 steps": ["p2", "p3", "p4"], "at the end": ["p5"]}
    last = re.findall(r"linkStyle ([\d,]*)", mermaid)
    assert len(re.findall(r"(?m)^  \w+ -", mermaid)) == 1 + len(",".join(last).split(",")), (
        "the edge back has no colour"
    )


@each("steps", [1, 3])
def test_the_svg_has_a_line_around_each_phase_and_an_arrow_at_the_first_part_of_the_loop(steps: int) -> None:
    around = re.findall(r'<g class="muted"><path class="wire" [^>]*/>(<path class="tip")?', svg_of(pipeline(steps)))
    assert [bool(head) for head in around] == [False, True, False]


def test_the_page_says_it_beside_the_models() -> None:
    cards = data_of(html_of(pipeline(1)))["cards"]
    models = [("text", "once"), ("text", "once"), ("unet", "each of 4 steps"), ("vae: up, out", "at the end")]
    assert [(card["content"], card["runs"]) for card in cards] == models


def test_parts_of_a_later_phase_are_deeper(tmp_path: Path) -> None:
    """The part that embeds tokens reads nothing of the encoder, but runs after it."""
    folder = FAMILIES["whisper"].write(tmp_path)
    model = graphcut.load(folder)
    scene = scene_at(graphcut.split(model, Into(6), tmp_path / "parts").root)
    once, later = ([card.depth for card in scene.cards if card.runs == one] for one in ("once", "each step"))
    assert max(once) < min(later)


def test_a_folder_of_models_is_shown_like_a_model(tmp_path: Path) -> None:
    assert scene_at(written("whisper", tmp_path)).title == "whisper"
