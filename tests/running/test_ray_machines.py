"""Ray between machines of their own: what crosses a link, what is measured of it, and examples/serve on all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from netcluster import NetCluster, machines
from onnx import helper, numpy_helper

import graphcut
from graphcut import Across, Cluster, Device, Into, Tokenizer

from conftest import ROOT, floats, model_of
from tokenizers_by_hand import folder_with

pytest.importorskip("ray", reason="Ray is not installed")

SIDE, REQUESTS = 512, 20
BOUNDARY_BYTES = 4 * SIDE * SIDE


ASK = """
import json, time, urllib.request
body = json.dumps({"prompt": "The fox", "max_tokens": 12}).encode()
for _ in range(300):
    try:
        answer = urllib.request.urlopen("http://127.0.0.1:8123/v1/completions", body, timeout=60)
        break
    except OSError:  # it is not there yet
        time.sleep(0.3)
print(json.load(answer)["choices"][0]["text"], end="")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetCluster]:
    """Three machines with Ray, which asks for a token; the driver is on the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        with machines("-", "100mbit", "100mbit") as made:
            join(start_ray(made, 0, "--head --port=6379 --disable-usage-stats --include-dashboard=false"))
            join(*(start_ray(made, machine, "--address=10.77.0.10:6379") for machine in (1, 2)))
            yield made


def start_ray(cluster: NetCluster, machine: int, role: str) -> subprocess.Popen[str]:
    options = f"--node-ip-address=10.77.0.1{machine} --num-cpus=2 --object-store-memory=200000000"
    device = f"--resources='{{\"dev:{'abc'[machine]}\": 1}}'"
    return cluster.start("on", machine, f"python -m ray.scripts.scripts start {role} {options} {device}")


def join(*started: subprocess.Popen[str]) -> None:
    for one in started:
        _, err = one.communicate(timeout=120)
        assert one.returncode == 0, err


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
    assert (found.origin, sorted(device.name for device in found.devices), found.links) == ("a", ["a", "b", "c"], ())
    for device in found.devices:
        assert 0 < device.link_bytes_per_s < 12.5e6  # what 100 Mbit/s carry
        assert (device.memory_bytes or 0) > 0


def test_the_served_example_has_a_part_on_each_machine(cluster: NetCluster, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs ray[serve]")

    model, devices = graphcut.load(folder_with("qwen", tmp_path)), tuple(Device(name=name) for name in "abc")
    made = replace(graphcut.plan(model, Into(3)), goal=Across(Cluster(devices=devices)), devices=devices)
    cascade = graphcut.split(model, made, tmp_path / "parts")
    for machine in range(3):
        shutil.copytree(cascade.root, cluster.tmp(machine) / "served")
    (cluster.tmp(0) / "ask.py").write_text(ASK)
    serve = f"python {ROOT}/examples/serve/serve.py /tmp/served --via ray --port 8123"
    server = cluster.start("on", 0, f"echo $$ > /tmp/serve.pid; exec {serve} > /tmp/serve.log 2>&1")
    try:
        said = cluster("on", 0, "python /tmp/ask.py")
        titles = [cluster("on", machine, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'") for machine in range(3)]
    finally:
        cluster("on", 0, "kill -KILL $(cat /tmp/serve.pid)")
        server.communicate()
    assert [one.count("ray::RemoteWorker") for one in titles] == [1, 1, 1]
    tokenizer = Tokenizer(cascade)
    prompt = tokenizer.encode("The fox")
    (tokens,) = graphcut.generate(cascade, [prompt], max_tokens=12, stop=tokenizer.stop).all()
    stream = tokenizer.stream(prompt)
    assert said == "".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end()
