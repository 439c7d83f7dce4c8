"""The memory of a part: what plans, manifests and all that reads them call so."""

from collections.abc import Mapping
from typing import Final

from ..core.graph import Block
from ..core.manifest import RunMemory
from ..core.tensors import TensorBytes
from .caches import find_caches
from .held_weights import MOVES, NODE_BYTES, HeldWeights
from .kernel_work import kernel_work
from .weighing import inner_bytes, peak_bytes

SESSION_BYTES: Final = 512 << 10
"""What a session takes for its threads, its graph without nodes, and the first buffers of its kernels."""


def part_memory(held: HeldWeights, sizes: TensorBytes, part: Block, halves: int = 0) -> RunMemory:
    """The memory of a part on a device that holds weights so, where tensors have these sizes.

    `halves` are the bytes of what it is sent and sends as float16.
    """
    graph, nodes = held.model.graph, sorted({*part.nodes, *part.replicas})
    flowing = [node for node in nodes if not graph.nodes[node].is_constant]
    more, opening, unpacked = held.of(flowing)
    pasts, presents = ({getattr(cache, end) for cache in find_caches(held.model)} for end in ("past", "present"))
    states = pasts.intersection(part.reads) | presents.intersection(part.writes)
    computed = [pair for node in flowing for pair in computed_bytes(held, node, sizes).items()]
    inside = {*flowing}
    kernels = {node: found for node in flowing if any(found := kernel_work(held, node, sizes))}
    work = {node: found.within(graph, node, inside) for node, found in kernels.items()}
    own = {name: (number, True) for name, number in computed if name not in presents}
    weights = sum(graph.weights[name].bytes for name in part.weights) + sum(inner_bytes(held.model, nodes).values())
    return RunMemory(
        load=weights + more + SESSION_BYTES + NODE_BYTES * len(flowing),
        opening=opening,
        unpacked=unpacked,
        inputs=sum(sizes[name][0] for name in part.reads if name not in pasts) + halves,
        states=sum(sizes[name][0] for name in states),
        activations=peak_bytes(graph, flowing, own, writes=part.writes, copies={*part.replicas}, work=work),
        is_exact=all(sizes[name][1] for n in flowing for name in (*graph.nodes[n].reads, *graph.nodes[n].writes)),
    )


def computed_bytes(held: HeldWeights, node: int, sizes: TensorBytes) -> Mapping[str, int]:
    """The sizes of what a node writes while it is computed: twice as large where its device widens them."""
    own, types = held.model.graph.nodes[node], held.model.tensors
    widened = () if own.op in MOVES else held.widened or ()
    return {name: sizes[name][0] * (2 if types[name].dtype in widened else 1) for name in own.writes}
