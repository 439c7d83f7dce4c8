"""Models given as graphs of onnx_graphsurgeon, or as messages, and models as such graphs."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Cascade, LossWarning, Model, ModelError, SessionConfig, UsageError, to_graphsurgeon
from graphcut.demos import write
from graphcut.loading import in_memory

from cases import each
from conftest import floats, model_of
from hazards import HAZARDS
from hazards.hazard import Hazard

CUTTABLE = {name: hazard for name, make in HAZARDS.items() if (hazard := make()).cut and hazard.runs}
REFUSED = {
    "binary_string_attributes": "can't import",
    "body_weight_hides_outer_name": "would change node 'y'",
    "function_overload": "would change node 'boundary'",
    "map_input": "can't export",
    "optional_boundary": "can't export",
    "rare_attributes": "would change node 'sparse'",
    "sparse_constant_on_both_sides": "would change node 'k'",
}
"""Hazards that a graph can't hold, and a word of the error."""

HELD = {name: hazard for name, hazard in CUTTABLE.items() if name not in REFUSED}
RANDOM = {"random_nodes", "random_node_without_inputs", "random_node_in_branch"}
NO_NUMPY = {"bfloat16_boundary", "float8_boundary"}


def load_message(hazard: Hazard, folder: Path) -> ModelProto:
    """The model with the values of all its tensors, as `onnx.load` and `gs.import_onnx` want it."""
    return onnx.load(hazard.write(folder))


def run_by_ort(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def assert_same(mine: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(mine) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(mine[name], value)


def split_at(model: Model, cut: tuple[str, ...], folder: Path) -> Cascade:
    plan = graphcut.plan(graphcut.analyze(model), At(cut))
    return graphcut.split(model, plan, folder)


# In: from a graph, and from a message


@each("name", HELD)
def test_a_graph_is_cut_into_parts_that_give_the_bits_of_its_model(name: str, tmp_path: Path) -> None:
    hazard = HELD[name]
    message = load_message(hazard, tmp_path)
    model = graphcut.load(gs.import_onnx(message))
    cascade = split_at(model, hazard.cut, tmp_path / "parts")
    feeds = hazard.ways_to_feed()[-1]  # gs.import_onnx makes constants of inputs with defaults
    assert graphcut.verify(model, cascade, inputs=[feeds])
    if name not in RANDOM | NO_NUMPY:
        ours = graphcut.run(cascade, feeds, config=SessionConfig(optimize="none"))
        assert_same(ours, run_by_ort(load_message(hazard, tmp_path), feeds))


@each("name", CUTTABLE)
def test_a_message_is_cut_into_parts_that_give_the_bits_of_its_model(name: str, tmp_path: Path) -> None:
    hazard = CUTTABLE[name]
    message = load_message(hazard, tmp_path)
    before = message.SerializeToString(deterministic=True)
    model = graphcut.load(message)
    assert graphcut.verify(model, split_at(model, hazard.cut, tmp_path / "parts"), inputs=[hazard.feeds])
    assert message.SerializeToString(deterministic=True) == before


def test_a_model_in_memory_takes_dims_and_states(chain: Path) -> None:
    assert graphcut.load(onnx.load(chain), dims={"n": 2}).dims == {"n": 2}


@pytest.mark.usefixtures("own_garbage")
def test_its_file_lives_as_long_as_the_model(chain: Path) -> None:
    model = graphcut.load(onnx.load(chain))
    folder = model.path.parent
    assert model.path.name == "graph.onnx"
    other = graphcut.load(model, dims={"n": 2})
    del model
    gc.collect()
    assert folder.exists()
    del other
    gc.collect()
    assert not folder.exists()


@pytest.mark.usefixtures("own_garbage")
def test_nothing_is_left_of_a_model_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with suppress(ModelError):
        graphcut.load(helper.make_model(helper.make_graph([], "g", [], [])))
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_its_parts_have_the_name_of_its_graph_and_weights_of_their_own(chain: Path, tmp_path: Path) -> None:
    model = graphcut.load(onnx.load(chain))
    plan = graphcut.plan(graphcut.analyze(model), At(("exp",)))
    assert graphcut.split(model, plan).root == Path("graph.parts")
    with pytest.raises(UsageError, match="given in memory"):
        graphcut.split(model, plan, tmp_path, weights="share")


def test_its_parts_have_the_same_bytes_each_time_and_name_no_temporary_file(chain: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        split_at(graphcut.load(onnx.load(chain)), ("exp",), tmp_path / folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    assert json.loads((tmp_path / "one" / "cascade.json").read_text())["source"]["file"] == "../graph.onnx"


def test_values_beyond_the_limit_of_a_message_go_to_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_memory, "MAX_INLINE_BYTES", 1000)
    write("llm", tmp_path / "llm.onnx", layers=2, hidden=16, vocab=32)
    message = onnx.load(tmp_path / "llm.onnx")
    model = graphcut.load(message)
    assert model.path.with_name(f"{model.path.name}.data").exists()
    for tensor in message.graph.initializer:
        assert tensor.HasField("raw_data")
    assert model.weight_bytes == graphcut.load(tmp_path / "llm.onnx").weight_bytes
    assert graphcut.verify(model, split_at(model, ("/model/layers.0/add_1",), tmp_path / "parts"))


def test_values_in_files_are_refused(tmp_path: Path) -> None:
    path = HAZARDS["external_data"]().write(tmp_path)
    message = onnx.load(path, load_external_data=False)
    for given in (message, gs.import_onnx(message)):
        with pytest.raises(ModelError, match="in a file") as caught:
            graphcut.load(given)
        assert "by its path" in caught.value.hint


def test_other_objects_are_no_models() -> None:
    with pytest.raises(TypeError, match=r"an onnx.ModelProto or an onnx_graphsurgeon.Graph, got int"):
        graphcut.load(3)  # type: ignore[arg-type]


def by_hand() -> gs.Graph:
    """A graph that was never a message: no IR version, no opset imports."""
    x, y = gs.Variable("x", np.float32, ["n", 4]), gs.Variable("y", np.float32, ["n", 4])
    hidden = gs.Variable("h")
    weight = gs.Constant("w", np.arange(16, dtype=np.float32).reshape(4, 4))
    nodes = [gs.Node("MatMul", "one", inputs=[x, weight], outputs=[hidden]), gs.Node("Relu", "two", {}, [hidden], [y])]
    return gs.Graph(nodes, [x], [y], opset=17)


def test_a_graph_made_by_hand_is_cut(tmp_path: Path) -> None:
    model = graphcut.load(by_hand())
    assert model.proto.ir_version == 10
    assert graphcut.verify(model, split_at(model, ("one",), tmp_path / "parts"))


def test_two_tensors_of_one_name_are_refused() -> None:
    graph = by_hand()
    graph.nodes[1].inputs.append(gs.Constant("w", np.zeros(4, np.float32)))
    with pytest.raises(ModelError, match="share the same name"):
        graphcut.load(graph)


def test_an_input_without_a_dtype_is_refused() -> None:
    graph = by_hand()
    graph.inputs[0].dtype = None
    with pytest.raises(ModelError, match="must include dtype"):
        graphcut.load(graph)


def test_an_opset_that_would_not_be_exported_is_refused(chain: Path) -> None:
    graph = gs.import_onnx(onnx.load(chain))
    graph.opset = 18
    with pytest.raises(ModelError, match=r"graph.opset is 18, and graph.import_domains says 17"):
        graphcut.load(graph)


def test_values_that_would_be_exported_as_another_type_are_refused() -> None:
    graph = by_hand()
    values = np.ones((4, 4), ml_dtypes.float8_e4m3fnuz)
    graph.nodes[0].attrs["value"] = gs.Constant("eight", values)
    with pytest.raises(ModelError, match="float8e4m3fnuz values of 'eight'"):
        graphcut.load(graph)


def split_in_three(*, typed: bool) -> gs.Graph:
    """`a, b, c = Split(x)`, with the types of all tensors as inference finds them, or without."""
    message = HAZARDS["one_of_three_outputs"]().model
    return gs.import_onnx(onnx.shape_inference.infer_shapes(message) if typed else message)


def test_outputs_that_moved_to_the_place_of_a_removed_one_are_refused() -> None:
    graph = split_in_three(typed=True)
    first = graph.nodes[0].outputs[0]
    first.inputs.clear()  # `b` is now the first output of Split, and half of x instead of a third
    graph.inputs.append(first)
    with pytest.raises(
        ModelError, match=r"\(Split\) writes '[bc]' as float32\[2,3\], and the graph declares"
    ) as caught:
        graphcut.load(graph)
    assert "all its outputs" in caught.value.hint


def test_calls_of_two_overloads_are_refused() -> None:
    with pytest.raises(ModelError, match="two functions have one domain and name"):
        graphcut.load(gs.import_onnx(HAZARDS["function_overload"]().model))


# Out: to a graph


@pytest.mark.filterwarnings("error")
@each("name", [name for name in HELD if name not in {"annotated_everywhere", "training_info"}])
def test_a_model_as_a_graph_exports_to_the_bits_of_the_model(name: str, tmp_path: Path) -> None:
    hazard = HELD[name]
    exported = gs.export_onnx(to_graphsurgeon(hazard.write(tmp_path)))
    if name not in RANDOM | NO_NUMPY:
        for feeds in hazard.ways_to_feed():
            assert_same(run_by_ort(exported, feeds), run_by_ort(load_message(hazard, tmp_path), feeds))


@each("name", REFUSED)
def test_what_a_graph_would_change_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=REFUSED[name]):
        to_graphsurgeon(HAZARDS[name]().write(tmp_path))


def test_a_sequence_is_no_input_of_a_graph(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    length = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    model = model_of([helper.make_node("SequenceLength", ["s"], ["n"])], [helper.make_value_info("s", kind)], [length])
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="it would change 'input'"):
        to_graphsurgeon(tmp_path / "m.onnx")


def test_what_a_graph_has_no_place_for_is_said(tmp_path: Path) -> None:
    with pytest.warns(LossWarning) as caught:
        graph = to_graphsurgeon(HAZARDS["annotated_everywhere"]().write(tmp_path))
    (warning,) = caught
    assert "5 metadata_props" in str(warning.message)
    assert "2 device_configurations" in str(warning.message)
    assert warning.filename == __file__
    assert len(graph.nodes) == len(HAZARDS["annotated_everywhere"]().model.graph.node)


def test_parts_can_be_changed_and_loaded_again(tmp_path: Path) -> None:
    write("llm", tmp_path / "llm.onnx", layers=2, hidden=16, vocab=32)
    model = graphcut.load(tmp_path / "llm.onnx")
    cascade = split_at(model, ("/model/layers.0/add_1",), tmp_path / "parts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)
        graph = to_graphsurgeon(cascade.file(cascade.parts[0]))
    weight = next(t for t in graph.tensors().values() if isinstance(t, gs.Constant) and t.values.ndim == 2)
    weight.values = weight.values * 2
    changed = graphcut.load(graph)
    assert changed.graph.reads == cascade.parts[0].reads
    assert changed.graph.writes == cascade.parts[0].writes


def test_the_model_stays_as_it_is(chain: Path) -> None:
    model = graphcut.load(chain)
    before = model.proto.SerializeToString(deterministic=True)
    graph = to_graphsurgeon(model)
    graph.nodes[0].name = "other"
    graph.import_domains.append(helper.make_opsetid("com.example", 1))
    assert model.proto.SerializeToString(deterministic=True) == before


def test_a_default_can_still_be_overridden() -> None:
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "bias")]
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    message = model_of(nodes, [floats("bias", 4), floats("x", 4)], [floats("y", 4)], weights)
    graph = to_graphsurgeon(graphcut.load(message))
    assert [tensor.name for tensor in graph.inputs] == ["bias", "x"]
    exported = gs.export_onnx(graph)
    assert exported.graph.initializer[0].data_type == TensorProto.FLOAT
    zeros = np.zeros(4, np.float32)
    np.testing.assert_array_equal(run_by_ort(exported, {"x": zeros})["y"], zeros + 1)
    np.testing.assert_array_equal(run_by_ort(exported, {"x": zeros, "bias": zeros + 3})["y"], zeros + 3)
