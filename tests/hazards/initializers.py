"""Weights: shared, tied, sparse, empty, packed, and those that are inputs too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import SparseTensorProto, TensorProto
from onnx.helper import make_node, make_sparse_tensor, make_tensor

from .building import floats, model, value, weight
from .claims import AnyPartOutput, HasInitializer, HasInput, HasSparse, RequiredInputs, TensorIdentical
from .hazard import Hazard


def tied_weight() -> Hazard:
    rng = np.random.default_rng(9)
    return Hazard(
        model=model(
            [
                make_node("Gather", ["table", "ids"], ["rows"]),
                make_node("Tanh", ["rows"], ["boundary"]),
                make_node("Transpose", ["table"], ["columns"], perm=[1, 0]),
                make_node("MatMul", ["boundary", "columns"], ["y"]),
            ],
            reads=[value("ids", ["batch", "seq"], TensorProto.INT64)],
            writes=[value("y", ["batch", "seq", 16])],
            weights=[weight("table", floats(rng, 16, 8))],
        ),
        feeds={"ids": rng.integers(0, 16, (2, 5))},
        cut=("boundary",),
        correct="table is in both parts, as a second reference to the same bytes or as a copy. Transpose(table) is a "
        "constant expression of part 1 and does not cross.",
        asserts=(
            HasInitializer(part=0, names=("table",)),
            HasInitializer(part=1, names=("table",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def weight_tied_over_three_parts() -> Hazard:
    rng = np.random.default_rng(103)
    return Hazard(
        model=model(
            [
                make_node("MatMul", ["x", "w"], ["first"]),
                make_node("MatMul", ["first", "w"], ["second"]),
                make_node("MatMul", ["second", "w"], ["y"]),
            ],
            reads=[value("x", ["n", 4])],
            writes=[value("y", ["n", 4])],
            weights=[weight("w", floats(rng, 4, 4))],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("first", "second"),
        correct="w is in all three parts, and never crosses.",
        asserts=(
            *(HasInitializer(part=part, names=("w",)) for part in range(3)),
            RequiredInputs(part=1, names=("first",)),
            RequiredInputs(part=2, names=("second",)),
        ),
    )


def ir3_initializers_are_inputs() -> Hazard:
    rng = np.random.default_rng(5)
    return Hazard(
        model=model(
            [
                make_node("MatMul", ["x", "w1"], ["a"]),
                make_node("Add", ["a", "b"], ["boundary"]),
                make_node("MatMul", ["boundary", "w2"], ["c"]),
                make_node("Add", ["c", "b"], ["y"]),
            ],
            reads=[value("x", [2, 3]), value("w1", [3, 3]), value("b", [3]), value("w2", [3, 3])],
            writes=[value("y", [2, 3])],
            weights=[
                weight("w1", floats(rng, 3, 3)),
                weight("b", floats(rng, 3)),
                weight("w2", floats(rng, 3, 3)),
            ],
            ir_version=3,
            opset=9,
        ),
        feeds={"x": floats(rng, 2, 3)},
        cut=("boundary",),
        correct="before IR 4 each initializer is an input too, and none of them has to be fed. Keep IR 3 and both "
        "lists, or raise it to 4 or more and drop them from the inputs.",
        asserts=(
            RequiredInputs(part=0, names=("x",)),
            HasInitializer(part=1, names=("w2", "b")),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def ir3_tied_weight() -> Hazard:
    rng = np.random.default_rng(104)
    return Hazard(
        model=model(
            [make_node("MatMul", ["x", "w"], ["boundary"]), make_node("MatMul", ["boundary", "w"], ["y"])],
            reads=[value("w", [3, 3]), value("x", [2, 3])],
            writes=[value("y", [2, 3])],
            weights=[weight("w", floats(rng, 3, 3))],
            ir_version=3,
            opset=9,
        ),
        feeds={"x": floats(rng, 2, 3)},
        cut=("boundary",),
        correct="w, the first input of the model, is a weight of both parts, and nobody feeds it or sends it.",
        asserts=(
            HasInitializer(part=0, names=("w",)),
            RequiredInputs(part=0, names=("x",)),
            HasInitializer(part=1, names=("w",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def overridable_default_input() -> Hazard:
    rng = np.random.default_rng(6)
    return Hazard(
        model=model(
            [make_node("Mul", ["x", "gain"], ["boundary"]), make_node("Mul", ["boundary", "gain"], ["y"])],
            reads=[value("x", [3]), value("gain", [1])],
            writes=[value("y", [3])],
            weights=[weight("gain", floats(rng, 1))],
        ),
        feeds={"x": floats(rng, 3), "gain": np.array([3.0], np.float32)},
        cut=("boundary",),
        correct="from IR 4 on, an initializer that is an input is a default. gain stays an input with a default in "
        "both parts, and a value fed for it reaches both.",
        asserts=(
            HasInput(part=0, names=("x", "gain")),
            RequiredInputs(part=0, names=("x",)),
            HasInput(part=1, names=("boundary", "gain")),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def overridable_default_as_output() -> Hazard:
    rng = np.random.default_rng(105)
    return Hazard(
        model=model(
            [make_node("Mul", ["x", "gain"], ["boundary"]), make_node("Mul", ["boundary", "gain"], ["y"])],
            reads=[value("x", [3]), value("gain", [1])],
            writes=[value("gain", [1]), value("y", [3])],
            weights=[weight("gain", floats(rng, 1))],
        ),
        feeds={"x": floats(rng, 3), "gain": np.array([3.0], np.float32)},
        cut=("boundary",),
        correct="gain is given out as it was fed, and with its default when it was not.",
        asserts=(
            HasInput(part=0, names=("gain",)),
            HasInput(part=1, names=("gain",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def sparse_initializers() -> Hazard:
    rng = np.random.default_rng(10)
    early, late = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    early[[0, 1, 3], [1, 2, 0]] = [1, 2, 3]
    late[[2, 2], [0, 3]] = [-1, 5]
    return Hazard(
        model=model(
            [make_node("MatMul", ["x", "early"], ["boundary"]), make_node("MatMul", ["boundary", "late"], ["y"])],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
            sparse_weights=[_sparse("early", early), _sparse("late", late)],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        correct="each part gets the sparse_initializer that it uses, unchanged; its name is that of its values.",
        asserts=(
            HasSparse(part=0, names=("early",)),
            RequiredInputs(part=0, names=("x",)),
            HasSparse(part=1, names=("late",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def _sparse(name: str, dense: NDArray[np.float32]) -> SparseTensorProto:
    places = np.flatnonzero(dense)
    return make_sparse_tensor(weight(name, dense.ravel()[places]), weight(f"{name}_places", places), dense.shape)


def int4_weights() -> Hazard:
    rng = np.random.default_rng(22)
    packed = rng.integers(-8, 8, (4, 6)).astype(np.int8).astype(ml_dtypes.int4)
    listed = make_tensor("listed", TensorProto.UINT4, [5, 3], rng.integers(0, 16, 15).tolist())
    return Hazard(
        model=model(
            [
                make_node("DequantizeLinear", ["packed", "scale", "zero"], ["w"], axis=0, block_size=2),
                make_node("MatMul", ["x", "w"], ["boundary"]),
                make_node("DequantizeLinear", ["listed", "tenth"], ["v"]),
                make_node("ReduceSum", ["v"], ["sum"], keepdims=0),
                make_node("Add", ["boundary", "sum"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 6])],
            weights=[
                weight("packed", packed),
                weight("scale", np.abs(floats(rng, 2, 6)) + 0.1),
                make_tensor("zero", TensorProto.INT4, [2, 6], [0] * 12),
                listed,
                weight("tenth", np.float32(0.1)),
            ],
            opset=21,
            ir_version=10,
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        correct="two values to a byte, once in raw_data and once in int32_data, with an odd count: tensors are copied "
        "as they are, never by way of numpy, and take ceil(count * bits / 8) bytes.",
        asserts=(
            TensorIdentical(part=0, names=("packed", "zero")),
            TensorIdentical(part=1, names=("listed",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def zero_element_initializer() -> Hazard:
    rng = np.random.default_rng(106)
    return Hazard(
        model=model(
            [
                make_node("Concat", ["x", "nothing"], ["boundary"], axis=0),
                make_node("Concat", ["nothing", "boundary", "listed"], ["y"], axis=0),
            ],
            reads=[value("x", ["n", 3])],
            writes=[value("y", ["n", 3])],
            weights=[
                weight("nothing", np.zeros((0, 3), np.float32)),
                make_tensor("listed", TensorProto.FLOAT, [0, 3], []),
            ],
        ),
        feeds={"x": floats(rng, 2, 3)},
        cut=("boundary",),
        correct="a weight of no elements has no bytes, and is carried like any other: with raw_data that is empty, or "
        "with no data field at all.",
        asserts=(
            TensorIdentical(part=0, names=("nothing",)),
            TensorIdentical(part=1, names=("nothing", "listed")),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def initializer_as_output() -> Hazard:
    rng = np.random.default_rng(12)
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"]), make_node("Neg", ["boundary"], ["y"])],
            reads=[value("x", [3])],
            writes=[value("y", [3]), value("k", [2])],
            weights=[weight("k", floats(rng, 2))],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="some part gives k and carries it, though no node reads it.",
        asserts=(AnyPartOutput("k"), RequiredInputs(part=1, names=("boundary",))),
    )
