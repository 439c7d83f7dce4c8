"""Decoding several sequences together: the tokens are those of each alone, and one that fails does so alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_processes import children
from decoders import whole_tokens, with_buffer, with_concat, without_caches
from onnx import helper, numpy_helper
from test_decoding import NUMBER, PROMPTS, STYLES, Style, cut, written

from graphcut import At, RunError, UsageError, analyze, generate, load, plan, split
from graphcut.running.values import Value
from graphcut.workers.executors.protocol import Step
from graphcut.workers.executors.worker import Worker

EQUAL = ([3, 1, 4], [9, 2, 6], [5, 3, 5], [8, 9, 7])
BATCHED = ("optimum", "keys and values in one", "GroupQueryAttention", "Attention", "recurrent")
TOGETHER = [3] * 12 + [2] + [1] * 2  # two tokens of each, then one after another: the prompt of five after four steps
TRIAL = [1, 1, 2, 1, 1]  # two prompts, and a step of both, together and alone
SIZES = {
    **dict.fromkeys(("optimum", "keys and values in one"), TRIAL + TOGETHER),  # whose masks name no places
    **dict.fromkeys(("GroupQueryAttention", "recurrent"), TRIAL + [1] * 3 + [3] * (NUMBER - 1)),
    "Attention": TOGETHER,  # it is not told the length of each row
}


def alone(path: Path, style: Style, prompts: tuple[list[int], ...], number: int = NUMBER) -> list[list[int]]:
    """The tokens of the whole model, a sequence at a time."""
    step = (style.step, style.begins, style.becomes)
    return [whole_tokens(path, prompt, number, *step, at_once=style.at_once) for prompt in prompts]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, with_concat())


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each step of the first part has."""
    found: list[int] = []
    run = Worker.run

    def noted(worker: Worker, step: Step, inputs: Mapping[str, Value], *more: Any, **named: Any) -> object:  # noqa: ANN401
        if "input_ids" in inputs:
            found.append(inputs["input_ids"].shape()[0])
        return run(worker, step, inputs, *more, **named)

    monkeypatch.setattr(Worker, "run", noted)
    return found


@pytest.mark.parametrize("name", BATCHED)
def test_prompts_of_equal_length_are_one_batch(tmp_path: Path, name: str, sizes: list[int]) -> None:
    style = STYLES[name]
    path = written(tmp_path, style.draw())
    assert generate(cut(path, 2), EQUAL, max_tokens=NUMBER).all() == alone(path, style, EQUAL)
    assert sizes == [4] * NUMBER


@pytest.mark.parametrize("name", BATCHED)
def test_prompts_of_other_lengths_share_the_steps_after_them_or_those_with_them(
    tmp_path: Path, name: str, sizes: list[int]
) -> None:
    style = STYLES[name]
    path = written(tmp_path, style.draw())
    assert generate(cut(path, 2), PROMPTS, max_tokens=NUMBER).all() == alone(path, style, PROMPTS)
    assert sizes == SIZES[name]


def test_a_model_without_caches_is_batched_too(path: Path, tmp_path: Path, sizes: list[int]) -> None:
    expected = alone(path, STYLES["optimum"], PROMPTS)
    assert generate(cut(written(tmp_path, without_caches()), 2), PROMPTS, max_tokens=NUMBER).all() == expected
    assert sizes == [3] * 12 + [2] + [1] * 2


def test_sequences_that_end_leave_their_batch(path: Path, sizes: list[int]) -> None:
    expected = alone(path, STYLES["optimum"], EQUAL)
    stop = expected[1][2]
    ended = [row[: row.index(stop) + 1] if stop in row else row for row in expected]
    assert generate(cut(path, 3), EQUAL, max_tokens=NUMBER, stop=[stop]).all() == ended
    assert sizes == [sum(len(row) > step for row in ended) for step in range(NUMBER)]
    assert len(set(sizes)) > 1


def test_states_that_are_sent_are_batched(tmp_path: Path, sizes: list[int]) -> None:
    style = STYLES["recurrent"]
    path = written(tmp_path, style.draw())
    model = load(path)
    cascade = split(model, plan(analyze(model), At(("y0",))), tmp_path / "parts")
    expected = alone(path, style, PROMPTS)
    stop = expected[2][3]
    ended = [row[: row.index(stop) + 1] if stop in row else row for row in expected]
    assert generate(cascade, PROMPTS, max_tokens=NUMBER, stop=[stop]).all() == ended
    assert max(sizes) == 3


@pytest.mark.parametrize(
    ("batch", "workers", "expected"), [(8, 1, [7]), (3, 1, [3, 3, 1]), (8, 2, [4, 3]), (1, 2, [1] * 7)]
)
def test_each_batch_in_flight_has_at_most_so_many_sequences(
    path: Path, sizes: list[int], batch: int, workers: int, expected: list[int]
) -> None:
    prompts = tuple([number, 7] for number in range(7))
    tokens = generate(cut(path, 2), prompts, max_tokens=1, batch=batch, workers=workers)
    assert tokens.all() == alone(path, STYLES["optimum"], prompts, 1)
    assert sizes == expected


@pytest.mark.parametrize("name", ["a buffer, token by token", "optimum, merged"])
def test_a_model_of_one_sequence_takes_them_one_by_one(tmp_path: Path, name: str) -> None:
    style = STYLES[name]  # its buffers have one row; and an encoder's output is given for one
    path = written(tmp_path, style.draw())
    tokens = generate(cut(path, 2), EQUAL, max_tokens=3, inputs=style.inputs)
    assert tokens.all() == alone(path, style, EQUAL, 3)
    assert tokens.log.answered == len(EQUAL) * (3 if style.at_once else 5)


def test_a_model_that_refuses_a_batch_takes_its_sequences_one_by_one(tmp_path: Path) -> None:
    proto = with_concat()
    for node in proto.graph.node:
        node.input[:] = ["one" if name == "input_ids" else name for name in node.input]
    proto.graph.node.insert(0, helper.make_node("Reshape", ["input_ids", "shape"], ["one"], "first"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "shape"))
    path = written(tmp_path, proto)
    for prompts, failures in ((EQUAL, 1), (PROMPTS, 2)):  # those of other lengths are tried together first
        tokens = generate(cut(path, 2), prompts, max_tokens=NUMBER)
        assert tokens.all() == alone(path, STYLES["optimum"], prompts)
        assert (tokens.log.failures, tokens.sharing.verdict) == (failures, None if prompts == EQUAL else False)


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_batches_are_pipelined(path: Path, via: str) -> None:
    prompts = tuple([number, 2 * number + 1, 7][: 1 + number % 3] for number in range(7))
    found = generate(cut(path, 3), prompts, max_tokens=6, via=via, workers=2)  # type: ignore[arg-type]
    assert found.all() == alone(path, STYLES["optimum"], prompts, 6)


def test_caches_of_a_batch_are_rebuilt_after_sequences_have_left_it(path: Path) -> None:
    expected = alone(path, STYLES["optimum"], PROMPTS, 20)
    stop = expected[0][4]
    ended = [row[: row.index(stop) + 1] if stop in row else row for row in expected]
    assert len({len(row) for row in ended}) > 1
    tokens = generate(cut(path, 3), PROMPTS, max_tokens=20, stop=[stop], via="processes", workers=2)
    found: list[list[int]] = [[] for _ in PROMPTS]
    for place, (sequence, token) in enumerate(tokens):
        found[sequence].append(token)
        if place == sum(map(len, ended)) - 6:
            os.kill(children()[-1], signal.SIGKILL)
    assert (found, len(tokens.log.deaths)) == (ended, 1)


# Sequences that fail


def messages(errors: Mapping[int, Exception]) -> dict[int, str]:
    return {index: str(error).partition(" (")[0] for index, error in errors.items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_token_outside_the_vocabulary_ends_its_sequence_alone(path: Path, workers: int) -> None:
    prompts = ([3, 1, 4], [99999, 2, 6], [5, 3, 5], [8, 9, 7], [1, 99998, 1])
    tokens = generate(cut(path, 2), prompts, max_tokens=NUMBER, workers=workers, on_error="skip")
    good = alone(path, STYLES["optimum"], (prompts[0], prompts[2], prompts[3]))
    assert tokens.all() == [good[0], [], good[1], good[2], []]
    assert messages(tokens.errors) == {
        1: "token id 99999 of prompt 1 is outside the vocabulary",
        4: "token id 99998 of prompt 4 is outside the vocabulary",
    }
    assert tokens.ends == {0: "max_tokens", 1: "failed", 2: "max_tokens", 3: "max_tokens", 4: "failed"}


def test_prompts_that_are_too_long_or_empty_fail_alone(tmp_path: Path) -> None:
    style = STYLES["a buffer, token by token"]
    path = written(tmp_path, with_buffer())
    cascade = cut(path, 2)
    tokens = generate(cascade, [[1] * 25, [3, 1, 4], [], [-1]], max_tokens=4, on_error="skip")
    assert tokens.all() == [[], *alone(path, style, ([3, 1, 4],), 4), [], []]
    assert messages(tokens.errors) == {
        0: "prompt 0 has 25 tokens, and the model takes 24",
        2: "prompt 2 is empty",
        3: "prompt 3 has -1, which is not a token id",
    }
    with pytest.raises(UsageError, match="prompt 0 has 25 tokens"):
        generate(cascade, [[1] * 25, [3, 1, 4]], max_tokens=4)


def test_a_sequence_that_outgrows_the_model_fails_with_the_tokens_before(path: Path) -> None:
    # There are 64 positions. The batch fails when its longest sequence reaches the last one; then each goes on alone.
    tokens = generate(cut(path, 2), PROMPTS, max_tokens=99, on_error="skip")
    found = tokens.all()
    style = STYLES["optimum"]
    assert found == [alone(path, style, (prompt,), 65 - len(prompt))[0] for prompt in PROMPTS]
    assert all("failed: " in str(error) for error in tokens.errors.values())
    assert tokens.ends == {0: "failed", 1: "failed", 2: "failed"}
    with pytest.raises(RunError, match="failed: "):
        generate(cut(path, 2), PROMPTS, max_tokens=99).all()
