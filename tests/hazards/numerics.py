"""What it takes for the answers to be the same: no number drawn twice, and like compared with like."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from .building import body, floats, model, value, weight
from .claims import OpTotal, OutputOnce, RequiredInputs
from .hazard import Hazard


def random_nodes() -> Hazard:
    rng = np.random.default_rng(24)
    return Hazard(
        model=model(
            [
                make_node("RandomNormalLike", ["x"], ["noise"], seed=3.0),
                make_node("Add", ["x", "noise"], ["boundary"]),
                make_node("Mul", ["boundary", "noise"], ["product"]),
                make_node("Dropout", ["product", "ratio", "training"], ["dropped", "mask"], seed=5),
                make_node("Sub", ["dropped", "noise"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4]), value("mask", [2, 4], TensorProto.BOOL)],
            weights=[weight("ratio", np.float32(0.5)), weight("training", np.True_)],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        boundary_hint=("boundary", "noise"),
        correct="noise is drawn once and crosses, even where drawing it again looks cheaper. Only first runs of fresh "
        "sessions can be compared: a seeded generator goes on from run to run.",
        asserts=(
            OpTotal("RandomNormalLike", 1),
            OpTotal("Dropout", 1),
            RequiredInputs(part=1, names=("boundary", "noise")),
        ),
    )


def random_node_without_inputs() -> Hazard:
    rng = np.random.default_rng(113)
    return Hazard(
        model=model(
            [
                make_node("RandomNormal", [], ["noise"], shape=[2, 4], seed=3.0),
                make_node("Add", ["x", "noise"], ["boundary"]),
                make_node("Mul", ["boundary", "noise"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        boundary_hint=("boundary", "noise"),
        correct="a node that reads nothing is not a constant when it draws numbers: noise is drawn once and crosses.",
        asserts=(
            OpTotal("RandomNormal", 1),
            OutputOnce("noise"),
            RequiredInputs(part=1, names=("boundary", "noise")),
        ),
    )


def random_node_in_branch() -> Hazard:
    rng = np.random.default_rng(114)
    then_branch = body([make_node("RandomNormal", [], ["drawn"], shape=[2, 4], seed=3.0)], [], [value("drawn", [2, 4])])
    else_branch = body(
        [make_node("Constant", [], ["still"], value=weight("", floats(rng, 2, 4)))], [], [value("still", [2, 4])]
    )
    return Hazard(
        model=model(
            [
                make_node("If", ["noisy"], ["noise"], then_branch=then_branch, else_branch=else_branch),
                make_node("Add", ["x", "noise"], ["boundary"]),
                make_node("Mul", ["boundary", "noise"], ["y"]),
            ],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
            weights=[weight("noisy", np.True_)],
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        boundary_hint=("boundary", "noise"),
        correct="the If reads nothing but a weight, and is no constant expression: a branch of it draws numbers. There "
        "is one instance of it, and noise crosses.",
        asserts=(
            OpTotal("RandomNormal", 1),
            OutputOnce("noise"),
            RequiredInputs(part=1, names=("boundary", "noise")),
        ),
    )


def fusion_across_boundary() -> Hazard:
    rng = np.random.default_rng(46)
    return Hazard(
        model=model(
            [
                make_node("MatMul", ["x", "w1"], ["product"]),
                make_node("Add", ["product", "b1"], ["boundary"]),
                make_node("Div", ["boundary", "sqrt2"], ["d"]),
                make_node("Erf", ["d"], ["e"]),
                make_node("Add", ["e", "one"], ["p"]),
                make_node("Mul", ["boundary", "p"], ["q"]),
                make_node("Mul", ["q", "half"], ["gelu"]),
                make_node("MatMul", ["gelu", "w2"], ["y"]),
            ],
            reads=[value("x", ["n", 64])],
            writes=[value("y", ["n", 64])],
            weights=[
                weight("w1", floats(rng, 64, 256, scale=0.1)),
                weight("b1", floats(rng, 256)),
                weight("w2", floats(rng, 256, 64, scale=0.1)),
                weight("sqrt2", np.float32(1.4142135)),
                weight("one", np.float32(1)),
                weight("half", np.float32(0.5)),
            ],
        ),
        feeds={"x": floats(rng, 7, 64, scale=1)},
        cut=("boundary",),
        correct="equal to the bit with optimisation off. With optimisation on, ONNX Runtime fuses the bias into the "
        "Gelu of the uncut model only, and about 1e-6 of difference is right: compare like with like.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )
