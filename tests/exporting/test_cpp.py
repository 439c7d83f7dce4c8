"""Cascades in C++: the exported header, compiled against ONNX Runtime's C++ API, gives what the model gives."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

import graphcut
from graphcut import Into, UsageError, demos
from graphcut.inputs.generating import generate_inputs

from conftest import ROOT
from control_flow import write_model
from hazards import HAZARDS

export_cpp = partial(graphcut.export, to="cpp")

HEADERS = ROOT / ".peers" / "include"
LIBRARY = next((Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.1.*"), None)
COMPILER = shutil.which("g++")
compiled = pytest.mark.skipif(
    COMPILER is None or LIBRARY is None or not HEADERS.exists(),
    reason="needs g++, `source scripts/setup peers`, and an ONNX Runtime whose library is a file of its own",
)
Engine = Callable[[Path, Mapping[str, Any]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """`engine.cpp`, compiled with the header of an export."""
    folder = tmp_path_factory.mktemp("cpp")
    assert COMPILER
    assert LIBRARY
    words = [COMPILER, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", str(Path(__file__).parent / "engine.cpp")]
    words += [f"-I{ROOT / 'graphcut' / 'exporting'}", "-isystem", str(HEADERS), "-o", str(folder / "engine")]
    (folder / "libonnxruntime.so.1").symlink_to(LIBRARY)  # the name by which a program looks for it
    words += [str(LIBRARY), f"-Wl,-rpath,{folder}"]
    subprocess.run(words, check=True)

    def run(cascade: Path, inputs: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        task = {
            name: {
                "type": int(helper.np_dtype_to_tensor_dtype(value.dtype)),
                "dims": value.shape,
                "data": list(value.tobytes()),
            }
            for name, value in inputs.items()
        }
        (folder / "task.json").write_text(json.dumps({"inputs": task}))
        words = [str(folder / "engine"), str(cascade), str(folder / "task.json")]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    return run


@compiled
@pytest.mark.parametrize("name", ["llm", "control-flow"])
def test_a_cascade_in_cpp_gives_the_bits_of_the_model(tmp_path: Path, engine: Engine, name: str) -> None:
    path = tmp_path / "model.onnx"
    write_model(name, path)
    graphcut.split(path, Into(3), tmp_path / "parts")
    export_cpp(tmp_path / "parts", tmp_path / "cpp")
    inputs = {key: np.asarray(value) for key, value in generate_inputs(graphcut.load(path), seed=3).items()}

    done = engine(tmp_path / "cpp", inputs)

    assert not done.stderr
    answer = json.loads(done.stdout)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    assert sorted(answer) == sorted(names)
    for key, value in zip(names, session.run(names, inputs), strict=True):
        found = answer[key]
        dtype = helper.tensor_dtype_to_np_dtype(found["type"])
        array = np.frombuffer(bytes(found["data"]), dtype).reshape(found["dims"])
        np.testing.assert_array_equal(array, value, strict=True)


@compiled
def test_an_input_that_is_missing_is_an_error_in_cpp(tmp_path: Path, engine: Engine) -> None:
    demos.write("unet", tmp_path / "model.onnx")
    graphcut.split(tmp_path / "model.onnx", Into(2), tmp_path / "parts")
    export_cpp(tmp_path / "parts", tmp_path / "cpp")
    done = engine(tmp_path / "cpp", {})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr  # libstdc++ says map::at


@compiled
def test_an_input_with_a_default_may_be_missing_in_cpp(tmp_path: Path, engine: Engine) -> None:
    hazard = HAZARDS["overridable_default_input"]()
    graphcut.split(hazard.write(tmp_path), Into(2), tmp_path / "parts")
    export_cpp(tmp_path / "parts", tmp_path / "cpp")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    for feeds in hazard.ways_to_feed():
        done = engine(tmp_path / "cpp", {name: np.asarray(value) for name, value in feeds.items()})
        assert done.returncode == 0, done.stderr
        expected = session.run(["y"], dict(feeds))[0]
        assert bytes(json.loads(done.stdout)["y"]["data"]) == expected.tobytes()


def test_parts_that_share_weights_are_refused(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "model.onnx", external=True)
    graphcut.split(tmp_path / "model.onnx", Into(2), weights="share")
    with pytest.raises(UsageError, match="share the weights of their model: the folder must hold all"):
        export_cpp(tmp_path / "model.cascade.json", tmp_path / "cpp")
    assert not (tmp_path / "cpp").exists()
