"""The dataflow graph of a model, and its partition into blocks. No ONNX messages, no files.

Tensors have names; nodes, weights (initializers) and blocks refer to tensors by name, and to nodes by index.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeVar

from .errors import GraphcutError, UsageError
from .product import Product
from .wiring import Wiring, wire

_T = TypeVar("_T", bound=Hashable)
_Value = TypeVar("_Value")
_SHOWN: Final = 8  #: a hint lists at most so many tensors.


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the model's graph."""

    name: str  #: unique in the graph; if the model gives none, the name of the node's first output.
    op: str  #: the operator, with its domain unless that is ONNX's own (`com.microsoft.Gelu`).
    #: the activations it reads: inputs of the model and tensors that flowing nodes write. Includes what the subgraphs
    #: of an If, Loop or Scan read from the graph around them.
    reads: tuple[str, ...]
    writes: tuple[str, ...]  #: its outputs.
    weights: tuple[str, ...]  #: the initializers it reads.
    constants: tuple[str, ...]  #: the tensors it reads that constant nodes write.
    is_constant: bool  #: it depends on no input of the model, and always gives the same result.
    is_stateful: bool  #: it draws random numbers or keeps a state between runs, so it must not be replicated.
    module: str  #: path of the module it was exported from, such as `model/layers.3/mlp`; empty if unknown.
    rewrite: "Rewrite | None" = None  #: how other parts repeat it, if they do not repeat it as it is.


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A copy of a node that reads one of the outputs of its original, which is sent, instead of what that reads."""

    #: the copy: first in its `reads` is that output; first in its `writes` is what it computes again, then zeros of the
    #: same size that it needs for that.
    copy: Node
    dtype: str  #: the type of their elements: `float32` or `float16`.

    @property
    def pair(self) -> tuple[str, str]:
        """What the copy computes again, and the output of its original that it reads."""
        return self.copy.writes[0], self.copy.reads[0]

    @property
    def is_exact(self) -> bool:
        """Whether the copy writes the same bits as the original, on ONNX Runtime's CPU kernels."""
        return self.dtype != "float16"


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer, without its values."""

    name: str  #: its name in the model.
    bytes: int  #: size of its values.
    is_default: bool  #: it is the default value of an input of the model.


@dataclass(frozen=True, repr=False)
class Graph(Product):
    """The nodes and weights of a model."""

    nodes: tuple[Node, ...]  #: all nodes, constant ones included, in topological order.
    weights: Mapping[str, Weight]  #: the initializers that a node or an output reads, by name.
    reads: tuple[str, ...]  #: the model's inputs, in its order.
    writes: tuple[str, ...]  #: the model's outputs, in its order.
    #: the nodes that no output depends on, by the names of the nodes and of what they write, and weights that none of
    #: the others reads; they are not in the graph.
    removed: frozenset[str] = frozenset()

    @cached_property
    def flow(self) -> tuple[int, ...]:
        """Indices of the flowing nodes (all that are not constant), in topological order."""
        return tuple(i for i, node in enumerate(self.nodes) if not node.is_constant)

    @cached_property
    def flow_index(self) -> Mapping[int, int]:
        """The index of each flowing node in `flow`."""
        return {node: i for i, node in enumerate(self.flow)}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """The index of the node that writes a tensor."""
        return {tensor: i for i, node in enumerate(self.nodes) for tensor in node.writes}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """The flowing nodes that read an activation, in topological order."""
        found = grouped((tensor, i) for i in self.flow for tensor in self.nodes[i].reads)
        return {tensor: tuple(nodes) for tensor, nodes in found.items()}

    @cached_property
    def size_nodes(self) -> tuple[int, ...]:
        """The flowing nodes that compute sizes: they read a shape, or only what such nodes write.

        Not those that make larger tensors of them. In a session for a GPU, ONNX Runtime lets the CPU compute sizes
        (`GetCpuPreferredNodes`).
        """
        found = dict[str, int]()
        for i in self.flow:
            node = self.nodes[i]
            is_size = node.reads and node.op not in {"Range", "ConstantOfShape", "Expand"}
            if node.op in {"Shape", "Size"} or (is_size and found.keys() >= {*node.reads}):
                found.update(dict.fromkeys(node.writes, i))
        return tuple(dict.fromkeys(found.values()))

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """Inputs with a default, and constant outputs, that no node reads. The last flowing node's block has them."""
        known = {*self.weights, *(name for node in self.nodes if node.is_constant for name in node.writes)}
        known -= {name for node in self.nodes for name in (*node.reads, *node.weights, *node.constants)}
        return tuple(name for name in dict.fromkeys((*self.reads, *self.writes)) if name in known)

    @cached_property
    def input_index(self) -> Mapping[str, int]:
        """The index of each input in `reads`."""
        return {tensor: i for i, tensor in enumerate(self.reads)}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """`writes`, as a set: a decoder has two outputs for each layer."""
        return frozenset(self.writes)

    @cached_property
    def node_index(self) -> Mapping[str, int]:
        """The index of each node in `nodes`, by its name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def names(self, nodes: Iterable[int]) -> tuple[str, ...]:
        """The names of nodes, in their order."""
        return tuple(self.nodes[node].name for node in nodes)

    def predecessors(self, node: int) -> set[int]:
        """The nodes that write what a node reads."""
        return {self.producer[name] for name in self.nodes[node].reads if name in self.producer}

    def successors(self, node: int) -> set[int]:
        """The flowing nodes that read what a node writes."""
        return {reader for name in self.nodes[node].writes for reader in self.readers.get(name, ())}

    @cached_property
    def partitioned(self) -> "Callable[[tuple[tuple[int, ...], ...]], Partition]":
        """`partition` of this graph; those of the last groups are kept."""
        return lru_cache(4)(lambda groups: partition(self, groups))

    def running(self, block: "Block") -> list[int]:
        """The flowing nodes that a block runs, replicas included, in topological order."""
        return sorted({*block.nodes, *self.flow_index.keys() & {*block.replicas}})

    def copy_of(self, node: int) -> Node:
        """A node as parts have it that repeat it."""
        own = self.nodes[node]
        return own if own.rewrite is None else own.rewrite.copy

    def held(self, nodes: Iterable[int], copies: Iterable[int]) -> dict[int, Node]:
        """The nodes of a part that has `nodes` and repeats `copies`, in topological order."""
        found = {n: self.nodes[n] for n in nodes} | {n: self.copy_of(n) for n in copies}
        return {n: found[n] for n in sorted(found)}

    def constants_for(self, tensors: Iterable[str]) -> tuple[int, ...]:
        """The constant nodes that `tensors` depend on, in topological order."""
        start = {self.producer[tensor] for tensor in tensors if tensor in self.producer}
        start = {node for node in start if self.nodes[node].is_constant}
        return tuple(sorted(reached(start, lambda n: (self.producer[name] for name in self.nodes[n].constants))))

    @cached_property
    def constants_of(self) -> tuple[tuple[int, ...], ...]:
        """For each node the constant nodes that it depends on, in topological order; for the last one `unread`, too."""
        last = dict.fromkeys(self.flow[-1:], self.unread)
        needed = ((*node.constants, *last.get(i, ())) for i, node in enumerate(self.nodes))
        return tuple(self.constants_for(tensors) if tensors else () for tensors in needed)

    def weights_of(self, node: int) -> tuple[str, ...]:
        """The initializers that a node reads, those of the nodes in `constants_of` included."""
        own = (*self.nodes[node].weights, *(w for i in self.constants_of[node] for w in self.nodes[i].weights))
        return (*own, *(name for name in self.unread if name in self.weights)) if node in self.flow[-1:] else own


@dataclass(frozen=True, slots=True, repr=False)
class Block(Product):
    """The nodes of one part."""

    nodes: tuple[int, ...]  #: the flowing nodes that no earlier block has, in topological order.
    #: the nodes that other blocks may have too: constant nodes, and flowing nodes of earlier blocks that this block
    #: recomputes. In topological order.
    replicas: tuple[int, ...]
    reads: tuple[str, ...]  #: activations from outside the block.
    #: tensors of `nodes` that are read outside the block, then outputs of the model that no flowing node writes.
    writes: tuple[str, ...]
    weights: tuple[str, ...]  #: initializers that its nodes, its replicas and its outputs read.


@dataclass(frozen=True, repr=False)
class Partition(Product):
    """A division of a graph into blocks, in the order in which they run.

    Each flowing node is in `Block.nodes` of exactly one block.
    """

    blocks: tuple[Block, ...]
    wiring: Wiring


def grouped(pairs: Iterable[tuple[_T, _Value]]) -> dict[_T, list[_Value]]:
    """The values of each key, in the order in which they come."""
    found: dict[_T, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def reached(start: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """All that can be reached from `start`, itself included, where `following` gives what is one step away."""
    found = set(start)
    waiting = list(found)
    while waiting:
        new = set(following(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def post_order(start: Iterable[_T], before: Callable[[_T], Iterable[_T]]) -> list[_T]:
    """The post-order of a depth-first search from `start`, where `before` gives what comes before; the last first."""
    stack = [(one, False) for one in start]
    seen, order = set[_T](), list[_T]()
    while stack:
        one, is_done = stack.pop()
        if is_done:
            order.append(one)
        elif one not in seen:
            seen.add(one)
            stack.append((one, True))
            stack.extend((other, False) for other in before(one) if other not in seen)
    return order


def partition(graph: Graph, groups: Sequence[Iterable[int]]) -> Partition:
    """Divide `graph` into one block for each group of flowing nodes. Takes linear time.

    A node may be in several groups: the first one has it in `Block.nodes` and writes its tensors for other blocks, the
    later ones recompute it. A copy whose tensors are not read in its group, nor outside it if it is the first, is left
    out. An output of the model that no flowing node writes (a constant, an initializer, an input or its default) is
    written by the first block that has it anyway, or by that of the last flowing node.

    A GraphcutError if the groups can't run in this order, a node is in no group, or a stateful node is in several.
    """
    own, copied = _first_and_needed(graph, groups)
    held = [graph.held(nodes, copies) for nodes, copies in zip(own, copied, strict=True)]
    constants = [graph.constants_for(tensor for node in nodes.values() for tensor in node.constants) for nodes in held]
    last = next((i for i, nodes in enumerate(own) if graph.flow and graph.flow[-1] in nodes), len(own) - 1)
    outputs = _writers_of_constant_outputs(graph, held, constants, last)
    unread = [graph.unread if i == last else () for i in range(len(own))]
    wanted = {*graph.writes, *(tensor for nodes in held for tensor in outside_reads(nodes.values()))}
    blocks = tuple(
        _block(graph, nodes, {*copies, *needed, *graph.constants_for(extra)}, extra, declared, wanted)
        for nodes, copies, needed, extra, declared in zip(own, copied, constants, outputs, unread, strict=True)
    )
    return Partition(blocks, wire(blocks, reads=graph.reads, writes=graph.writes, kind="part"))


def block_between(graph: Graph, reads: Sequence[str], writes: Sequence[str]) -> Block:
    """The block that computes `writes` from `reads`, with the nodes that this takes and no others.

    It also reads inputs of the model that have a default. Constants need nothing, and are in the block. A tensor of
    `reads` that it does not need is not in `Block.reads`. A UsageError if one of `writes` also needs another input.
    """
    nodes, used = between(graph, set(reads), writes)
    if missing := [name for name in graph.reads if name in used and name not in (*reads, *graph.weights)]:
        raise _needs_more(graph, reads, writes, missing)
    reads = (*(name for name in reads if name in used), *(n for n in graph.reads if n in used and n not in reads))
    return block_of(graph, nodes, reads, writes)


def block_of(graph: Graph, nodes: Sequence[int], reads: Sequence[str], writes: Sequence[str]) -> Block:
    """The block of some flowing nodes, with the constants and weights that they need."""
    constants = graph.constants_for((*writes, *(name for n in nodes for name in graph.nodes[n].constants)))
    weights = dict.fromkeys(name for n in (*constants, *nodes) for name in graph.nodes[n].weights)
    weights.update(dict.fromkeys(name for name in (*writes, *reads) if name in graph.weights))
    return Block(tuple(nodes), constants, tuple(reads), tuple(writes), tuple(weights))


def between(graph: Graph, sources: AbstractSet[str], targets: Iterable[str]) -> tuple[tuple[int, ...], set[str]]:
    """The flowing nodes that compute `targets`, back to `sources` or inputs of the model, and those that they need."""
    ends = {*sources, *graph.input_index}

    def writer(name: str) -> int | None:
        n = None if name in ends else graph.producer.get(name)
        return None if n is None or graph.nodes[n].is_constant else n

    names = reached(targets, lambda name: () if (n := writer(name)) is None else graph.nodes[n].reads)
    return tuple(sorted({n for name in names if (n := writer(name)) is not None})), names & ends


def _needs_more(graph: Graph, reads: Sequence[str], writes: Sequence[str], missing: Sequence[str]) -> UsageError:
    """The error for a block that needs more inputs; its hint names tensors with which it would need none."""
    target = next(name for name in writes if not between(graph, set(reads), [name])[1].isdisjoint(missing))
    needed = [name for name in missing if name in between(graph, set(reads), [target])[1]]
    after, frontier = set(reads), dict[str, None]()
    for node in (graph.nodes[n] for n in between(graph, set(reads), [target])[0]):
        if not after.isdisjoint(node.reads):
            frontier.update((name, None) for name in node.reads if name not in after)
            after.update(node.writes)
    hint = f"add {'it' if len(needed) == 1 else 'them'} to `inputs`"
    if 0 < len(frontier) <= _SHOWN and [*frontier] != needed:
        hint += f", or start later, at `inputs={','.join((*reads, *frontier))!r}`"
    return UsageError(f"{target!r} also needs {', '.join(map(repr, needed))}", hint=hint)


def _first_and_needed(graph: Graph, groups: Sequence[Iterable[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """For each group its nodes that no earlier group has, and the others that it needs, in topological order."""
    holders = grouped((n, i) for i, group in enumerate(groups) for n in sorted(set(group)))
    # In reverse topological order, so that the readers of a node are settled before the node.
    for n in sorted((n for n, held in holders.items() if len(held) > 1), reverse=True):
        holders[n] = _needed_in(graph, n, holders)
    own, copied = ([list[int]() for _ in groups] for _ in range(2))
    for n in sorted(holders):
        for rank, i in enumerate(holders[n]):
            (copied if rank else own)[i].append(n)
    return own, copied


def _needed_in(graph: Graph, n: int, holders: Mapping[int, Sequence[int]]) -> list[int]:
    """The groups with node `n` that read its tensors, and the first one if others read them too."""
    node, held, copy = graph.nodes[n], holders[n], graph.copy_of(n)
    if node.is_stateful:
        hint = "such a node must run exactly once: put it into one part, which sends its tensors"
        raise GraphcutError(f"node {node.name!r} is random or stateful, and it is in {len(held)} parts", hint=hint)

    def reading(tensors: Iterable[str]) -> set[int]:
        return {i for tensor in tensors for reader in graph.readers.get(tensor, ()) for i in holders.get(reader, ())}

    repeating = reading(copy.writes).intersection(held[1:])
    without_it = reading(node.writes) - (repeating if copy is node else set())
    is_needed = bool(without_it) or not graph.outputs.isdisjoint(node.writes)  # a rewritten copy needs its original
    return [i for i in held if i in repeating or (is_needed and i == held[0])]


def outside_reads(nodes: Collection[Node]) -> dict[str, None]:
    """The activations that `nodes` read and don't write, in the order in which they are first read."""
    written = {tensor for node in nodes for tensor in node.writes}
    return dict.fromkeys(tensor for node in nodes for tensor in node.reads if tensor not in written)


def _writers_of_constant_outputs(
    graph: Graph, groups: Sequence[Mapping[int, Node]], constants: Sequence[tuple[int, ...]], last: int
) -> list[list[str]]:
    """For each group the outputs of the model that it writes though no flowing node does."""
    outputs: list[list[str]] = [[] for _ in groups]
    for output in dict.fromkeys(graph.writes):
        weight, writer = graph.weights.get(output), graph.producer.get(output)
        if weight is not None:
            holders = [i for i, g in enumerate(groups) if any(output in (*n.reads, *n.weights) for n in g.values())]
        elif writer is not None and graph.nodes[writer].is_constant:
            holders = [i for i, needed in enumerate(constants) if writer in needed]
        else:
            continue
        # A user may override a default. The last group that reads it writes the value that it was given.
        ordered = reversed(holders) if weight is not None and weight.is_default else holders
        outputs[next(iter(ordered), last)].append(output)
    return outputs


def _block(
    graph: Graph, nodes: list[int], repeated: set[int], outputs: list[str], unread: Sequence[str], wanted: set[str]
) -> Block:
    replicas = tuple(sorted(repeated))
    held = graph.held(nodes, replicas)
    reads = outside_reads(held.values())
    reads.update(dict.fromkeys(name for name in (*outputs, *unread) if name in graph.input_index))
    weights = dict.fromkeys(weight for n in (*replicas, *nodes) for weight in held[n].weights)
    weights.update(dict.fromkeys(name for name in (*outputs, *reads) if name in graph.weights))
    return Block(
        nodes=tuple(nodes),
        replicas=replicas,
        reads=tuple(sorted(reads, key=lambda tensor: graph.input_index.get(tensor, len(graph.reads)))),
        writes=(*(t for n in nodes for t in graph.nodes[n].writes if t in wanted), *outputs),
        weights=tuple(weights),
    )
