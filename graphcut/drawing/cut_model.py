"""What the page needs to cut a model anywhere as `At` does; its script has the same rules (see `parts_at`)."""

from collections.abc import Mapping

from ..core.graph import Graph, grouped
from ..core.tensors import TensorBytes
from ..loading.model import Model
from ..planning.by_goal.cut_at_nodes import price
from .scene import NodeRows, PageData


def flowing_tensors(graph: Graph) -> list[str]:
    """The tensors that flowing nodes read or write, without constants, in the order of the page's data."""
    return list(dict.fromkeys(t for n in graph.flow_index for t in (*graph.nodes[n].reads, *graph.nodes[n].writes)))


def cut_model_of(model: Model, rows: NodeRows, sizes: TensorBytes, dims: Mapping[str, int]) -> PageData | None:
    """The dataflow of a model with these nodes in its parts; nodes are named by their indices among its flowing nodes.

    None if an output is a constant: which part writes it is not a matter of the flow.
    """
    graph, types, index = model.graph, model.tensors, model.graph.flow_index
    writer = {name: index[node] for name, node in graph.producer.items() if node in index}
    if not writer.keys() >= {*graph.writes}:
        return None
    names = flowing_tensors(graph)
    used = {n: dict.fromkeys((*graph.weights_of(n), *graph.nodes[n].reads)) for n in index}
    users = grouped((name, i) for n, i in index.items() for name in used[n] if name in graph.weights)
    return {
        # The nodes in the order of the cut profile, and those that write an output of the model.
        "order": tuple(index[node] for row in rows for node in row),
        "ends": tuple({writer[name]: None for name in graph.writes}),
        # Tensors: the node that writes each (-1 for an input of the model), and the nodes that read it; the size,
        # whether that is known (otherwise it is a lower bound), and what a minimum cut pays.
        "tensors": tuple(names),
        "writers": tuple(writer.get(name, -1) for name in names),
        "readers": tuple(tuple(index[node] for node in graph.readers.get(name, ())) for name in names),
        "bytes": tuple(sizes[name][0] for name in names),
        "exact": tuple(sizes[name][1] for name in names),
        "prices": tuple(price(types[name], sizes[name][0]) for name in names),
        # The sizes of the initializers that nodes read, and the nodes that need each; what `--dim` must say for sizes.
        "weights": tuple(graph.weights[name].bytes for name in users),
        "users": tuple(map(tuple, users.values())),
        "dims": dict(dims),
    }
