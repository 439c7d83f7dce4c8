"""Operators without a rule: what running them shows, where it is kept, and what is proven with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

import graphcut
from graphcut import Model, Verification
from graphcut.core.atomic_files import cache_folder
from graphcut.sharding.axes.factors import Factor, Place
from graphcut.verifying import found_rules
from graphcut.verifying.found_rules import find_rules
from graphcut.verifying.operator_runs import OperatorRuns

from cases import each
from conftest import floats, model_of

Open = Callable[[ModelProto], Model]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "graphcut" / "axis-rules"


def weights_of(**shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    rng = np.random.default_rng(3)
    return [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()]


def mlp(*between: NodeProto) -> ModelProto:
    """x → MatMul → h → ... → s → MatMul → y, with eight columns between."""
    ends = [
        helper.make_node("MatMul", reads, [out], name=reads[1])
        for reads, out in ((["x", "up"], "h"), (["s", "down"], "y"))
    ]
    weights = weights_of(up=(6, 8), down=(8, 6))
    return model_of([ends[0], *between, ends[1]], [floats("x", "n", 6)], [floats("y", "n", 6)], weights)


NORM = helper.make_node("LpNormalization", ["h"], ["s"], axis=0, name="norm")


def with_function() -> ModelProto:
    """A custom operator: a function that multiplies by a weight, and adds and scales."""
    body = onnx.parser.parse_function(
        '<opset_import: ["": 17], domain: "own"> Dense (a, w, b) => (y)'
        " { p = MatMul (a, w) q = Add (p, b) y = Tanh (q) }"
    )
    nodes = [helper.make_node("Dense", ["x", "w", "b"], ["h"], domain="own", name="dense")]
    nodes.append(helper.make_node("MatMul", ["h", "down"], ["y"], name="down"))
    weights = weights_of(w=(6, 8), b=(8,), down=(8, 5))
    model = model_of(nodes, [floats("x", 3, 6)], [floats("y", 3, 5)], weights)
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def test_an_operator_without_a_rule_blocks_its_class_until_it_was_run(opened: Open, tmp_path: Path) -> None:
    model = opened(mlp(NORM))
    (rule,) = find_rules(model)
    factor = Factor(8, (Place(0, 1),), (Place(0, 1),))
    assert (rule.op, rule.factors, rule.problem) == ("LpNormalization", (factor,), "")
    assert str(rule) == "LpNormalization (1 node): axis 1 of input 0 → axis 1 of output 0 (8 units)"
    for discover, nodes in ((False, [["up"], ["down"]]), (True, [["up", "norm", "down"]])):
        made = graphcut.shard(model, tmp_path / "made.onnx", ranks=2, mode="sum", discover=discover, force=True)
        names = [[model.graph.nodes[node].name for node in one.factors] for one in made.division.classes]
        assert sorted(map(sorted, names)) == sorted(map(sorted, nodes))


def verified(model: Model, path: Path) -> Verification:
    report = graphcut.verify(model, path)
    assert report.same, report
    return report


@each("mode", ["exact", "sum"])
@each("make", [with_function, lambda: mlp(NORM)], ids=["function", "operator"])
def test_what_was_found_divides_and_verify_says_that_it_is_not_proven(
    make: Callable[[], ModelProto], mode: str, opened: Open, tmp_path: Path
) -> None:
    model = opened(make())
    made = graphcut.shard(model, tmp_path / "made.onnx", shares=(1, 1), mode=mode, discover=True)  # type: ignore[arg-type]
    report = verified(model, made.path)
    assert "found by running nodes, not proven" in report.reason
    proto = onnx.load(made.path)
    changed = next(tensor for tensor in proto.graph.initializer if tensor.name.endswith(".rank-0"))
    changed.raw_data = changed.raw_data[::-1]
    onnx.save(proto, made.path)
    assert not graphcut.verify(model, made.path, structural_only=True)


def test_parts_of_ranks_with_a_found_rule_are_verified(opened: Open, tmp_path: Path) -> None:
    model = opened(with_function())
    cascade = graphcut.split_by_rank(model, tmp_path / "parts", ranks=2, discover=True)
    report = graphcut.verify(model, cascade)
    assert report.same, report
    assert "own.Dense" in report.reason


def test_what_was_found_is_kept_for_nodes_that_are_alike_and_runs_once(
    opened: Open, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = helper.make_node("LpNormalization", ["t"], ["s"], axis=0, name="again")
    first = helper.make_node("LpNormalization", ["h"], ["t"], axis=0, name="norm")
    model = opened(mlp(first, again))
    (rule,) = find_rules(model)
    assert len(rule.nodes) == 2
    (file,) = cache.iterdir()
    monkeypatch.setattr(ort, "InferenceSession", None)
    assert find_rules(model) == (rule,)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent))
    kept = file.read_bytes()
    file.write_text('[[{"units": "many"}], ""]')
    assert find_rules(model) == (rule,)
    assert file.read_bytes() == kept


def test_the_folder_is_bounded_and_need_not_be_writable(
    opened: Open, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_rules, "MOST_FILES", 2)
    for p in (1, 2):
        find_rules(opened(mlp(helper.make_node("LpNormalization", ["h"], ["s"], axis=0, p=p, name="norm"))))
    find_rules(opened(mlp(helper.make_node("Hardmax", ["h"], ["s"], axis=0, name="hardmax"))))
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert find_rules(opened(mlp(NORM)))[0].factors
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().name == "graphcut"


def test_a_node_with_large_inputs_is_not_tried(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_rules, "MOST_BYTES", 31)
    (rule,) = find_rules(opened(mlp(NORM)))
    assert (rule.factors, rule.problem) == ((), "not tried, since its inputs take 32 B")


def factors_of(op: str, *inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]], **attributes: int) -> list[Factor]:
    reads = [f"x{slot}" for slot in range(len(inputs))]
    nodes = [helper.make_node(op, reads, ["y"], op, "", "", None, **attributes)]
    proto = model_of(
        nodes, [floats(name, *value.shape) for name, value in zip(reads, inputs, strict=True)], [floats("y")]
    )
    feeds = dict(zip(reads, inputs, strict=True))
    return list(OperatorRuns(proto).factors([feeds, {name: value * 2 for name, value in feeds.items()}]))


@each(
    ("op", "value"),
    [
        ("IsNaN", np.ones((4, 6))),  # false everywhere
        ("Floor", np.full((4, 6), 0.2)),  # zero everywhere
        ("Log", np.full((4, 6), -1)),  # not a number anywhere
        ("ReduceMean", np.ones((4096,))),  # halves that are alike have the mean of all
        ("Softmax", np.zeros((4096, 1))),
    ],
)
def test_values_that_hide_what_an_operator_does_show_no_rule(
    op: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    """Or no wrong one: the values are made to grow along each axis."""
    axis = {"axis": 0} if op == "Softmax" else {}
    assert factors_of(op, value.astype(np.float32), **axis) == []
