"""The shape of the graph itself: order, depth, places of inputs and outputs, and the names of things."""

from __future__ import annotations

import itertools

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from .building import floats, model, value, weight
from .claims import HasInput, OutputOnce, RequiredInputs
from .hazard import Hazard


def empty_slots() -> Hazard:
    rng = np.random.default_rng(15)
    hidden = 3
    return Hazard(
        model=model(
            [
                make_node("LSTM", ["x", "w", "r", "", "", "h0"], ["", "boundary", ""], hidden_size=hidden),
                make_node("Clip", ["boundary", "", "most"], ["clipped"]),
                make_node("Resize", ["img", "", "scales"], ["resized"], mode="nearest"),
                make_node("ReduceMean", ["resized"], ["mean"], keepdims=0),
                make_node("Add", ["clipped", "mean"], ["y"]),
                make_node("Squeeze", ["boundary", "axis"], ["flat"]),
                make_node("TopK", ["flat", "one"], ["best", "place"]),
            ],
            reads=[value("x", [4, 2, 5]), value("h0", [1, 2, hidden]), value("img", [1, 1, 2, 2])],
            writes=[value("y", [1, 2, hidden]), value("place", [2, 1], TensorProto.INT64)],
            weights=[
                weight("w", floats(rng, 1, 4 * hidden, 5)),
                weight("r", floats(rng, 1, 4 * hidden, hidden)),
                weight("most", np.float32(0.05)),
                weight("scales", np.array([1, 1, 2, 2], np.float32)),
                weight("axis", np.array([0])),
                weight("one", np.array([1])),
            ],
        ),
        feeds={"x": floats(rng, 4, 2, 5), "h0": floats(rng, 1, 2, hidden), "img": floats(rng, 1, 1, 2, 2)},
        cut=("boundary",),
        correct="'' is not a tensor: it never crosses, two nodes may write it, and it keeps its place.",
        asserts=(HasInput(part=1, names=("boundary",)),),
    )


def one_of_three_outputs() -> Hazard:
    rng = np.random.default_rng(25)
    return Hazard(
        model=model(
            [
                make_node("Split", ["x"], ["a", "b", "c"], axis=1),
                make_node("Relu", ["a"], ["relu"]),
                make_node("Exp", ["b"], ["exp"]),
                make_node("Neg", ["c"], ["neg"]),
                make_node("Concat", ["relu", "exp", "neg"], ["y"], axis=1),
            ],
            reads=[value("x", [2, 6])],
            writes=[value("y", [2, 6])],
        ),
        feeds={"x": floats(rng, 2, 6)},
        cut=("a",),
        boundary_hint=("a", "b", "c"),
        correct="all used outputs of Split cross, or part 1 has a Split of its own with all three in their places. To "
        "take a out of the outputs makes b the first slice: wrong numbers, and no error.",
        asserts=(HasInput(part=1, names=("a",)),),
    )


def skip_over_middle_part() -> Hazard:
    rng = np.random.default_rng(51)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["skip"]),
                make_node("Exp", ["skip"], ["middle"]),
                make_node("Tanh", ["middle"], ["t"]),
                make_node("Add", ["t", "skip"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("skip", "middle"),
        correct="part 0 makes skip, parts 1 and 2 read it, and part 1 does not relay it.",
        asserts=(
            OutputOnce("skip"),
            RequiredInputs(part=1, names=("skip",)),
            RequiredInputs(part=2, names=("middle", "skip")),
        ),
    )


def cyclic_assignment() -> Hazard:
    rng = np.random.default_rng(30)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["start"]),
                make_node("Exp", ["start"], ["detour"]),
                make_node("Add", ["start", "detour"], ["y"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=(),
        correct="part 0 needs detour from part 1, which needs start from part 0: refuse, or repair to three parts.",
        assign={"start": 0, "detour": 1, "y": 0},
        refused="detour",
    )


def unsorted_nodes() -> Hazard:
    rng = np.random.default_rng(27)
    return Hazard(
        model=model(
            [
                make_node("Neg", ["boundary"], ["y"]),
                make_node("Add", ["relu", "one"], ["boundary"]),
                make_node("Relu", ["x"], ["relu"]),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
            weights=[weight("one", np.float32(1))],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="nodes out of order break the spec, and ONNX Runtime runs them: sort (stably) when opening the model.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
        checker_refuses="topologically sorted",
    )


def deep_chain() -> Hazard:
    rng = np.random.default_rng(29)
    depth = 3000
    tensors = ["x", *(f"t{index}" for index in range(depth)), "y"]
    return Hazard(
        model=model(
            [
                make_node("Neg" if index % 3 else "Relu", [read], [written], name=f"n{index}")
                for index, (read, written) in enumerate(itertools.pairwise(tensors))
            ],
            reads=[value("x", [2])],
            writes=[value("y", [2])],
        ),
        feeds={"x": floats(rng, 2)},
        cut=("t1500",),
        correct="nothing recurses along the graph, and all is done in linear time.",
        asserts=(RequiredInputs(part=1, names=("t1500",)),),
    )


def ugly_names() -> Hazard:
    rng = np.random.default_rng(26)
    ugly = ["/model/layer.0/act:0", "a|b c?*<>.onnx", "ü/出力"]
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], [ugly[0]], name=""),
                make_node("Neg", [ugly[0]], [ugly[1]], name="/model/n:1"),
                make_node("Exp", [ugly[1]], [ugly[2]], name="ü"),
                make_node("Tanh", [ugly[2]], ["y"], name=""),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=(ugly[1],),
        correct="tensors keep their names to the letter and never name a file; nodes without a name are told apart.",
        asserts=(RequiredInputs(part=1, names=(ugly[1],)),),
    )


def duplicate_node_names() -> Hazard:
    rng = np.random.default_rng(26)
    return Hazard(
        model=model(
            [
                make_node("Relu", ["x"], ["a"], name="twin"),
                make_node("Neg", ["a"], ["boundary"], name="twin"),
                make_node("Exp", ["boundary"], ["b"], name="twin"),
                make_node("Tanh", ["b"], ["y"], name="other"),
            ],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="nodes are not told by their names. The uncut model runs once they are renamed; a replica of a node "
        "must not make a second one of its name either.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
        ort_refuses="two nodes with same node name",
    )


def default_domain_by_its_other_name() -> Hazard:
    rng = np.random.default_rng(43)
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"], domain="ai.onnx"), make_node("Neg", ["boundary"], ["y"])],
            reads=[value("x", [3])],
            writes=[value("y", [3])],
        ),
        feeds={"x": floats(rng, 3)},
        cut=("boundary",),
        correct="'' and 'ai.onnx' are the same domain.",
        asserts=(RequiredInputs(part=1, names=("boundary",)),),
        checker_refuses="No opset import for domain 'ai.onnx'",
    )
