"""What the world feeds and gets: the cascade has the interface of the model, whatever the parts look like."""

from __future__ import annotations

import itertools

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from .building import floats, model, value, weight
from .claims import HasInput, OutputOnce, RequiredInputs
from .hazard import Hazard


def input_as_output() -> Hazard:
    rng = np.random.default_rng(13)
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"]), make_node("Neg", ["boundary"], ["y"])],
            reads=[value("x", [3]), value("p", [2], TensorProto.INT64)],
            writes=[value("y", [3]), value("p", [2], TensorProto.INT64), value("x", [3])],
        ),
        feeds={"x": floats(rng, 3), "p": np.array([4, 5])},
        cut=("boundary",),
        correct="p and x are given out as they were fed, by what runs the parts or by a part that passes them through.",
    )


def unused_input() -> Hazard:
    rng = np.random.default_rng(14)
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"]), make_node("Neg", ["boundary"], ["y"])],
            reads=[value("x", [3]), value("unused", ["z"])],
            writes=[value("y", [3])],
            weights=[weight("dead", floats(rng, 5))],
        ),
        feeds={"x": floats(rng, 3), "unused": floats(rng, 2)},
        cut=("boundary",),
        correct="the cascade accepts unused, which no part needs; the dead weight may be kept or dropped.",
    )


def output_read_on() -> Hazard:
    rng = np.random.default_rng(31)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["first"]),
                make_node("Exp", ["first"], ["e"]),
                make_node("Neg", ["e"], ["second"]),
            ],
            reads=[value("x", [3])],
            writes=[value("second", [3]), value("first", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("first",),
        correct="first is an output and crosses: part 0 gives it once. The outputs come in the order of the model.",
        asserts=(OutputOnce("first"), RequiredInputs(part=1, names=("first",))),
    )


def input_needed_by_both() -> Hazard:
    rng = np.random.default_rng(50)
    return Hazard(
        model=model(
            [
                make_node("Identity", ["x"], ["boundary"]),
                make_node("Exp", ["boundary"], ["e"]),
                make_node("Add", ["e", "x"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="x is fed to both parts.",
        asserts=(HasInput(part=0, names=("x",)), HasInput(part=1, names=("boundary", "x"))),
    )


def many_outputs() -> Hazard:
    rng = np.random.default_rng(112)
    count = 300
    tensors = ["x", *(f"y{index}" for index in range(count))]
    return Hazard(
        model=model(
            [make_node("Add", [read, "step"], [written]) for read, written in itertools.pairwise(tensors)],
            reads=[value("x", [2])],
            writes=[value(name, [2]) for name in reversed(tensors[1:])],
            weights=[weight("step", floats(rng, 2))],
        ),
        feeds={"x": floats(rng, 2)},
        cut=("y149",),
        correct="each of the 300 outputs is given once, and they come in the order of the model: the last one first.",
        asserts=(OutputOnce("y0"), OutputOnce("y149"), OutputOnce("y299"), RequiredInputs(part=1, names=("y149",))),
    )


def no_nodes() -> Hazard:
    rng = np.random.default_rng(54)
    return Hazard(
        model=model(
            [],
            reads=[value("x", [2])],
            writes=[value("x", [2]), value("k", [3])],
            weights=[weight("k", floats(rng, 3))],
        ),
        feeds={"x": floats(rng, 2)},
        cut=(),
        correct="nothing to cut: the model is one part, unchanged, or the refusal is polite.",
    )
