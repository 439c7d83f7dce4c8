"""The ways to run a model or its cascade, each as a function that answers feeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from ..cascade import open_cascade
from ..running.dispatching.staffing import Via
from ..running.one_process.runner import Runner, run
from ..running.pipelined import Pipeline
from ..running.stage import Policy, session_options

Feeds = Mapping[str, Any]
Answer = Callable[[Sequence[Feeds]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Entry:
    """One way to run it.

    Attributes:
        title: what it is called where it is listed.
        opened: loads what is needed, and gives the function that answers feeds; closes it afterwards.
    """

    title: str
    opened: Callable[[Path, Path], AbstractContextManager[Answer]]


@contextmanager
def _whole(model: Path, policy: Policy, *, spinning: bool = False, feeders: int = 1) -> Iterator[Answer]:
    options = ort.SessionOptions() if spinning else session_options(policy)
    session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def one(feed: Feeds) -> dict[str, Any]:
        return dict(zip(names, session.run(None, dict(feed)), strict=True))

    with ThreadPoolExecutor(feeders) as pool:
        yield lambda feeds: list(pool.map(one, feeds)) if feeders > 1 else [one(feed) for feed in feeds]


@contextmanager
def _in_turn(place: Path, policy: Policy) -> Iterator[Answer]:
    cascade = open_cascade(place)
    yield lambda feeds: [run(cascade, feed, policy=policy) for feed in feeds]


@contextmanager
def _resident(place: Path) -> Iterator[Answer]:
    with Runner(open_cascade(place)) as runner:
        yield lambda feeds: [runner.run(feed) for feed in feeds]


@contextmanager
def _pipeline(place: Path, via: Via) -> Iterator[Answer]:
    with Pipeline(open_cascade(place), via=via) as pipeline:
        yield lambda feeds: [future.result() for future in [pipeline.submit(feed) for feed in feeds]]


_CORES: Final = os.cpu_count() or 1

WAYS: Final[Mapping[str, Entry]] = {
    "whole": Entry("whole model", lambda model, _: _whole(model, Policy())),
    "spinning": Entry("whole model, threads spin", lambda model, _: _whole(model, Policy(), spinning=True)),
    "feeders": Entry(
        f"whole model, fed by {_CORES} threads",
        lambda model, _: _whole(model, Policy(threads=1), feeders=_CORES),
    ),
    "mapped": Entry("whole model, weights mapped", lambda model, _: _whole(model, Policy(prepacked=False))),
    "resident": Entry("parts, all loaded", lambda _, place: _resident(place)),
    "in turn": Entry("parts, loaded in turn", lambda _, place: _in_turn(place, Policy(arena=False))),
    "in turn, mapped": Entry(
        "parts, in turn, mapped", lambda _, place: _in_turn(place, Policy(arena=False, prepacked=False))
    ),
    "threads": Entry("pipeline of threads", lambda _, place: _pipeline(place, "threads")),
    "processes": Entry("pipeline of processes", lambda _, place: _pipeline(place, "processes")),
}
"""By the word that names them."""
