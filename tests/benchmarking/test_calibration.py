"""Calibration: this machine as a device for plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest

import graphcut
from graphcut import Across, At, SessionConfig, demos
from graphcut.benchmarking import calibration
from graphcut.benchmarking.calibration import Calibration, calibrate, calibrate_cluster, save_cluster, save_device
from graphcut.core.errors import GraphcutError
from graphcut.costs.cluster import Cluster, Host, NetworkLink
from graphcut.costs.device import Device
from graphcut.running.stage import session_options


def test_a_measured_device_is_written_as_a_cluster_file_and_planned_for(tmp_path: Path) -> None:
    demos.write("resnet", tmp_path / "model.onnx")
    found = calibrate('board "1"', seconds=0, threads=1)
    save_device(found, tmp_path / "device.toml")
    cluster = graphcut.read_cluster(tmp_path / "device.toml")
    (device,) = cluster.devices
    assert (device.name, found.rounds) == ('board "1"', 3)
    assert device.flops_per_s == pytest.approx(found.device.flops_per_s, rel=0.01)
    assert device.bytes_per_s == pytest.approx(found.device.bytes_per_s, rel=0.01)
    assert device.dispatch_s == pytest.approx(found.device.dispatch_s, rel=0.01)
    assert graphcut.plan(tmp_path / "model.onnx", Across(cluster)).devices == cluster.devices


@pytest.mark.parametrize("origin", ["a", Host(name="laptop", latency_s=2e-3), None])
def test_a_measured_cluster_is_read_as_it_was_written(origin: str | Host | None, tmp_path: Path) -> None:
    devices = (Device(name="a", link_bytes_per_s=1.2e7, latency_s=1.5e-3), Device(name="b", memory_bytes=10**9))
    links = (NetworkLink(between=("a", "b"), bytes_per_s=1e6, latency_s=3e-3),)
    made = Cluster(devices=devices, links=links, origin=origin, store_s=4.5e-3, step_s=8e-4)
    save_cluster(made, Calibration(devices[0], 3, 0.0), tmp_path / "cluster.toml")
    found = graphcut.read_cluster(tmp_path / "cluster.toml")
    assert (found.driver, found.devices, found.links) == (made.driver, devices, links)
    assert (found.store_s, found.step_s) == (4.5e-3, 8e-4)


def test_an_error_says_that_ray_is_not_installed() -> None:
    code = "import sys; sys.modules['ray'] = None; import graphcut; graphcut.calibrate_cluster()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: measuring a cluster needs the package ray, which is not installed" in done.stderr


@pytest.mark.parametrize("here", [("a", "b"), ()])
def test_devices_of_one_machine_share_its_links(here: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines, each of which is two devices or one, are slower to each other than to the third one."""
    ray_measuring = pytest.importorskip("graphcut.workers.executors.ray_measuring", reason="Ray is not installed")
    names = [*here, "c", "d", "e"]
    found = ray_measuring.MeasuredCluster(
        {name: Calibration(Device(name="measured"), 3, 0.0) for name in names},
        dict.fromkeys(names, 10**9),
        {
            (here, ("c", "d")): ray_measuring.LinkRate(2e7, 5e-3, 0.0),
            (here, ("e",)): ray_measuring.LinkRate(1e7, 5e-3, 0.0),
            (("c", "d"), ("e",)): ray_measuring.LinkRate(1e6, 5e-3, 0.0),
        },
        here,
    )
    monkeypatch.setattr(ray_measuring, "measure_cluster", lambda *_, **__: found)
    monkeypatch.setattr(calibration, "_overhead_s", lambda steps, *_, **__: 2e-3 * ("c" in steps))
    cluster, _ = calibrate_cluster()
    rates = {"c": (2e7, 1e-3), "d": (2e7, 1e-3), "e": (1e7, 0.0)}
    driver = here or ("driver",)
    rates |= dict.fromkeys(driver, (2e7, 0.0))
    assert {name: (one.link_bytes_per_s, one.latency_s) for name, one in cluster.machines.items()} == rates
    assert cluster.driver.name == driver[0]
    assert [(one.between, one.bytes_per_s) for one in cluster.links] == [(("c", "e"), 1e6), (("d", "e"), 1e6)]


def test_messages_are_measured_between_parts_that_read_weights_and_send_next_to_nothing(tmp_path: Path) -> None:
    """The weights are in no file: ONNX Runtime makes them, once for all runs."""
    model, cuts = calibration._decoder_like(3)
    onnx.save(model, tmp_path / "model.onnx")
    cascade = graphcut.split(tmp_path / "model.onnx", At(cuts), tmp_path / "parts")
    assert {name: tensor.shape for name, tensor in cascade.tensors.items()} == {f"x{i}": (1, 16) for i in range(4)}
    for part in cascade.parts:
        path, loaded = cascade.root / part.file, tmp_path / "loaded.onnx"
        assert path.stat().st_size < 10_000
        options = session_options(SessionConfig(threads=1))
        options.optimized_model_filepath = str(loaded)
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        assert "Expand" not in {node.op_type for node in onnx.load(loaded, load_external_data=False).graph.node}
        assert loaded.stat().st_size >= 2048 * 5120 * 4


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_a_request_takes_longer_than_its_parts_compute(names: tuple[str, ...]) -> None:
    assert calibration._overhead_s(names, "threads", insecure=False) > 0


def test_a_device_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphcutError, match=r"writing .* failed"):
        save_device(Calibration(Device(name="here"), 3, 0.0), tmp_path / "none" / "device.toml")
