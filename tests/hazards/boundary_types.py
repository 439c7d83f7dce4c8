"""What kind of value crosses the border, and of which element type."""

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


def sequence_border() -> Hazard:
    rng = np.random.default_rng(16)
    return Hazard(
        model=model(
            [
                make_node("SplitToSequence", ["x", "two"], ["border"], axis=0),
                make_node("SequenceAt", ["border", "i"], ["a"]),
                make_node("ConcatFromSequence", ["border"], ["b"], axis=1),
                make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
                make_node("Add", ["b", "sum"], ["y"]),
            ],
            reads=[value("x", [4, 3]), value("i", [], INT64)],
            writes=[value("y", [2, 6])],
            weights=[weight("two", np.int64(2))],
        ),
        feeds={"x": floats(rng, 4, 3), "i": np.array(1)},
        cut=("border",),
        correct="the border is declared as a sequence, and a list goes over it. A planner may avoid such a cut.",
        asserts=(InputKind("border", "sequence_type"), RequiredInputs(part=1, names=("border", "i"))),
    )


def optional_border() -> Hazard:
    rng = np.random.default_rng(17)
    tensor_type = make_tensor_type_proto(FLOAT, [3])
    return Hazard(
        model=model(
            [
                make_node("Optional", ["x"], ["border"]),
                make_node("OptionalGetElement", ["border"], ["element"]),
                make_node("OptionalHasElement", ["border"], ["has"]),
                make_node("Relu", ["element"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3]), value("has", [], BOOL)],
            inner=[make_value_info("border", make_optional_type_proto(tensor_type))],
            opset=18,
        ),
        feeds={"x": floats(rng, 3)},
        cut=("border",),
        correct="the border is declared as an optional, and None can go over it. To refuse the cut is right too.",
        asserts=(InputKind("border", "optional_type"), RequiredInputs(part=1, names=("border",))),
    )


def map_input() -> Hazard:
    rng = np.random.default_rng(18)
    scalar_type = make_tensor_type_proto(FLOAT, [])
    return Hazard(
        model=model(
            [
                make_node("DictVectorizer", ["words"], ["v"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]),
                make_node("Cast", ["v"], ["counts"], to=FLOAT),
                make_node("MatMul", ["x", "w"], ["border"]),
                make_node("Add", ["border", "counts"], ["sum"]),
                make_node("ZipMap", ["sum"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
            ],
            reads=[value("x", [1, 3]), make_value_info("words", make_map_type_proto(STRING, scalar_type))],
            writes=[make_value_info("y", make_sequence_type_proto(make_map_type_proto(INT64, scalar_type)))],
            weights=[weight("w", floats(rng, 3, 3))],
            domains={"ai.onnx.ml": 1},
            opset=15,
        ),
        feeds={"x": floats(rng, 1, 3), "words": {"a": 1.5, "c": -2.0}},
        cut=("border",),
        correct="the types of words (a map) and y (a sequence of maps) are copied as they are.",
        asserts=(InputKind("words", "map_type"), HasInput(part=1, names=("border",))),
    )


def contrib_op_border() -> Hazard:
    rng = np.random.default_rng(19)
    return Hazard(
        model=model(
            [
                make_node("FusedMatMul", ["x", "w"], ["t"], domain="com.microsoft", alpha=0.5),
                make_node("BiasGelu", ["t", "b"], ["border"], domain="com.microsoft"),
                make_node("Gelu", ["border"], ["y"], domain="com.microsoft"),
            ],
            reads=[value("x", ["n", 4])],
            writes=[value("y", ["n", 4])],
            weights=[weight("w", floats(rng, 4, 4)), weight("b", floats(rng, 4))],
            domains={"com.microsoft": 1},
        ),
        feeds={"x": floats(rng, 3, 4)},
        cut=("border",),
        correct="shape inference of onnx knows none of these operators: the type of border comes from ONNX Runtime. n "
        "is not frozen to a number of a sample run, and part 1 keeps the import of com.microsoft.",
        asserts=(InputElem("border", "FLOAT"), NotFrozen("border", axis=0), RequiredInputs(part=1, names=("border",))),
    )


def border_between_q_and_dq() -> Hazard:
    rng = np.random.default_rng(21)
    return Hazard(
        model=model(
            [
                make_node("QuantizeLinear", ["x", "scale", "zero"], ["border"]),
                make_node("DequantizeLinear", ["border", "scale", "zero"], ["xd"]),
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
        cut=("border",),
        correct="the border is uint8, a quarter of the float one. Scale and zero point are in both parts; the weight's "
        "DequantizeLinear is a constant expression of part 1.",
        asserts=(
            InputElem("border", "UINT8"),
            HasInitializer(part=0, names=("scale", "zero")),
            HasInitializer(part=1, names=("scale", "zero", "wq", "w_scale", "w_zero", "scale2")),
            RequiredInputs(part=1, names=("border",)),
        ),
    )


def bfloat16_border() -> Hazard:
    return _border_numpy_does_not_have("bf16", "BFLOAT16")


def float8_border() -> Hazard:
    return _border_numpy_does_not_have("f8", "FLOAT8E4M3FN")


def _border_numpy_does_not_have(border: str, elem: str) -> Hazard:
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
        cut=(border,),
        boundary_hint=("bf16", "f8"),
        correct="the border keeps its element type, and is handed over as an OrtValue: numpy has no such type.",
        asserts=(InputElem(border, elem), HasInput(part=1, names=(border,))),
    )


def string_border() -> Hazard:
    return Hazard(
        model=model(
            [
                make_node("Concat", ["x", "more"], ["border"], axis=0),
                make_node("Identity", ["border"], ["y"]),
                make_node("Shape", ["border"], ["count"]),
            ],
            reads=[value("x", ["n"], STRING)],
            writes=[value("y", ["m"], STRING), value("count", [1], INT64)],
            weights=[weight("more", np.array(["café", ""], dtype=object))],
        ),
        feeds={"x": np.array(["a", "bb"], dtype=object)},
        cut=("border",),
        correct="strings have no fixed size and never lie in raw_data or in a file; they are compared exactly.",
        asserts=(InputElem("border", "STRING"), RequiredInputs(part=1, names=("border",))),
    )


def bool_output_beside_border() -> Hazard:
    rng = np.random.default_rng(47)
    return Hazard(
        model=model(
            [
                make_node("Dropout", ["x"], ["border", "mask"]),
                make_node("Cast", ["mask"], ["ones"], to=FLOAT),
                make_node("Mul", ["border", "ones"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("border",),
        boundary_hint=("border", "mask"),
        correct="to cut at one output of a node is to cut at all that are used: mask crosses too, as bool.",
        asserts=(
            RequiredInputs(part=1, names=("border", "mask")),
            InputElem("mask", "BOOL"),
            InputDims("border", (3,)),
        ),
    )
