"""What `doctor` says of a machine is what runs there find."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper
from rich.console import Console

import graphcut
from graphcut.benchmarking import environment as module
from graphcut.cli.result_tables import draw_environment
from graphcut.drawing.json_records import dumps
from graphcut.drawing.terminal.screen import screen_on
from graphcut.running import providers

DEVELOPMENT = {"dev", "docs", "test"}


@pytest.fixture(scope="module")
def here() -> graphcut.Environment:
    return graphcut.environment()


def kernels_of_a_product(kind: int, folder: Path) -> set[str]:
    """The operators that ONNX Runtime runs for one MatMul on the CPU, as its profile says."""
    ends = [helper.make_tensor_value_info(name, kind, (2, 2)) for name in "aby"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", ends[:2], ends[2:])
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    numbers = np.ones((2, 2), onnx.helper.tensor_dtype_to_np_dtype(kind))
    session.run(None, {"a": numbers, "b": numbers})
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return {event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})}


def test_the_types_that_the_cpu_widens_are_cast_in_its_runs_and_the_native_ones_are_not(
    here: graphcut.Environment, tmp_path: Path
) -> None:
    cpu = next(one for one in here.providers if one.name == "CPUExecutionProvider")
    kinds = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
    for name, kind in kinds.items():
        has_cast = "Cast" in kernels_of_a_product(kind, tmp_path)
        assert (name in cpu.widened, name in cpu.native) == (has_cast, not has_cast), name
    assert here.works


def test_a_plugin_that_fails_is_named_with_its_reason_and_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of packages with other names than the guidance for plugins asks for, those are plugins that name a library."""
    for name in ("onnxruntime_ep_broken", "onnxruntime_npu", "onnxruntime_tools"):
        code = "raise OSError('libbroken.so: no such driver')"
        if name == "onnxruntime_npu":
            code = "def get_library_path(): raise OSError('no NPU')\ndef get_ep_name(): return 'NPUExecutionProvider'"
        (tmp_path / f"{name}.py").write_text(code)
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    providers.plugins.cache_clear()
    found = graphcut.environment()
    named = {one.name: one.problem for one in found.providers}
    assert named["onnxruntime_ep_broken"] == "libbroken.so: no such driver"
    assert named["onnxruntime_npu"] == "no NPU"
    assert "onnxruntime_tools" not in named
    assert found.works
    _, problem = providers.session_on(b"", ort.SessionOptions(), "BrokenExecutionProvider", {})
    assert "onnxruntime_ep_broken failed: libbroken.so" in problem
    providers.plugins.cache_clear()


def test_a_package_that_is_too_old_is_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(module, "version", lambda name: "1.0" if name in {"numpy", "ray"} else real(name))
    found = graphcut.environment()
    assert {one.name for one in found.packages if not one.is_usable} == {"numpy", "ray"}
    assert not found.works


def test_what_graphcut_and_each_extra_need_is_listed(here: graphcut.Environment) -> None:
    project = tomllib.loads((Path(graphcut.__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name not in DEVELOPMENT}
    assert [one.extra for one in here.packages if one.extra] == [name for name in sorted(extras) for _ in extras[name]]
    assert {"numpy", "onnx", "onnxruntime"} <= {one.name for one in here.packages if not one.extra}


def test_a_ray_cluster_is_found_by_its_address_without_loading_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert module._ray_cluster() == (address, "")
    found, problem = module._ray_cluster()
    assert found == address
    assert "refused" in problem
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert module._ray_cluster() == ("", "")


def test_rates_are_measured_if_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "calibrate", lambda seconds: graphcut.calibrate(seconds=seconds / 100))
    monkeypatch.setattr(module, "_DISK_BYTES", 1 << 20)
    rates = module._rates()
    assert min(rates.flops_per_s, rates.bytes_per_s, rates.dispatch_s, rates.disk_bytes_per_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_report_names_no_folder(here: graphcut.Environment) -> None:
    text = dumps(here)
    assert str(Path.home()) not in text.replace('"/"', "")
    assert str(Path.cwd()) not in text


def test_a_provider_that_is_not_here_has_no_types_and_a_reason() -> None:
    found = module._provider("GhostExecutionProvider")
    assert (found.native, found.widened) == ((), ())
    assert found.problem.startswith("this ONNX Runtime does not have it")


def test_what_was_measured_is_one_line(here: graphcut.Environment) -> None:
    rates = module.MeasuredRates(flops_per_s=2e9, bytes_per_s=3e9, dispatch_s=4e-6, disk_bytes_per_s=5e8, spread=0.25)
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(draw_environment(replace(here, measured=rates), screen_on(console)))
    measured = "2 GFLOP/s, 3 GB/s of memory bandwidth, 4 µs to start a node, 500 MB/s to disk; spread 25%"
    assert f"measured: {measured}" in captured.get().splitlines()
