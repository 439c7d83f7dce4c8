"""Worker processes: exact results even when workers are killed, and no processes or files left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from waiting import until

import graphcut
from graphcut import At, Cascade, RunError, RunLog, SessionConfig, demos
from graphcut.core.errors import GraphcutError
from graphcut.inputs.generating import generate_inputs
from graphcut.transferring.locked_folders import SHARED_MEMORY
from graphcut.workers.executors.processes import ProcessExecutor
from graphcut.workers.executors.protocol import Died, Done, Failed, Handle, Lost, Ready, Step
from graphcut.workers.executors.via import Via
from graphcut.workers.scheduling import scheduler

from cases import FUZZ, each
from conftest import FIXTURES, ROOT, floats, model_of, simple_plan
from control_flow import write_model
from hazards import boundary_types
from hazards.hazard import Hazard

ONE_THREAD = SessionConfig(threads=1)
RUNS = int(os.environ.get("GRAPHCUT_KILLS", "1"))
"""The number of runs in which workers are killed at random; set GRAPHCUT_KILLS=50 for a longer test."""

Feeds = Mapping[str, object]


def cut(path: Path, *names: str) -> Cascade:
    model = graphcut.load(path)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(names)), path.with_suffix(".parts"))


def cut_into(path: Path, parts: int) -> Cascade:
    model = graphcut.load(path)
    return graphcut.split(model, simple_plan(model, parts), path.parent / "parts")


def demo(folder: Path, name: str) -> tuple[Cascade, list[Feeds]]:
    """A demo in four parts, and feeds of several sizes."""
    write_model(name, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    return cut_into(folder / "model.onnx", 4), [generate_inputs(model, seed=i, variant=i % 3) for i in range(6)]


def answers(cascade: Cascade, feeds: Sequence[Feeds], **options: Any) -> list[Any]:  # noqa: ANN401 - see `stream`
    return list(graphcut.stream(cascade, feeds, via="processes", config=ONE_THREAD, **options))


def check(cascade: Cascade, feeds: Sequence[Feeds], found: Sequence[Any]) -> None:
    """The results are bit-identical to those of running the parts one after the other in this process."""
    assert len(found) == len(feeds)
    known = {id(feed): graphcut.run(cascade, feed, config=ONE_THREAD) for feed in {id(f): f for f in feeds}.values()}
    for feed, ours in zip(feeds, found, strict=True):
        expected = known[id(feed)]
        assert list(ours) == list(expected)
        for name, value in expected.items():
            np.testing.assert_equal(ours[name], value)


def folders_of(process: int) -> list[Path]:
    homes = {SHARED_MEMORY, Path(tempfile.gettempdir())}
    return [path for home in homes for path in home.glob(f"graphcut-{process}-*")]


def is_alive(process: int) -> bool:
    """Whether a process runs; zombies do not count."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The worker processes that a test starts. At its end all must have ended, and no file may be left."""
    started: list[subprocess.Popen[bytes]] = []

    class RecordedProcess(subprocess.Popen[bytes]):
        def __init__(self, command: Sequence[str], **options: Any) -> None:  # noqa: ANN401 - options of Popen
            super().__init__(command, **options)
            if any("process_worker" in word for word in command):
                started.append(self)

    monkeypatch.setattr(subprocess, "Popen", RecordedProcess)
    yield started
    assert [process.returncode is None for process in started] == [False] * len(started)
    assert folders_of(os.getpid()) == []


@pytest.fixture
def cascade(chain: Path) -> Cascade:
    """Three parts: Relu and Exp; Neg; Add, which also reads a tensor of the first part."""
    return cut(chain, "exp", "neg")


def rows(number: int) -> list[Feeds]:
    """Inputs of different sizes, most of them too large for a message."""
    draw = np.random.default_rng(0)
    return [{"x": draw.standard_normal((1 + 400 * (i % 4), 4)).astype(np.float32)} for i in range(number)]


# Results


@pytest.mark.parametrize("name", ["llm", "control-flow", *(["unet", "resnet", "multitask"] if FUZZ else [])])
def test_results_of_a_demo_are_bit_identical_to_one_process(name: str, tmp_path: Path) -> None:
    cascade, feeds = demo(tmp_path, name)
    check(cascade, feeds, answers(cascade, feeds, workers=3))


@each("name", ["unet.onnx", "tiny-llama-int4", *(["clip.onnx", "lstm.onnx", "tiny-llama-fp32"] if FUZZ else [])])
def test_results_of_an_export_are_bit_identical_to_one_process(name: str, tmp_path: Path) -> None:
    path = FIXTURES / name if name.endswith(".onnx") else FIXTURES / name / "model.onnx"
    model = graphcut.load(path)
    cascade = graphcut.split(model, simple_plan(model, 3), tmp_path / "parts")
    feeds = [generate_inputs(model, seed=i, variant=i % 2) for i in range(4)]
    check(cascade, feeds, answers(cascade, feeds, workers=2))


BOUNDARY_HAZARDS: dict[str, Hazard] = {
    make.__name__: hazard
    for make in (
        boundary_types.sequence_boundary,
        boundary_types.optional_boundary,
        boundary_types.bfloat16_boundary,
        boundary_types.float8_boundary,
        boundary_types.string_boundary,
        boundary_types.bool_output_beside_boundary,
        boundary_types.map_input,
    )
    if (hazard := make()).cut and hazard.runs
}


@each("name", BOUNDARY_HAZARDS)
def test_every_type_of_value_is_sent_between_processes(name: str, tmp_path: Path) -> None:
    hazard = BOUNDARY_HAZARDS[name]
    cascade = cut(hazard.write(tmp_path), *hazard.cut)
    check(cascade, [hazard.feeds] * 2, answers(cascade, [hazard.feeds] * 2, workers=2))


def test_scalars_and_empty_tensors_are_sent(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Mul", ["x", "s"], ["y"], name="mul"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n")], [floats("y", "n"), floats("s")]), tmp_path / "model.onnx")
    cascade = cut(tmp_path / "model.onnx", "sum")
    found = answers(cascade, [{"x": np.array([1, 2], np.float32)}, {"x": np.zeros(0, np.float32)}], workers=2)
    assert [(one["y"].tolist(), one["s"].tolist()) for one in found] == [([3, 6], 3), ([], 0)]


def test_tensors_with_value_dependent_shapes_are_sent(tmp_path: Path) -> None:
    """The output shape of NonZero depends on the input values."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"], name="where"),
        helper.make_node("Identity", ["where"], ["y"], name="same"),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1, "k"])
    onnx.save(model_of(nodes, [floats("x", 4000)], [y]), tmp_path / "model.onnx")
    cascade = cut(tmp_path / "model.onnx", "where")
    draw = np.random.default_rng(0)
    feeds = [{"x": (draw.random(4000) < share).astype(np.float32)} for share in (0.5, 0.9, 0.9, 0.1, 0.0, 1.0, 0.5)]
    found = answers(cascade, feeds, workers=2)
    assert [one["y"][0].tolist() for one in found] == [np.flatnonzero(feed["x"]).tolist() for feed in feeds]


def test_outputs_are_not_overwritten_by_later_requests(cascade: Cascade) -> None:
    feeds = rows(12)
    found, kept = [], []
    for outputs in graphcut.stream(cascade, feeds, via="processes", workers=2, config=ONE_THREAD):
        assert not isinstance(outputs, RunError)
        found.append(outputs["y"])
        kept.append(outputs["y"].copy())
    for value, before in zip(found, kept, strict=True):
        np.testing.assert_array_equal(value, before)


def test_parts_are_found_through_a_relative_path(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cascade.root)
    check(cascade, rows(3), answers(graphcut.open_cascade("."), rows(3), workers=2))


# Errors


def test_an_error_of_a_part_is_reported_with_its_message(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Add", ["a", "b"], ["y"], name="add"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n"), floats("b", "m")], [floats("y", "k")]), tmp_path / "model.onnx")
    cascade = cut(tmp_path / "model.onnx", "relu")
    feeds = [{"x": np.ones(2, np.float32), "b": np.ones(length, np.float32)} for length in (2, 3, 2)]
    first, error, last = answers(cascade, feeds, workers=2, on_error="skip")
    assert isinstance(error, RunError)
    assert "failed: " in str(error)
    assert error.hint == "check that the shapes and values of the inputs fit together"
    assert first["y"].tolist() == last["y"].tolist() == [2, 2]


def test_an_error_names_a_missing_part_file(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.unlink()
    with pytest.raises(GraphcutError) as caught:
        answers(cascade, rows(2), workers=2)
    assert str(caught.value) == f"{file} is missing"


def test_an_error_names_a_changed_part_file(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(RunError) as caught:
        answers(cascade, rows(2), workers=2)
    assert str(caught.value) == f"{file} was changed after the model was cut"


def test_an_error_names_a_changed_manifest(cascade: Cascade) -> None:
    cascade.path.write_text(cascade.path.read_text().replace('"dims": {}', '"dims": {"n": 3}'))
    with pytest.raises(RunError) as caught:
        answers(cascade, rows(2), workers=2)
    assert str(caught.value) == f"{cascade.path} was changed while the cascade ran"


def test_a_frozen_program_is_not_started_as_a_worker(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(RunError, match="there is no Python interpreter here to start workers with"):
        answers(cascade, rows(2), workers=2)
    assert workers == []


# Deaths


def kill_while_running(
    monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]], draw: random.Random, steps: int, kills: int
) -> list[int]:
    """Kill random workers up to 3 ms after steps chosen at random. The process ids of those killed, in the end."""
    chosen = set(draw.sample(range(steps), kills))
    killed: list[int] = []
    step_numbers = count()
    run = ProcessExecutor.run

    def run_and_kill(executor: ProcessExecutor, worker: int, step: Step, inputs: Mapping[str, Any]) -> None:
        run(executor, worker, step, inputs)
        if next(step_numbers) in chosen:
            process = draw.choice([process for process in workers if process.returncode is None])
            killed.append(process.pid)
            Timer(draw.uniform(0, 0.003), process.kill).start()

    monkeypatch.setattr(ProcessExecutor, "run", run_and_kill)
    return killed


@pytest.mark.parametrize("seed", range(RUNS))
def test_every_answer_is_exact_whichever_workers_are_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]]
) -> None:
    draw = random.Random(seed)  # noqa: S311 - a test, to be repeated
    cascade, feeds = demo(tmp_path, ("unet", "llm", "multitask")[seed % 3])
    feeds = feeds * 2
    killed = kill_while_running(monkeypatch, workers, draw, steps=3 * len(feeds), kills=3)
    log = RunLog(len(cascade.parts), 3)
    check(cascade, feeds, answers(cascade, feeds, workers=3, log=log))
    assert len(killed) == 3
    assert {why for _, why, _ in log.deaths} == {"it was ended by SIGKILL"}


@pytest.fixture
def ranked(tmp_path: Path) -> Cascade:
    """A decoder on two ranks."""
    demos.write("llm", tmp_path / "model.onnx")
    return graphcut.split_by_rank(tmp_path / "model.onnx", tmp_path / "parts", ranks=2)


def test_ranks_are_exact_whichever_are_killed(
    ranked: Cascade, monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]]
) -> None:
    feeds = [generate_inputs(graphcut.load(ranked.source), seed=i, variant=i) for i in range(3)]
    killed = kill_while_running(monkeypatch, workers, random.Random(0), steps=60, kills=3)  # noqa: S311 - a test
    check(ranked, feeds, answers(ranked, feeds))
    assert len(killed) == 3


def test_ranks_that_are_killed_decode_the_same_tokens(
    ranked: Cascade, monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]]
) -> None:
    def decoded(via: Via) -> list[list[int]]:
        return graphcut.generate(ranked, [[1, 15, 27], [3, 4]], max_tokens=8, via=via, config=ONE_THREAD).all()

    expected = decoded("threads")
    killed = kill_while_running(monkeypatch, workers, random.Random(1), steps=120, kills=3)  # noqa: S311 - a test
    assert decoded("processes") == expected
    assert len(killed) == 3


def test_each_worker_reports_its_memory(tmp_path: Path) -> None:
    cascade, feeds = demo(tmp_path, "resnet")
    log = RunLog(len(cascade.parts), 2)
    answers(cascade, feeds, workers=2, log=log)
    python_alone = 10 << 20
    assert sorted(log.memory_bytes) == [0, 1]
    assert all(number > python_alone for number in log.memory_bytes.values())


LONG_RUN = """
import sys
from pathlib import Path
import numpy as np
import graphcut
from graphcut.running.process_memory import return_freed_memory, status_bytes

def memory():
    return_freed_memory()  # glibc keeps up to twice the largest block that was freed
    children = " ".join(tasks.read_text() for tasks in Path("/proc/self/task").glob("*/children"))
    return [status_bytes("RssAnon", Path("/proc", process)) for process in ("self", *sorted(children.split()))]

row = {"x": np.ones((500, 4), np.float32)}
with graphcut.Pipeline(sys.argv[1], via="processes", workers=2, balanced=False) as pipeline:
    for requests in (2500, 1000):  # workers take 0.6 MB once, in the first 2,000
        for _ in pipeline.map(row for _ in range(requests)):
            pass
        print(*memory())
"""


def test_the_memory_of_a_run_does_not_grow_with_the_number_of_requests(cascade: Cascade) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LONG_RUN, str(cascade.root)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = (list(map(int, line.split())) for line in done.stdout.splitlines())
    assert len(before) == 3
    assert all(new - old < 200_000 for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("when", ["while it starts", "while it waits"])
def test_a_worker_killed_between_steps_is_replaced(
    when: str, cascade: Cascade, workers: list[subprocess.Popen[bytes]]
) -> None:
    if when == "while it starts":

        def kill_first() -> None:
            until(lambda: workers)
            workers[0].kill()

        Thread(target=kill_first).start()
        check(cascade, rows(4), answers(cascade, rows(4), workers=2))
        return

    def feeds() -> Iterator[Feeds]:
        for number, row in enumerate(rows(8)):
            if number == 6:
                time.sleep(0.3)  # all is done that was asked for
                workers[1].kill()
                time.sleep(0.3)
            yield row

    found = list(graphcut.stream(cascade, feeds(), via="processes", workers=2, window=2, config=ONE_THREAD))
    check(cascade, rows(8), found)
    assert len(workers) == 3


def patched(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Make every worker run `code` when its Python starts."""
    (folder / "patches").mkdir()
    (folder / "patches" / "sitecustomize.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder / "patches"))


POISON = """
import ctypes
from graphcut.workers.executors.worker import Worker
run = Worker.run
def poisoned(self, step, *more):
    if step.request == 1 and 1 in step.parts:
        ctypes.string_at(0)
    return run(self, step, *more)
Worker.run = poisoned
"""


def test_an_input_that_crashes_every_worker_fails_alone(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(tmp_path, monkeypatch, POISON)
    first, error, third = answers(cascade, rows(3), workers=3, on_error="skip")
    assert isinstance(error, RunError)
    assert str(error).startswith("input 1 ended its worker 3 times in ")
    assert str(error).endswith(" (it was ended by SIGSEGV)")
    check(cascade, [rows(3)[0], rows(3)[2]], [first, third])


def test_a_run_whose_workers_never_start_fails_with_their_stderr(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(tmp_path, monkeypatch, "import os\nos.write(2, b'no such library\\n')\nos._exit(7)\n")
    with pytest.raises(RunError, match=r"is lost \(it ended with status 7: no such library\)"):
        answers(cascade, rows(3), workers=1)


def test_a_hung_worker_is_replaced(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, workers: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(scheduler, "LEAST_PATIENCE_S", 0.5)
    log = RunLog(len(cascade.parts), 3)
    found = []
    for outputs in graphcut.stream(cascade, rows(40), via="processes", workers=3, config=ONE_THREAD, log=log):
        found.append(outputs)
        if len(found) == 20:
            workers[1].send_signal(signal.SIGSTOP)
    check(cascade, rows(40), found)
    assert (1, "it hung") in [(worker, why) for worker, why, _ in log.deaths]


STOPPED = """
import pathlib, sys
import numpy as np
import graphcut
from graphcut.workers.scheduling import scheduler

scheduler.LEAST_PATIENCE_S = 2.0
log = graphcut.RunLog(3, 3)
def feeds():
    while not pathlib.Path(sys.argv[2]).exists():
        yield {"x": np.ones((4000, 4), np.float32)}
for number, _ in enumerate(graphcut.stream(sys.argv[1], feeds(), via="processes", workers=3, log=log)):
    if number == 20:
        print("running", flush=True)
print(log.deaths)
"""


@pytest.mark.parametrize("with_workers", [False, True], ids=["alone", "with its workers"])
def test_no_worker_is_ended_because_the_program_was_stopped(
    cascade: Cascade,
    tmp_path: Path,
    with_workers: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    process = started(["-c", STOPPED], str(cascade.root), str(tmp_path / "enough"))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    stopped = [process.pid, *(workers_of(folders_of(process.pid)) if with_workers else [])]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for one in stopped:
            os.kill(one, number)
        time.sleep(2.5 if number == signal.SIGSTOP else 0.1)
    (tmp_path / "enough").touch()
    said = process.stdout.read()
    process.stdout = None
    assert (ended(process), said) == ((0, ""), "[]\n")


def test_a_slow_worker_does_not_count_as_hung(cascade: Cascade, workers: list[subprocess.Popen[bytes]]) -> None:
    """The worker is stopped for 20 of every 25 ms."""
    over = Event()

    def slow_down() -> None:
        until(lambda: len(workers) == 3)
        while not over.wait(0.005):
            workers[1].send_signal(signal.SIGSTOP)
            time.sleep(0.02)
            workers[1].send_signal(signal.SIGCONT)

    brake = Thread(target=slow_down)
    brake.start()
    log = RunLog(len(cascade.parts), 3)
    try:
        check(cascade, rows(40), answers(cascade, rows(40), workers=3, log=log))
    finally:
        over.set()
        brake.join()
    assert log.deaths == []


# The executor


def next_of(executor: ProcessExecutor, kind: type[Any]) -> Any:  # noqa: ANN401 - an event of that kind
    event = executor.next_event(20)
    assert isinstance(event, kind), event
    return event


def step_on(executor: ProcessExecutor, worker: int, step: Step, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    executor.run(worker, step, feeds)
    made: Mapping[str, Any] = next_of(executor, Done).outputs
    return made


@pytest.fixture
def executor(cascade: Cascade) -> Iterator[ProcessExecutor]:
    made = ProcessExecutor(cascade, ONE_THREAD, {})
    yield made
    made.close()


X = np.arange(4000, dtype=np.float32).reshape(1000, 4) % 7 - 3


def test_an_output_outlives_its_worker_until_it_is_released(executor: ProcessExecutor) -> None:
    executor.start(0, [0])
    next_of(executor, Ready)
    x = executor.put(value_of(X), "x")
    made = step_on(executor, 0, Step(0, (0,), ("a",)), {"x": x})
    executor.kill(0)
    assert next_of(executor, Died).reason == "it was ended by SIGKILL"
    files = [path for folder in folders_of(os.getpid()) for path in folder.iterdir() if path.suffix != ".stderr"]
    assert len(files) == 2
    np.testing.assert_array_equal(array_at(executor, made["a"]), np.maximum(X, 0))
    executor.release(made["a"])
    files = [path for folder in folders_of(os.getpid()) for path in folder.iterdir() if path.suffix != ".stderr"]
    assert [path.name for path in files] == ["hub-1"]


def test_released_regions_are_reused(executor: ProcessExecutor) -> None:
    executor.start(0, [0])
    next_of(executor, Ready)
    for number in range(6):
        x = executor.put(value_of(X), "x")
        made = step_on(executor, 0, Step(number, (0,), ("a",)), {"x": x})
        executor.release(x)
        executor.release(made["a"])
    files = [path for folder in folders_of(os.getpid()) for path in folder.iterdir() if path.suffix != ".stderr"]
    assert len(files) == 2


def test_a_worker_loads_parts_while_it_runs_a_step(executor: ProcessExecutor) -> None:
    executor.start(0, [0])
    assert next_of(executor, Ready).parts == {0}
    executor.hold(0, [0, 1])
    executor.run(0, Step(0, (0,), ("a",)), {"x": executor.put(value_of(X), "x")})
    events = [executor.next_event(20), executor.next_event(20)]
    assert Ready(0, frozenset({0, 1})) in events
    assert sum(isinstance(event, Done) for event in events) == 1
    executor.run(0, Step(1, (0, 1), ("c",)), {"x": executor.put(value_of(X), "x")})
    assert list(next_of(executor, Done).outputs) == ["c"]


def test_a_worker_goes_on_with_the_step_that_it_was_given_meanwhile(executor: ProcessExecutor) -> None:
    executor.start(0, [0])
    next_of(executor, Ready)
    for number in range(2):
        executor.run(0, Step(number, (0,), ("a",)), {"x": executor.put(value_of(X + number), "x")})
    for number in range(2):
        done = next_of(executor, Done)
        assert done.step.request == number
        np.testing.assert_array_equal(array_at(executor, done.outputs["a"]), np.maximum(X + number, 0))


def test_a_tensor_whose_file_was_removed_is_lost(executor: ProcessExecutor) -> None:
    executor.start(0, [0])
    next_of(executor, Ready)
    x = executor.put(value_of(X), "x")
    Path(getattr(x, "region", "")).unlink()
    executor.run(0, Step(0, (0,), ("a",)), {"x": x})
    next_of(executor, Lost)
    made = step_on(executor, 0, Step(0, (0,), ("a",)), {"x": executor.put(value_of(X), "x")})
    np.testing.assert_array_equal(array_at(executor, made["a"]), np.maximum(X, 0))


def test_a_missing_part_does_not_end_a_worker(executor: ProcessExecutor, cascade: Cascade) -> None:
    executor.start(0, [0])
    next_of(executor, Ready)
    cascade.file(cascade.parts[2]).unlink()
    executor.hold(0, [0, 2])
    failed = next_of(executor, Failed)
    assert (failed.step, "is missing" in str(failed.error)) == (None, True)
    step_on(executor, 0, Step(0, (0,), ("a",)), {"x": executor.put(value_of(X), "x")})


def test_wake_may_be_called_often_and_after_close(executor: ProcessExecutor) -> None:
    for _ in range(5000):  # more than a pipe takes
        executor.wake()
    assert executor.next_event(None) is None
    Timer(0.05, executor.wake).start()
    assert executor.next_event(20) is None
    executor.close()
    executor.wake()


def value_of(array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 - an OrtValue
    return ort.OrtValue.ortvalue_from_numpy(array)


def array_at(executor: ProcessExecutor, handle: Handle) -> np.ndarray[Any, Any]:
    value = executor.get(handle, "a")
    return np.array(value.numpy())  # while `value` lives


# The end of the program


SCRIPT = """
import sys, time
import numpy as np
import graphcut

cascade = graphcut.open_cascade(sys.argv[1])
def feeds():
    while True:
        yield {"x": np.ones((4000, 4), np.float32)}
for number, outputs in enumerate(graphcut.stream(cascade, feeds(), via="processes", workers=2)):
    if number == 5:
        print("running", flush=True)
    if len(sys.argv) > 2 and number == 20:
        exec(sys.argv[2])
"""


def started(code: Sequence[str], *args: str, stdin: str | None = None) -> subprocess.Popen[str]:
    """A program in its own session, as a terminal starts it."""
    process = subprocess.Popen(
        [sys.executable, *code, *args],
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if stdin and process.stdin:
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
    return process


def workers_of(folders: Sequence[Path]) -> list[int]:
    """The processes that were started with these folders."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if {str(folder) for folder in folders} & set(words):
            found.append(int(entry.name))
    return found


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and the stderr of a program. Its workers and files must be gone soon after."""
    folders = folders_of(process.pid)
    workers = workers_of(folders)
    _, said = process.communicate(timeout=30)
    assert until(lambda: not any(map(is_alive, workers))), workers
    assert until(lambda: folders_of(process.pid) == []), folders
    return process.returncode, said


def test_a_program_needs_no_main_guard(cascade: Cascade, tmp_path: Path) -> None:
    """Workers do not import the program, so its top level runs once."""
    (tmp_path / "program.py").write_text(SCRIPT)
    assert ended(started([str(tmp_path / "program.py")], str(cascade.root), "raise SystemExit")) == (0, "")


def test_a_program_may_be_read_from_stdin(cascade: Cascade) -> None:
    assert ended(started(["-"], str(cascade.root), "raise SystemExit", stdin=SCRIPT)) == (0, "")


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "import os; os._exit(3)"], ids=["raises", "exits at once"])
def test_nothing_is_left_when_a_program_exits(cascade: Cascade, end: str) -> None:
    assert ended(started(["-c", SCRIPT], str(cascade.root), end)) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_program(cascade: Cascade, number: signal.Signals) -> None:
    process = started(["-c", SCRIPT], str(cascade.root))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(number)
    assert ended(process)[0] == -number


@pytest.mark.parametrize("wait_s", [0.05, 0.2, 0.4])
def test_starting_workers_end_with_a_killed_program(cascade: Cascade, wait_s: float) -> None:
    process = started(["-c", SCRIPT], str(cascade.root))
    until(lambda: folders_of(process.pid) and workers_of(folders_of(process.pid)))
    time.sleep(wait_s)
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL


def test_a_worker_without_a_hub_ends_even_if_its_folder_cannot_be_removed(tmp_path: Path) -> None:
    """The folder is a mount point."""
    world = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'mount -t tmpfs tmpfs {tmp_path} && exec "$@"', "sh"]
    if subprocess.run([*world, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let one mount a folder of one's own")
    ours, theirs = socket.socketpair()
    code = "from graphcut.workers.executors.process_worker import serve; serve()"
    command = [sys.executable, "-c", code, str(theirs.fileno()), str(tmp_path)]
    with subprocess.Popen([*world, *command], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.close()
        has_ended = until(lambda: process.poll() is not None)
        process.kill()
    assert has_ended


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["Ctrl-C", "TERM", "HUP"],
)
def test_a_command_that_is_told_to_end_leaves_nothing(
    cascade: Cascade, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests were started so that they and what they start ignore this signal, as by nohup")
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "0000.npz", x=np.ones((4000, 4), np.float32))
    for i in range(1, 3000):  # enough for the signal to come before the end
        (tmp_path / "in" / f"{i:04}.npz").hardlink_to(tmp_path / "in" / "0000.npz")
    words = ["run", str(cascade.root), "--inputs", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    process = started(["-m", "graphcut"], *words, "--via", "processes", "--workers", "2")
    until(lambda: process.poll() is not None or any(tmp_path.glob("out/*")))
    os.killpg(process.pid, number)
    status, said = ended(process)
    assert (status, "Traceback" in said) == (code, False), said
    assert not any(tmp_path.glob("out/.*"))


def test_a_full_dev_shm_is_not_used(cascade: Cascade) -> None:
    """In a mount namespace where /dev/shm has 128 KiB, as in a container with default settings."""
    small = "mount -t tmpfs -o size=128k tmpfs /dev/shm && exec"
    world = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*world, f"{small} true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let one mount a small /dev/shm of one's own")
    code = """
import sys, tempfile, numpy as np, graphcut
from pathlib import Path
cascade = graphcut.open_cascade(sys.argv[1])
feeds = {"x": np.ones((40000, 4), np.float32)}
expected = graphcut.run(cascade, feeds)["y"]
for outputs in graphcut.stream(cascade, [feeds] * 6, via="processes", workers=2):
    regions = [*Path(tempfile.gettempdir()).glob("graphcut-*/[0-9]*-*")]
    print(np.array_equal(outputs["y"], expected), len(regions) > 0)
"""
    done = subprocess.run(
        [*world, f'{small} "$0" "$@"', sys.executable, "-c", code, str(cascade.root)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(cascade.root)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True True"] * 6
    assert [*cascade.root.glob("graphcut-*")] == []


def test_an_error_says_that_no_folder_has_room(cascade: Cascade) -> None:
    """The system limits all files to 64 KiB."""
    code = """
import sys, resource, numpy as np, graphcut
cascade = graphcut.open_cascade(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    list(graphcut.stream(cascade, [{"x": np.ones((40000, 4), np.float32)}], via="processes", workers=2))
except graphcut.RunError as error:
    print(error)
"""
    process = started(["-c", code], str(cascade.root))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("there is no room for 640 KiB in /")
    process.stdout = None
    assert ended(process) == (0, "")
