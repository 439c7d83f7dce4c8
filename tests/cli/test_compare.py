"""`graphcut compare`: what changed from one plan or cascade to another, and where two models differ."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console
from test_show import House, house, orphan, run

from graphcut.drawing.changes.differences import changes_between
from graphcut.drawing.json_records import dumps
from graphcut.drawing.terminal.changes import draw_changes
from graphcut.drawing.terminal.screen import screen_on

from command_line import Result, Run

__all__ = ["house", "orphan", "run"]


def test_compare_prints_what_the_functions_return(run: Run, house: House) -> None:
    changes = changes_between(house.scene("plan"), house.scene("cascade"))
    result = run("compare", house.plan, house.cascade)
    assert (result.code, result.err) == (0, "")
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    console.print(draw_changes(changes, screen_on(console)))
    assert isinstance(console.file, io.StringIO)
    assert result.out == console.file.getvalue()
    result = run("compare", house.plan, house.cascade, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out == dumps(changes) + "\n"


def test_changes_are_written_as_json(run: Run, house: House, tmp_path: Path) -> None:
    goal = tmp_path / "changes.json"
    assert run("compare", house.plan, house.cascade, "-o", goal) == Result(0, "", f"wrote {goal}\n")
    assert goal.read_text(encoding="utf-8") == run("compare", house.plan, house.cascade, "--json").out


def test_a_model_is_compared_with_models_alone(run: Run, house: House) -> None:
    command = f"`graphcut verify {house.cascade} --model {house.model}`"
    for words in ((house.model, house.cascade), (house.cascade, house.model)):
        result = run("compare", *words)
        assert (result.code, result.error) == (
            2,
            (f"{house.model} is a model, and {house.cascade} is a cascade", f"{command} compares these two"),
        )
    result = run("compare", house.model, house.plan)
    assert (result.code, result.error) == (
        2,
        (
            f"{house.model} is a model, and {house.plan} is a plan",
            "compare two models, or two plans or cascades of one model",
        ),
    )


def test_options_that_would_do_nothing_are_refused(run: Run, house: House) -> None:
    for words in (
        ("--inputs", "random"),
        ("--seed", 1),
        ("--tolerance", 1),
        ("--ignore", "x"),
        ("--extract", "x"),
        ("--optimize", "all"),
        ("--provider", "X"),
    ):
        result = run("compare", house.plan, house.cascade, *words)
        assert (result.code, result.error[0]) == (2, f"{words[0]} does not apply to plans and cascades")
    result = run("compare", house.model, house.model, "--model", house.model)
    assert (result.code, result.error[0]) == (2, "--model does not apply to models")


def test_two_models_are_compared_and_the_node_that_adds_an_error_is_named(
    run: Run, house: House, tmp_path: Path
) -> None:
    other = onnx.load(house.model)
    weight = next(tensor for tensor in other.graph.initializer if tensor.name == "model.layers.1.mlp.up_proj.weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    path = tmp_path / "other.onnx"
    onnx.save(other, path)
    result = run("compare", house.model, path)
    assert (result.code, result.err) == (1, "")
    node = "/model/layers.1/mlp/up_proj/MatMul"
    assert f"  1. '{node}' in model/layers.1/mlp/up_proj: 40.0 dB by itself" in result.out
    assert "  MatMul: 'model.layers.1.mlp.up_proj.weight' is 1.01 times what it was: differs in " in result.out
    assert "  graph and weights: 1 changed weight\n" in result.out
    as_json = json.loads(run("compare", house.model, path, "--json").out)
    (culprit,) = as_json["culprits"]
    assert (as_json["format"], as_json["same"], culprit["node"]) == ("graphcut.comparison/1", False, node)
    assert culprit["error"] in as_json["errors"]
    assert [change["kind"] for change in as_json["changes"]] == ["weight"]
    assert run("compare", house.model, path, "-o", tmp_path / "found.json").code == 1
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8")) == as_json
    assert run("compare", house.model, path, "--tolerance", 0.5).out.startswith("✓ the models agree: 'logits' has ")
    assert run("compare", house.model, path, "--ignore", "*/up_proj/*").code == 0
    folder = tmp_path / "culprit"
    assert f"wrote {folder}" in run("compare", house.model, path, "--extract", folder).err
    assert {one.name for one in folder.iterdir()} >= {"first.onnx", "second.onnx", "first-inputs.npz"}
    assert run("compare", house.model, house.model, "--optimize", "all", "--tolerance", "1e-4").code == 0
    cpu, absent = ("--provider", "CPUExecutionProvider"), ("--provider", "NoSuchProvider")
    for providers in (absent, (*cpu, *absent), (*absent, *cpu)):
        missing = run("compare", house.model, house.model, *providers)
        assert missing.error[0].startswith(
            "the model is to run with NoSuchProvider: this ONNX Runtime does not have it"
        )
    assert run("compare", house.model, house.model, *cpu, *cpu).code == 0
    assert run("compare", house.model, house.model, *cpu, *cpu, *cpu).error[0] == "--provider is given more than twice"


def test_the_ending_of_the_output_decides_how_two_models_are_drawn(run: Run, house: House, tmp_path: Path) -> None:
    other = onnx.load(house.model)
    next(node for node in other.graph.node if node.op_type == "Sigmoid").op_type = "Tanh"
    onnx.save(other, tmp_path / "other.onnx")
    title = f"{house.model.name} and other.onnx"
    for ending, begin in ((".html", "<!doctype html>"), (".svg", "<svg ")):
        result = run("compare", house.model, tmp_path / "other.onnx", "-o", tmp_path / f"errors{ending}")
        assert (result.code, result.out, result.err) == (1, "", f"wrote {tmp_path / f'errors{ending}'}\n")
        text = (tmp_path / f"errors{ending}").read_text(encoding="utf-8")
        assert text.startswith(begin)
        assert f"<title>{title}" in text
    assert run("compare", house.model, house.model, "-o", tmp_path / "same.html").code == 0
    for words in ((house.plan, house.cascade), (house.model, house.model, "--json")):
        result = run("compare", *words, "-o", tmp_path / "no.html")
        message = f"{tmp_path / 'no.html'}: no format is known by this file name"
        assert (result.code, result.error) == (2, (message, "use .txt or .json"))


def test_both_things_take_the_model_that_is_named(run: Run, house: House, orphan: Path, tmp_path: Path) -> None:
    plan = Path(shutil.copy(house.plan, tmp_path))
    result = run("compare", plan, orphan, "--model", house.model, "--json")
    assert result.code == 0
    assert json.loads(result.out)["nodes"] is not None


def test_a_missing_second_thing_is_an_error(run: Run, house: House, tmp_path: Path) -> None:
    result = run("compare", house.plan, tmp_path / "none.json")
    assert (result.code, result.error[0]) == (3, f"{tmp_path / 'none.json'} does not exist")
