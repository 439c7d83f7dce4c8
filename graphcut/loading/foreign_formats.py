"""Files of other formats that are given instead of an ONNX model: what they are, and what to do."""

import zipfile
from pathlib import Path
from typing import Final

from ..core.errors import ModelError

_PYTORCH: Final = "a PyTorch file", "export the model with torch.onnx.export"
_KERAS: Final = "a Keras file", "convert the model with tf2onnx, or export it with model.export(..., format='onnx')"
_TFLITE: Final = "a TensorFlow Lite model", "convert it with tf2onnx"
_SAFETENSORS: Final = "a safetensors file (weights without a graph)", "export the model that has these weights to ONNX"
_SIGNATURES: Final = (  #: what a file has at an offset, and what it is then.
    (0, b"\x89HDF\r\n\x1a\n", _KERAS),
    (0, b"GGUF", ("a GGUF file (weights for llama.cpp)", "export the model that it was made from to ONNX")),
    (0, b"version https://git-lfs", ("a pointer of Git LFS, not the file itself", "fetch the file with git lfs pull")),
    (0, b"<", ("a page or XML file", "if you downloaded it, look at what the server answered")),
    (0, b"\x1f\x8b", ("a gzip archive", "unpack it with gunzip, and name the .onnx file")),
    (0, b"BZh", ("a bzip2 archive", "unpack it with bunzip2, and name the .onnx file")),
    (0, b"\xfd7zXZ\0", ("an xz archive", "unpack it with unxz, and name the .onnx file")),
    (0, b"\x28\xb5\x2f\xfd", ("a zstd archive", "unpack it with unzstd, and name the .onnx file")),
    (257, b"ustar", ("a tar archive", "unpack it with tar, and name the .onnx file in it")),
    *((0, mark, ("a text file in UTF-16", "name the .onnx file")) for mark in (b"\xff\xfe", b"\xfe\xff")),
    (0, b"{", ("a JSON file", "name the .onnx file, not a plan or the manifest of a cascade")),
    *((0, bytes([0x80, protocol]), _PYTORCH) for protocol in range(2, 6)),  # a pickle
    (2, b"\0\0TFL3", _TFLITE),
    (2, b"\0\0ORTM", ("a model in ONNX Runtime's own format", "name the .onnx file that it was converted from")),
    (4, b"\0\0\0\0{", _SAFETENSORS),
)
_SUFFIXES: Final = {
    ".pb": ("a TensorFlow graph", "convert the model with tf2onnx"), ".pt": _PYTORCH, ".pth": _PYTORCH,
    ".keras": _KERAS, ".tflite": _TFLITE, ".safetensors": _SAFETENSORS,
}  # fmt: skip


def refuse_foreign(path: Path) -> None:
    """Raise a ModelError that names the format of a file that is no ONNX model, by its first bytes or its suffix."""
    with path.open("rb") as file:
        head = file.read(512)
    found = next((known for start, signature, known in _SIGNATURES if head[start:].startswith(signature)), None)
    if head.startswith(b"PK\3\4"):
        found = _in_archive(path)
    if found is None and head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        found = "a text file", "name the .onnx file"
    found = found or _SUFFIXES.get(path.suffix.lower())
    if found is not None:
        raise ModelError(f"{path} is {found[0]}, not an ONNX model", hint=found[1])


def _in_archive(path: Path) -> tuple[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # it is damaged
        names = []
    if any(name.endswith("data.pkl") for name in names):
        return _PYTORCH
    if "model.weights.h5" in names or "config.json" in names:
        return _KERAS
    return _SUFFIXES.get(path.suffix.lower(), ("a zip archive", "unpack it, and name the .onnx file in it"))
