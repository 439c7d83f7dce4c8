"""What a provider can run, asked: nodes that it leaves, and nodes that it can't compile alone or together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Model, RunError, ask, device_support, weigh
from graphcut.benchmarking.asked_rules import _Asked
from graphcut.costs.device_rules import RefusedNodes
from graphcut.running import placement as module
from graphcut.running.placement import Asked, Placement, placement
from graphcut.running.providers import ProviderFacts

from conftest import floats, model_of

Open = Callable[[ModelProto], Model]
Takes = Callable[[list[str]], "Placement | None"]
OPS = ("Relu", "Neg", "Abs", "Exp", "Tanh", "Sqrt")


def chain(*ops: str) -> ModelProto:
    names = ["x", *(f"t{i}" for i in range(len(ops)))]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], name=f"{op}.{i}") for i, op in enumerate(ops)]
    return model_of(nodes, [floats("x", 2)], [floats(names[-1], 2)])


class FakeCompiler:
    """A compiler that leaves some operators to the CPU, and fails on a row of operators, or on more than `most`."""

    def __init__(
        self,
        leaves: tuple[str, ...] = (),
        fails_on: tuple[str, ...] = (),
        fuses: tuple[str, ...] = (),
        most: int = 1000,
    ) -> None:
        self.leaves, self.fails_on, self.fuses, self.most = leaves, fails_on, fuses, most
        self.tried, self.asked = list[int](), list[bytes]()

    def __call__(self, asked: Asked) -> Placement:
        nodes = onnx.load_from_string(asked.message).graph.node
        self.tried.append(len(nodes))
        self.asked.append(asked.message)
        ops, length = [node.op_type for node in nodes], len(self.fails_on)
        rows = [tuple(ops[i : i + length]) for i in range(len(ops))]
        if (length and self.fails_on in rows) or len(ops) > self.most:
            return Placement({}, "Failed to finalize QNN graph. Error code: 1002")
        there = [node for node in nodes if node.op_type not in self.fuses]
        left = [node.name for node in there if node.op_type in self.leaves]
        return Placement({asked.provider: tuple({node.name for node in there}.difference(left)), "CPU": tuple(left)})


def refused(model: Model, compiler: FakeCompiler, provider: str = "NPU") -> list[RefusedNodes]:
    return list(_Asked(model, Asked(provider=provider), compiler).refused((model.graph.flow,)))


def test_a_provider_that_fails_on_a_sigmoid_too_is_not_asked_for_each_node(opened: Open) -> None:
    """As one whose driver is not here: that the nodes can't run there is not known."""
    asked = list[Asked]()

    def without_driver(one: Asked) -> Placement:
        asked.append(one)
        return Placement({}, "Failed to get a WebGPU adapter: No supported adapters")

    model = opened(chain(*OPS))
    with pytest.raises(RunError, match=r"NPU can't be asked, not even for a Sigmoid: .* No supported adapters"):
        list(_Asked(model, Asked(provider="NPU"), without_driver).refused((model.graph.flow,)))
    assert len(asked) == 2


def test_a_provider_that_takes_nothing_not_even_a_sigmoid_is_refused(opened: Open) -> None:
    """As QNN's if its backend_path is wrong, which it does not say."""
    leaves_all = FakeCompiler(leaves=(*OPS, "Sigmoid"))
    with pytest.raises(RunError, match="NPU can't be asked, not even for a Sigmoid: it takes none") as caught:
        refused(opened(chain(*OPS)), leaves_all)
    assert "are its options right" in caught.value.hint


def test_a_node_that_is_left_to_the_cpu_is_refused(opened: Open) -> None:
    found = refused(opened(chain(*OPS)), FakeCompiler(leaves=("Abs", "Sqrt")))
    assert found == [RefusedNodes(nodes=("Abs.2", "Sqrt.5"), why="not taken", kind="operator")]


def test_sizes_that_the_cpu_computes_for_a_gpu_are_not_refused(opened: Open) -> None:
    """Shape and Abs compute a size; Reshape and Neg compute with numbers."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Abs", ["shape"], ["size"], "abs"),
        helper.make_node("Reshape", ["x", "size"], ["same"], "reshape"),
        helper.make_node("Neg", ["same"], ["y"], "neg"),
    ]
    model = opened(model_of(nodes, [floats("x", "n", 2)], [floats("y", "n", 2)]))
    leaves = FakeCompiler(leaves=("Abs", "Neg"))
    assert [one.nodes for one in refused(model, leaves, "CUDAExecutionProvider")] == [("neg",)]
    assert {name for one in refused(model, leaves) for name in one.nodes} == {"abs", "neg"}


@pytest.mark.parametrize(("provider", "dims"), [("QNNExecutionProvider", {"n": 3}), ("WebGpuExecutionProvider", {})])
def test_sizes_are_fixed_where_a_run_fixes_them(opened: Open, provider: str, dims: dict[str, int]) -> None:
    asked = list[Asked]()

    def placing(one: Asked) -> Placement:
        asked.append(one)
        return Placement({provider: ("relu",)})

    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model = graphcut.load(opened(model_of([node], [floats("x", "n")], [floats("y", "n")])), dims={"n": 3})
    assert list(_Asked(model, Asked(provider=provider), placing).refused((model.graph.flow,))) == []
    assert [one.dims for one in asked] == [dims]


def test_a_node_that_onnx_runtime_fused_goes_where_what_reads_it_goes(opened: Open) -> None:
    (found,) = refused(opened(chain(*OPS)), FakeCompiler(leaves=("Exp",), fuses=("Abs", "Tanh")))
    assert found.nodes == ("Abs.2", "Exp.3")


def test_nodes_at_the_end_that_are_fused_into_one_that_is_left_are_refused(opened: Open) -> None:
    """As a product and a sum, which ONNX Runtime makes one Gemm of, with a name of its own."""

    def fusing(asked: Asked) -> Placement:
        names = [node.name for node in onnx.load_from_string(asked.message).graph.node]
        return Placement({"NPU": tuple(names[:-2]), "CPU": (f"{names[-2]}/Fused",)})

    model = opened(chain(*OPS))
    (found,) = list(_Asked(model, Asked(provider="NPU"), fusing).refused((model.graph.flow,)))
    assert found.nodes == ("Tanh.4", "Sqrt.5")


def test_a_node_whose_constant_is_left_is_refused_with_it(opened: Open) -> None:
    """As a product with weights that a DequantizeLinear makes: no other part can send it a constant."""
    nodes = [
        helper.make_node("Sqrt", ["w"], ["root"], "root"),
        helper.make_node("Abs", ["root"], ["k"], "k"),
        helper.make_node("Add", ["x", "k"], ["sum"], "add"),
        helper.make_node("Neg", ["sum"], ["y"], "neg"),
    ]
    weight = numpy_helper.from_array(np.ones(2, dtype=np.float32), "w")
    model = opened(model_of(nodes, [floats("x", 2)], [floats("y", 2)], [weight]))
    assert [one.nodes for one in refused(model, FakeCompiler(leaves=("Sqrt",)))] == [("add",)]


def test_where_what_is_left_has_no_name_of_the_model_all_that_nobody_took_are_refused(opened: Open) -> None:
    """As nodes of a branch that ONNX Runtime put in place of an If, which other nodes read."""

    def inlining(asked: Asked) -> Placement:
        names = [node.name for node in onnx.load_from_string(asked.message).graph.node]
        return Placement({"NPU": tuple(name for name in names if name != "Abs.2"), "CPU": ("_then_branch_Abs",)})

    model = opened(chain(*OPS))
    (found,) = list(_Asked(model, Asked(provider="NPU"), inlining).refused((model.graph.flow,)))
    assert found.nodes == ("Abs.2",)


def test_a_node_that_fails_alone_is_found_by_halving(opened: Open) -> None:
    compiler = FakeCompiler(fails_on=("Exp",))
    (found,) = refused(opened(chain(*OPS)), compiler)
    assert (found.nodes, found.kind) == (("Exp.3",), "operator")
    assert "1002" in found.why
    assert len(compiler.tried) <= 10


def test_of_nodes_that_fail_together_one_is_refused_and_the_rest_is_compiled(opened: Open) -> None:
    (found,) = refused(opened(chain(*OPS)), FakeCompiler(fails_on=("Neg", "Abs", "Exp")))
    assert (found.nodes, found.kind, found.why) == (
        ("Exp.3",),
        "whole",
        "can't be compiled together (Neg, Abs, Exp): Failed to finalize QNN graph. Error code: 1002",
    )


def test_what_fails_in_one_layer_is_refused_in_all_and_tried_once(opened: Open) -> None:
    layer = ("Relu", "Neg", "Abs", "Exp")
    few, many = (FakeCompiler(fails_on=("Neg", "Abs")) for _ in range(2))
    (found,) = refused(opened(chain(*layer * 8)), many)
    refused(opened(chain(*layer * 4)), few)
    assert found.nodes == tuple(f"Abs.{4 * i + 2}" for i in range(8))
    assert len(many.tried) - len(few.tried) <= 6  # the eight rows between them, and not the search


def test_what_is_known_of_a_node_says_what_would_help(opened: Open) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model = opened(model_of([node], [floats("x", "n")], [floats("y", "n")]))
    assert [one.kind for one in refused(model, FakeCompiler(leaves=("Relu",)))] == ["shape"]
    fixed = graphcut.load(model, dims={"n": 1})
    assert [one.kind for one in refused(fixed, FakeCompiler(leaves=("Relu",)))] == ["operator"]
    weight = numpy_helper.from_array(np.zeros(2, dtype=np.float32), "w")
    add = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    model = opened(model_of([add], [floats("x", 2), floats("w", 2)], [floats("y", 2)], [weight]))
    assert [one.kind for one in refused(model, FakeCompiler(leaves=("Add",)))] == ["input"]


def test_onnx_runtime_is_asked_in_a_process_of_its_own(opened: Open) -> None:
    """Its own provider takes all nodes; the answer for a dimension without a number is the same."""
    model = graphcut.load(opened(chain(*OPS)), dims={})
    rules = ask(model, "CPUExecutionProvider")
    assert rules.refused == ()
    assert device_support(weigh(model), rules).supported == len(OPS)


def test_a_provider_that_is_not_installed_names_its_package(opened: Open) -> None:
    with pytest.raises(RunError) as caught:
        ask(opened(chain("Relu")), "QNNExecutionProvider")
    assert "QNNExecutionProvider can't be asked" in str(caught.value)
    assert "install onnxruntime-qnn" in caught.value.hint


def test_a_package_that_is_installed_and_has_no_device_is_not_to_be_installed(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "facts_of", lambda _: ProviderFacts(package="numpy"))
    with pytest.raises(RunError) as caught:
        ask(opened(chain("Relu")), "WebGpuExecutionProvider")
    assert caught.value.hint == "numpy finds no device here: give a rule file"


def test_a_compiler_that_hangs_or_dies_ends_its_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(chain(*OPS), tmp_path / "m.onnx")
    asked = Asked(provider="CPUExecutionProvider", file=str(tmp_path / "m.onnx"))
    assert len(placement(asked).names["CPUExecutionProvider"]) == len(OPS)
    for crash, said in (
        ("import time; time.sleep(60)", "was stopped after"),
        ("import os; os.abort()", "with status -6"),
    ):
        monkeypatch.setattr(module, "_ASK", crash)
        assert said in placement(asked, limit_s=1.0).problem


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory that runs out ends some other process")
def test_a_compiler_that_takes_all_memory_is_the_first_process_that_linux_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(chain(*OPS), tmp_path / "m.onnx")
    said = "raise SystemExit(open('/proc/self/oom_score_adj').read() == '1000\\n' and 77)"
    asking = f"import sys\nfrom graphcut.running import placement as p\ndef opened(_): {said}\n"
    monkeypatch.setattr(module, "_ASK", f"{asking}p._opened = opened\np.answer(sys.argv[1])")
    asked = Asked(provider="CPUExecutionProvider", file=str(tmp_path / "m.onnx"))
    assert "with status 77" in placement(asked).problem
