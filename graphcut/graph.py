"""The model as a graph of nodes and tensors. No ONNX in here, and no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class Graph:
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
    def place_of_input(self) -> Mapping[str, int]:
        """The place of each input among `reads`."""
        return {tensor: i for i, tensor in enumerate(self.reads)}

    @cached_property
    def by_name(self) -> Mapping[str, int]:
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


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that stay together.

    Attributes:
        nodes: the flowing nodes, in topological order.
        replicas: the constant nodes that it computes for itself.
        reads: activations that come from outside the block.
        writes: tensors made here that are wanted outside the block.
        weights: initializers that its nodes, its replicas and its outputs read.
    """

    nodes: tuple[int, ...]
    replicas: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """Every flowing node in exactly one block, and the blocks in an order in which they can run."""

    blocks: tuple[Block, ...]
    wiring: Wiring


def partition(graph: Graph, rows: Sequence[Iterable[int]]) -> Partition:
    """Group the flowing nodes of `graph` into one block for each row.

    An output of the model that no flowing node writes (a constant, an initializer, the default of an input that is
    handed straight on) is given out by the first block that holds it anyway, else by the last block. Linear in the
    number of nodes and edges.

    Raises:
        GraphcutError: the rows can't run in this order, or some node stands in none.
    """
    placed = [tuple(sorted(row)) for row in rows]
    home = {tensor: i for i, row in enumerate(placed) for n in row for tensor in graph.nodes[n].writes}
    wanted = set(graph.writes)
    for i, row in enumerate(placed):
        for n in row:
            wanted.update(tensor for tensor in graph.nodes[n].reads if home.get(tensor) != i)
    constants = [graph.constants_for(tensor for n in row for tensor in graph.nodes[n].constants) for row in placed]
    extra = _owners_of_constant_outputs(graph, placed, constants)
    blocks = tuple(
        _block(graph, row, replicas, owned, wanted)
        for row, replicas, owned in zip(placed, constants, extra, strict=True)
    )
    return Partition(blocks, wire(blocks, reads=graph.reads, writes=graph.writes))


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
    graph: Graph, row: tuple[int, ...], replicas: tuple[int, ...], owned: Sequence[str], wanted: set[str]
) -> Block:
    nodes = [graph.nodes[n] for n in row]
    replicas = tuple(sorted({*replicas, *graph.constants_for(owned)}))
    made = {tensor for node in nodes for tensor in node.writes}
    reads = dict.fromkeys(tensor for node in nodes for tensor in node.reads if tensor not in made)
    reads.update(dict.fromkeys(output for output in owned if output in graph.place_of_input))
    weights = dict.fromkeys(weight for n in (*replicas, *row) for weight in graph.nodes[n].weights)
    weights.update(dict.fromkeys(name for name in (*owned, *reads) if name in graph.weights))
    return Block(
        nodes=row,
        replicas=replicas,
        reads=tuple(sorted(reads, key=lambda tensor: graph.place_of_input.get(tensor, len(graph.reads)))),
        writes=(*(t for node in nodes for t in node.writes if t in wanted), *owned),
        weights=tuple(weights),
    )
