"""No silent fallback: a provider that is missing is an error by name, and what it does not take is counted."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from waiting import until

import graphcut
from graphcut import At, Cascade, Into, RunError, Runner, SessionConfig
from graphcut.core.manifest import PlannedDevice
from graphcut.running.placement import Asked, placement
from graphcut.running.providers import computed_type, ort_message
from graphcut.workers.executors.via import Via

from cases import each
from conftest import ROOT, floats, model_of

X = {"x": np.array([-1, 2], np.float32)}
TAKES_NOTHING = SessionConfig(provider="AzureExecutionProvider")
"""A provider of every ONNX Runtime package of 1.24 to 1.32 for the CPU; it takes nodes of its own operators only."""
needs_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in ort.get_available_providers(), reason="this build of ONNX Runtime lacks it"
)  # the build for GPUs does

Settings = Callable[..., Cascade]


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    """x → Relu → a → Neg → b → Abs → y, cut after Relu."""
    steps = [("Relu", "x", "a"), ("Neg", "a", "b"), ("Abs", "b", "y")]
    nodes = [helper.make_node(op, [read], [write], name=write) for op, read, write in steps]
    onnx.save(model_of(nodes, [floats("x", 2)], [floats("y", 2)]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("a",))), tmp_path / "m.parts")


@pytest.fixture
def on_device(cascade: Cascade) -> Settings:
    """The cascade as planned for a device with these settings."""

    def edited(**settings: object) -> Cascade:
        record = json.loads(cascade.path.read_bytes())
        for part in record["parts"]:
            part["device"] = "edge"
        record["devices"] = [{"name": "edge", "memory_bytes": None, **settings}]
        cascade.path.write_text(json.dumps(record))
        return graphcut.open_cascade(cascade.path)

    return edited


def run(cascade: Cascade, config: SessionConfig | None = None) -> tuple[list[float], dict[int, Any]]:
    """What it computes, and the nodes that each provider took."""
    with Runner(cascade, config=config) as runner:
        return runner.run(X)["y"].tolist(), runner.placements


@needs_azure
def test_nodes_that_a_provider_does_not_take_are_counted(cascade: Cascade) -> None:
    assert run(cascade, TAKES_NOTHING) == ([0, 2], {0: {"CPUExecutionProvider": 1}, 1: {"CPUExecutionProvider": 2}})
    assert run(cascade) == ([0, 2], {})


@needs_azure
@pytest.mark.parametrize("via", ["threads", "processes"])
def test_workers_report_the_nodes_that_a_provider_does_not_take(cascade: Cascade, via: Via) -> None:
    with graphcut.Pipeline(cascade, via=via, workers=2, config=TAKES_NOTHING) as pipeline:
        assert pipeline.submit(X).result()["y"].tolist() == [0, 2]
    assert pipeline.log.placements == {0: {"CPUExecutionProvider": 1}, 1: {"CPUExecutionProvider": 2}}


@needs_azure
def test_what_the_code_of_a_provider_prints_is_not_on_stdout(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Documents are there. Qualcomm's emulator prints a line for each process."""
    made = ort.InferenceSession

    def printing(*arguments: Any, **options: Any) -> ort.InferenceSession:  # noqa: ANN401 - of any type
        os.write(1, b"from C")
        return made(*arguments, **options)

    monkeypatch.setattr(ort, "InferenceSession", printing)
    run(cascade, TAKES_NOTHING)
    os.write(1, b"after")
    assert capfd.readouterr() == ("after", "from C" * 2)


def test_a_missing_provider_is_an_error_unless_the_cpu_is_accepted(on_device: Settings) -> None:
    cascade = on_device(provider="NoSuchExecutionProvider")
    with pytest.raises(RunError) as caught:
        run(cascade)
    assert str(caught.value) == (
        "part-0.onnx is to run with NoSuchExecutionProvider: this ONNX Runtime does not have it, "
        "and no installed plugin has a device for it"
    )
    assert "`allow_fallback=True`" in str(caught.value.hint)
    outputs, placements = run(cascade, SessionConfig(allow_fallback=True))
    assert (outputs, placements[1]) == ([0, 2], {"CPUExecutionProvider": 2})


def test_what_was_compiled_for_another_provider_is_told_to_run_there(tmp_path: Path) -> None:
    compiled = helper.make_node("EPContext", ["a"], ["y"], domain="com.microsoft", embed_mode=1, source="QNN")
    proto = model_of([helper.make_node("Relu", ["x"], ["a"]), compiled], [floats("x", 2)], [floats("y", 2)])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(RunError, match=r"part-0\.onnx can't be loaded") as caught:
        run(graphcut.split(tmp_path / "m.onnx", Into(1)))
    assert caught.value.hint.startswith("it was compiled for another provider: run it there")


def test_a_device_has_its_own_number_of_threads(on_device: Settings) -> None:
    for threads in (1, 4):
        before = {*Path("/proc/self/task").iterdir()}
        with Runner(on_device(threads=threads), config=SessionConfig(threads=2)) as runner:
            runner.run(X)
            beside = 2 * (threads - 1)  # for each part, those beside the one that calls
            # threads that loaded parts end a little after they are joined
            assert until(lambda: len({*Path("/proc/self/task").iterdir()} - before) == beside)  # noqa: B023 - now


def test_a_device_has_its_own_session_configuration(on_device: Settings) -> None:
    with pytest.raises(RunError, match=r"part-0\.onnx can't be loaded"):
        run(on_device(session_config=["session.load_model_format=ORT"]))  # it is not: so the entry had an effect


@each("field", ["provider_options", "session_config"])
@each("value", ["/tmp/code.so", "code.so", r"C:\code", "../code", "code.DLL"])  # noqa: S108
def test_a_manifest_can_name_no_file_for_a_provider_to_load(on_device: Settings, field: str, value: str) -> None:
    with pytest.raises(RunError, match="files are not taken from a manifest"):
        run(on_device(**{field: [f"backend_path={value}"]}))


def test_a_split_writes_the_settings_of_a_device_into_the_manifest(tmp_path: Path, cascade: Cascade) -> None:
    settings: dict[str, Any] = {"provider_options": ("a=1",), "threads": 3, "session_config": ("session.x=0.5",)}
    device = graphcut.Device(name="edge", **settings)
    model = graphcut.load(cascade.source)
    plan = graphcut.plan(graphcut.analyze(model), graphcut.Across(graphcut.Cluster(devices=(device,))))
    (host,) = graphcut.split(model, plan, tmp_path / "out").manifest.devices
    assert host == PlannedDevice(name="edge", memory_bytes=None, provider="CPUExecutionProvider", **settings)


@pytest.mark.parametrize("settings", [{"provider_options": ("a",)}, {"session_config": ("=1",)}, {"threads": -1}])
def test_settings_of_a_wrong_form_are_refused(cascade: Cascade, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        graphcut.Device(name="edge", **settings)
    record = json.loads(cascade.path.read_bytes())
    record["devices"] = [{"name": "edge", "memory_bytes": None, **settings}]
    (tmp_path / "cascade.json").write_text(json.dumps(record))
    with pytest.raises(graphcut.RecordError, match="expected"):
        graphcut.open_cascade(tmp_path)


def test_a_node_without_a_name_is_told_by_its_operator() -> None:
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], [floats("x", 2)], [floats("y", 2)])
    asked = Asked(provider="CPUExecutionProvider", message=proto.SerializeToString())
    assert placement(asked).names == {"CPUExecutionProvider": ("Relu without a name",)}


def test_of_an_error_in_an_error_the_inner_one_is_said_without_its_place_in_the_source() -> None:
    inner = "[ONNXRuntimeError] : 11 : EP_FAIL : /src/gpu.cc:136 Gpu::Initialize(const Config&)::<lambda()> No adapter"
    outer = f"[ONNXRuntimeError] : 1 : FAIL : /src/plugins.cc:393 CreateProvider(const Options&, const Logger&) {inner}"
    assert ort_message(RuntimeError(outer)) == "No adapter"
    assert ort_message(RuntimeError("[ONNXRuntimeError] : 1 : FAIL : a (b) c")) == "a (b) c"
    assert ort_message(RuntimeError(f"{'signature ' * 99} the cause")).endswith(" the cause")


def test_the_telemetry_of_onnx_runtime_is_off(cascade: Cascade, tmp_path: Path) -> None:
    """ONNX Runtime 1.31 writes an identifier and a database into the user's cache folder, unless told not to."""
    code = f"import graphcut, numpy; graphcut.run({str(cascade.path)!r}, {{'x': numpy.ones(2, 'f')}})"
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    home = tmp_path / "home"
    home.mkdir()
    environment = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert [*home.rglob("*")] == []


OPENVINO = ROOT / ".venv-openvino" / "bin" / "python"
ON_OPENVINO = """
import json, sys
import numpy as np
import graphcut

cascade = graphcut.open_cascade(sys.argv[1])
feeds = {name: np.array(value, np.float32) for name, value in json.loads(sys.argv[2]).items()}
found = []
for options in ({}, {"device_type": "NPU"}, {"nonsense": "1"}):
    config = graphcut.SessionConfig(provider="OpenVINOExecutionProvider", options=options)
    try:
        with graphcut.Runner(cascade, config=config) as runner:
            found.append([runner.run(feeds)["y"].tolist(), runner.placements])
    except graphcut.RunError as error:
        found.append(str(error))
print(json.dumps(found))
"""


@pytest.mark.skipif(not OPENVINO.exists(), reason="`source scripts/setup openvino` makes its environment")
def test_openvino_runs_refuses_and_shares_nodes(tmp_path: Path) -> None:
    """Its CPU device runs what it can and the nodes that it leaves are counted; a missing device is named."""
    steps = [("Relu", "x", "a"), ("Neg", "a", "b"), ("Hardmax", "b", "c"), ("Abs", "c", "y")]
    nodes = [helper.make_node(op, [read], [write], name=write) for op, read, write in steps]
    onnx.save(model_of(nodes, [floats("x", 1, 2)], [floats("y", 1, 2)]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("a",))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words: list[str | Path] = [OPENVINO, "-c", ON_OPENVINO, cascade.path, json.dumps({"x": [[-1, 2]]})]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    right, missing, unknown = json.loads(done.stdout)
    assert right == [[[1, 0]], {"1": {"OpenVINOExecutionProvider": 1, "CPUExecutionProvider": 2}}]
    assert missing.startswith("part-0.onnx is to run with OpenVINOExecutionProvider: it could not be started")
    assert unknown.endswith("Invalid OpenVINO EP option: nonsense")


COMPARED_ON_OPENVINO = """
import sys
sys.path.append(sys.argv.pop(1))  # after the packages of this environment, so that ONNX Runtime is OpenVINO's
from graphcut.__main__ import start
start()
"""


@pytest.mark.skipif(not OPENVINO.exists(), reason="`source scripts/setup openvino` makes its environment")
def test_models_are_compared_on_two_providers_and_the_faulty_node_is_named(tmp_path: Path) -> None:
    """x → Neg → a → Exp → b → Tanh → y: both negate alike, and have an exponential function of their own."""
    np.savez(tmp_path / "x.npz", x=np.arange(-128, 128, dtype=np.float32) / 64)  # exact in bfloat16, too
    for file, op in {"m.onnx": "Exp", "faulty.onnx": "Softplus"}.items():
        steps = [("Neg", "x", "a"), (op, "a", "b"), ("Tanh", "b", "y")]
        nodes = [helper.make_node(op, [read], [write], name=write) for op, read, write in steps]
        onnx.save(model_of(nodes, [floats("x", 256)], [floats("y", 256)]), tmp_path / file)

    def compared(other: str, *more: str) -> tuple[int, dict[str, Any]]:
        words = ["compare", "m.onnx", other, "--inputs", "x.npz", "--json", *more]
        start = [str(OPENVINO), "-c", COMPARED_ON_OPENVINO, sysconfig.get_path("platlib")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*start, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, json.loads(done.stdout)

    openvino = ("--provider", "OpenVINOExecutionProvider")
    code, found = compared("m.onnx")
    assert (code, found["outputs"][0]["is_identical"], found["errors"]) == (0, True, [])
    found = compared("m.onnx", *openvino)[1]  # in float32 or bfloat16, as the processor has it
    assert not found["outputs"][0]["is_identical"]
    assert [error["tensor"] for error in found["errors"] if error["db"] is not None] == ["b", "y"]
    for sides in (openvino, (*openvino, "--provider", "CPUExecutionProvider"), (*openvino, *openvino)):
        code, found = compared("faulty.onnx", *sides)
        assert (code, found["culprits"][0]["node"], found["culprits"][0]["sources"]) == (1, "b", [["a", "a"]])


@each(
    ("provider", "options", "computes"),
    [
        ("CPUExecutionProvider", {}, "float32"),
        ("QNNExecutionProvider", {}, "float16"),
        ("QNNExecutionProvider", {"backend_path": "libQnnHtp.so", "enable_htp_fp16_precision": "0"}, "float16"),
        ("QNNExecutionProvider", {"backend_type": "cpu"}, "float32"),
        ("QNNExecutionProvider", {"backend_type": "gpu"}, ""),
        ("OpenVINOExecutionProvider", {}, "float32"),
        ("OpenVINOExecutionProvider", {"device_type": "NPU"}, "float16"),
        ("OpenVINOExecutionProvider", {"device_type": "GPU", "precision": "FP32"}, "float32"),
        ("CUDAExecutionProvider", {}, "tf32"),
        ("CUDAExecutionProvider", {"use_tf32": "0"}, "float32"),
        ("TensorrtExecutionProvider", {"trt_fp16_enable": "1"}, "float16"),
        ("TensorrtExecutionProvider", {"trt_fp16_enable": "1", "trt_bf16_enable": "1"}, "bfloat16"),
        ("CoreMLExecutionProvider", {}, "float16"),
        ("SomeExecutionProvider", {}, ""),
    ],
)
def test_the_type_that_a_provider_computes_in_is_that_of_its_documentation(
    provider: str, options: dict[str, str], computes: str
) -> None:
    assert computed_type(provider, options) == computes
