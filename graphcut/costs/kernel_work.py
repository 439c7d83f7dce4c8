"""What kernels of ONNX Runtime take while they run, besides what their nodes read and write.

Measured with ONNX Runtime 1.32 on x86-64, one node at a time and one thread: the peak of its run above what it writes.

    kernel                                        takes besides
    ConvInteger, but for pointwise ones           the patches of the input that each output reads, as bytes (im2col)
    ConvTranspose                                 what each input adds to outputs
    QLinearConv                                   its input and its output, transposed
    Conv in blocks of channels                    its input and its output, where what is beside it has no blocks
    MultiHeadAttention, GroupQueryAttention       its inputs, transposed; twice the queries
    MatMulNBits with accuracy level 4             its input, as int8 with scales: 9/32
    Softmax along an axis that is not the last    its output twice, transposed
    Einsum                                        its inputs and its output, twice
    HardSwish, Mish                               its output
"""

from collections.abc import Container, Iterable
from math import ceil, prod
from typing import Final, NamedTuple

from ..core.graph import Graph
from ..core.tensors import Tensor, TensorBytes
from .held_weights import BLOCK, HeldWeights, number_of

_IN_BLOCKS: Final = frozenset({
    *("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "Add", "Sum", "Mul", "Concat", "MaxPool"),
    *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "Resize", "Upsample"),
})  # fmt: skip
"""Operators that take and write blocks of channels beside a Conv that does (nchwc_transformer.cc)."""


_TIMES: Final = {"QLinearConv": (1, 1), "Einsum": (2, 2), "HardSwish": (0, 1), "Mish": (0, 1)}
"""How often a kernel takes what it reads, and what it writes."""


class KernelWork(NamedTuple):
    """What the kernel of a node takes besides, in bytes."""

    always: int = 0
    reading: int = 0  #: where it reads a tensor of another part.
    writing: int = 0  #: where another part reads what it writes.

    def within(self, graph: Graph, node: int, inside: Container[int]) -> int:
        """What it takes in a part with these nodes."""
        own = graph.nodes[node]
        is_first = any(graph.producer.get(name) not in inside for name in own.reads)
        is_last = any(reader not in inside for name in own.writes for reader in graph.readers.get(name, ()))
        return max(self.always, self.reading * is_first, self.writing * is_last)


def kernel_work(held: HeldWeights, node: int, sizes: TensorBytes) -> KernelWork:
    """What the kernel of a node takes while it runs, besides what the node reads and writes.

    Other providers than the CPU's were not measured: they are taken to need nothing.
    """
    own, proto = held.model.graph.nodes[node], held.model.proto.graph.node[node]
    if own.op == "Conv" and held.in_blocks(node):
        return _reordering(held, node, sizes)

    def total(names: Iterable[str]) -> int:
        return sum(sizes[name][0] for name in names)

    op, found = own.op.removeprefix("com.microsoft.") if held.widened is not None else "", 0
    shape = held.shape_of(proto.input[1]) if op in {"ConvInteger", "ConvTranspose"} else ()
    match op:
        case "ConvInteger" if prod(shape[2:]) > 1:
            found = total(own.writes) // 4 // shape[0] * prod(shape[1:])
        case "ConvTranspose" if any(shape[:1]):
            found = total(own.reads) // shape[0] * prod(shape[1:])
        case "MultiHeadAttention" | "GroupQueryAttention":
            found = max(total(own.reads), 2 * sizes[own.reads[0]][0])
        case "MatMulNBits" if number_of(proto, "accuracy_level", 0) == 4:
            found = total(own.reads) * 9 // 32
        case "Softmax" | "LogSoftmax" if not _is_last(held.model.tensors[own.writes[0]], number_of(proto, "axis", -1)):
            found = 2 * total(own.writes)
        case _ if op in _TIMES:
            found = _TIMES[op][0] * total(own.reads) + _TIMES[op][1] * total(own.writes)
    return KernelWork(found)


def _is_last(tensor: Tensor, axis: int) -> bool:
    return axis == -1 or tensor.shape is None or axis == len(tensor.shape) - 1


def _reordering(held: HeldWeights, node: int, sizes: TensorBytes) -> KernelWork:
    """What a Conv in blocks of channels takes for tensors that are reordered, or padded to whole blocks."""
    graph, proto = held.model.graph, held.model.proto.graph.node[node]
    own, width = graph.nodes[node], 2 if held.remakings(node) else 1
    outputs, inputs, *_ = held.shape_of(proto.input[1])
    is_direct = inputs < BLOCK and number_of(proto, "group", 1) == 1
    given = 0 if is_direct else width * sum(sizes[name][0] for name in own.reads)
    made = width * sizes[own.writes[0]][0]
    padded = ceil(made * ceil(outputs / BLOCK) * BLOCK / outputs)

    def keeps(other: int) -> bool:
        return graph.nodes[other].op in _IN_BLOCKS or held.in_blocks(other)

    is_kept = all(name in graph.producer and keeps(graph.producer[name]) for name in own.reads)
    is_read = own.writes[0] not in graph.writes and all(map(keeps, graph.readers.get(own.writes[0], ())))
    always = max(padded - made, 0 if is_kept else given, 0 if is_read else padded)
    return KernelWork(always, given, padded)
