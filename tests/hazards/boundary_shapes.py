"""What is known of the shape of what crosses the boundary: all, some sizes by symbol, only the rank, or nothing."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from .building import floats, model, value, weight
from .claims import Claim, HasInput, InputDims, InputRank, OwnSymbol, RequiredInputs
from .hazard import Hazard

INT64 = TensorProto.INT64


def symbolic_dims() -> Hazard:
    return _dims_that_depend(
        "hidden",
        "batch and seq keep their names, and are not frozen to the sizes of a sample run.",
        InputDims("hidden", ("batch", "seq", 8)),
    )


def data_dependent_dim() -> Hazard:
    return _dims_that_depend(
        "places",
        "the second size of places depends on values: it is unknown, or has a symbol that nothing else bears.",
        OwnSymbol("places", axis=1),
    )


def _dims_that_depend(boundary: str, correct: str, claim: Claim) -> Hazard:
    """Two tensors that can cross: `hidden` has symbols of an input, `places` has one size that depends on values."""
    rng = np.random.default_rng(20)
    return Hazard(
        model=model(
            [
                make_node("MatMul", ["x", "w"], ["product"]),
                make_node("Relu", ["product"], ["hidden"]),
                make_node("NonZero", ["mask"], ["places"]),
                make_node("Transpose", ["places"], ["rows"]),
                make_node("GatherND", ["hidden", "rows"], ["kept"]),
                make_node("Shape", ["mask"], ["mask_shape"]),
                make_node("Concat", ["mask_shape", "eight"], ["shape"], axis=0),
                make_node("Reshape", ["hidden", "shape"], ["y"]),
            ],
            reads=[value("x", ["batch", "seq", 4]), value("mask", ["batch", "seq"], INT64)],
            writes=[value("kept", ["n_kept", 8]), value("y", ["batch", "seq", 8])],
            weights=[weight("w", floats(rng, 4, 8)), weight("eight", np.array([8]))],
        ),
        feeds={"x": floats(rng, 2, 3, 4), "mask": np.array([[1, 0, 1], [1, 1, 0]])},
        cut=(boundary,),
        boundary_hint=("hidden", "places"),
        correct=correct,
        asserts=(claim, HasInput(part=1, names=(boundary,))),
    )


def scalar_boundary() -> Hazard:
    return _degenerate_boundary(
        "sum", "a shape without sizes (a scalar) is not a missing shape: rank 0 is declared.", InputRank("sum", 0)
    )


def zero_element_boundary() -> Hazard:
    return _degenerate_boundary(
        "empty", "a tensor of no elements has 0 bytes and must be sent all the same.", InputRank("empty", 2)
    )


def _degenerate_boundary(boundary: str, correct: str, claim: Claim) -> Hazard:
    rng = np.random.default_rng(33)
    return Hazard(
        model=model(
            [
                make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
                make_node("Slice", ["x", "start", "end"], ["empty"]),
                make_node("Concat", ["x", "empty"], ["all"], axis=0),
                make_node("Mul", ["all", "sum"], ["y"]),
            ],
            reads=[value("x", ["n", 4])],
            writes=[value("y", ["n", 4])],
            weights=[weight("start", np.array([0])), weight("end", np.array([0]))],
        ),
        feeds={"x": floats(rng, 3, 4)},
        cut=(boundary,),
        boundary_hint=("sum", "empty"),
        correct=correct,
        asserts=(claim, HasInput(part=1, names=(boundary,))),
    )


def scalar_size_boundary() -> Hazard:
    rng = np.random.default_rng(52)
    return Hazard(
        model=model(
            [
                make_node("Shape", ["x"], ["shape"]),
                make_node("Gather", ["shape", "third"], ["height"]),
                make_node("Mul", ["height", "two"], ["boundary"]),
                make_node("Unsqueeze", ["boundary", "axis"], ["side"]),
                make_node("Slice", ["shape", "start", "end"], ["channels"]),
                make_node("Concat", ["channels", "side", "side"], ["sizes"], axis=0),
                make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
            ],
            reads=[value("x", ["n", 1, "h", "w"])],
            writes=[value("y", ["n", 1, "h2", "w2"])],
            weights=[
                weight("third", np.int64(2)),
                weight("two", np.int64(2)),
                weight("axis", np.array([0])),
                weight("start", np.array([0])),
                weight("end", np.array([2])),
            ],
        ),
        feeds={"x": floats(rng, 1, 1, 3, 3)},
        cut=("boundary",),
        boundary_hint=("boundary", "shape"),
        correct="boundary is declared with an empty shape. ONNX Runtime's Python interface says [] of a scalar and of "
        "an unknown rank; without the rank, part 1 fails to load (the sizes of Resize must be as many as its axes).",
        asserts=(InputRank("boundary", 0),),
    )


def rankless_boundary() -> Hazard:
    rng = np.random.default_rng(49)
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"]), make_node("Neg", ["boundary"], ["y"])],
            reads=[value("x")],
            writes=[value("y")],
        ),
        feeds={"x": floats(rng, 2, 2, 2)},
        cut=("boundary",),
        correct="an element type without a shape is legal for ONNX Runtime: no rank is invented.",
        asserts=(InputRank("boundary", None), RequiredInputs(part=1, names=("boundary",))),
        checker_refuses="shape",
    )
