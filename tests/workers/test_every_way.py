"""Every way to run a cascade gives the outputs of the whole model bit for bit, on the fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import graphcut
from graphcut import Cascade, MemoryCapError, Runner, SessionConfig
from graphcut.inputs.generating import generate_inputs
from graphcut.running.stage import session_options

from cases import crossed
from conftest import FIXTURES, simple_plan

EXACT = SessionConfig(optimize="none", threads=1)
SLACK_BYTES = 8 << 20
NOT_RUN = {"tiny-qwen2-fp32"}  # ONNX Runtime refuses the whole model: its rotary embedding has a head size of 24
MODELS = sorted(path for path in FIXTURES.rglob("*.onnx") if path.parent.name not in NOT_RUN)

Feeds = Mapping[str, Any]
Way = Callable[[Cascade, list[Feeds]], Iterable[Any]]
Cut = Callable[[Path], tuple[Cascade, list[Feeds], list[Feeds]]]


def in_least_memory(cascade: Cascade, feeds: list[Feeds]) -> list[Any]:
    with Runner(cascade, config=EXACT, memory_bytes=1, exact=True) as runner, pytest.raises(MemoryCapError) as caught:
        runner.run_all(feeds)
    limit = caught.value.smallest_bytes + SLACK_BYTES  # other tests may have left something to this process
    with Runner(cascade, config=EXACT, memory_bytes=limit, exact=True) as runner:
        return list(runner.run_all(feeds))


def all_loaded(cascade: Cascade, feeds: list[Feeds]) -> list[Any]:
    with Runner(cascade, config=EXACT) as runner:
        return [runner.run(feed) for feed in feeds]


WAYS: Mapping[str, Way] = {
    "sequentially": lambda cascade, feeds: [graphcut.run(cascade, feed, config=EXACT) for feed in feeds],
    "all parts loaded": all_loaded,
    "least memory": in_least_memory,
    "threads": lambda cascade, feeds: graphcut.stream(cascade, feeds, workers=3, config=EXACT),
    "processes": lambda cascade, feeds: graphcut.stream(cascade, feeds, via="processes", workers=3, config=EXACT),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """A model in four parts, inputs, and what the whole model makes of them; once for all ways."""

    @cache
    def make(path: Path) -> tuple[Cascade, list[Feeds], list[Feeds]]:
        model = graphcut.load(path)
        feeds: list[Feeds] = [dict(generate_inputs(model, seed=seed)) for seed in range(3)]
        session = ort.InferenceSession(path, session_options(EXACT), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        expected: list[Feeds] = [dict(zip(names, session.run(None, dict(feed)), strict=True)) for feed in feeds]
        return graphcut.split(model, simple_plan(model, 4), tmp_path_factory.mktemp("parts") / "parts"), feeds, expected

    return make


@crossed(("path", "way"), MODELS, WAYS, times=1, together=10**6)
def test_every_way_to_run_gives_the_bits_of_the_whole_model(path: Path, way: str, cut: Cut) -> None:
    cascade, feeds, expected = cut(path)
    found = list(WAYS[way](cascade, feeds))
    for wholes, outputs in zip(expected, found, strict=True):
        for name, whole in wholes.items():
            np.testing.assert_array_equal(outputs[name], whole, strict=True)
