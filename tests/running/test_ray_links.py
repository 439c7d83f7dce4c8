"""Ray over slow links that are pulled: what crosses them, what is said, and which clusters are refused."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from netcluster import NetCluster, machines
from onnx import helper, numpy_helper

import graphcut
from graphcut import Into, RunError
from graphcut.core.manifest import Host, save_manifest

from conftest import floats, model_of

pytest.importorskip("ray", reason="Ray is not installed: pip install 'graphcut[ray]'")

from graphcut.running.executors.ray_cluster import check_addresses

SIDE = 1024
WEIGHT_BYTES = 4 * SIDE * SIDE
TOKEN = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN={64 * '0'}"
RUN = f"{TOKEN} graphcut run parts --inputs in -o out --via ray"


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetCluster]:
    """A head, and a device behind 8 Mbit/s. A third machine is a cluster that asks for no token."""
    with machines("-", "8mbit", "-") as made:
        head = "ray start --head --port=6379 --include-dashboard=false"
        for machine, command in (
            (0, f"{TOKEN} {head}"),
            (1, f"""{TOKEN} ray start --address=10.77.0.10:6379 --resources='{{"dev:edge": 1}}'"""),
            (2, f"RAY_AUTH_MODE=disabled {head}"),
        ):
            made("on", machine, f"{command} --num-cpus=1 --object-store-memory=100000000 >log 2>&1 </dev/null")
        yield made


@pytest.fixture(scope="module")
def expected(cluster: NetCluster, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """x → x · w, planned for the device behind the link; its files are on the head. The outputs for 60 inputs."""
    folder = tmp_path_factory.mktemp("model")
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(SIDE, SIDE)).astype(np.float32), "w")
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
        [floats("x", 1, SIDE)],
        [floats("y", 1, SIDE)],
        [weight],
    )
    onnx.save(model, folder / "model.onnx")
    made = graphcut.split(folder / "model.onnx", Into(1), folder / "parts")
    part = replace(made.parts[0], device="edge")
    hosts = (Host(name="edge", memory_bytes=None),)
    save_manifest(replace(made.manifest, devices=hosts, parts=(part,)), made.path)
    outputs = []
    for machine in (0, 2):
        home = cluster.tmp(machine) / "home"
        shutil.copytree(made.root, home / "parts")
        (home / "in").mkdir()
    for i in range(60):
        x = np.full((1, SIDE), i, np.float32)
        outputs.append(graphcut.run(made, {"x": x})["y"])
        np.savez(cluster.tmp(0) / "home" / "in" / f"{i:02}.npz", x=x)
    np.savez(cluster.tmp(2) / "home" / "in" / "0.npz", x=x)
    return outputs


def expect_outputs(cluster: NetCluster, expected: list[np.ndarray]) -> None:
    found = cluster.tmp(0) / "home" / "out"
    for i, y in enumerate(expected):
        np.testing.assert_array_equal(np.load(found / f"{i:02}.npz")["y"], y)
    shutil.rmtree(found)


def test_a_part_crosses_a_slow_link_once_and_stays_there(cluster: NetCluster, expected: list[np.ndarray]) -> None:
    received = []
    for progress in ([f"sending part-0.onnx to edge, 4 MiB, {share} %" for share in (25, 50, 75, 100)], []):
        before = cluster.received()[1]
        said = cluster.start("on", 0, RUN).communicate(timeout=100)[1]
        received.append(cluster.received()[1] - before)
        lines = [line for line in said.splitlines() if line.startswith("sending") and not line.endswith(" 0 %")]
        assert lines == progress
        expect_outputs(cluster, expected)
    assert WEIGHT_BYTES < received[0] - received[1] <= 1.1 * WEIGHT_BYTES
    assert received[1] < WEIGHT_BYTES / 4


def test_a_link_that_is_down_for_seconds_makes_no_worker_hung(cluster: NetCluster, expected: list[np.ndarray]) -> None:
    running, out = cluster.start("on", 0, RUN), cluster.tmp(0) / "home" / "out"
    while len([*out.glob("*.npz")]) < 3:
        assert running.poll() is None
        time.sleep(0.01)
    cluster("link", 1, "down")
    time.sleep(4)
    cluster("link", 1, "up")
    said = running.communicate(timeout=100)[1]
    assert running.returncode == 0, said
    assert [re.sub(r"\d+", "N", line) for line in said.splitlines() if line.startswith("edge ")] == [
        "edge does not answer: its machine or its link is down",
        "edge answers again after N s",
    ]
    expect_outputs(cluster, expected)


@pytest.mark.usefixtures("expected")
def test_a_missing_token_is_said_at_once(cluster: NetCluster) -> None:
    said = cluster.start("on", 0, "graphcut run parts --inputs in -o out --via ray").communicate(timeout=60)[1]
    assert said.startswith("error: the Ray cluster at 10.77.0.10:6379 can't be joined: it requires a token\n")
    assert "gcs_client" not in said


@pytest.mark.usefixtures("expected")
def test_a_cluster_that_asks_for_no_token_is_refused(cluster: NetCluster) -> None:
    run = "graphcut run parts --inputs in/0.npz -o y.npz --via ray"
    said = cluster.start("on", 2, run).communicate(timeout=60)[1]
    assert said.startswith("error: the Ray cluster at 10.77.0.12:6379 asks for no token")
    accepted = cluster.start("on", 2, f"{run} --insecure").communicate(timeout=60)[1]
    assert accepted.startswith("error: the cluster has no device 'edge'") or "wrote y.npz" in accepted


def test_a_machine_with_a_local_address_is_refused() -> None:
    head = {"NodeManagerAddress": "127.0.1.1", "NodeManagerHostname": "pi"}
    worker = {"NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "pi2"}
    check_addresses([head])
    check_addresses([worker, {**head, "NodeManagerAddress": "10.0.0.1"}])
    with pytest.raises(
        RunError, match="pi is in the Ray cluster with an address that other machines can't reach"
    ) as caught:
        check_addresses([worker, head])
    assert "--node-ip-address" in caught.value.hint
