"""What `compare` and `analyze --rules` found, as layers over the cut profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphcut import At, analyze, compare_models, device_support, load, plan, read_rules, weigh
from graphcut.core.errors import RecordError, UsageError
from graphcut.drawing.json_records import dumps
from graphcut.drawing.profile_layers import with_layers
from graphcut.drawing.scene_builders import scene_of_analysis, scene_of_plan
from graphcut.drawing.verification_records import verification_record

from browser import Show
from conftest import model_of
from scenes_by_hand import scene as by_hand


def chain(folder: Path, name: str, scale: float = 1.0) -> Path:
    """Three products with weights, of which the second is scaled, and an activation at the end."""
    weights = [np.full((8, 8), 0.1 + 0.05 * i, np.float32) for i in range(3)]
    weights[1] *= np.float32(scale)
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], f"/m/{i}/MatMul") for i in range(3)]
    nodes.append(helper.make_node("Softplus", ["t3"], ["y"], "/m/Softplus"))
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, [2, 8]) for one in ("t0", "y"))
    path = folder / name
    held = [numpy_helper.from_array(one, f"w{i}") for i, one in enumerate(weights)]
    path.write_bytes(model_of(nodes, [x], [y], held).SerializeToString())
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A model, what comparing it with one that is scaled found, and what a device can't run of it."""
    first, second = chain(tmp_path, "first.onnx"), chain(tmp_path, "second.onnx", 1.01)
    found = compare_models(first, second)
    rules = tmp_path / "npu.json"
    rules.write_text(json.dumps({"name": "npu", "operators": [{"ops": ["MatMul"]}]}))
    support = device_support(weigh(load(first)), read_rules(rules))
    texts = {"errors.json": dumps(verification_record(found)), "npu-found.json": dumps(support)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in ("first.onnx", "second.onnx", *texts)}


def test_a_layer_has_for_each_node_the_error_that_compare_found_and_what_a_device_cannot_run(
    show: Show, files: dict[str, Path]
) -> None:
    analysis = analyze(load(files["first.onnx"]))
    shown = with_layers(scene_of_analysis(analysis), [files["errors.json"], files["npu-found.json"]])
    errors, refused = shown.layers
    found = {one.node: one.db for one in compare_models(files["first.onnx"], files["second.onnx"]).errors}
    assert shown.profile is not None
    nodes = shown.profile.nodes
    assert errors.heights == tuple(1 - min(max(found[node], 0), 140) / 140 for node in nodes)
    assert errors.heights[0] == 0 < errors.heights[1]  # before the scaled weight all is equal
    assert errors.words[:2] == ("t1: no error", f"t2: {found[nodes[1]]:.1f} dB")
    assert refused.heights == (0, 0, 0, 1)
    assert refused.words[3].startswith("can't run Softplus: ")
    page = show(with_layers(scene_of_plan(plan(analysis, At((nodes[1],))), analysis), list(files.values())[2:]))
    page.evaluate(f"location.hash = '#node={nodes[1]}'")
    page.wait_for("document.querySelector('#cut')")
    assert f"t2: {found[nodes[1]]:.1f} dB" in page.evaluate("document.querySelector('#panel').textContent")
    said = page.evaluate("document.querySelector('#profile .plot').getAttribute('aria-valuetext')")
    assert said.endswith(f"; t2: {found[nodes[1]]:.1f} dB")
    # The line of the device is at the top over the last node alone.
    line = page.evaluate("document.querySelectorAll('#profile .layer')[1].getAttribute('d')")
    points = [tuple(map(float, point.split(","))) for point in line.removeprefix("M").split("L")]
    columns = len(points)
    assert [x for x, y in points if y == 0] == [*range(columns * 3 // 4, columns)]
    assert {y for _, y in points} == {0, 1}


def test_tensors_without_a_ratio_are_told_from_those_without_an_error(files: dict[str, Path]) -> None:
    """Both are null in JSON, which has no infinity."""
    document = json.loads(files["errors.json"].read_text())
    assert [one["is_equal"] for one in document["errors"]] == [True, False, False, False]
    document["errors"][3]["db"] = None
    files["errors.json"].write_text(json.dumps(document))
    (layer,) = with_layers(scene_of_analysis(analyze(load(files["first.onnx"]))), [files["errors.json"]]).layers
    assert (layer.heights[0], layer.heights[3]) == (0, 1)
    assert "no ratio" in layer.words[3]


def test_what_is_no_such_result_or_of_another_model_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    shown = scene_of_analysis(analyze(load(files["first.onnx"])))
    (tmp_path / "plan.json").write_text('{"format": "graphcut.plan/3"}')
    with pytest.raises(RecordError, match=r"graphcut\.plan/3"):
        with_layers(shown, [tmp_path / "plan.json"])
    text = files["errors.json"].read_text().replace("/m/", "/other/")
    files["errors.json"].write_text(text)
    with pytest.raises(UsageError, match=r"no node of .*errors\.json is in first\.onnx"):
        with_layers(shown, [files["errors.json"]])
    with pytest.raises(UsageError, match="has no cut profile"):
        with_layers(by_hand([]), [files["npu-found.json"]])
