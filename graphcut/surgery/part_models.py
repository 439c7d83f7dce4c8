"""`part_model`: the ModelProto of one part, made of copies of the model's messages."""

from collections.abc import Mapping

from onnx import ModelProto, ValueInfoProto

from ..core.errors import ModelError
from ..core.graph import Block
from ..core.tensors import UNDEFINED
from ..costs.facts import boundary_type, boundary_value, half_source
from ..loading.derived_tensors import cast, copies
from ..loading.fingerprint import head_of
from ..loading.model import Model
from ..loading.subgraphs import add_notes, functions_called


def part_model(model: Model, block: Block) -> ModelProto:
    """The part with the nodes of `block`: copies of the model's messages, with boundary tensors as inputs and outputs.

    A ModelError if a boundary tensor has an unknown type.
    """
    source = model.proto
    held = model.graph.held(block.nodes, block.replicas)
    part = head_of(source)  # training_info refers to initializers of the whole graph, so it has no meaning in a part
    graph = part.graph
    halves = {name: half for name in (*block.reads, *block.writes) if (half := half_source(model, name))}
    graph.node.extend(cast(halves[name], name) for name in block.reads if name in halves)
    own = set(block.nodes)
    pairs = ((i, source.graph.node[i]) for i in held)
    graph.node.extend(n for i, p in pairs for n in ([p] if i in own else copies(model.graph.nodes[i], p)))
    graph.node.extend(cast(name, halves[name]) for name in block.writes if name in halves)
    needed = functions_called(graph.node, model.functions)
    part.functions.extend(function for key, function in model.functions.items() if key in needed)

    weights = set(block.weights)
    graph.initializer.extend(t for t in source.graph.initializer if t.name in weights)
    graph.sparse_initializer.extend(t for t in source.graph.sparse_initializer if t.values.name in weights)
    inputs = {value.name: value for value in source.graph.input}
    outputs = {value.name: value for value in source.graph.output}
    inner = {value.name: value for value in source.graph.value_info}
    graph.input.extend(inputs.get(name) or _boundary_value(model, name, inner) for name in block.reads)
    # In IR 3 every initializer is an input as well.
    graph.input.extend(value for name, value in inputs.items() if name in weights and name not in block.reads)
    graph.output.extend(outputs.get(name) or _boundary_value(model, name, inner) for name in block.writes)

    add_notes(graph, source.graph.value_info, source.graph.quantization_annotation)
    return part


def _boundary_value(model: Model, name: str, inner: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    tensor = boundary_type(model, name)
    if tensor is None or tensor.dtype == UNDEFINED:
        what = f"the type of {name!r} is unknown to the model, to ONNX shape inference and to ONNX Runtime"
        raise ModelError(what, hint="cut somewhere else, or add a value_info for it to the model")
    return boundary_value(model, name, inner)
