"""Where two models begin to differ is found by bisection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log2
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import ModelComparison, UsageError

from cases import seeded
from conftest import floats, model_of

OPERATORS = ("Add", "Sub", "Max", "Min")
X = {"x": np.linspace(-2, 2, 8, dtype=np.float32)}


def random_model(rng: np.random.Generator, nodes: int) -> ModelProto:
    """Nodes that each read two earlier tensors, or a weight and one; the last ones are outputs."""
    names, made = ["x"], list[NodeProto]()
    weights = [numpy_helper.from_array(rng.standard_normal(8).astype(np.float32), f"w{i}") for i in range(nodes)]
    for i in range(nodes):
        one, two = (names[-1 - int(rng.integers(min(len(names), 6)))] for _ in range(2))
        reads = [one, f"w{i}"] if rng.random() < 0.5 else [one, two]
        made.append(helper.make_node(OPERATORS[rng.integers(2)], reads, [f"t{i}"], name=f"n{i}"))
        names.append(f"t{i}")
    read = {name for node in made for name in node.input}
    outputs = [floats(name, 8) for name in names[1:] if name not in read]
    return model_of(made, [floats("x", 8)], outputs, [w for w in weights if w.name in read])


def changed(model: ModelProto, indices: Sequence[int]) -> ModelProto:
    """Another operator in these nodes, or other values of their weight."""
    other = ModelProto()
    other.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in other.graph.initializer}
    for i in indices:
        node = other.graph.node[i]
        if tensor := weights.get(node.input[1]):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.5), tensor.name))
        else:
            node.op_type = "Max" if node.op_type == "Add" else "Add"
    return other


def all_values(model: ModelProto) -> dict[str, Any]:
    whole = ModelProto()
    whole.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node]
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return dict(zip(names, ort.InferenceSession(whole.SerializeToString(), options).run(names, X), strict=True))


def bound(found: ModelComparison) -> int:
    return ceil(log2(found.common)) + 1


@seeded(4)
def test_one_change_at_a_random_place_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, 40)
    place = int(rng.integers(40))
    other = changed(model, [place])
    found = graphcut.compare_models(model, other, inputs=[X])
    values, others = all_values(model), all_values(other)
    differs = any(not np.array_equal(values[one.name], others[one.name]) for one in model.graph.output)
    assert found.same is not differs
    assert found.runs <= bound(found)
    if found.first is not None:
        assert (found.first.tensor, found.node) == (f"t{place}", f"n{place}")
        assert found.sources == tuple(dict.fromkeys(n for n in model.graph.node[place].input if n.startswith("t")))


@seeded(4)
def test_of_several_changes_one_is_found_before_which_nothing_differs(seed: int) -> None:
    """Also where the other model has other names for a third of the tensors."""
    rng = np.random.default_rng(100 + seed)
    model = random_model(rng, 60)
    other = changed(model, rng.integers(60, size=5).tolist())
    values, others = all_values(model), all_values(other)
    outputs = {one.name for one in model.graph.output}
    renamed = {f"t{i}" for i in range(60) if rng.random() < 0.33} - outputs
    for node in other.graph.node:
        node.input[:] = [f"{name}'" if name in renamed else name for name in node.input]
        node.output[:] = [f"{name}'" if name in renamed else name for name in node.output]
    found = graphcut.compare_models(model, other, inputs=[X])
    assert found.first is not None
    assert found.runs <= bound(found)
    assert not np.array_equal(values[found.first.tensor], others[found.first.tensor])
    assert {*found.sources} == nearest(model, found.first.tensor, renamed)
    assert all(np.array_equal(values[name], others[name]) for name in found.sources)


def nearest(model: ModelProto, target: str, renamed: set[str]) -> set[str]:
    """The tensors with their own names from which a path leads to `target` by way of renamed ones alone."""
    graph = nx.DiGraph((read, node.output[0]) for node in model.graph.node for read in node.input if read[0] == "t")
    graph.add_node(target)
    kept = set(graph.nodes) - renamed - {target}
    inner = {name: graph.subgraph({*renamed, name, target}) for name in kept & nx.ancestors(graph, target)}
    return {name for name, paths in inner.items() if nx.has_path(paths, name, target)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each run of ONNX Runtime is asked for."""
    found: list[int] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]
        def run_with_ort_values(self, names: list[str], *rest: object) -> object:
            found.append(len(names))
            return super().run_with_ort_values(names, *rest)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    return found


def test_a_chain_takes_a_logarithmic_number_of_runs_and_one_tensor_in_each(asked: list[int]) -> None:
    names = ["x", *(f"t{i}" for i in range(500))]
    chain = [helper.make_node("Neg", [a], [b], name=b) for a, b in pairwise(names)]
    model = model_of(chain, [floats("x", 8)], [floats("t499", 8)])
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.node[123].op_type = "Abs"
    found = graphcut.compare_models(model, other, inputs=[X])
    assert found.node == "t123"
    assert asked == [1] * 2 * found.runs
    assert found.runs <= 10


def test_what_ends_before_the_output_that_differs_is_not_compared(asked: list[int]) -> None:
    """x -> a0 -> ... -> a3 is read by each of 20 outputs; the last one differs."""
    nodes = [helper.make_node("Neg", ["x" if i == 0 else f"a{i - 1}"], [f"a{i}"]) for i in range(4)]
    nodes += [helper.make_node("Relu", ["a3"], [f"y{i}"]) for i in range(20)]
    model = model_of(nodes, [floats("x", 8)], [floats(f"y{i}", 8) for i in range(20)])
    other = ModelProto()
    other.CopyFrom(model)
    other.graph.node[-1].op_type = "Abs"
    found = graphcut.compare_models(model, other, inputs=[X])
    assert (found.node, found.sources) == ("y19", ("a3",))
    assert asked[:2] == [20, 20]
    assert set(asked[2:]) == {1}


def test_floats_of_other_types_are_compared_as_numbers_with_a_tolerance(tmp_path: Path) -> None:
    """The same network in float32 and float16, each tensor under its name; large tensors, too."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((400, 400)).astype(np.float32)
    paths = []
    for kind, dtype in ((TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="product"), helper.make_node("Relu", ["a"], ["y"])]
        ends = [helper.make_tensor_value_info(name, kind, [400, 400]) for name in ("x", "y")]
        weight = numpy_helper.from_array((values / 20).astype(dtype), "w")
        paths.append(tmp_path / f"{np.dtype(dtype)}.onnx")
        onnx.save(model_of(nodes, ends[:1], ends[1:], [weight]), paths[-1])
    feeds = [{"x": values}]
    assert graphcut.compare_models(*paths, inputs=feeds, tolerance=5e-3)
    found = graphcut.compare_models(*paths, inputs=feeds)
    assert (found.node, found.sources) == ("product", ())
    assert found.first is not None
    assert 0 < found.first.max_abs < 0.1


def test_random_tensors_are_not_compared() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("RandomNormalLike", ["a"], ["noise"]),
        helper.make_node("Add", ["a", "noise"], ["y"]),
        helper.make_node("Neg", ["a"], ["z"]),
    ]
    model = model_of(nodes, [floats("x", 8)], [floats("y", 8), floats("z", 8)])
    found = graphcut.compare_models(model, model, inputs=[X])
    assert found
    assert ([one.tensor for one in found.outputs], found.common) == (["z"], 2)


def test_models_with_other_inputs_or_outputs_are_refused() -> None:
    one, two = (model_of([helper.make_node("Relu", [a], [b])], [floats(a, 8)], [floats(b, 8)]) for a, b in ("xy", "xz"))
    with pytest.raises(UsageError, match=r"computes no output of"):
        graphcut.compare_models(one, two)
    three = model_of([helper.make_node("Relu", ["w"], ["y"])], [floats("w", 8)], [floats("y", 8)])
    with pytest.raises(UsageError, match=r"has an input 'w', and .* has none"):
        graphcut.compare_models(one, three)
