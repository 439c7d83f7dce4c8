"""Values that are so cheap to compute that every part which needs one computes it: masks, positions, rotary tables.

They are left out of what is planned, so that a cut is not shunned for the sake of a tensor that nobody has to send.
Whether a part of the finished plan then computes them or has them sent is decided exactly (see recompute.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ..core.graph import Graph
from ..costs.weighing import Costs

_MOST_SHARE: Final = 0.1
"""Of the time of the whole model: more is not cheap."""

_MOST_NODES: Final = 256
_MOST_WEIGHTS: Final = 1 << 20


def replicable_nodes(
    graph: Graph,
    costs: Costs,
    run_s: Mapping[int, float],
    s_per_byte: float,
    *,
    kept: Collection[int],
    avoided: Collection[int],
) -> frozenset[int]:
    """Nodes that are cheaper to run, with all that they depend on, than to send what they write.

    Closed under "depends on"; each is needed by a node that is not among them. Linear in nodes and edges, for cones of
    at most 256 nodes.

    Args:
        graph: the graph.
        costs: what nodes weigh.
        run_s: seconds that each flowing node takes.
        s_per_byte: seconds that a byte takes from one part to another.
        kept: nodes that must stand in one part alone.
        avoided: nodes that must not send what they write: worth it at any price.
    """
    most = _MOST_SHARE * sum(run_s.values())
    cones: dict[int, frozenset[int]] = {}
    for node in graph.flow:
        own = graph.nodes[node]
        makers = {graph.producer[name] for name in own.reads if name in graph.producer}
        if node in kept or own.is_stateful or not makers <= cones.keys() or not _is_sendable(costs, own.writes):
            continue
        cone = frozenset((node,)).union(*(cones[maker] for maker in makers))
        weights = {name for n in cone for name in graph.nodes[n].weights}
        is_light = sum(graph.weights[name].bytes for name in weights) <= _MOST_WEIGHTS
        if len(cone) <= _MOST_NODES and is_light and sum(run_s[n] for n in cone) <= most:
            cones[node] = cone
    return _worth_it(graph, costs, run_s, s_per_byte, cones, avoided)


def _worth_it(
    graph: Graph,
    costs: Costs,
    run_s: Mapping[int, float],
    s_per_byte: float,
    cones: dict[int, frozenset[int]],
    avoided: Collection[int],
) -> frozenset[int]:
    """The cones of those nodes whose output other nodes read, where that is dearer to send than the cone is to run."""
    chosen: frozenset[int] = frozenset()
    for node, cone in cones.items():
        readers = {reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ())}
        sent = sum(costs.tensor_bytes[name][0] for name in graph.nodes[node].writes)
        is_dear = node in avoided or sum(run_s[n] for n in cone) < sent * s_per_byte
        if readers - cones.keys() and is_dear:
            chosen |= cone
    return chosen


def _is_sendable(costs: Costs, names: Collection[str]) -> bool:
    tensors = costs.model.tensors
    return all(tensors[name].is_plain and tensors[name].dtype != "undefined" for name in names)
