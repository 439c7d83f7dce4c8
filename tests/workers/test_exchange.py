"""Ranks on threads: each gets its parts in one step, and they hand each other what they make."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import graphcut
from graphcut import Into, Pipeline, RunError, demos
from graphcut.inputs.generating import generate_inputs
from graphcut.workers.executors.exchange import Exchange
from graphcut.workers.scheduling.requests import Request, RequestState, Routing, ScheduledPart, waiting_in_turn

SIZES = {"batch": 1, "seq": 3, "past": 0, "total": 3}


def in_thread(exchange: Exchange, name: str) -> tuple[Thread, list[object]]:
    found: list[object] = []

    def take() -> None:
        try:
            found.append(exchange.take([name]))
        except RunError as error:
            found.append(error)

    thread = Thread(target=take)
    thread.start()
    return thread, found


def test_a_value_is_kept_until_every_step_that_reads_it_took_it() -> None:
    exchange = Exchange({"a": 2, "b": 1})
    first, taken = in_thread(exchange, "a")
    exchange.put({"a": 1, "others don't read": 2})
    first.join()
    assert taken == [{"a": 1}]
    assert exchange.take(["a", "fed"]) == {"a": 1}
    assert exchange.take(["a"]) == {}


def test_an_error_ends_the_steps_that_wait() -> None:
    exchange, error = Exchange({"a": 1}), RunError("a part failed")
    waiting, found = in_thread(exchange, "a")
    exchange.fail(error)
    exchange.fail(RunError("and another one"))
    waiting.join()
    assert found == [error]


def test_workers_that_wait_for_each_other_in_turn_get_all_parts_of_a_request_at_once() -> None:
    reads = {"a0": "x", "b0": "x", "a1": "a0 b0", "b1": "a0 b0", "c": "a1 b1", "d": "c"}
    parts = [ScheduledPart(name, tuple(read.split()), (name,)) for name, read in reads.items()]
    routing, owned = Routing(parts, ["d", "a0"]), [(0, 2), (1, 3), (4, 5)]
    assert waiting_in_turn(routing, owned) == {0: (0, 1), 1: (0, 1)}
    state = RequestState(0, Request({"x": 1}), routing, {"x": 1}, None)
    steps = state.joint_steps({0: 0, 1: 1, 2: 0, 3: 1})
    assert steps == {0: (0, 2), 1: (1, 3)}
    assert routing.handed_over(list(steps.values())) == {"a0": 1, "b0": 1}
    assert routing.wanted((0, 1, 2, 3)) == ("a0", "a1", "b1")
    assert waiting_in_turn(routing, [(0, 1), (2, 3), (4, 5)]) == {}


@pytest.mark.parametrize("stages", [None, Into(2)], ids=["ranks", "stages of ranks"])
def test_many_requests_on_ranks_have_the_answers_of_the_whole_model_and_a_bad_one_stops_none(
    stages: Into | None, tmp_path: Path
) -> None:
    demos.write("llm", tmp_path / "model.onnx", external=None, layers=2)
    model = graphcut.load(tmp_path / "model.onnx")
    ranked = graphcut.split_by_rank(model, tmp_path / "ranks", ranks=2, stages=stages)
    whole = graphcut.split(model, Into(1), tmp_path / "whole")
    config = graphcut.SessionConfig(optimize="none", threads=1)
    feeds = [dict(generate_inputs(model, seed=seed, sizes=SIZES)) for seed in range(6)]
    of_ranks = [{n: v for n, v in feed.items() if n in ranked.manifest.reads} for feed in feeds]
    empty = {n: np.zeros([1, 1, 0, 16], np.float32) for n in ranked.manifest.reads if n not in feeds[0]}
    bad = {**of_ranks[0], **empty, "input_ids": np.full((1, 3), 10**6)}
    with Pipeline(ranked, via="threads", config=config) as pipeline:
        asked = [*({**feed, **empty} for feed in of_ranks), bad, {**of_ranks[0], **empty}]
        *answers, failed, last = pipeline.map(asked, on_error="skip")
    expected = [graphcut.run(whole, feed, config=config)["logits"] for feed in feeds]
    assert isinstance(failed, RunError)
    for answer, logits in zip([*answers, last], [*expected, expected[0]], strict=True):
        assert not isinstance(answer, RunError)
        np.testing.assert_array_equal(answer["logits"], logits)
