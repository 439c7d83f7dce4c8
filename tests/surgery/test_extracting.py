"""`extract`: a sub-model computes what the whole model computes at its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from sub_models import check_extract

import graphcut
from graphcut import Model, UsageError, demos

from cases import crossed, each
from conftest import floats, model_of
from families import FAMILIES, by_hand
from hazards import HAZARDS

RUNNING = {name: hazard for name, make in HAZARDS.items() if (hazard := make()).runs}


@crossed(("name", "weights"), RUNNING, ["copy", "share"], times=1, together=8)
def test_random_sub_models_of_each_hazard_compute_what_the_whole_does(name: str, weights: str, tmp_path: Path) -> None:
    model = graphcut.load(RUNNING[name].write(tmp_path))
    folder = tmp_path if weights == "share" else tmp_path / "copies"
    folder.mkdir(exist_ok=True)
    for seed in range(4):
        for feeds in RUNNING[name].ways_to_feed():
            check_extract(model, feeds, np.random.default_rng(seed), folder / "sub.onnx")


@each("name", RUNNING, together=16)
def test_every_tensor_of_a_hazard_can_be_exposed(name: str, tmp_path: Path) -> None:
    """With the outputs of the model, which stay what they are."""
    hazard = RUNNING[name]
    model = graphcut.load(hazard.write(tmp_path))
    inner = [name for name in model.tensors if name in model.graph.producer and name not in model.graph.writes]
    exposed = graphcut.extract(model, tmp_path / "sub.onnx", expose=inner)
    assert exposed.graph.reads == model.graph.reads
    assert exposed.graph.writes == (*model.graph.writes, *inner)


def two_branches(tmp_path: Path) -> Model:
    """out = (relu(x) + the second half of z) * the first half of z * mask + a constant."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Split", ["z"], ["b0", "b1"], name="split", num_outputs=2),
        helper.make_node("Add", ["a", "b1"], ["y"], name="add"),
        helper.make_node("Mul", ["y", "b0"], ["v"], name="mul"),
        helper.make_node("Mul", ["v", "mask"], ["w"], name="masked"),
        helper.make_node("Neg", ["k"], ["minus_k"], name="constant"),
        helper.make_node("Add", ["w", "minus_k"], ["out"], name="last"),
    ]
    k = numpy_helper.from_array(np.array([2.0], np.float32), "k")
    proto = model_of(nodes, [floats("x", 2), floats("z", 4), floats("mask", 2)], [floats("out", 2)], [k], opset=18)
    onnx.save(proto, tmp_path / "m.onnx")
    return graphcut.load(tmp_path / "m.onnx")


def ends(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return model.graph.reads, model.graph.writes


def test_an_error_says_which_inputs_are_missing_and_where_else_one_can_start(tmp_path: Path) -> None:
    model, output = two_branches(tmp_path), tmp_path / "sub.onnx"
    with pytest.raises(UsageError, match=r"'w' also needs 'z', 'mask'") as caught:
        graphcut.extract(model, output, inputs="relu", outputs="w")
    assert caught.value.hint == "add them to `inputs`, or start later, at `inputs='a,b1,b0,mask'`"
    assert ends(graphcut.extract(model, output, inputs=["a", "b1", "b0", "mask"], outputs="w")) == (
        ("a", "b1", "b0", "mask"),
        ("w",),
    )


def test_one_output_of_a_node_is_an_input_and_another_is_computed(tmp_path: Path) -> None:
    """graphsurgeon would shift the outputs of the Split and compute b1 from the values of b0."""
    model = two_branches(tmp_path)
    made = graphcut.extract(model, tmp_path / "sub.onnx", inputs=["x", "z", "b0"], outputs="v")
    assert ends(made) == (("x", "z", "b0"), ("v",))
    session = ort.InferenceSession(made.path)
    fed = {"x": [1, 2], "z": [10, 20, 30, 40], "b0": [5, 7]}
    found = session.run(["v"], {name: np.array(values, np.float32) for name, values in fed.items()})
    assert found[0].tolist() == [155, 294]  # (1 + 30) * 5, (2 + 40) * 7


def test_inputs_that_no_output_depends_on_are_dropped_or_kept(tmp_path: Path) -> None:
    model, output = two_branches(tmp_path), tmp_path / "sub.onnx"
    found = {}
    ways: tuple[Literal["keep", "drop"] | None, ...] = ("keep", "drop", None)
    for dead in ways:
        made = graphcut.extract(model, output, inputs=["x", "mask"], outputs="a", dead_inputs=dead, force=True)
        found[dead] = made.graph.reads
    assert found == {"keep": ("x", "mask"), "drop": ("x",), None: ("x",)}
    assert graphcut.extract(model, output, expose="a", force=True).graph.reads == ("x", "z", "mask")


def test_constants_and_weights_can_be_outputs_but_no_inputs(tmp_path: Path) -> None:
    model, output = two_branches(tmp_path), tmp_path / "sub.onnx"
    made = graphcut.extract(model, output, outputs=["minus_k", "k", "x"])
    assert ends(made) == (("x",), ("minus_k", "k", "x"))
    found = ort.InferenceSession(output).run(None, {"x": np.array([3, 4], np.float32)})
    assert [array.tolist() for array in found] == [[-2], [2], [3, 4]]
    with pytest.raises(UsageError, match="'minus_k' is a constant or a weight"):
        graphcut.extract(model, output, inputs="minus_k", outputs="out", force=True)


def test_a_node_stands_for_its_outputs_that_are_read_and_a_glob_for_all_that_match(tmp_path: Path) -> None:
    model, output = two_branches(tmp_path), tmp_path / "sub.onnx"
    assert graphcut.extract(model, output, outputs="split").graph.writes == ("b0", "b1")
    assert graphcut.extract(model, output, outputs=["b*"], force=True).graph.writes == ("b0", "b1")
    assert graphcut.extract(model, output, outputs=["b0*"], force=True).graph.writes == ("b0",)
    assert graphcut.extract(model, output, outputs=["m*"], force=True).graph.writes == ("mask", "v", "w")
    proto = onnx.load(model.path)
    proto.graph.node[1].name = ""  # it is called b0 then
    onnx.save(proto, model.path)
    assert graphcut.extract(model.path, output, outputs=["b0*"], force=True).graph.writes == ("b0",)
    with pytest.raises(UsageError, match="no node or tensor is called 'relo'") as caught:
        graphcut.extract(model, output, outputs="relo", force=True)
    assert caught.value.hint.startswith("did you mean 'relu'? ")


def test_shared_weights_are_ranges_of_the_files_of_the_model(external_llm: Model) -> None:
    path = external_llm.path.with_name("sub.onnx")
    layer = "/model/layers.1/*"
    graphcut.extract(external_llm, path, outputs=layer, weights="share")
    files = {
        entry.value
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert files == set(external_llm.data)
    assert not path.with_name("sub.onnx.data").exists()
    with pytest.raises(UsageError, match="must be in the folder of"):
        graphcut.extract(external_llm, path.parent.parent / "sub.onnx", outputs=layer, weights="share")
    with pytest.raises(UsageError, match="is also to be read"):
        graphcut.extract(external_llm, external_llm.path, outputs=layer, force=True)


def test_the_same_sub_model_is_the_same_bytes(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "m.onnx", hidden=16, layers=2, heads=2, kv_heads=1, vocab=32)
    first, second = (
        graphcut.extract(tmp_path / "m.onnx", tmp_path / name, outputs="/model/layers.*/add*").path
        for name in ("first.onnx", "second.onnx")
    )
    assert first.read_bytes() == second.read_bytes()


def test_an_input_that_is_assumed_makes_its_if_a_branch(tmp_path: Path) -> None:
    folder = FAMILIES["t5, merged"].write(tmp_path)
    merged = folder / "decoder_model_merged.onnx"
    made = graphcut.extract(merged, tmp_path / "later.onnx", assume={"use_cache_branch": True})
    assert "If" not in {node.op for node in made.graph.nodes}
    assert not {"use_cache_branch", "encoder_hidden_states"} & {*made.graph.reads}
    feeds = graphcut.generate_inputs(made, seed=1)
    whole = {value.name: value for value in by_hand.session_of(merged).get_inputs()}
    rest = {name: np.zeros([1, 1, 16], np.float32) for name in whole if name == "encoder_hidden_states"}
    wanted = by_hand.run(merged, {**feeds, **rest, "use_cache_branch": np.array([True])})
    found = by_hand.run(tmp_path / "later.onnx", feeds)
    assert all(np.array_equal(found[name], wanted[name]) for name in made.graph.writes)


def test_a_value_of_an_unknown_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = FAMILIES["t5, merged"].write(tmp_path)
    with pytest.raises(graphcut.UsageError, match="has no input 'use_cash'"):
        graphcut.extract(folder / "decoder_model_merged.onnx", tmp_path / "x.onnx", assume={"use_cash": True})
    assert not (tmp_path / "x.onnx").exists()
