"""Nothing that comes from a file reaches a terminal unescaped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Into
from graphcut.core.text import LONGEST, printable, shell_word
from graphcut.running.npz_files import save_outputs

from cases import each
from command_line import SCRIPT, Result, Run, environment, run
from conftest import ORT_VERSION, floats, model_of

__all__ = ["run"]

HOSTILE = "\x1b[31m\x1b]0;title\x07\n\r\t\x9b2J\u202e\u2028\x7f'\\end"
"""Colours, a title for the terminal, line ends, a control sequence in one character, text from right to left."""


def hostile(name: str) -> str:
    return name + HOSTILE


def hostile_model(more: str = HOSTILE) -> ModelProto:
    """A model with two layers and a symbolic size; every text in it is hostile."""

    def n(name: str) -> str:
        return name + more

    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), n("w"))
    nodes = [
        helper.make_node("MatMul", [n("x"), n("w")], [n("a")], name=n("layer.0"), doc_string=n("")),
        helper.make_node("Relu", [n("a")], [n("b")], name=n("/block.0/relu")),
        helper.make_node("MatMul", [n("b"), n("w")], [n("c")], name=n("/block.1/matmul")),
        helper.make_node("Add", [n("c"), n("a")], [n("y")], name=n("/block.1/add")),
        helper.make_node("Relu", [n("x")], [n("unread")], name=n("dropped")),
    ]
    model = model_of(nodes, [floats(n("x"), n("batch"), 4)], [floats(n("y"), n("batch"), 4)], [weight])
    for node in model.graph.node:
        node.metadata_props.add(key="namespace", value=n("Model/layers.0: Layer/"))
    model.producer_name = model.doc_string = model.graph.name = model.graph.doc_string = n("text")
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, a plan, its cascade, two damaged cascades, and inputs that don't fit."""
    home = tmp_path_factory.mktemp("hostile")
    model = hostile_model()
    onnx.save(model, home / "m.onnx")
    loaded = graphcut.load(home / "m.onnx")
    plan = graphcut.plan(loaded, Into(2))
    graphcut.save_plan(plan, loaded, home / "plan.json")
    graphcut.split(home / "m.onnx", plan, home / "parts")
    model.graph.initializer[0].raw_data = bytes(64)
    onnx.save(model, home / "other.onnx")
    shutil.copytree(home / "parts", home / "retyped")
    manifest = json.loads((home / "parts/cascade.json").read_text())
    manifest["tensors"][0]["dtype"] = hostile("float")
    (home / "retyped/cascade.json").write_text(json.dumps(manifest))
    save_outputs({hostile("z"): np.zeros(2, np.float32)}, home / "unknown.npz")
    save_outputs({hostile("x"): np.zeros((1, 9), np.float32)}, home / "wrong.npz")
    (home / "cluster.toml").write_text(f"[[devices]]\nname = {json.dumps(hostile('phone'))}\nmemory_bytes = '1GB'\n")
    (home / "costs.csv").write_text(hostile("a") + ",b\n1,2\n")
    return home


@pytest.fixture
def home(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - it goes elsewhere first
    monkeypatch.chdir(folder)
    return folder


def raw_in(result: Result) -> set[str]:
    """The characters of an output that a terminal may obey."""
    text = result.out + result.err
    return {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"}} - {"\n"}


COMMANDS = {
    "analyze m.onnx": 0,
    "analyze m.onnx --cuts": 0,
    "analyze m.onnx --json": 0,
    "analyze m.onnx --dim none=1": 2,
    "plan m.onnx --num-splits 2": 0,
    "plan m.onnx --num-splits 2 --json": 0,
    "plan m.onnx --memory 1B": 4,
    "plan m.onnx --at-nodes none": 2,
    "plan m.onnx --cluster cluster.toml": 0,
    "plan m.onnx --num-splits 2 --cost-model costs.csv": 3,
    "split m.onnx --num-splits 2 -o dry --dry-run": 0,
    "split m.onnx --num-splits 2 -o new": 0,
    "verify parts": 0,
    "verify parts --json": 0,
    "verify parts --model other.onnx": 3,
    "verify retyped": 3,
    "show parts": 0,
    "show parts --to json": 0,
    "show m.onnx --to svg": 0,
    "show parts --to dot": 0,
    "show parts --to mermaid": 0,
    "show parts --to html": 0,
    "compare plan.json parts": 0,
    "run parts --inputs random -o y.npz": 0,
    "run parts --inputs unknown.npz -o z.npz": 2,
    "run parts --inputs wrong.npz -o z.npz": 2,
    "run retyped --inputs random -o z.npz": 3,
    "generate parts --prompt-ids 1": 3,
    "simulate plan.json --cluster cluster.toml": 0,
    "merge parts -o merged.onnx": 0,
    "split m.onnx --ranks 2 --one-file -o sharded.onnx": 2,
    # Profiles of earlier versions have such characters as they are, and are no JSON.
    "measure m.onnx -o new.csv": 0 if ORT_VERSION >= (1, 32) else 3,
    "bench parts --rounds 1 --way parts": 0,
}


@each("words", COMMANDS)
@pytest.mark.usefixtures("home")
def test_no_command_prints_a_control_character(run: Run, words: str) -> None:
    result = run(*words.split())
    tabs = {"\t"} if "--cuts" in words else set()  # between columns
    assert (result.code, raw_in(result)) == (COMMANDS[words], tabs)


@pytest.mark.usefixtures("home")
def test_names_in_a_list_of_cut_points_hold_no_separator(run: Run) -> None:
    lines = run("analyze", "m.onnx", "--cuts").out.splitlines()
    assert {len(line.split("\t")) for line in lines} == {8}
    assert lines[1].split("\t")[0] == printable(hostile("layer.0"))


@pytest.mark.usefixtures("home")
def test_json_holds_the_names_as_they_are(run: Run) -> None:
    assert json.loads(run("analyze", "m.onnx", "--json").out)["cut_points"][0]["node"] == hostile("layer.0")


@pytest.mark.usefixtures("home")
def test_the_suggested_command_works_in_a_shell(run: Run) -> None:
    suggested = run("analyze", "m.onnx").err.splitlines()[-1].removeprefix("next: graphcut ")
    command = f"{shell_word(str(SCRIPT))} {suggested} -o suggested"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "next: graphcut verify suggested")


@each("text", ["plain", "a b", "it's", "\x1b'\\", "\n", "größe\x9b", "\udcff\t", "-", "\U0001f600\u202e"])
def test_a_quoted_word_is_the_same_word_to_a_shell(text: str) -> None:
    word = shell_word(text)
    assert word.isprintable()
    done = subprocess.run(["/bin/bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(text)


def test_no_command_is_suggested_for_a_name_that_no_command_can_have(run: Run, tmp_path: Path) -> None:
    onnx.save(hostile_model("\0"), tmp_path / "m.onnx")
    result = run("analyze", tmp_path / "m.onnx")
    assert (result.code, result.err, raw_in(result)) == (0, "", set())
    result = run("split", tmp_path / "m.onnx", "--num-splits", 2)
    assert (result.code, raw_in(result)) == (0, set())


def test_a_name_of_100_000_letters_is_shortened(run: Run, tmp_path: Path) -> None:
    onnx.save(hostile_model("n" * 100_000), tmp_path / "m.onnx")
    for words in (("analyze",), ("plan", "--memory", "1B"), ("plan", "--num-splits", "2"), ("analyze", "--dim", "a=1")):
        result = run(words[0], tmp_path / "m.onnx", *words[1:])
        assert result.code in {0, 2, 4}
        assert max(map(len, (result.out + result.err).splitlines())) <= 2 * LONGEST
