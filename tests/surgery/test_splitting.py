"""Splitting and merging: what is written, where, and what is left alone on a bad day."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, GraphcutError, Into, Model, Part, SessionConfig, UsageError, demos
from graphcut.core import atomic_files
from graphcut.core.arguments import Storage
from graphcut.core.digests import DataFile, Digest, digest_of
from graphcut.costs import caches
from graphcut.drawing.scene_builders import scene_of_cascade, scene_of_split
from graphcut.loading.fingerprint import graph_digest
from graphcut.planning.plans import Plan
from graphcut.surgery import splitting
from graphcut.surgery.cutting import prepare
from graphcut.verifying.structural import prove

from cases import each
from conftest import floats, model_of
from tampering import edit_manifest

EXACT = SessionConfig(optimize="none")
Array = NDArray[Any]


def weight(name: str, *shape: int, seed: int = 1) -> TensorProto:
    """A weight of values that no other seed has."""
    values = np.random.default_rng(seed).random(shape, np.float32)
    return numpy_helper.from_array(values, name)


def products(*weights: str) -> ModelProto:
    """x [n, 16] times one weight of 1 KiB after the other: the nodes m0, m1, …, the tensors t0, t1, … and y."""
    tensors = ["x", *(f"t{i}" for i in range(len(weights) - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [tensors[i], name], [tensors[i + 1]], name=f"m{i}") for i, name in enumerate(weights)
    ]
    held = [weight(name, 16, 16, seed=i) for i, name in enumerate(dict.fromkeys(weights))]
    return model_of(nodes, [floats("x", "n", 16)], [floats("y", "n", 16)], held)


@pytest.fixture
def inline(tmp_path: Path) -> Path:
    """Three products, the weights inside the .onnx."""
    path = tmp_path / "net.onnx"
    onnx.save(products("w0", "w1", "w2"), path)
    return path


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """The same, the weights beside the .onnx."""
    path = tmp_path / "net.onnx"
    onnx.save(products("w0", "w1", "w2"), path, save_as_external_data=True, location="net.bin", size_threshold=0)
    return path


def planned(path: Path, *names: str) -> tuple[Model, Plan]:
    model = graphcut.load(path)
    return model, graphcut.plan(graphcut.analyze(model), At(names))


def cut(path: Path, *names: str, output: Path | None = None, weights: Storage = "copy", force: bool = False) -> Cascade:
    model, plan = planned(path, *names)
    return graphcut.split(model, plan, output, weights=weights, force=force)


def data_sizes(part: Part) -> dict[str, int]:
    return {name: file.bytes for name, file in part.data.items()}


def holdings(folder: Path) -> dict[str, bytes]:
    """Everything under a folder, by its path."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def answers(path: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime makes of the file as it lies there."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def assert_same(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, strict=True)


# The interface


def test_the_interface_of_the_cascade_is_that_of_the_model(tmp_path: Path) -> None:
    """An unused input, an input handed straight on, a weight given out, a tensor read twice, outputs out of order."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Mul", ["a", "a"], ["b"], name="square"),
        helper.make_node("Add", ["b", "w"], ["c"], name="add"),
        helper.make_node("Sub", ["c", "a"], ["d"], name="sub"),
    ]
    inputs = [floats("unused", 3), floats("x", 4), floats("straight", 2)]
    outputs = [floats("d", 4), floats("straight", 2), floats("w", 4), floats("a", 4)]
    onnx.save(model_of(nodes, inputs, outputs, [weight("w", 4)]), tmp_path / "m.onnx")
    feeds = {name: np.arange(size, dtype=np.float32) - 1 for name, size in (("unused", 3), ("x", 4), ("straight", 2))}
    for at in (("relu",), ("square",), ("add",), ("relu", "add")):
        cascade = cut(tmp_path / "m.onnx", *at, force=True)
        assert cascade.manifest.reads == ("unused", "x", "straight")
        assert cascade.manifest.writes == ("d", "straight", "w", "a")
        assert_same(graphcut.run(cascade, feeds, config=EXACT), answers(tmp_path / "m.onnx", feeds))


def test_a_tensor_needed_two_parts_later_is_written_once_and_read_by_each(inline: Path) -> None:
    proto = onnx.load(inline)
    proto.graph.node.append(helper.make_node("Add", ["y", "t0"], ["z"], name="late"))
    proto.graph.output.append(floats("z", "n", 16))
    onnx.save(proto, inline)
    parts = cut(inline, "m0", "m1").parts
    assert [(part.reads, part.writes) for part in parts] == [
        (("x",), ("t0",)),
        (("t0",), ("t1",)),
        (("t1", "t0"), ("y", "z")),
    ]


def test_the_manifest_describes_the_model_and_the_split(external: Path) -> None:
    cascade = cut(external, "m0")
    model = graphcut.load(external)
    manifest = cascade.manifest
    assert (manifest.source.file, manifest.source.data) == ("../net.onnx", {"net.bin": 3072})
    assert manifest.source.graph == graph_digest(model.proto)
    assert (manifest.weights, manifest.dims, manifest.optional) == ("copy", {}, ())
    assert [str(tensor) for tensor in manifest.tensors] == ["float32[n,16]"] * 3
    assert [tensor.name for tensor in manifest.tensors] == ["x", "t0", "y"]
    assert [(part.file, part.nodes, part.weight_bytes, data_sizes(part)) for part in cascade.parts] == [
        ("part-0.onnx", 1, 1024, {"part-0.onnx.data": 1024}),
        ("part-1.onnx", 2, 2048, {"part-1.onnx.data": 2048}),
    ]
    assert cascade.source.resolve() == external.resolve()
    assert json.loads(cascade.path.read_text(encoding="utf-8"))["format"] == "graphcut.cascade/1.1"


def test_the_caches_are_searched_as_often_for_many_as_for_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0
    find_caches = caches.find_caches

    def counted(model: Model) -> tuple[graphcut.Cache, ...]:
        nonlocal searches
        searches += 1
        return find_caches(model)

    found = {}
    for layers in (2, 8):
        demos.write("llm", tmp_path / "m.onnx", hidden=16, layers=layers, heads=2, kv_heads=1, vocab=32)
        model = graphcut.load(tmp_path / "m.onnx")
        plan = graphcut.plan(graphcut.analyze(model), At(("/model/layers.0/add_1",)))
        with monkeypatch.context() as patch:
            searches = 0
            patch.setattr(caches, "find_caches", counted)
            cascade = graphcut.split(model, plan, force=True)
        assert len(cascade.manifest.states) == 2 * layers
        found[layers] = searches
    assert found[2] == found[8]


def test_dims_are_for_sizes_only(inline: Path) -> None:
    model = graphcut.load(inline, dims={"n": 5})
    cascade = graphcut.split(model, graphcut.plan(graphcut.analyze(model), At(("m0",))))
    assert cascade.manifest.dims == {"n": 5}
    assert {str(tensor) for tensor in cascade.manifest.tensors} == {"float32[n,16]"}
    for part in cascade.parts:
        proto = onnx.load(cascade.file(part))
        assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


# Weights


@pytest.mark.parametrize("place", ["inline", "external"])
@pytest.mark.parametrize("weights", ["copy", "share"])
def test_parts_load_anywhere_without_graphcut_and_give_the_same_answers(
    place: str, weights: Storage, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(place)
    cascade = cut(path, "m0", "m1", weights=weights)
    held: dict[str, Array] = {"x": np.ones((2, 16), np.float32)}
    for part in cascade.parts:
        onnx.checker.check_model(str(cascade.file(part)), full_check=True)
        held |= answers(cascade.file(part), {name: held[name] for name in part.reads})
    np.testing.assert_array_equal(held["y"], answers(path, {"x": held["x"]})["y"])


def test_each_part_has_exactly_the_weights_it_reads(inline: Path) -> None:
    cascade = cut(inline, "m0", "m1")
    originals = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(inline).graph.initializer}
    for i, part in enumerate(cascade.parts):
        (held,) = onnx.load(cascade.file(part)).graph.initializer
        assert held.name == f"w{i}"
        np.testing.assert_array_equal(numpy_helper.to_array(held), originals[held.name])
        assert (cascade.root / f"part-{i}.onnx.data").read_bytes() == originals[held.name].tobytes()


def test_a_data_file_has_each_byte_once(tmp_path: Path) -> None:
    """Two names for one place in the file, and one weight that three nodes read."""
    proto = products("w0", "tied", "w0", "tied", "w0", "w3")
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    first, tied, _ = stored.graph.initializer
    del tied.external_data[:]
    tied.external_data.extend(first.external_data)
    onnx.save(stored, tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "m3")
    assert [data_sizes(part) for part in cascade.parts] == [{"part-0.onnx.data": 1024}, {"part-1.onnx.data": 2048}]
    x = {"x": np.ones((2, 16), np.float32)}
    assert_same(graphcut.run(cascade, x, config=EXACT), answers(tmp_path / "m.onnx", x))


def test_overlapping_weights_are_stored_once(tmp_path: Path) -> None:
    onnx.save(products("w0", "w1"), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    stored.graph.node.add().CopyFrom(helper.make_node("Neg", ["y"], ["z"], name="neg"))
    stored.graph.output[0].name = "z"
    entries = {entry.key: entry for entry in stored.graph.initializer[1].external_data}
    entries["offset"].value = "512"
    onnx.save(stored, tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "m1")
    assert [data_sizes(part) for part in cascade.parts] == [{"part-0.onnx.data": 1536}, {}]
    assert prove(graphcut.load(tmp_path / "m.onnx"), cascade).objections == ()


def test_a_part_without_large_weights_has_no_data_file(chain: Path) -> None:
    cascade = cut(chain, "exp")
    assert [data_sizes(part) for part in cascade.parts] == [{}, {}]
    assert sorted(holdings(cascade.root)) == ["cascade.json", "part-0.onnx", "part-1.onnx"]


def test_shared_weights_are_not_copied(external: Path) -> None:
    before = external.stat(), (external.parent / "net.bin").read_bytes()
    cascade = cut(external, "m0", weights="share")
    names = ["net.bin", "net.cascade.json", "net.onnx", "net.part-0.onnx", "net.part-1.onnx"]
    assert sorted(holdings(external.parent)) == names
    assert cascade.path == external.parent / "net.cascade.json"
    assert all(data_sizes(part) == {"net.bin": 3072} for part in cascade.parts)
    assert all(cascade.file(part).stat().st_size < 1024 for part in cascade.parts)
    assert (external.stat(), (external.parent / "net.bin").read_bytes()) == before
    assert (external.parent / "net.bin").stat().st_nlink == 1


def test_shared_inline_weights_refer_into_the_model_itself(inline: Path) -> None:
    raw = inline.read_bytes()
    cascade = cut(inline, "m0", weights="share")
    (held,) = onnx.load(cascade.file(cascade.parts[0]), load_external_data=False).graph.initializer
    entries = {entry.key: entry.value for entry in held.external_data}
    start = int(entries["offset"])
    assert entries == {"location": "net.onnx", "offset": str(start), "length": "1024"}
    (original, *_) = onnx.load(inline).graph.initializer
    assert raw[start : start + 1024] == numpy_helper.to_array(original).tobytes()
    assert inline.read_bytes() == raw


def test_another_folder_is_refused_for_shared_weights(inline: Path, tmp_path: Path) -> None:
    goal = tmp_path / "elsewhere"
    with pytest.raises(UsageError, match=r"shares weights must be in the folder of net\.onnx, not in") as caught:
        cut(inline, "m0", output=goal, weights="share")
    assert caught.value.hint == f"choose a place in {tmp_path}, or copy the weights with `weights='copy'`"
    assert list(holdings(tmp_path)) == ["net.onnx"]


def test_the_models_folder_may_be_named_in_any_way(inline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inline.parent / "sub").mkdir()
    monkeypatch.chdir(inline.parent)
    cascade = cut(Path("net.onnx"), "m0", output=Path("sub/.."), weights="share")
    assert prove(graphcut.load(inline), cascade).objections == ()


def test_shared_weights_behind_a_link_are_refused(inline: Path, tmp_path: Path) -> None:
    """As in the Hugging Face cache: nobody opens data that a symbolic link leads out of the folder for."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    inline.rename(tmp_path / "blobs" / "abc")
    (tmp_path / "snapshot" / "net.onnx").symlink_to("../blobs/abc")
    with pytest.raises(UsageError, match="link") as caught:
        cut(tmp_path / "snapshot" / "net.onnx", "m0", weights="share")
    assert "`weights='copy'`" in caught.value.hint
    assert list(holdings(tmp_path / "snapshot")) == ["net.onnx"]


def test_weights_behind_a_link_are_copied(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    inline.rename(tmp_path / "blobs" / "abc")
    inline.symlink_to("blobs/abc")
    cascade = cut(inline, "m0")
    assert prove(graphcut.load(cascade.source), cascade).objections == ()


def test_the_original_is_found_from_a_folder_behind_a_link(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to("far/away")
    cascade = cut(inline, "m0", output=tmp_path / "near" / "out")
    assert cascade.source.resolve() == inline.resolve()


def test_a_plan_of_another_model_is_refused(inline: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(products("w0", "w1", "w2", "w3"), other)
    _, plan = planned(other, "m0")
    with pytest.raises(UsageError, match="another model"):
        graphcut.split(graphcut.load(inline), plan)
    assert sorted(holdings(tmp_path)) == ["net.onnx", "other.onnx"]


# What is in the way


def test_an_existing_cascade_is_not_replaced_without_force(inline: Path) -> None:
    root = cut(inline, "m0").root
    before = holdings(root)
    with pytest.raises(UsageError, match="already exists") as caught:
        cut(inline, "m1")
    assert (str(caught.value), caught.value.hint) == (
        f"{root} already exists",
        "choose another folder with `output`, or add `force=True` to replace it",
    )
    assert holdings(root) == before


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_the_same_split_again_changes_nothing_and_needs_no_force(external: Path, weights: Storage) -> None:
    first = cut(external, "m1", weights=weights)
    (first.root / "y.npz").write_bytes(b"mine")
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in first.root.iterdir() if path.is_file()}
    assert cut(external, "m1", weights=weights) == first
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in first.root.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("changed", ["part", "weights", "model"])
def test_what_was_changed_since_is_not_taken_for_the_same_split(external: Path, changed: str) -> None:
    """A part, its weights, or those of the model: the existing files stay as they are."""
    cascade = cut(external, "m1")
    (data,) = (file for file, _ in graphcut.load(external).data.values())
    file = {"part": cascade.root / "part-0.onnx", "weights": cascade.root / "part-0.onnx.data", "model": data}[changed]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = holdings(cascade.root)
    with pytest.raises(UsageError, match="already exists"):
        cut(external, "m1")
    assert holdings(cascade.root) == before


def test_shared_parts_are_not_replaced_without_force(inline: Path) -> None:
    cut(inline, "m0", weights="share")
    before = holdings(inline.parent)
    with pytest.raises(UsageError, match="already exists") as caught:
        cut(inline, "m1", weights="share")
    assert holdings(inline.parent) == before
    assert "`force=True`" in caught.value.hint
    assert "another folder" not in caught.value.hint, "another folder is refused for shared weights"


def test_force_replaces_what_its_manifest_lists(inline: Path) -> None:
    cut(inline, "m0", "m1")
    cascade = cut(inline, "m1", force=True)
    names = ["cascade.json", "part-0.onnx", "part-0.onnx.data", "part-1.onnx", "part-1.onnx.data"]
    assert sorted(holdings(cascade.root)) == names
    assert sorted(p.name for p in inline.parent.iterdir()) == ["net.onnx", "net.parts"]


def test_force_replaces_shared_parts_and_leaves_the_rest(inline: Path) -> None:
    cut(inline, "m0", "m1", weights="share")
    (inline.parent / "notes.txt").write_text("mine")
    cut(inline, "m1", weights="share", force=True)
    names = ["net.cascade.json", "net.onnx", "net.part-0.onnx", "net.part-1.onnx", "notes.txt"]
    assert sorted(holdings(inline.parent)) == names


@pytest.mark.parametrize("force", [False, True])
def test_a_foreign_file_in_the_folder_is_never_deleted(inline: Path, *, force: bool) -> None:
    root = cut(inline, "m0").root
    (root / "notes.txt").write_text("mine")
    if not force:
        (root / "cascade.json").unlink()
    before = holdings(root)
    with pytest.raises(UsageError, match="which belongs to no cascade there") as caught:
        cut(inline, "m1", force=force)
    assert "deletes only what it made" in caught.value.hint
    assert holdings(root) == before


@each("place", ["data", "file", "text_files"])
def test_a_foreign_file_that_an_edited_manifest_names_is_never_deleted(inline: Path, place: str) -> None:
    root = cut(inline, "m0", output=inline.parent / place).root
    name = "tokenizer.json" if place == "text_files" else "notes.txt"
    (root / name).write_text("mine")

    def name_it(record: dict[str, Any]) -> None:
        match place:
            case "data":
                record["parts"][0]["data"] = {name: {"bytes": 4, "digest": None}}
            case "file":
                record["parts"][0]["file"] = name
            case _:
                record["text_files"] = {name: "sha256:" + "0" * 64}

    edit_manifest(root / "cascade.json", name_it)
    with pytest.raises(UsageError, match="which belongs to no cascade there"):
        cut(inline, "m1", output=root, force=True)
    assert (root / name).read_text() == "mine"


@each("place", ["part-7.onnx", "part-7.onnx.data", "tokenizer.json"])
def test_a_foreign_file_is_never_deleted_though_the_manifest_has_its_name_and_digest(inline: Path, place: str) -> None:
    root = cut(inline, "m0", output=inline.parent / place).root
    if place.endswith(".onnx"):
        onnx.save(products("w0"), root / place)
    else:
        (root / place).write_text("mine")
    mine = (root / place).read_bytes()

    def name_it(record: dict[str, Any]) -> None:
        match place:
            case "part-7.onnx":
                record["parts"].append({**record["parts"][0], "file": place, "sha256": digest_of(mine)})
            case "part-7.onnx.data":
                record["parts"][0]["data"][place] = {"bytes": 4, "digest": None}
            case _:
                record["text_files"] = {place: digest_of(mine)}

    edit_manifest(root / "cascade.json", name_it)
    with pytest.raises(UsageError, match=f"contains '{place}', which belongs to no cascade there"):
        cut(inline, "m1", output=root, force=True)
    assert (root / place).read_bytes() == mine


def test_a_tokenizer_that_was_changed_since_is_never_deleted(inline: Path) -> None:
    (inline.parent / "tokenizer.json").write_text("one")
    root = cut(inline, "m0").root
    (root / "tokenizer.json").write_text("mine")
    with pytest.raises(UsageError, match=r"contains 'tokenizer\.json', which belongs to no cascade there"):
        cut(inline, "m1", force=True)
    assert (root / "tokenizer.json").read_text() == "mine"


def test_a_link_among_the_parts_is_called_a_link(inline: Path) -> None:
    root = cut(inline, "m0").root
    (root / "part-1.onnx").rename(inline.parent / "elsewhere.onnx")
    (root / "part-1.onnx").symlink_to(inline.parent / "elsewhere.onnx")
    with pytest.raises(UsageError, match=r"contains 'part-1\.onnx', which is a symbolic link"):
        cut(inline, "m1", force=True)


def test_force_replaces_the_tokenizer_that_the_parts_were_written_with(inline: Path) -> None:
    for text in ("one", "two"):
        (inline.parent / "tokenizer.json").write_text(text)
        root = cut(inline, "m0", force=True).root
        assert (root / "tokenizer.json").read_text() == text


def test_another_file_with_the_name_of_a_shared_part_is_not_overwritten(inline: Path) -> None:
    """There is no manifest yet, so that file is none of ours."""
    (inline.parent / "net.part-0.onnx").write_text("mine")
    with pytest.raises(UsageError, match=r"net\.part-0\.onnx"):
        cut(inline, "m0", weights="share")
    assert (inline.parent / "net.part-0.onnx").read_text() == "mine"


def test_another_file_with_the_name_of_a_new_shared_part_is_not_overwritten_by_force(inline: Path) -> None:
    cut(inline, "m0", weights="share")
    (inline.parent / "net.part-2.onnx").write_text("mine")
    with pytest.raises(UsageError, match=r"net\.part-2\.onnx"):
        cut(inline, "m0", "m1", weights="share", force=True)
    assert (inline.parent / "net.part-2.onnx").read_text() == "mine"


def test_a_part_that_shares_weights_and_may_be_another_s_is_not_left_behind_in_silence(inline: Path) -> None:
    theirs = cut(inline, "m0", "m1", weights="share").root / "net.part-2.onnx"
    onnx.save(products("w0"), theirs)
    with pytest.raises(UsageError, match=r"contains 'net\.part-2\.onnx', which may be another's"):
        cut(inline, "m0", weights="share", force=True)
    assert theirs.exists()


@pytest.mark.parametrize("content", [b"{}", b"not JSON", b'{"format": "graphcut.cascade/9"}', b"\xff\xfe"])
def test_force_refuses_to_replace_another_manifest(inline: Path, content: bytes) -> None:
    root = inline.parent / "net.parts"
    root.mkdir()
    (root / "cascade.json").write_bytes(content)
    with pytest.raises(GraphcutError, match=r"cascade\.json"):
        cut(inline, "m0", force=True)
    assert holdings(root) == {"cascade.json": content}


def test_force_deletes_nothing_outside_the_folder(inline: Path) -> None:
    cascade = cut(inline, "m0", weights="share")
    (inline.parent.parent / "precious.txt").write_text("mine")
    found = json.loads(cascade.path.read_text(encoding="utf-8"))
    found["parts"][1]["file"] = "../precious.txt"
    cascade.path.write_text(json.dumps(found), encoding="utf-8")
    cascade.file(cascade.parts[1]).unlink()
    cut(inline, "m0", weights="share", force=True)
    assert (inline.parent.parent / "precious.txt").read_text() == "mine"


def test_an_empty_folder_is_accepted(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert cut(inline, "m0", output=tmp_path / "out").root == tmp_path / "out"


def test_a_link_to_an_empty_folder_stays_a_link(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large-disk")
    cascade = cut(inline, "m0", output=tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert sorted(holdings(tmp_path / "large-disk")) == sorted(holdings(cascade.root))


def test_the_current_folder_is_accepted_if_it_is_empty(
    inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert len(cut(inline, "m0", output=Path()).parts) == 2


def test_a_file_in_the_way_is_refused(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        cut(inline, "m0", output=tmp_path / "out", force=True)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_missing_parent_folder_is_named(inline: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path / 'a' / 'b'}") as caught:
        cut(inline, "m0", output=tmp_path / "a" / "b" / "out")
    assert "make it first" in caught.value.hint
    assert not (tmp_path / "a").exists()


def test_the_model_itself_is_never_the_output(inline: Path) -> None:
    raw = inline.read_bytes()
    with pytest.raises(UsageError, match="is a file"):
        cut(inline, "m0", output=inline, force=True)
    assert inline.read_bytes() == raw


# Bad days

Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - what shutil.disk_usage gives


def test_too_little_disk_is_refused_before_anything_is_written(inline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 3000, 3000))
    monkeypatch.setattr(splitting, "scratch_folder", lambda *_: pytest.fail("something is written"))
    with pytest.raises(GraphcutError, match=r"the parts need 3\.\d+ KiB, but .* has 2\.93 KiB free") as caught:
        cut(inline, "m0")
    assert "`weights='share'`" in caught.value.hint
    assert list(holdings(inline.parent)) == ["net.onnx"]


def test_shared_weights_need_no_disk_space(inline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 3000, 3000))
    assert len(cut(inline, "m0", weights="share").parts) == 2


def dying(monkeypatch: pytest.MonkeyPatch, target: str, at_call: int, error: BaseException) -> None:
    """Let the given call of `target` fail, and every other one through."""
    module, _, name = target.rpartition(".")
    owner = {"os": os, "splitting": splitting, "atomic_files": atomic_files}[module]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def instead(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - stands in for several functions
        nonlocal calls
        calls += 1
        if calls == at_call:
            raise error
        return real(*args, **options)

    monkeypatch.setattr(owner, name, instead)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("target", ["os.pwrite", "splitting.write_data", "splitting.save_manifest"])
@pytest.mark.parametrize("is_there_an_old_one", [False, True])
def test_a_disk_that_fills_up_leaves_everything_as_it_was(
    inline: Path, target: str, monkeypatch: pytest.MonkeyPatch, *, is_there_an_old_one: bool
) -> None:
    if is_there_an_old_one:
        cut(inline, "m0")
    before = holdings(inline.parent)
    monkeypatch.setattr("graphcut.loading.external_data._PAGE", 1 << 40)  # no pages are shared, so pwrite copies
    dying(monkeypatch, target, 1, FULL)
    with pytest.raises(GraphcutError, match=r"writing .*net\.parts failed: No space left on device") as caught:
        cut(inline, "m1", force=True)
    assert "nothing was changed" in caught.value.hint
    assert holdings(inline.parent) == before
    assert not list(inline.parent.glob("*tmp*"))


@pytest.mark.parametrize("target", ["os.pwrite", "splitting.write_data", "splitting.save_manifest"])
@pytest.mark.parametrize("weights", ["copy", "share"])
def test_an_interruption_while_writing_leaves_everything_as_it_was(
    inline: Path, target: str, weights: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if weights == "share" and target != "splitting.save_manifest":
        pytest.skip("shared parts move no weights")
    cut(inline, "m0", weights=weights)
    before = holdings(inline.parent)
    monkeypatch.setattr("graphcut.loading.external_data._PAGE", 1 << 40)  # no pages are shared, so pwrite copies
    dying(monkeypatch, target, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        cut(inline, "m1", weights=weights, force=True)
    assert holdings(inline.parent) == before
    assert not list(inline.parent.glob("*tmp*"))


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("weights", ["copy", "share"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failure_while_new_files_are_renamed_keeps_the_old_cascade(
    inline: Path, call: int, weights: Storage, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(inline, "m0", weights=weights)
    before = holdings(inline.parent)
    dying(monkeypatch, "atomic_files.rename", call, error)
    with pytest.raises((GraphcutError, KeyboardInterrupt)):
        cut(inline, "m1", weights=weights, force=True)
    assert holdings(inline.parent) == before


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failure_while_shared_parts_are_renamed_leaves_no_new_files(
    inline: Path, call: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(monkeypatch, "atomic_files.rename", call, error)
    with pytest.raises((GraphcutError, KeyboardInterrupt)):
        cut(inline, "m1", weights="share")
    assert list(holdings(inline.parent)) == ["net.onnx"]


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("weights", ["copy", "share"])
@pytest.mark.parametrize("call", [2, 3, 4])
def test_a_failure_while_old_files_are_moved_away_keeps_the_old_cascade(
    inline: Path, call: int, weights: Storage, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(inline, "m0", weights=weights)
    before = holdings(inline.parent)
    dying(monkeypatch, "os.replace", call, error)
    with pytest.raises((GraphcutError, KeyboardInterrupt)):
        cut(inline, "m1", weights=weights, force=True)
    assert holdings(inline.parent) == before


def test_weights_that_change_during_a_split_are_an_error(external: Path) -> None:
    model, plan = planned(external, "m0")
    (external.parent / "net.bin").write_bytes(b"short")
    with pytest.raises(GraphcutError, match=r"writing .* failed"):
        graphcut.split(model, plan)
    assert sorted(holdings(external.parent)) == ["net.bin", "net.onnx"]


def test_files_and_folders_have_the_permissions_of_the_umask(inline: Path) -> None:
    old = os.umask(0o027)
    try:
        copied, shared = cut(inline, "m0"), cut(inline, "m0", weights="share")
        whole = graphcut.merge(copied, inline.parent / "whole.onnx")
    finally:
        os.umask(old)
    files = [*copied.root.iterdir(), shared.path, *map(shared.file, shared.parts), whole.path]
    assert {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in files} == {
        file.name: "0o640" for file in files
    }
    assert oct(stat.S_IMODE(copied.root.stat().st_mode)) == "0o750"


# What is the same


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_the_same_cut_gives_the_same_bytes(external: Path, weights: Storage) -> None:
    first = holdings(cut(external, "m0", "m1", weights=weights).root)
    again = holdings(cut(external, "m1", "t0", weights=weights, force=True).root)
    assert first == again


def test_the_bytes_do_not_depend_on_the_hashes_of_strings(tmp_path: Path) -> None:
    demos.write("multitask", tmp_path / "m.onnx")
    code = (
        "import graphcut, sys; m = graphcut.load(sys.argv[1]);"
        "p = graphcut.plan(graphcut.analyze(m), graphcut.At(('/trunk/stage.*/Add', '/heads/depth/*')));"
        "graphcut.split(m, p, sys.argv[2])"
    )
    for seed in ("1", "2"):
        words = [sys.executable, "-c", code, str(tmp_path / "m.onnx"), str(tmp_path / seed)]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    assert len(holdings(tmp_path / "1")) > 7
    assert holdings(tmp_path / "1") == holdings(tmp_path / "2")


def test_a_dry_run_lists_the_files_and_writes_nothing(inline: Path) -> None:
    model, plan = planned(inline, "m0")
    prepared = prepare(model, plan)
    lines = str(prepared).split("\n")
    assert list(holdings(inline.parent)) == ["net.onnx"]
    cascade = graphcut.split(model, plan)
    written = {file.name: file.stat().st_size for file in cascade.root.iterdir()}
    assert sorted(Path(line.split("  ")[0]) for line in lines) == sorted(cascade.root / name for name in written)
    assert prepared.bytes_to_write >= sum(number for name, number in written.items() if name.endswith(".data"))
    assert "1 KiB" in next(line for line in lines if "part-0.onnx.data" in line)


def test_the_disk_space_that_is_checked_is_what_is_written(external: Path) -> None:
    model, plan = planned(external, "m0")
    cascade = graphcut.split(model, plan)
    files = [file for file in cascade.root.iterdir() if file != cascade.path]
    assert sum(file.stat().st_size for file in files) <= prepare(model, plan).bytes_to_write


def test_progress_reports_every_byte(inline: Path) -> None:
    model, plan = planned(inline, "m0")
    told: dict[str, int] = {}
    totals = set()

    def note(file: str, moved: int, total: int) -> None:
        told[file] = told.get(file, 0) + moved
        totals.add(total)

    cascade = graphcut.split(model, plan, progress=note)
    names = ["part-0.onnx.data", "part-0.onnx", "part-1.onnx.data", "part-1.onnx"]
    assert list(told.items()) == [(name, (cascade.root / name).stat().st_size) for name in names]
    assert totals == {prepare(model, plan).bytes_to_write}


# Digests of weights


def with_other_weights(path: Path) -> None:
    """Another version of the model of `external`: one bit of a weight differs."""
    raw = bytearray((path.parent / "net.bin").read_bytes())
    raw[0] ^= 1
    (path.parent / "net.bin").write_bytes(raw)


def test_copied_weights_have_the_digest_of_their_file(external: Path) -> None:
    for part in cut(external, "m0").parts:
        ((name, data),) = part.data.items()
        raw = (external.parent / "net.parts" / name).read_bytes()
        assert data == DataFile(bytes=len(raw), digest=Digest(ranges=((0, len(raw)),), blocks=(digest_of(raw),)))


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_two_versions_of_the_weights_give_different_manifests(external: Path, weights: Storage) -> None:
    made = []
    for _ in range(2):
        model, plan = planned(external, "m0")
        made.append(graphcut.split(model, plan, weights=weights, digest=True, force=True))
        with_other_weights(external)
    old, new = ([part.data for part in cascade.parts] for cascade in made)
    assert old[0] != new[0]
    assert old[1] == new[1]


def test_shared_weights_have_digests_of_what_each_part_reads_if_asked_for(external: Path) -> None:
    model, plan = planned(external, "m0")
    raw = (external.parent / "net.bin").read_bytes()
    without = graphcut.split(model, plan, weights="share")
    assert [part.data for part in without.parts] == [{"net.bin": DataFile(bytes=3072, digest=None)}] * 2
    with_digests = graphcut.split(model, plan, weights="share", digest=True, force=True)
    assert [part.data["net.bin"].digest for part in with_digests.parts] == [
        Digest(ranges=((0, 1024),), blocks=(digest_of(raw[:1024]),)),
        Digest(ranges=((1024, 2048),), blocks=(digest_of(raw[1024:]),)),
    ]


# Merging


@pytest.mark.parametrize("place", ["inline", "external"])
@pytest.mark.parametrize("weights", ["copy", "share"])
def test_merging_restores_the_graph_and_the_outputs(
    place: str, weights: Storage, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path: Path = request.getfixturevalue(place)
    whole = graphcut.merge(cut(path, "m0", "m1", weights=weights), tmp_path / "whole.onnx")
    assert graph_digest(whole.proto) == graph_digest(graphcut.load(path).proto)
    onnx.checker.check_model(str(whole.path), full_check=True)
    x = {"x": np.ones((3, 16), np.float32)}
    assert_same(answers(whole.path, x), answers(path, x))


def test_small_weights_are_merged_into_the_model_file(inline: Path, tmp_path: Path) -> None:
    graphcut.merge(cut(inline, "m0"), tmp_path / "whole.onnx")
    assert not (tmp_path / "whole.onnx.data").exists()
    assert (tmp_path / "whole.onnx").stat().st_size > 3072


def test_large_weights_are_merged_into_a_data_file(
    inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 3071)
    whole = graphcut.merge(cut(inline, "m0"), tmp_path / "whole.onnx")
    assert (tmp_path / "whole.onnx.data").stat().st_size == 3072
    assert graph_digest(whole.proto) == graph_digest(graphcut.load(inline).proto)
    x = {"x": np.ones((3, 16), np.float32)}
    assert_same(answers(whole.path, x), answers(inline, x))


def test_a_weight_in_two_parts_is_merged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    onnx.save(products("w", "w"), tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "m0")
    assert [data_sizes(part) for part in cascade.parts] == [{"part-0.onnx.data": 1024}, {"part-1.onnx.data": 1024}]
    graphcut.merge(cascade, tmp_path / "whole.onnx")
    assert (tmp_path / "whole.onnx.data").stat().st_size == 1024


@pytest.mark.parametrize("name", ["whole.onnx", "whole.onnx.data"])
def test_merging_overwrites_nothing_without_force(
    inline: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    cascade = cut(inline, "m0")
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} already exists") as caught:
        graphcut.merge(cascade, tmp_path / "whole.onnx")
    assert caught.value.hint == "choose another name with `output`, or add `force=True`"
    assert (tmp_path / name).read_text() == "mine"
    if name == "whole.onnx.data":
        with pytest.raises(UsageError, match="may be another's: no model there reads it"):
            graphcut.merge(cascade, tmp_path / "whole.onnx", force=True)
        assert holdings(tmp_path)[name] == b"mine"
        (tmp_path / name).unlink()
        (tmp_path / "empty.onnx").touch()  # which reads no data
    for _ in range(2):
        graphcut.merge(cascade, tmp_path / "whole.onnx", force=True)
    assert sorted(file.name for file in tmp_path.glob("whole*")) == ["whole.onnx", "whole.onnx.data"]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_merging_leaves_the_data_file_that_another_model_may_read(
    external: Path, tmp_path: Path, inline_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", inline_bytes)
    cascade = cut(external, "m1")
    whole, data = tmp_path / "whole.onnx", "whole.onnx.data"
    onnx.save(products("w0"), whole, save_as_external_data=True, location=data, size_threshold=0)
    shutil.copy(whole, tmp_path / "other.onnx")
    before = holdings(tmp_path)
    if inline_bytes:
        graphcut.merge(cascade, tmp_path / "whole.onnx", force=True)
    else:
        with pytest.raises(UsageError, match=r"other\.onnx reads .*whole\.onnx\.data, which would be replaced"):
            graphcut.merge(cascade, tmp_path / "whole.onnx", force=True)
    changed = {name for name, raw in holdings(tmp_path).items() if before[name] != raw}
    assert changed == ({"whole.onnx"} if inline_bytes else set())


def test_merging_over_a_part_of_the_cascade_is_refused(inline: Path) -> None:
    cascade = cut(inline, "m0")
    before = holdings(cascade.root)
    with pytest.raises(UsageError):
        graphcut.merge(cascade, cascade.root / "part-0.onnx", force=True)
    assert holdings(cascade.root) == before


def test_merging_over_the_model_that_shared_parts_refer_to_is_refused(inline: Path) -> None:
    cascade = cut(inline, "m0", weights="share")
    before = holdings(inline.parent)
    with pytest.raises(UsageError):
        graphcut.merge(cascade, inline, force=True)
    assert holdings(inline.parent) == before


def test_merging_into_a_missing_folder_changes_nothing(inline: Path, tmp_path: Path) -> None:
    cascade = cut(inline, "m0")
    before = holdings(tmp_path)
    with pytest.raises(UsageError, match=r"there is no folder .*nowhere"):
        graphcut.merge(cascade, tmp_path / "nowhere" / "whole.onnx")
    assert holdings(tmp_path) == before


def test_a_merge_that_fails_changes_nothing(inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcut.surgery.model_files.INLINE_BYTES", 0)
    cascade = cut(inline, "m0")
    graphcut.merge(cascade, tmp_path / "whole.onnx")
    before = holdings(tmp_path)
    dying(monkeypatch, "os.replace", 2, FULL)
    with pytest.raises(GraphcutError, match="No space left on device") as caught:
        graphcut.merge(cut(inline, "m1", output=tmp_path / "other"), tmp_path / "whole.onnx", force=True)
    assert caught.value.hint == "nothing was changed"
    assert {name: raw for name, raw in holdings(tmp_path).items() if not name.startswith("other")} == before


def test_parts_keep_the_metadata_of_the_model(tmp_path: Path) -> None:
    proto = products("w0", "w1")
    proto.producer_name, proto.producer_version, proto.domain, proto.model_version = "maker", "7", "org.example", 3
    proto.doc_string = "what it does"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.doc_string = "the graph"
    proto.opset_import.add(domain="com.example", version=2)
    proto.graph.value_info.append(floats("t0", "n", 16))
    proto.graph.node[0].doc_string = "the first"
    onnx.save(proto, tmp_path / "m.onnx")
    cascade = cut(tmp_path / "m.onnx", "m0")
    for part in cascade.parts:
        found = onnx.load(cascade.file(part))
        assert (found.ir_version, found.producer_name, found.domain, found.model_version) == (
            8,
            "maker",
            "org.example",
            3,
        )
        assert (found.producer_version, found.doc_string, found.graph.doc_string) == ("7", "what it does", "the graph")
        assert [(o.domain, o.version) for o in found.opset_import] == [("", 17), ("com.example", 2)]
        assert [(p.key, p.value) for p in found.metadata_props] == [("author", "somebody")]
    first = onnx.load(cascade.file(cascade.parts[0]))
    assert cast("Sequence[Any]", first.graph.node)[0] == proto.graph.node[0]
    assert cast("Sequence[Any]", first.graph.output)[0] == floats("t0", "n", 16)


@pytest.mark.parametrize("goal", [At("/model/layers.1/add_1"), Into(2)], ids=["at", "into"])
def test_a_cascade_remembers_the_sizes_that_its_plan_assumed(goal: At | Into, tmp_path: Path) -> None:
    """So `show` of the folder says what `split` said, and verify still chooses small inputs."""
    demos.write("llm", tmp_path / "llm.onnx", layers=3)
    model = graphcut.load(tmp_path / "llm.onnx")
    made = graphcut.plan(model, goal)
    cascade = graphcut.split(model, made, tmp_path / "parts")
    assert cascade.manifest.dims == {"batch": 1, "seq": 512, "past": 0, "total": 512} == made.dims
    assert (cascade.manifest.assumed, cascade.manifest.given_dims) == (tuple(made.dims), {})
    split_scene = scene_of_split(cascade, made, graphcut.analyze(model))
    assert scene_of_cascade(cascade, model).tensors == split_scene.tensors
    assert scene_of_cascade(cascade).tensors == split_scene.tensors
    given = graphcut.load(model, dims={"seq": 16})
    again = graphcut.split(given, goal, tmp_path / "given")
    assert again.manifest.given_dims == {"seq": 16}
    assert graphcut.verify(model, again).same
