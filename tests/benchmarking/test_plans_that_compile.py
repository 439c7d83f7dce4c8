"""Plans for a device that `compiles`: what its compiler can't do is not planned there. The compilers are made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from onnx import ModelProto
from test_asked_rules import FakeCompiler, chain

import graphcut
from graphcut import Across, Cluster, Device, Model, Plan, RunError
from graphcut.benchmarking import asked_rules
from graphcut.drawing.sentences import plan_notes
from graphcut.running.placement import Asked, Placement

from cases import seeded

Open = Callable[[ModelProto], Model]

NPU = Device(name="npu", provider="QNNExecutionProvider", flops_per_s=1e12, dispatch_s=1e-7, compiles=True)


def planned(
    model: Model, compiler: Callable[[Asked], Placement], patch: pytest.MonkeyPatch, goal: Across | None = None
) -> list[tuple[str, tuple[str, ...]]]:
    """The device and the operators of each part."""
    made = plan_of(model, compiler, patch, goal)
    names = [made.graph.names(part) for part in made.parts]
    return [(d.name, tuple(n.split(".")[0] for n in row)) for d, row in zip(made.devices, names, strict=True)]


def plan_of(
    model: Model, compiler: Callable[[Asked], Placement], patch: pytest.MonkeyPatch, goal: Across | None = None
) -> Plan:
    patch.setattr(asked_rules, "placement", compiler)
    goal = goal or Across(Cluster(devices=(NPU, Device(name="cpu"))), "crossings")
    return graphcut.compiled(model, graphcut.plan(model, goal))


def test_nodes_that_the_compiler_leaves_are_planned_for_the_cpu_and_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(chain("Relu", "Neg", "Abs", "Exp"))
    made = plan_of(model, FakeCompiler(leaves=("Abs",)), monkeypatch)
    assert [device.name for device in made.devices] == ["npu", "cpu", "npu"]
    rules = made.devices[0].rules
    assert rules is not None
    assert [(one.nodes, one.why) for one in rules.refused] == [(("Abs.2",), "not taken")]
    assert "npu does not take Abs.2: not taken" in [*plan_notes(made, model)]


def test_a_node_that_can_not_be_compiled_is_found_by_halving_and_planned_for_the_cpu(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler(fails_on=("Exp",))
    found = planned(opened(chain(*["Relu", "Neg", "Abs", "Tanh"] * 3, "Exp", "Neg")), compiler, monkeypatch)
    assert [(device, len(ops)) for device, ops in found] == [("npu", 12), ("cpu", 1), ("npu", 1)]
    assert len(compiler.tried) <= 11  # the whole, four halvings to its place, four to its length, two parts


def test_of_nodes_that_compile_and_not_together_the_last_begins_a_part(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiler = opened(chain("Relu", "Neg", "Abs", "Exp", "Sqrt")), FakeCompiler(fails_on=("Neg", "Abs", "Exp"))
    assert planned(model, compiler, monkeypatch) == [("npu", ("Relu", "Neg", "Abs")), ("npu", ("Exp", "Sqrt"))]
    notes = plan_notes(plan_of(model, compiler, monkeypatch), model)
    assert [note.split(":")[0] for note in notes if "together (Neg, Abs, Exp)" in note] == [
        "npu begins a part at Exp.3"
    ]


def test_what_is_too_large_for_the_compiler_becomes_the_fewest_parts(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler(most=5)
    found = planned(opened(chain(*["Relu", "Neg", "Abs"] * 6)), compiler, monkeypatch)
    assert [(device, len(ops)) for device, ops in found] == [("npu", 5)] * 3 + [("npu", 3)]


def test_what_fails_in_a_layer_is_searched_in_one_of_them(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ("Relu", "Neg", "Abs", "Exp")
    few, many = (FakeCompiler(fails_on=("Neg", "Abs")) for _ in range(2))
    planned(opened(chain(*layer * 4)), few, monkeypatch)
    found = planned(opened(chain(*layer * 8)), many, monkeypatch)
    assert [ops[0] for _, ops in found] == ["Relu", *["Abs"] * 8]
    assert len(many.tried) - len(few.tried) <= 6


def test_a_device_that_has_one_part_leaves_one_of_the_nodes_that_fail_together_to_another(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = Across(Cluster(devices=(NPU, Device(name="cpu")), origin="cpu"))
    compiler = FakeCompiler(fails_on=("Neg", "Abs"))
    found = planned(opened(chain("Relu", "Neg", "Abs", "Exp")), compiler, monkeypatch, goal)
    assert all(("Neg", "Abs") not in pairwise(ops) for device, ops in found if device == "npu")


@seeded(4, together=4)
def test_parts_compile_and_are_the_fewest_that_do(seed: int, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain, against all ways to cut it: a node that compiles alone is on the accelerator."""
    draw = random.Random(seed)  # noqa: S311 - the same chains each time
    ops = [draw.choice(("Relu", "Neg", "Abs")) for _ in range(draw.randint(2, 9))]
    fails_on = tuple(draw.choice(("Relu", "Neg", "Abs")) for _ in range(draw.randint(1, 3)))
    most = draw.randint(1, 5)
    compiler = FakeCompiler(fails_on=fails_on, most=most)
    model = opened(chain(*ops))
    found = planned(model, compiler, monkeypatch)
    assert sum((row for _, row in found), ()) == tuple(ops)
    assert len(compiler.asked) == len(set(compiler.asked))  # what compiled is remembered

    def compiles(row: list[str]) -> bool:
        return len(row) <= most and all(tuple(row[i : i + len(fails_on)]) != fails_on for i in range(len(row)))

    fewest = {0: 0}
    for end in range(1, len(ops) + 1):
        begins = [b for b in range(end) if compiles(ops[b:end])]
        run = end - 1  # or all of a run of nodes that don't compile alone, on the CPU
        while run > 0 and not compiles([ops[run - 1]]):
            run -= 1
        begins += [] if compiles([ops[end - 1]]) else [run]
        fewest[end] = 1 + min(fewest[begin] for begin in begins)
    is_repeated = graphcut.analyze(model).repeat is not None  # then a part begins in each layer where it does in one
    assert fewest[len(ops)] <= len(found), (ops, fails_on, most, found)
    assert is_repeated or len(found) == fewest[len(ops)], (ops, fails_on, most, found)
    for device, row in found:
        assert all(compiles([op]) == (device == "npu") for op in row)
        assert device == "cpu" or compiles([*row])


def test_without_the_provider_its_package_is_named(opened: Open) -> None:
    model = opened(chain("Relu"))
    made = graphcut.plan(model, Across(Cluster(devices=(NPU,))))
    with pytest.raises(RunError, match="QNNExecutionProvider can't be asked") as caught:
        graphcut.compiled(model, made)
    assert "install onnxruntime-qnn" in caught.value.hint


def test_a_compiler_that_fails_at_all_nodes_leaves_all_to_the_cpu_and_ends(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_rules, "_MOST_TRIED_S", 0.0)
    tried = list[Asked]()

    def stopped(asked: Asked) -> Placement:
        tried.append(asked)
        return Placement({}, "" if b"Sigmoid" in asked.message else "its compiler was stopped after 120 s")

    found = planned(opened(chain("Relu", "Neg", "Abs")), stopped, monkeypatch)
    assert found == [("cpu", ("Relu", "Neg", "Abs"))]
    assert len(tried) == 2
