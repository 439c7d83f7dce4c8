"""States of a common beginning are kept and reused: the same tokens, and fewer positions are computed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest
from child_processes import children
from decoders import (
    with_attention,
    with_branches,
    with_buffer,
    with_concat,
    with_group_query_attention,
    with_lstm,
    without_caches,
)
from onnx import ModelProto

from graphcut import Cascade, DecodingService, generate, split
from graphcut.running.stage import Stage
from graphcut.workers.executors.via import Via

from conftest import simple_plan

PLENTY = 1 << 20


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.decoding.prefix_cache.PIECE", 4)


def cut(folder: Path, proto: ModelProto) -> Cascade:
    onnx.save(proto, folder / "m.onnx")
    return split(folder / "m.onnx", simple_plan(folder / "m.onnx", 2), folder / "m.parts")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens in each step of a part that reads token ids."""
    found, step = list[int](), Stage.step

    def counted(stage: Stage, values: Any, *rest: Any, **more: Any) -> Any:  # noqa: ANN401 - any
        if "input_ids" in values and "input_ids" in stage.part.reads:
            found.append(values["input_ids"].shape()[-1])
        return step(stage, values, *rest, **more)

    monkeypatch.setattr(Stage, "step", counted)
    return found


def told(
    cascade: Cascade, prompts: Iterable[list[int]], cache_bytes: int, **inputs: object
) -> tuple[list[list[int]], list[int]]:
    """The tokens after each prompt, one after the other, and how many of the prompt's tokens were reused."""
    with DecodingService(cascade, most=1, cache_bytes=cache_bytes, inputs=inputs) as service:
        streams, found = [], []
        for prompt in prompts:
            streams.append(service.stream(prompt, max_tokens=3))
            found.append(list(streams[-1]))
    return found, [stream.sequence.reused for stream in streams]


GROWING = [with_concat, with_attention, with_group_query_attention]


@pytest.mark.parametrize("style", GROWING)
def test_prompts_that_begin_alike_compute_their_beginning_once(
    tmp_path: Path, computed: list[int], style: Callable[[], ModelProto]
) -> None:
    cascade, system = cut(tmp_path, style()), [3, 1, 4, 1, 5, 9, 2, 6]
    prompts = [[*system, 5, 3], [*system, 5, 8], [*system, 9], system, [7, 7]]
    expected, _ = told(cascade, prompts, 0)
    without = computed.copy()
    computed.clear()
    found, reused = told(cascade, prompts, PLENTY)
    assert found == expected
    # Pieces of four tokens that are shared as a whole; the last token is always computed.
    assert reused == [0, 8, 8, 4, 0]
    assert sum(computed) == sum(without) - sum(reused)


def test_a_state_without_tokens_is_continued_as_a_whole_only(tmp_path: Path) -> None:
    for style, expected in ((with_lstm, 0), (with_buffer, 6), (without_caches, 0)):
        (tmp_path / style.__name__).mkdir()
        cascade = cut(tmp_path / style.__name__, style())
        ((first,), _) = told(cascade, [[3, 1, 4, 1]], 0)
        prompts = [[3, 1, 4, 1], [3, 1, 4, 1, *first, 8], [3, 1, 4, 2]]
        plain, _ = told(cascade, prompts, 0)
        assert told(cascade, prompts, PLENTY) == (plain, [0, expected, 0])


def test_a_state_that_only_looks_as_if_it_had_tokens_is_computed_again(tmp_path: Path) -> None:
    """The encoder's caches of a merged decoder have an axis that grows once, and not with the tokens."""
    import numpy as np

    cascade = cut(tmp_path, with_branches())
    inputs = {"encoder_hidden_states": np.ones((1, 5, 16), np.float32)}
    prompts = [[3, 1, 4, 1, 5], [3, 1, 4, 2], [9, 2]]
    assert told(cascade, prompts, PLENTY, **inputs)[0] == told(cascade, prompts, 0, **inputs)[0]


def test_memory_is_bounded_and_what_was_not_used_for_longest_leaves_first(tmp_path: Path) -> None:
    cascade = cut(tmp_path, with_concat())
    one = 2 * 2 * 16 * 4 * (4 + 2)  # layers, keys and values, width, bytes; a prompt of four tokens, and two more
    one += 2 * 2 * 16 * 4  # five tokens
    a, b, c = [1] * 5, [2] * 5, [3] * 5
    for room, reused in ((one - 1, [0] * 5), (one, [0] * 5), (2 * one, [0, 0, 4, 0, 0]), (3 * one, [0, 0, 4, 0, 4])):
        assert told(cascade, [a, b, a, c, b], room)[1] == reused, room


@pytest.mark.parametrize(("via", "style"), [("threads", with_concat), ("processes", with_group_query_attention)])
def test_turns_of_a_chat_do_not_compute_the_past_again(
    tmp_path: Path, via: Via, style: Callable[[], ModelProto]
) -> None:
    cascade, said, answers, reused = cut(tmp_path, style()), list[int](), list[list[int]](), list[int]()
    with DecodingService(cascade, most=2, via=via, workers=2, cache_bytes=PLENTY) as service:
        for more in ([3, 1, 4], [1, 5], [9]):
            said += more
            stream = service.stream(said, max_tokens=4)
            answers.append(list(stream))
            reused.append(stream.sequence.reused)
            assert answers[-1] == generate(cascade, [said], max_tokens=4).all()[0]
            said += answers[-1]
    assert reused == [0, 0, 8]  # whole pieces of the prompt before: of 3, 9 and 14 tokens


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_the_same_request_has_the_same_answer_whatever_is_cached_or_lost(tmp_path: Path, via: Via) -> None:
    """The model says another text where a prompt comes in other pieces."""
    cascade, prompt, other = cut(tmp_path, with_concat(says_pieces=True)), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [7, 7]
    with DecodingService(cascade, most=2, cache_bytes=PLENTY) as service:
        expected = [list(service.stream(one, max_tokens=12)) for one in (other, prompt)]
    assert generate(cascade, [prompt], max_tokens=12).all() != [expected[1]]
    with DecodingService(cascade, most=2, via=via, workers=2, cache_bytes=PLENTY) as service:
        streams = []
        for ended in (prompt[:6], [*prompt[:9], 8], prompt, prompt):  # each continues what those before have left
            streams.append(service.stream(ended, max_tokens=12))
            answer = list(streams[-1])
        assert ([one.sequence.reused for one in streams], answer) == ([0, 4, 8, 8], expected[1])
        stream = service.stream(prompt, max_tokens=12)
        begun = [next(iter(stream)) for _ in range(4)]
        if via == "processes":
            os.kill(children()[-1], signal.SIGKILL)
        assert [*begun, *stream] == expected[1]
        assert list(service.stream(other, max_tokens=12)) == expected[0]
