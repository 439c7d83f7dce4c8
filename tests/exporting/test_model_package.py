"""A model package is opened by ONNX Runtime's own API, and its components give the bits of the cascade."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import graphcut
from graphcut import Across, Cascade, Cluster, Device, Into, UsageError, demos
from graphcut.inputs.generating import generate_inputs

from cases import each

pytestmark = pytest.mark.skipif(not hasattr(ort, "ModelPackageContext"), reason="model packages need ONNX Runtime 1.32")
SMALL: Mapping[str, Any] = {"hidden": 16, "layers": 3, "heads": 2, "kv_heads": 1, "vocab": 32}
export_package = partial(graphcut.export, to="model-package")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llm") / "llm.onnx"
    demos.write("llm", path, external=True, **SMALL)
    return path


def cascade_of(llm: Path, kind: str, folder: Path) -> Cascade:
    """In parts with weights of their own, with those of their model, or of two ranks."""
    match kind:
        case "share":
            return graphcut.split(llm, Into(3), llm.parent, weights="share", force=True)
        case "ranks":
            return graphcut.split_by_rank(llm, folder / "ranks", ranks=2)
        case _:
            return graphcut.split(llm, Into(3), folder / "parts")


def session_of(context: Any, component: str) -> ort.InferenceSession:  # noqa: ANN401 - ONNX Runtime has no types
    return context.select_component(component, ort.ModelPackageOptions(ort.SessionOptions())).create_session()


def outputs_of(package: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What the components compute, by the package alone."""
    context = ort.ModelPackageContext(str(package))
    pipeline = json.loads((package / "manifest.json").read_text("utf-8"))["additional_metadata"]["graphcut"]
    assert sorted(context.get_component_names()) == sorted(step["component"] for step in pipeline["steps"])
    tensors = dict(feeds)
    for step in pipeline["steps"]:
        session = session_of(context, step["component"])
        assert [one.name for one in session.get_inputs()] == step["reads"]
        fed = {name: tensors[name] for name in step["reads"] if name in tensors}
        tensors |= zip(step["writes"], session.run(step["writes"], fed), strict=True)
    return {name: tensors[name] for name in pipeline["writes"]}


@each("kind", ["copy", "share", "ranks"])
def test_components_give_the_bits_of_the_cascade(llm: Path, tmp_path: Path, kind: str) -> None:
    cascade = cascade_of(llm, kind, tmp_path)
    export_package(cascade, tmp_path / "package")
    feeds = generate_inputs(graphcut.load(llm), seed=3)
    expected = graphcut.run(cascade, feeds)
    found = outputs_of(tmp_path / "package", feeds)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@each("kind", ["share", "ranks"])
def test_data_files_of_several_parts_are_assets_under_onnx_runtimes_own_digest(
    llm: Path, tmp_path: Path, kind: str
) -> None:
    cascade = cascade_of(llm, kind, tmp_path)
    export_package(cascade, tmp_path / "package")
    assets = sorted((tmp_path / "package" / "shared_assets").iterdir())
    assert [ort.ModelPackage.compute_directory_hash(str(one)).replace(":", "-") for one in assets] == [
        one.name for one in assets
    ]
    files = {name for part in cascade.parts for name in part.data}
    assert sorted(file.name for one in assets for file in one.iterdir()) == sorted(files)


def test_a_part_has_a_variant_for_its_device_and_one_for_the_cpu(llm: Path, tmp_path: Path) -> None:
    settings: Any = {"provider": "CUDAExecutionProvider", "provider_options": ("device_id=1",)}
    devices = (Device(name="gpu", **settings), Device(name="box", threads=3))
    plan = graphcut.plan(graphcut.analyze(llm), Across(Cluster(devices=devices)))
    cascade = graphcut.split(llm, plan, tmp_path / "parts")
    export_package(cascade, tmp_path / "package")
    context = ort.ModelPackageContext(str(tmp_path / "package"))
    hosts = {part.file.removesuffix(".onnx"): part.device for part in cascade.parts}
    names = {"gpu": ["CUDAExecutionProvider", "CPUExecutionProvider"], "box": ["CPUExecutionProvider"]}
    for component, device in hosts.items():
        variants = context.get_variant_names(component)
        assert sorted(context.get_variant_ep_name(component, one) for one in variants) == sorted(names[str(device)])
        threads = session_of(context, component).get_session_options().intra_op_num_threads
        assert threads == (3 if device == "box" else 0)
    manifest = json.loads((tmp_path / "package" / "manifest.json").read_text("utf-8"))
    gpu = [one["variants"]["cuda"] for one in manifest["components"].values() if "cuda" in one["variants"]]
    assert {json.dumps(one["executor_info"]["ort"]["provider_options"]) for one in gpu} == {'{"device_id": "1"}'}


def test_options_that_a_package_can_not_hold_are_refused(llm: Path, tmp_path: Path) -> None:
    cluster = Cluster(devices=(Device(name="box", provider_options=("use_arena=0",)),))
    plan = graphcut.plan(graphcut.analyze(llm), Across(cluster))
    cascade = graphcut.split(llm, plan, tmp_path / "parts")
    with pytest.raises(UsageError, match=r"part-0.onnx \(box\) has options for CPUExecutionProvider"):
        export_package(cascade, tmp_path / "package")


def test_the_tokenizer_is_an_asset_that_the_package_names(llm: Path, tmp_path: Path) -> None:
    (llm.parent / "tokenizer.json").write_text("{}")
    cascade = graphcut.split(llm, Into(2), tmp_path / "parts")
    (llm.parent / "tokenizer.json").unlink()
    export_package(cascade, tmp_path / "package")
    package = ort.ModelPackage.open(str(tmp_path / "package"))
    text = json.loads(package.get_info()["additional_metadata_json"])["graphcut"]["text"]
    assert Path(package.resolve_string_ref(f"{text}/tokenizer.json")).read_text() == "{}"


def test_an_older_package_is_replaced_as_a_whole(llm: Path, tmp_path: Path) -> None:
    export_package(graphcut.split(llm, Into(3), tmp_path / "three"), tmp_path / "package")
    export_package(graphcut.split(llm, Into(2), tmp_path / "two"), tmp_path / "package", force=True)
    names = ort.ModelPackageContext(str(tmp_path / "package")).get_component_names()
    assert (sorted(names), (tmp_path / "package" / "part-2").exists()) == (["part-0", "part-1"], False)
