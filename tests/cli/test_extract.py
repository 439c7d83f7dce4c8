"""`graphcut extract`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from command_line import Run, llm, run
from conftest import floats, model_of

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


def test_an_input_has_the_value_that_is_assumed(run: Run, tmp_path: Path) -> None:
    ends = {name: helper.make_tensor_value_info(name, kind, []) for name, kind in TYPES.items()}
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [floats("z")]) for op in ("Neg", "Abs")
    )
    chosen = helper.make_node("If", ["flag"], ["c"], then_branch=then, else_branch=other)
    nodes = [chosen, helper.make_node("Neg", ["n"], ["m"]), helper.make_node("Add", ["c", "s"], ["y"])]
    model = model_of(
        nodes,
        [ends["flag"], ends["n"], ends["s"], floats("x")],
        [floats("y"), helper.make_tensor_value_info("m", TensorProto.INT64, [])],
    )
    onnx.save(model, tmp_path / "m.onnx")
    for flag, expected in (("true", -2 + 0.25), ("false", 2 + 0.25)):
        words = (
            "--assume",
            f"flag={flag}",
            "--assume",
            f"n=-{LARGE}",
            "--assume",
            "s=2.5e-1",
            "-o",
            tmp_path / "own.onnx",
        )
        assert run("extract", tmp_path / "m.onnx", *words, "--force").code == 0
        session = ort.InferenceSession(tmp_path / "own.onnx")
        assert [value.name for value in session.get_inputs()] == ["x"]
        assert session.run(None, {"x": np.array(2, np.float32)}) == [expected, LARGE]
    for text, more in (("flag", ""), ("flag=maybe", " with true, false or a number")):
        refused = run("extract", tmp_path / "m.onnx", "--assume", text, "-o", tmp_path / "no.onnx")
        assert refused.error == (
            f"--assume {text}: expected NAME=VALUE{more}",
            "for example --assume use_cache_branch=true",
        )


LARGE = (1 << 53) + 1  #: which float64 does not have.
TYPES = {"flag": TensorProto.BOOL, "n": TensorProto.INT64, "s": TensorProto.FLOAT}
