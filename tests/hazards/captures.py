"""What the bodies of If, Loop and Scan read without declaring it."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, TensorProto
from onnx.helper import make_node

from .building import body, floats, model, value, weight
from .claims import HasInitializer, HasInput, RequiredInputs
from .hazard import Hazard

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def if_captures() -> Hazard:
    rng = np.random.default_rng(1)
    then_branch = body(
        [make_node("Add", ["boundary", "w_then"], ["sum"]), make_node("Mul", ["sum", "x2"], ["then_out"])],
        [],
        [value("then_out")],
    )
    else_branch = body([make_node("Sub", ["boundary", "w_else"], ["else_out"])], [], [value("else_out")])
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["r"]),
                make_node("Add", ["r", "w_then"], ["boundary"]),
                make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
                make_node("Greater", ["largest", "zero"], ["positive"]),
                make_node("If", ["positive"], ["chosen"], then_branch=then_branch, else_branch=else_branch),
                make_node("Neg", ["chosen"], ["y"]),
            ],
            reads=[value("x", [3, 4]), value("x2", [3, 4])],
            writes=[value("y", [3, 4])],
            weights=[
                weight("w_then", floats(rng, 4)),
                weight("w_else", floats(rng, 4)),
                weight("zero", np.float32(0)),
            ],
        ),
        feeds={"x": floats(rng, 3, 4), "x2": floats(rng, 3, 4)},
        cut=("boundary",),
        boundary_hint=("boundary", "positive"),
        correct="boundary and x2 are read only inside branches: they become inputs of part 1. w_else is used only "
        "inside a branch and travels with it; w_then is needed by both parts.",
        asserts=(
            HasInitializer(part=0, names=("w_then",)),
            HasInitializer(part=1, names=("w_then", "w_else")),
            HasInput(part=1, names=("boundary", "x2")),
        ),
    )


def nested_captures() -> Hazard:
    rng = np.random.default_rng(2)
    then_branch = body([make_node("Mul", ["total_in", "scale"], ["scaled"])], [], [value("scaled")])
    else_branch = body([make_node("Add", ["total_in", "boundary"], ["added"])], [], [value("added")])
    step = body(
        [
            make_node("Greater", ["i", "one"], ["late"]),
            make_node("If", ["late"], ["total_out"], then_branch=then_branch, else_branch=else_branch),
            make_node("Identity", ["go_in"], ["go_out"]),
        ],
        [value("i", [], INT64), value("go_in", [], BOOL), value("total_in")],
        [value("go_out", [], BOOL), value("total_out")],
    )
    return Hazard(
        model=model(
            [make_node("Tanh", ["x"], ["boundary"]), make_node("Loop", ["trips", "go", "x0"], ["y"], body=step)],
            reads=[value("x", [2, 3]), value("x0", [2, 3])],
            writes=[value("y", [2, 3])],
            weights=[
                weight("trips", np.int64(4)),
                weight("go", np.True_),
                weight("one", np.int64(1)),
                weight("scale", np.float32(0.5)),
            ],
        ),
        feeds={"x": floats(rng, 2, 3), "x0": floats(rng, 2, 3)},
        cut=("boundary",),
        correct="what a body captures is found at any depth: one is read in the Loop, boundary and scale in an If.",
        asserts=(
            HasInitializer(part=1, names=("one", "scale")),
            RequiredInputs(part=1, names=("boundary", "x0")),
        ),
    )


def scan_capture() -> Hazard:
    rng = np.random.default_rng(3)
    step = body(
        [
            make_node("Add", ["state_in", "row"], ["sum"]),
            make_node("Add", ["sum", "boundary"], ["state_out"]),
            make_node("Identity", ["state_out"], ["row_out"]),
        ],
        [value("state_in", [3]), value("row", [3])],
        [value("state_out", [3]), value("row_out", [3])],
    )
    return Hazard(
        model=model(
            [
                make_node("Sin", ["b"], ["boundary"]),
                make_node("Scan", ["start", "x"], ["last", "rows"], body=step, num_scan_inputs=1),
                make_node("Exp", ["rows"], ["y"]),
            ],
            reads=[value("b", [3]), value("start", [3]), value("x", [5, 3])],
            writes=[value("last", [3]), value("y", [5, 3])],
        ),
        feeds={"b": floats(rng, 3), "start": floats(rng, 3), "x": floats(rng, 5, 3)},
        cut=("boundary",),
        correct="boundary is read only inside the Scan body.",
        asserts=(RequiredInputs(part=1, names=("boundary", "start", "x")),),
    )


def loop_scan_output() -> Hazard:
    step = body(
        [make_node("Add", ["i", "boundary"], ["row"]), make_node("Identity", ["go_in"], ["go_out"])],
        [value("i", [], INT64), value("go_in", [], BOOL)],
        [value("go_out", [], BOOL), value("row", elem=INT64)],
    )
    return Hazard(
        model=model(
            [make_node("Abs", ["x"], ["boundary"]), make_node("Loop", ["trips", ""], ["y"], body=step)],
            reads=[value("x", [2], INT64)],
            writes=[value("y", ["t", 2], INT64)],
            weights=[weight("trips", np.int64(3))],
        ),
        feeds={"x": np.array([-1, 4])},
        cut=("boundary",),
        correct="the condition '' stays in its place, the body captures boundary, and the length of y stays open.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
    )


def loop_hands_out_capture() -> Hazard:
    rng = np.random.default_rng(101)
    step = body(
        [
            make_node("Identity", ["boundary"], ["row"]),
            make_node("Add", ["total_in", "boundary"], ["total_out"]),
            make_node("Identity", ["go_in"], ["go_out"]),
        ],
        [value("i", [], INT64), value("go_in", [], BOOL), value("total_in", [3])],
        [value("go_out", [], BOOL), value("total_out", [3]), value("row", [3])],
    )
    return Hazard(
        model=model(
            [make_node("Tanh", ["x"], ["boundary"]), make_node("Loop", ["trips", "", "x0"], ["last", "y"], body=step)],
            reads=[value("x", [3]), value("x0", [3])],
            writes=[value("y", ["t", 3]), value("last", [3])],
            weights=[weight("trips", np.int64(2))],
        ),
        feeds={"x": floats(rng, 3), "x0": floats(rng, 3)},
        cut=("boundary",),
        correct="an output of the body is an outer value that went through Identity: boundary must reach part 1. (ONNX "
        "Runtime and the checker refuse a body that names the outer value itself as its output.)",
        asserts=(RequiredInputs(part=1, names=("boundary", "x0")),),
    )


def sibling_bodies_reuse_names() -> Hazard:
    rng = np.random.default_rng(4)

    def branch(first: str, second: str, captured: str) -> GraphProto:
        return body(
            [make_node(first, [captured], ["inner"]), make_node(second, ["inner"], ["result"])], [], [value("result")]
        )

    return Hazard(
        model=model(
            [
                make_node("Sigmoid", ["x"], ["early"]),
                make_node(
                    "If",
                    ["flag"],
                    ["boundary"],
                    then_branch=branch("Neg", "Abs", "early"),
                    else_branch=branch("Exp", "Relu", "early"),
                ),
                make_node(
                    "If",
                    ["flag"],
                    ["late"],
                    then_branch=branch("Neg", "Abs", "boundary"),
                    else_branch=branch("Exp", "Relu", "boundary"),
                ),
                make_node("Add", ["late", "early"], ["y"]),
            ],
            reads=[value("x", [4]), value("flag", [], BOOL)],
            writes=[value("y", [4])],
        ),
        feeds={"x": floats(rng, 4), "flag": np.array(True)},
        cut=("boundary",),
        boundary_hint=("boundary", "early"),
        correct="inner and result belong to each body alone: one flat table of names would see two producers.",
        asserts=(RequiredInputs(part=1, names=("boundary", "early", "flag")),),
    )


def body_input_hides_outer_name() -> Hazard:
    rng = np.random.default_rng(102)
    step = body(
        [make_node("Add", ["hidden", "boundary"], ["hidden_out"]), make_node("Identity", ["go_in"], ["go_out"])],
        [value("i", [], INT64), value("go_in", [], BOOL), value("hidden", [3])],
        [value("go_out", [], BOOL), value("hidden_out", [3])],
    )
    return Hazard(
        model=model(
            [
                make_node("Exp", ["x"], ["hidden"]),
                make_node("Neg", ["hidden"], ["boundary"]),
                make_node("Loop", ["trips", "", "x0"], ["y"], body=step),
            ],
            reads=[value("x", [3]), value("x0", [3])],
            writes=[value("y", [3])],
            weights=[weight("trips", np.int64(2))],
        ),
        feeds={"x": floats(rng, 3), "x0": floats(rng, 3)},
        cut=("boundary",),
        correct="the body's own hidden wins over the outer one, which therefore does not cross.",
        asserts=(RequiredInputs(part=1, names=("boundary", "x0")),),
    )


def body_weight_hides_outer_name() -> Hazard:
    rng = np.random.default_rng(115)
    then_branch = body([make_node("Add", ["boundary", "hidden"], ["then_out"])], [], [value("then_out", [3])])
    then_branch.initializer.append(weight("hidden", floats(rng, 3)))
    else_branch = body([make_node("Abs", ["boundary"], ["else_out"])], [], [value("else_out", [3])])
    return Hazard(
        model=model(
            [
                make_node("Exp", ["x"], ["hidden"]),
                make_node("Neg", ["hidden"], ["boundary"]),
                make_node("If", ["flag"], ["y"], then_branch=then_branch, else_branch=else_branch),
            ],
            reads=[value("x", [3]), value("flag", [], BOOL)],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3), "flag": np.array(True)},
        cut=("boundary",),
        correct="the branch has a weight of its own called hidden: the outer tensor of that name does not cross.",
        asserts=(RequiredInputs(part=1, names=("boundary", "flag")),),
    )
