"""Where a model can be cut: key nodes, segments and their dependency maps, the cut profile and its valleys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from .graph import Graph, Partition, partition
from .model import Model
from .pictured import Pictured
from .repeats import Repeat, find_repeat, inputs_first

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A place between two nodes of the order, and what it costs to cut there.

    Attributes:
        node: the node before the place; naming it in `--at-nodes` cuts here.
        position: how many flowing nodes stand before the place.
        crossing: tensors alive across it.
        bytes: what these take, for the bound dims.
        is_exact: every size among them is known; else `bytes` is "at least".
        weights_before: bytes of weights that the nodes before it read.
        weights_after: bytes of weights that the nodes after it read; a weight that both read counts in both.
        is_key: `node` is a key node.
        module: the module that ends here or goes on.
    """

    node: str
    position: int
    crossing: tuple[str, ...]
    bytes: int
    is_exact: bool
    weights_before: int
    weights_after: int
    is_key: bool
    module: str


@dataclass(frozen=True)
class Analysis(Pictured):
    """What can be said about cutting a model; everything is computed when first asked for.

    Attributes:
        model: the analysed model.
    """

    model: Model

    @cached_property
    def key_nodes(self) -> tuple[int, ...]:
        """The nodes with exactly one data input whose outputs two or more nodes read (LinguaLinked, section 3.1).

        Weights and constants do not count as data inputs. In topological order.
        """
        graph = self.model.graph
        return tuple(i for i in graph.flow if len(graph.nodes[i].reads) == 1 and _reader_count(graph, i) > 1)

    @cached_property
    def segments(self) -> Partition:
        """The runs of nodes between key nodes, each beginning with one, and the links between the runs.

        `segments.wiring.sequential` and `.residual` are the Sequential and the Residual Dependency Map.
        """
        graph = self.model.graph
        starts = set(self.key_nodes)
        rows: list[list[int]] = [[]]
        for node in graph.flow:
            if node in starts and rows[-1]:
                rows.append([])
            rows[-1].append(node)
        return partition(graph, rows)

    @cached_property
    def profile(self) -> tuple[int, ...]:
        """Bytes alive after each flowing node, in topological order: what would cross if one cut there.

        Inputs of the model are not counted, since every part can be fed them; nor are outputs that nobody reads later.
        """
        return tuple(alive for alive, _ in self._alive)

    @cached_property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """The valleys of the profile: the places where a cut costs less than around them, in order.

        Neighbours that cost the same are all listed, as far as each has a node of its own whose name means it. A cut
        `At` the node of a place costs what is said here, or less where nodes that stand earlier are free to go late.
        """
        return tuple(self._cut_points_at(_valleys(self.profile)))

    @cached_property
    def repeat(self) -> Repeat | None:
        """The block that the model repeats most, such as its transformer layer; None where it repeats nothing."""
        graph = self.model.graph
        order = inputs_first(graph)
        labels = dict(zip(graph.flow, _labels(self.model), strict=True))
        alive = [number for number, _ in _alive_along(self.model, _spans(graph, order), len(order))]
        return find_repeat(graph, order, [labels[node] for node in order], alive)

    @cached_property
    def _spans(self) -> Mapping[str, tuple[int, int]]:
        return _spans(self.model.graph, self.model.graph.flow)

    @cached_property
    def _alive(self) -> list[tuple[int, bool]]:
        return _alive_along(self.model, self._spans, len(self.model.graph.flow))

    def _cut_points_at(self, places: list[int]) -> list[CutPoint]:
        graph = self.model.graph
        before, after = self._weights_around
        begins: dict[int, list[str]] = {}
        ends: dict[int, list[str]] = {}
        for tensor, (first, last) in self._spans.items():
            begins.setdefault(first, []).append(tensor)
            ends.setdefault(last, []).append(tensor)
        alive: dict[str, None] = {}
        wanted, keys = set(places), set(self.key_nodes)
        named: set[int] = set()
        found = []
        for i in range(len(graph.flow)):
            for tensor in ends.get(i, ()):
                alive.pop(tensor, None)
            alive.update(dict.fromkeys(begins.get(i, ())))
            node = self._name_giver(i, alive) if i in wanted else None
            # Of the places that a node could name, it names the first.
            if node is not None and node not in named:
                named.add(node)
                number, is_exact = self._alive[i]
                found.append(
                    CutPoint(
                        node=graph.nodes[node].name,
                        position=i + 1,
                        crossing=tuple(alive),
                        bytes=number,
                        is_exact=is_exact,
                        weights_before=before[i],
                        weights_after=after[i],
                        is_key=node in keys,
                        module=graph.nodes[node].module,
                    )
                )
        return found

    def _name_giver(self, place: int, alive: Iterable[str]) -> int | None:
        """A node before the place all of whose readers stand after it: the last one, where that is one of them.

        Only the name of such a node means this place, or a cheaper one; an output that nobody reads on means another.
        """
        graph = self.model.graph
        last = graph.flow[place]
        if any(tensor in graph.readers for tensor in graph.nodes[last].writes):
            return last
        writers = {graph.producer[tensor] for tensor in alive}
        fit = [node for node in writers if all(reader > last for reader in _readers_of(graph, node))]
        return max(fit, default=None)

    @cached_property
    def _weights_around(self) -> tuple[list[int], list[int]]:
        """Bytes of weights that the nodes up to each place read, and that the nodes after it read."""
        graph = self.model.graph
        needs = [self._weights_of(node) for node in graph.flow]
        before = _running_totals(needs, graph)
        after = _running_totals(needs[::-1], graph)[::-1]
        return before, [*after[1:], 0]

    def _weights_of(self, node: int) -> tuple[str, ...]:
        graph = self.model.graph
        own = graph.nodes[node]
        replicas = graph.constants_for(own.constants) if own.constants else ()
        return (*own.weights, *(name for n in replicas for name in graph.nodes[n].weights))


def analyze(model: Model) -> Analysis:
    """Look where `model` can be cut."""
    return Analysis(model)


def to_networkx(graph: Graph) -> nx.DiGraph[int]:
    """The flowing nodes as a networkx digraph.

    Nodes are places in `graph.nodes`, with `name`, `op` and `module`; an edge carries `tensors`, the names of what its
    source hands to its target. Constant nodes and inputs of the model are not in it.
    """
    import networkx as nx

    view: nx.DiGraph[int] = nx.DiGraph()
    for i in graph.flow:
        view.add_node(i, name=graph.nodes[i].name, op=graph.nodes[i].op, module=graph.nodes[i].module)
    for tensor, readers in graph.readers.items():
        if tensor in graph.producer:
            for reader in readers:
                known = view.get_edge_data(graph.producer[tensor], reader, {"tensors": ()})["tensors"]
                view.add_edge(graph.producer[tensor], reader, tensors=(*known, tensor))
    return view


def _reader_count(graph: Graph, node: int) -> int:
    return len(_readers_of(graph, node))


def _readers_of(graph: Graph, node: int) -> set[int]:
    return {reader for tensor in graph.nodes[node].writes for reader in graph.readers.get(tensor, ())}


def _spans(graph: Graph, order: Sequence[int]) -> dict[str, tuple[int, int]]:
    """For each tensor that is read: the places in `order` of its writer and of its last reader."""
    place = {node: i for i, node in enumerate(order)}
    return {
        tensor: (place[graph.producer[tensor]], max(map(place.__getitem__, readers)))
        for tensor, readers in graph.readers.items()
        if tensor in graph.producer
    }


def _alive_along(model: Model, spans: Mapping[str, tuple[int, int]], places: int) -> list[tuple[int, bool]]:
    """Bytes alive after each place of an order, and whether that is all: else it is "at least"."""
    change = [0] * (places + 1)
    opened = [0] * (places + 1)
    for tensor, (first, last) in spans.items():
        number, is_exact = model.tensor_bytes[tensor]
        change[first] += number
        change[last] -= number
        opened[first] += not is_exact
        opened[last] -= not is_exact
    sums = zip(accumulate(change[:-1]), accumulate(opened[:-1]), strict=True)
    return [(number, unknown == 0) for number, unknown in sums]


def _valleys(profile: tuple[int, ...]) -> list[int]:
    """The places of all runs of equal values that lie lower than both neighbours; the place at the end is no cut."""
    found: list[int] = []
    start = 0
    for i in range(1, len(profile)):
        if profile[i] == profile[start] and i < len(profile) - 1:
            continue
        falls = start == 0 or profile[start - 1] > profile[start]
        rises = profile[i] > profile[start] or i == len(profile) - 1
        if falls and rises:
            found.extend(range(start, i))
        start = i
    return found


def _running_totals(needs: list[tuple[str, ...]], graph: Graph) -> list[int]:
    seen: set[str] = set()
    total = 0
    totals = []
    for names in needs:
        total += sum(graph.weights[name].bytes for name in dict.fromkeys(names) if name not in seen)
        seen.update(names)
        totals.append(total)
    return totals


def _labels(model: Model) -> tuple[int, ...]:
    graph = model.graph
    shapes = {tensor.name: (tensor.data_type, *tensor.dims) for tensor in model.proto.graph.initializer}
    known: dict[object, int] = {}
    labels = []
    for i in graph.flow:
        node, proto = graph.nodes[i], model.proto.graph.node[i]
        look = (
            node.op,
            tuple(a.SerializeToString(deterministic=True) for a in proto.attribute),
            tuple(shapes.get(name) for name in node.weights),
            len(node.reads),
        )
        labels.append(known.setdefault(look, len(known)))
    return tuple(labels)
