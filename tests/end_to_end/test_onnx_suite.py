"""Every model of onnx's own test suite that has two nodes or more, cut in the middle.

The suite has about two thousand models: each operator with its corner cases, each composite operator written out as
nodes, and small exports of torch. Models that ONNX Runtime can't run are verified by structure alone. Each cascade is
then changed in several ways. Each change is found by the files alone, and with all digests redone by the model.
A test takes every sixteenth model; `scripts/fuzz` takes all.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.backend.test.case.model import collect_testcases as collect_models
from onnx.backend.test.case.node import collect_testcases as collect_nodes
from onnx.backend.test.loader import load_model_tests
from sub_models import check_extract

import graphcut
from graphcut import At, Model, UsageError
from graphcut.core.errors import OpeningError
from graphcut.inputs.searching import find_accepted_inputs
from graphcut.verifying.numerical import EXACT, run_whole

from cases import FUZZ
from tampering import CHANGES, missed

SHARES = 2
pytestmark = [  # warnings of the suite's own
    pytest.mark.fuzz,
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The models in a folder, in the order of their names; made by one process for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "onnx-suite"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            unfinished.mkdir(exist_ok=True)
            for i, (name, proto) in enumerate(models()):
                (unfinished / f"{name}-{i}.onnx").write_bytes(proto.SerializeToString())
            unfinished.rename(folder)
    return sorted(folder.iterdir())[:: 1 if FUZZ else 32]


def models() -> Iterator[tuple[str, ModelProto]]:
    for case in (*collect_nodes(None), *collect_models()):
        if case.model is not None:
            yield case.name, case.model
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            if case.model_dir:
                yield case.name, onnx.load(Path(case.model_dir, "model.onnx"))


@pytest.mark.parametrize("share", range(SHARES))
def test_each_model_is_split_and_each_change_is_found(share: int, suite: list[Path], tmp_path: Path) -> None:
    paths = suite[share::SHARES]
    turns = (tuple(CHANGES)[i % len(CHANGES) :][:3] for i in count())  # each change for many models, and few for each
    outcomes = [cut_in_the_middle(path, tmp_path / "parts", turn) for path, turn in zip(paths, turns, strict=False)]
    assert [path.stem for path, outcome in zip(paths, outcomes, strict=True) if outcome == "differs"] == []
    assert outcomes.count("same") > len(outcomes) // 8  # most have one node, and some ONNX Runtime can't run


def cut_in_the_middle(path: Path, folder: Path, changes: Sequence[str]) -> str:
    """Cut a model, verify the cascade, and change copies of it."""
    model = graphcut.load(path)
    flow = model.graph.flow
    if len(flow) < 2:
        return "too small"
    middle = model.graph.nodes[flow[len(flow) // 2 - 1]].name
    try:
        cascade = graphcut.split(model, At((middle,)), folder, force=True)
    except UsageError:
        return "nothing after"
    report = graphcut.verify(model, cascade)
    assert graphcut.verify_files(cascade), path.stem
    assert missed(model, cascade, folder.with_name("copy"), changes) == [], path.stem
    return "differs" if not report else "same" if report.runs else "structure alone"


@pytest.mark.parametrize("share", range(SHARES))
def test_a_random_sub_model_of_each_model_computes_what_the_whole_does(
    share: int, suite: list[Path], tmp_path: Path
) -> None:
    compared = 0
    for i, path in enumerate(suite[share::SHARES]):
        model = graphcut.load(path)
        if len(model.graph.flow) > 1 and (feeds := accepted_inputs(model)):
            compared += check_extract(model, feeds, np.random.default_rng(i), tmp_path / "sub.onnx")
    assert compared >= len(suite) // SHARES // 4


def accepted_inputs(model: Model) -> Mapping[str, object] | None:
    with suppress(OpeningError):
        found = find_accepted_inputs(
            model, lambda feeds: run_whole(model, feeds, model.graph.writes, config=EXACT), variants=1
        )
        return found.feeds[0] if found.feeds else None
    return None
