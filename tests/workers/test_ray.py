"""A Ray cluster of several nodes on this host: placement, file transfer, lost workers and lost nodes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from decoders import WIDTH, with_concat, with_encoder
from onnx import TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, Into, RunError, SessionConfig, demos, stream
from graphcut.core.manifest import PlannedDevice, save_manifest
from graphcut.inputs.generating import generate_inputs
from graphcut.running.values import to_array, to_value
from graphcut.workers.executors.protocol import Died, Done, Event, Lost, Note, Ready, Step
from graphcut.workers.run_log import RunLog

from cases import FUZZ
from conftest import LAYER_ENDS, floats, model_of
from control_flow import write_model
from families import FAMILIES

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'graphcut[ray]'")

from ray._private import state as ray_state  # noqa: E402, TID251 - only where Ray is installed
from ray.cluster_utils import Cluster  # noqa: E402, TID251 - likewise
from ray_nodes import without_extras  # noqa: E402 - likewise

from graphcut.workers.executors import ray_cluster, ray_executor  # noqa: E402 - likewise
from graphcut.workers.executors.ray_actor import (  # noqa: E402 - likewise
    InlineArray,
    RemoteWorker,
    StepCall,
    StepResult,
)
from graphcut.workers.executors.ray_and_threads import RayAndThreads  # noqa: E402 - likewise
from graphcut.workers.executors.ray_cluster import WorkerPlacement  # noqa: E402 - likewise
from graphcut.workers.executors.ray_executor import RayExecutor  # noqa: E402 - likewise

DEVICES = ("edge0", "edge1", "edge2")
ROWS = 40_000  # rows of four floats: too large to travel inside a message, so Ray's object stores hold them
ONE = SessionConfig(threads=1)
KILLS = int(os.environ.get("GRAPHCUT_KILLS", "1"))
"""The number of runs in which an actor is killed; set GRAPHCUT_KILLS=50 for a longer test."""

PLACE, SHARED = Path("/tmp"), Path("/dev/shm")  # noqa: S108 - looked at, to see that nothing is left there

Feeds = list[dict[str, Any]]


class Machines:
    """A cluster with one node for each device. The node of this process is a device, too: the head."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = {
            "health_check_initial_delay_ms": 100,
            "health_check_period_ms": 100,
            "health_check_timeout_ms": 2000,
            "health_check_failure_threshold": 3,
            "worker_niceness": 0,  # else the other tests would keep workers waiting
        }
        device = {"dev:head": 1}
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": settings, "resources": device}
        head |= {"no_monitor": True, "include_log_monitor": False}  # processes that no test needs
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: dict[str, list[Any]] = {device: [] for device in DEVICES}

    def bring(self, *devices: str) -> None:
        """One node for each device, and no other; two for a device that is named twice."""
        for device, nodes in self.nodes.items():
            while len(nodes) > devices.count(device):
                self.lose(device)
            while len(nodes) < devices.count(device):
                nodes.append(self.cluster.add_node(num_cpus=1, resources={f"dev:{device}": 1}))
        wait_until(lambda: len(alive()) == 1 + len(devices))

    def sent(self) -> list[str]:
        """The names of the files that were sent to nodes."""
        return sorted(file.name for file in self.folder.glob("graphcut/parts/*/*") if file.is_file())

    def lose(self, device: str) -> None:
        """A node is gone from one moment to the next."""
        self.cluster.remove_node(self.nodes[device].pop(), allow_graceful=False)


def alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def started() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="gt-", dir="/tmp") as folder:
        without_extras(patch)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("TMPDIR", folder)  # where Ray keeps its things
        patch.setenv("XDG_CACHE_HOME", folder)  # where nodes keep what is sent to them
        machines = Machines(Path(folder))
        ray.init(address=machines.cluster.address, log_to_driver=False, logging_level="ERROR")
        yield machines
        ray.shutdown()
        machines.cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def machines(started: Machines, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setattr(ray_executor, "ABSENT_S", 1.0)
    shutil.rmtree(started.folder / "graphcut", ignore_errors=True)  # the parts that were sent before
    started.bring(*DEVICES)
    return started


def model_in_three(folder: Path) -> Cascade:
    """x → · w0 → a → · w1 → b → (b · w2) + a → y: two boundaries, and a residual from part 0 to part 2."""
    draw = np.random.default_rng(0)
    weights = [numpy_helper.from_array(draw.normal(size=(4, 4)).astype(np.float32), f"w{i}") for i in range(3)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w1"], ["b"], name="second"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="third"),
        helper.make_node("Add", ["c", "a"], ["y"], name="last"),
    ]
    folder.mkdir(exist_ok=True)
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)], weights), folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    plan = graphcut.plan(graphcut.analyze(model), graphcut.At(("first", "second")))
    cascade = graphcut.split(model, plan, folder / "parts")
    assert [sorted(part.reads) for part in cascade.parts] == [["x"], ["a"], ["a", "b"]]
    return cascade


def planned(
    cascade: Cascade, memory_bytes: Sequence[int | None] = (None, None, None), devices: Sequence[str] = DEVICES
) -> Cascade:
    """The same cascade, planned for the device of each part."""
    memory = dict(zip(devices, memory_bytes, strict=True))
    hosts = tuple(
        PlannedDevice(name=name, memory_bytes=memory[name], provider="CPUExecutionProvider") for name in memory
    )
    parts = tuple(msgspec.structs.replace(part, device=name) for part, name in zip(cascade.parts, devices, strict=True))
    manifest = msgspec.structs.replace(cascade.manifest, devices=hosts, parts=parts)
    save_manifest(manifest, cascade.path)
    return graphcut.open_cascade(cascade.path)


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    return planned(model_in_three(tmp_path_factory.mktemp("three")))


def feeds_of(number: int, rows: int = ROWS) -> Feeds:
    draw = np.random.default_rng(number)
    return [{"x": draw.normal(size=(rows, 4)).astype(np.float32)} for _ in range(number)]


def expect_equal(got: Sequence[Any], cascade: Cascade, feeds: Sequence[Mapping[str, Any]]) -> None:
    assert len(got) == len(feeds)
    for answer, feed in zip(got, feeds, strict=True):
        expected = graphcut.run(cascade, feed, config=ONE)
        assert list(answer) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(answer[name], value)


def disturbed(feeds: Feeds, at: int, disturb: Callable[[], object]) -> Iterator[dict[str, Any]]:
    """The feeds. `disturb` is called when feed number `at` is fetched, while others are in flight."""
    for number, feed in enumerate(feeds):
        if number == at:
            disturb()
        yield feed


def actors() -> dict[str, int]:
    """The process ids of all live actors, by node."""
    found = ray_state.actors()
    return {one["Address"]["NodeID"]: one["Pid"] for one in found.values() if one["State"] == "ALIVE"}


def node_of(device: str) -> str:
    return next(str(node["NodeID"]) for node in alive() if f"dev:{device}" in node["Resources"])


def kill_on(device: str) -> None:
    wait_until(lambda: node_of(device) in actors())
    os.kill(actors()[node_of(device)], signal.SIGKILL)


@pytest.mark.usefixtures("machines")
def test_answers_are_exact_and_in_order(cascade: Cascade) -> None:
    feeds = [*feeds_of(8, 3), *feeds_of(8), *feeds_of(4, 3)]
    expect_equal(list(stream(cascade, feeds, via="ray", config=ONE)), cascade, feeds)
    assert actors() == {}


@pytest.mark.usefixtures("machines")
def test_a_device_with_several_parts_runs_them_all(tmp_path: Path) -> None:
    """As interleaved plans have it: the first and the last part are on one device."""
    interleaved, feeds = planned(model_in_three(tmp_path), devices=("edge0", "edge1", "edge0")), feeds_of(12)
    with graphcut.Pipeline(interleaved, via="ray", config=ONE) as pipeline:
        assert set(pipeline.workers) == set(DEVICES[:2])
        expect_equal([pipeline.submit(feed).result() for feed in feeds], interleaved, feeds)


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize("demo", ["multitask", "control-flow"])
def test_cascades_without_devices_run_on_any_node(tmp_path: Path, demo: str) -> None:
    write_model(demo, tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(3)), tmp_path / "parts")
    draw = np.random.default_rng(1)
    feeds = [
        {
            name: draw.integers(0, 2, shape).astype(cascade.tensors[name].dtype)
            for name in cascade.manifest.reads
            for shape in [[size if isinstance(size, int) else 2 for size in cascade.tensors[name].shape or ()]]
        }
        for _ in range(4)
    ]
    expect_equal(list(stream(cascade, feeds, via="ray", workers=2, config=ONE)), cascade, feeds)


def next_of(executor: RayExecutor) -> Event:
    event = executor.next_event(60)
    assert event is not None
    return event


@pytest.fixture
def executor(machines: Machines, cascade: Cascade) -> Iterator[RayExecutor]:  # noqa: ARG001 - it must run
    """Worker i holds part i."""
    made = RayExecutor(cascade, ONE, {}, DEVICES)
    try:
        for place in range(3):
            made.start(place, [place])
        ready = sorted((next_of(made) for _ in range(3)), key=lambda event: event.worker)
        assert ready == [Ready(place, frozenset({place})) for place in range(3)]
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "more", [{"rounded": TensorProto.BFLOAT16}, {"words": TensorProto.STRING}], ids=["numbers", "texts"]
)
def test_small_numbers_travel_in_messages_once_they_are_known_to_be_small(tmp_path: Path, more: dict[str, int]) -> None:
    """Of every type, also without elements; texts never. They are what is stored where nothing is requested."""
    types = {"small": TensorProto.FLOAT, "flags": TensorProto.BOOL, **more}
    nodes = [helper.make_node("Cast", ["x"], [name], to=type_) for name, type_ in types.items()]
    nodes.append(helper.make_node("Slice", ["x", "zero", "zero"], ["nothing"]))
    outputs = [helper.make_tensor_value_info(name, type_, ["n", 3]) for name, type_ in types.items()]
    outputs.append(helper.make_tensor_value_info("nothing", TensorProto.DOUBLE, [0, 3]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 3])]
    zero = numpy_helper.from_array(np.zeros(1, np.int64), "zero")
    onnx.save(model_of(nodes, inputs, outputs, [zero]), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    cascade = graphcut.split(model, graphcut.plan(model, Into(1)), tmp_path / "parts")
    worker = RemoteWorker(os.fspath(cascade.path), cascade.manifest, {}, ONE)
    assert worker.has(0, {})
    worker.hold([0])

    def results(requested: Sequence[str]) -> tuple[StepResult, dict[str, Any]]:
        step = Step(0, (0,), cascade.manifest.writes)
        fed = InlineArray.of(np.array([[0.0, 1.5, 3.1]]))
        found = worker.run(msgspec.msgpack.encode(StepCall(step, tuple(requested), {"x": fed}, ())))
        raw, *stored = found if isinstance(found, tuple) else (found,)
        assert isinstance(raw, bytes), raw
        large = [name for name in step.writes if name not in requested]
        return msgspec.msgpack.decode(raw, type=StepResult), dict(zip(large, stored, strict=True))

    first, stored = results(())
    assert first.inline == {}
    assert set(first.small) == {*stored} - {"words"}
    again, texts = results(first.small)
    assert texts.keys() == {*more} - {"rounded"}
    for name in first.small:
        np.testing.assert_array_equal(again.inline[name].array(), stored[name], strict=True)


def first_step(executor: RayExecutor, cascade: Cascade) -> Any:  # noqa: ANN401 - a handle of the executor
    """The handle of `a`, which the first part makes on the first device."""
    fed = executor.put(to_value(np.ones((ROWS, 4), np.float32), cascade.tensors["x"]), "x")
    executor.run(0, Step(0, (0,), ("a",)), {"x": fed})
    event = next_of(executor)
    assert isinstance(event, Done)
    return event.outputs["a"]


def test_tensors_come_while_the_scheduler_goes_on_steps_wait_at_workers_and_each_death_is_reported(
    executor: RayExecutor, cascade: Cascade
) -> None:
    executor.wake()  # it ends a wait
    assert executor.next_event(None) is None
    assert executor.next_event(0.01) is None
    made = first_step(executor, cascade)
    assert executor.bytes_of(made) == ROWS * 16
    assert not executor.fetch([made])  # it is on another machine
    assert executor.next_event(30) is None
    assert executor.fetch([made])
    expected = np.ones((ROWS, 4)) @ np.random.default_rng(0).normal(size=(4, 4))
    np.testing.assert_allclose(to_array(executor.get(made, "a"), cascade.tensors["a"]), expected, rtol=1e-5)
    fed = executor.put(to_value(np.ones((ROWS, 4), np.float32), cascade.tensors["x"]), "x")
    steps = [Step(request, (0,), ("a",)) for request in range(2)]
    for step in steps:
        executor.run(0, step, {"x": fed})
    events = [next_of(executor), next_of(executor)]
    assert all(isinstance(event, Done) for event in events)
    assert sorted(event.step.request for event in events if isinstance(event, Done)) == [0, 1]
    for step in steps:
        executor.run(0, step, {"x": fed})
    for worker, device in enumerate(DEVICES):
        kill_on(device)
        while isinstance(event := next_of(executor), Done):
            pass  # it was done before
        assert event == Died(worker, "its process ended")
    assert executor.next_event(0.2) is None


def test_a_tensor_made_on_a_lost_machine_is_reported_lost(
    executor: RayExecutor, machines: Machines, cascade: Cascade
) -> None:
    made = first_step(executor, cascade)
    machines.lose("edge0")
    executor.run(1, step := Step(0, (1,), ("b",)), {"a": made})
    events = [next_of(executor), next_of(executor)]
    assert Lost(1, step) in events
    assert Died(0, "its machine is gone") in events
    executor.run(0, Step(1, (1,), ("b",)), {"a": made})  # the scheduler has not handled the death yet
    assert executor.next_event(0.5) is None
    with pytest.raises(LookupError, match="a is lost"):
        executor.get(made, "a")


def test_a_worker_loads_parts_in_the_order_in_which_it_was_told(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, loaded = RayExecutor(cascade, ONE, {}, DEVICES), list[Sequence[int]]()

    def load(_: object, parts: Sequence[int]) -> None:
        time.sleep(0.2 if len(parts) == 2 else 0.0)
        loaded.append(parts)

    monkeypatch.setattr(executor, "_load", load)
    actor = executor._actors[0] = ray_executor._Actor(0, None, None)  # none is needed
    executor.hold(0, [0, 1])
    executor.hold(0, [0, 1, 2])
    actor.loads.put(None)
    executor._load_in_turn(actor)
    assert loaded == [[0, 1], [0, 1, 2]]


def test_a_step_of_a_thread_begins_when_its_inputs_are_there_whatever_else_happens(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, begun = RayAndThreads(cascade, ONE, {}, DEVICES), list[object]()
    monkeypatch.setattr(executor, "_threads_here", SimpleNamespace(run=lambda *given: begun.append(given[:2])))
    monkeypatch.setattr(executor, "_here", {0})
    executor._waiting.append((0, step := Step(0, (0,), ("a",)), {}))
    executor._callbacks.put(lambda: Note(1, "it runs again"))
    assert executor.next_event(None) == Note(1, "it runs again")
    assert begun == [(0, step)]


@pytest.mark.usefixtures("machines")
def test_a_worker_on_this_machine_is_a_thread_and_its_steps_take_no_actor(tmp_path: Path) -> None:
    """Parts 0 and 2 run here, part 1 on another machine. Tensors, small or large, go there and come back."""
    made, names = model_in_three(tmp_path), ("head", "edge1")
    parts = tuple(msgspec.structs.replace(part, device=names[i % 2]) for i, part in enumerate(made.parts))
    hosts = tuple(PlannedDevice(name=name, memory_bytes=None) for name in names)
    save_manifest(msgspec.structs.replace(made.manifest, devices=hosts, parts=parts), made.path)
    cascade = graphcut.open_cascade(made.path)
    executor = RayAndThreads(cascade, ONE, {}, names)
    try:
        executor.start(0, [0, 2])
        assert next_of(executor) == Ready(0, frozenset({0, 2}))
        executor.start(1, [1])
        assert next_of(executor) == Ready(1, frozenset({1}))
        assert [*actors()] == [node_of("edge1")]
        for number, feed in enumerate((*feeds_of(1, 3), *feeds_of(1), *feeds_of(1, 3))):
            handles = {"x": executor.put(to_value(feed["x"], cascade.tensors["x"]), "x")}
            for part, (reads, writes) in enumerate((("x", "a"), ("a", "b"), ("ab", "y"))):
                step = Step(number, (part,), (writes,))
                executor.run(part % 2, step, {name: handles[name] for name in reads})
                while (event := executor.next_event(30)) is None:
                    pass  # an input arrived
                assert isinstance(event, Done)
                assert (event.worker, event.step) == (part % 2, step)
                handles |= event.outputs
            answer = to_array(executor.get(handles["y"], "y"), cascade.tensors["y"])
            np.testing.assert_array_equal(answer, graphcut.run(cascade, feed, config=ONE)["y"])
        assert executor.is_excused(0)  # a thread can't be ended, so it is never taken for hung
        assert not executor.is_excused(1)
    finally:
        executor.close()


@pytest.mark.usefixtures("machines")
def test_an_error_of_onnx_runtime_fails_one_request_only(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="first"),
        helper.make_node("Gather", ["table", "a"], ["y"], name="last"),
    ]
    table = numpy_helper.from_array(np.arange(3, dtype=np.float32), "table")
    places = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    onnx.save(model_of(nodes, [places], [floats("y", "n")], [table]), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    plan = graphcut.plan(graphcut.analyze(model), graphcut.At(("first",)))
    cascade = graphcut.split(model, plan, tmp_path / "parts")
    feeds: Feeds = [{"x": np.array([place], np.int64)} for place in (2, 3, 0)]
    good, bad, last = stream(cascade, feeds, via="ray", config=SessionConfig(optimize="none"), on_error="skip")
    assert isinstance(bad, RunError)
    assert "part-1.onnx failed" in str(bad)
    assert "indices element out of data bounds" in str(bad)
    assert [answer["y"].tolist() for answer in (good, last) if isinstance(answer, dict)] == [[2.0], [0.0]]


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize(
    "typed",
    [
        {"words": (TensorProto.STRING, np.array(["ä", "", "b" * 200_000], object))},
        {
            "bits": (TensorProto.BFLOAT16, np.arange(120_000, dtype=np.uint16)),
            "scalar": (TensorProto.DOUBLE, np.array(0.1)),
            "none": (TensorProto.FLOAT16, np.zeros((0, 3), np.float16)),
            "flags": (TensorProto.BOOL, np.array([[True], [False]])),
        },
    ],
    ids=["strings", "numbers"],
)
def test_every_type_of_tensor_is_sent(tmp_path: Path, typed: dict[str, tuple[int, np.ndarray[Any, Any]]]) -> None:
    nodes = [helper.make_node("Identity", [name], [f"{name}_at"], name=f"{name}_first") for name in typed]
    nodes += [helper.make_node("Identity", [f"{name}_at"], [f"{name}_out"], name=f"{name}_last") for name in typed]
    inputs = [helper.make_tensor_value_info(name, kind, value.shape) for name, (kind, value) in typed.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, value.shape) for name, (kind, value) in typed.items()]
    onnx.save(model_of(nodes, inputs, outputs), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    cut = graphcut.At(tuple(f"{name}_first" for name in typed))
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), cut), tmp_path / "parts")
    assert len(cascade.parts) > 1
    feed = {name: value for name, (_, value) in typed.items()}
    (answer,) = stream(cascade, [feed], via="ray", workers=2, config=SessionConfig(optimize="none", threads=1))
    assert isinstance(answer, dict)
    for name, (_, value) in typed.items():
        np.testing.assert_array_equal(answer[f"{name}_out"], value)
        assert answer[f"{name}_out"].dtype == value.dtype


@pytest.mark.usefixtures("machines")
def test_an_error_names_a_device_that_the_cluster_lacks(tmp_path: Path) -> None:
    cascade = planned(model_in_three(tmp_path), devices=("edge0", "edge1", "pi"))
    with pytest.raises(RunError, match="no device 'pi'; it has edge0, edge1, edge2") as caught:
        list(stream(cascade, feeds_of(1, 3), via="ray"))
    assert "--resources='{\"dev:pi\": 1}'" in caught.value.hint


@pytest.mark.parametrize(
    ("found", "names", "threads"),
    [
        ([(4, ""), (4, "")], ["worker 0"], [4]),
        ([(4, ""), (4, "")], ["worker 0", "worker 1", "worker 2"], [2, 2, 2]),
        ([(16, ""), (4, "")], ["worker 0"], [4]),
        ([(0, ""), (4, "")], ["worker 0", "worker 1"], [2, 2]),
        ([(8, "edge0 edge1"), (4, "edge2")], DEVICES, [4, 4, 4]),
        ([(8, "edge0"), (2, "edge0"), (6, "edge1"), (3, "edge1"), (4, "edge2")], DEVICES, [8, 3, 4]),
    ],
)
def test_workers_share_the_cores_of_the_smallest_machine_that_they_may_be_on(
    monkeypatch: pytest.MonkeyPatch,
    cascade: Cascade,
    found: list[tuple[int, str]],
    names: Sequence[str],
    threads: list[int],
) -> None:
    """By the cores and devices of each machine. The first is this one; one without cores takes no worker."""
    resources = [{"CPU": cores} | {f"dev:{name}": 1 for name in devices.split()} for cores, devices in found]
    nodes = [{"NodeID": f"{i}", "Resources": one} for i, one in enumerate(resources)]
    monkeypatch.setattr(ray_cluster, "alive_machines", lambda: nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0"))
    placement = WorkerPlacement(cascade.manifest, names, SessionConfig())
    assert [placement.config(worker).threads for worker in range(len(names))] == threads


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_workers_are_replaced_and_results_are_exact(cascade: Cascade, seed: int) -> None:
    draw, feeds, log = np.random.default_rng(seed), feeds_of(16), RunLog(3, 3)
    at, device, after_s = int(draw.integers(3, 13)), DEVICES[draw.integers(3)], float(draw.random()) / 50

    def kill() -> None:
        time.sleep(after_s)
        kill_on(device)

    feeds_with_loss = disturbed(feeds, at, kill)
    expect_equal(list(stream(cascade, feeds_with_loss, via="ray", config=ONE, log=log)), cascade, feeds)
    assert [(worker, why) for worker, why, _ in log.deaths] == [(DEVICES.index(device), "its process ended")]


def test_a_lost_node_is_replaced_by_another_with_its_device(machines: Machines, cascade: Cascade) -> None:
    machines.bring("edge0", "edge1", "edge1", "edge2")
    feeds, log = feeds_of(16), RunLog(3, 3)
    feeds_with_loss = disturbed(feeds, 7, lambda: lose_where_it_works(machines, "edge1"))
    expect_equal(list(stream(cascade, feeds_with_loss, via="ray", config=ONE, log=log)), cascade, feeds)
    assert [worker for worker, _, _ in log.deaths] == [1]


def lose_where_it_works(machines: Machines, device: str) -> None:
    """Remove that node of a device on which the actor is."""
    nodes = machines.nodes[device]
    wait_until(lambda: any(node.node_id in actors() for node in nodes))
    if nodes[-1].node_id not in actors():
        nodes.reverse()
    assert nodes[-1].node_id in actors()
    machines.lose(device)


def test_parts_of_a_permanently_lost_device_move_to_others(machines: Machines, cascade: Cascade) -> None:
    feeds, log = feeds_of(16), RunLog(3, 3)
    feeds_with_loss = disturbed(feeds, 7, lambda: machines.lose("edge0"))
    expect_equal(list(stream(cascade, feeds_with_loss, via="ray", config=ONE, log=log)), cascade, feeds)
    assert {worker for worker, _, _ in log.deaths} == {0}


def test_an_error_names_a_lost_device_whose_parts_fit_nowhere_else(machines: Machines, tmp_path: Path) -> None:
    bare = model_in_three(tmp_path / "full")
    needs = [part.weight_bytes + part.activation_bytes for part in bare.parts]
    cascade = planned(bare, needs)
    feeds_with_loss = disturbed(feeds_of(16), 7, lambda: machines.lose("edge1"))
    with pytest.raises(RunError, match=r"edge1 is lost \(no machine of the cluster is edge1 any more\).* part-1\.onnx"):
        list(stream(cascade, feeds_with_loss, via="ray", config=ONE))
    assert actors() == {}


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize("is_ranked", [False, True])
def test_caches_lost_with_a_worker_are_recomputed(tmp_path: Path, *, is_ranked: bool) -> None:
    demos.write("llm", tmp_path / "llm.onnx", layers=2)
    model = graphcut.load(tmp_path / "llm.onnx")
    if is_ranked:
        cascade = graphcut.split_by_rank(model, tmp_path / "parts", ranks=2)
    else:
        cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(2)), tmp_path / "parts")
    prompts = [[1, 15, 27], [3, 4]]
    expected = graphcut.generate(cascade, prompts, max_tokens=8, config=ONE).all()
    generation = graphcut.generate(cascade, prompts, max_tokens=8, via="ray", workers=2, config=ONE)
    made: list[list[int]] = [[], []]
    for number, (sequence, token) in enumerate(generation):
        made[sequence].append(token)
        if number == 6:
            os.kill(min(actors().values()), signal.SIGKILL)
    assert made == expected
    assert [why for _, why, _ in generation.log.deaths] == ["its process ended"]


@pytest.mark.usefixtures("machines")
def test_an_encoder_runs_once_and_an_actor_that_replaces_a_lost_one_is_sent_what_it_made(tmp_path: Path) -> None:
    onnx.save(with_encoder(with_concat()), tmp_path / "model.onnx")
    cascade = graphcut.split(tmp_path / "model.onnx", At(("heard_1",)), tmp_path / "parts")
    sound = np.random.default_rng(0).normal(size=(1, 2000, WIDTH)).astype(np.float32)  # too large for a message
    given: dict[str, Any] = {"max_tokens": 8, "inputs": {"sound": sound}, "config": ONE}
    expected = graphcut.generate(cascade, [[3, 1, 4]], **given).all()
    generation = graphcut.generate(planned(cascade, (None,) * 2, DEVICES[:2]), [[3, 1, 4]], **given, via="ray")
    made = list[int]()
    for _, token in generation:
        made.append(token)
        if len(made) == 3:
            kill_on(DEVICES[1])
    assert [made] == expected
    assert [why for _, why, _ in generation.log.deaths] == ["its process ended"]
    assert generation.log.total_of(0).runs == 1


PIPELINES = {
    "reader": (
        'models = { detector = { file = "detector.onnx" }, recognizer = { file = "recognizer.onnx" } }\n'
        'connect = { "recognizer.x" = "detector.crops" }\n'
    ),
    "diffusion": (Path(__file__).parents[1] / "families" / "diffusion.toml").read_text("utf-8"),
    "sentence encoder": "",  # what it needs is in its folder
}
GENERATING = [name for name in FAMILIES if name not in PIPELINES]


def family_in_two(name: str, folder: Path) -> Cascade:
    FAMILIES[name].write(folder)
    if PIPELINES.get(name):
        (folder / "pipeline.toml").write_text(PIPELINES[name], encoding="utf-8")
    return graphcut.split(graphcut.load(folder), Into(2), folder / "parts")


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize("name", GENERATING if FUZZ else ["whisper, merged"])
def test_models_of_several_files_give_on_other_machines_the_tokens_of_the_loop_by_hand(
    name: str, tmp_path: Path
) -> None:
    cascade, inputs, sees = family_in_two(name, tmp_path), FAMILIES[name].inputs(3), name == "vision-language"
    expected = FAMILIES[name].reference(tmp_path, inputs, 8)
    prompt = inputs.pop("input_ids")[0].tolist() if sees else []
    how: dict[str, Any] = {"inputs": inputs, "max_tokens": 8, "stop": [1], "config": ONE, "via": "ray", "workers": 2}
    assert graphcut.generate(cascade, [prompt], **how).all() == ([expected] if sees else expected)


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize("name", PIPELINES if FUZZ else ["reader", "diffusion"])
def test_models_of_several_files_give_on_other_machines_the_outputs_of_the_loop_by_hand(
    name: str, tmp_path: Path
) -> None:
    """The same bits, but for vectors that are pooled: numpy sums in another order."""
    cascade, inputs = family_in_two(name, tmp_path), FAMILIES[name].inputs(3)
    made = FAMILIES[name].reference(tmp_path, inputs, *([4] if FAMILIES[name].loops else []))
    output = {"reader": "softmax_0", "diffusion": "vae/sample", "sentence encoder": "sentence_embedding"}[name]
    with graphcut.Pipeline(cascade, via="ray", workers=2) as pipeline:
        (found,) = pipeline.map([inputs])
    assert isinstance(found, dict)
    expected, most = made[output] if name == "reader" else made, 1e-6 if name == "sentence encoder" else 0
    np.testing.assert_allclose(found[output], expected, rtol=0, atol=most, strict=True)


@pytest.mark.usefixtures("machines")
def test_beams_on_other_machines_are_those_of_one(tmp_path: Path) -> None:
    folder, inputs = FAMILIES["whisper"].write(tmp_path / "m"), FAMILIES["whisper"].inputs(3)
    cascade = graphcut.split(graphcut.load(folder), Into(2), tmp_path / "parts")
    told: dict[str, Any] = {"inputs": inputs, "max_tokens": 8, "beams": 3, "config": ONE}
    assert graphcut.generate(cascade, [[]], **told, via="ray").all() == graphcut.generate(cascade, [[]], **told).all()


def find_cascades_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes look for the cascade in another folder than that of the driver, as if they shared no disk with it."""

    class Elsewhere(RemoteWorker):
        def __init__(self, path: str, *arguments: Any) -> None:  # noqa: ANN401 - those of the actor
            super().__init__(str(folder / Path(path).name), *arguments)

    monkeypatch.setattr(ray_executor, "RemoteWorker", Elsewhere)


@pytest.fixture
def no_shared_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nodes do not find the cascade."""
    find_cascades_in(tmp_path / "not here", monkeypatch)


@pytest.mark.usefixtures("no_shared_disk")
def test_parts_are_sent_once_to_nodes_that_lack_them_and_kept(machines: Machines, cascade: Cascade) -> None:
    notes: list[tuple[str, float | None]] = []

    def answers(feeds: Feeds, disturb: Callable[[], object]) -> None:
        log = RunLog(3, 3)
        log.notify = lambda text, share: notes.append((text, share))
        expect_equal(
            list(stream(cascade, disturbed(feeds, 7, disturb), via="ray", config=ONE, log=log)), cascade, feeds
        )

    answers(feeds_of(10), lambda: kill_on("edge1"))  # its replacement finds the files that were sent
    assert machines.sent() == sorted(name for part in cascade.parts for name in (part.file, *part.data))
    assert sorted({text.partition(",")[0] for text, share in notes if share == 1}) == [
        f"part-{k}.onnx to edge{k}" for k in range(3)
    ]
    assert [text for text, share in notes if share is None] == [
        "edge1 ended: its process ended; it is to be started again",
        "edge1 runs again",
    ]
    notes.clear()
    answers(feeds_of(2), lambda: None)
    assert notes == []


@pytest.mark.usefixtures("no_shared_disk")
def test_an_error_names_the_device_where_parts_can_not_be_kept(machines: Machines, tmp_path: Path) -> None:
    cascade = planned(model_in_three(tmp_path / "one"), devices=("edge1",) * 3)
    in_the_way = machines.folder / "graphcut"
    in_the_way.touch()
    try:
        with pytest.raises(RunError, match=r"^edge1: writing .* failed: Not a directory$") as caught:
            list(stream(cascade, feeds_of(2, 3), via="ray", config=ONE))
    finally:
        in_the_way.unlink()
    assert caught.value.hint.startswith("make room there")


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize(("name", "disk"), [("part-1.onnx", "no_shared_disk"), ("part-1.onnx.data", "tmp_path")])
def test_a_part_changed_after_the_split_is_refused(
    tmp_path: Path, name: str, disk: str, request: pytest.FixtureRequest
) -> None:
    demos.write("llm", tmp_path / "llm.onnx", layers=2)
    cascade = planned(graphcut.split(tmp_path / "llm.onnx", At(LAYER_ENDS)), devices=("edge1",) * 3)
    request.getfixturevalue(disk)
    raw = bytearray((cascade.root / name).read_bytes())
    raw[3] ^= 0x40
    (cascade.root / name).write_bytes(raw)
    feeds = [dict(generate_inputs(graphcut.load(tmp_path / "llm.onnx")))]
    with pytest.raises(RunError, match=f"llm.parts/{re.escape(name)} was changed after the model was cut"):
        list(stream(cascade, feeds, via="ray", config=ONE))


@pytest.mark.usefixtures("machines")
def test_a_machine_that_has_other_weights_of_the_same_size_and_time_does_not_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos.write("llm", tmp_path / "llm.onnx", layers=2)
    cascade = planned(graphcut.split(tmp_path / "llm.onnx", At(LAYER_ENDS)), devices=("edge1",) * 3)
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there)
    stale, own = there / "part-1.onnx.data", cascade.root / "part-1.onnx.data"
    stale.write_bytes(bytes(stale.stat().st_size))
    os.utime(stale, ns=(own.stat().st_atime_ns, own.stat().st_mtime_ns))

    find_cascades_in(there, monkeypatch)
    feeds = [dict(generate_inputs(graphcut.load(tmp_path / "llm.onnx")))]
    expect_equal(list(stream(cascade, feeds, via="ray", config=ONE)), cascade, feeds)


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize(("device", "where"), [("edge2", "neither on edge2 nor here"), ("head", "not on head")])
def test_an_error_names_a_missing_part_and_where_it_belongs(tmp_path: Path, device: str, where: str) -> None:
    """The path is absolute: the other machine looks for it there."""
    made = planned(model_in_three(tmp_path / "missing"), devices=(device,) * 3)
    cascade = graphcut.open_cascade(Path(os.path.relpath(made.path)))
    cascade.file(cascade.parts[2]).unlink()
    with pytest.raises(RunError, match=rf"^part-2\.onnx is {where}$") as caught:
        list(stream(cascade, feeds_of(2, 3), via="ray", config=ONE))
    assert caught.value.hint == f"`fetch(..., device={device!r})` makes it: copy that to {made.root.resolve()} there"


@pytest.mark.usefixtures("machines")
def test_an_error_names_the_machine_whose_part_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cascade, there = planned(model_in_three(tmp_path / "own"), devices=("edge1",) * 3), tmp_path / "there"
    shutil.copytree(cascade.root, there)
    cascade.file(cascade.parts[1]).unlink()
    (there / "part-1.onnx").write_bytes(b"other")
    find_cascades_in(there, monkeypatch)
    with pytest.raises(RunError, match=r"^part-1\.onnx on edge1 was changed after the model was cut$") as caught:
        list(stream(cascade, feeds_of(2, 3), via="ray", config=ONE))
    assert caught.value.hint == f"copy it to {cascade.root.resolve()} there again"


@pytest.mark.parametrize(("heir", "where"), [("edge2", "neither on edge2 nor here"), ("head", "not on head")])
def test_an_error_names_the_lost_device_of_a_part_that_no_other_has(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heir: str, where: str
) -> None:
    """Each machine has only its own parts: when it is lost, they can't move."""
    cascade = planned(model_in_three(tmp_path / "own"), devices=(heir, "edge1", heir))
    there = tmp_path / "there"
    shutil.copytree(cascade.root, there)
    cascade.file(cascade.parts[1]).unlink()

    class OwnParts(RemoteWorker):
        def __init__(self, path: str, manifest: Any, states: Any, config: Any) -> None:  # noqa: ANN401 - the actor's
            is_edge1 = "dev:edge1" in ray.get_runtime_context().get_assigned_resources()
            folder = there if is_edge1 else Path(path).parent
            super().__init__(str(folder / Path(path).name), manifest, states, config)

    monkeypatch.setattr(ray_executor, "RemoteWorker", OwnParts)
    feeds, log, notes = feeds_of(16), RunLog(3, 2), list[str]()
    log.notify = lambda text, _: notes.append(text)
    with pytest.raises(RunError, match=rf"^part-1\.onnx is {where}, and edge1, its device, is lost$") as caught:
        list(stream(cascade, disturbed(feeds, 7, lambda: machines.lose("edge1")), via="ray", config=ONE, log=log))
    assert caught.value.hint == f"copy the whole cascade to {cascade.root.resolve()} here: then parts can move"
    assert notes[-1].endswith(f"{heir} is to take over part-1.onnx")


@pytest.mark.usefixtures("machines")
def test_stopping_early_leaves_no_actor(tmp_path: Path) -> None:
    cascade = planned(model_in_three(tmp_path), devices=("edge0",) * 3)
    answers = stream(cascade, feeds_of(12), via="ray", config=ONE)
    next(answers)
    assert len(actors()) == 1
    del answers
    wait_until(lambda: not actors())
    assert actors() == {}


ALONE = """
import os, sys, numpy as np, graphcut
cascade = graphcut.open_cascade(sys.argv[1])
feeds = [{"x": np.full((3, 4), i, np.float32)} for i in range(4)]
if __name__ == "__main__":
    os.environ |= {"RAY_CLIENT_MODE": "0", "PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}  # as Ray leaves them
    environment = dict(os.environ)
    from ray._private import services, worker
    vars(services).pop("find_bootstrap_address", None)  # Ray does not promise to keep it
    prints = worker.print_to_stdstream
    runs = [graphcut.Pipeline(cascade, via="ray", workers=2) for _ in range(2)]  # they start at once
    made = []
    for run in runs:  # the second one goes on after the first one has ended
        made += [run.submit(feed).result()["y"] for feed in feeds]
        run.close()
    assert dict(os.environ) == environment
    assert worker.print_to_stdstream is prints
    assert [bool((y == graphcut.run(cascade, feed)["y"]).all()) for y, feed in zip(made, feeds * 2)] == [True] * 8
"""


ONCE = """
import sys, numpy as np, graphcut
list(graphcut.stream(sys.argv[1], [{"x": np.zeros((3, 4), np.float32)}], via="ray", workers=2))
"""


def left_behind() -> list[str]:
    """The files and processes of clusters that graphcut started, and the shared memory of any."""
    shared = [one.name for one in SHARED.iterdir() if any(word in one.name for word in ("plasma", "ray", "sem."))]
    running = [Path(one, "cmdline") for one in Path("/proc").iterdir() if one.name.isdigit()]
    commands = []
    for file in running:
        with suppress(OSError):  # it has ended
            commands.append(file.read_text(errors="replace"))
    started = [command for command in commands if f"{PLACE}/gc-" in command]
    return sorted([*(one.name for one in PLACE.glob("gc-*")), *shared, *started])


def test_a_local_cluster_is_started_for_two_runs_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    cascade = model_in_three(tmp_path / "alone")
    environment = {name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "TMPDIR"}}
    # The first tells which clusters run: none. The last lets workers run beside other tests.
    environment |= {"RAY_TMPDIR": str(tmp_path), "HOME": str(tmp_path), "RAY_worker_niceness": "0"}
    before = left_behind()
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(cascade.path)], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wait_until(lambda: set(left_behind()) <= set(before))  # other tests may run at the same time
    assert not (tmp_path / ".ray").exists()


def test_an_error_names_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    cascade = model_in_three(tmp_path / "nobody")
    done = subprocess.run(
        [sys.executable, "-c", ONCE, str(cascade.path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
    )
    assert "RunError: there is no Ray cluster at 127.0.0.1:1" in done.stderr


def test_an_error_says_that_ray_is_not_installed(tmp_path: Path) -> None:
    cascade = model_in_three(tmp_path / "bare")
    code = f"import sys; sys.modules['ray'] = None\n{ONCE}"
    done = subprocess.run([sys.executable, "-c", code, str(cascade.path)], capture_output=True, text=True, check=False)
    assert "UsageError: 'ray' needs the package ray, which is not installed" in done.stderr
