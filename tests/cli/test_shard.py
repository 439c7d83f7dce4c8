"""`graphcut split --ranks`, in one file and in parts: the summary, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphcut
from graphcut.drawing.opening import scene_at

from command_line import Run, llm, run

__all__ = ["llm", "run"]


def test_the_summary_has_axes_weights_and_the_exchanges_of_both_modes(run: Run, llm: Path, tmp_path: Path) -> None:
    dims = "--dim batch=1 --dim seq=1 --dim past=3 --dim total=4"
    result = run("split", llm, "--ranks", 2, "--one-file", "-o", tmp_path / "sharded.onnx", *dims.split())
    assert (result.code, result.err.splitlines()[0]) == (0, f"wrote {tmp_path / 'sharded.onnx'}")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["divided", "units", "nodes", "weights"]
    assert "divided: 100.0% of the weights that nodes multiply by" in result.out
    assert "because of ReduceMean" in result.out
    layers = 3
    exact, sums = lines[-2:]
    # Exact joins four times in a layer and the logits; if a layer has one unit of heads, these are not divided.
    assert exact[:3] == ["exact", "(as", "written)"]
    assert sums[0] == "sum"
    assert int(exact[3]) > int(sums[1]) > layers


def test_quiet_prints_the_path_and_the_sharded_model_is_like_any_other(run: Run, llm: Path, tmp_path: Path) -> None:
    output = tmp_path / "sharded.onnx"
    result = run("split", llm, "--ranks", "2:1:1", "--one-file", "--sum", "-o", output, "-q")
    assert (result.code, result.out, result.err) == (0, f"{output}\n", "")
    assert graphcut.analyze(output).key_nodes


def test_a_sharded_model_is_verified_whatever_its_file_is_called(run: Run, llm: Path, tmp_path: Path) -> None:
    assert run("split", llm, "--ranks", 2, "--one-file", "-o", tmp_path / "sharded", "-q").code == 0
    assert "✓ structure" in run("verify", tmp_path / "sharded", "--structural").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("split --one-file", "--one-file applies to --ranks"),
        (
            "split --ranks 2 --one-file --num-splits 2",
            "--num-splits does not apply to --one-file, which makes no parts",
        ),
        ("split --ranks 3-1", "--ranks 3-1: expected numbers >= 1"),
        ("split --ranks 3:0", "--ranks 3:0: expected numbers >= 1"),
        (
            "split --ranks 2 --max-shard-size 1MB",
            "--max-shard-size does not apply to ranks, each of which is a device with one file of weights",
        ),
        ("split --num-splits 2 --sum", "--sum applies to --ranks or --cluster"),
        ("split --ranks 2 --memory 1MB", "--memory does not apply to --ranks: no budget counts ranks"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(run: Run, llm: Path, words: str, message: str) -> None:
    command, *options = words.split()
    result = run(command, llm, *options)
    assert (result.code, result.err.splitlines()[0]) == (2, f"error: {message}")


def test_split_with_ranks_shows_them_as_rows_and_verify_finds_the_model(run: Run, llm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    assert f"{folder / 'sharded.onnx'}  " in run("split", llm, "--ranks", 2, "-o", folder, "--dry-run").out
    result = run("split", llm, "--ranks", 2, "--num-splits", 2, "-o", folder)
    scene = scene_at(folder)
    sent = [one for one in scene.tensors if {scene.cards[i].rank for i in (one.source, *one.readers)} == {0, 1}]
    assert {one.tensor for one in sent} <= {one.tensor for one in scene.tensors if one.kind == "exchange"}
    assert {one.kind for one in scene.tensors} == {"exchange", "kept"}
    assert " go between ranks." in scene.sentence
    assert len(scene.cuts) == 1  # between the two stages
    assert result.code == 0, result.err
    rows = [line.split()[0] for line in result.out.splitlines() if line.startswith("stage-")]
    assert rows == ["stage-0.rank-0", "stage-0.rank-1", "stage-1.rank-0", "stage-1.rank-1"]
    assert run("verify", folder).out.startswith("✓ the cascade matches the model")
    assert run("verify", folder / "sharded.onnx", "--structural").code == 0
    assert "exchanges" in run("show", folder).out


def test_the_document_has_units_weights_and_the_exchanges_of_both_modes(run: Run, llm: Path, tmp_path: Path) -> None:
    result = run("split", llm, "--ranks", "2:1", "--one-file", "-o", tmp_path / "sharded.onnx", "--json")
    record = json.loads(result.out)
    assert (record["format"], record["shares"], record["mode"]) == ("graphcut.sharding/1", [2, 1], "exact")
    assert all(len(units) == 2 for units in record["units"])
    assert len(record["weights"]) == len(record["units"])
    assert record["exchanges"]["exact"] > record["exchanges"]["sum"]
    assert record["divided_product_bytes"] <= record["product_bytes"]
