"""What the demos promise: valid models that run, the same bytes each time, and a cache that changes no answer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from graphcut import demos
from graphcut.core.errors import GraphcutError, ModelError, UsageError
from graphcut.demos import drafting, llm, noise, saving

from cases import each
from conftest import ROOT
from control_flow import MODELS, write_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[Any]]

SMALL_LLM: dict[str, Any] = {"hidden": 16, "layers": 2, "vocab": 32}
PROMPT = np.array([[3, 1, 4, 1, 5]])


def drawn(folder: Path, name: str, *, external: bool | None = None, **options: object) -> Path:
    path = folder / f"{name}.onnx"
    write_model(name, path, external=external, **options)
    return path


def run(path: Path, feeds: Tensors) -> dict[str, NDArray[Any]]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def llm_feeds(ids: NDArray[np.int64], path: Path, *, present: Tensors | None = None, padded: int = 0) -> Tensors:
    """Feeds for `ids` after what is in `present`; the first `padded` places of the whole are padding."""
    inputs = onnx.load(path, load_external_data=False).graph.input
    caches: dict[str, NDArray[Any]] = {}
    for cache in inputs:
        if cache.name.startswith("past_key_values."):
            _, heads, _, width = (dim.dim_value for dim in cache.type.tensor_type.shape.dim)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(cache.type.tensor_type.elem_type)
            kept = (present or {}).get(cache.name.replace("past_key_values", "present"))
            caches[cache.name] = np.zeros((len(ids), heads, 0, width), dtype) if kept is None else kept
    past = next(iter(caches.values())).shape[2]
    mask = np.ones((len(ids), past + ids.shape[1]), np.int64)
    mask[:, :padded] = 0
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, past:]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **caches}


def feeds_of(name: str, path: Path) -> Tensors:
    random = np.random.default_rng(0)
    match name:
        case "llm":
            return llm_feeds(PROMPT, path)
        case "control-flow":
            return {"x": random.random((5, 8), np.float32), "flag": np.array(1, np.bool_)}
        case _:
            return {"image": random.random((2, 3, 64, 64), np.float32)}


def weights_of(path: Path) -> dict[str, NDArray[Any]]:
    return {weight.name: numpy_helper.to_array(weight) for weight in onnx.load(path).graph.initializer}


@pytest.fixture(scope="module", params=MODELS)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, drawn(tmp_path_factory.mktemp("demo"), request.param)


# Every demo


def test_every_demo_is_a_valid_model(demo: tuple[str, Path]) -> None:
    onnx.checker.check_model(demo[1], full_check=True)


def test_every_demo_runs_and_stays_finite(demo: tuple[str, Path]) -> None:
    name, path = demo
    outputs = run(path, feeds_of(name, path))
    assert all(np.isfinite(value).all() for value in outputs.values())
    assert all(value.std() > 0 for value in outputs.values())


def test_every_output_has_the_shape_it_declares(demo: tuple[str, Path]) -> None:
    name, path = demo
    outputs = run(path, feeds_of(name, path))
    for declared in onnx.load(path).graph.output:
        dims = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
        shape = outputs[declared.name].shape
        assert [size if dim else 0 for dim, size in zip(dims, shape, strict=True)] == dims


def test_the_same_demo_is_the_same_bytes(demo: tuple[str, Path], tmp_path: Path) -> None:
    name, path = demo
    assert drawn(tmp_path, name).read_bytes() == path.read_bytes()


def test_the_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    code = "import pathlib, sys, control_flow as c; [c.write_model(n, pathlib.Path(sys.argv[1], n)) for n in c.MODELS]"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd=ROOT / "tests", env=environment)
    for name in MODELS:
        assert (tmp_path / name).read_bytes() == drawn(tmp_path, name).read_bytes()


def test_every_demo_says_who_made_it_and_for_which_reader(demo: tuple[str, Path]) -> None:
    model = onnx.load(demo[1])
    versions = {entry.domain: entry.version for entry in model.opset_import}
    assert (model.producer_name, model.ir_version, versions[""]) == ("graphcut demo", 8, 17)


def test_types_are_left_for_inference_which_finds_them_all(demo: tuple[str, Path]) -> None:
    model = onnx.load(demo[1])
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    typed = {value.name for value in (*inferred.value_info, *inferred.output) if value.type.WhichOneof("value")}
    assert not model.graph.value_info
    assert [name for node in model.graph.node for name in node.output if name not in typed] == []


def test_names_are_unique_and_say_where_a_node_is(demo: tuple[str, Path]) -> None:
    nodes = onnx.load(demo[1]).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    outputs = {node.output[0]: f"{node.name}_output_0" for node in nodes}
    declared = {value.name for value in onnx.load(demo[1]).graph.output}
    assert all(actual in declared or actual == expected for actual, expected in outputs.items())


def test_no_two_weights_are_the_same_bytes(demo: tuple[str, Path]) -> None:
    weights = weights_of(demo[1])
    assert len({hashlib.sha256(value.tobytes()).digest() for value in weights.values()}) == len(weights)


# llm


def test_a_token_at_a_time_answers_as_the_whole_prompt_does(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm")
    whole = run(path, llm_feeds(PROMPT, path))
    begun = run(path, llm_feeds(PROMPT[:, :4], path))
    ended = run(path, llm_feeds(PROMPT[:, 4:], path, present=begun))
    np.testing.assert_allclose(ended["logits"][:, -1], whole["logits"][:, -1], atol=1e-5)
    np.testing.assert_allclose(begun["logits"], whole["logits"][:, :4], atol=1e-5)
    np.testing.assert_allclose(ended["present.5.value"], whole["present.5.value"], atol=1e-5)


def test_later_tokens_do_not_change_earlier_answers_but_earlier_ones_change_later(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM)
    logits = run(path, llm_feeds(PROMPT, path))["logits"]
    last, first = PROMPT.copy(), PROMPT.copy()
    last[0, -1], first[0, 0] = 9, 9
    np.testing.assert_array_equal(run(path, llm_feeds(last, path))["logits"][:, :-1], logits[:, :-1])
    assert np.abs(run(path, llm_feeds(first, path))["logits"][:, -1] - logits[:, -1]).max() > 1e-3


def test_padding_on_the_left_changes_no_answer(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM)
    padded = np.concatenate([np.zeros((1, 3), np.int64), PROMPT], axis=1)
    logits = run(path, llm_feeds(padded, path, padded=3))["logits"]
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:, 3:], run(path, llm_feeds(PROMPT, path))["logits"], atol=1e-5)


def test_the_interface_is_that_of_a_genai_export(tmp_path: Path) -> None:
    graph = onnx.load(drawn(tmp_path, "llm", **SMALL_LLM)).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    past, present = ["batch", 2, "past", 4], ["batch", 2, "total", 4]
    assert shapes == {
        "input_ids": ["batch", "seq"],
        "attention_mask": ["batch", "total"],
        "position_ids": ["batch", "seq"],
        **{f"past_key_values.{layer}.{kind}": past for layer in (0, 1) for kind in ("key", "value")},
        "logits": ["batch", "seq", 32],
        **{f"present.{layer}.{kind}": present for layer in (0, 1) for kind in ("key", "value")},
    }


def test_layers_are_named_as_documented(tmp_path: Path) -> None:
    graph = onnx.load(drawn(tmp_path, "llm", **SMALL_LLM)).graph
    operators = {node.name: node.op_type for node in graph.node}
    assert operators["/model/embed_tokens/Gather"] == "Gather"
    assert operators["/lm_head/MatMul"] == "MatMul"
    for layer in ("/model/layers.0", "/model/layers.1"):
        assert (operators[f"{layer}/add"], operators[f"{layer}/add_1"]) == ("Add", "Add")
        assert operators[f"{layer}/self_attn/q_proj/MatMul"] == operators[f"{layer}/mlp/gate_proj/MatMul"] == "MatMul"
    assert "/model/layers.1/add_1_output_0" in {name for node in graph.node for name in node.output}


def test_mask_and_angles_are_the_only_activations_that_all_layers_share(tmp_path: Path) -> None:
    graph = onnx.load(drawn(tmp_path, "llm", hidden=16, layers=3, vocab=32)).graph
    writers = {name: node.name for node in graph.node for name in node.output}
    read_by_layer = [
        {
            name
            for node in graph.node
            if node.name.startswith(f"/model/layers.{layer}/")
            for name in node.input
            if name in writers and not writers[name].startswith(f"/model/layers.{layer}/")
        }
        for layer in range(3)
    ]
    assert set.intersection(*read_by_layer) == {
        "/model/causal_mask/Where_output_0",
        "/model/rotary_emb/Cos_output_0",
        "/model/rotary_emb/Sin_output_0",
    }
    assert [len(names) for names in read_by_layer] == [4, 4, 4]


def test_heads_that_share_nothing_need_no_expanding(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM, kv_heads=4)
    assert "Expand" not in {node.op_type for node in onnx.load(path).graph.node}
    assert np.isfinite(run(path, llm_feeds(PROMPT, path))["logits"]).all()


def test_a_tied_head_reads_the_embedding(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM, tied=True)
    graph = onnx.load(path).graph
    embedding = "model.embed_tokens.weight"
    assert [node.name for node in graph.node if embedding in node.input] == [
        "/model/embed_tokens/Gather",
        "/lm_head/Transpose",
    ]
    assert "lm_head.weight" not in {weight.name for weight in graph.initializer}
    assert run(path, llm_feeds(PROMPT, path))["logits"].shape == (1, 5, 32)


def test_float16_stays_finite_and_near_float32(tmp_path: Path) -> None:
    half, full = tmp_path / "half.onnx", tmp_path / "full.onnx"
    demos.write("llm", half, dtype="float16")
    demos.write("llm", full)
    onnx.checker.check_model(half, full_check=True)
    logits = run(half, llm_feeds(PROMPT, half))["logits"]
    assert logits.dtype == np.float16
    np.testing.assert_allclose(logits, run(full, llm_feeds(PROMPT, full))["logits"], atol=0.05)


def test_float16_sums_squares_in_float32_and_multiplies_in_float16(tmp_path: Path) -> None:
    model = onnx.load(drawn(tmp_path, "llm", **SMALL_LLM, dtype="float16"))
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    found = {(node.op_type, types[node.output[0]]) for node in model.graph.node if node.op_type in ("Pow", "MatMul")}
    assert found == {("Pow", onnx.TensorProto.FLOAT), ("MatMul", onnx.TensorProto.FLOAT16)}


def test_the_mlp_is_eight_thirds_as_wide_unless_asked_otherwise() -> None:
    asked = [llm.Llm(hidden=64), llm.Llm(hidden=48), llm.Llm(hidden=4096), llm.Llm(intermediate=100)]
    assert [one.mlp_width for one in asked] == [176, 128, 10928, 100]


# The other models


def test_the_unet_hands_four_tensors_over_its_middle(tmp_path: Path) -> None:
    graph = onnx.load(drawn(tmp_path, "unet")).graph
    below = [node for node in graph.node if node.name.startswith(("/up", "/head"))]
    above = {name for node in graph.node if node not in below for name in node.output}
    assert len(above & {name for node in below for name in node.input}) == 4


def test_depth_reads_the_middle_of_the_trunk(tmp_path: Path) -> None:
    graph = onnx.load(drawn(tmp_path, "multitask")).graph
    trunk = {node.output[0] for node in graph.node if node.name.startswith("/trunk")}
    read = {
        head: {name for node in graph.node if node.name.startswith(f"/heads/{head}/") for name in node.input} & trunk
        for head in ("logits", "boxes", "depth")
    }
    last, middle = {"/trunk/stage.3/Add_output_0"}, {"/trunk/stage.1/Add_output_0"}
    assert read == {"logits": last, "boxes": last, "depth": middle}


def test_control_flow_takes_both_branches(tmp_path: Path) -> None:
    path = drawn(tmp_path, "control-flow")
    feeds = feeds_of("control-flow", path)
    taken, left = run(path, feeds), run(path, {**feeds, "flag": np.array(0, np.bool_)})
    assert taken["y"].shape == (5, 8)
    assert taken["trace"].shape == (3, 8)
    assert np.abs(taken["y"] - left["y"]).max() > 1e-3


def test_control_flow_has_every_hazard(tmp_path: Path) -> None:
    model = onnx.load(drawn(tmp_path, "control-flow"))
    operators = {node.op_type for node in model.graph.node}
    assert {"If", "Loop", "Scan", "Swish", "SequenceConstruct", "SequenceInsert"} <= operators
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    inner = next(node for node in body.node if node.op_type == "If")
    captured = {name for branch in inner.attribute for node in branch.g.node for name in node.input}
    assert captured == {"carried", "/enter/Swish_output_0", "gain"}
    chosen = next(node for node in model.graph.node if node.op_type == "If")
    assert any(node.op_type == "Swish" for branch in chosen.attribute for node in branch.g.node)


# Files


def test_external_weights_lie_beside_the_model_each_at_a_page(tmp_path: Path) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM, external=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["llm.onnx", "llm.onnx.data"]
    onnx.checker.check_model(path, full_check=True)
    end = 0
    for weight in onnx.load(path, load_external_data=False).graph.initializer:
        if weight.data_location == onnx.TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in weight.external_data}
            assert place["location"] == "llm.onnx.data"
            assert int(place["offset"]) == -(-end // 4096) * 4096
            end = int(place["offset"]) + int(place["length"])
    assert (tmp_path / "llm.onnx.data").stat().st_size == end > 0


def test_external_and_inline_weights_have_the_same_values(tmp_path: Path) -> None:
    outside, within = tmp_path / "outside.onnx", tmp_path / "within.onnx"
    demos.write("llm", outside, external=True)
    demos.write("llm", within, external=False)
    for (name, value), (other_name, other) in zip(weights_of(outside).items(), weights_of(within).items(), strict=True):
        assert name == other_name
        np.testing.assert_array_equal(value, other)


def test_many_weights_go_outside_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_INLINE_AT_MOST_BYTES", 10_000)
    drawn(tmp_path, "llm", **SMALL_LLM)
    drawn(tmp_path, "control-flow")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["control-flow.onnx", "llm.onnx", "llm.onnx.data"]


def test_an_inline_file_is_what_protobuf_would_read_and_write(tmp_path: Path) -> None:
    path = drawn(tmp_path, "resnet")
    assert len(onnx.load(path).SerializeToString()) == path.stat().st_size


def test_more_than_protobuf_holds_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    sizes = {"hidden": 3072, "layers": 32, "heads": 32, "kv_heads": 32, "intermediate": 8192, "vocab": 32064}
    with pytest.raises(ModelError, match=r"the model is 7\.1 GiB, and a single ONNX file holds less") as caught:
        drawn(tmp_path, "llm", **sizes, dtype="float16", external=False)
    assert "in a data file" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_dies_leaves_the_old_files_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = drawn(tmp_path, "llm", **SMALL_LLM, external=True)
    old = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def die(_: drafting.Draft, __: object = ()) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(drafting.Draft, "model", die)
    with pytest.raises(KeyboardInterrupt):
        demos.write("llm", path, **SMALL_LLM, external=True, tied=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == old


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphcutError, match=r"writing .*/none/unet\.onnx failed: No such file") as caught:
        drawn(tmp_path / "none", "unet")
    assert caught.value.hint == "choose a folder that exists and has enough free space"


# Names and options


@each(
    ("name", "options", "message", "hint"),
    [
        ("lmm", {}, "no demo is called 'lmm'", "did you mean 'llm'?"),
        ("bert", {}, "no demo is called 'bert'", "choose from llm, unet, resnet, multitask"),
        ("llm", {"layer": 3}, "demo 'llm' has no option 'layer'", "did you mean 'layers'?"),
        ("unet", {"hidden": 3}, "demo 'unet' has no option 'hidden'", "its options besides 'external': none"),
        ("llm", {"hidden": "64"}, "option 'hidden' of demo 'llm': expected `int`, got `str`", "options_of(...)"),
        ("llm", {"layers": 0}, "option 'layers' of demo 'llm': expected `int` >= 1", "options_of(...)"),
        ("llm", {"dtype": "int8"}, "option 'dtype' of demo 'llm': invalid enum value 'int8'", "options_of(...)"),
        ("llm", {"hidden": 36}, "hidden = 36 does not divide into 4 heads of an even size", "a multiple of 8"),
        ("llm", {"kv_heads": 3}, "4 heads cannot share 3 kv_heads evenly", "a multiple of `kv_heads`"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    name: str, options: dict[str, Any], message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        drawn(tmp_path, name, **options)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_options_are_listed_with_their_defaults() -> None:
    assert demos.options_of("llm") == {
        "hidden": 64, "layers": 6, "heads": 4, "kv_heads": 2, "intermediate": None, "vocab": 256,
        "dtype": "float32", "tied": False,
    }  # fmt: skip
    assert demos.options_of("unet") == {}


def test_listing_the_demos_loads_no_onnx() -> None:
    code = "import sys; from graphcut.demos import DEMOS; print(len(DEMOS), 'onnx' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "4 False\n"


# Weight values


def test_weights_have_the_mean_and_scale_that_they_should() -> None:
    weight = noise.RandomWeight(name="w", shape=(1000, 1000), dtype="float32", mean=1.0, scale=0.1, index=3)
    values = np.frombuffer(b"".join(weight.pieces()), np.float32)
    assert values.nbytes == weight.size_bytes
    assert values.mean() == pytest.approx(1.0, abs=1e-3)
    assert values.std() == pytest.approx(0.1, rel=1e-2)
    assert np.abs(values - 1.0).max() <= 0.35


def test_rows_of_a_large_weight_are_not_copies() -> None:
    weight = noise.RandomWeight(name="w", shape=(1024, 1024), dtype="float16", mean=0.0, scale=1.0, index=0)
    rows = np.frombuffer(b"".join(weight.pieces()), np.float16).reshape(weight.shape)
    assert len(np.unique(rows, axis=0)) == 1024
