"""Random models, cut at random: bit-identical, and the manifest tells the same wiring as the plan."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, SessionConfig, UsageError
from graphcut.verifying.numerical import compare
from graphcut.verifying.structural import prove

from conftest import floats

SHAPE = (2, 3)
UNARY = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")
BINARY = ("Add", "Mul", "Sub", "Max")


@dataclass
class Sketch:
    """A model as it grows: every tensor is float32[2,3], so anything can read anything."""

    draw: Callable[..., object]
    tensors: list[str] = field(default_factory=lambda: ["x0", "x1"])
    constants: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)

    def name(self, kind: str) -> str:
        return f"{kind}{len(self.nodes)}"

    def pick(self) -> str:
        return str(self.draw(st.sampled_from(self.tensors + self.constants + self.weights)))

    def add(self, node: NodeProto, kind: list[str]) -> None:
        self.nodes.append(node)
        kind.extend(node.output)

    def grow(self) -> None:
        choice = self.draw(st.sampled_from(("unary", "binary", "binary", "split", "if", "constant", "weight")))
        out = self.name("t")
        match choice:
            case "unary":
                op = str(self.draw(st.sampled_from(UNARY)))
                self.add(helper.make_node(op, [self.pick()], [out], name=self.name("n")), self.tensors)
            case "binary":
                op = str(self.draw(st.sampled_from(BINARY)))
                self.add(helper.make_node(op, [self.pick(), self.pick()], [out], name=self.name("n")), self.tensors)
            case "split":
                halves = [self.name("left"), self.name("right")]
                self.nodes.append(
                    helper.make_node("Split", [self.pick(), "sizes"], halves, axis=1, name=self.name("n"))
                )
                self.add(helper.make_node("Concat", halves[::-1], [out], axis=1, name=self.name("n")), self.tensors)
            case "if":
                self.add(self.branch(out), self.tensors)
            case "constant":
                self.add(helper.make_node("Constant", [], [out], value=array(out, len(self.nodes))), self.constants)
            case _:
                self.weights.append(f"w{len(self.weights)}")

    def branch(self, out: str) -> NodeProto:
        """An If whose branches capture what stands outside; one of them reads nothing at all by its inputs."""

        def body(op: str, name: str) -> onnx.GraphProto:
            inner = helper.make_node(op, [self.pick(), self.pick()], [f"{out}_{name}"])
            return helper.make_graph([inner], name, [], [helper.make_empty_tensor_value_info(f"{out}_{name}")])

        then, otherwise = body("Add", "then"), body("Mul", "else")
        return helper.make_node("If", ["flag"], [out], name=self.name("if"), then_branch=then, else_branch=otherwise)


def array(name: str, seed: int) -> TensorProto:
    return numpy_helper.from_array(np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32), name)


@st.composite
def models(draw: Callable[..., object]) -> ModelProto:
    sketch = Sketch(draw)
    for _ in range(int(str(draw(st.integers(3, 16))))):
        sketch.grow()
    outputs = draw(st.lists(st.sampled_from(sketch.tensors), min_size=1, max_size=3, unique=True))
    assert isinstance(outputs, list)
    weights = [array(name, 100 + i) for i, name in enumerate(sketch.weights)]
    weights.append(numpy_helper.from_array(np.array([1, 2]), "sizes"))
    inputs = [
        floats("x0", *SHAPE),
        floats("x1", "rows", 3),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph(sketch.nodes, "g", inputs, [floats(name, *SHAPE) for name in outputs], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(proto=models(), data=st.data())
def test_a_random_model_split_at_random_is_bit_identical(proto: ModelProto, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        path = Path(folder, "model.onnx")
        onnx.save(proto, path)
        model = graphcut.load(path)
        if not model.graph.flow:
            return
        names = [model.graph.nodes[i].name for i in model.graph.flow]
        goal = At(tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))))
        try:
            plan = graphcut.plan(graphcut.analyze(model), goal)
        except UsageError as refusal:
            assert "last part would be empty" in str(refusal)  # noqa: PT017 - that is the only one it may be
            return
        cascade = graphcut.split(model, plan, weights=data.draw(st.sampled_from(("copy", "share"))), digest=True)
        assert cascade.wiring == plan.partition.wiring
        assert prove(model, cascade).objections == graphcut.verify_files(cascade).objections == ()
        rng = np.random.default_rng(0)
        feeds = {
            "x0": rng.standard_normal(SHAPE).astype(np.float32),
            "x1": rng.standard_normal(SHAPE).astype(np.float32),
            "flag": np.array(data.draw(st.booleans())),
        }
        assert [c for c in compare(model, cascade, feeds, optimized=False) if not c.is_identical] == []
        check_against_the_untouched_file(path, cascade, feeds)


def check_against_the_untouched_file(path: Path, cascade: graphcut.Cascade, feeds: Mapping[str, object]) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    expected = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))
    ours = graphcut.run(cascade, feeds, config=SessionConfig(optimize="none"))
    for mine, theirs in zip(ours.values(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
