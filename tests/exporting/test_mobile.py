"""Parts in ORT format: ONNX Runtime runs them, needs the operators that are listed, and gives what the parts give."""

from __future__ import annotations

import errno
import json
import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

import graphcut
from graphcut import Cascade, CascadeError, GraphcutError, Into, Limits, Runner, UsageError
from graphcut.exporting import ExportFormat
from graphcut.inputs.generating import generate_inputs

from conftest import FIXTURES
from tampering import edit_manifest

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
        "written.json",
    ]
    assert (folder / "required_operators_and_types.config").read_text().splitlines() == [
        'ai.onnx;13;Exp{"inputs": {"0": ["float"]}},Neg{"inputs": {"0": ["float"]}}',
        'ai.onnx;14;Add{"inputs": {"0": ["float"]}},Relu{"inputs": {"0": ["float"]}}',
    ]


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


def test_an_export_is_verified_by_its_files_and_by_running_it(chain: Path, tmp_path: Path) -> None:
    """What is in ONNX Runtime's own format has no nodes that could be compared."""
    cascade = cascade_of(chain, 2, tmp_path)
    export_mobile(cascade, tmp_path / "mobile")
    files = graphcut.verify_files(tmp_path / "mobile")
    assert (files.same, files.files, files.converted) == (True, 2, ("part-0.ort", "part-1.ort"))
    report = graphcut.verify(chain, tmp_path / "mobile")
    assert (report.same, len(report.runs), report.proof.holds) == (True, 2, False)
    assert report.structure_summary == "the nodes of 2 parts in ONNX Runtime's own format can't be compared"
    assert str(report).startswith("the cascade matches the model in these runs\n")
    with pytest.raises(CascadeError, match="the nodes of 2 parts in ONNX Runtime's own format can't be compared"):
        graphcut.verify(chain, tmp_path / "mobile", structural_only=True)
    with pytest.raises(UsageError, match=r"triton takes ONNX models, and part-0\.ort has no nodes of ONNX"):
        graphcut.export(tmp_path / "mobile", tmp_path / "triton", to="triton")
    manifest = tmp_path / "mobile" / "cascade.json"
    shutil.copy(tmp_path / "mobile" / "part-1.ort", tmp_path / "mobile" / "part-0.ort")
    edit_manifest(manifest, lambda record: record["parts"][0].update(sha256=record["parts"][1]["sha256"]))
    assert "part-0.ort: it reads ['" in graphcut.verify_files(manifest).objections[0]
    assert not graphcut.verify(chain, manifest)
    (tmp_path / "mobile" / "part-0.ort").write_bytes(b"no model")
    objections = graphcut.verify_files(manifest).objections
    assert objections[0] == "part-0.ort: part-0.ort is not the file that was written: its digest differs"
    assert objections[1].startswith("part-0.ort: ONNX Runtime can't load it: ")


def test_an_export_of_some_parts_knows_that_others_are_elsewhere(chain: Path, tmp_path: Path) -> None:
    graphcut.fetch(cascade_of(chain, 2, tmp_path).root, tmp_path / "first", parts=[0])
    formats: tuple[ExportFormat, ...] = ("mobile", "js", "cpp")
    for to in formats:
        graphcut.export(tmp_path / "first", tmp_path / to, to=to)
        found = graphcut.verify_files(tmp_path / to)
        assert (found.same, found.elsewhere) == (True, ("part-1.onnx",))
        for whole in (graphcut.open_cascade, partial(graphcut.verify, chain)):
            with pytest.raises(CascadeError, match=r"is without part-1\.onnx"):
                whole(tmp_path / to)
    with pytest.raises(UsageError, match="ort-annotations takes all parts"):
        graphcut.export(tmp_path / "first", tmp_path / "one", to="ort-annotations")


def test_a_full_disk_is_not_called_a_conversion_that_failed(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cascade = cascade_of(chain, 2, tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    own = RuntimeError("SaveToOrtFormat Failed to save ORT format model to file: part-0.ort")
    large = RuntimeError("EncodeError: the message\nis too large")
    for error, said, hint in (
        (full, "No space left on device", "nothing was changed"),
        (own, "so the disk is full or can't be written", "nothing was changed"),
        (large, r"can't convert .*part-0\.onnx: EncodeError: the message is too large$", "ends at 2 GiB"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("onnxruntime.tools.convert_onnx_models_to_ort.convert_onnx_models_to_ort", fail)
        with pytest.raises(GraphcutError, match=said) as caught:
            export_mobile(cascade, tmp_path / "mobile")
        assert hint in caught.value.hint
