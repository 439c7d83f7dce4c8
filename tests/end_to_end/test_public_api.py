"""The public functions accept paths where they accept what is opened from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import graphcut
from graphcut import RunError, demos

from cases import each

DIMS = {"batch": 1, "seq": 4, "past": 0, "total": 4}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "unet.onnx"
    demos.write("unet", path)
    return path


@pytest.fixture(scope="module")
def parts(path: Path) -> str:
    folder = path.parent / "parts"
    graphcut.split(str(path), graphcut.Into(3), folder)
    return str(folder)


def test_a_path_and_a_goal_are_enough_to_split_and_verify(path: Path, parts: str) -> None:
    assert len(graphcut.open_cascade(parts).parts) == 3
    report = graphcut.verify(str(path), parts)
    assert report
    assert report.runs


def test_plans_and_parts_from_paths_are_those_from_opened_models(path: Path, parts: str, tmp_path: Path) -> None:
    analysis = graphcut.analyze(graphcut.load(path))
    plan = graphcut.plan(analysis, graphcut.Into(3))
    assert graphcut.analyze(path).cut_points == analysis.cut_points
    assert graphcut.plan(path, graphcut.Into(3)).parts == graphcut.plan(analysis.model, graphcut.Into(3)).parts
    assert plan.parts == graphcut.plan(str(path), graphcut.Into(3)).parts
    copied = graphcut.split(path, plan, tmp_path / "parts")
    assert copied.parts == graphcut.open_cascade(parts).parts


def test_a_cascade_runs_and_merges_by_its_path(path: Path, parts: str, tmp_path: Path) -> None:
    (name,) = graphcut.load(path).graph.reads
    shape = graphcut.load(path).tensors[name].shape or ()
    feeds = {name: np.ones([dim if isinstance(dim, int) else 1 for dim in shape], np.float32)}
    outputs = graphcut.run(parts, feeds)
    (streamed,) = graphcut.stream(parts, [feeds])
    with graphcut.Runner(parts) as runner:
        kept = runner.run(feeds)
    assert not isinstance(streamed, RunError)
    for output, value in outputs.items():
        assert np.array_equal(value, streamed[output])
        assert np.array_equal(value, kept[output])
    assert graphcut.merge(parts, tmp_path / "merged.onnx").graph == graphcut.load(path).graph


def test_opening_twice_opens_once(path: Path, parts: str) -> None:
    model, cascade = graphcut.load(path), graphcut.open_cascade(parts)
    analysis = graphcut.analyze(model)
    assert graphcut.load(model) is model
    assert graphcut.analyze(analysis) is analysis
    assert graphcut.open_cascade(cascade) is cascade


def test_an_opened_model_gets_other_dims(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    model = graphcut.load(tmp_path / "llm.onnx")
    bound = graphcut.load(model, dims=DIMS)
    assert (model.dims, bound.dims) == ({}, DIMS)
    assert bound.graph is model.graph
    assert bound.tensor_bytes == graphcut.load(tmp_path / "llm.onnx", dims=DIMS).tensor_bytes != model.tensor_bytes


def test_a_split_by_path_has_the_dims_of_its_plan(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    plan = graphcut.plan(graphcut.load(tmp_path / "llm.onnx", dims=DIMS), graphcut.Into(2))
    cascade = graphcut.split(tmp_path / "llm.onnx", plan, tmp_path / "parts")
    assert cascade.manifest.dims == DIMS
    assert graphcut.verify(tmp_path / "llm.onnx", cascade, structural_only=True)


@each(
    ("call", "message", "hint"),
    [
        (
            lambda: graphcut.load(cast(Any, 3)),
            "expected a Model, a path, an onnx.ModelProto or an onnx_graphsurgeon.Graph, got int",
            "pass the path of an .onnx file",
        ),
        (
            lambda: graphcut.analyze(cast(Any, None)),
            "expected a Model, a path, an onnx.ModelProto or an onnx_graphsurgeon.Graph, got NoneType",
            "pass the path of an .onnx file",
        ),
        (lambda: graphcut.open_cascade(cast(Any, [])), "expected a cascade or its path, got list", "pass the folder"),
        (lambda: graphcut.run(cast(Any, {}), {}), "expected a cascade or its path, got dict", "pass the folder"),
    ],
)
def test_another_type_is_a_type_error_with_a_hint(call: Callable[[], Any], message: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message
    (note,) = caught.value.__notes__
    assert note.startswith(f"hint: {hint}")
