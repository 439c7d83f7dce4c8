"""Commands with a pipeline of models, or its cascade: what counts what runs once, and what can't be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import graphcut
from graphcut import Into

from cases import each
from command_line import Run, run
from families import FAMILIES

__all__ = ["run"]

CLUSTER = "".join(f'[[devices]]\nname = "{name}"\nflops_per_s = 1e9\n' for name in "abc")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Diffusion-like models with four steps, and their cascade: two parts run once, one each step, one at the end."""
    home = tmp_path_factory.mktemp("home")
    FAMILIES["diffusion"].write(home / "drawing")
    shutil.copy(Path(__file__).parent.parent / "families" / "diffusion.toml", home / "drawing" / "pipeline.toml")
    cascade = graphcut.split(home / "drawing", Into(4), home / "parts")
    assert cascade.phases == (0, 0, 1, 2)
    (home / "cluster.toml").write_text(CLUSTER)
    return home


def test_simulated_requests_are_steps_and_what_runs_once_is_not_counted_in_them(run: Run, home: Path) -> None:
    words = ("simulate", home / "parts", "--cluster", home / "cluster.toml", "--requests", 7)
    found = json.loads(run(*words, "--json").out)
    assert found["done"] == [0, 1, 3]
    assert [device["steps"] for device in found["devices"]] == [0, 0, 7], "the third device has both other parts"
    assert found["answered"] == 7
    assert "a request is one step; part 0, part 1, part 3 run once for all steps" in run(*words).out


def test_a_folder_of_models_becomes_a_file_that_says_when_each_runs(run: Run, tmp_path: Path) -> None:
    folder = FAMILIES["whisper"].write(tmp_path / "whisper")
    output = folder / "pipeline.toml"
    told = run("merge", folder, "-o", output)
    assert (told.code, told.out) == (0, "")
    assert told.err == f"wrote {output}: encoder (once), keys (once), decoder (each step)\n"
    assert run("analyze", output, "-q").code == 0


def test_a_model_alone_is_simulated_as_before(run: Run, home: Path) -> None:
    file = home / "drawing" / "unet" / "model.onnx"
    graphcut.split(file, Into(2), home / "alone")
    found = json.loads(run("simulate", home / "alone", "--cluster", home / "cluster.toml", "--json").out)
    assert found["done"] == []


@each(
    ("words", "message"),
    [
        (("auto", "drawing", "--num-splits", 2, "--precision", "fp16", "-o", "x"), "drawing is a pipeline of models"),
        (("bench", "parts"), "drawing/pipeline.toml is a pipeline of models"),
        *(
            (("export", "parts", "--to", to, "-o", "x"), f"what {to} writes runs each part once")
            for to in ("cpp", "js")
        ),
        (("split", "drawing", "--ranks", 2, "-o", "x"), "drawing has 4 steps, and ranks run no loop"),
        (("simulate", "drawing"), "drawing is a model that is not cut"),
        (("analyze", "drawing", "--dim", "q=1"), "drawing has no symbolic dimension 'q'"),
        (("compare", "drawing", "drawing/unet/model.onnx"), "no input of drawing can be compared with"),
    ],
)
def test_what_can_not_be_is_one_line(
    words: tuple[object, ...], message: str, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    result = run(*words)
    error, hint = result.err.splitlines()[-2:]
    assert message in error
    assert error.startswith("error: ")
    assert hint.startswith(" hint: ")
    assert not (home / "x").exists()


def test_parts_are_fetched_and_checked_like_those_of_a_model(run: Run, home: Path, tmp_path: Path) -> None:
    assert run("fetch", home / "parts", "-o", tmp_path / "copy").code == 0
    assert run("verify", tmp_path / "copy", "--files").code == 0
    inputs = FAMILIES["diffusion"].inputs(0)
    found = (graphcut.run(folder, inputs)["vae/sample"] for folder in (home / "parts", tmp_path / "copy"))
    assert next(found).tobytes() == next(found).tobytes()


def test_a_plan_finds_the_models_that_an_exporter_left_without_a_pipeline_file(run: Run, tmp_path: Path) -> None:
    FAMILIES["t5"].write(tmp_path / "t5")
    assert run("plan", tmp_path / "t5", "--num-splits", 2, "-o", tmp_path / "plan.json").code == 0
    assert run("show", tmp_path / "plan.json").out.startswith("t5  ")


def test_one_file_made_of_a_pipeline_is_said_to_know_no_steps(run: Run, home: Path, tmp_path: Path) -> None:
    words = "does not say what runs once and what at each step"
    assert words in run("merge", home / "parts", "-o", tmp_path / "whole.onnx").err
    assert words in run("extract", home / "drawing", "--until", "out_sample", "-o", tmp_path / "step.onnx").err
