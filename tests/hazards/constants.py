"""Nodes that depend on no input: each part that needs one makes its own."""

from __future__ import annotations

import numpy as np
from onnx.helper import make_node, make_sparse_tensor

from .building import floats, model, value, weight
from .claims import AnyPartOutput, RequiredInputs
from .hazard import Hazard


def constants_on_both_sides() -> Hazard:
    rng = np.random.default_rng(36)
    return Hazard(
        model=model(
            [
                make_node("Constant", [], ["k"], value=weight("", floats(rng, 3))),
                make_node("Constant", [], ["shape"], value_ints=[1, 3]),
                make_node("ConstantOfShape", ["shape"], ["ones"], value=weight("", np.ones(1, np.float32))),
                make_node("Add", ["x", "k"], ["boundary"]),
                make_node("Mul", ["boundary", "k"], ["scaled"]),
                make_node("Add", ["scaled", "ones"], ["y"]),
            ],
            reads=[value("x", [1, 3])],
            writes=[value("y", [1, 3])],
        ),
        feeds={"x": floats(rng, 1, 3)},
        cut=("boundary",),
        correct="k is in both parts, and the constant expression ones in part 1: neither crosses.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )


def sparse_constant_on_both_sides() -> Hazard:
    rng = np.random.default_rng(109)
    entries = make_sparse_tensor(weight("", floats(rng, 2)), weight("", np.array([1, 6])), [2, 4])
    return Hazard(
        model=model(
            [
                make_node("Constant", [], ["k"], sparse_value=entries),
                make_node("Add", ["x", "k"], ["boundary"]),
                make_node("Mul", ["boundary", "k"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        correct="a Constant is one whatever attribute holds its value: the sparse one too is made by both parts.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )


def constant_as_output() -> Hazard:
    rng = np.random.default_rng(110)
    return Hazard(
        model=model(
            [
                make_node("Constant", [], ["k"], value=weight("", floats(rng, 3))),
                make_node("Add", ["x", "k"], ["boundary"]),
                make_node("Mul", ["boundary", "k"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("k", [3]), value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="k is made by both parts, and given out by one of them.",
        asserts=(AnyPartOutput("k"), RequiredInputs(part=1, names=("boundary",))),
    )


def constant_expression_as_output() -> Hazard:
    rng = np.random.default_rng(111)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["boundary"]),
                make_node("Neg", ["boundary"], ["y"]),
                make_node("Exp", ["w"], ["e"]),
                make_node("Mul", ["e", "w"], ["k"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3]), value("k", [2])],
            weights=[weight("w", floats(rng, 2))],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="k depends on no input and no node reads it: some part works it out all the same.",
        asserts=(AnyPartOutput("k"), RequiredInputs(part=1, names=("boundary",))),
    )
