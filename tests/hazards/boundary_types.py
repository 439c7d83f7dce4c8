"""What kind of value crosses the boundary, and of which element type."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnx.helper import (
    make_map_type_proto,
    make_node,
    make_optional_type_proto,
    make_sequence_type_proto,
    make_tensor_type_proto,
    make_value_info,
)

from .building import floats, model, value, weight
from .claims import HasInitializer, HasInput, InputDims, InputElem, InputKind, NotFrozen, RequiredInputs
from .hazard import Hazard

BOOL, FLOAT, INT64, STRING = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def sequence_boundary() -> Hazard:
    rng = np.random.default_rng(16)
    return Hazard(
        model=model(
            [
                make_node("SplitToSequence", ["x", "two"], ["boundary"], axis=0),
                make_node("SequenceAt", ["boundary", "i"], ["a"]),
                make_node("ConcatFromSequence", ["boundary"], ["b"], axis=1),
                make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
                make_node("Add", ["b", "sum"], ["y"]),
            ],
            reads=[value("x", [4, 3]), value("i", [], INT64)],
            writes=[value("y", [2, 6])],
            weights=[weight("two", np.int64(2))],
        ),
        feeds={"x": floats(rng, 4, 3), "i": np.array(1)},
        cut=("boundary",),
        correct="the boundary is declared as a sequence, and a list goes over it. A planner may avoid such a cut.",
        asserts=(InputKind("boundary", "sequence_type"), RequiredInputs(part=1, names=("boundary", "i"))),
    )


def optional_boundary() -> Hazard:
    rng = np.random.default_rng(17)
    tensor_type = make_tensor_type_proto(FLOAT, [3])
    return Hazard(
        model=model(
            [
                make_node("Optional", ["x"], ["boundary"]),
                make_node("OptionalGetElement", ["boundary"], ["element"]),
                make_node("OptionalHasElement", ["boundary"], ["has"]),
                make_node("Relu", ["element"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3]), value("has", [], BOOL)],
            inner=[make_value_info("boundary", make_optional_type_proto(tensor_type))],
            opset=18,
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="the boundary is declared as an optional, and None can go over it. To refuse the cut is right too.",
        asserts=(InputKind("boundary", "optional_type"), RequiredInputs(part=1, names=("boundary",))),
    )


def map_input() -> Hazard:
    rng = np.random.default_rng(18)
    scalar_type = make_tensor_type_proto(FLOAT, [])
    return Hazard(
        model=model(
            [
                make_node("DictVectorizer", ["words"], ["v"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]),
                make_node("Cast", ["v"], ["counts"], to=FLOAT),
                make_node("MatMul", ["x", "w"], ["boundary"]),
                make_node("Add", ["boundary", "counts"], ["sum"]),
                make_node("ZipMap", ["sum"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
            ],
            reads=[value("x", [1, 3]), make_value_info("words", make_map_type_proto(STRING, scalar_type))],
            writes=[make_value_info("y", make_sequence_type_proto(make_map_type_proto(INT64, scalar_type)))],
            weights=[weight("w", floats(rng, 3, 3))],
            domains={"ai.onnx.ml": 1},
            opset=15,
        ),
        feeds={"x": floats(rng, 1, 3), "words": {"a": 1.5, "c": -2.0}},
        cut=("boundary",),
        correct="the types of words (a map) and y (a sequence of maps) are copied as they are.",
        asserts=(InputKind("words", "map_type"), HasInput(part=1, names=("boundary",))),
    )


def contrib_op_boundary() -> Hazard:
    rng = np.random.default_rng(19)
    return Hazard(
        model=model(
            [
                make_node("FusedMatMul", ["x", "w"], ["t"], domain="com.microsoft", alpha=0.5),
                make_node("BiasGelu", ["t", "b"], ["boundary"], domain="com.microsoft"),
                make_node("Gelu", ["boundary"], ["y"], domain="com.microsoft"),
            ],
            reads=[value("x", ["n", 4])],
            writes=[value("y", ["n", 4])],
            weights=[weight("w", floats(rng, 4, 4)), weight("b", floats(rng, 4))],
            domains={"com.microsoft": 1},
        ),
        feeds={"x": floats(rng, 3, 4)},
        cut=("boundary",),
        correct="shape inference of onnx knows none of these operators: the type of boundary comes from ONNX Runtime. "
        "n is not frozen to a number of a sample run, and part 1 keeps the import of com.microsoft.",
        asserts=(
            InputElem("boundary", "FLOAT"),
            NotFrozen("boundary", axis=0),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def boundary_between_q_and_dq() -> Hazard:
    rng = np.random.default_rng(21)
    return Hazard(
        model=model(
            [
                make_node("QuantizeLinear", ["x", "scale", "zero"], ["boundary"]),
                make_node("DequantizeLinear", ["boundary", "scale", "zero"], ["xd"]),
                make_node("DequantizeLinear", ["wq", "w_scale", "w_zero"], ["w"], axis=1),
                make_node("MatMul", ["xd", "w"], ["product"]),
                make_node("QuantizeLinear", ["product", "scale2", "zero"], ["q"]),
                make_node("DequantizeLinear", ["q", "scale2", "zero"], ["y"]),
            ],
            reads=[value("x", [2, 8])],
            writes=[value("y", [2, 4])],
            weights=[
                weight("scale", np.float32(0.02)),
                weight("zero", np.uint8(128)),
                weight("wq", rng.integers(-100, 100, (8, 4)).astype(np.int8)),
                weight("w_scale", np.abs(floats(rng, 4)) + 0.01),
                weight("w_zero", np.zeros(4, np.int8)),
                weight("scale2", np.float32(0.05)),
            ],
        ),
        feeds={"x": floats(rng, 2, 8, scale=1)},
        cut=("boundary",),
        correct="the boundary is uint8, a quarter of the float one. Scale and zero point are in both parts; the "
        "weight's DequantizeLinear is a constant expression of part 1.",
        asserts=(
            InputElem("boundary", "UINT8"),
            HasInitializer(part=0, names=("scale", "zero")),
            HasInitializer(part=1, names=("scale", "zero", "wq", "w_scale", "w_zero", "scale2")),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )


def bfloat16_boundary() -> Hazard:
    return _boundary_numpy_does_not_have("bf16", "BFLOAT16")


def float8_boundary() -> Hazard:
    return _boundary_numpy_does_not_have("f8", "FLOAT8E4M3FN")


def _boundary_numpy_does_not_have(boundary: str, elem: str) -> Hazard:
    rng = np.random.default_rng(23)
    return Hazard(
        model=model(
            [
                make_node("Cast", ["x"], ["bf16"], to=TensorProto.BFLOAT16),
                make_node("Cast", ["bf16"], ["y16"], to=FLOAT),
                make_node("Cast", ["x"], ["f8"], to=TensorProto.FLOAT8E4M3FN),
                make_node("Cast", ["f8"], ["y8"], to=FLOAT),
            ],
            reads=[value("x", [5])],
            writes=[value("y16", [5]), value("y8", [5])],
            opset=19,
            ir_version=9,
        ),
        feeds={"x": floats(rng, 5)},
        cut=(boundary,),
        boundary_hint=("bf16", "f8"),
        correct="the boundary keeps its element type, and is handed over as an OrtValue: numpy has no such type.",
        asserts=(InputElem(boundary, elem), HasInput(part=1, names=(boundary,))),
    )


def string_boundary() -> Hazard:
    return Hazard(
        model=model(
            [
                make_node("Concat", ["x", "more"], ["boundary"], axis=0),
                make_node("Identity", ["boundary"], ["y"]),
                make_node("Shape", ["boundary"], ["count"]),
            ],
            reads=[value("x", ["n"], STRING)],
            writes=[value("y", ["m"], STRING), value("count", [1], INT64)],
            weights=[weight("more", np.array(["café", ""], dtype=object))],
        ),
        feeds={"x": np.array(["a", "bb"], dtype=object)},
        cut=("boundary",),
        correct="strings have no fixed size and never lie in raw_data or in a file; they are compared exactly.",
        asserts=(InputElem("boundary", "STRING"), RequiredInputs(part=1, names=("boundary",))),
    )


def bool_output_beside_boundary() -> Hazard:
    rng = np.random.default_rng(47)
    return Hazard(
        model=model(
            [
                make_node("Dropout", ["x"], ["boundary", "mask"]),
                make_node("Cast", ["mask"], ["ones"], to=FLOAT),
                make_node("Mul", ["boundary", "ones"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        boundary_hint=("boundary", "mask"),
        correct="to cut at one output of a node is to cut at all that are used: mask crosses too, as bool.",
        asserts=(
            RequiredInputs(part=1, names=("boundary", "mask")),
            InputElem("mask", "BOOL"),
            InputDims("boundary", (3,)),
        ),
    )
