"""Where to cut so that the fewest bytes cross, given what must stand before the cut and what after it.

Exact, as a minimum s-t cut on tensors, each paid once however many nodes read it. The network is that of hypergraph
min-cut (Lawler 1973, "Cutsets and partitions of hypergraphs"): for each tensor of b bytes a vertex with one arc of
capacity b from its producer, and endless arcs to its readers; an endless arc from each reader back to the producer, so
that what lies before the cut is closed under "depends on".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Final

from .max_flow import FlowNetwork

BEFORE: Final = 0
AFTER: Final = 1
FREE: Final = 2

_ENDLESS: Final = -1


Tensors = Iterable[tuple[int, int, Collection[int]]]
"""What flows: price when it crosses, in bytes and above 0; the node that writes it; the nodes that read it."""


def cheapest_cut(tensors: Tensors, side: Callable[[int], int], free: Sequence[int]) -> Set[int]:
    """Which of the `free` nodes go before the cut, so that what crosses it costs least.

    Args:
        tensors: all that free nodes write or read; others change nothing.
        side: says of each node whether it stands BEFORE or AFTER, or is FREE. BEFORE is closed under "depends on",
            AFTER under "is needed by".
        free: the nodes whose side is FREE.

    Returns:
        The largest set of free nodes that is least in price: what can go early does. The price of a choice is that of
        the tensors written before the cut and read after it.

    Cost: one maximum flow on the free nodes and the tensors they touch; exact for prices of any size.
    """
    if not free:
        return frozenset()
    vertex = {node: i + 2 for i, node in enumerate(free)}

    def place(node: int) -> int:
        """The vertex that stands for a node; all of BEFORE is one vertex, the source, and all of AFTER the sink."""
        return vertex[node] if node in vertex else side(node)

    wanted = [(price, place(writer), {place(reader) for reader in readers}) for price, writer, readers in tensors]
    bound = min(
        sum(price for price, writer, readers in wanted if writer == BEFORE and readers - {BEFORE}),
        sum(price for price, writer, readers in wanted if writer != AFTER and AFTER in readers),
    )
    arcs: list[tuple[int, int, int]] = []
    vertices = len(free) + 2
    for price, writer, readers in wanted:
        if writer == AFTER or not readers - {BEFORE, writer}:
            continue
        arcs.append((writer, vertices, price))
        arcs += [(vertices, reader, _ENDLESS) for reader in sorted(readers) if reader != BEFORE]
        arcs += [(reader, writer, _ENDLESS) for reader in sorted(readers) if writer != BEFORE and reader != AFTER]
        vertices += 1
    late = _reaching_sink(arcs, vertices, bound) if arcs else frozenset()
    return {node for node in free if vertex[node] not in late}


def _reaching_sink(arcs: Sequence[tuple[int, int, int]], vertices: int, bound: int) -> Set[int]:
    """The vertices from which the sink can be reached in the residual network of a maximum flow.

    No minimum cut costs more than `bound`, so an endless arc is one that can carry more than that.
    """
    network = FlowNetwork(vertices)
    for source, target, price in arcs:
        network.add_arc(source, target, bound + 1 if price == _ENDLESS else price)
    network.saturate(BEFORE, AFTER)
    return network.reaching(AFTER)
