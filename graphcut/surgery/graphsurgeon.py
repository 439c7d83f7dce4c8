"""A model or part as a graph of onnx_graphsurgeon. The other direction is `graphcut.load`."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import LossWarning
from ..loading.external_data import read_values
from ..loading.model import Model
from ..loading.opening import load
from ..loading.subgraphs import is_external, tensors_in

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


def to_graphsurgeon(model: Model | str | Path) -> gs.Graph:
    """A model as a graph of onnx_graphsurgeon, with all its weights in memory.

    The graph computes what the model computes: it is exported again and compared with the model before it is returned.
    An input with a default is a `gs.Constant` among the inputs of the graph. What it has no place for, such as metadata
    of nodes, is lost, and a `LossWarning` says how much of what.

    Args:
        model: a model, or the path of one; for a part of a cascade, `cascade.file(part)`.

    Raises:
        ModelError: onnx_graphsurgeon can't hold the model, or would change what it computes.
    """
    from ..loading.graphsurgeon_bridge import graph_of_message, lost_by_graph  # imports onnx_graphsurgeon

    model = model if isinstance(model, Model) else load(model)
    if lost := lost_by_graph(model.proto):
        fields = ", ".join(f"{number:,} {field}" for field, number in lost.items())
        warnings.warn(f"a graph of onnx_graphsurgeon has no place for {fields}", LossWarning, stacklevel=2)
    message = deepcopy(model.proto)
    for tensor in tensors_in(message):
        if is_external(tensor):
            read_values(tensor, model.range_of(tensor))
    return graph_of_message(message)
