"""The ways to run a model or its cascade, each as a function that answers feeds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import onnxruntime as ort

from ..core.errors import MemoryCapError
from ..core.manifest import Cascade, open_cascade
from ..running.in_process.runner import Runner
from ..running.pipelined import Pipeline
from ..running.scheduling.assignment import Via
from ..running.stage import SessionConfig, session_options

_T = TypeVar("_T")

Feeds = Mapping[str, Any]
Answer = Callable[[Sequence[Feeds]], dict[str, Any]]
"""Answers all feeds, and gives the outputs for the last; the others are dropped, as somebody who uses them would."""


@dataclass(frozen=True)
class Way:
    """One way to run it.

    Attributes:
        title: what it is called where it is listed.
        opened: loads what is needed, and gives the function that answers feeds; closes it afterwards.
    """

    title: str
    opened: Callable[[Path, Path], AbstractContextManager[Answer]]


def _last(answers: Iterable[_T]) -> _T:
    return deque(answers, maxlen=1).pop()


@contextmanager
def _whole(model: Path, config: SessionConfig, *, spinning: bool = False, feeders: int = 1) -> Iterator[Answer]:
    options = ort.SessionOptions() if spinning else session_options(config)
    session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def one(feed: Feeds) -> dict[str, Any]:
        return dict(zip(names, session.run(None, dict(feed)), strict=True))

    with ThreadPoolExecutor(feeders) as pool:
        yield lambda feeds: _last(pool.map(one, feeds) if feeders > 1 else map(one, feeds))


@contextmanager
def _in_turn(place: Path, *, exact: bool) -> Iterator[Answer]:
    """With the least memory there can be."""
    cascade = open_cascade(place)

    def answer(feeds: Sequence[Feeds]) -> dict[str, Any]:
        with Runner(cascade, memory_bytes=_least_bytes(cascade, feeds[0], exact=exact), exact=exact) as runner:
            return _last(map(runner.run, feeds))

    yield answer


def _least_bytes(cascade: Cascade, feed: Feeds, *, exact: bool) -> int:
    with Runner(cascade, memory_bytes=1, exact=exact) as runner:
        try:
            runner.run(feed)
        except MemoryCapError as error:
            return error.smallest_bytes + _SLACK_BYTES
    return _SLACK_BYTES


@contextmanager
def _resident(place: Path) -> Iterator[Answer]:
    with Runner(open_cascade(place)) as runner:
        yield lambda feeds: _last(map(runner.run, feeds))


@contextmanager
def _pipeline(place: Path, via: Via) -> Iterator[Answer]:
    with Pipeline(open_cascade(place), via=via) as pipeline:
        yield lambda feeds: cast("dict[str, Any]", _last(pipeline.map(feeds)))  # errors are raised


_SLACK_BYTES: Final = 1 << 20
"""By so much a process grows between asking for the least cap and keeping it."""

_CORES: Final = os.cpu_count() or 1

WAYS: Final[Mapping[str, Way]] = {
    "whole": Way("whole model", lambda model, _: _whole(model, SessionConfig())),
    "spinning": Way("whole model, threads spin", lambda model, _: _whole(model, SessionConfig(), spinning=True)),
    "feeders": Way(
        f"whole model, fed by {_CORES} threads",
        lambda model, _: _whole(model, SessionConfig(threads=1), feeders=_CORES),
    ),
    "mapped": Way("whole model, weights mapped", lambda model, _: _whole(model, SessionConfig(prepacked=False))),
    "resident": Way("parts, all loaded", lambda _, place: _resident(place)),
    "in turn": Way("parts, loaded in turn", lambda _, place: _in_turn(place, exact=True)),
    "in turn, mapped": Way("parts, in turn, mapped", lambda _, place: _in_turn(place, exact=False)),
    "threads": Way("pipeline of threads", lambda _, place: _pipeline(place, "threads")),
    "processes": Way("pipeline of processes", lambda _, place: _pipeline(place, "processes")),
}
"""By the word that names them."""
