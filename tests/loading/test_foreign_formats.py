"""Files of other formats, given as a model, are named with what to do."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import onnx
import pytest
from onnx import helper

from graphcut import ModelError, load

from cases import each
from conftest import floats, model_of


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return made.getvalue()


@each(
    ("name", "content", "kind", "hint"),
    [
        ("a.pt", archive("a/data.pkl"), "a PyTorch file", "torch.onnx.export"),
        ("model", b"\x80\x02}q", "a PyTorch file", "torch.onnx.export"),
        ("model", archive("config.json", "model.weights.h5"), "a Keras file", "tf2onnx"),
        ("model", archive("config.json"), "a Keras file", "tf2onnx"),
        ("model", archive("model.weights.h5"), "a Keras file", "tf2onnx"),
        ("model", b"\x89HDF\r\n\x1a\n" + bytes(20), "a Keras file", "tf2onnx"),
        ("model", b"\x1c\0\0\0TFL3" + bytes(20), "a TensorFlow Lite model", "tf2onnx"),
        ("a.pb", b"\x0a\x10\x0a\x03abc", "a TensorFlow graph", "tf2onnx"),
        (
            "model",
            b"\x10\0\0\0\0\0\0\0" + b'{"a":{}}',
            "a safetensors file (weights without a graph)",
            "export the model",
        ),
        ("model.onnx", gzip.compress(b"model"), "a gzip archive", "unpack it with gunzip"),
        ("model.onnx", bz2.compress(b"model"), "a bzip2 archive", "unpack it with bunzip2"),
        ("model.onnx", lzma.compress(b"model"), "an xz archive", "unpack it with unxz"),
        ("model.onnx", tarfile.TarInfo("m.onnx").tobuf(), "a tar archive", "unpack it with tar"),
        ("model.onnx", "Text".encode("utf-16"), "a text file in UTF-16", "name the .onnx file"),
        ("model.onnx", b"This is a text.\r\n", "a text file", "name the .onnx file"),
        ("model", b"GGUF\3\0\0\0", "a GGUF file (weights for llama.cpp)", "export the model"),
        ("model", b"\x18\0\0\0ORTM" + bytes(20), "a model in ONNX Runtime's own format", "converted from"),
        ("model", b'{"format": 1}', "a JSON file", "name the .onnx file"),
        ("model", b"<!DOCTYPE html>", "a page or XML file", "what the server answered"),
        (
            "model",
            b"version https://git-lfs.github.com/spec/v1\n",
            "a pointer of Git LFS, not the file itself",
            "git lfs pull",
        ),
        ("model", archive("model.onnx"), "a zip archive", "unpack it"),
        ("model", archive("model.onnx")[:-9], "a zip archive", "unpack it"),
    ],
)
def test_the_format_is_named(tmp_path: Path, name: str, content: bytes, kind: str, hint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name} is {kind}, not an ONNX model"
    assert hint in caught.value.hint


def test_a_model_with_another_suffix_is_a_model(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [floats("x", 2)], [floats("y", 2)])
    onnx.save(model, tmp_path / "model.pb", format="protobuf")
    assert load(tmp_path / "model.pb").graph.reads == ("x",)
