"""Model repositories for Triton Inference Server, read with the schema of its client."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google import protobuf
from google.protobuf import text_format
from onnx import TensorProto, helper

import graphcut
from graphcut import Across, At, Cascade, Cluster, Device, Into, Limits, UsageError
from graphcut.inputs.generating import generate_inputs

from conftest import FIXTURES, ROOT, floats, model_of

export_triton = partial(graphcut.export, to="triton")

SCHEMA = ROOT / ".peers" / "tritonclient" / "grpc" / "model_config_pb2.py"
reads_schema = pytest.mark.skipif(
    not SCHEMA.exists() or int(protobuf.__version__.split(".")[0]) < 6,
    reason="needs tritonclient (`source scripts/setup peers`), which needs protobuf 6",
)


def configs(folder: Path) -> dict[str, Any]:
    """The configuration of each model in a repository, as Triton's client reads it."""
    spec = importlib.util.spec_from_file_location("model_config_pb2", SCHEMA)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)
    files = sorted(folder.glob("*/config.pbtxt"))
    return {file.parent.name: text_format.Parse(file.read_text(), schema.ModelConfig()) for file in files}


def run_ensemble(folder: Path, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What an ensemble computes, by its steps alone, with ONNX Runtime in the place of Triton's backend."""
    read = configs(folder)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    known = dict(values)
    for step in read[name].ensemble_scheduling.step:
        session = ort.InferenceSession(folder / step.model_name / "1" / "model.onnx", options)
        config = read[step.model_name]
        assert [tensor.name for tensor in config.input] == [tensor.name for tensor in session.get_inputs()]
        outputs = [tensor.name for tensor in config.output]
        assert outputs == [tensor.name for tensor in session.get_outputs()]
        found = session.run(outputs, {inner: known[outer] for inner, outer in step.input_map.items()})
        known |= {step.output_map[inner]: value for inner, value in zip(outputs, found, strict=True)}
    return {tensor.name: known[tensor.name] for tensor in read[name].output}


def cascade_of(path: Path, parts: int, folder: Path) -> Cascade:
    plan = graphcut.plan(path, Into(parts), limits=Limits(inside_layers=True))
    return graphcut.split(graphcut.load(path), plan, folder / "parts")


@reads_schema
@pytest.mark.parametrize("name", ["unet.onnx", "tiny-llama-int4/model.onnx"])
def test_the_steps_of_the_ensemble_give_the_bits_of_the_model(name: str, tmp_path: Path) -> None:
    export_triton(cascade_of(FIXTURES / name, 3, tmp_path), tmp_path / "models")
    feeds = generate_inputs(graphcut.load(FIXTURES / name), seed=5)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    whole = ort.InferenceSession(FIXTURES / name, options)
    expected = dict(zip([o.name for o in whole.get_outputs()], whole.run(None, dict(feeds)), strict=True))
    found = run_ensemble(tmp_path / "models", Path(name).stem, feeds)
    assert found.keys() == expected.keys()
    for output, value in expected.items():
        np.testing.assert_array_equal(found[output], value, err_msg=output)


def test_each_part_of_a_rank_gets_what_it_reads_of_the_file_of_the_rank(tmp_path: Path) -> None:
    ranked = graphcut.split_by_rank(FIXTURES / "tiny-llama-fp32" / "model.onnx", tmp_path / "parts", ranks=2)
    export_triton(ranked, tmp_path / "models")
    for part in ranked.parts:
        home = tmp_path / "models" / f"sharded-{part.file.removesuffix('.onnx')}" / "1"
        assert onnx.load(home / "model.onnx") == onnx.load(ranked.file(part))
        for name, data in part.data.items():
            written, whole = (home / name).read_bytes(), (ranked.root / name).read_bytes()
            assert data.digest is not None
            expected = bytearray(len(whole))
            for start, length in data.digest.ranges:
                expected[start : start + length] = whole[start : start + length]
            assert written == bytes(expected)


def test_the_tokenizer_is_beside_the_manifest_and_may_be_gone_the_next_time(tmp_path: Path) -> None:
    with_text = cascade_of(FIXTURES / "tiny-llama-int4" / "model.onnx", 2, tmp_path)
    export_triton(with_text, tmp_path / "models")
    there = tmp_path / "models" / "model" / "1"
    assert {file.name for file in there.iterdir()} == {"cascade.json", *with_text.manifest.text_files}
    for name in with_text.manifest.text_files:
        assert (there / name).read_bytes() == (with_text.root / name).read_bytes()
    shutil.copy(FIXTURES / "clip.onnx", tmp_path / "model.onnx")
    export_triton(graphcut.split(tmp_path / "model.onnx", Into(2)), tmp_path / "models", force=True)
    assert [file.name for file in there.iterdir()] == ["cascade.json"]


@reads_schema
def test_types_shapes_and_devices_are_those_of_the_cascade(tmp_path: Path) -> None:
    """A name with quotes, a scalar, a symbol; a part for a GPU, and one for two threads of a CPU."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ['a"\\'], name="sum", keepdims=0),
        helper.make_node("Cast", ['a"\\'], ["y"], name="cast", to=TensorProto.INT64),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [out]), tmp_path / "m.onnx")
    devices = (Device(name="gpu", provider="CUDAExecutionProvider"), Device(name="cpu", threads=2))
    made = replace(
        graphcut.plan(tmp_path / "m.onnx", At(("sum",))), goal=Across(Cluster(devices=devices)), devices=devices
    )
    export_triton(graphcut.split(graphcut.load(tmp_path / "m.onnx"), made, tmp_path / "parts"), tmp_path / "models")
    first, last = (configs(tmp_path / "models")[f"m-part-{i}"] for i in range(2))
    assert text_format.MessageToString(first, as_one_line=True) == (
        'name: "m-part-0" '
        'input { name: "x" data_type: TYPE_FP32 dims: -1 dims: 4 } '
        'output { name: "a\\"\\\\" data_type: TYPE_FP32 dims: 1 reshape { } } '
        'instance_group { kind: KIND_GPU } backend: "onnxruntime"'
    )
    assert [group.kind for group in last.instance_group] == [2]  # KIND_CPU
    assert last.parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize(
    ("shape", "is_passed", "message"),
    [
        (None, False, "'x' has no known rank, which Triton can't be told"),
        ((2,), True, "the output 'x' of the model is one of its inputs, and no part writes it"),
    ],
)
def test_what_triton_cannot_be_told_is_refused(
    shape: tuple[int] | None, *, is_passed: bool, message: str, tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    relu = helper.make_node("Relu", ["x"], ["y"], name="relu")
    onnx.save(model_of([relu], [x], [y, x] if is_passed else [y]), tmp_path / "m.onnx")
    cascade = graphcut.split(graphcut.load(tmp_path / "m.onnx"), Into(1), tmp_path / "parts")
    with pytest.raises(UsageError, match=message):
        export_triton(cascade, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_other_models_in_the_repository_are_never_replaced(chain: Path, tmp_path: Path) -> None:
    cascade = cascade_of(chain, 2, tmp_path)
    export_triton(cascade, tmp_path / "models")
    export_triton(cascade, tmp_path / "models", force=True)
    other = tmp_path / "models" / "other" / "1" / "model.onnx"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"somebody's")
    with pytest.raises(UsageError, match=r"contains 'other/1/model\.onnx', which is not a file of an export to triton"):
        export_triton(cascade, tmp_path / "models", force=True)
    assert other.read_bytes() == b"somebody's"
