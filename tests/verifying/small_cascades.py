"""Small models and cascades that are verified, as they are and with something changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, Model
from graphcut.core.arguments import Storage
from graphcut.verifying.verification import find_source

from conftest import floats, model_of
from tampering import Change, Record, edit_manifest, edit_part, redo_digests

INFINITE = float("inf")
F16, F32, F64 = np.float16, np.float32, np.float64


def values(name: str, array: object, dtype: type[np.generic] = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def cut_proto(folder: Path, proto: ModelProto, *names: str, weights: Storage = "copy") -> tuple[Model, Cascade]:
    """Write a model, and cut it after the named places."""
    onnx.save(proto, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    plan = graphcut.plan(graphcut.analyze(model), At(names))
    return model, graphcut.split(model, plan, weights=weights)


def with_manifest(cascade: Cascade, change: Callable[[Record], object]) -> Cascade:
    edit_manifest(cascade.path, change)
    return graphcut.open_cascade(cascade.path)


def tamper(cascade: Cascade, part: int, change: Change, *, is_signed: bool = True) -> Cascade:
    """Change the message of a part; where that `is_signed`, its digest in the manifest too."""
    edit_part(cascade, part, change)
    if is_signed:
        redo_digests(cascade.path)
    return graphcut.open_cascade(cascade.path)


def node(proto: ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if node.name == name)


def swish() -> onnx.FunctionProto:
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    return helper.make_function("local", "Swish", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])


def network() -> ModelProto:
    """Two products by weights of 1 KiB, and between them a local function, an attribute, a small weight, a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="product0"),
        helper.make_node("Swish", ["a"], ["b"], name="swish", domain="local"),
        helper.make_node("Constant", [], ["k"], name="constant", value=values("k", [2.0])),
        helper.make_node("Mul", ["b", "k"], ["c"], name="double"),
        helper.make_node("Elu", ["c"], ["d"], name="elu", alpha=0.5),
        helper.make_node("Add", ["d", "bias"], ["e"], name="bias"),
        helper.make_node("MatMul", ["e", "w1"], ["f"], name="product1"),
        helper.make_node("Mul", ["f", "k"], ["y"], name="double again"),
    ]
    random = np.random.default_rng(0)
    weights = [values(name, random.random((16, 16)) - 0.5) for name in ("w0", "w1")]
    weights.append(values("bias", [0.25] * 16))
    proto = model_of(nodes, [floats("x", "n", 16)], [floats("y", "n", 16)], weights)
    proto.functions.append(swish())
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """Three parts: up to `double`, up to `bias`, and the rest."""
    return cut_proto(tmp_path, network(), "double", "bias")[1]


@pytest.fixture
def model(cascade: Cascade) -> Model:
    return graphcut.load(find_source(cascade))


X = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)}


def set_alpha(proto: ModelProto) -> None:
    node(proto, "elu").attribute[0].f = 0.75


def additions(*summands: float, dtype: type[np.generic] = F32) -> ModelProto:
    """x plus one number after the other: the nodes and tensors s0, s1, …"""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = ["x", *(f"s{i}" for i in range(len(summands)))]
    nodes = [
        helper.make_node("Add", [tensors[i], f"k{i}"], [tensors[i + 1]], name=tensors[i + 1])
        for i in range(len(summands))
    ]
    ends = [helper.make_tensor_value_info(name, elem, ["n"]) for name in (tensors[0], tensors[-1])]
    return model_of(nodes, ends[:1], ends[1:], [values(f"k{i}", [k], dtype) for i, k in enumerate(summands)])


def add(summand: float, dtype: type[np.generic] = F32) -> Change:
    """Let a part add something else."""

    def change(proto: ModelProto) -> None:
        name = proto.graph.initializer[0].name
        proto.graph.initializer[0].CopyFrom(values(name, [summand], dtype))

    return change


def freeze(proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def frozen(cascade: Cascade) -> Cascade:
    """It takes n = 2 alone, and its manifest says so."""

    def note(record: Record) -> None:
        next(tensor for tensor in record["tensors"] if tensor["name"] == "x")["shape"] = [2, 16]

    return with_manifest(tamper(cascade, 0, freeze), note)
