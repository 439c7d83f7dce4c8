"""Parts of a device with a provider: whether it takes their nodes; made up here, scripts/check-qnn asks Qualcomm's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import graphcut
from graphcut import Across, Cascade, Cluster, Device, verify
from graphcut.running import placement as module
from graphcut.running.in_process.sequential import run_sequentially
from graphcut.running.placement import Asked, Placement
from graphcut.running.stage import SessionConfig
from graphcut.running.values import Feeds, Value
from graphcut.verifying import placement_check
from graphcut.verifying.numerical import TensorComparison, compare
from graphcut.verifying.placement_check import NOT_PLACED, PlacementCheck
from graphcut.verifying.structural import Proof
from graphcut.verifying.verification import _reason

from conftest import floats, model_of


@pytest.fixture
def cascade(chain: Path) -> Cascade:
    """The part of all nodes, for a device with a provider that is not here."""
    npu = Device(name="npu", provider="QNNExecutionProvider", provider_options=("backend_type=htp",))
    model = graphcut.load(chain, dims={"n": 2})
    return graphcut.split(model, graphcut.plan(model, Across(Cluster(devices=(npu,)))))


def answering(names: Mapping[str, tuple[str, ...]], problem: str = "") -> Callable[[Asked], Placement]:
    """A provider that takes these nodes."""

    def placement(asked: Asked) -> Placement:
        assert (asked.provider, asked.options, asked.dims) == (
            "QNNExecutionProvider",
            {"backend_type": "htp"},
            {"n": 2},
        )
        return Placement(names, problem)

    return placement


def test_without_the_provider_the_cut_is_verified_on_the_cpu_and_it_is_said(cascade: Cascade) -> None:
    found = verify(cascade)
    assert (found.same, found.is_identical) == (True, True)
    assert "where nodes run was not checked: QNNExecutionProvider" in found.placement.gap


def test_a_node_that_the_provider_does_not_take_is_a_no_with_its_name(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"QNNExecutionProvider": ("a",), "CPUExecutionProvider": ("b",)}
    monkeypatch.setattr(module, "placement", answering(names))
    found = verify(cascade)
    assert not found
    assert found.placement.objections == ("part-0.onnx (npu) on QNNExecutionProvider: it does not take 1 node: 'b'",)
    assert found.placement.objections[0] in str(found)


def test_a_part_that_does_not_compile_is_a_no_with_the_reason(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "placement", answering({}, "Failed to finalize QNN graph"))
    (said,) = verify(cascade).placement.objections
    assert said == "part-0.onnx (npu) on QNNExecutionProvider: Failed to finalize QNN graph"


def test_what_is_only_proven_asks_no_provider(cascade: Cascade) -> None:
    assert verify(cascade, structural_only=True).placement == placement_check.NOT_PLACED


AZURE = "AzureExecutionProvider"
"""A provider that ONNX Runtime for the CPU has everywhere, and that leaves all nodes to the CPU."""


@pytest.mark.skipif(AZURE not in ort.get_available_providers(), reason="this build of ONNX Runtime lacks it")
@pytest.mark.parametrize(
    ("computes", "said"),
    [
        ("float16", "AzureExecutionProvider, judged by float16, its type"),
        ("float32", "AzureExecutionProvider, judged by float32, its type"),
        ("", "AzureExecutionProvider, not judged: its type is not known"),
    ],
)
def test_it_is_said_by_which_type_numbers_are_judged(
    chain: Path, monkeypatch: pytest.MonkeyPatch, computes: str, said: str
) -> None:
    monkeypatch.setattr(module, "placement", lambda _: Placement({AZURE: ("a", "b")}))
    monkeypatch.setattr(placement_check, "computed_type", lambda *_: computes)
    model = graphcut.load(chain, dims={"n": 2})
    plan = graphcut.plan(model, Across(Cluster(devices=(Device(name="npu", provider=AZURE),))))
    found = verify(graphcut.split(model, plan))
    assert found
    assert (found.placement.providers, found.placement.computes) == ((AZURE,), computes)
    assert said in str(found)
    assert "8 bits" not in str(found)


def test_parts_run_with_the_optimizations_with_which_their_nodes_were_placed(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QNN's compiler ends the process for some models that are not optimized, which was not tried in one of its own."""
    seen = list[str]()

    def recording(cascade: Cascade, feeds: Feeds, *, config: SessionConfig) -> Iterator[dict[str, Value]]:
        seen.append(config.optimize)
        return run_sequentially(cascade, feeds, config=config)

    monkeypatch.setattr("graphcut.verifying.numerical.run_sequentially", recording)
    model = graphcut.load(chain)
    parts = graphcut.split(model, graphcut.plan(model, graphcut.At(("a",))))
    feeds = {"x": np.ones((1, 4), np.float32)}
    for placed in (NOT_PLACED, PlacementCheck(providers=(AZURE,), computes="float16")):
        assert all(one.passes for one in compare(model, parts, feeds, optimized=False, placed=placed))
    assert seen == ["none", "basic"]


def test_where_numbers_are_wrong_it_is_said_that_a_provider_may_ignore_fed_weights(tmp_path: Path) -> None:
    """As OpenVINO does, which computes with the values that they have in the model."""
    ends = [floats("x", 2), floats("w", 2)], [floats("y", 2)]
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    onnx.save(model_of([helper.make_node("Add", ["x", "w"], ["y"])], *ends, [weight]), tmp_path / "m.onnx")
    model, placed = graphcut.load(tmp_path / "m.onnx"), PlacementCheck(providers=(AZURE,), computes="float32")
    right = TensorComparison("y", is_identical=True, max_abs=0.0, max_rel=0.0, max_ulps=0, allowed=0.0)
    wrong = replace(right, is_identical=False, max_abs=1.0)
    for found, said in ((right, False), (wrong, True)):
        reason = _reason(model, Proof((), 1, 0, 0), [(found,)], placed, optimized=False)
        assert ("'y' differs most: by 1, of 0 allowed" in reason) is said
        assert (
            reason.endswith("what is fed for 'w' may be ignored there, as it has a value: make it a constant") is said
        )


def test_parts_of_several_providers_are_judged_by_the_coarsest_of_their_types(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "placement", lambda _: Placement({}))
    on_npu, on_cpu = (Device(name=name, provider=f"{name}ExecutionProvider") for name in ("QNN", "OpenVINO"))
    plan = graphcut.plan(graphcut.load(chain), graphcut.At(("a",)))
    cut = graphcut.split(graphcut.load(chain), replace(plan, devices=(on_cpu, on_npu)))
    assert placement_check.check_placement(graphcut.load(chain), cut).computes == "float16"


def test_sizes_that_the_cpu_computes_for_a_gpu_are_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the shape that they are computed from is read in another part."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Abs", ["shape"], ["size"], "abs"),
        helper.make_node("Reshape", ["x", "size"], ["y"], "reshape"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 2)], [floats("y", "n", 2)]), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    gpu = Device(name="gpu", provider="CUDAExecutionProvider")
    plan = graphcut.plan(model, graphcut.At(("shape",)))
    cascade = graphcut.split(model, replace(plan, devices=(Device(name="cpu"), gpu)))
    for on_cpu, objections in ((("abs",), 0), (("abs", "reshape"), 1)):
        answer = Placement({"CUDAExecutionProvider": (), "CPUExecutionProvider": on_cpu})
        monkeypatch.setattr(module, "placement", lambda _, answer=answer: answer)
        found = placement_check.check_placement(model, cascade).objections
        assert len(found) == objections
        assert all("it does not take 1 node: 'reshape'" in text for text in found)
