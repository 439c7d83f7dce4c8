"""Models that are given as objects in memory, written to a file and then opened like any other."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import weakref
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnx import ModelProto, TensorProto

from ..core.errors import ModelError
from .external_data import refer_to_file
from .subgraphs import is_external, tensors_in
from .wire_format import large_bytes

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

MAX_INLINE_BYTES: Final = 1 << 30
"""Values that together take more go to a data file beside the model: one message holds at most 2 GiB."""


class TemporaryFolder:
    """A folder that is deleted with this object, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="graphcut-"))  #: the folder.
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def write_model(source: ModelProto | gs.Graph, folder: Path) -> Path:
    """Write `source` to a file in `folder`, named after its graph, and return the path of the file.

    A ModelError if the values of some tensors are not in `source`, or onnx_graphsurgeon can't export it.
    """
    message = source
    if not isinstance(message, ModelProto):
        from .graphsurgeon_bridge import message_of_graph  # imports onnx_graphsurgeon

        message = message_of_graph(source)
    for tensor in tensors_in(message):
        if is_external(tensor):
            problem = f"the values of {tensor.name!r} are in a file, and a model in memory doesn't say in which folder"
            hint = "load the .onnx file by its path, or read the values first: onnx.load(path) does"
            raise ModelError(problem, hint=hint)
    name = re.sub(r"[^\w.-]+", "_", message.graph.name).strip("._") or "model"
    path = folder / f"{name[:64]}.onnx"
    _write(message, path)
    return path


def is_graph(source: object) -> bool:
    """Whether `source` is an `onnx_graphsurgeon.Graph`. Imports nothing: whoever has a graph has imported it."""
    package = sys.modules.get("onnx_graphsurgeon")
    return package is not None and isinstance(source, package.Graph)


def _write(message: ModelProto, path: Path) -> None:
    if sum(len(tensor.raw_data) for tensor in _large(message)) > MAX_INLINE_BYTES:
        message = deepcopy(message)
        with path.with_name(f"{path.name}.data").open("wb") as file:
            for tensor in _large(message):
                values = tensor.raw_data
                refer_to_file(tensor, f"{path.name}.data", file.tell(), len(values))
                file.write(values)
    path.write_bytes(message.SerializeToString(deterministic=True))


def _large(message: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in tensors_in(message) if len(tensor.raw_data) >= large_bytes(tensor.data_type)]
