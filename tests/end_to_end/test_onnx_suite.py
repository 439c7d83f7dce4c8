"""Every model of onnx's own test suite that has two nodes or more, cut in the middle.

The suite holds about two thousand models: each operator with its corner cases, each composite operator written out as
nodes, and small exports of torch. Where ONNX Runtime can't run one (operators that it lacks), the proof is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto
from onnx.backend.test.case.model import collect_testcases as collect_models
from onnx.backend.test.case.node import collect_testcases as collect_nodes
from onnx.backend.test.loader import load_model_tests

import graphcut
from graphcut import At, UsageError

SHARES = 8
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")  # of the suite's own


@pytest.fixture(scope="session")
def suite() -> list[tuple[str, ModelProto]]:
    return sorted(models(), key=lambda pair: pair[0])


def models() -> Iterator[tuple[str, ModelProto]]:
    for case in (*collect_nodes(None), *collect_models()):
        if case.model is not None:
            yield case.name, case.model
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            if case.model_dir:
                yield case.name, onnx.load(Path(case.model_dir, "model.onnx"))


@pytest.mark.parametrize("share", range(SHARES))
def test_each_model_is_cut_and_no_tensor_differs(
    share: int, suite: list[tuple[str, ModelProto]], tmp_path: Path
) -> None:
    outcomes = [cut_in_the_middle(proto, tmp_path) for _, proto in suite[share::SHARES]]
    wrong = [name for (name, _), outcome in zip(suite[share::SHARES], outcomes, strict=True) if outcome == "differs"]
    assert wrong == []
    assert outcomes.count("same") > len(outcomes) // 8  # most have one node, and some ONNX Runtime can't run


def cut_in_the_middle(proto: ModelProto, folder: Path) -> str:
    onnx.save(proto, folder / "model.onnx")
    model = graphcut.load(folder / "model.onnx")
    flow = model.graph.flow
    if len(flow) < 2:
        return "too small"
    middle = model.graph.nodes[flow[len(flow) // 2 - 1]].name
    try:
        plan = graphcut.plan(graphcut.analyze(model), At((middle,)))
    except UsageError:
        return "nothing after"
    cascade = graphcut.split(model, plan, folder / "model.parts", force=True)
    report = graphcut.verify(model, cascade)
    return "differs" if not report else "same" if report.runs else "proved"
