"""A Hugging Face style folder: safetensors files and their index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

library: Any = import_module("safetensors.numpy") if find_spec("safetensors") else None
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def save_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """One file, by the library where it is installed; else as it writes it, the header padded to 8 bytes."""
    if library is not None and all(array.dtype.name != "bfloat16" for array in arrays.values()):
        library.save_file(dict(arrays), path, metadata={"format": "pt"})
        return
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(array.tobytes() for array in arrays.values()))


def save_checkpoint(folder: Path, arrays: Mapping[str, NDArray[Any]], *, files: int) -> None:
    """Files of about equal size with an index, in the order of the names, as transformers writes them."""
    folder.mkdir()
    names = sorted(arrays)
    weight_map = {}
    for i in range(files):
        own = names[len(names) * i // files : len(names) * (i + 1) // files]
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        save_safetensors(folder / file, {name: arrays[name] for name in own})
        weight_map.update(dict.fromkeys(own, file))
    index = {"metadata": {"total_size": sum(array.nbytes for array in arrays.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
