"""Cut where the user points: after named nodes or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ...core.errors import UsageError
from ...core.graph import Graph
from ...core.wiring import Tensor
from ..goals import At
from ..node_names import find_nodes
from ..solver.min_cut import AFTER, BEFORE, FREE, Tensors, cheapest_cut

_AWKWARD: Final = 1 << 40
"""Added to the price of what can cross a border but should not: sequences, maps, 4-bit types, types nobody knows."""


def parts_at(
    graph: Graph, tensors: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, bool]], goal: At
) -> list[tuple[int, ...]]:
    """The nodes of each part when `graph` is cut after the places of `goal`.

    A cut after a node puts the node and all it depends on before the cut, and all that depends on it after. What the
    cut leaves free goes where the fewest bytes cross, early where that is equal. Where nothing depends on the node,
    what other outputs of the model need goes after the cut. The cuts nest in topological order, in whatever order they
    are named; each is a minimum cut on its own, and since the largest minimum cuts of growing demands nest, their sum
    is least too.

    Raises:
        UsageError: no name is given, one matches nothing or a constant, or a cut leaves a part empty.
    """
    cuts = sorted(find_nodes(graph, goal.nodes))
    if not cuts:
        raise UsageError("no place to cut is named", hint="name a node or a tensor")
    early, late = _earliest_and_latest(graph, cuts)
    prices = {name: _price(tensor, sizes[name][0]) for name, tensor in tensors.items()}
    choices: list[list[int]] = [[] for _ in cuts]
    for node in graph.flow:
        for i in range(late[node] + 1, early[node]):
            choices[i].append(node)
    row = list(early)
    for i, candidates in enumerate(choices):
        free = [node for node in candidates if row[node] > i]

        def side(node: int, i: int = i) -> int:
            return BEFORE if row[node] <= i else AFTER if late[node] >= i else FREE

        for node in cheapest_cut(_tensors_at(graph, prices, free), side, free):
            row[node] = i
    rows: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for node in graph.flow:
        rows[row[node]].append(node)
    return [tuple(nodes) for nodes in rows]


def _tensors_at(graph: Graph, prices: Mapping[str, int], nodes: Sequence[int]) -> Tensors:
    """The activations that some of the nodes write or read, inputs of the model left out: these never cross."""
    names = dict.fromkeys(t for node in nodes for t in (*graph.nodes[node].writes, *graph.nodes[node].reads))
    return [(prices[t], graph.producer[t], graph.readers.get(t, ())) for t in names if t in graph.producer]


def _earliest_and_latest(graph: Graph, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each node the first cut that it must stand before, and the last cut that it must stand after.

    `len(cuts)` and -1 where there is no such cut. Between them the node is free.
    """
    last = len(cuts) - 1
    early = [len(cuts)] * len(graph.nodes)
    late = [-1] * len(graph.nodes)
    for i, cut in enumerate(cuts):
        _mark(graph, [cut], early, i, unmarked=len(cuts), up=True)
    starts = _readers(graph, cuts[last]) or _other_ends(graph, early, len(cuts))
    if not starts:
        raise UsageError(
            f"nothing is left after {graph.nodes[cuts[last]].name!r}: the last part would be empty",
            hint="leave this cut out; the part before it reaches to the end of the model",
        )
    _mark(graph, starts, late, last, unmarked=-1, up=False)
    for i in range(last, 0, -1):
        late[cuts[i]] = max(late[cuts[i]], i - 1)
        _mark(graph, _readers(graph, cuts[i - 1]), late, i - 1, unmarked=-1, up=False)
    return early, late


def _mark(graph: Graph, start: Sequence[int], marks: list[int], mark: int, *, unmarked: int, up: bool) -> None:
    """Mark `start`, and whatever it depends on (`up`) or whatever depends on it, where no mark stands yet."""
    waiting = [node for node in start if marks[node] == unmarked]
    while waiting:
        node = waiting.pop()
        if marks[node] == unmarked:
            marks[node] = mark
            waiting.extend(_makers(graph, node) if up else _readers(graph, node))


def _makers(graph: Graph, node: int) -> list[int]:
    return [graph.producer[tensor] for tensor in graph.nodes[node].reads if tensor in graph.producer]


def _readers(graph: Graph, node: int) -> list[int]:
    return [reader for tensor in graph.nodes[node].writes for reader in graph.readers.get(tensor, ())]


def _other_ends(graph: Graph, early: Sequence[int], unmarked: int) -> list[int]:
    """The nodes that write an output of the model and that no cut needs."""
    makers = {graph.producer[output] for output in graph.writes if output in graph.producer}
    return sorted(node for node in makers if early[node] == unmarked and not graph.nodes[node].is_constant)


def _price(tensor: Tensor, number: int) -> int:
    is_awkward = not tensor.is_plain or tensor.dtype in {"undefined", "int4", "uint4", "int2", "uint2", "float4e2m1"}
    return number + _AWKWARD if is_awkward else max(number, 1)
