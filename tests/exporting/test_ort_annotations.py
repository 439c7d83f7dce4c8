"""One model that says which part each node is in: it has the bits of the model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphcut
from graphcut import Across, Cascade, Cluster, Device, Into, Limits
from graphcut.inputs.generating import generate_inputs

from conftest import FIXTURES

export_ort_annotations = partial(graphcut.export, to="ort-annotations")

MODELS = ["unet.onnx", "tiny-llama-int4/model.onnx"]


def cascade_of(path: Path, parts: int, folder: Path) -> Cascade:
    plan = graphcut.plan(path, Into(parts), limits=Limits(inside_layers=True))
    return graphcut.split(graphcut.load(path), plan, folder / "parts")


def outputs(path: Path, feeds: Any, entries: dict[str, str]) -> list[Any]:  # noqa: ANN401
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return list(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


def assert_same_bits(original: Path, exported: Path, entries: dict[str, str]) -> None:
    feeds = generate_inputs(graphcut.load(original), seed=4)
    for expected, found in zip(outputs(original, feeds, {}), outputs(exported, feeds, entries), strict=True):
        np.testing.assert_array_equal(found, expected)


def homes(cascade: Cascade) -> dict[str, list[str]]:
    """The part of each node of the model, by its first output: the first part that has it."""
    found: dict[str, str] = {}
    for part in cascade.parts:
        for node in nodes_of(cascade.file(part)):
            found.setdefault(first_output(node), part.file.removesuffix(".onnx"))
    return {output: [found[output]] for output in map(first_output, nodes_of(cascade.source))}


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def first_output(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output))


@pytest.mark.parametrize("name", MODELS)
def test_annotations_name_the_part_of_each_node(name: str, tmp_path: Path) -> None:
    cascade = cascade_of(FIXTURES / name, 3, tmp_path)
    export_ort_annotations(cascade, tmp_path / "out")
    path = tmp_path / "out" / "model.onnx"
    marks = {
        first_output(node): [entry.value for entry in node.metadata_props if entry.key == "layer_ann"]
        for node in nodes_of(path)
    }
    assert marks == homes(cascade)
    options = json.loads((tmp_path / "out" / "session_options.json").read_bytes())
    assert options == {"session.layer_assignment_settings": "cpu(=part-0, =part-1, =part-2)"}
    assert_same_bits(FIXTURES / name, path, options)


def test_an_annotation_that_a_node_has_is_replaced(chain: Path, tmp_path: Path) -> None:
    proto = onnx.load(chain)
    proto.graph.node[0].metadata_props.add(key="layer_ann", value="another")
    onnx.save(proto, chain)
    export_ort_annotations(graphcut.split(chain, Into(1), tmp_path / "parts"), tmp_path / "out")
    (node, *_) = nodes_of(tmp_path / "out" / "model.onnx")
    assert [(entry.key, entry.value) for entry in node.metadata_props] == [("layer_ann", "part-0")]


def test_parts_are_assigned_to_the_kinds_of_their_devices(chain: Path, tmp_path: Path) -> None:
    gpu, npu = (Device(name=name, provider=f"{name}ExecutionProvider") for name in ("CUDA", "Some"))
    devices = (gpu, Device(name="cpu"), npu)
    made = replace(graphcut.plan(chain, Into(3)), goal=Across(Cluster(devices=devices)), devices=devices)
    export_ort_annotations(graphcut.split(graphcut.load(chain), made, tmp_path / "parts"), tmp_path / "out")
    options = json.loads((tmp_path / "out" / "session_options.json").read_bytes())
    assert options["session.layer_assignment_settings"] == "cuda(=part-0); cpu(=part-1); accelerator(=part-2)"
