"""Weights in many data files: models that have them, and parts that get them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import set_external_data

import graphcut
from graphcut import At, Into, Model, UsageError, demos

from conftest import LAYER_ENDS

NAMES = ("w-00001-of-00003.data", "w-00002-of-00003.data", "below/model-00003-of-00003.safetensors")
LARGE = 1024


@pytest.fixture
def in_three_files(tmp_path: Path) -> Model:
    """A decoder whose weights lie in three files, dealt out one by one, at offsets that are aligned to nothing."""
    demos.write("llm", tmp_path / "whole.onnx", layers=3, hidden=32)
    proto = onnx.load(tmp_path / "whole.onnx")
    (tmp_path / "below").mkdir()
    files = dict.fromkeys(NAMES, b"header!")
    large = [tensor for tensor in proto.graph.initializer if len(tensor.raw_data) >= LARGE]
    for i, tensor in enumerate(large):
        name = NAMES[i % len(NAMES)]
        raw, files[name] = tensor.raw_data, files[name] + tensor.raw_data
        set_external_data(tensor, name, offset=len(files[name]) - len(raw), length=len(raw))
        tensor.ClearField("raw_data")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    return graphcut.load(tmp_path / "net.onnx")


def test_a_model_with_its_weights_in_many_files_is_shared_copied_verified_and_merged(in_three_files: Model) -> None:
    home = in_three_files.path.parent
    assert set(in_three_files.data) == set(NAMES)
    shared = graphcut.split(in_three_files, At(LAYER_ENDS), weights="share", digest=True)
    copied = graphcut.split(in_three_files, At(LAYER_ENDS), home / "copied")
    assert all(set(part.data) == set(NAMES) for part in shared.parts)
    for cascade in (shared, copied):
        assert graphcut.verify(home / "whole.onnx", cascade).is_identical
        assert graphcut.verify_files(cascade)
        merged = graphcut.merge(cascade, home / "merged.onnx", force=True)
        assert graphcut.verify(merged, cascade, structural_only=True)


def test_copied_weights_are_divided_among_files_of_at_most_a_size(in_three_files: Model, tmp_path: Path) -> None:
    plain = graphcut.split(in_three_files, Into(2), tmp_path / "plain")
    most = 10_000
    cascade = graphcut.split(in_three_files, Into(2), tmp_path / "parts", max_shard_bytes=most)
    assert graphcut.verify(in_three_files, cascade).is_identical
    assert graphcut.verify_files(cascade)
    for part, whole in zip(cascade.parts, plain.parts, strict=True):
        assert list(part.data) == [f"{part.file}.data-{i + 1:05}-of-{len(part.data):05}" for i in range(len(part.data))]
        assert len(part.data) > 1
        index = json.loads((cascade.root / f"{part.file}.data.index.json").read_text())
        assert index["metadata"] == {"total_size": sum(file.bytes for file in whole.data.values())}
        assert set(index["weight_map"].values()) == set(part.data)
        loaded = graphcut.load(cascade.file(part))
        for name, file in index["weight_map"].items():
            assert loaded.range_of(tensor(loaded, name)).file == cascade.root / file
        for name, data in part.data.items():
            held = [key for key, file in index["weight_map"].items() if file == name]
            assert data.bytes <= most or len(held) == 1


def tensor(model: Model, name: str) -> onnx.TensorProto:
    (found,) = (tensor for tensor in model.proto.graph.initializer if tensor.name == name)
    return found


def test_it_replaces_all_files_of_an_older_cascade(in_three_files: Model, tmp_path: Path) -> None:
    graphcut.split(in_three_files, Into(2), tmp_path / "parts", max_shard_bytes=10_000)
    cascade = graphcut.split(in_three_files, Into(2), tmp_path / "parts", force=True, max_shard_bytes=1 << 30)
    names = [name for part in cascade.parts for name in (part.file, f"{part.file}.data")]
    assert {file.name for file in cascade.root.iterdir()} == {*names, "cascade.json"}


def test_a_foreign_file_with_the_name_of_an_index_is_not_replaced(in_three_files: Model, tmp_path: Path) -> None:
    root = graphcut.split(in_three_files, Into(2), tmp_path / "parts", max_shard_bytes=10_000).root
    (root / "part-0.onnx.data.index.json").write_text("{}")
    with pytest.raises(UsageError, match=r"'part-0\.onnx\.data\.index\.json', which belongs to no cascade there"):
        graphcut.split(in_three_files, Into(2), root, force=True)


def test_a_weight_larger_than_that_has_a_file_of_its_own(in_three_files: Model, tmp_path: Path) -> None:
    cascade = graphcut.split(in_three_files, Into(1), tmp_path / "parts", max_shard_bytes=1)
    (part,) = cascade.parts
    assert len(part.data) == len([t for t in in_three_files.proto.graph.initializer if t.external_data])
    assert graphcut.verify(in_three_files, cascade).is_identical


def test_only_copied_weights_can_be_divided(in_three_files: Model) -> None:
    with pytest.raises(UsageError, match="copied"):
        graphcut.split(in_three_files, Into(2), weights="share", max_shard_bytes=10_000)
