"""Sizes of tensors whose values a model does not need: it reads them of an input with the same size instead.

The keys and values that a decoder makes of an encoder's output are reshaped with the batch of the decoder's own
tensors, in exports of torch: they would depend on the tokens, but for this.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.numpy_helper import from_array, to_array

from ..core.graph import reached
from .model import Model
from .operations import constants_in
from .subgraphs import domain, fresh, names_in

_Index = np.ndarray[Any, Any]  #: the index of a Gather: one number, in whatever shape.


def read_sizes_of_needed(model: Model, proto: ModelProto) -> bool:
    """Let nodes that pick one size of a tensor pick it of an input of which the outputs need the values, too.

    Only what such an input has is known: its symbols, and numbers. Changes `proto`, a copy of the model's message, and
    returns whether it did.
    """
    needed = _needed_inputs(model)
    if needed >= {*model.graph.reads}:
        return False
    types, changed = model.boundary_types, False
    shapes = {name: types[name].shape or () for name in model.graph.reads if name in needed}
    first = reversed(shapes.items())  # of several the first: of a decoder its tokens, which no other part makes
    known = {dim: (name, i) for name, dims in first for i, dim in enumerate(dims) if isinstance(dim, str)}
    for node, source, index in list(_picked_sizes(proto)):
        shape = () if source in needed or source not in types else types[source].shape or ()
        at = int(index.ravel()[0])
        dim = shape[at] if -len(shape) <= at < len(shape) else None
        if isinstance(dim, int):
            node.CopyFrom(NodeProto(op_type="Constant", name=node.name, output=node.output))
            node.attribute.add(name="value", type="TENSOR").t.CopyFrom(from_array(np.full_like(index, dim)))
        elif dim in known:
            name, axis = known[str(dim)]
            taken = names_in(proto.graph)
            sizes, place = (fresh(f"{node.output[0]}/{what}", taken) for what in ("sizes", "axis"))
            proto.graph.node.add(op_type="Shape", name=sizes, input=[name], output=[sizes])
            proto.graph.initializer.append(from_array(np.full_like(index, axis), place))
            node.input[:] = [sizes, place]
        changed = changed or isinstance(dim, int) or dim in known
    return changed


def _needed_inputs(model: Model) -> set[str]:
    """The inputs of which the outputs need values, and not only sizes."""
    graph = model.graph
    read = {name: node.reads for node in graph.nodes if node.op != "Shape" for name in node.writes}
    return reached(graph.writes, lambda name: read.get(name, ())).intersection(graph.reads)


def _picked_sizes(proto: ModelProto) -> Iterator[tuple[NodeProto, str, _Index]]:
    """The nodes that pick one size (Gather of a Shape, by a constant index), with the tensor and the index."""
    plain = [node for node in proto.graph.node if not domain(node.domain)]
    sources = {node.output[0]: node.input[0] for node in plain if node.op_type == "Shape" and not node.attribute}
    values = constants_in(proto)
    for node in plain:
        value = values.get(node.input[1]) if node.op_type == "Gather" and node.input[0] in sources else None
        if value is not None and all(size == 1 for size in value.dims):
            yield node, sources[node.input[0]], to_array(value)
