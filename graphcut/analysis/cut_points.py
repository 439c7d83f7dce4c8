"""Where a model can be cut: key nodes, segments and their dependency maps, the cut profile and its valleys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.graph import Graph, Partition, partition
from ..core.html_repr import HtmlRepr
from ..loading.model import Model
from .liveness import Liveness
from .repeated_blocks import RepeatedBlock, find_repeat, inputs_first

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
class Analysis(HtmlRepr):
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
        return tuple(self._along.alive)

    @cached_property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """The valleys of the profile: the places where a cut costs less than around them, in order.

        Neighbours that cost the same are all listed, as far as each has a node of its own whose name means it. A cut
        `At` the node of a place costs what is said here, or less where nodes that stand earlier are free to go late.
        """
        along, graph, keys = self._along, self.model.graph, set(self.key_nodes)
        places = along.low_places
        crossings = along.crossing(place for place, _ in places)
        return tuple(
            CutPoint(
                node=graph.nodes[node].name,
                position=place + 1,
                crossing=crossing,
                bytes=along.alive[place],
                is_exact=along.unknown[place] == 0,
                weights_before=along.weights_before[place],
                weights_after=along.weights_after[place],
                is_key=node in keys,
                module=graph.nodes[node].module,
            )
            for (place, node), crossing in zip(places, crossings, strict=True)
        )

    @cached_property
    def repeat(self) -> RepeatedBlock | None:
        """The block that the model repeats most, such as its transformer layer; None where it repeats nothing."""
        graph = self.model.graph
        order = inputs_first(graph)
        labels = dict(zip(graph.flow, _labels(self.model), strict=True))
        alive = Liveness(graph, order, self.model.tensor_bytes).alive
        return find_repeat(graph, order, [labels[node] for node in order], alive)

    @cached_property
    def _along(self) -> Liveness:
        return Liveness(self.model.graph, self.model.graph.flow, self.model.tensor_bytes)


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
