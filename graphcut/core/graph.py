"""The model as a graph of nodes and tensors. No ONNX in here, and no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from .errors import GraphcutError
from .product import Product
from .units import count
from .wiring import Wiring, wire


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        name: unique in its graph; the name of its first output where the model gives it none.
        op: its operator, with the domain where that is not ONNX's own (`com.microsoft.Gelu`).
        reads: activations it reads: inputs of the model and what flowing nodes write, what the bodies of its If, Loop
            and Scan capture included.
        writes: every tensor it writes.
        weights: initializers it reads.
        constants: tensors it reads that constant nodes write.
        is_constant: nothing from outside has a part in its result, and every run gives the same one.
        is_stateful: it draws random numbers or keeps something between runs, so it must exist exactly once.
        module: path of the module it came from, such as `model/layers.3/mlp`; empty where nothing tells.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    weights: tuple[str, ...]
    constants: tuple[str, ...]
    is_constant: bool
    is_stateful: bool
    module: str


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer, without its values.

    Attributes:
        name: its name in the model.
        bytes: what its values take.
        is_default: it is the default of a model input that a user may override.
    """

    name: str
    bytes: int
    is_default: bool


@dataclass(frozen=True, repr=False)
class Graph(Product):
    """Nodes in an order in which they can run.

    Attributes:
        nodes: all nodes, the constant ones among them, in topological order.
        weights: the initializers that some node or output reads.
        reads: the model's inputs, in its order.
        writes: the model's outputs, in its order.
    """

    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @cached_property
    def flow(self) -> tuple[int, ...]:
        """The nodes that something flows through: all but the constant ones, in topological order."""
        return tuple(i for i, node in enumerate(self.nodes) if not node.is_constant)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Which node writes a tensor, constant nodes included."""
        return {tensor: i for i, node in enumerate(self.nodes) for tensor in node.writes}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Which flowing nodes read an activation, in topological order."""
        found: dict[str, list[int]] = {}
        for i in self.flow:
            for tensor in self.nodes[i].reads:
                found.setdefault(tensor, []).append(i)
        return {tensor: tuple(nodes) for tensor, nodes in found.items()}

    @cached_property
    def input_index(self) -> Mapping[str, int]:
        """The place of each input among `reads`."""
        return {tensor: i for i, tensor in enumerate(self.reads)}

    @cached_property
    def node_index(self) -> Mapping[str, int]:
        """The place of each node in `nodes`."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def constants_for(self, tensors: Iterable[str]) -> tuple[int, ...]:
        """The constant nodes that must run so that `tensors` stand, in topological order."""
        found: set[int] = set()
        wanted = [tensor for tensor in tensors if tensor in self.producer]
        while wanted:
            node = self.producer[wanted.pop()]
            if node not in found and self.nodes[node].is_constant:
                found.add(node)
                wanted.extend(self.nodes[node].constants)
        return tuple(sorted(found))

    def weights_of(self, node: int) -> tuple[str, ...]:
        """The initializers that a node reads, those that its constant nodes read included."""
        own, constants = self.nodes[node].weights, self.nodes[node].constants
        if not constants:
            return own
        return (*own, *(name for i in self.constants_for(constants) for name in self.nodes[i].weights))


@dataclass(frozen=True, slots=True, repr=False)
class Block(Product):
    """Nodes that stay together.

    Attributes:
        nodes: the flowing nodes whose home it is, in topological order.
        replicas: the nodes that it computes for itself though others may too: constant nodes, and flowing nodes whose
            home is an earlier block. In topological order.
        reads: activations that come from outside the block.
        writes: tensors that its own nodes make and that are wanted outside the block, then outputs of the model that no
            flowing node makes.
        weights: initializers that its nodes, its replicas and its outputs read.
    """

    nodes: tuple[int, ...]
    replicas: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Partition(Product):
    """Every flowing node at home in exactly one block, and the blocks in an order in which they can run."""

    blocks: tuple[Block, ...]
    wiring: Wiring


def partition(graph: Graph, rows: Sequence[Iterable[int]]) -> Partition:
    """Group the flowing nodes of `graph` into one block for each row.

    A node may stand in several rows: each computes it for itself, and what it makes is not sent there. Its home is the
    first of them, which also gives out what it makes where other blocks read it, or the model gives it out. A copy
    that nothing in its row and nobody outside needs is left out.

    An output of the model that no flowing node writes (a constant, an initializer, the default of an input that is
    handed straight on) is given out by the first block that holds it anyway, else by the last block. Linear in the
    number of nodes and edges.

    Raises:
        GraphcutError: the rows can't run in this order, some node stands in none, or one that draws random numbers or
            keeps something between runs stands in several.
    """
    placed = _placed(graph, rows)
    own, copied = _homes_and_copies(placed)
    constants = [graph.constants_for(tensor for n in row for tensor in graph.nodes[n].constants) for row in placed]
    extra = _owners_of_constant_outputs(graph, placed, constants)
    wanted = {*graph.writes, *(tensor for row in placed for tensor in _reads(graph, row))}
    blocks = tuple(
        _block(graph, nodes, {*copies, *shared, *graph.constants_for(owned)}, owned, wanted)
        for nodes, copies, shared, owned in zip(own, copied, constants, extra, strict=True)
    )
    return Partition(blocks, wire(blocks, reads=graph.reads, writes=graph.writes))


def _placed(graph: Graph, rows: Sequence[Iterable[int]]) -> list[tuple[int, ...]]:
    """The rows in topological order, without the copies that nothing needs."""
    holders: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        for n in sorted(set(row)):
            holders.setdefault(n, []).append(i)
    # From the outputs back: once the readers of a node are settled, so is where it is needed.
    given_out = set(graph.writes)
    for n in sorted((n for n, held in holders.items() if len(held) > 1), reverse=True):
        holders[n] = _needed_in(graph, n, holders, given_out)
    placed: list[list[int]] = [[] for _ in rows]
    for n in sorted(holders):
        for i in holders[n]:
            placed[i].append(n)
    return [tuple(row) for row in placed]


def _needed_in(graph: Graph, n: int, holders: Mapping[int, Sequence[int]], given_out: AbstractSet[str]) -> list[int]:
    """Those of the rows that hold node `n` in which it is read, and the first of all where others need it."""
    node, held = graph.nodes[n], holders[n]
    if node.is_stateful:
        raise GraphcutError(
            f"node {node.name!r} draws random numbers or keeps something between runs, and stands in "
            f"{count(len(held), 'part')}",
            hint="such a node must run exactly once: put it into one part, and send what it makes",
        )
    reading = {i for tensor in node.writes for reader in graph.readers.get(tensor, ()) for i in holders.get(reader, ())}
    is_sent = not reading.issubset(held) or not given_out.isdisjoint(node.writes)
    return [i for i in held if i in reading or (is_sent and i == held[0])]


def _homes_and_copies(rows: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """For each row the nodes that no earlier row holds, and those that one does."""
    own, copied = [], []
    settled: set[int] = set()
    for row in rows:
        own.append(tuple(n for n in row if n not in settled))
        copied.append(tuple(n for n in row if n in settled))
        settled.update(row)
    return own, copied


def _reads(graph: Graph, nodes: Iterable[int]) -> dict[str, None]:
    """The activations that `nodes` read and don't make, in the order they are first read."""
    made = {tensor for n in nodes for tensor in graph.nodes[n].writes}
    return dict.fromkeys(tensor for n in nodes for tensor in graph.nodes[n].reads if tensor not in made)


def _owners_of_constant_outputs(
    graph: Graph, rows: Sequence[tuple[int, ...]], constants: Sequence[tuple[int, ...]]
) -> list[list[str]]:
    owned: list[list[str]] = [[] for _ in rows]
    for output in dict.fromkeys(graph.writes):
        weight = graph.weights.get(output)
        node = graph.producer.get(output)
        if weight is not None and not weight.is_default:
            holders = [i for i, row in enumerate(rows) if any(output in graph.nodes[n].weights for n in row)]
            owned[holders[0] if holders else -1].append(output)
        elif weight is not None:
            # The default of an input may be overridden, and the last to read it hands on what it got.
            holders = [i for i, row in enumerate(rows) if any(output in graph.nodes[n].reads for n in row)]
            owned[holders[-1] if holders else -1].append(output)
        elif node is not None and graph.nodes[node].is_constant:
            holders = [i for i, replicas in enumerate(constants) if node in replicas]
            owned[holders[0] if holders else -1].append(output)
    return owned


def _block(
    graph: Graph, nodes: tuple[int, ...], replicas: Iterable[int], owned: Sequence[str], wanted: AbstractSet[str]
) -> Block:
    replicas = tuple(sorted(replicas))
    reads = _reads(graph, sorted((*nodes, *replicas)))
    reads.update(dict.fromkeys(output for output in owned if output in graph.input_index))
    weights = dict.fromkeys(weight for n in (*replicas, *nodes) for weight in graph.nodes[n].weights)
    weights.update(dict.fromkeys(name for name in (*owned, *reads) if name in graph.weights))
    return Block(
        nodes=nodes,
        replicas=replicas,
        reads=tuple(sorted(reads, key=lambda tensor: graph.input_index.get(tensor, len(graph.reads)))),
        writes=(*(t for n in nodes for t in graph.nodes[n].writes if t in wanted), *owned),
        weights=tuple(weights),
    )
