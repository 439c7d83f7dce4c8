"""Replicable nodes: cheaper to run in every part that needs them than to send (masks, positions, rotary tables).

They are left out of the planning problem, so that no cut is avoided because of a tensor that nobody has to send.
Whether a part of the finished plan runs them or receives their outputs is then decided exactly (solving/recompute.py).
"""

from collections.abc import Collection, Mapping
from typing import Final

from ..core.graph import Graph
from ..core.tensors import UNDEFINED
from ..costs.weighing import Costs
from ..solving.recompute import MOST_WEIGHT_BYTES

_MOST_SHARE: Final = 0.1  #: of the run time of the model: more is not cheap.
_MOST_NODES: Final = 256


def replicable_nodes(
    costs: Costs, run_s: Mapping[int, float], s_per_byte: float, kept: Collection[int], avoided: Collection[int]
) -> frozenset[int]:
    """Nodes that, together with all nodes they depend on, take less time to run than their outputs take to send.

    The set contains the predecessors of its nodes, and each of them leads to a node outside it. A node with more than
    256 ancestors is not replicable, so this takes O(256 * nodes).

    `run_s` are the seconds of each flowing node, `s_per_byte` those to send a byte from one part to another. Nodes in
    `kept` must be in one part only. Outputs of `avoided` nodes must not be sent: they are replicable at any price.
    """
    graph, most_s = costs.model.graph, _MOST_SHARE * sum(run_s.values())
    cones: dict[int, frozenset[int]] = {}  # for each candidate: the node and all its ancestors
    for node in graph.flow:
        own = graph.nodes[node]
        writers = graph.predecessors(node)
        written = [costs.model.tensors[name] for name in own.writes]
        is_sendable = all(tensor.is_plain and tensor.dtype != UNDEFINED for tensor in written)
        if node in kept or own.is_stateful or own.rewrite or not writers <= cones.keys() or not is_sendable:
            continue
        cone = frozenset((node,)).union(*(cones[writer] for writer in writers))
        weights = {name for n in cone for name in graph.nodes[n].weights}
        is_light = sum(graph.weights[name].bytes for name in weights) <= MOST_WEIGHT_BYTES
        if len(cone) <= _MOST_NODES and is_light and sum(run_s[n] for n in cone) <= most_s:
            cones[node] = cone
    chosen: set[int] = set()
    for node, cone in cones.items():
        is_needed_outside = not graph.successors(node) <= cones.keys()
        sent = sum(costs.tensor_bytes[name][0] for name in graph.nodes[node].writes)
        if is_needed_outside and (node in avoided or sum(run_s[n] for n in cone) < sent * s_per_byte):
            chosen |= cone
    return frozenset(chosen)


def rewritable_nodes(
    costs: Costs, run_s: Mapping[int, float], s_per_byte: float, kept: Collection[int]
) -> frozenset[int]:
    """Nodes whose rewritten replica takes less time to run than what it computes takes to send; see `replicable_nodes`.

    So wherever its output or the output that the replica reads crosses, the latter alone does.
    """
    graph = costs.model.graph
    rewrites = {node: graph.nodes[node].rewrite for node in graph.flow if node not in kept}
    sent = {node: costs.tensor_bytes[made.copy.writes[0]][0] for node, made in rewrites.items() if made}
    return frozenset(node for node, number in sent.items() if run_s[node] < number * s_per_byte)


def inexact_copies(graph: Graph) -> frozenset[int]:
    """Nodes whose rewritten replicas need not give the same bits."""
    rewrites = ((node, graph.nodes[node].rewrite) for node in graph.flow)
    return frozenset(node for node, made in rewrites if made is not None and not made.is_exact)
