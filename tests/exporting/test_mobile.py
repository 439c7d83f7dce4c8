"""Parts in ORT format: ONNX Runtime runs them, needs the operators that are listed, and gives what the parts give."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import graphcut
from graphcut import Cascade, Into, Limits, Runner
from graphcut.exporting import ExportFormat
from graphcut.inputs.generating import generate_inputs

from conftest import FIXTURES, floats, model_of

export_mobile = partial(graphcut.export, to="mobile")


def cascade_of(path: Path, parts: int, folder: Path) -> Cascade:
    plan = graphcut.plan(path, Into(parts), limits=Limits(inside_layers=True))
    return graphcut.split(graphcut.load(path), plan, folder / "parts")


@pytest.mark.parametrize("name", ["clip.onnx", "lstm.onnx", "tiny-llama-int4/model.onnx"])
def test_parts_in_ort_format_give_what_the_parts_give(name: str, tmp_path: Path) -> None:
    """With the same optimizations, which the converter has made once for all."""
    cascade = cascade_of(FIXTURES / name, 3, tmp_path)
    export_mobile(cascade, tmp_path / "mobile")
    exported = graphcut.open_cascade(tmp_path / "mobile")
    assert [part.file for part in exported.parts] == ["part-0.ort", "part-1.ort", "part-2.ort"]
    assert all((exported.root / part.file).read_bytes()[4:8] == b"ORTM" for part in exported.parts)
    feeds = generate_inputs(graphcut.load(FIXTURES / name), seed=2)
    with Runner(cascade) as runner, Runner(exported) as mobile:
        expected, found = runner.run(feeds), mobile.run(feeds)
    assert expected.keys() == found.keys()
    for output, value in expected.items():
        np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-6, err_msg=output)


def test_an_exported_folder_knows_the_model_that_was_cut(chain: Path, tmp_path: Path) -> None:
    cascade = cascade_of(chain, 2, tmp_path)
    formats: tuple[ExportFormat, ...] = ("mobile", "js", "cpp", "triton")
    for to in formats:
        export = tmp_path / "deep" / "er" / to
        export.parent.mkdir(parents=True, exist_ok=True)
        graphcut.export(cascade, export, to=to)
        manifest = next(export.glob("**/cascade.json"))
        exported = graphcut.open_cascade(manifest, check_files=to != "triton")
        assert exported.source == chain
        moved = msgspec.structs.replace(exported.manifest.source, file=cascade.manifest.source.file)
        assert moved == cascade.manifest.source


def test_what_a_phone_needs_is_listed(chain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mobile"
    files = export_mobile(cascade_of(chain, 2, tmp_path), folder)
    assert [file.name for file in files] == [
        "cascade.json",
        "part-0.ort",
        "part-1.ort",
        "required_operators_and_types.config",
        "usability.txt",
    ]
    assert (folder / "required_operators_and_types.config").read_text().splitlines() == [
        'ai.onnx;13;Exp{"inputs": {"0": ["float"]}},Neg{"inputs": {"0": ["float"]}}',
        'ai.onnx;14;Add{"inputs": {"0": ["float"]}},Relu{"inputs": {"0": ["float"]}}',
    ]
    verdicts = (folder / "usability.txt").read_text()
    assert verdicts.splitlines()[:3] == ["part-0.ort: try NNAPI and CoreML", "part-1.ort: try NNAPI and CoreML", ""]
    assert "Checking part-0.onnx for usability with ORT Mobile." in verdicts
    assert str(tmp_path) not in verdicts


def test_what_the_checker_does_not_recommend_or_check_is_named(tmp_path: Path) -> None:
    """It knows no Sinh, and refuses a part of several nodes that has no inner tensor, as the first is."""
    edges = (["x"], ["a"]), (["a"], ["b"]), (["b"], ["y"])
    nodes = [helper.make_node("Sinh", reads, writes, name=writes[0]) for reads, writes in edges]
    proto = model_of(nodes, [floats("x", 1, 4)], [floats("y", 1, 4), floats("a", 1, 4)])
    onnx.save(proto, tmp_path / "m.onnx")
    cascade = graphcut.split(graphcut.load(tmp_path / "m.onnx"), graphcut.At(("b",)), tmp_path / "parts")
    export_mobile(cascade, tmp_path / "mobile")
    first, last = (tmp_path / "mobile" / "usability.txt").read_text().splitlines()[:2]
    assert first.startswith("part-0.ort: not checked: ")
    assert last == "part-1.ort: use the CPU"


def test_the_loop_over_the_manifest_runs_the_parts(chain: Path, tmp_path: Path) -> None:
    """What the Kotlin and Swift loops of the documentation do, in Python."""
    export_mobile(cascade_of(chain, 3, tmp_path), tmp_path / "mobile")
    manifest = json.loads((tmp_path / "mobile" / "cascade.json").read_bytes())
    values = {"x": np.array([[-1, 0, 1, 2]], np.float32)}
    for part in manifest["parts"]:
        session = ort.InferenceSession(tmp_path / "mobile" / part["file"])
        outputs = session.run(part["writes"], {name: values[name] for name in part["reads"]})
        values |= dict(zip(part["writes"], outputs, strict=True))
    np.testing.assert_allclose(values["y"], [[-1, -1, 1 - np.e, 2 - np.e**2]], rtol=1e-6)
