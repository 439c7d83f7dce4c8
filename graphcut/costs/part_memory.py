"""The memory of a part: what plans, manifests and all that reads them call so."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..core.graph import Block
from ..core.manifest import RunMemory
from ..core.tensors import TensorBytes
from .caches import find_caches
from .held_weights import MOVES, NODE_BYTES, HeldWeights, bytes_as_read
from .kernel_work import kept_buffer, kernel_work
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
    kernels = {node: found for node in flowing if any((found := kernel_work(held, node, sizes))[:3])}
    work = {node: found.within(graph, node, inside) for node, found in kernels.items()}
    own = {name: (number, True) for name, number in computed if name not in presents}
    weights = sum(bytes_as_read(graph.weights[name]) for name in part.weights)
    inner, (buffer, users) = inner_bytes(held.model, nodes), held.model.once(kept_buffer)
    kept = buffer * (not inside.isdisjoint(users)) + sum(inner.values())
    peak = partial(peak_bytes, writes=part.writes, copies={*part.replicas}, work=work, casts=held.casts)
    return RunMemory(
        load=weights + kept + more + SESSION_BYTES + NODE_BYTES * len(flowing),
        opening=opening,
        unpacked=unpacked,
        inputs=sum(sizes[name][0] for name in part.reads if name not in pasts) + halves,
        states=sum(sizes[name][0] for name in states),
        activations=peak(graph, flowing, own),
        is_exact=all(sizes[name][1] for n in flowing for name in (*graph.nodes[n].reads, *graph.nodes[n].writes)),
    )


def computed_bytes(held: HeldWeights, node: int, sizes: TensorBytes) -> Mapping[str, int]:
    """The sizes of what a node writes while it is computed: twice as large where it is widened, or for a reader."""
    graph, types, found = held.model.graph, held.model.tensors, dict[str, int]()
    for name in graph.nodes[node].writes:
        ops = (graph.nodes[node].op, *(graph.nodes[reader].op for reader in graph.readers.get(name, ())))
        is_wide = types[name].dtype in (held.widened or ()) and not MOVES.issuperset(ops)
        found[name] = sizes[name][0] * (1 + is_wide)
    return found
