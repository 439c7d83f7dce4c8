"""What the page needs to cut a model anywhere as `--at-nodes` does; its script has the same rules (see `parts_at`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.tensors import TensorBytes
from ..loading.model import Model
from ..planning.by_goal.cut_at_nodes import price


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """The dataflow of a model. A node is named by its index among the flowing nodes of the model, in its order."""

    order: tuple[int, ...]  #: the nodes in the order of the cut profile.
    ends: tuple[int, ...]  #: the nodes that write an output of the model.
    tensors: tuple[str, ...]  #: names of the tensors that a node writes and a node reads.
    writers: tuple[int, ...]  #: the node that writes each of these.
    readers: tuple[tuple[int, ...], ...]  #: the nodes that read it.
    bytes: tuple[int, ...]  #: its size.
    exact: tuple[bool, ...]  #: whether that is known; otherwise it is a lower bound.
    prices: tuple[int, ...]  #: what a minimum cut pays for it.
    weights: tuple[int, ...]  #: the sizes of the initializers that nodes read.
    users: tuple[tuple[int, ...], ...]  #: the nodes that need each of these.
    dims: Mapping[str, int]  #: what `--dim` must say for these sizes.


def cut_model_of(model: Model, order: Sequence[int], sizes: TensorBytes, dims: Mapping[str, int]) -> CutModel | None:
    """The cut model of a model; None if an output is a constant: which part writes it is not a matter of the flow."""
    graph, types = model.graph, model.tensors
    index = {node: i for i, node in enumerate(graph.flow)}
    writer = {name: index[node] for name, node in graph.producer.items() if node in index}
    if not writer.keys() >= {*graph.writes}:
        return None
    names = [name for name in graph.readers if name in writer]
    users: dict[str, list[int]] = {}
    for node, i in index.items():
        for name in dict.fromkeys((*graph.weights_of(node), *graph.nodes[node].reads)):
            if name in graph.weights:
                users.setdefault(name, []).append(i)
    return CutModel(
        order=tuple(index[node] for node in order),
        ends=tuple({writer[name]: None for name in graph.writes}),
        tensors=tuple(names),
        writers=tuple(writer[name] for name in names),
        readers=tuple(tuple(index[node] for node in graph.readers[name]) for name in names),
        bytes=tuple(sizes[name][0] for name in names),
        exact=tuple(sizes[name][1] for name in names),
        prices=tuple(price(types[name], sizes[name][0]) for name in names),
        weights=tuple(graph.weights[name].bytes for name in users),
        users=tuple(map(tuple, users.values())),
        dims=dict(dims),
    )
