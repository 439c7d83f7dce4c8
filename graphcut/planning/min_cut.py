"""Where to cut so that the fewest bytes cross, given what must stand before the cut and what after it.

Exact, as a minimum s-t cut on tensors, each paid once however many nodes read it. The network is that of hypergraph
min-cut (Lawler 1973, "Cutsets and partitions of hypergraphs"): for each tensor of b bytes a vertex with one arc of
capacity b from its producer, and endless arcs to its readers; an endless arc from each reader back to the producer, so
that what lies before the cut is closed under "depends on".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from ..graph import Graph
from .max_flow import Network

BEFORE: Final = 0
AFTER: Final = 1
FREE: Final = 2

_ENDLESS: Final = -1


def cheapest_cut(graph: Graph, prices: Mapping[str, int], side: Callable[[int], int], free: Sequence[int]) -> Set[int]:
    """Which of the `free` nodes go before the cut, so that what crosses it costs least.

    Args:
        graph: the graph.
        prices: what it costs when a tensor crosses, in bytes; above 0.
        side: says of each node of the graph whether it stands BEFORE or AFTER, or is FREE. BEFORE is closed under
            "depends on", AFTER under "is needed by".
        free: the nodes whose side is FREE.

    Returns:
        The largest set of free nodes that is least in price: what can go early does. The price of a choice is that of
        the tensors written before the cut and read after it.

    Cost: one maximum flow on the free nodes and the tensors they touch; exact for prices of any size.
    """
    if not free:
        return frozenset()
    vertex = {node: i + 2 for i, node in enumerate(free)}
    touched = _tensors_at(graph, free)
    wanted = [
        (prices[t], _place(graph.producer.get(t), side, vertex), _readers(graph, t, side, vertex)) for t in touched
    ]
    bound = min(
        sum(price for price, maker, readers in wanted if maker == BEFORE and readers - {BEFORE}),
        sum(price for price, maker, readers in wanted if maker != AFTER and AFTER in readers),
    )
    arcs: list[tuple[int, int, int]] = []
    vertices = len(free) + 2
    for price, maker, readers in wanted:
        if maker == AFTER or not readers - {BEFORE, maker}:
            continue
        arcs.append((maker, vertices, price))
        arcs += [(vertices, reader, _ENDLESS) for reader in sorted(readers) if reader != BEFORE]
        arcs += [(reader, maker, _ENDLESS) for reader in sorted(readers) if maker != BEFORE and reader != AFTER]
        vertices += 1
    late = _reaching_sink(arcs, vertices, bound) if arcs else frozenset()
    return {node for node in free if vertex[node] not in late}


def _tensors_at(graph: Graph, nodes: Sequence[int]) -> list[str]:
    """The activations that some of the nodes write or read, inputs of the model left out: these never cross."""
    names = dict.fromkeys(t for node in nodes for t in (*graph.nodes[node].writes, *graph.nodes[node].reads))
    return [name for name in names if name in graph.producer]


def _place(node: int | None, side: Callable[[int], int], vertex: Mapping[int, int]) -> int:
    """The vertex that stands for a node; all of BEFORE is one vertex, the source, and all of AFTER the sink."""
    return BEFORE if node is None else vertex[node] if node in vertex else side(node)


def _readers(graph: Graph, tensor: str, side: Callable[[int], int], vertex: Mapping[int, int]) -> set[int]:
    return {_place(reader, side, vertex) for reader in graph.readers.get(tensor, ())}


def _reaching_sink(arcs: Sequence[tuple[int, int, int]], vertices: int, bound: int) -> Set[int]:
    """The vertices from which the sink can be reached in the residual network of a maximum flow.

    No minimum cut costs more than `bound`, so an endless arc is one that can carry more than that.
    """
    network = Network(vertices)
    for source, target, price in arcs:
        network.add_arc(source, target, bound + 1 if price == _ENDLESS else price)
    network.saturate(BEFORE, AFTER)
    return network.reaching(AFTER)
