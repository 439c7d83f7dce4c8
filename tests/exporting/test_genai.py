"""Pipelines for ONNX Runtime GenAI, run by GenAI itself: the tokens are those of the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphcut
from graphcut import Across, At, Cluster, Device, Into, Limits, Plan, UsageError

from cases import each
from conftest import FIXTURES

export_genai = partial(graphcut.export, to="genai")

engine = pytest.importorskip("onnxruntime_genai", reason="needs onnxruntime-genai", exc_type=ImportError)
PROMPT = (1, 5, 9, 33, 7)
TOKENS = 24
SUM = "/model/layers.2/input_layernorm/output_3"  #: what crosses if the model is cut into two.


def tokens(folder: Path) -> Sequence[int]:
    """What GenAI appends to the prompt, greedily."""
    model = engine.Model(str(folder))
    parameters = engine.GeneratorParams(model)
    parameters.set_search_options(max_length=len(PROMPT) + TOKENS, do_sample=False)
    generator = engine.Generator(model, parameters)
    generator.append_tokens(np.array([PROMPT], dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def exported(path: Path, plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Write the pipeline of a model into `folder/out`; its stages."""
    export_genai(graphcut.split(graphcut.load(path), plan, folder / "parts"), folder / "out")
    pipeline = json.loads((folder / "out" / "genai_config.json").read_bytes())["model"]["decoder"]["pipeline"]
    return [stage for named in pipeline for stage in named.values()]


@each("parts", [2, 3, 6])
@each("name", ["tiny-llama-fp32", "tiny-llama-int4"])
def test_genai_gives_the_tokens_of_the_model(name: str, parts: int, tmp_path: Path) -> None:
    path = FIXTURES / name / "model.onnx"
    stages = exported(path, graphcut.plan(path, Into(parts), limits=Limits(inside_layers=True)), tmp_path)
    assert [stage["filename"] for stage in stages] == [f"part-{i}.onnx" for i in range(parts)]
    assert tokens(tmp_path / "out") == tokens(path.parent)


def test_a_part_that_only_scores_tokens_is_told_to_genai(tmp_path: Path) -> None:
    path = FIXTURES / "tiny-llama-fp32" / "model.onnx"
    stages = exported(path, graphcut.plan(path, At((SUM, "/model/layers.4/final_norm_layernorm/output_0"))), tmp_path)
    assert [stage.get("is_lm_head", False) for stage in stages] == [False, False, True]
    assert tokens(tmp_path / "out") == tokens(path.parent)


def test_stages_have_the_session_options_of_their_devices(tmp_path: Path) -> None:
    path = FIXTURES / "tiny-llama-fp32" / "model.onnx"
    pair = (
        Device(name="a", threads=1, session_config=("session.disable_prepacking=1",)),
        Device(name="b", provider="XnnpackExecutionProvider", provider_options=("intra_op_num_threads=2",)),
    )
    made = replace(graphcut.plan(path, Into(2)), goal=Across(Cluster(devices=pair)), devices=pair)
    options = [stage["session_options"] for stage in exported(path, made, tmp_path)]
    every = {"log_id": "onnxruntime-genai"}
    assert options == [
        {**every, "intra_op_num_threads": 1, "session.disable_prepacking": "1", "provider_options": []},
        {**every, "provider_options": [{"Xnnpack": {"intra_op_num_threads": "2"}}]},
    ]


def test_genai_takes_threads_and_session_configuration(tmp_path: Path) -> None:
    path = FIXTURES / "tiny-llama-fp32" / "model.onnx"
    device = Device(name="a", threads=1, session_config=("session.disable_prepacking=1",))
    exported(
        path,
        replace(graphcut.plan(path, Into(2)), goal=Across(Cluster(devices=(device,))), devices=(device,) * 2),
        tmp_path,
    )
    assert tokens(tmp_path / "out") == tokens(path.parent)


def test_a_tensor_that_is_called_like_an_input_of_genai_gets_another_name(tmp_path: Path) -> None:
    """GenAI fails if a stage writes `position_ids`: it takes the type of that tensor for the type of its own input."""
    source, path = FIXTURES / "tiny-llama-fp32", tmp_path / "model" / "model.onnx"
    proto = onnx.load(source / "model.onnx")
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = ["position_ids" if name == SUM else name for name in names]
    path.parent.mkdir()
    onnx.save(proto, path)
    shutil.copy(source / "genai_config.json", path.parent)
    first, last = exported(path, graphcut.plan(path, Into(2)), tmp_path)
    assert "position_ids_of_the_cascade" in first["outputs"]
    assert "position_ids_of_the_cascade" in last["inputs"]
    export_genai(tmp_path / "parts", tmp_path / "out", force=True)
    assert tokens(tmp_path / "out") == tokens(source)


def test_ranks_are_refused(tmp_path: Path) -> None:
    ranked = graphcut.split_by_rank(FIXTURES / "tiny-llama-int4" / "model.onnx", tmp_path / "ranks", ranks=2)
    with pytest.raises(UsageError, match="has ranks; GenAI has one KV cache for a layer"):
        export_genai(ranked, tmp_path / "out")


@each(
    ("content", "message"),
    [
        ("{}", "describes no decoder of ONNX Runtime GenAI"),
        ("[", "describes no decoder of ONNX Runtime GenAI"),
        (
            '{"model": {"decoder": {"inputs": {"input_ids": "ids"}, "outputs": {}}}}',
            "does not say what the input 'input_ids'",
        ),
        ('{"model": {"decoder": {"inputs": {}, "outputs": {}, "pipeline": []}}}', "describes a pipeline already"),
    ],
)
def test_a_configuration_of_another_model_is_refused(content: str, message: str, tmp_path: Path) -> None:
    cascade = graphcut.split(FIXTURES / "tiny-llama-int4" / "model.onnx", Into(2), tmp_path / "parts")
    (tmp_path / "genai_config.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        export_genai(cascade, tmp_path / "out", model=tmp_path / "model.onnx")
    assert not (tmp_path / "out").exists()
