"""Functions that the model brings along: a part needs all that its nodes reach, at any depth."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto
from onnx.helper import make_attribute, make_attribute_ref, make_function, make_node, make_opsetid

from .building import OPSET, body, floats, model, value
from .claims import HasFunction, RequiredInputs
from .hazard import Hazard


def functions_in_branch() -> Hazard:
    rng = np.random.default_rng(7)
    then_branch = body(
        [make_node("ScaleAdd", ["boundary", "x"], ["then_out"], domain="local", alpha=3.0)], [], [value("then_out")]
    )
    else_branch = body(
        [make_node("ScaleAdd", ["boundary", "x"], ["else_out"], domain="local")], [], [value("else_out")]
    )
    return Hazard(
        model=model(
            [
                make_node("Scale", ["x"], ["boundary"], domain="local", alpha=2.0),
                make_node("If", ["flag"], ["y"], then_branch=then_branch, else_branch=else_branch),
            ],
            reads=[value("x", [4]), value("flag", [], TensorProto.BOOL)],
            writes=[value("y", [4])],
            inner=[value("boundary", [4])],
            functions=[_scale(), _scale_add(), _function("Unused", "Neg")],
            domains={"local": 1},
        ),
        feeds={"x": floats(rng, 4), "flag": np.array(False)},
        cut=("boundary",),
        since=(1, 31),  # before, it fails to infer types in the branch
        correct="part 1 needs ScaleAdd, called only inside a branch, and Scale, called only by ScaleAdd; attributes, "
        "their defaults and references, and the opsets of each function stay.",
        asserts=(
            HasFunction(part=0, functions=(("local", "Scale", ""),)),
            HasFunction(part=1, functions=(("local", "ScaleAdd", ""), ("local", "Scale", ""))),
            RequiredInputs(part=1, names=("boundary", "flag", "x")),
        ),
    )


def _scale() -> FunctionProto:
    """Scale(a) = alpha * a, where alpha has no default."""
    alpha = make_node("Constant", [], ["s"])
    alpha.attribute.append(AttributeProto(name="value_float", ref_attr_name="alpha", type=AttributeProto.FLOAT))
    nodes = [alpha, make_node("Mul", ["a", "s"], ["b"])]
    return make_function("local", "Scale", ["a"], ["b"], nodes, [make_opsetid("", OPSET)], attributes=["alpha"])


def _scale_add() -> FunctionProto:
    """ScaleAdd(a, b) = Scale(a) + b, where alpha has a default and goes on to Scale."""
    scale = make_node("Scale", ["a"], ["t"], domain="local")
    scale.attribute.append(make_attribute_ref("alpha", AttributeProto.FLOAT))
    return make_function(
        "local",
        "ScaleAdd",
        ["a", "b"],
        ["c"],
        [scale, make_node("Add", ["t", "b"], ["c"])],
        [make_opsetid("", OPSET), make_opsetid("local", 1)],
        attribute_protos=[make_attribute("alpha", 0.25)],
    )


def _function(name: str, op: str, overload: str | None = None) -> FunctionProto:
    nodes: list[NodeProto] = [make_node(op, ["a"], ["b"])]
    return make_function("local", name, ["a"], ["b"], nodes, [make_opsetid("", OPSET)], overload=overload)


def function_overload() -> Hazard:
    rng = np.random.default_rng(8)
    return Hazard(
        model=model(
            [
                make_node("F", ["x"], ["boundary"], domain="local", overload="exp"),
                make_node("F", ["boundary"], ["y"], domain="local", overload="neg"),
            ],
            reads=[value("x", [4])],
            writes=[value("y", [4])],
            inner=[value("boundary", [4])],
            functions=[_function("F", "Exp", "exp"), _function("F", "Neg", "neg")],
            domains={"local": 1},
            ir_version=10,
        ),
        feeds={"x": floats(rng, 4)},
        cut=("boundary",),
        since=(1, 27),  # before, it ignores overloads: the numbers are wrong
        correct="a function is told by domain, name and overload, and a node keeps its overload.",
        asserts=(
            HasFunction(part=0, functions=(("local", "F", "exp"),)),
            HasFunction(part=1, functions=(("local", "F", "neg"),)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
    )
