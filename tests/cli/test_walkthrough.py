"""The commands that a new user runs, one after another, in processes of their own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphcut

from command_line import (
    MIDDLE,
    SMALL,
    Result,
    Run,
    command,
    holdings,
    llm,
    own_llm,
    own_parts,
    parts,
    run,
)

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Result]:
    """Every command in turn, in one folder."""
    home = tmp_path_factory.mktemp("walk")
    options = {"heads": "attention-heads"}
    sizes = [w for name, n in SMALL.items() for w in (f"--{options.get(name, name.replace('_', '-'))}", n)]
    inputs: dict[str, Any] = {
        "input_ids": np.array([[1, 2, 3]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.array([[0, 1, 2]]),
        **{
            f"past_key_values.{layer}.{kind}": np.zeros((1, 1, 0, 8), np.float32)
            for layer in range(3)
            for kind in ("key", "value")
        },
    }
    np.savez(home / "inputs.npz", **inputs)
    steps: Mapping[str, Sequence[object]] = {
        "demo": ("demo", "llm", "-o", "llm.onnx", *sizes),
        "analyze": ("analyze", "llm.onnx"),
        "split": ("split", "llm.onnx", "--at-nodes", MIDDLE),
        "show": ("show", "llm.parts"),
        "verify": ("verify", "llm.parts", "--inputs", "inputs.npz"),
        "merge": ("merge", "llm.parts", "-o", "whole.onnx"),
        "run": ("run", "llm.parts", "--inputs", "inputs.npz", "-o", "outputs.npz"),
    }
    return {name: command(*words, cwd=home) for name, words in steps.items()}


def test_every_command_succeeds(walk: Mapping[str, Result]) -> None:
    assert {name: result.code for name, result in walk.items() if result.code} == {}


def test_stdout_holds_results_and_stderr_the_rest(walk: Mapping[str, Result]) -> None:
    assert [name for name, result in walk.items() if result.out] == ["analyze", "split", "show", "verify"]
    assert [name for name, result in walk.items() if result.err] == ["demo", "analyze", "split", "show", "merge", "run"]
    assert walk["demo"].err == "wrote llm.onnx\nnext: graphcut analyze llm.onnx\n"
    files = ["part-0.onnx.data", "part-0.onnx", "part-1.onnx.data", "part-1.onnx"]
    assert walk["split"].err.splitlines() == [
        *(f"writing {file}" for file in files),
        "next: graphcut verify llm.parts",
    ]
    tensors = [[line for line in walk[name].out.splitlines() if "■" in line] for name in ("split", "show")]
    assert tensors[0] == tensors[1] != []
    assert walk["merge"].err == "wrote whole.onnx: its graph equals that of the original model\n"
    assert walk["run"].err.splitlines()[0] == "logits  float32[1, 3, 32]"
    assert walk["run"].err.splitlines()[-1] == "wrote outputs.npz"


def test_a_result_names_what_to_do_next_on_stderr(walk: Mapping[str, Result]) -> None:
    """So that whoever pipes a result gets the result alone."""
    assert [name for name, result in walk.items() if "next: " in result.out] == []


def test_verifying_says_so_in_its_first_line(walk: Mapping[str, Result]) -> None:
    assert (
        walk["verify"].out.splitlines()[0] == "✓ the cascade matches the model: same structure, runs are bit-identical"
    )
    assert "✓ structure: " in walk["verify"].out
    assert "✓ numbers: 1 run, " in walk["verify"].out


def test_analyzing_fits_on_one_screen(walk: Mapping[str, Result]) -> None:
    assert len(walk["analyze"].out.splitlines()) <= 40
    assert "3 \u00d7 layer, embedding before, norm and head after" in walk["analyze"].out


def test_pipes_get_no_colour_and_whole_numbers(walk: Mapping[str, Result]) -> None:
    for result in walk.values():
        assert "\x1b" not in result.out + result.err
        assert not re.search(r"\d…", result.out)


def next_command(result: Result) -> list[str]:
    (line,) = (line for line in (result.out + result.err).splitlines() if line.startswith("next: "))
    return shlex.split(line.removeprefix("next: "))


def test_the_next_command_can_be_copied(run: Run, own_llm: Path) -> None:
    """From demo to analyze to split to verify, in a folder with a space and a long name, whatever the width."""
    home = own_llm.parent / "my models" / ("very-long-name-" * 10)
    home.mkdir(parents=True)
    model = Path(shutil.move(own_llm, home / "my llm.onnx"))
    words = ["analyze", str(model)]
    for name in ("split", "verify"):
        result = run(*words)
        assert result.code == 0, result.err
        program, *words = next_command(result)
        assert (program, words[0]) == ("graphcut", name)
    assert run(*words).code == 0


SCHEMAS = {
    "analyze": "graphcut.analysis/1",
    "split": "graphcut.view/1",
    "show": "graphcut.view/1",
    "verify": "graphcut.report/1",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_is_json_with_a_schema(run: Run, own_llm: Path, own_parts: Path, name: str) -> None:
    words: Mapping[str, Sequence[object]] = {
        "analyze": (own_llm,),
        "split": (own_llm, "--at-nodes", MIDDLE, "--force"),
        "show": (own_parts,),
        "verify": (own_parts,),
    }
    result = run(name, *words[name], *(("--to", "json") if name == "show" else ("--json",)))
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["format"] == SCHEMAS[name]


def test_the_json_of_an_analysis_holds_everything(run: Run, llm: Path) -> None:
    found = json.loads(run("analyze", llm, "--json").out)
    analysis = graphcut.analyze(graphcut.load(llm))
    graph = analysis.model.graph
    assert found["key_nodes"] == [graph.nodes[i].name for i in analysis.key_nodes]
    assert found["profile_bytes"] == list(analysis.profile)
    assert len(found["cut_points"]) == len(analysis.cut_points)
    assert sum(len(segment["nodes"]) for segment in found["segments"]) == found["flowing_nodes"] == len(graph.flow)
    assert len(found["repeat"]["blocks"]) == 3
    residual = analysis.segments.wiring.residual
    assert found["residual"] == {
        str(source): {str(target): list(names) for target, names in row.items()} for source, row in residual.items()
    }


def test_a_dry_run_as_json_says_what_split_writes(run: Run, own_llm: Path) -> None:
    result = run("split", own_llm, "--at-nodes", MIDDLE, "--dry-run", "--json")
    said = json.loads(result.out)
    assert said["format"] == "graphcut.view/1"
    assert holdings(own_llm.parent) == {"llm.onnx"}
    made = json.loads(run("split", own_llm, "--at-nodes", MIDDLE, "--json").out)
    folder = Path(made["cascade"]).parent
    assert said["would_write"] == {file: (folder / file).stat().st_size for file in holdings(folder) - {"cascade.json"}}
    for part in made["manifest"]["parts"]:
        for data in part["data"].values():
            data["digest"] = None
    assert said == {**made, "would_write": said["would_write"]}
