"""`link`: weights that stay in the safetensors files of a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from checkpoints import save_checkpoint, save_safetensors
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphcut
from graphcut import At, Into, ModelError, UsageError, demos
from graphcut.loading.fingerprint import graph_digest
from graphcut.loading.safetensors_files import read_checkpoint

from cases import each
from conftest import LAYER_ENDS, model_of


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """A decoder as it was exported, and hf/, the checkpoint in two files with other names; one weight is not there."""
    path = tmp_path / "whole.onnx"
    demos.write("llm", path, layers=3, hidden=32)
    weights = [tensor for tensor in onnx.load(path).graph.initializer if len(tensor.raw_data) >= 1024]
    saved = {f"model.{i}.weight": numpy_helper.to_array(tensor) for i, tensor in enumerate(weights[:-1])}
    save_checkpoint(tmp_path / "hf", saved, files=2)
    return path


def test_all_weights_of_a_checkpoint_stay_in_its_files(decoder: Path) -> None:
    hf = decoder.parent / "hf"
    linking = graphcut.link(decoder, hf, decoder.parent / "linked.onnx")
    whole, linked = graphcut.load(decoder), graphcut.load(linking.path)
    assert graph_digest(linked.proto) == graph_digest(whole.proto)
    assert set(linked.data) == {
        *(f"hf/model-0000{i}-of-00002.safetensors" for i in (1, 2)),
        "linked.onnx.data",
    }
    (copied,) = linking.copied
    assert (decoder.parent / "linked.onnx.data").stat().st_size == copied.bytes
    names = {tensor.name: tensor.span for tensor in read_checkpoint(hf)}
    for tensor in linked.proto.graph.initializer:
        for weight in linking.weights:
            if weight.name == tensor.name and weight.saved is not None:
                assert linked.range_of(tensor) == names[weight.saved]


def test_it_is_split_by_sharing_and_is_proven_to_be_the_exported_model(decoder: Path) -> None:
    linking = graphcut.link(decoder, decoder.parent / "hf", decoder.parent / "linked.onnx")
    cascade = graphcut.split(linking.path, At(LAYER_ENDS), weights="share")
    assert graphcut.verify(linking.path, cascade).is_identical
    assert graphcut.verify(decoder, cascade).is_identical
    assert not any((decoder.parent / part.file).with_suffix(".onnx.data").exists() for part in cascade.parts)


def test_the_model_may_be_linked_in_place_of_a_folder_below_and_by_a_single_file(decoder: Path) -> None:
    hf = decoder.parent / "hf"
    linking = graphcut.link(decoder, hf / "model-00001-of-00002.safetensors", hf / "linked.onnx")
    assert set(graphcut.load(linking.path).data) == {"model-00001-of-00002.safetensors", "linked.onnx.data"}


def product(weight: NDArray[Any], *, is_output: bool = False) -> ModelProto:
    """x [n, 48] · w + w's shape, by MatMul; w may be an output, too."""
    kind = TensorProto.FLOAT if weight.dtype == np.float32 else TensorProto.FLOAT16
    x = helper.make_tensor_value_info("x", kind, ["n", weight.shape[0]])
    y = helper.make_tensor_value_info("y", kind, ["n", weight.shape[1]])
    w = helper.make_tensor_value_info("w", kind, weight.shape)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    return model_of(nodes, [x], [y, w] if is_output else [y], [numpy_helper.from_array(weight, "w")])


def answer(path: Path, x: NDArray[Any], *, optimized: bool) -> NDArray[Any]:
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]  # type: ignore[no-any-return]


@each("shape", [(48, 40), (2, 300), (700, 1100), (2049, 3)])
@each("dtype", [np.float32, np.float16])
def test_a_transposed_matrix_is_multiplied_there(shape: tuple[int, int], dtype: type[Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weight: NDArray[Any] = (draw.random(shape) - 0.5).astype(dtype)
    model = product(weight)
    if dtype is np.float16:
        model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, tmp_path / "m.onnx")
    save_safetensors(tmp_path / "model.safetensors", {"proj.weight": np.ascontiguousarray(weight.T)})
    copied = graphcut.link(tmp_path / "m.onnx", tmp_path, tmp_path / "copied.onnx")
    assert copied.copied == copied.weights
    assert [weight.is_transposed for weight in copied.copied] == [True]
    linking = graphcut.link(tmp_path / "m.onnx", tmp_path, tmp_path / "linked.onnx", transposed=True)
    (found,) = linking.weights
    assert (found.saved, found.is_transposed, linking.copied) == ("proj.weight", True, ())
    assert not (tmp_path / "linked.onnx.data").exists()
    proto = onnx.load(tmp_path / "linked.onnx", load_external_data=False)
    assert [one.domain for one in proto.opset_import].count("com.microsoft") == 1
    for rows in (1, 5):
        x: NDArray[Any] = draw.random((rows, shape[0])).astype(dtype)
        for optimized in (False, True):
            expected, made = (answer(tmp_path / f"{n}.onnx", x, optimized=optimized) for n in ("m", "linked"))
            if dtype is np.float32:
                np.testing.assert_array_equal(made, expected)
            np.testing.assert_allclose(made, expected, rtol=0, atol=0.002 * np.abs(expected).max())


def test_a_transposed_matrix_that_something_else_reads_is_copied(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).random((48, 40), np.float32)
    onnx.save(product(weight, is_output=True), tmp_path / "m.onnx")
    save_safetensors(tmp_path / "model.safetensors", {"w": np.ascontiguousarray(weight.T)})
    linking = graphcut.link(tmp_path / "m.onnx", tmp_path, tmp_path / "linked.onnx", transposed=True)
    assert [weight.name for weight in linking.copied] == ["w"]


def test_values_that_differ_in_one_bit_anywhere_are_not_taken(tmp_path: Path) -> None:
    """Each byte in turn of a small matrix, and of its transpose."""
    weight = np.random.default_rng(0).random((20, 16), np.float32)
    onnx.save(product(weight), tmp_path / "m.onnx")
    for stored in (weight, np.ascontiguousarray(weight.T)):
        for place in range(0, weight.nbytes, 37):
            raw = bytearray(stored.tobytes())
            raw[place] ^= 1
            changed = np.frombuffer(bytes(raw), np.float32).reshape(stored.shape)
            save_safetensors(tmp_path / "model.safetensors", {"w": changed})
            made = graphcut.link(tmp_path / "m.onnx", tmp_path, tmp_path / "l.onnx", transposed=True, force=True)
            assert made.copied == made.weights


def test_another_precision_has_no_equal_bytes_and_the_report_names_it(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).random((48, 40), np.float32)
    onnx.save(product(weight), tmp_path / "m.onnx")
    save_safetensors(tmp_path / "model.safetensors", {"w": weight.astype(ml_dtypes.bfloat16)})
    linking = graphcut.link(tmp_path / "m.onnx", tmp_path, tmp_path / "linked.onnx")
    assert (linking.copied, linking.saved_dtypes) == (linking.weights, ("BF16",))


def test_files_that_readers_of_onnx_would_refuse_are_refused(decoder: Path) -> None:
    (decoder.parent / "elsewhere").mkdir()
    with pytest.raises(UsageError, match="can't refer to") as caught:
        graphcut.link(decoder, decoder.parent / "hf", decoder.parent / "elsewhere" / "linked.onnx")
    assert caught.value.hint == f"write it into {(decoder.parent / 'hf').resolve()} with `output`, or a folder above"


def test_a_cache_whose_files_are_links_is_linked_from_the_folder_that_has_both(decoder: Path) -> None:
    """As in the Hugging Face cache: snapshots/ID/NAME leads to blobs/DIGEST."""
    home = decoder.parent / "models--x"
    (home / "snapshots").mkdir(parents=True)
    shutil.copytree(decoder.parent / "hf", home / "blobs")
    (home / "snapshots" / "1").mkdir()
    for file in (home / "blobs").iterdir():
        (home / "snapshots" / "1" / file.name).symlink_to(f"../../blobs/{file.name}")
    with pytest.raises(UsageError, match="can't refer to") as caught:
        graphcut.link(decoder, home / "snapshots" / "1", home / "snapshots" / "1" / "linked.onnx")
    assert caught.value.hint == f"write it into {home.resolve()} with `output`, or a folder above"
    linking = graphcut.link(decoder, home / "snapshots" / "1", home / "linked.onnx")
    assert len(linking.copied) == 1
    assert graphcut.verify(decoder, graphcut.split(linking.path, Into(2), weights="share"))


HEADER = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def damaged(header: object, *, values: bytes = bytes(4), length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + values


@each(
    ("content", "message"),
    [
        (b"", "would have 0"),
        (b"abc", "would have"),
        (damaged(HEADER, length=1 << 63), "would have 9,223,372,036,854,775,808"),
        (damaged(HEADER, values=b"", length=10**9), "would have 1,000,000,000"),
        (damaged(HEADER, values=bytes(3)), "'a' is bytes 0 to 4 of 3"),
        (damaged({"a": {"dtype": "F32", "data_offsets": [4, 0]}}), "'a' is bytes 4 to 0 of 4"),
        (damaged({"a": {"dtype": "F32", "data_offsets": [-4, 0]}}), "'a' is bytes -4 to 0 of 4"),
        (damaged({"a": {"dtype": "F32", "data_offsets": [0, 1 << 70]}}), "not a safetensors file|'a' is bytes 0 to"),
        (damaged({"a": {"dtype": "F32", "data_offsets": [0, "4"]}}), "not a safetensors file"),
        (damaged({"a": {"dtype": "F32"}}), "not a safetensors file"),
        (damaged([]), "not a safetensors file"),
        (damaged(b"\xff{}"), "not a safetensors file"),
        (damaged(b"[" * 100_000), "not a safetensors file"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert "model.safetensors" in str(caught.value)


def test_a_missing_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file .*\*\.safetensors"):
        read_checkpoint(tmp_path)
    with pytest.raises(ModelError, match=r"no file .*nowhere"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_checkpoint_that_can_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match="can't be read: Is a directory"):
        read_checkpoint(tmp_path)


def test_the_reader_agrees_with_the_library_on_what_it_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    draw = np.random.default_rng(0)
    arrays = {f"layer.{i}": draw.random((i + 1, 7), np.float32) for i in range(5)}
    library.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = {tensor.name: tensor for tensor in read_checkpoint(tmp_path)}
    assert {name: found[name].dtype for name in found} == dict.fromkeys(arrays, "F32")
    for name, array in arrays.items():
        span = found[name].span
        assert span.file.read_bytes()[span.offset : span.offset + span.length] == array.tobytes()
