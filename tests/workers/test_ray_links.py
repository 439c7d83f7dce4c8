"""Ray between machines of their own: what crosses links, what is said when they fail, which clusters are refused.

examples/serve runs there, too.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from threading import Thread

import msgspec
import numpy as np
import onnx
import pytest
from netcluster import NetCluster, machines
from onnx import helper, numpy_helper

import graphcut
from graphcut import Across, Cluster, Into, RunError, Tokenizer, UsageError
from graphcut.core.manifest import PlannedDevice, save_manifest

from cases import some
from conftest import ROOT, floats, model_of
from tokenizers_by_hand import folder_with

pytest.importorskip("ray", reason="Ray is not installed: pip install 'graphcut[ray]'")

from graphcut.workers.executors.ray_cluster import RayCluster, check_addresses

SIDE = 1024
WEIGHT_BYTES = 4 * SIDE * SIDE
TOKEN = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN={64 * '0'}"
RUN = f"{TOKEN} graphcut run parts --inputs inputs -o out --via ray"
WORKER = "$(pgrep -f '[r]ay::RemoteWorker')"  # on its machine; the brackets leave out the command itself
BOUNDARY_BYTES = 1 << 20
REQUESTS = 20
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
    """A head: the devices `a` and `b`; a device `edge` behind a link; and a third machine, which asks for no token."""
    devices = json.dumps({f"dev:{name}": 1 for name in "ab"})
    with machines("-", "-", "-") as made:
        # Of what Ray starts, no test needs what scales a cluster and what collects its logs.
        start = f"python {ROOT}/tests/ray_nodes.py start"
        options = "--num-cpus=2 --include-log-monitor=false --object-store-memory=200000000"
        head = f"{start} --head --port=6379 --include-dashboard=false --no-monitor"
        for machine, command in (
            (0, f"{TOKEN} {head} --resources='{devices}'"),
            (1, f"""{TOKEN} {start} --address=10.77.0.10:6379 --resources='{{"dev:edge": 1}}'"""),
            (2, f"RAY_AUTH_MODE=disabled {head}"),
        ):
            made("on", machine, f"{command} {options} >log 2>&1 </dev/null")
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
    part = msgspec.structs.replace(made.parts[0], device="edge")
    hosts = (PlannedDevice(name="edge", memory_bytes=None),)
    save_manifest(msgspec.structs.replace(made.manifest, devices=hosts, parts=(part,)), made.path)
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


@pytest.fixture(scope="module")
def cut_in_two(cluster: NetCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x → x · w (the boundary) → its sums y, and a large output z. The first part is for `a`, the second for `edge`."""
    folder, side = tmp_path_factory.mktemp("two"), 512
    weight = numpy_helper.from_array(np.linspace(0, 1, side, dtype=np.float32)[None], "w")
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="first"),
        helper.make_node("ReduceSum", ["a", "axis"], ["y"], name="sums"),
        helper.make_node("Neg", ["a"], ["z"], name="large"),
    ]
    outputs = [floats("y", "n", 1), floats("z", "n", side)]
    onnx.save(model_of(nodes, [floats("x", "n", 1)], outputs, [weight, axis]), folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx", dims={"n": 512})
    made = replace(graphcut.plan(model, graphcut.At("first")), devices=tuple(map(device, ("a", "edge"))))
    parts = graphcut.split(model, made, folder / "two").root
    for machine in (0, 1):
        shutil.copytree(parts, cluster.tmp(machine) / "two")
    return parts


def device(name: str) -> graphcut.Device:
    return graphcut.Device(name=name)


def feed(cluster: NetCluster, number: int, rows: int) -> None:
    """Write inputs for `cut_in_two`."""
    folder = cluster.tmp(0) / "rows"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for i in range(number):
        np.savez(folder / f"{i:02}.npz", x=np.full((rows, 1), i, np.float32))


def expect_sums(cluster: NetCluster, parts: Path, number: int, rows: int) -> None:
    for i in range(number):
        y = graphcut.run(parts, {"x": np.full((rows, 1), i, np.float32)})["y"]
        np.testing.assert_array_equal(np.load(cluster.tmp(0) / "sums" / f"{i:02}.npz")["y"], y)
    shutil.rmtree(cluster.tmp(0) / "sums")


SUMS = f"{TOKEN} graphcut run /tmp/two --inputs /tmp/rows -o /tmp/sums --via ray --outputs y"


def test_boundary_tensors_go_once_and_outputs_only_if_asked_for(cluster: NetCluster, cut_in_two: Path) -> None:
    cluster("rate", 1, "100mbit")
    feed(cluster, REQUESTS, 512)
    before = cluster.received()
    cluster("on", 0, SUMS)
    received = [after - old for after, old in zip(cluster.received(), before, strict=True)]
    assert REQUESTS * BOUNDARY_BYTES < received[1] <= 1.1 * REQUESTS * BOUNDARY_BYTES
    assert received[0] < BOUNDARY_BYTES  # 40 KiB of answers, and what Ray's machines tell each other
    expect_sums(cluster, cut_in_two, REQUESTS, 512)


def test_a_link_that_becomes_slower_is_said_and_parts_move(cluster: NetCluster, cut_in_two: Path) -> None:
    cluster("rate", 1, "100mbit")
    feed(cluster, 60, 128)
    running, out = cluster.start("on", 0, SUMS), cluster.tmp(0) / "sums"
    wait_for_outputs(running, out, 10)
    cluster("rate", 1, "4mbit")
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 0, said
    assert re.search(r"sending from a to edge takes \d+ times as long as at the start: .* for 256 KiB\n", said)
    assert "parts moved, there are now: a 2, edge 0\n" in said
    expect_sums(cluster, cut_in_two, 60, 128)


def test_a_measured_cluster_is_a_cluster_file(cluster: NetCluster) -> None:
    cluster("rate", 1, "100mbit")
    cluster("on", 0, f"{TOKEN} graphcut measure cluster --seconds 0 -o /tmp/cluster.toml")
    found = graphcut.read_cluster(cluster.tmp(0) / "cluster.toml")
    assert {one.name for one in found.devices} == {"a", "b", "edge"}
    assert (found.origin, found.links) == ("a", ())
    assert found.step_s > 0
    assert len({one.link_bytes_per_s for one in found.devices}) == 1  # the one link between the two machines
    for one in found.devices:
        assert 0 < one.link_bytes_per_s < 2 * 12.5e6  # 100 Mbit/s, and what a busy machine makes of them
        assert (one.memory_bytes or 0) > 0


def wait_for_outputs(running: Popen[str], folder: Path, number: int) -> None:
    while len([*folder.glob("*.npz")]) < number:
        assert running.poll() is None
        time.sleep(0.01)


def begin(cluster: NetCluster, number: int = 60) -> Popen[str]:
    """Begin to run so many inputs: those of `expected`, over and over."""
    home = cluster.tmp(0) / "home"
    for folder in ("out", "inputs"):
        shutil.rmtree(home / folder, ignore_errors=True)
    (home / "inputs").mkdir()
    for i in range(number):
        shutil.copy(home / "in" / f"{i % 60:02}.npz", home / "inputs" / f"{i:03}.npz")
    return cluster.start("on", 0, RUN)


def expect_outputs(cluster: NetCluster, expected: list[np.ndarray], number: int = 60) -> None:
    for i in range(number):
        with np.load(cluster.tmp(0) / "home" / "out" / f"{i:03}.npz") as found:
            np.testing.assert_array_equal(found["y"], expected[i % 60])


def test_a_part_crosses_a_slow_link_once_and_stays_there(cluster: NetCluster, expected: list[np.ndarray]) -> None:
    cluster("rate", 1, "8mbit")
    received = []
    for progress in ([f"sending part-0.onnx to edge, 4 MiB, {share} %" for share in (25, 50, 75, 100)], []):
        before = cluster.received()[1]
        said = begin(cluster).communicate(timeout=120)[1]
        received.append(cluster.received()[1] - before)
        lines = [line for line in said.splitlines() if line.startswith("sending") and not line.endswith(" 0 %")]
        assert lines == progress
        expect_outputs(cluster, expected)
    assert WEIGHT_BYTES < received[0] - received[1] <= 1.1 * WEIGHT_BYTES
    assert received[1] < WEIGHT_BYTES / 4


def test_a_link_that_is_down_for_seconds_makes_no_worker_hung(cluster: NetCluster, expected: list[np.ndarray]) -> None:
    cluster("rate", 1, "8mbit")
    running = begin(cluster, 300)  # it must still run when the link is found to be back
    wait_for_outputs(running, cluster.tmp(0) / "home" / "out", 3)
    cluster("link", 1, "down")
    time.sleep(4)
    cluster("link", 1, "up")
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 0, said
    assert [re.sub(r"\d+", "N", line) for line in said.splitlines() if line.startswith("edge ")] == [
        "edge does not answer: its machine or its link is down",
        "edge answers again after N s",
    ]
    expect_outputs(cluster, expected, 300)


def test_a_paused_worker_and_a_cable_pulled_for_a_second_end_no_worker(
    cluster: NetCluster, expected: list[np.ndarray]
) -> None:
    cluster("rate", 1, "8mbit")
    running, out = begin(cluster), cluster.tmp(0) / "home" / "out"
    wait_for_outputs(running, out, 3)
    cluster("on", 1, f"kill -STOP {WORKER}; sleep 2; kill -CONT {WORKER}")
    wait_for_outputs(running, out, 20)
    cluster("link", 1, "down")
    time.sleep(1)
    cluster("link", 1, "up")
    said = running.communicate(timeout=120)[1]
    assert running.returncode == 0, said
    assert "ended" not in said
    assert "lost" not in said
    expect_outputs(cluster, expected)


@pytest.mark.usefixtures("expected")
def test_a_missing_token_is_said_at_once(cluster: NetCluster) -> None:
    said = cluster.start("on", 0, "graphcut run parts --inputs in -o refused --via ray").communicate(timeout=120)[1]
    assert said.startswith("error: the Ray cluster at 10.77.0.10:6379 can't be joined: it requires a token\n")
    assert "gcs_client" not in said


@pytest.mark.usefixtures("expected")
@pytest.mark.fuzz
@pytest.mark.parametrize("token", some([64 * "1", r"$(printf \\001)"], "abc"))
def test_a_wrong_token_is_said_at_once_with_where_the_right_one_is(cluster: NetCluster, token: str) -> None:
    run = "graphcut run parts --inputs in/00.npz -o refused.npz --via ray"
    said = cluster.start("on", 0, f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token} {run}").communicate(timeout=120)[1]
    assert said == (
        "error: the Ray cluster at 10.77.0.10:6379 can't be joined: the token here is not that of the cluster\n"
        " hint: copy ~/.ray/auth_token from the head, and unset RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH\n"
    )


@pytest.mark.usefixtures("expected")
def test_a_cluster_that_asks_for_no_token_is_refused(cluster: NetCluster) -> None:
    run = "graphcut run parts --inputs in/0.npz -o refused.npz --via ray"
    said = cluster.start("on", 2, run).communicate(timeout=120)[1]
    assert said.startswith("error: the Ray cluster at 10.77.0.12:6379 asks for no token")
    measure = "graphcut measure cluster --seconds 0 -o cluster.toml --insecure"
    measured = cluster.start("on", 2, measure).communicate(timeout=120)[1]
    assert measured.startswith("error: no machine of the cluster says which device it is\n")


@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize("mode", ["", "RAY_AUTH_MODE=token "], ids=["found", "asked for"])
def test_a_token_that_is_here_is_not_used_where_none_is_asked_for(cluster: NetCluster, mode: str) -> None:
    cluster("on", 2, f"mkdir -p .ray; echo {64 * '0'} > .ray/auth_token; rm -f y.npz")
    run = f"{mode}graphcut run parts --inputs in/0.npz -o y.npz --via ray --insecure"
    said = cluster.start("on", 2, run).communicate(timeout=120)[1]
    cluster("on", 2, "rm -r .ray")
    assert "wrote y.npz" in said
    assert "ended" not in said


@pytest.mark.skipif(find_spec("fastapi") is None, reason="needs ray[serve]")
def test_the_served_example_has_a_part_on_each_machine(cluster: NetCluster, tmp_path: Path) -> None:
    model, devices = graphcut.load(folder_with("qwen", tmp_path)), tuple(map(device, ("a", "edge")))
    made = replace(graphcut.plan(model, Into(2)), goal=Across(Cluster(devices=devices)), devices=devices)
    cascade = graphcut.split(model, made, tmp_path / "parts")
    cluster("rate", 1, "100mbit")
    shutil.copytree(cascade.root, cluster.tmp(0) / "served")  # the other machine is sent its part
    (cluster.tmp(0) / "ask.py").write_text(ASK)
    serve = f"python {ROOT}/examples/serve/serve.py /tmp/served --via ray --port 8123"
    server = cluster.start("on", 0, f"echo $$ > /tmp/serve.pid; {TOKEN} exec {serve} > /tmp/serve.log 2>&1")
    try:
        said = cluster("on", 0, "python /tmp/ask.py")
        titles = [cluster("on", machine, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'") for machine in range(2)]
    finally:
        cluster("on", 0, "kill -INT $(cat /tmp/serve.pid)")  # it ends what it started in the cluster
        server.communicate(timeout=120)
    # The server is where it was started; it is the driver, and the worker of its machine is a thread of it.
    counted = [(one.count("ray::ServeReplica"), one.count("ray::RemoteWorker")) for one in titles]
    assert counted == [(1, 0), (0, 1)], titles
    tokenizer = Tokenizer(cascade)
    prompt = tokenizer.encode("The fox")
    (tokens,) = graphcut.generate(cascade, [prompt], max_tokens=12, stop=tokenizer.stop).all()
    stream = tokenizer.stream(prompt)
    assert said == "".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end()


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


@pytest.mark.parametrize("address", ["10.77.0.10", "pi", "pi:", "pi:ray"])
def test_an_address_without_a_port_is_refused_with_one_that_has_it(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match=f"^RAY_ADDRESS={address} has no port$") as caught:
        RayCluster(1)
    assert caught.value.hint == "expected HOST:PORT, such as RAY_ADDRESS=HOST:6379"


def test_what_does_not_answer_as_a_cluster_may_use_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes connections, as a cluster with TLS does to whom has no certificate."""

    def closing() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=closing, daemon=True).start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        for name in ("connect", "reconnect"):  # or Ray would try for half a minute
            monkeypatch.setenv(f"RAY_gcs_rpc_server_{name}_timeout_s", "1")
        with pytest.raises(RunError, match="does not answer as a Ray cluster does") as caught:
            RayCluster(1)
    assert caught.value.hint == "if it uses TLS, set RAY_USE_TLS=1 and the certificates here, too: see SECURITY.md"
