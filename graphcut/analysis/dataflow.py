"""The dataflow of a model as a networkx graph, and the nodes that networkx's algorithms find on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.graph import Graph
from ..core.tensors import TensorBytes

if TYPE_CHECKING:  # networkx takes a fifth of a second to import; plans need none of this
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
            read: dict[int, list[str]] = {}
            for tensor in graph.nodes[reader].reads:
                if tensor in graph.producer:
                    read.setdefault(graph.producer[tensor], []).append(tensor)
            for writer, tensors in read.items():
                sizes = {} if tensor_bytes is None else {"bytes": sum(tensor_bytes[name][0] for name in tensors)}
                yield writer, reader, {"tensors": tuple(tensors), **sizes}

    digraph: nx.DiGraph[int] = nx.DiGraph()
    nodes = ((i, graph.nodes[i]) for i in graph.flow)
    digraph.add_nodes_from((i, {"name": n.name, "op": n.op, "module": n.module, "reads": n.reads}) for i, n in nodes)
    digraph.add_edges_from(edges())
    return digraph


def key_nodes(digraph: nx.DiGraph[int]) -> tuple[int, ...]:
    """The nodes with one data input whose outputs two or more nodes read, in topological order."""
    return tuple(n for n, reads in digraph.nodes(data="reads") if len(reads) == 1 and digraph.out_degree(n) >= 2)


def dominators(digraph: nx.DiGraph[int]) -> tuple[int, ...]:
    """The nodes that every path from a start to an end passes, in the order in which paths pass them.

    They are the chain of `networkx.immediate_dominators` above a virtual sink. That algorithm is quadratic where long
    branches meet often, so they are found in one pass: a node is on every path if no edge leads from a node before it
    to one after it, no start comes after it and no end before it.
    """
    furthest = max((node for node, degree in digraph.in_degree if degree == 0), default=0)
    found = []
    for node, readers in digraph.adjacency():
        if furthest <= node:
            found.append(node)
        if not readers:
            break
        furthest = max(furthest, *readers)
    return tuple(found)


def generations(digraph: nx.DiGraph[int]) -> tuple[tuple[int, ...], ...]:
    """The nodes by the length of the longest path from a start to them (`networkx.topological_generations`)."""
    import networkx as nx

    return tuple(tuple(sorted(generation)) for generation in nx.topological_generations(digraph))
