"""The dataflow of a model as a networkx graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.graph import Graph, grouped
from ..core.tensors import TensorBytes

if TYPE_CHECKING:  # networkx takes a fifth of a second to import
    import networkx as nx


def to_networkx(graph: Graph, tensor_bytes: TensorBytes | None = None) -> nx.DiGraph[int]:
    """The flowing nodes of `graph`, by their indices in `graph.nodes`, with an edge from each writer to each reader.

    The nodes are in topological order. Constant nodes, initializers and inputs of the model are not nodes of it.

    Args:
        graph: the graph of a model.
        tensor_bytes: sizes of the activations, as `Model.tensor_bytes` has them.

    Returns:
        A digraph. Its nodes have the attributes `name`, `op`, `module` and `reads`: the names of the node's data
        inputs, those that are inputs of the model included. Its edges have `tensors`: the names of the tensors that the
        reader reads of the writer, and with `tensor_bytes` also `bytes`: what these take, at least.
    """
    import networkx as nx

    def edges() -> Iterator[tuple[int, int, dict[str, Any]]]:
        for reader in graph.flow:
            read = (name for name in graph.nodes[reader].reads if name in graph.producer)
            for writer, tensors in grouped((graph.producer[name], name) for name in read).items():
                sizes = {} if tensor_bytes is None else {"bytes": sum(tensor_bytes[name][0] for name in tensors)}
                yield writer, reader, {"tensors": tuple(tensors), **sizes}

    digraph: nx.DiGraph[int] = nx.DiGraph()
    nodes = ((i, graph.nodes[i]) for i in graph.flow)
    digraph.add_nodes_from((i, {"name": n.name, "op": n.op, "module": n.module, "reads": n.reads}) for i, n in nodes)
    digraph.add_edges_from(edges())
    return digraph
