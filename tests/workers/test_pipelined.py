"""Pipelining: order of outputs, micro-batches, errors, and the splitter that uses it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread, Timer
from threading import enumerate as threads_now
from typing import Any, Literal
from unittest.mock import patch
from weakref import ref

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from waiting import until

import graphcut
from graphcut import At, Cascade, ModelSplitter, Pipeline, RunError, RunLog, SessionConfig, UsageError, demos
from graphcut.core.manifest import Part
from graphcut.inputs.generating import generate_inputs
from graphcut.running.in_process import memory_plan
from graphcut.running.in_process.runner import Runner
from graphcut.running.stage import Stage
from graphcut.running.values import Feeds, Outputs
from graphcut.workers.batches import BatchAxis, batch_axis
from graphcut.workers.executors import threads
from graphcut.workers.executors.via import Via
from graphcut.workers.run_log import save_trace
from graphcut.workers.scheduling.assignment import assign_parts

from cases import FUZZ, each
from conftest import floats, model_of, simple_plan
from control_flow import write_model

Array = NDArray[Any]
ONE_THREAD = SessionConfig(threads=1)


def cut(path: Path, *names: str) -> Cascade:
    model = graphcut.load(path)
    return graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(names)), path.with_suffix(".parts"))


@pytest.fixture
def cascade(chain: Path) -> Cascade:
    """Relu and Exp, Neg, then Add, which also reads the first part."""
    return cut(chain, "exp", "neg")


def rows(number: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((number, 4)).astype(np.float32)


def whole(path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


@each("workers", [1, 2, 3, 5])
def test_outputs_come_in_the_order_of_the_feeds(cascade: Cascade, chain: Path, workers: int) -> None:
    feeds = [{"x": rows(1 + i % 3, seed=i)} for i in range(20)]
    found = list(graphcut.stream(cascade, feeds, workers=workers, config=ONE_THREAD))
    for feed, outputs in zip(feeds, found, strict=True):
        assert not isinstance(outputs, RunError)
        np.testing.assert_array_equal(outputs["y"], whole(chain, feed)["y"], strict=True)


@each("name", ["llm", "control-flow", *(["unet", "resnet", "multitask"] if FUZZ else [])])
def test_a_pipeline_gives_the_outputs_of_a_sequential_run(tmp_path: Path, name: str) -> None:
    write_model(name, tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    cascade = graphcut.split(model, simple_plan(model, 3))
    feeds = [dict(generate_inputs(model, seed=seed)) for seed in range(4)]
    expected = [graphcut.run(cascade, feed, config=ONE_THREAD) for feed in feeds]
    found = list(graphcut.stream(cascade, feeds, workers=2, config=ONE_THREAD))
    for outputs, right in zip(found, expected, strict=True):
        assert not isinstance(outputs, RunError)
        for key, array in right.items():
            np.testing.assert_array_equal(outputs[key], array, strict=True)


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_writing_to_inputs_and_outputs_changes_no_other_output(via: Via, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="a"), helper.make_node("Neg", ["a"], ["y"], name="y")]
    onnx.save(model_of(nodes, [floats("x", 2), floats("s", 2)], [floats("y", 2), floats("s", 2)]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    parts = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At("a")), tmp_path / "parts")
    fed = np.ones(2, np.float32)
    with Pipeline(parts, via=via) as pipeline:
        first = pipeline.submit({"x": fed, "s": fed}).result()
        fed[:] = 7
        assert {name: value.tolist() for name, value in first.items()} == {"y": [-1, -1], "s": [1, 1]}
        first["y"][:] = first["s"][:] = 5
        assert pipeline.submit({"x": fed, "s": fed}).result()["y"].tolist() == [-7, -7]
    assert fed.tolist() == [7, 7]


def test_feeds_are_fetched_as_the_window_allows(cascade: Cascade) -> None:
    fetched: list[int] = []

    def endless() -> Iterator[dict[str, Array]]:
        for i in range(10_000):
            fetched.append(i)
            yield {"x": rows(1)}

    flow = graphcut.stream(cascade, endless(), workers=2, window=3)
    for _ in range(5):
        next(flow)
    flow.close()  # type: ignore[attr-defined]
    assert len(fetched) <= 5 + 3 + 1


def stream_on_two(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Outputs | RunError]:
    return graphcut.stream(cascade, feeds, workers=2, on_error="skip")


def run_all_loaded(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Outputs | RunError]:
    return Runner(cascade).run_all(feeds, on_error="skip")


def run_in_turn(cascade: Cascade, feeds: Iterable[Feeds]) -> Iterator[Outputs | RunError]:
    with patch.object(memory_plan, "available_bytes", return_value=0):  # so one part at a time
        return Runner(cascade).run_all(feeds, on_error="skip")


@each("run", [stream_on_two, run_all_loaded, run_in_turn])
@each("number", [0, 5])
def test_what_was_fetched_before_a_source_raises_is_answered(
    cascade: Cascade, run: Callable[[Cascade, Iterable[Feeds]], Iterator[Outputs | RunError]], number: int
) -> None:
    def feeds() -> Iterator[Feeds]:
        yield from ({"x": rows(1, seed=i)} for i in range(number))
        raise RunError("the disk is gone")

    found: list[Outputs | RunError] = []
    with pytest.raises(RunError, match="the disk is gone"):
        found.extend(run(cascade, feeds()))
    assert len(found) == number


@pytest.fixture
def stalled(cascade: Cascade) -> Iterator[tuple[Pipeline, Event]]:
    """A pipeline that delivers nothing until an event is set."""
    delivering, go_on = Event(), Event()

    def wait(_: object) -> None:
        delivering.set()
        go_on.wait()

    with Pipeline(cascade, workers=2, window=2) as pipeline:
        pipeline.submit({"x": rows(1)}).add_done_callback(wait)
        delivering.wait()
        yield pipeline, go_on


def test_submit_waits_while_twice_the_window_is_unanswered(stalled: tuple[Pipeline, Event]) -> None:
    pipeline, go_on = stalled
    futures: list[Future[Outputs]] = []
    thread = Thread(target=lambda: futures.extend(pipeline.submit({"x": rows(1)}) for _ in range(10)))
    thread.start()
    assert until(lambda: len(futures) == 4)
    thread.join(0.1)
    assert len(futures) == 4
    go_on.set()
    thread.join()
    assert [future.result()["y"].shape for future in futures] == [(1, 4)] * 10


def test_closing_releases_threads_that_wait_to_submit(stalled: tuple[Pipeline, Event]) -> None:
    pipeline, go_on = stalled
    submit = lambda _: pipeline.submit({"x": rows(1)}).exception()  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        errors = pool.map(submit, range(8))
        Timer(0.1, go_on.set).start()
        pipeline.close()
        assert {str(error) for error in errors} <= {"None", "the pipeline was closed before this was answered"}


def test_a_callback_does_not_wait_to_submit(cascade: Cascade) -> None:
    more: list[Future[Outputs]] = []
    with Pipeline(cascade, workers=2, window=2) as pipeline:
        first = pipeline.submit({"x": rows(1)})
        first.add_done_callback(lambda _: more.extend(pipeline.submit({"x": rows(1)}) for _ in range(10)))
        pipeline.submit({"x": rows(1)}).result()
        assert [future.result()["y"].shape for future in more] == [(1, 4)] * 10


NOT_CLOSED = """
import atexit, sys, threading, time
from graphcut import Pipeline
from graphcut.workers import pipelined
from graphcut.workers.executors import threads
if __name__ == "__main__":
    if sys.argv[3:] == ["stuck"]:
        threads.Stage, pipelined.EXIT_S = lambda *_, **__: time.sleep(1000), 0.1
    atexit.register(lambda: print(threading.active_count() > 1))  # the first one is called last
    pipeline = Pipeline(sys.argv[1], via=sys.argv[2], workers=2)
"""


@each(("words", "some_run"), [(["threads"], False), (["processes"], False), (["threads", "stuck"], True)])
def test_the_workers_of_a_pipeline_that_is_not_closed_end_with_the_process_if_they_can(
    cascade: Cascade, tmp_path: Path, words: list[str], *, some_run: bool
) -> None:
    """ONNX Runtime aborts a process that ends while it makes a session."""
    (tmp_path / "run.py").write_text(NOT_CLOSED)
    command: list[str | Path] = [sys.executable, tmp_path / "run.py", cascade.root, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(some_run), "")


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("via", ["threads", "processes"])
def test_a_pipeline_that_is_dropped_answers_what_it_got_and_is_freed(cascade: Cascade, via: Via) -> None:
    before = {*threads_now()}
    pipeline = Pipeline(cascade, via=via, workers=2)
    futures = [pipeline.submit({"x": rows(1)}) for _ in range(5)]
    found = ref(pipeline)
    del pipeline
    gc.collect()
    assert found() is None
    assert [future.result()["y"].shape for future in futures] == [(1, 4)] * 5
    assert until(lambda: before.issuperset(threads_now()))


@pytest.mark.parametrize("workers", [3, 8])
def test_threads_load_at_the_same_time_and_each_part_once(
    cascade: Cascade, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    all_load, loaded = Barrier(3, timeout=20), []

    class WaitingStage(Stage):
        def __init__(self, cascade: Cascade, part: Part, *, config: SessionConfig) -> None:
            all_load.wait()
            loaded.append(part.file)
            super().__init__(cascade, part, config=config)

    monkeypatch.setattr(threads, "Stage", WaitingStage)
    assert len(list(graphcut.stream(cascade, [{"x": rows(1)}] * 3, workers=workers))) == 3
    assert sorted(loaded) == sorted(part.file for part in cascade.parts)


def test_stopping_early_ends_all_threads(cascade: Cascade) -> None:
    before = {*threads_now()}
    flow = graphcut.stream(cascade, ({"x": rows(1)} for _ in range(100)), workers=3)
    next(flow)
    flow.close()  # type: ignore[attr-defined]
    assert before.issuperset(threads_now())


def test_errors_of_feeds_are_raised_in_order(cascade: Cascade) -> None:
    flow = graphcut.stream(cascade, [{"x": rows(1)}, {"z": rows(1)}, {"x": rows(2)}])
    next(flow)
    with pytest.raises(RunError, match="the model has no input 'z'"):
        next(flow)


def test_a_feed_that_fails_can_be_skipped(cascade: Cascade) -> None:
    feeds = [{"x": rows(1)}, {"x": np.zeros((1, 3), np.float32)}, {"x": rows(2)}]
    good, bad, last = graphcut.stream(cascade, feeds, on_error="skip")
    assert isinstance(bad, RunError)
    assert str(bad) == "input 'x' is fed shape [1, 3], and the model reads float32[n,4]"
    assert not isinstance(good, RunError)
    assert not isinstance(last, RunError)
    assert (good["y"].shape, last["y"].shape) == ((1, 4), (2, 4))


def test_a_part_that_fails_fails_its_feed_alone(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([2, 2], np.int64), "shape")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Reshape", ["a", "shape"], ["y"], name="reshape"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 2)], [floats("y", 2, 2)], [shape]), tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "relu")
    feeds = [{"x": np.ones((n, 2), np.float32)} for n in (2, 3, 2)]
    good, bad, last = graphcut.stream(cascade, feeds, on_error="skip")
    assert isinstance(bad, RunError)
    assert "part-1.onnx failed" in str(bad)
    assert not isinstance(good, RunError)
    assert not isinstance(last, RunError)


def test_a_changed_part_is_not_run(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(RunError, match=r"part-1\.onnx was changed after the model was cut"):
        list(graphcut.stream(cascade, [{"x": rows(1)}]))


def test_zero_workers_are_refused(cascade: Cascade) -> None:
    with pytest.raises(UsageError, match="0 workers can't run anything"):
        list(graphcut.stream(cascade, [], workers=0))


def test_workers_own_consecutive_parts_and_additional_workers_share_the_largest(cascade: Cascade) -> None:
    assert [worker.owns for worker in assign_parts(cascade, 3)] == [(0,), (1,), (2,)]
    heaviest = max(range(3), key=lambda i: cascade.parts[i].weight_bytes + cascade.parts[i].activation_bytes)
    assert sorted(worker.owns for worker in assign_parts(cascade, 4)) == sorted([(0,), (1,), (2,), (heaviest,)])
    assert [worker.overlap for worker in assign_parts(cascade, 3, overlap=1)] == [{0, 1}, {0, 1, 2}, {1, 2}]


# Micro-batches


def test_a_symbol_in_all_outputs_and_inputs_is_the_batch_axis(cascade: Cascade) -> None:
    assert batch_axis(cascade) == BatchAxis({"x": 0}, {"y": 0})


def test_micro_batches_cover_the_batch_and_are_joined_in_order() -> None:
    axis = BatchAxis({"x": 1}, {"y": 0})
    x = np.arange(10).reshape(2, 5)
    feeds = {"x": ort.OrtValue.ortvalue_from_numpy(x), "k": ort.OrtValue.ortvalue_from_numpy(np.ones(3))}
    pieces = list(axis.divided(feeds, 2))
    assert [piece["x"].numpy().tolist() for piece in pieces] == [[[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4], [9]]]
    assert all(piece["k"] is feeds["k"] for piece in pieces)
    answers = [{"y": piece["x"].numpy().T} for piece in pieces]
    assert axis.joined(answers)["y"].tolist() == x.T.tolist()


@each("length", [1, 2, 3, 7, 20, "auto"])
def test_micro_batches_give_the_outputs_of_the_whole_batch(cascade: Cascade, length: int | Literal["auto"]) -> None:
    feeds = [{"x": rows(n, seed=n)} for n in (7, 1, 8, 7)]
    found = list(graphcut.stream(cascade, feeds, workers=2, micro_batch=length))
    for feed, outputs in zip(feeds, found, strict=True):
        assert not isinstance(outputs, RunError)
        x = np.maximum(feed["x"], 0)
        np.testing.assert_allclose(outputs["y"], x - np.exp(x), rtol=1e-6)


def test_examples_that_depend_on_each_other_are_not_divided(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("ReduceMax", ["a"], ["m"], axes=[0], keepdims=1, name="largest"),
        helper.make_node("Sub", ["a", "m"], ["y"], name="sub"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)]), tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "relu")
    with Pipeline(cascade, micro_batch=2) as pipeline:
        for seed in range(3):
            x = rows(6, seed=seed)
            expected = np.maximum(x, 0) - np.maximum(x, 0).max(0)
            np.testing.assert_array_equal(pipeline.submit({"x": x}).result()["y"], expected)
        assert not pipeline.is_divided


def test_outputs_without_the_symbol_are_not_divided(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0, name="sum")]
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y")]), tmp_path / "m.onnx")
    model = graphcut.load(tmp_path / "m.onnx")
    one = graphcut.split(model, graphcut.plan(graphcut.analyze(model), graphcut.Into(1)))
    assert batch_axis(one) is None


# Traces


def test_a_trace_has_a_bar_for_each_part_of_each_feed(cascade: Cascade, tmp_path: Path) -> None:
    log = RunLog(3, 2, is_tracing=True)
    list(graphcut.stream(cascade, [{"x": rows(1)}] * 4, workers=2, log=log))
    save_trace(log, ["p0", "p1", "p2"], ["a", "b"], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    bars = [(event["name"], event["args"]["input"]) for event in events if event["ph"] == "X"]
    assert sorted(bars) == sorted((part, i) for part in ("p0", "p1", "p2") for i in range(4))
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "a", 1: "b"}


# ModelSplitter


def test_a_splitter_is_used_like_the_model(tmp_path: Path) -> None:
    demos.write("resnet", tmp_path / "resnet.onnx")
    x = np.random.default_rng(0).standard_normal((6, 3, 64, 64)).astype(np.float32)
    name = graphcut.load(tmp_path / "resnet.onnx").graph.reads[0]
    with ModelSplitter(tmp_path / "resnet.onnx", num_devices=4) as splitter:
        folder = splitter.cascade.root
        y = splitter.forward(x)
        again = splitter.forward({name: x})
        assert len(splitter.cascade.parts) == 4
    (expected,) = whole(tmp_path / "resnet.onnx", {name: x}).values()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)
    assert not folder.exists()


def test_a_splitter_keeps_its_parts_in_a_given_folder(chain: Path, tmp_path: Path) -> None:
    with ModelSplitter(chain, num_devices=2, folder=tmp_path / "kept") as splitter:
        splitter.forward(rows(4))
    assert graphcut.open_cascade(tmp_path / "kept").parts


def test_several_inputs_must_be_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["c"], name="add"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    onnx.save(model_of(nodes, [floats("a", "n"), floats("b", "n")], [floats("y", "n")]), tmp_path / "m.onnx")
    with ModelSplitter(tmp_path / "m.onnx", num_devices=2) as splitter, pytest.raises(UsageError) as caught:
        splitter.forward(np.ones(2, np.float32))
    assert str(caught.value) == "one array is given for 2 inputs"
    assert caught.value.hint == "name them: a, b"


# Models that must not be divided


def mixing(folder: Path, after: str = "relu") -> Cascade:
    """x minus the mean of the batch. After `relu` all boundary tensors have a row for each example."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[0], keepdims=1, name="mean"),
        helper.make_node("Sub", ["a", "m"], ["y"], name="sub"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)]), folder / "m.onnx")
    return cut(folder / "m.onnx", after)


def mixed(x: Array) -> Array:
    a: Array = np.maximum(x, 0)
    y: Array = a - a.mean(0, keepdims=True)
    return y


@pytest.mark.parametrize("first", ["zeros", "fails"])
def test_a_first_feed_with_equal_examples_or_an_error_decides_nothing(tmp_path: Path, first: str) -> None:
    opening = np.zeros((4, 4), np.float32) if first == "zeros" else np.zeros((4, 5), np.float32)
    feeds = [{"x": opening}, *({"x": rows(4, seed=seed)} for seed in range(3))]
    found = list(graphcut.stream(mixing(tmp_path), feeds, micro_batch=2, on_error="skip"))
    for feed, outputs in zip(feeds[1:], found[1:], strict=True):
        assert not isinstance(outputs, RunError)
        np.testing.assert_allclose(outputs["y"], mixed(feed["x"]), rtol=1e-5, atol=1e-6)


def test_threads_that_submit_at_the_same_time_wait_for_the_comparison(tmp_path: Path) -> None:
    with Pipeline(mixing(tmp_path), micro_batch=2) as pipeline, ThreadPoolExecutor(4) as pool:
        feeds = [rows(4, seed=seed) for seed in range(40)]
        found = list(pool.map(lambda x: pipeline.submit({"x": x}).result()["y"], feeds))
    for x, y in zip(feeds, found, strict=True):
        np.testing.assert_allclose(y, mixed(x), rtol=1e-5, atol=1e-6)


def test_a_boundary_tensor_without_the_symbol_prevents_dividing(tmp_path: Path) -> None:
    assert batch_axis(mixing(tmp_path, after="mean")) is None


def test_feeds_are_not_divided_if_micro_batches_fail(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([2, 8], np.int64), "shape")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Reshape", ["a", "shape"], ["b"], name="reshape"),
        helper.make_node("Shape", ["a"], ["s"], name="size"),
        helper.make_node("Reshape", ["b", "s"], ["y"], name="back"),
    ]
    onnx.save(model_of(nodes, [floats("x", "n", 4)], [floats("y", "n", 4)], [shape]), tmp_path / "m.onnx")
    x = rows(4)
    with Pipeline(cut(tmp_path / "m.onnx", "relu"), micro_batch=2) as pipeline:
        for _ in range(2):
            np.testing.assert_array_equal(pipeline.submit({"x": x}).result()["y"], np.maximum(x, 0))


def test_canceling_a_future_does_not_stop_the_pipeline(cascade: Cascade) -> None:
    with Pipeline(cascade) as pipeline:
        pipeline.submit({"x": rows(1)}).cancel()
        assert pipeline.submit({"x": rows(2)}).result()["y"].shape == (2, 4)


def test_a_closed_pipeline_refuses_feeds(cascade: Cascade) -> None:
    with Pipeline(cascade) as pipeline:
        pass
    with pytest.raises(RunError, match="the pipeline was closed before this was answered"):
        pipeline.submit({"x": rows(1)}).result()


def test_an_input_with_a_default_that_is_also_an_output_may_be_left_out(tmp_path: Path) -> None:
    default = numpy_helper.from_array(np.full(4, 2, np.float32), "d")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Add", ["a", "d"], ["y"], name="add"),
    ]
    proto = model_of(nodes, [floats("x", "n", 4), floats("d", 4)], [floats("y", "n", 4), floats("d", 4)], [default])
    onnx.save(proto, tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "relu")
    x, d = rows(2), np.array([1, 2, 3, 4], np.float32)
    with Pipeline(cascade) as pipeline:
        for fed, used in (({"x": x}, np.full(4, 2, np.float32)), ({"x": x, "d": d}, d)):
            outputs = pipeline.submit(fed).result(timeout=30)
            np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0) + used)
            np.testing.assert_array_equal(outputs["d"], used)


def test_a_part_that_cannot_be_loaded_ends_a_run_that_skips_errors(cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    file.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(RunError, match="was changed after the model was cut"):
        list(graphcut.stream(cascade, [{"x": rows(1)}] * 50, on_error="skip"))


@pytest.mark.parametrize("length", [0, -1])
def test_micro_batches_have_at_least_one_example(cascade: Cascade, length: int) -> None:
    with pytest.raises(UsageError, match="a batch can't be divided into pieces of"):
        Pipeline(cascade, micro_batch=length)
