"""What a manifest says of a model and of its parts.

`split` writes these facts, and `verify` derives them again and compares. Each is a mapping from fields of the manifest
to their values.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, get_args

import msgspec
from onnx import ModelProto, NodeProto, ValueInfoProto

from ..core.digests import file_digest
from ..core.graph import Block
from ..core.manifest import State, TextFile
from ..core.states import start_of
from ..core.tensors import UNDEFINED, Tensor, shapes_contradict
from ..loading.derived_tensors import AS_HALF
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_type, type_proto
from ..loading.subgraphs import captures, domain
from .caches import can_share_buffer, find_caches, head_sizes, is_rolling, token_axis
from .held_weights import HeldWeights, number_of
from .part_memory import part_memory
from .weighing import peak_bytes


def model_facts(model: Model, boundary: Iterable[str]) -> dict[str, Any]:
    """The inputs and outputs of `model` and its states; the types of these and of the tensors in `boundary`."""
    graph = model.graph
    names = dict.fromkeys((*graph.reads, *boundary, *graph.writes))
    return {
        "reads": graph.reads,
        "optional": tuple(name for name in graph.reads if name in graph.weights),
        "writes": graph.writes,
        "tensors": tuple(tensor for tensor in (boundary_type(model, name) for name in names) if tensor is not None),
        "states": tuple(states_of_model(model)),
        "stepwise": model.stepwise,
        "loop": model.loop,
    }


def text_facts(model: Model) -> dict[TextFile, str]:
    """The digests of the text files beside a model, by name."""
    home = model.path.parent
    return {name: file_digest(home / name) for name in get_args(TextFile) if (home / name).is_file()}


def half_source(model: Model, name: str) -> str | None:
    """The float32 tensor that crosses as float16 under a name; None if the name is that of no such tensor."""
    source = name.removesuffix(AS_HALF)
    known = None if name in model.boundary_types else model.boundary_types.get(source)
    return source if known and known.dtype == "float32" else None


def boundary_type(model: Model, name: str) -> Tensor | None:
    """The type of a tensor as parts declare it, or as it is sent; None if the model has no such tensor."""
    if source := half_source(model, name):
        return msgspec.structs.replace(model.boundary_types[source], name=name, dtype="float16")
    return model.boundary_types.get(name)


def states_of_model(model: Model) -> Iterator[State]:
    """The states of a model, in the order of the inputs."""
    sizes = head_sizes(model)
    for cache in find_caches(model):
        axis = token_axis(model, cache)
        start = start_of(model.boundary_types[cache.past], model.boundary_types[cache.present], axis, sizes)
        is_shareable = axis is not None and start is not None and start[axis] == 0 and can_share_buffer(model, cache)
        yield State(
            past=cache.past,
            present=cache.present,
            axis=axis,
            start=start,
            is_given=cache.past in model.states,
            is_shareable=is_shareable,
            is_rolling=is_rolling(model, cache),
        )


def part_facts(held: HeldWeights, part: ModelProto, earlier: AbstractSet[int]) -> dict[str, Any]:
    """The numbers of nodes and bytes of `part`, and its replicas. `earlier` are the nodes of the parts before it.

    All its nodes and initializers are in the model, or derive tensors. `held` are the weights of the model as the
    device of the part holds them.
    """
    model, graph = held.model, held.model.graph
    nodes = nodes_of(model, part)
    copies = {n for n in nodes if n in earlier}
    derived = dict(made.pair for n in nodes if n in copies and (made := graph.nodes[n].rewrite) is not None)
    named = (*part.graph.initializer, *(sparse.values for sparse in part.graph.sparse_initializer))
    flowing = [n for n in nodes if not graph.nodes[n].is_constant]
    received, given = (
        {value.name: source for value in values if (source := half_source(model, value.name))}
        for values in (part.graph.input, part.graph.output)
    )
    writes = [given.get(value.name, value.name) for value in part.graph.output]
    peak = peak_bytes(graph, flowing, model.tensor_bytes, writes=writes, copies=copies)
    halves = sum(model.tensor_bytes[source][0] // 2 for source in {**received, **given}.values())
    weights = tuple(tensor.name for tensor in named)
    sources = (received.get(value.name, value.name) for value in part.graph.input)
    reads = tuple(name for name in sources if name in model.tensor_bytes)  # before IR 4, weights are inputs, too
    block = Block(tuple(n for n in nodes if n not in copies), tuple(copies), reads, tuple(writes), weights)
    return {
        "nodes": len(part.graph.node),
        "flowing": len(flowing),
        "memory": part_memory(held, model.tensor_bytes, block, halves),
        "replicas": tuple(graph.nodes[n].name for n in nodes if graph.nodes[n].is_constant or n in copies),
        "derived": derived | {source: name for name, source in received.items()} | given,
        **weight_facts(part, {tensor.name: graph.weights[tensor.name].bytes for tensor in named}),
        "activation_bytes": peak + halves,
    }


def weight_facts(part: ModelProto, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the weights of `part`, from those of each by name."""
    looked_up = {node.input[0] for node in part.graph.node if _looks_up(node)}
    names = [name for node in part.graph.node for name in (*node.input[_looks_up(node) :], *captures(node))]
    others = {name: size for name, size in sizes.items() if name not in looked_up.difference(names)}
    return {
        "weight_bytes": sum(sizes.values()),
        "looked_up_bytes": sum(sizes.values()) - sum(others.values()),
        "largest_weight_bytes": max(others.values(), default=0),
    }


def _looks_up(node: NodeProto) -> bool:
    """Does it read some rows of its first input only, as an embedding does?"""
    return node.op_type == "Gather" and domain(node.domain) == "" and number_of(node, "axis", 0) == 0


def nodes_of(model: Model, part: ModelProto) -> list[int]:
    """The nodes of the model that a part has, as indices, in its order; a node is known by its first output."""
    producer = model.graph.producer
    named = ((next(filter(None, node.output)), node) for node in part.graph.node)
    # A cast of what was sent as float16 writes a tensor of the model, and is no node of it.
    found = (producer.get(name) for name, node in named if half_source(model, "".join(node.input)) != name)
    return [node for node in found if node is not None]


def contradicts(a: Tensor, b: Tensor) -> bool:
    """Whether two types of a tensor can't both be right: another element type, rank, number or symbol.

    What only one of them knows is no contradiction: another version of onnx or ONNX Runtime may infer more or less.
    """
    is_known = UNDEFINED not in a.dtype and UNDEFINED not in b.dtype
    return (is_known and a.dtype != b.dtype) or shapes_contradict(a.shape, b.shape)


def boundary_value(model: Model, name: str, inner: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    """The declaration of a boundary tensor: that of the model's value_info `inner`, unless its type is known better."""
    tensor = boundary_type(model, name) or model.boundary_types[name]
    value = ValueInfoProto(name=name)
    if name in inner:
        value.CopyFrom(inner[name])
    if not value.HasField("type") or (tensor.is_plain and tensor_of_type(name, value.type) != tensor):
        value.type.CopyFrom(type_proto(tensor))
    return value
