"""What a manifest says of a model and of its parts.

`split` writes these facts, and `verify` derives them again and compares. Each is a mapping from fields of the manifest
to their values.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from onnx import ModelProto, ValueInfoProto

from ..core.manifest import State
from ..core.states import start_of
from ..costs.caches import find_caches, head_sizes, token_axis
from ..costs.weighing import peak_bytes
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type, type_proto


def model_facts(model: Model, boundary: Iterable[str]) -> dict[str, Any]:
    """The inputs and outputs of `model` and its states; the types of these and of the tensors in `boundary`."""
    graph = model.graph
    names = dict.fromkeys((*graph.reads, *boundary, *graph.writes))
    return {
        "reads": graph.reads,
        "optional": tuple(name for name in graph.reads if name in graph.weights),
        "writes": graph.writes,
        "tensors": tuple(model.boundary_types[name] for name in names),
        "states": tuple(_states(model)),
    }


def _states(model: Model) -> Iterator[State]:
    sizes = head_sizes(model)
    for cache in find_caches(model):
        axis = token_axis(model, cache)
        start = start_of(model.boundary_types[cache.past], model.boundary_types[cache.present], axis, sizes)
        is_given = cache.past in model.states
        yield State(past=cache.past, present=cache.present, axis=axis, start=start, is_given=is_given)


def part_facts(model: Model, part: ModelProto, earlier: AbstractSet[int]) -> dict[str, Any]:
    """The numbers of nodes and bytes of `part`, and its replicas.

    Args:
        model: the model; its `dims` give the sizes of activations.
        part: the message of a part, whose nodes and initializers are all in the model.
        earlier: the nodes of the parts before it.
    """
    graph = model.graph
    nodes = nodes_of(model, part)
    named = (*part.graph.initializer, *(sparse.values for sparse in part.graph.sparse_initializer))
    weights = [graph.weights[tensor.name].bytes for tensor in named]
    flowing = [n for n in nodes if not graph.nodes[n].is_constant]
    writes = [value.name for value in part.graph.output]
    return {
        "nodes": len(nodes),
        "replicas": tuple(graph.nodes[n].name for n in nodes if graph.nodes[n].is_constant or n in earlier),
        "weight_bytes": sum(weights),
        "largest_weight_bytes": max(weights, default=0),
        "activation_bytes": peak_bytes(graph, flowing, model.tensor_bytes, writes=writes),
    }


def nodes_of(model: Model, part: ModelProto) -> list[int]:
    """The nodes of the model that a part has, as indices, in its order; a node is known by its first output."""
    producer = model.graph.producer
    return [producer[next(filter(None, node.output))] for node in part.graph.node]


def boundary_value(model: Model, name: str, inner: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    """The declaration of a boundary tensor: that of the model's value_info `inner`, unless its type is known better."""
    tensor = model.boundary_types[name]
    value = ValueInfoProto(name=name)
    if name in inner:
        value.CopyFrom(inner[name])
    if not value.HasField("type") or (tensor.is_plain and tensor_of_type(name, value.type) != tensor):
        value.type.CopyFrom(type_proto(tensor))
    return value
