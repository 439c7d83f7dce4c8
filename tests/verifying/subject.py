"""A model with one of everything, its cascade on three devices, and what verify says when something is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, GraphcutError

from conftest import floats
from tampering import Record, edit_manifest

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
RANDOM = np.random.default_rng(0)


def values(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(RANDOM.random(shape, np.float32) - 0.5, name)


def constant(name: str, *shape: int) -> NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=values(name, *shape))


def branch(name: str) -> onnx.GraphProto:
    nodes = [constant(f"{name}_k", 16, 16), helper.make_node("MatMul", ["b", f"{name}_k"], [name], name=name)]
    return helper.make_graph(nodes, name, [], [floats(name, "n", 16)])


def function(overload: str) -> FunctionProto:
    """x times a large constant of its own."""
    nodes = [constant("k", 16, 16), helper.make_node("MatMul", ["x", "k"], ["y"], name="product")]
    return helper.make_function("local", "F", ["x"], ["y"], nodes, OPSETS[:1], overload=overload)


def step(layer: str, read: str) -> list[NodeProto]:
    """A cache that grows by `read`."""
    past, present = f"past_key_values.0.{layer}", f"present.0.{layer}"
    return [
        helper.make_node("Unsqueeze", [read, "axis"], [f"new_{layer}"], name=f"unsqueeze_{layer}"),
        helper.make_node("Concat", [past, f"new_{layer}"], [present], name=f"concat_{layer}", axis=1),
    ]


def subject() -> ModelProto:
    """A model with one of everything that can be changed; `first` and `second` read nothing of each other."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="product0"),
        helper.make_node("F", ["a"], ["f0"], name="call0", domain="local", overload="one"),
        helper.make_node("Sub", ["f0", "a"], ["b"], name="sub"),
        helper.make_node("If", ["flag"], ["c"], name="if", then_branch=branch("then"), else_branch=branch("else")),
        constant("k", 16, 16),
        helper.make_node("MatMul", ["c", "k"], ["d"], name="product_k"),
        helper.make_node("Elu", ["d"], ["e"], name="elu", alpha=0.5),
        helper.make_node("QuantizeLinear", ["e", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"], name="dequantize"),
        helper.make_node("F", ["dq"], ["g"], name="call1", domain="local", overload="two"),
        helper.make_node("Add", ["g", "shift"], ["h"], name="shift_it"),
        *step("key", "h"),
        *step("value", "h"),
        helper.make_node("MatMul", ["h", "sparse"], ["i"], name="sparse_product"),
        helper.make_node("Neg", ["i"], ["first"], name="first"),
        helper.make_node("Abs", ["i"], ["second"], name="second"),
        helper.make_node("Add", ["first", "second"], ["y"], name="y"),
    ]
    caches = [f"past_key_values.0.{layer}" for layer in ("key", "value")]
    presents = [f"present.0.{layer}" for layer in ("key", "value")]
    inputs = [
        floats("x", "n", 16),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        floats("shift", 16),
        *(floats(name, "n", "past", 16) for name in caches),
    ]
    outputs = [floats("y", "n", 16), *(floats(name, "n", "total", 16) for name in presents)]
    scale, zero = (
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    )
    axis = numpy_helper.from_array(np.array([1]), "axis")
    places = numpy_helper.from_array(np.arange(0, 256, 2), "places")
    sparse = helper.make_sparse_tensor(values("sparse", 128), places, [16, 16])
    weights = [values("w0", 16, 16), values("shift", 16), scale, zero, axis]
    graph = helper.make_graph(nodes, "subject", inputs, outputs, weights, sparse_initializer=[sparse])
    functions = [function("one"), function("two")]
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=10)


CUTS = ("sub", "dequantize", "sparse_product", "first", "second")
DEVICES = ("left", "left", "middle", "middle", "right", "right")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and a cascade of six parts on three devices."""
    folder = tmp_path_factory.mktemp("subject")
    onnx.save(subject(), folder / "model.onnx")
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).write_text("{}")
    model = graphcut.load(folder / "model.onnx", dims={"n": 2, "past": 3})
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(CUTS)), folder / "model.parts")

    def give_devices(record: Record) -> None:
        names = dict.fromkeys(DEVICES)
        record["devices"] = [{"name": name, "memory_bytes": None, "provider": "CPUExecutionProvider"} for name in names]
        for part, name in zip(record["parts"], DEVICES, strict=True):
            part["device"] = name

    edit_manifest(cascade.path, give_devices)
    return folder


@pytest.fixture
def cascade(original: Path, tmp_path: Path) -> Cascade:
    """A copy of it."""
    shutil.copytree(original, tmp_path / "copy")
    return graphcut.open_cascade(tmp_path / "copy" / "model.parts")


def by_structure(path: Path) -> str:
    """The objections of `verify --structural`, or its error; empty if it says yes."""
    try:
        report = graphcut.verify(path.parent.parent / "model.onnx", path.parent, structural_only=True)
    except GraphcutError as error:
        return str(error)
    return "\n".join(report.proof.objections)


def by_files(path: Path) -> str:
    """The same of `verify --files`, which has no model."""
    try:
        return "\n".join(graphcut.verify_files(path).objections)
    except GraphcutError as error:
        return str(error)


def assert_said(found: str, expected: str) -> None:
    """Check that the expected words were said, or nothing if none are expected."""
    assert expected in found, found
    assert bool(found) == bool(expected), found
