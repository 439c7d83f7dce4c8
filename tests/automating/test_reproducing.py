"""`write_reproducer` writes the nodes that a comparison names, to be run by ONNX Runtime alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import UsageError

from conftest import floats, model_of


def network(factor: float) -> ModelProto:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), f"w{i}") for i in range(2)]
    weights[1] = numpy_helper.from_array(numpy_helper.to_array(weights[1]) * np.float32(factor), "w1")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "n0"),
        helper.make_node("Cast", ["a"], ["half"], "n1", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["b"], "n2", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["b", "w1"], ["c"], "n3"),
        helper.make_node("Tanh", ["c"], ["y"], "n4"),
    ]
    return model_of(nodes, [floats("x", 2, 4)], [floats("y", 2, 4)], weights)


def test_both_sides_of_the_culprit_are_written_with_inputs_and_outputs(tmp_path: Path) -> None:
    first, second, folder = network(1), network(1.5), tmp_path / "culprit"
    found = graphcut.compare_models(first, second)
    assert [one.node for one in found.culprits] == ["n3"]
    graphcut.write_reproducer(first, second, found, folder)
    outputs = {}
    for side in ("first", "second"):
        session = ort.InferenceSession(folder / f"{side}.onnx")
        feeds, expected = (dict(np.load(folder / f"{side}-{what}.npz")) for what in ("inputs", "outputs"))
        assert [*feeds] == ["b"]
        assert [node.op for node in graphcut.load(folder / f"{side}.onnx").graph.nodes] == ["MatMul"]
        (outputs[side],) = session.run(["c"], feeds)
        np.testing.assert_allclose(outputs[side], expected["c"], rtol=1e-6)
    np.testing.assert_allclose(outputs["second"], outputs["first"] * 1.5, rtol=1e-5)
    with pytest.raises(UsageError, match="already exists"):
        graphcut.write_reproducer(first, second, found, folder)
    graphcut.write_reproducer(first, second, found, folder, force=True)


def test_without_a_culprit_nothing_is_written(tmp_path: Path) -> None:
    found = graphcut.compare_models(network(1), network(1))
    with pytest.raises(UsageError, match="no node adds an error"):
        graphcut.write_reproducer(network(1), network(1), found, tmp_path / "culprit")
    assert not (tmp_path / "culprit").exists()
