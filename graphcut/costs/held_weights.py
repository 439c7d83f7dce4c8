"""What ONNX Runtime holds of the weights of a part once it is open, and what it takes besides while it opens the part.

As multiples of their bytes in the file, which is mapped. Measured with ONNX Runtime 1.32 on x86-64, with all
optimizations, freed blocks given back: the peak of a fresh process above that of one with a small session.

    weights                                                      open    besides
    packed: MatMul, Gemm, LSTM, MatMulInteger, QDQ, MatMulNBits  1       the largest once, or twice if several nodes
                                                                         read it
    tables from which rows are read                              1       nothing; the rows that are read, up to all
    float16, where the operator has no kernel for it             2       the largest, widened
    the same, if several nodes read it                           1       the largest, widened: it is cast in each run
    float16, transposed or computed otherwise before that        2       the largest, and all as they are in the file
    Conv in blocks of 16 channels, padded to these               1       three times, less those that are made after it;
                                                                         float16, or a BatchNormalization after
                                                                         it: and all
    scales of MatMulNBits: with accuracy level 4, else           3.25, 1    nothing; float16 is widened besides
    int8 by channels, dequantized before a MatMul                1.45    the largest; if transposed all, 8.5 times
    int4 in blocks, dequantized before a MatMul                  as MatMulNBits with accuracy level 4
    dequantized in any other way                                 1       all, as float32: in each run

A node takes 4.5 KiB besides, and a weight 3: what ONNX Runtime keeps of both, also of fused ones. The casts around
a node whose output is widened take 8 KiB, and so does what becomes of a Conv in blocks. Measured as slope of chains
of 60 to 250 nodes, beside what weights hold, in KiB: Sin 3 to 4, Add with a weight 5, MatMul 5 to 10, Conv 12 to 17,
with a BatchNormalization 25 to 29, LayerNormalization 9, MatMulInteger with four nodes around it 22 to 25.

Other providers than the CPU's were not measured: they are taken to hold what the file has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from math import ceil
from typing import Final, NamedTuple

from onnx import NodeProto

from ..core.graph import Weight, grouped
from ..core.manifest import SessionSettings
from ..core.records import table
from ..core.tensors import BITS, Tensor
from ..loading.model import Model
from ..loading.shape_inference import tensor_of_initializer

OPERATORS: Final = table("costs/operators.toml", dict[str, frozenset[str]])
MOVES: Final = OPERATORS["moves"]
RECORD_BYTES: Final = 3 << 10  #: what a session takes for a weight, besides its bytes.
NODE_BYTES: Final = 9 << 9  #: what a session takes for a node.
CAST_BYTES: Final = 8 << 10  #: the same for the casts around a node, and for what becomes of a Conv in blocks.
BLOCK: Final = 16  #: channels in a block with AVX-512; 8 with AVX2.
_LARGE_BYTES: Final = 16 << 10  #: blocks of this size and more are whole pages, see `return_large_blocks`.
_PAGE_BYTES: Final = 4 << 10
_UNOPENED: Final = 7 / 8  #: the share of weights that follow which is not there yet, at least.
_ALIGNED: Final = 4  #: channels of a Conv that is made in blocks are a multiple of this.


class Holding(NamedTuple):
    """What ONNX Runtime holds of a weight for a node, as multiples of its bytes in the file."""

    open: float = 1.0  #: once the part is open.
    largest: float = 0.0  #: besides, while a part is opened or runs, of one weight at a time.
    all: float = 0.0  #: the same, of all weights at once.
    is_cast: bool = False  #: it is widened; where several nodes do so, in each run.
    reordered: float = 0.0  #: besides, while it is put into another order, before any weight that follows is open.


_PACKED: Final = {Holding(1.0, 1.0), Holding(1.0, 2.0)}  #: a weight that is packed, for one node or several.


class HeldBytes(NamedTuple):
    """What ONNX Runtime holds of the weights of a part, in bytes."""

    more: int = 0  #: besides the bytes of their files, once the part is open.
    opening: int = 0  #: the most besides, while the part is opened, or a node runs.
    unpacked: int = 0  #: the same where nothing is packed.


@dataclass(frozen=True)
class HeldWeights:
    """The weights of a model as a provider holds them."""

    model: Model
    widened: Collection[str] | None  #: see `SessionSettings.widened`.

    def of(self, nodes: Iterable[int]) -> HeldBytes:
        """Those of a part with these nodes, of which the flowing ones count."""
        nodes = list(nodes)
        remade = sum(map(self.remakings, nodes))
        uses = grouped(pair for node in nodes for pair in self.uses.get(node, {}).items())
        more = largest = every = unpacked = later = 0.0
        for name, found in reversed(uses.items()):
            number, use = self.model.graph.weights[name].bytes, _together(found)
            more += number * (use.open - 1)
            besides = max(number * use.largest, number * use.reordered - later)
            largest, every = max(largest, besides), every + number * use.all
            later += number * use.open * _UNOPENED if use.reordered else 0
            unpacked = max(unpacked, 0 if use in _PACKED else besides)
        return HeldBytes(ceil(more) + remade * CAST_BYTES, ceil(largest + every), ceil(unpacked + every))

    @cached_property
    def at_least(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """What parts hold at least, besides the bytes of their files: bytes, and the nodes any of which need them."""
        found = list[tuple[int, tuple[int, ...]]]()
        found += [(CAST_BYTES * n, (node,)) for node in self.model.graph.flow if (n := self.remakings(node))]
        users = grouped((name, (node, use)) for node, uses in self.uses.items() for name, use in uses.items())
        for name, own in users.items():
            is_recast = sum(use.is_cast for _, use in own) > 1
            held = {node: 1.0 if use.is_cast and is_recast else use.open for node, use in own}
            for less, more in pairwise(sorted({1.0, *held.values()})):
                added = ceil(self.model.graph.weights[name].bytes * (more - less))
                found.append((added, tuple(node for node, times in held.items() if times >= more)))
        return tuple(found)

    @cached_property
    def least_bytes(self) -> Mapping[str, int]:
        """What a part that reads a weight holds of it at least, by the node that holds it least often."""
        times = grouped((name, use.open) for uses in self.uses.values() for name, use in uses.items())
        return {name: ceil(one.bytes * min(times.get(name, [1.0]))) for name, one in self.model.graph.weights.items()}

    @cached_property
    def opening_bytes(self) -> Mapping[int, tuple[int, int]]:
        """What a part with a node takes at least besides, while it is opened or the node runs; without zeros.

        And what it takes if no weight that follows is put into another order, too.
        """
        weights, found = self.model.graph.weights, dict[int, tuple[int, int]]()
        for node, uses in self.uses.items():
            # By `largest` and by `reordered`.
            least, most = (max((ceil(weights[n].bytes * use[i]) for n, use in uses.items()), default=0) for i in (1, 4))
            if least:
                found[node] = least, max(least, most)
        return found

    @cached_property
    def opening_of_all_bytes(self) -> Mapping[int, int]:
        """What a node adds to that, whatever else the part has: for its weights that no other node needs."""
        users = Counter(name for uses in self.uses.values() for name in uses)
        alone = {node: [name for name in uses if users[name] == 1] for node, uses in self.uses.items()}
        weights, uses = self.model.graph.weights, self.uses
        return {
            node: sum(int(weights[name].bytes * uses[node][name].all) for name in own) for node, own in alone.items()
        }

    @cached_property
    def _types(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor_of_initializer(tensor) for tensor in self.model.proto.graph.initializer}

    @cached_property
    def uses(self) -> Mapping[int, Mapping[str, Holding]]:
        """For each flowing node what is held of each weight that it needs."""
        graph, found = self.model.graph, dict[int, dict[str, Holding]]()
        for node in graph.flow:
            own = graph.nodes[node]
            computed = {w: n for n in graph.constants_of[node] for w in graph.nodes[n].weights}
            uses = {name: self._computed(node, first, name) for name, first in computed.items()}
            found[node] = uses | {name: self._read(node, name) for name in own.weights}
        return {} if self.widened is None else found

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The dimensions of a weight that are known; none of what is no initializer."""
        shape = self._types[name].shape if name in self._types else None
        return tuple(dim for dim in shape or () if isinstance(dim, int))

    @cached_property
    def blocks(self) -> frozenset[int]:
        """The Convs that are computed in blocks of channels."""
        nodes, protos = self.model.graph.nodes, self.model.proto.graph.node
        convs = (node for node in self.model.graph.flow if self.widened is not None and nodes[node].op == "Conv")
        return frozenset(node for node in convs if self._padded(protos[node]))

    def remakings(self, node: int) -> int:
        """How often other nodes are made of it: casts where its output is widened, a Conv in blocks."""
        own, types = self.model.graph.nodes[node], self.model.tensors
        return (node in self.blocks) + any(types[name].dtype in (self.widened or ()) for name in own.writes)

    def casts(self, node: int) -> list[int]:
        """The nodes whose outputs are cast for a node, in the order of its inputs: one of the two is a move."""
        graph, types = self.model.graph, self.model.tensors
        nodes, reads, moves = graph.nodes, graph.nodes[node].reads, graph.nodes[node].op in MOVES
        halves = [name for name in reads if name in graph.producer and types[name].dtype in (self.widened or ())]
        return [one for one in map(graph.producer.__getitem__, halves) if (nodes[one].op in MOVES) != moves]

    def _width(self, name: str) -> float:
        """How much wider a weight is held than in its file, if its operator has no kernel for its type."""
        return 2.0 if name in self._types and self._types[name].dtype in (self.widened or ()) else 1.0

    def _read(self, node: int, name: str) -> Holding:
        """What is held of a weight that a node reads as it is."""
        op, proto, width = self.model.graph.nodes[node].op, self.model.proto.graph.node[node], self._width(name)
        if op in MOVES or op == "ConvInteger":
            return Holding()
        if op == "com.microsoft.MatMulNBits" and name != proto.input[1]:
            copies = 3.25 if number_of(proto, "accuracy_level", 0) == 4 else 1.0
            return Holding(copies if width == 1 else 1 + width * copies)
        if op == "Conv" and name == proto.input[1] and (padded := self._padded(proto)):
            blocks = width * padded
            readers = self.model.graph.readers.get(proto.output[0], ())
            is_folded = [self.model.graph.nodes[one].op for one in readers] == ["BatchNormalization"]
            return Holding(blocks, blocks, blocks if width > 1 or is_folded else 0.0, reordered=3 * blocks)
        return Holding(width, width, is_cast=width > 1)

    def _padded(self, conv: NodeProto) -> float:
        """How much larger the weight of a Conv is in blocks of channels; 0 if it is not made so.

        The rules of onnxruntime/core/optimizer/nchwc_transformer.cc.
        """
        groups, (outputs, inputs, *kernel) = number_of(conv, "group", 1), (*self.shape_of(conv.input[1]), 0, 0)
        if len(kernel) != 4 or 0 in {outputs, inputs}:
            return 0.0
        blocks = [ceil(number / BLOCK) * BLOCK / number for number in (outputs, inputs)]
        if groups > 1:
            return 1.0 if outputs % BLOCK == 0 and (inputs == 1 or inputs % BLOCK == 0) else 0.0
        if outputs % _ALIGNED or (inputs >= BLOCK and inputs % _ALIGNED):
            return 0.0
        return blocks[0] * (blocks[1] if inputs >= BLOCK else 1.0)

    def _computed(self, node: int, first: int, name: str) -> Holding:
        """What is held of a weight from which constant nodes, of which `first` reads it, compute what a node reads."""
        graph, protos, width = self.model.graph, self.model.proto.graph.node, self._width(name)
        own, proto, kind = graph.nodes[node], protos[first], self._types.get(name)
        bits = 32 if kind is None else BITS.get(kind.dtype, 32)
        if not graph.nodes[first].op.endswith("DequantizeLinear"):
            is_moved = graph.nodes[first].op in MOVES
            return Holding(width, width / 2 if is_moved and width > 1 else width, float(is_moved and width > 1))
        is_scale = name != proto.input[0]
        writers = [graph.nodes[graph.producer[tensor]].op for tensor in own.reads if tensor in graph.producer]
        if any(op.endswith("DequantizeLinear") for op in writers):
            return Holding(1.0, 1.0)
        if own.op == "MatMul" and number_of(proto, "block_size", 0):
            return Holding(3.25) if is_scale else Holding(1.0, 1.0)
        if is_scale or own.op in MOVES:
            return Holding(1.0, 0.0 if is_scale else 32 / bits)
        scale = self._types.get(proto.input[1])
        if own.op == "MatMul" and scale is not None and scale.shape not in {(), (1,)}:
            is_direct = {*own.constants}.intersection(proto.output)
            return Holding(1.45, 1.0) if is_direct else Holding(1.45, 0.0, 8.5)
        return Holding(1 + 32 / bits)


def held_by(model: Model) -> Callable[[SessionSettings], HeldWeights]:
    """The weights of a model as a device holds them."""
    kinds = cache(partial(HeldWeights, model))
    return lambda device: kinds(device.widened)


def _together(uses: Sequence[Holding]) -> Holding:
    """What is held of a weight for several nodes of a part."""
    open_, largest, all_ = (max(use[i] for use in uses) for i in range(3))
    if sum(use.is_cast for use in uses) > 1:
        return Holding(1.0, largest, all_, is_cast=True)
    packing = sum(use.largest > 0 for use in uses)
    return Holding(open_, largest * (2 if packing > 1 else 1), all_, reordered=max(use.reordered for use in uses))


def bytes_as_read(weight: Weight) -> int:
    """What a session takes for a weight that it holds as its file has it: large ones are blocks of whole pages."""
    return weight.bytes + RECORD_BYTES + (_PAGE_BYTES if weight.bytes >= _LARGE_BYTES else 0)


def number_of(node: NodeProto, name: str, default: int) -> int:
    """An attribute that is a number."""
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
