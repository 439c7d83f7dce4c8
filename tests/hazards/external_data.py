"""Weights that lie in files beside the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_function, make_node, make_opsetid

from .building import OPSET, floats, model, value
from .claims import HasFunction, HasInitializer, RequiredInputs
from .hazard import Hazard


def _external(
    name: str,
    values: NDArray[np.float32],
    location: str,
    *,
    offset: int | None = None,
    says_length: bool = True,
) -> TensorProto:
    """A tensor of the type and shape of `values`, with a note of where they lie and nothing else."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=values.shape)
    tensor.data_location = TensorProto.EXTERNAL
    length = values.nbytes if says_length else None
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        if entry is not None:
            tensor.external_data.add(key=key, value=str(entry))
    return tensor


def external_data() -> Hazard:
    rng = np.random.default_rng(11)
    w1, b, c, w2 = floats(rng, 64, 64), floats(rng, 64), floats(rng, 64), floats(rng, 64, 64)
    before_w1, before_b, before_c = b"\0" * 4096, b"\x11" * 101, b"\x33" * 7
    nested = before_w1 + w1.tobytes() + before_b + b.tobytes() + b"\x22" * 33
    flat = before_c + c.tobytes() + w2.tobytes()
    b_offset = len(before_w1) + w1.nbytes + len(before_b)
    return Hazard(
        model=model(
            [
                make_node("MatMul", ["x", "w1"], ["a"]),
                make_node("Add", ["a", "b"], ["boundary"]),
                make_node("Constant", [], ["c"], value=_external("", c, "flat.bin", offset=len(before_c))),
                make_node("MatMul", ["boundary", "w2"], ["d"]),
                make_node("Add", ["d", "b"], ["e"]),
                make_node("Add", ["e", "c"], ["y"]),
            ],
            reads=[value("x", [2, 64])],
            writes=[value("y", [2, 64])],
            weights=[
                _external("w1", w1, "sub/nested.bin", offset=len(before_w1)),
                _external("w2", w2, "flat.bin", offset=len(before_c) + c.nbytes, says_length=False),
                _external("b", b, "sub/nested.bin", offset=b_offset),
            ],
        ),
        feeds={"x": floats(rng, 2, 64)},
        cut=("boundary",),
        correct="two files, one in a folder; unaligned offsets; a weight that both parts use; a length that is left "
        "out and means the size of the tensor; external data in a Constant. Parts refer to the same bytes where they "
        "stand beside or above the files, and else get copies of the ranges.",
        asserts=(
            HasInitializer(part=0, names=("w1", "b")),
            HasInitializer(part=1, names=("w2", "b")),
            RequiredInputs(part=1, names=("boundary",)),
        ),
        files={"sub/nested.bin": nested, "flat.bin": flat},
    )


def external_data_without_offset() -> Hazard:
    rng = np.random.default_rng(107)
    first, second = floats(rng, 8, 8), floats(rng, 8, 8)
    return Hazard(
        model=model(
            [make_node("MatMul", ["x", "first"], ["boundary"]), make_node("MatMul", ["boundary", "second"], ["y"])],
            reads=[value("x", [2, 8])],
            writes=[value("y", [2, 8])],
            weights=[
                _external("first", first, "first.bin"),
                _external("second", second, "second.bin", says_length=False),
            ],
        ),
        feeds={"x": floats(rng, 2, 8)},
        cut=("boundary",),
        correct="no offset means 0, and a lone location is the whole of a file.",
        asserts=(
            HasInitializer(part=0, names=("first",)),
            HasInitializer(part=1, names=("second",)),
            RequiredInputs(part=1, names=("boundary",)),
        ),
        files={"first.bin": first.tobytes(), "second.bin": second.tobytes()},
    )


def external_data_in_nested_function() -> Hazard:
    rng = np.random.default_rng(108)
    w = floats(rng, 4, 4)
    inner = make_function(
        "local",
        "Project",
        ["a"],
        ["b"],
        [
            make_node("Constant", [], ["w"], value=_external("", w, "function.bin", offset=16)),
            make_node("MatMul", ["a", "w"], ["b"]),
        ],
        [make_opsetid("", OPSET)],
    )
    outer = make_function(
        "local",
        "Layer",
        ["a"],
        ["b"],
        [make_node("Project", ["a"], ["p"], domain="local"), make_node("Tanh", ["p"], ["b"])],
        [make_opsetid("", OPSET), make_opsetid("local", 1)],
    )
    return Hazard(
        model=model(
            [make_node("Relu", ["x"], ["boundary"]), make_node("Layer", ["boundary"], ["y"], domain="local")],
            reads=[value("x", [2, 4])],
            writes=[value("y", [2, 4])],
            inner=[value("boundary", [2, 4])],
            functions=[inner, outer],
            domains={"local": 1},
            ir_version=10,
        ),
        feeds={"x": floats(rng, 2, 4)},
        cut=("boundary",),
        correct="the only weight lies in a file, named by a Constant in a function that only another function calls: "
        "its bytes go with part 1, and count for it.",
        asserts=(
            HasFunction(part=1, functions=(("local", "Layer", ""), ("local", "Project", ""))),
            RequiredInputs(part=1, names=("boundary",)),
        ),
        files={"function.bin": b"\x44" * 16 + w.tobytes()},
    )
