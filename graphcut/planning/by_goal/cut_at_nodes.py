"""`At`: cut after named nodes or tensors."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ...core.errors import UsageError
from ...core.graph import Graph, grouped, reached
from ...core.tensors import BITS, UNDEFINED, Tensor
from ...solving.min_cut import AFTER, BEFORE, FREE, cheapest_cut
from ..goals import At
from ..node_names import find_nodes

_AWKWARD: Final = 1 << 40
"""Added to the price of tensors that can but should not cross: sequences, maps, 4-bit types, unknown types."""


def parts_at(
    graph: Graph, tensors: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, bool]], goal: At
) -> list[tuple[int, ...]]:
    """The nodes of each part when `graph` is cut after the nodes of `goal`.

    A cut after a node puts it and all its ancestors before the cut, and all its descendants after it. If it has no
    descendants, what other outputs of the model need is after the cut. The other nodes are free: they go where the
    fewest bytes cross, of equal choices before the cut. The cuts nest in topological order, in whatever order they are
    named. Each is a minimum cut, and since the largest minimum cuts of growing demands nest, so is their sum.
    """
    if not (cuts := sorted(find_nodes(graph, goal.nodes))):
        raise UsageError("no cut requested", hint="name a node or a tensor")
    first_after, last_before = _bounds(graph, cuts)
    prices = {name: price(tensor, sizes[name][0]) for name, tensor in tensors.items()}
    free_at = grouped((cut, node) for node in graph.flow for cut in range(last_before[node] + 1, first_after[node]))
    part = list(first_after)
    for cut in sorted(free_at):
        free = [node for node in free_at[cut] if part[node] > cut]

        def side(node: int, cut: int = cut) -> int:
            return BEFORE if part[node] <= cut else AFTER if last_before[node] >= cut else FREE

        names = dict.fromkeys(t for node in free for t in (*graph.nodes[node].writes, *graph.nodes[node].reads))
        readers = graph.readers  # inputs of the model never cross
        tensors_of = [(prices[t], graph.producer[t], readers.get(t, ())) for t in names if t in graph.producer]
        for node in cheapest_cut(tensors_of, side, free):
            part[node] = cut
    parts = grouped((part[node], node) for node in graph.flow)
    return [tuple(parts.get(i, ())) for i in range(len(cuts) + 1)]


def _bounds(graph: Graph, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each node the first cut that it must be before, and the last cut that it must be after.

    `len(cuts)` and -1 where there is no such cut. At the cuts between the two the node is free.
    """
    last = len(cuts) - 1
    first_after = [len(cuts)] * len(graph.nodes)
    last_before = [-1] * len(graph.nodes)
    for i, cut in enumerate(cuts):
        _mark(graph, [cut], first_after, i, unmarked=len(cuts), upwards=True)
    following = graph.successors(cuts[last])
    if not following:  # then what other outputs need
        writers = {graph.producer[output] for output in graph.writes if output in graph.producer}
        following = {n for n in writers if first_after[n] == len(cuts) and not graph.nodes[n].is_constant}
    if not following:
        message = f"nothing is left after {graph.nodes[cuts[last]].name!r}: the last part would be empty"
        raise UsageError(message, hint="leave this cut out; the part before it reaches to the end of the model")
    _mark(graph, following, last_before, last, unmarked=-1, upwards=False)
    for i in range(last, 0, -1):
        last_before[cuts[i]] = max(last_before[cuts[i]], i - 1)
        _mark(graph, graph.successors(cuts[i - 1]), last_before, i - 1, unmarked=-1, upwards=False)
    return first_after, last_before


def _mark(graph: Graph, start: Collection[int], marks: list[int], mark: int, *, unmarked: int, upwards: bool) -> None:
    """Mark the unmarked ones of `start`, and their unmarked ancestors (`upwards`) or descendants."""
    following = graph.predecessors if upwards else graph.successors

    def new(nodes: Iterable[int]) -> Iterator[int]:
        return (node for node in nodes if marks[node] == unmarked)

    for node in reached(new(start), lambda node: new(following(node))):
        marks[node] = mark


def price(tensor: Tensor, number: int) -> int:
    """What a minimum cut pays for a tensor of that many bytes."""
    is_awkward = not tensor.is_plain or tensor.dtype == UNDEFINED or BITS.get(tensor.dtype, 8) < 8
    return number + _AWKWARD if is_awkward else max(number, 1)
