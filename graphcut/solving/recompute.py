"""Recompute or send: nodes that a part runs again because that is cheaper than receiving their outputs.

For one part the choice is exact: a minimum cut. Every node of an earlier part may be repeated at the price of running
it; a tensor that is still received costs the time to send it. This is minimum-cut replication (Hwang and El Gamal,
"Min-cut replication in partitioned networks", 1995) on tensors. Each part chooses for itself: what one part repeats
changes no other part's prices.

Example: node 0 makes a mask of 8 bytes from an input of 2 bytes, for nodes 1 and 2. Node 2 is in the second part. A
byte takes 1 s to send and node 0 takes 1 s to run, so the second part receives the input and runs node 0 again:

    >>> from graphcut.core.graph import Graph, Node
    >>> def node(name, *reads):
    ...     return Node(name, "Op", reads, (name,), (), (), is_constant=False, is_stateful=False, module="")
    >>> graph = Graph((node("m", "mask"), node("a", "x", "m"), node("b", "a", "m")), {}, ("mask", "x"), ("b",))
    >>> prices = TransferPrices({0: 1.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    >>> parts, recomputed = recompute(graph, ((0, 1), (2,)), lambda part: prices, frozenset())
    >>> parts
    ((0, 1), (0, 2))
    >>> recomputed
    (Recomputed(part=1, nodes=('m',), tensors=('m',), saved_bytes=6, cost_s=1.0),)
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ..core.graph import Graph, grouped
from .instance import Parts
from .min_cut import Arc, FlowNetwork

_SOURCE: Final = 0
_SINK: Final = 1
_PICOSECOND: Final = 1e-12
MOST_WEIGHT_BYTES: Final = 1 << 20
"""A node that brings more bytes of weights into a part is not repeated there: they would have to be held twice."""


class Recomputed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a part computes instead of receiving it."""

    part: int  #: index of the part.
    #: names of the nodes it runs for that, in topological order; one that no other part needs is moved, not repeated.
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]  #: what it no longer receives.
    saved_bytes: int  #: bytes that it receives less, after what the repeated nodes read.
    cost_s: float  #: seconds that it runs longer.


class TransferPrices(NamedTuple):
    """What repeating and sending cost for a part."""

    run_s: Mapping[int, float]  #: seconds that each flowing node takes on the device of the part.
    s_per_byte: float  #: seconds to send a byte to the part.
    tensor_bytes: Mapping[str, float]  #: bytes of each activation.
    unsent: frozenset[str] = frozenset()  #: tensors that must not be sent, at any price.

    def send_s(self, name: str) -> float:
        return self.tensor_bytes[name] * self.s_per_byte


Prices = Callable[[int], TransferPrices]  #: those of each part.
Allowed = Mapping[int, frozenset[int]]  #: for some parts the nodes that they may repeat.
_ALL: Final[Allowed] = MappingProxyType({})
Known = dict[Hashable, tuple[int, ...]] | None  #: what parts repeat, as it was found before.


def recompute(
    graph: Graph, parts: Parts, prices: Prices, kept: frozenset[int], repeatable: Allowed = _ALL, known: Known = None
) -> tuple[Parts, tuple[Recomputed, ...]]:
    """The `parts` (each node in one) with the nodes that each repeats at the least total cost, and a list of these.

    Nodes in `kept` are not repeated, and stateful nodes never are; a part in `repeatable` repeats no others than these.
    A node leaves its own part if no node there, and no other part, needs it any more. What was found for the same parts
    and prices is `known`.
    """
    known = {} if known is None else known
    made, found, earlier = list[tuple[int, ...]](), list[Recomputed](), set[int]()
    for part, nodes in enumerate(parts):
        if (key := (part, kept, repeatable.get(part))) not in known:
            known[key] = _cheapest_to_repeat(graph, nodes, prices(part), earlier & repeatable.get(part, earlier))
        if chosen := known[key]:
            found.append(_recomputed(graph, part, set(nodes), chosen, prices(part)))
        made.append(tuple(sorted((*nodes, *chosen))))
        earlier.update(set(nodes) - kept)
    if not found:
        return parts, ()
    blocks = graph.partitioned(tuple(made)).blocks
    # A part must keep a node of its own; parts before it may be empty only because it is.
    if emptied := [nodes for nodes, block in zip(parts, blocks, strict=True) if nodes and not block.nodes]:
        return recompute(graph, parts, prices, kept.union(emptied[-1]), repeatable, known)
    return tuple(tuple(graph.running(block)) for block in blocks), tuple(found)


def repeated(graph: Graph, parts: Parts, prices: Prices) -> tuple[Recomputed, ...]:
    """What given parts recompute: nodes that are in an earlier part as well."""
    earlier, found = set[int](), []
    for part, nodes in enumerate(parts):
        if again := tuple(node for node in nodes if node in earlier):
            found.append(_recomputed(graph, part, set(nodes).difference(again), again, prices(part)))
        earlier.update(nodes)
    return tuple(found)


def _recomputed(graph: Graph, part: int, own: set[int], chosen: tuple[int, ...], prices: TransferPrices) -> Recomputed:
    """What a part saves and pays that runs the chosen nodes besides its own."""
    copies = [graph.copy_of(node) for node in chosen]
    before = _received(graph, sorted(own), own)[1]
    needed = {*before, *(name for copy in copies for name in copy.reads if graph.producer.get(name) not in own)}
    after = needed.difference(*(copy.writes for copy in copies))
    saved = sum(prices.tensor_bytes[name] for name in before) - sum(prices.tensor_bytes[name] for name in after)
    gone = tuple(name for name in before if name not in after)
    return Recomputed(part, graph.names(chosen), gone, int(saved), sum(prices.run_s[node] for node in chosen))


def _received(graph: Graph, nodes: Sequence[int], own: AbstractSet[int]) -> tuple[list[int], dict[str, None]]:
    """Those of `nodes` that read what a part's own nodes don't write, and these tensors, in the order of reading."""
    readers, found, producer = list[int](), dict[str, None](), graph.producer
    for node in nodes:
        if outside := [name for name in graph.nodes[node].reads if producer.get(name) not in own]:
            readers.append(node)
            found.update(dict.fromkeys(outside))
    return readers, found


def _writer(graph: Graph, name: str) -> int | None:
    """The node that a part repeats to compute a tensor; None if no copy of a node writes it."""
    node = graph.producer.get(name)
    return node if node is not None and name in graph.copy_of(node).writes else None


def _cheapest_to_repeat(
    graph: Graph, nodes: Sequence[int], prices: TransferPrices, earlier: Collection[int]
) -> tuple[int, ...]:
    """The `earlier` nodes that a part repeats at the least cost; of equal choices the one that repeats fewest."""
    held = {weight for node in nodes for weight in graph.nodes[node].weights}

    def may_repeat(node: int) -> bool:
        own = graph.copy_of(node)
        brought = sum(graph.weights[weight].bytes for weight in own.weights if weight not in held)
        return node in earlier and not own.is_stateful and brought <= MOST_WEIGHT_BYTES

    readers, received = _received(graph, sorted(nodes), own := set(nodes))
    candidates = _candidates(graph, received, prices, may_repeat)
    sink_side = _cut(graph, own, readers, candidates, prices)[0].reaching_sink() if candidates else ()
    return tuple(sorted(node for node, vertex in candidates.items() if vertex in sink_side))


def least_s(
    graph: Graph, nodes: Sequence[int], own: set[int], prices: TransferPrices, may_repeat: Callable[[int], bool]
) -> float:
    """At most what a part pays to have what `nodes` read and its `own` ones don't write: a minimum cut, rounded down.

    It has these nodes of its own, and perhaps more.
    """
    readers, received = _received(graph, nodes, own)
    if not (candidates := _candidates(graph, received, prices, may_repeat)):
        return sum(prices.send_s(name) for name in received if name in graph.producer)
    network, flow = _cut(graph, own, readers, candidates, prices)
    return max(0, flow - network.arc_count) * _PICOSECOND


def _candidates(
    graph: Graph, received: Iterable[str], prices: TransferPrices, may_repeat: Callable[[int], bool]
) -> dict[int, int]:
    """The nodes that may be worth repeating, each with a vertex of the flow network.

    Repeating a node means repeating every node on some path from it to a received tensor, and it can only save the
    received tensors that it reaches. So a node is left out if its cheapest path costs at least as much as sending all
    received tensors that it reaches. One pass, from the last node back.
    """
    received = [name for name in received if _writer(graph, name) is not None]
    bit = {name: 1 << i for i, name in enumerate(received)}

    @cache
    def send_s(mask: int) -> float:
        names = [name for name in received if mask & bit[name]]
        return inf if prices.unsent.intersection(names) else sum(map(prices.send_s, names))

    path_s, found = {graph.producer[name]: 0.0 for name in received}, dict[int, int]()
    reached: dict[int, int] = defaultdict(int)
    for name in received:
        reached[graph.producer[name]] |= bit[name]
    for node in filter(path_s.__contains__, range(max(path_s, default=-1), -1, -1)):
        cost_s = path_s[node] + prices.run_s[node] if may_repeat(node) else inf
        if cost_s < send_s(reached[node]):
            found[node] = len(found) + 2
            writers = {_writer(graph, name) for name in graph.copy_of(node).reads}
            for writer in (one for one in writers if one is not None):
                path_s[writer] = min(path_s.get(writer, inf), cost_s)
                reached[writer] |= reached[node]
    return found


def _cut(
    graph: Graph, inside: set[int], own: Sequence[int], candidates: Mapping[int, int], prices: TransferPrices
) -> tuple[FlowNetwork, int]:
    """The network of a part after a maximum flow, and that flow. The part's side of the cut has the fewest vertices.

    `own` are the nodes of the part that read what it does not write.
    """
    rows = [*((graph.nodes[node], _SINK) for node in own), *((graph.copy_of(n), i) for n, i in candidates.items())]
    reads = ((name, vertex) for node, vertex in rows for name in node.reads)
    readers = grouped((name, vertex) for name, vertex in reads if graph.producer.get(name) not in inside)
    inputs = {name for node in own for name in graph.nodes[node].reads if name not in graph.producer}
    arcs: list[Arc] = [(_SOURCE, vertex, _picoseconds(prices.run_s[node])) for node, vertex in candidates.items()]
    for tensor, (name, reading) in enumerate(readers.items(), start=len(candidates) + 2):
        repeated, ends = _writer(graph, name), {_SINK} if _SINK in reading else {*reading}
        writer = _SOURCE if repeated is None else candidates.get(repeated, _SOURCE)
        if writer != _SOURCE or name not in inputs:  # the part receives its inputs of the model anyway
            end = tensor if len(ends) > 1 else min(ends)  # a vertex with one end is no different from that
            arcs.append((writer, end, None if name in prices.unsent else _picoseconds(prices.send_s(name))))
            arcs += [(tensor, reader, None) for reader in sorted(ends) if end == tensor]
    network = FlowNetwork(len(candidates) + 2 + len(readers), arcs, _SOURCE, _SINK)
    return network, network.push_max_flow()


def _picoseconds(seconds: float) -> int:
    """Seconds as a capacity, at least 1: nothing is free."""
    return max(1, round(seconds / _PICOSECOND))
