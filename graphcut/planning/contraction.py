"""Groups of nodes that stay in one part, because a rule says so or because two parts would depend on each other."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from ..core.graph import Graph, grouped, post_order, reached
from ..solving.instance import Parts
from ..solving.topological_orders import kahn


def contract(
    graph: Graph, nodes: Sequence[int], together: Iterable[Sequence[int]], ordered: Iterable[tuple[int, int]] = ()
) -> Parts:
    """The finest grouping that keeps given nodes together and whose groups depend on each other without a cycle.

    A node on a path between two nodes of a group joins it. Groups are in topological order (of those that are ready the
    one whose first node is first), and so are the nodes of each. Takes O((nodes + edges) log nodes).

    `nodes` are the flowing nodes to group, in topological order; others are ignored. `ordered` are pairs of nodes that
    must be in this order although no tensor flows between them.
    """
    activations = [tensor for tensor in graph.readers if tensor in graph.producer]
    edges = [(graph.producer[tensor], reader) for tensor in activations for reader in graph.readers[tensor]]
    above: dict[int, dict[int, None]] = {node: {} for node in nodes}
    for row in together:  # its nodes form a circle
        kept = [node for node in row if node in above]
        edges += zip(kept, kept[1:] + kept[:1], strict=True)
    for source, target in (*edges, *ordered):
        if source in above and target in above:
            above[source][target] = None
    component = _strong_components(above)
    index: dict[int, int] = {}  # of the components, in the order of their first nodes
    group_of = {node: index.setdefault(component[node], len(index)) for node in nodes}
    members = grouped((group, node) for node, group in group_of.items())
    ends = ((group_of[vertex], group_of[target]) for vertex, targets in above.items() for target in targets)
    pairs = {(one, other) for one, other in ends if one != other}
    links = grouped((other, one) for one, other in pairs), grouped(pairs)
    before, after = ([found.get(group, []) for group in members] for found in links)
    ready: list[int] = []

    def push(groups: Iterable[int]) -> None:
        for group in groups:
            heappush(ready, group)

    return tuple(tuple(members[group]) for group in kahn(before, after, push, lambda: heappop(ready)))


def _strong_components(above: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """For each vertex the representative of its strongly connected component (Kosaraju's algorithm, no recursion)."""
    below = grouped((reader, vertex) for vertex, readers in above.items() for reader in readers)
    representative: dict[int, int] = {}
    for root in reversed(post_order(above, above.__getitem__)):
        if root not in representative:
            found = reached([root], lambda vertex: set(below.get(vertex, ())).difference(representative))
            representative.update(dict.fromkeys(found, root))
    return representative
