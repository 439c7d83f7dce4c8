"""What a reader can make from less is sent as less: a plain replica does it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, helper, numpy_helper

import graphcut
from graphcut import Into
from graphcut.planning.goals import Limits

from cases import each
from conftest import floats, model_of

BIG, SMALL = 64 * 1024 * 4, 1024 * 4
"""Bytes of a whole float32 tensor, and of one row."""


def node(op: str, *reads: str, writes: str, **attributes: int | Sequence[int]) -> NodeProto:
    return helper.make_node(op, list(reads), [writes], writes, None, None, None, **attributes)


ROW = node("ReduceMax", "h", writes="row", axes=[0])
CASES = {
    "Cast": ([node("Cast", "h", writes="half", to=10), node("Cast", "half", writes="t", to=1)], BIG // 2),
    "Expand": ([ROW, node("Expand", "row", "shape", writes="t")], SMALL),
    "Tile": ([ROW, node("Tile", "row", "times", writes="t")], SMALL),
    "DequantizeLinear": (
        [
            node("QuantizeLinear", "h", "one", "zero", writes="q"),
            node("DequantizeLinear", "q", "one", "zero", writes="t"),
        ],
        BIG // 4,
    ),
    "Transpose": ([node("Relu", "h", writes="r"), node("Transpose", "r", writes="t", perm=[0, 1])], BIG),
}


@each("case", CASES)
def test_the_smaller_tensor_is_sent(case: str) -> None:
    """`t` is read in the second part only, and a Transpose is read there beside what it transposes."""
    nodes, expected = CASES[case]
    first = [node("MatMul", "x", "w", writes="h"), *nodes]
    second = [node("MatMul", "t", "v", writes="u"), node("MatMul", "u", "v", writes="y")]
    if case == "Transpose":
        second.insert(1, node("Add", "u", "r", writes="both"))
        second[-1].input[0] = "both"
    weights = [np.eye(1024, dtype=np.float32), np.eye(1024, dtype=np.float32)]
    small = {"shape": np.array([64, 1024]), "times": np.array([64, 1]), "one": np.float32(1), "zero": np.int8(0)}
    initializers = [numpy_helper.from_array(value, name) for value, name in zip(weights, "wv", strict=True)]
    initializers += [numpy_helper.from_array(np.asarray(value), name) for name, value in small.items()]
    model = graphcut.load(model_of([*first, *second], [floats("x", 64, 1024)], [floats("y", 64, 1024)], initializers))
    made = graphcut.plan(model, Into(2), limits=Limits(pins=(("h", 0), (nodes[0].name, 0), ("u", 1), ("y", 1))))
    assert made.metrics[1].received_bytes == expected
