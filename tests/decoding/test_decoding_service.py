"""Decoding for many callers at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from child_processes import children
from decoders import WIDTH, with_concat, with_lstm
from waiting import until

import graphcut
from graphcut import Cascade, DecodingService, Into, RunError, Sampling, UsageError, generate, split
from graphcut.workers.executors.via import Via

from families import FAMILIES

PLAIN = Sampling()
PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6, 5, 3], [5], [8, 9, 7, 9])


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(with_concat(masked=True), path)  # its sequences share steps
    return split(path, Into(2), path.with_name("m.parts"))


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    """A decoder without a limit."""
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(with_lstm(), path)
    return split(path, Into(2), path.with_name("m.parts"))


def alone(cascade: Cascade, prompt: list[int], max_tokens: int = 6, sampling: Sampling = PLAIN) -> list[int]:
    (tokens,) = generate(cascade, [prompt], max_tokens=max_tokens, sampling=sampling).all()
    return tokens


@pytest.mark.parametrize(("via", "workers"), [("threads", 1), ("threads", 2), ("processes", 2)])
def test_each_caller_gets_what_its_prompt_gets_alone(cascade: Cascade, via: Via, workers: int) -> None:
    how = [Sampling(temperature=t, seed=7) for t in (0, 2, 0, 2, 2)]
    with DecodingService(cascade, most=3, via=via, workers=workers) as service:
        streams = [service.stream(prompt, max_tokens=4 + i, sampling=how[i]) for i, prompt in enumerate(PROMPTS)]
        found = [list(stream) for stream in streams]
        again = list(service.stream(PROMPTS[1], max_tokens=5, sampling=how[1]))
    assert found == [alone(cascade, prompt, 4 + i, how[i]) for i, prompt in enumerate(PROMPTS)]
    assert (again, {stream.end for stream in streams}) == (found[1], {"max_tokens"})


NOT_CLOSED = """
import atexit, sys, threading
from graphcut import DecodingService
atexit.register(lambda: print(threading.active_count()))  # the first one is called last
service = DecodingService(sys.argv[1])
service.stream([3], max_tokens=1_000_000)
"""


def test_a_service_that_is_not_closed_ends_with_the_process(endless: Cascade) -> None:
    """ONNX Runtime aborts a process that ends while a session is made or runs."""
    command: list[str | Path] = [sys.executable, "-c", NOT_CLOSED, endless.root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_the_log_probabilities_are_those_of_the_logits(cascade: Cascade, via: Via) -> None:
    prompt = list(PROMPTS[0])
    with DecodingService(cascade, most=2, via=via, workers=2) as service:
        stream = service.stream(prompt, max_tokens=4, sampling=Sampling(temperature=3, seed=5), top=3)
        tokens, bare = list(stream), service.stream(prompt, max_tokens=2, top=0)
        assert (len(list(bare)), [one.top for one in bare.sequence.scores]) == (2, [(), ()])
    session = ort.InferenceSession(cascade.source)
    fed = prompt + tokens
    feeds = {"input_ids": [fed], "attention_mask": [[1] * len(fed)], "position_ids": [list(range(len(fed)))]}
    states = {state.past: np.zeros((1, 1, 0, WIDTH), np.float32) for state in cascade.manifest.states}
    (logits,) = session.run(["logits"], {**{name: np.array(rows) for name, rows in feeds.items()}, **states})
    for place, (token, found) in enumerate(zip(tokens, stream.sequence.scores, strict=True), start=len(prompt) - 1):
        row = logits[0, place].astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert found.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [one for one, _ in found.top] == np.argsort(-row)[:3].tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(np.sort(expected)[:-4:-1], abs=1e-4)


def test_a_prompt_may_continue_an_answer(cascade: Cascade) -> None:
    said: list[int] = []
    with DecodingService(cascade, most=1) as service:
        for more in ([3], [1, 4], [9]):
            said += more
            answer = list(service.stream(said, max_tokens=4))
            assert answer == alone(cascade, said, 4)
            said += answer


def test_a_sequence_ends_at_a_stop_token_or_when_it_is_closed(endless: Cascade) -> None:
    tokens = alone(endless, PROMPTS[0], 40)
    stop = tokens.index(tokens[3])
    with DecodingService(endless, most=2) as service:
        stream = service.stream(PROMPTS[0], max_tokens=40, stop=[tokens[3]])
        assert (list(stream), stream.end) == (tokens[: stop + 1], "stop")
        assert not service.streams
        with closing(service.stream(PROMPTS[1], max_tokens=10**9)) as long:
            other = service.stream(PROMPTS[2], max_tokens=30)
            next(iter(long))
        assert list(other) == alone(endless, PROMPTS[2], 30)
        assert list(long)
        assert (long.end, service.streams) == ("stop", {})


def test_what_can_not_be_decoded_is_refused_and_others_go_on(cascade: Cascade) -> None:
    with DecodingService(cascade, max_context=5) as service:
        good = service.stream(PROMPTS[1], max_tokens=9)
        outside = service.stream([61_000], max_tokens=2)
        with pytest.raises(UsageError, match="has 6 tokens, and the model takes 5"):
            service.stream([1] * 6, max_tokens=1)
        with pytest.raises(UsageError, match="can't generate 0 tokens"):
            service.stream([1], max_tokens=0)
        with pytest.raises(UsageError, match="token id 61000 of the prompt is outside the vocabulary"):
            list(outside)
        assert (list(good), good.end, outside.end) == (alone(cascade, PROMPTS[1], 4), "full", "failed")
        assert not service.streams


def test_a_killed_worker_is_not_noticed(cascade: Cascade) -> None:
    with DecodingService(cascade, via="processes", workers=2, cache_bytes=1 << 20) as service:
        before = list(service.stream(PROMPTS[0], max_tokens=6))
        longer = [*PROMPTS[0], *before]
        streams = [service.stream(prompt, max_tokens=45) for prompt in (longer, PROMPTS[1])]
        begun = [next(iter(stream)) for stream in streams]
        os.kill(children()[-1], signal.SIGKILL)
        found = [[first, *stream] for first, stream in zip(begun, streams, strict=True)]
        assert until(lambda: len(service.generation.log.deaths) == 1)
    assert found == [alone(cascade, prompt, 45) for prompt in (longer, PROMPTS[1])]


def test_sequences_that_have_ended_do_not_begin_again_with_one_that_shared_their_steps(cascade: Cascade) -> None:
    prompts, ends = PROMPTS[:3], (4, 8, 45)
    with DecodingService(cascade, via="processes", workers=1) as service:
        streams = [service.stream(prompt, max_tokens=end) for prompt, end in zip(prompts, ends, strict=True)]
        found = [list(stream) for stream in streams[:2]]
        os.kill(children()[-1], signal.SIGKILL)
        found.append(list(streams[2]))
        assert len(service.generation.log.deaths) == 1
        assert not service.streams
    assert found == [alone(cascade, prompt, end) for prompt, end in zip(prompts, ends, strict=True)]


def test_closing_ends_everything(endless: Cascade) -> None:
    service = DecodingService(endless)
    stream = service.stream(PROMPTS[0], max_tokens=10**9)
    next(iter(stream))
    service.close()
    assert list(stream)[-1] is not None
    assert stream.end == "stop"
    with pytest.raises(RunError, match="the service was closed"):
        service.stream(PROMPTS[0], max_tokens=1)


def test_a_part_that_can_not_be_loaded_is_the_error_of_every_stream(cascade: Cascade, tmp_path: Path) -> None:
    broken = split(cascade.source, Into(2), tmp_path / "parts")
    broken.file(broken.parts[1]).write_bytes(b"")
    with DecodingService(broken) as service, pytest.raises(RunError):
        list(service.stream([1], max_tokens=1))
    assert service.error is not None


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_each_caller_may_have_inputs_of_its_own(cache_bytes: int, tmp_path: Path) -> None:
    """Sounds whose decoders begin with the same tokens, at the same time and one after the other."""
    family = FAMILIES["whisper"]
    folder, sounds = family.write(tmp_path / "m"), [family.inputs(seed) for seed in range(3)]
    cascade = split(graphcut.load(folder), Into(2), tmp_path / "parts")
    with DecodingService(cascade, inputs=sounds[0], cache_bytes=cache_bytes) as service:
        streams = [service.stream([], max_tokens=8, stop=[1], inputs=sound) for sound in sounds]
        found = [list(stream) for stream in streams]
        again = list(service.stream([], max_tokens=8, stop=[1], inputs=sounds[1]))
        with pytest.raises(UsageError, match="no value for all was given of 'sound'"):
            service.stream([], max_tokens=8, inputs={"sound": 1})
    expected = [family.reference(folder, sound, 8)[0] for sound in sounds]
    assert (found, again) == (expected, expected[1])
    assert expected[0] != expected[1]
