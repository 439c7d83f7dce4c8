"""Ray between machines of their own: what crosses a link, and what `graphcut cluster measure` says of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from netcluster import NetCluster, machines
from onnx import helper, numpy_helper

import graphcut

from conftest import floats, model_of

pytest.importorskip("ray", reason="Ray is not installed")

SIDE, REQUESTS = 512, 20
BOUNDARY_BYTES = 4 * SIDE * SIDE


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetCluster]:
    """Two machines with Ray; the driver is on the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        with machines("-", "100mbit") as made:
            for machine, device, role in ((0, "a", "--head --port=6379"), (1, "b", "--address=10.77.0.10:6379")):
                options = f"--node-ip-address=10.77.0.1{machine} --num-cpus=1 --object-store-memory=200000000"
                quiet = "--disable-usage-stats --include-dashboard=false" if machine == 0 else ""
                resources = f"--resources='{{\"dev:{device}\": 1}}'"
                made("on", machine, f"python -m ray.scripts.scripts start {role} {options} {quiet} {resources}")
            yield made


def cut_in_two(folder: Path) -> Path:
    """x → x · w (1 MiB, the boundary) → its sums y, and a large output z."""
    weight = numpy_helper.from_array(np.linspace(0, 1, SIDE, dtype=np.float32)[None], "w")
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="first"),
        helper.make_node("ReduceSum", ["a", "axis"], ["y"], name="sums"),
        helper.make_node("Neg", ["a"], ["z"], name="large"),
    ]
    outputs = [floats("y", SIDE, 1), floats("z", SIDE, SIDE)]
    onnx.save(model_of(nodes, [floats("x", SIDE, 1)], outputs, [weight, axis]), folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    made = graphcut.plan(model, graphcut.At("first"))
    devices = tuple(graphcut.Device(name=name) for name in "ab")
    return graphcut.split(model, replace(made, devices=devices), folder / "parts").root


def test_boundary_tensors_go_once_and_outputs_only_if_asked_for(cluster: NetCluster, tmp_path: Path) -> None:
    parts = cut_in_two(tmp_path)
    for machine in (0, 1):
        shutil.copytree(parts, cluster.tmp(machine) / "parts")
    feeds = [{"x": np.full((SIDE, 1), i, np.float32)} for i in range(REQUESTS)]
    (cluster.tmp(0) / "in").mkdir()
    for i, feed in enumerate(feeds):
        np.savez(cluster.tmp(0) / "in" / f"{i:02}.npz", x=feed["x"])
    before = cluster.received()
    cluster("on", 0, "python -m graphcut run /tmp/parts --inputs /tmp/in -o /tmp/out --via ray --outputs y")
    received = [after - old for after, old in zip(cluster.received(), before, strict=True)]
    assert REQUESTS * BOUNDARY_BYTES < received[1] <= 1.1 * REQUESTS * BOUNDARY_BYTES
    assert received[0] < BOUNDARY_BYTES  # 40 KiB of answers, and what Ray's machines tell each other
    for i, feed in enumerate(feeds):
        expected = graphcut.run(parts, feed)["y"]
        np.testing.assert_array_equal(np.load(cluster.tmp(0) / "out" / f"{i:02}.npz")["y"], expected)


def test_a_measured_cluster_is_a_cluster_file(cluster: NetCluster) -> None:
    cluster("on", 0, "python -m graphcut cluster measure --seconds 0 -o /tmp/cluster.toml")
    found = graphcut.read_cluster(cluster.tmp(0) / "cluster.toml")
    assert (found.origin, sorted(device.name for device in found.devices), found.links) == ("a", ["a", "b"], ())
    for device in found.devices:
        assert 0 < device.link_bytes_per_s < 12.5e6  # what 100 Mbit/s carry
        assert (device.memory_bytes or 0) > 0
