"""The minimum cut that respects dependencies: which free nodes go before a cut so that the fewest bytes cross it.

Exact, as a minimum s-t cut on tensors, each paid once however many nodes read it. The network is that of hypergraph
min-cut (Lawler, "Cutsets and partitions of hypergraphs", 1973): for each tensor of b bytes a vertex with an arc of
capacity b from its writer and infinite arcs to its readers; and an infinite arc from each reader back to the writer, so
that the nodes before the cut are closed under predecessors.

Example: node 0 is before the cut and node 3 after it. Node 1 reads 9 bytes of node 0 and passes 4 bytes to node 2,
which passes 6 bytes to node 3. The cheapest cut is between 1 and 2:

    >>> sides = {0: BEFORE, 1: FREE, 2: FREE, 3: AFTER}
    >>> cheapest_cut([(9, 0, [1]), (4, 1, [2]), (6, 2, [3])], sides.__getitem__, free=[1, 2])
    {1}
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Final

from .max_flow import Arc, FlowNetwork

BEFORE: Final = 0
AFTER: Final = 1
FREE: Final = 2

PricedTensor = tuple[int, int, Collection[int]]
"""The price of a tensor if it crosses (bytes, above 0), the node that writes it, and the nodes that read it."""


def cheapest_cut(tensors: Iterable[PricedTensor], side: Callable[[int], int], free: Sequence[int]) -> Set[int]:
    """The free nodes that go before the cut, so that the tensors that cross it cost least.

    A tensor crosses if it is written before the cut and read after it. Of several minimum cuts the one with the most
    nodes before the cut. Exact for prices of any size; takes one maximum flow.

    Args:
        tensors: at least all that free nodes write or read.
        side: BEFORE (closed under predecessors), AFTER (closed under successors) or FREE for a node.
        free: the nodes whose side is FREE.
    """
    if not free:
        return frozenset()
    vertices = {node: i + 2 for i, node in enumerate(free)}

    def vertex(node: int) -> int:
        """The vertex of a node; all nodes BEFORE are the source, all nodes AFTER the sink."""
        return vertices[node] if node in vertices else side(node)

    arcs: list[Arc] = []
    count = len(free) + 2
    for price, node, nodes in tensors:
        writer, readers = vertex(node), sorted({vertex(reader) for reader in nodes} - {BEFORE})
        if writer == AFTER or not set(readers) - {writer}:
            continue
        arcs.append((writer, count, price))
        arcs += [(count, reader, None) for reader in readers]
        arcs += [(reader, writer, None) for reader in readers if writer != BEFORE and reader != AFTER]
        count += 1
    network = FlowNetwork(count, arcs)
    network.push_max_flow(BEFORE, AFTER)
    late = network.reaching(AFTER)
    return {node for node in free if vertices[node] not in late}
