"""Calibration: this machine as a device for plans."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphcut
from graphcut import Across, demos
from graphcut.benchmarking.calibration import Calibration, calibrate, save_device
from graphcut.core.errors import GraphcutError
from graphcut.costs.device import Device


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


def test_a_device_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphcutError, match="can't be written"):
        save_device(Calibration(Device(name="here"), 3, 0.0), tmp_path / "none" / "device.toml")
