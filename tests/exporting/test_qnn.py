"""Export for Qualcomm's NPUs, with a compiler that is made up; scripts/check-qnn compiles and runs with Qualcomm's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import graphcut
from graphcut import Across, Cascade, Cluster, Device, GraphcutError, RunError, UsageError
from graphcut.costs.device_rules import DeviceRules, RefusedNodes
from graphcut.exporting import qnn
from graphcut.running import placement as module
from graphcut.running.placement import Asked, Placement

from conftest import floats, model_of


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """Exp and Tanh for an NPU, and between them Relu for the CPU."""
    nodes = [
        helper.make_node(op, [read], [write], name=op)
        for op, read, write in (("Exp", "x", "a"), ("Relu", "a", "b"), ("Tanh", "b", "y"))
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 2)], [floats("y", "n", 2)]), tmp_path / "m.onnx")
    rules = DeviceRules(name="npu", refused=(RefusedNodes(nodes=("Relu",)),))
    npu = Device(name="npu", provider=qnn.QNN, provider_options=("backend_type=htp",), dispatch_s=1e-7, rules=rules)
    model = graphcut.load(tmp_path / "m.onnx", dims={"n": 3})
    plan = graphcut.plan(model, Across(Cluster(devices=(npu, Device(name="cpu"))), "crossings"))
    return graphcut.split(model, plan, tmp_path / "m.parts")


def compiler(leaves: tuple[str, ...] = ()) -> Callable[[Asked], Placement]:
    """A compiler that writes what it was asked for, and leaves some nodes to the CPU."""

    def placement(asked: Asked) -> Placement:
        assert (asked.provider, asked.options, asked.dims) == (qnn.QNN, {"backend_type": "htp"}, {"n": 3})
        target = Path(asked.entries["ep.context_file_path"])
        onnx.save(onnx.load(asked.file), target)
        target.with_name(f"{target.stem}_qnn.bin").write_bytes(b"binary")
        return Placement({qnn.QNN: (), "CPUExecutionProvider": leaves})

    return placement


def test_parts_for_the_npu_are_compiled_and_the_others_are_as_they_were(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "placement", compiler())
    files = graphcut.export(cascade, tmp_path / "out", to="qnn")
    compiled = {f"part-{i}.ctx{end}" for i in (0, 2) for end in (".onnx", "_qnn.bin")}
    assert {file.name for file in files} == {"cascade.json", "part-1.onnx", "pipeline.json", "written.json"} | compiled
    assert (tmp_path / "out" / "part-1.onnx").read_bytes() == cascade.file(cascade.parts[1]).read_bytes()
    found = json.loads((tmp_path / "out" / "pipeline.json").read_text())
    assert (found["inputs"], found["outputs"]) == (["x"], ["y"])
    assert [(one["file"], one["provider"]) for one in found["parts"]] == [
        ("part-0.ctx.onnx", qnn.QNN),
        ("part-1.onnx", "CPUExecutionProvider"),
        ("part-2.ctx.onnx", qnn.QNN),
    ]
    assert found["parts"][0]["writes"] == [{"name": "a", "type": "float32", "shape": [3, 2]}]
    made = graphcut.open_cascade(tmp_path / "out")
    assert graphcut.verify_files(made)
    (tmp_path / "out" / "part-2.ctx_qnn.bin").write_bytes(b"banana")
    assert not graphcut.verify_files(made)


def test_a_node_that_the_compiler_leaves_is_an_error_with_its_name(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "placement", compiler(leaves=("Exp",)))
    with pytest.raises(GraphcutError, match=r"can't compile part-0\.onnx: it does not take 1 node: 'Exp'"):
        graphcut.export(cascade, tmp_path / "out", to="qnn")
    assert not (tmp_path / "out").exists()


def test_where_the_provider_is_missing_a_compiled_cascade_is_not_called_wrong(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "placement", compiler())
        graphcut.export(cascade, tmp_path / "out", to="qnn")
    with pytest.raises(RunError, match="QNNExecutionProvider can't be asked") as caught:
        graphcut.verify(tmp_path / "m.onnx", tmp_path / "out")
    assert "install onnxruntime-qnn" in caught.value.hint
    with pytest.raises(UsageError, match=r"part-0\.ctx\.onnx has no nodes of ONNX"):
        graphcut.merge(tmp_path / "out", tmp_path / "merged.onnx")


def test_an_input_with_a_value_that_the_compiler_drops_is_an_error(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QNN takes a Mul by such an input, and compiles the value that the model has; the compiled model can't be run."""

    def dropping(asked: Asked) -> Placement:
        placed, target = compiler()(asked), Path(asked.entries["ep.context_file_path"])
        made = onnx.load(target)
        del made.graph.input[:]
        onnx.save(made, target)
        return placed

    monkeypatch.setattr(module, "placement", dropping)
    with pytest.raises(
        GraphcutError, match=r"compiles part-0\.onnx without its input 'x', which has a value"
    ) as caught:
        graphcut.export(cascade, tmp_path / "out", to="qnn")
    assert "make it a constant" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_without_the_compiler_its_package_is_named(cascade: Cascade, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        graphcut.export(cascade, tmp_path / "out", to="qnn")
    assert "onnxruntime-qnn" in caught.value.hint


def test_a_cascade_without_a_part_for_the_npu_is_refused(chain: Path, tmp_path: Path) -> None:
    model = graphcut.load(chain)
    parts = graphcut.split(model, graphcut.plan(model, graphcut.Into(2)), tmp_path / "parts")
    with pytest.raises(UsageError, match=r"no part in .* is for QNNExecutionProvider"):
        graphcut.export(parts, tmp_path / "out", to="qnn")
