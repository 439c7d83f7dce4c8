"""Each hazard is a model that ONNX Runtime runs, unless the hazard is that it does not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from . import HAZARDS
from cases import each

each_hazard = each("name", HAZARDS)


@each_hazard
def test_it_runs_in_onnxruntime(name: str, tmp_path: Path) -> None:
    hazard = HAZARDS[name]()
    path = hazard.write(tmp_path)
    if hazard.ort_refuses:
        with pytest.raises(Exception, match=hazard.ort_refuses):
            _session(path)
        return
    if not hazard.runs:
        pytest.skip(f"ONNX Runtime runs it from version {hazard.since} on")
    for feeds in hazard.ways_to_feed():
        answers = _session(path).run(None, feeds)
        assert len(answers) == len(hazard.model.graph.output)


@each_hazard
def test_the_checker_passes_it(name: str, tmp_path: Path) -> None:
    hazard = HAZARDS[name]()
    path = hazard.write(tmp_path)
    if hazard.checker_refuses:
        with pytest.raises(onnx.checker.ValidationError, match=hazard.checker_refuses):
            onnx.checker.check_model(path)
        return
    onnx.checker.check_model(path)


@each_hazard
def test_it_is_built_the_same_each_time(name: str) -> None:
    first, second = HAZARDS[name](), HAZARDS[name]()
    assert first.model == second.model
    assert first.files == second.files
    np.testing.assert_equal(first.feeds, second.feeds)


@each_hazard
def test_it_is_cut_at_tensors_that_nodes_write(name: str) -> None:
    hazard = HAZARDS[name]()
    written = {tensor for node in hazard.model.graph.node for tensor in node.output}
    assert {*hazard.cut, *hazard.boundary_hint} <= written
    assert set(hazard.assign or {}) <= written


@each_hazard
def test_the_unsplit_model_is_not_accepted_as_its_parts(name: str) -> None:
    hazard = HAZARDS[name]()
    if hazard.asserts:
        assert hazard.objections([hazard.model] * (len(hazard.cut) + 1)) != []


def test_every_hazard_is_listed_once() -> None:
    sources = [path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py")]
    built = [name for text in sources for name in re.findall(r"^def ([a-z]\w*)\(\) -> Hazard:", text, re.MULTILINE)]
    assert sorted(built) == sorted(HAZARDS)


def test_feeds_with_a_default_can_be_left_out() -> None:
    fed = HAZARDS["overridable_default_input"]().ways_to_feed()
    assert [sorted(feeds) for feeds in fed] == [["gain", "x"], ["x"]]


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
