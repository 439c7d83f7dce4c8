"""examples/serve on machines of their own, by Ray."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from netcluster import NetCluster, machines

import graphcut
from graphcut import Across, Cluster, Device, Into, Tokenizer

from conftest import ROOT
from tokenizers_by_hand import folder_with

pytest.importorskip("ray", reason="Ray is not installed")

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
    # On the machine of the replica, which is the driver, the worker is a process.
    workers = [one.count("ray::RemoteWorker") + one.count("process_worker import serve") for one in titles]
    assert workers == [1, 1, 1]
    tokenizer = Tokenizer(cascade)
    prompt = tokenizer.encode("The fox")
    (tokens,) = graphcut.generate(cascade, [prompt], max_tokens=12, stop=tokenizer.stop).all()
    stream = tokenizer.stream(prompt)
    assert said == "".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end()
