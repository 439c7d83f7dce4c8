"""What kernels of ONNX Runtime take while they run, besides what their nodes read and write.

Measured with ONNX Runtime 1.32 on x86-64, one node at a time and one thread: the peak of its run above what it writes.

    kernel                                        takes besides
    ConvInteger, but for pointwise ones           the patches of the input that each output reads, as bytes (im2col)
    ConvTranspose                                 what each input adds to outputs
    QLinearConv                                   its input and its output, transposed
    Conv in blocks of channels                    its input and its output, where what is beside it has no blocks
    MultiHeadAttention, GroupQueryAttention       its inputs, transposed; twice the queries
    MatMulNBits with accuracy level 4             its input, as int8 with scales: 9/32
    MatMulNBits with another one                  32 columns of its weight, dequantized: kept for all of them
    Softmax along an axis that is not the last    its output twice, transposed
    Einsum                                        its inputs and its output, twice
    HardSwish, Mish                               its output
    what writes over its input                    its input less
    what is fused with the node before            the tensor between the two less

The latter two where nothing else reads that tensor; in blocks of channels only what follows a Conv writes over its
output (nchwc_transformer.cc). For what is fused see fusions.py.
"""

from collections.abc import Container, Iterable
from math import ceil, prod
from typing import Final, NamedTuple

from ..core.graph import Graph
from ..core.tensors import Tensor, TensorBytes
from ..loading.model import Model
from .fusions import is_between, joined_nodes
from .held_weights import BLOCK, OPERATORS, HeldWeights, number_of

_COLUMNS: Final = 32  #: columns that MatMulNBits dequantizes at a time.
_TIMES: Final = {"QLinearConv": (1, 1), "Einsum": (2, 2), "HardSwish": (0, 1), "Mish": (0, 1)}
"""How often a kernel takes what it reads, and what it writes."""


class KernelWork(NamedTuple):
    """What the kernel of a node takes besides, in bytes; less than 0 if it has no memory of its own for its output."""

    always: int = 0
    reading: int = 0  #: where it reads a tensor of another part.
    writing: int = 0  #: where another part reads what it writes.
    ends: tuple[int, ...] = ()  #: nodes without which it is as where it reads a tensor of another part.

    def within(self, graph: Graph, node: int, inside: Container[int]) -> int:
        """What it takes in a part with these nodes."""
        own = graph.nodes[node]
        is_first = any(one not in inside for one in (*self.ends, *map(graph.producer.get, own.reads)))
        is_last = any(reader not in inside for name in own.writes for reader in graph.readers.get(name, ()))
        return max(self.always, self.reading if is_first else self.always, self.writing if is_last else self.always)


def kernel_work(held: HeldWeights, node: int, sizes: TensorBytes) -> KernelWork:
    """What the kernel of a node takes while it runs, besides what the node reads and writes.

    Other providers than the CPU's were not measured: they are taken to need nothing.
    """
    own, proto = held.model.graph.nodes[node], held.model.proto.graph.node[node]
    if node in held.blocks:
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
            found = 2 * total(own.writes) + _without_memory(held, node, sizes).always
        case _ if op in _TIMES:
            found = _TIMES[op][0] * total(own.reads) + _TIMES[op][1] * total(own.writes)
        case _ if op:
            return _without_memory(held, node, sizes)
    return KernelWork(found)


def kept_buffer(model: Model) -> tuple[int, tuple[int, ...]]:
    """What nodes of a part take together from their first run on, once: bytes, and the nodes.

    MatMulNBits dequantizes some columns of its weight at a time, unless it multiplies integers, or a single row.
    """
    graph, found = model.graph, dict[int, int]()
    for node in (node for node in graph.flow if graph.nodes[node].op == "com.microsoft.MatMulNBits"):
        proto, shape = model.proto.graph.node[node], model.tensors[graph.nodes[node].writes[0]].shape or (None,)
        if number_of(proto, "accuracy_level", 0) != 4 and {*shape[:-1]} != {1}:
            found[node] = 4 * _COLUMNS * number_of(proto, "K", 0)
    return max(found.values(), default=0), tuple(found)


def _without_memory(held: HeldWeights, node: int, sizes: TensorBytes) -> KernelWork:
    """What a node takes less that is fused with the node before, or writes over its input."""
    model, own = held.model, held.model.graph.nodes[node]
    joined, between = model.once(joined_nodes), [name for name in own.reads if is_between(model.graph, name)]
    if node in joined and not held.remakings(node):
        saved = -sizes[joined[node].tensor][0]
        return KernelWork(saved, 0, saved, joined[node].ends)
    if held.blocks and own.op in OPERATORS["in_blocks"]:
        is_over, width = own.op in OPERATORS["over_conv"], 1 + held.remakings(node)
        between = [name for name in between if model.graph.producer[name] in held.blocks]
    else:
        is_over, width = own.op in OPERATORS["over_input"] and not held.remakings(node), 1
    is_known = all(sizes[name][1] for name in between) and model.once(_has_sizes)
    is_output = own.writes[0] in model.graph.outputs
    return KernelWork(-width * sizes[between[0]][0] if between and is_over and is_known and not is_output else 0)


def _has_sizes(model: Model) -> bool:
    """Whether all inputs have sizes in the file: else ONNX Runtime does not know that two tensors are as large."""
    inputs = (model.tensors[name].shape for name in model.graph.reads)
    return all(shape is not None and all(isinstance(dim, int) for dim in shape) for shape in inputs)


def _is_last(tensor: Tensor, axis: int) -> bool:
    return axis == -1 or tensor.shape is None or axis == len(tensor.shape) - 1


def _reordering(held: HeldWeights, node: int, sizes: TensorBytes) -> KernelWork:
    """What a Conv in blocks of channels takes for tensors that are reordered, or padded to whole blocks."""
    graph, proto = held.model.graph, held.model.proto.graph.node[node]
    own, width = graph.nodes[node], held.remakings(node)
    outputs, inputs, *_ = held.shape_of(proto.input[1])
    is_direct = inputs < BLOCK and number_of(proto, "group", 1) == 1
    given = 0 if is_direct else width * sum(sizes[name][0] for name in own.reads)
    made = width * sizes[own.writes[0]][0]
    padded = ceil(made * ceil(outputs / BLOCK) * BLOCK / outputs)

    def keeps(other: int) -> bool:
        return graph.nodes[other].op in OPERATORS["in_blocks"] or other in held.blocks

    is_kept = all(name in graph.producer and keeps(graph.producer[name]) for name in own.reads)
    is_read = own.writes[0] not in graph.outputs and all(map(keeps, graph.readers.get(own.writes[0], ())))
    always = max(padded - made, 0 if is_kept else given, 0 if is_read else padded)
    return KernelWork(always, given, padded)
