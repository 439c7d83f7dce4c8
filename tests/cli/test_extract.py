"""`graphcut extract`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from command_line import Run, llm, run

__all__ = ["llm", "run"]


def test_a_layer_is_written_and_its_size_is_said(run: Run, llm: Path, tmp_path: Path) -> None:
    layer = ("--until", "/model/layers.2/add_1", "-o", tmp_path / "layer.onnx")
    start = run("extract", llm, "--from", "/model/layers.1/add_1", *layer)
    assert start.code == 2
    assert start.error[0].startswith("'/model/layers.2/add_1_output_0' also needs 'input_ids'")
    names = start.error[1].rpartition("--from ")[2]
    result = run("extract", llm, "--from", names, *layer)
    assert result.code == 0
    graph = onnx.load(tmp_path / "layer.onnx").graph
    assert ",".join(value.name for value in graph.input) == names
    assert result.err.startswith(f"wrote {tmp_path / 'layer.onnx'}: {len(graph.node)} of ")
    assert result.err.endswith(f"{len(graph.input)} inputs, 1 output\n")


@pytest.mark.parametrize("words", [(), ("--until", "")])
def test_some_tensor_must_be_named(run: Run, llm: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run("extract", llm, "-o", tmp_path / "x.onnx", *words)
    assert (result.code, result.error) == (
        2,
        ("no tensor is named", "give --until, --from or --expose NAMES, or --assume NAME=VALUE"),
    )
