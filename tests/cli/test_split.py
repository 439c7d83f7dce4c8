"""`graphcut split`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import helper

import graphcut
from graphcut.core.arguments import Storage

from command_line import MIDDLE, Run, holdings, llm, own_llm, own_parts, parts, run
from conftest import floats, model_of

__all__ = ["llm", "own_llm", "own_parts", "parts", "run"]


def test_a_dry_run_lists_files_and_writes_nothing(run: Run, own_llm: Path) -> None:
    result = run("split", own_llm, "-n", "--at-nodes", MIDDLE)
    assert result.code == 0
    *files, need = result.out.splitlines()
    names = [Path(line.split("  ")[0]).name for line in files]
    assert names == ["part-0.onnx", "part-0.onnx.data", "part-1.onnx", "part-1.onnx.data", "cascade.json"]
    assert re.fullmatch(r"[\d.]+ KiB would be written; this was a dry run", need)
    assert holdings(own_llm.parent) == {"llm.onnx"}


def test_own_cuts_are_put_on_devices(run: Run, own_llm: Path) -> None:
    at, plan = "/model/layers.0/add_1,/model/layers.1/add_1", own_llm.with_name("plan.json")
    for source in (("--at-nodes", at, "--device", "a,b,a"), ("--plan", plan)):
        found = json.loads(run("split", own_llm, *source, "-f", "--json").out)["manifest"]
        assert [part["device"] for part in found["parts"]] == ["a", "b", "a"]
        assert [device["name"] for device in found["devices"]] == ["a", "b"]
        assert run("plan", own_llm, "--at-nodes", at, "-o", plan, "-f").code == 0
        planned = json.loads(plan.read_text("utf-8"))
        for part, name in zip(planned["parts"], "aba", strict=True):
            part["device"] = {"name": name}
        plan.write_text(json.dumps(planned), "utf-8")
    error = run("split", own_llm, "--at-nodes", at, "--device", "a,b").error
    assert error[0] == "--device names 2 devices for 3 parts"
    for given, number in (("a,,b", 2), ("a, b,b,", 4)):
        error = run("split", own_llm, "--at-nodes", at, "--device", given).error
        assert error[0] == f"--device {given.replace(' ', '')}: name {number} is empty"


def test_quiet_prints_only_the_manifest(run: Run, own_llm: Path) -> None:
    result = run("split", own_llm, "-q", "--at-nodes", MIDDLE)
    assert (result.code, result.out, result.err) == (0, "llm.parts/cascade.json\n", "")


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_outputs_are_in_the_current_folder_by_default_and_beside_a_model_whose_weights_they_share(
    run: Run, llm: Path, tmp_path: Path, weights: Storage
) -> None:
    """From the command and from the library alike."""
    path = tmp_path / "models" / "llm.onnx"
    path.parent.mkdir()
    shutil.copy(llm, path)
    folder = path.parent if weights == "share" else Path()
    manifest = folder / ("llm.cascade.json" if weights == "share" else "llm.parts/cascade.json")
    assert run("split", path, "-q", "--at-nodes", MIDDLE, "--weights", weights).out == f"{manifest}\n"
    assert graphcut.split(path, graphcut.At((MIDDLE,)), weights=weights).path == manifest
    assert run("split", path, "-qf", "--ranks", 2, "--weights", weights).out == f"{manifest}\n"
    assert graphcut.split_by_rank(path, ranks=2, weights=weights).path == manifest
    sharded = folder / "llm.sharded.onnx"
    assert run("split", path, "-qf", "--ranks", 2, "--one-file", "--weights", weights).out == f"{sharded}\n"
    assert graphcut.shard(path, ranks=2, weights=weights, force=True).path == sharded


@pytest.mark.parametrize(
    "names",
    [
        ("--at-nodes", "/model/layers.0/add_1,/model/layers.1/add_1"),
        ("--at-nodes", " /model/layers.1/add_1 , /model/layers.0/add_1,"),
        ("--at-nodes", "/model/layers.1/add_1", "--at-nodes", "/model/layers.0/add_1"),
        ("--at-nodes", "/model/layers.[01]/add_1"),
    ],
)
def test_names_come_with_commas_or_one_by_one_or_as_globs(run: Run, own_llm: Path, names: Sequence[str]) -> None:
    found = json.loads(run("split", own_llm, *names, "--json").out)["manifest"]
    assert [part["writes"][0] for part in found["parts"]][:2] != []
    assert len(found["parts"]) == 3


def test_shared_parts_are_named_by_their_manifest(run: Run, own_llm: Path) -> None:
    result = run("split", own_llm, "--at-nodes", MIDDLE, "--weights", "share")
    assert result.err.splitlines()[-1] == f"next: graphcut verify {own_llm.with_name('llm.cascade.json')}"
    assert run("verify", own_llm.with_name("llm.cascade.json"), "--structural").code == 0
    lost = run("show", own_llm.parent)
    assert (lost.code, lost.error[0].partition("; ")[2]) == (
        3,
        f"did you mean {own_llm.with_name('llm.cascade.json')}?",
    )


def test_an_existing_cascade_is_replaced_only_with_force(run: Run, own_llm: Path, own_parts: Path) -> None:
    again = run("split", own_llm, "--at-nodes", MIDDLE)
    assert (again.code, f"note: {own_parts.name} had these files already" in again.err.splitlines()) == (0, True)
    other = "split", own_llm, "--at-nodes", "/model/layers.0/add_1"
    result = run(*other)
    assert (result.code, result.error[0]) == (2, f"{own_parts.name} already exists")
    assert "or add --force" in result.error[1]
    replaced = run(*other, "-f")
    assert (replaced.code, "had these files already" in replaced.err) == (0, False)


def test_what_a_killed_split_left_is_removed_with_a_note(run: Run, own_llm: Path) -> None:
    left = own_llm.parent / ".llm.parts.tmp-graphcut"
    for quiet in ((), ("--quiet",)):
        (left / "files" / "new").mkdir(parents=True)
        result = run("split", own_llm, "--at-nodes", MIDDLE, "--force", *quiet)
        note = f"note: removed {left}, which a killed run had left"
        assert (result.code, note in result.err.splitlines()) == (0, not quiet)
        assert not left.exists()


def test_a_name_with_a_comma_can_be_cut_at(run: Run, tmp_path: Path) -> None:
    """In quotes, as the command's own `next:` line would have to write it."""
    onnx.save(
        model_of(
            [helper.make_node("Relu", ["x"], ["a"], name="a,b"), helper.make_node("Neg", ["a"], ["y"], name="c")],
            [floats("x", 2)],
            [floats("y", 2)],
        ),
        tmp_path / "m.onnx",
    )
    assert run("split", tmp_path / "m.onnx", "--at-nodes", '"a,b"').code == 0
