"""LinguaLinked's maps: the shapes its readers know, the content that our cascade has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

import graphcut
from graphcut import At, Cascade, Into, UsageError

from conftest import floats, model_of

export_lingualinked = partial(graphcut.export, to="lingualinked")

FEEDS = {"x": np.full((2, 4), 0.5, np.float32), "k": np.ones((2, 1), np.float32), "m": np.eye(2, 4, dtype=np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four stages; `a` and `t` of the first are read by later ones, `e` of the second is an output too.

    The last reads the model's input `m`, which no stage hands on.
    """
    nodes = [
        helper.make_node("Tanh", ["k"], ["t"], name="tanh"),
        helper.make_node("Mul", ["x", "t"], ["a"], name="first"),
        helper.make_node("Exp", ["a"], ["e"], name="second"),
        helper.make_node("Add", ["e", "t"], ["s"], name="third"),
        helper.make_node("Mul", ["s", "t"], ["u"], name="mul"),
        helper.make_node("Sub", ["u", "a"], ["v"], name="sub"),
        helper.make_node("Add", ["v", "m"], ["y"], name="last"),
    ]
    inputs = [floats("x", "n", 4), floats("k", "n", 1), floats("m", "n", 4)]
    path = tmp_path / "model.onnx"
    onnx.save(model_of(nodes, inputs, [floats("y", "n", 4), floats("e", "n", 4)]), path)
    return path


def cut(path: Path, nodes: tuple[str, ...] = ("first", "second", "third"), **dims: int) -> Cascade:
    opened = graphcut.load(path, dims=dims)
    return graphcut.split(opened, graphcut.plan(graphcut.analyze(opened), At(nodes)), force=True)


def read(folder: Path) -> dict[str, Any]:
    files = sorted(file for file in folder.rglob("*.json") if file.name != "written.json")
    return {file.relative_to(folder).as_posix(): json.loads(file.read_bytes()) for file in files}


def test_the_maps_of_four_modules_with_residual_tensors(model: Path, tmp_path: Path) -> None:
    cascade = cut(model, n=2)
    # What the parts give out, in the order of their files: the places in the maps are places in these.
    assert [part.writes for part in cascade.parts] == [("t", "a"), ("e",), ("s",), ("y",)]
    written = export_lingualinked(cascade, tmp_path / "maps")
    names = [
        {"input": ["x", "k"], "output": ["t", "a"]},
        {"input": ["a"], "output": ["e"]},
        {"input": ["e", "t"], "output": ["s"]},
        {"input": ["s", "t", "a", "m"], "output": ["y"]},
    ]
    # a, e, s, y: 2 by 4 float32. t: 2 by 1.
    assert read(tmp_path / "maps") == {
        "sender_seq_dep_map.json": {"0": {"1": [1]}, "1": {"2": [0]}, "2": {"3": [0]}},
        "sender_res_dep_map.json": {"0": {"2": [0], "3": [0, 1]}},
        "receiver_seq_dep_map.json": {"1": {"0": [1]}, "2": {"1": [0]}, "3": {"2": [0]}},
        "receiver_res_dep_map.json": {"2": {"0": [0]}, "3": {"0": [0, 1]}},
        "model_input_names.json": {f"module_{i}": own["input"] for i, own in enumerate(names)},
        "model_output_names.json": {f"module_{i}": own["output"] for i, own in enumerate(names)},
        **{f"module{i}/module_name_{i}.json": own for i, own in enumerate(names)},
        "model_output_mem_size.json": {
            "0": {"seq": {"1": [32]}, "res": {"2": [8], "3": [8, 32]}},
            "1": {"seq": {"2": [32]}, "res": {}},
            "2": {"seq": {"3": [32]}, "res": {}},
            "3": {"seq": {"0": [32]}, "res": {}},
        },
    }
    assert written == sorted(file for file in (tmp_path / "maps").rglob("*") if file.is_file())


def test_running_by_the_maps_as_lingualinked_does_gives_the_outputs_of_the_model(model: Path, tmp_path: Path) -> None:
    """As LinguaLinked's InferenceBuffer does: lists of outputs, picked by the maps, fed in the order of the names."""
    cascade = cut(model)
    export_lingualinked(cascade, tmp_path / "maps")
    files = read(tmp_path / "maps")
    handed: dict[int, list[NDArray[Any]]] = {}
    found: dict[str, NDArray[Any]] = {}
    for i, part in enumerate(cascade.parts):
        names = files[f"module{i}/module_name_{i}.json"]
        fed = [handed[i - 1][at] for at in files["receiver_seq_dep_map.json"].get(str(i), {}).get(str(i - 1), [])]
        for source, places in files["receiver_res_dep_map.json"].get(str(i), {}).items():
            fed += [handed[int(source)][at] for at in places]
        fed += [FEEDS[name] for name in names["input"][len(fed) :]]
        session = ort.InferenceSession(cascade.file(part), providers=["CPUExecutionProvider"])
        handed[i] = session.run(names["output"], dict(zip(names["input"], fed, strict=True)))
        found |= dict(zip(names["output"], handed[i], strict=True))
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(["y", "e"], FEEDS)
    np.testing.assert_allclose([found["y"], found["e"]], expected, rtol=1e-6)


def test_modules_are_sorted_as_numbers(tmp_path: Path) -> None:
    """LinguaLinked's phone sorts them as words, where 10 stands before 2."""
    names = [f"t{i}" for i in range(13)]
    nodes = [helper.make_node("Neg", [a], [b], name=b) for a, b in zip(["x", *names], names, strict=False)]
    nodes.append(helper.make_node("Add", ["t0", "t12"], ["y"], name="end"))
    path = tmp_path / "long.onnx"
    onnx.save(model_of(nodes, [floats("x", 1)], [floats("y", 1)]), path)
    export_lingualinked(cut(path, tuple(names[:11])), tmp_path / "maps")
    files = read(tmp_path / "maps")
    assert list(files["sender_seq_dep_map.json"]) == [str(i) for i in range(11)]
    assert list(files["receiver_seq_dep_map.json"]) == [str(i) for i in range(1, 12)]
    assert files["receiver_res_dep_map.json"] == {"11": {"0": [0]}}


def test_a_module_that_sends_nothing_to_the_next_has_an_empty_list(tmp_path: Path) -> None:
    """Its runner looks up every module but the last."""
    nodes = [helper.make_node(op, ["x"], [op], name=op) for op in ("Neg", "Exp")]
    path = tmp_path / "two.onnx"
    onnx.save(model_of(nodes, [floats("x", 1)], [floats("Neg", 1), floats("Exp", 1)]), path)
    export_lingualinked(cut(path, ("Neg",)), tmp_path / "maps")
    files = read(tmp_path / "maps")
    assert files["sender_seq_dep_map.json"] == {"0": {"1": []}}
    assert files["receiver_seq_dep_map.json"] == {"1": {"0": []}}
    assert files["sender_res_dep_map.json"] == files["receiver_res_dep_map.json"] == {}


def test_a_whole_model_is_one_module(model: Path, tmp_path: Path) -> None:
    opened = graphcut.load(model, dims={"n": 1})
    export_lingualinked(graphcut.split(opened, graphcut.plan(graphcut.analyze(opened), Into(1))), tmp_path / "maps")
    files = read(tmp_path / "maps")
    assert files["sender_seq_dep_map.json"] == {}
    assert files["model_input_names.json"] == {"module_0": ["x", "k", "m"]}
    sizes = files["model_output_mem_size.json"]["0"]
    assert sizes == {"seq": {"0": [16] * len(files["model_output_names.json"]["module_0"])}, "res": {}}


def test_unknown_sizes_are_left_out(model: Path, tmp_path: Path) -> None:
    cascade = cut(model)
    export_lingualinked(cascade, tmp_path / "open")
    assert not (tmp_path / "open" / "model_output_mem_size.json").exists()
    sizes: Mapping[str, tuple[int, bool]] = {name: (i, True) for i, name in enumerate("aestuvy", 1)}
    export_lingualinked(cascade, tmp_path / "given", sizes=sizes)
    assert read(tmp_path / "given")["model_output_mem_size.json"]["0"] == {
        "seq": {"1": [1]},
        "res": {"2": [4], "3": [4, 1]},
    }


def test_the_same_cascade_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    cascade = cut(model, n=2)
    first = [file.read_bytes() for file in export_lingualinked(cascade, tmp_path / "maps")]
    assert [file.read_bytes() for file in export_lingualinked(cascade, tmp_path / "maps", force=True)] == first


def test_existing_maps_are_replaced_only_with_force(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "maps"
    export_lingualinked(cut(model), folder)
    two = cut(model, ("second",))
    with pytest.raises(UsageError, match="already exists") as error:
        export_lingualinked(two, folder)
    assert error.value.hint == "choose another folder with `output`, or add `force=True`"
    export_lingualinked(two, folder, force=True)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["module0", "module1"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_with_other_files_is_never_changed(model: Path, tmp_path: Path) -> None:
    cascade = cut(model)
    folder = tmp_path / "mine"
    (folder / "module0").mkdir(parents=True)
    (folder / "module0" / "thesis.txt").write_text("years")
    with pytest.raises(
        UsageError, match=r"contains 'module0/thesis\.txt', which is not a file of an export to lingualinked"
    ):
        export_lingualinked(cascade, folder, force=True)
    with pytest.raises(UsageError, match="is a file"):
        export_lingualinked(cascade, model, force=True)
    with pytest.raises(UsageError, match="not a file of an export to lingualinked"):
        export_lingualinked(cascade, cascade.root, force=True)
    assert (folder / "module0" / "thesis.txt").read_text() == "years"


def test_an_empty_folder_is_accepted(model: Path, tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    assert len(export_lingualinked(cut(model), tmp_path / "maps")) == 11


def test_a_folder_above_the_output_is_not_made(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*nowhere"):
        export_lingualinked(cut(model), tmp_path / "nowhere" / "maps")
