"""Predicted metrics of the parts of a plan: file size, memory, run time, transfers."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from ..core.graph import Block, Partition
from ..core.manifest import RunMemory, SessionSettings
from ..core.states import travelling
from ..core.wiring import Unit
from ..costs.cluster import Cluster
from ..costs.device import Counted, Device, NodeSeconds
from ..costs.part_memory import part_memory
from ..costs.weighing import Costs, peak_bytes
from ..solving.transfers import DRIVER, RequestTimes, SentTensor, request_times
from .disk_size import SerializedSizes
from .goals import Across, Goal


class PartMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicted metrics of one part."""

    nodes: int  #: number of flowing nodes, replicated ones included.
    flops: int  #: floating-point operations of one run.
    weight_bytes: int  #: bytes of the weights that its nodes read.
    written_bytes: int  #: weights and graph, the bytes of its files: no less than they will be, and hardly more.
    activation_bytes: int  #: the most bytes alive at one time of its inputs, activations and outputs, caches included.
    cache_bytes: int  #: bytes of the KV caches of its layers after the run.
    received_bytes: int = 0  #: bytes that other parts send it, each tensor once.
    sent_bytes: int = 0  #: bytes that it sends other parts, each tensor once.
    input_bytes: int = 0  #: bytes of inputs of the model that the driver sends it; 0 if there is no cluster.
    output_bytes: int = 0  #: bytes of outputs that were asked for, which it sends the driver; 0 if there is no cluster.
    run_s: float  #: seconds that its device computes.
    busy_s: float  #: seconds that a request keeps its device busy, by the rules of `Cluster.overlap`.
    intensity: float  #: FLOPs for each byte of weights and activations that it reads or writes.
    is_exact: bool = True  #: whether all its tensors have a size; else what counts activations is a lower bound.


def plan_transfers(partition: Partition, costs: Costs, goal: Goal) -> list[SentTensor]:
    """What the parts send; for a cluster what the driver sends and gets, too."""
    tensors = partition.wiring.boundary_tensors.items()
    found = {name: SentTensor(costs.sent_bytes[name][0], *ends) for name, ends in tensors}
    driven = list[SentTensor]()
    if isinstance(goal, Across):
        graph, sizes = costs.model.graph, driven_bytes(goal, costs, partition.blocks)
        for name in sorted(sizes.keys() & graph.reads):
            readers = [i for i, block in enumerate(partition.blocks) if name in block.reads]
            driven.append(SentTensor(sizes[name], DRIVER, readers))
        for i, block in enumerate(partition.blocks):
            for name in sorted(sizes.keys() & block.writes & graph.producer.keys()):
                if name in found and found[name].bytes == sizes[name]:
                    found[name] = found[name]._replace(readers=(*found[name].readers, DRIVER))
                else:
                    driven.append(SentTensor(sizes[name], i, (DRIVER,)))
    return [*found.values(), *driven]


def plan_times(
    transfers: Sequence[SentTensor], run_s: Sequence[float], devices: Sequence[Device], goal: Goal
) -> RequestTimes:
    """The times of parts on their devices; without a cluster each has a device of its own, and nothing overlaps."""
    if isinstance(goal, Across):
        return request_times(transfers, run_s, devices, goal.cluster)
    devices = tuple(replace(device, name=f"{i}") for i, device in enumerate(devices))
    return request_times(transfers, run_s, devices, Cluster(devices=devices, overlap="none"))


def plan_run_s(partition: Partition, costs: Costs, devices: Sequence[Device], seconds: NodeSeconds) -> list[float]:
    """For each part the seconds that its device computes."""
    graph = costs.model.graph
    indices = ([graph.flow_index[node] for node in graph.running(block)] for block in partition.blocks)
    return [sum(map(seconds(device).__getitem__, own)) for own, device in zip(indices, devices, strict=True)]


def part_metrics(
    partition: Partition,
    costs: Costs,
    sizes: SerializedSizes,
    devices: Sequence[Device],
    seconds: NodeSeconds,
    goal: Goal,
) -> tuple[PartMetrics, ...]:
    """The metrics of each part on its device, where the flowing nodes take `seconds`."""
    sent = {t: costs.sent_bytes[t][0] for t in partition.wiring.boundary_tensors}
    halves = {t: number for t, number in sent.items() if number < costs.tensor_bytes[t][0]}
    run_s = plan_run_s(partition, costs, devices, seconds)
    transfers = plan_transfers(partition, costs, goal)
    busy_s = plan_times(transfers, run_s, devices, goal).busy_s
    made = []
    for part, block in enumerate(partition.blocks):
        moved = Counter[str]()
        for number, source, readers in transfers:
            moved["received_bytes" if source != DRIVER else "input_bytes"] += number * (part in readers)
            moved["sent_bytes"] += number * (source == part and {*readers} != {DRIVER})
            moved["output_bytes"] += number * (source == part and DRIVER in readers)
        halved = frozenset((name, halves[name]) for name in halves.keys() & {*block.reads, *block.writes})
        known = costs.once((block, halved), partial(_block_metrics, costs, sizes, block, halved))
        made.append(replace(known, **moved, run_s=run_s[part], busy_s=busy_s[part]))
    return tuple(made)


def _block_metrics(
    costs: Costs, sizes: SerializedSizes, block: Block, halves: frozenset[tuple[str, int]]
) -> PartMetrics:
    """The metrics of a part that depend neither on its device nor on other parts; the others are 0.

    `halves` are the bytes of what is sent as float16, which are held beside the whole tensor.
    """
    graph, tensor_bytes = costs.model.graph, costs.tensor_bytes
    nodes, ends = graph.running(block), {*block.reads, *block.writes}
    indices = [graph.flow_index[node] for node in nodes]
    flops = sum(costs.flops[i] for i in indices)
    touched = sum(costs.weight_bytes[i] + costs.moved_bytes[i] for i in indices)
    written = {name for node in nodes for name in graph.nodes[node].writes}.intersection(block.writes)
    declared = sum(sizes.declarations[name] for name in ends.difference(written)) + sum(map(sizes.as_output, written))
    declared += sum(4 * len(name.encode()) + 96 for name, _ in halves)  # casts
    copies = sizes.rewritten.keys() & block.replicas
    of_nodes = sum((sizes.rewritten if n in copies else sizes.nodes)[n] for n in nodes)
    peak = peak_bytes(graph, nodes, tensor_bytes, writes=block.writes, copies={*block.replicas})
    return PartMetrics(
        nodes=len(nodes),
        flops=flops,
        weight_bytes=sum(graph.weights[name].bytes for name in block.weights),
        written_bytes=sizes.part + declared + of_nodes + sizes.shared_bytes(nodes),
        activation_bytes=peak + sum(number for _, number in halves),
        cache_bytes=sum(tensor_bytes[c.present][0] for c in costs.caches if c.present in block.writes),
        run_s=0.0,
        busy_s=0.0,
        intensity=flops / touched if touched else 0.0,
        is_exact=costs.sizes.are_exact
        or all(tensor_bytes[t][1] for n in nodes for t in (*graph.nodes[n].reads, *graph.nodes[n].writes)),
    )


def block_memory(block: Block, costs: Costs, device: SessionSettings) -> RunMemory:
    """The memory of a part on a device."""

    def memory() -> RunMemory:
        sent = ((costs.sent_bytes[name][0], costs.tensor_bytes[name][0]) for name in {*block.reads, *block.writes})
        halves = sum(number for number, whole in sent if number < whole)
        return part_memory(costs.held(device), costs.tensor_bytes, block, halves)

    return costs.once((block, device.widened), memory)


def counted_bytes(memory: RunMemory, counting: Collection[Counted]) -> int:
    """Of the memory of a part that of weights and graph, and what a goal counts besides."""
    counted = {"inputs": memory.inputs, "cache": memory.states, "activations": max(memory.opening, memory.activations)}
    return memory.load + sum(counted[what] for what in counting)


def driven_bytes(goal: Across, costs: Costs, parts: Sequence[Unit] = ()) -> dict[str, int]:
    """What the driver sends and gets for a request; without `parts` as if all states stayed, as a search has it."""
    graph = costs.model.graph
    names = (*graph.reads, *graph.writes)
    sizes = {name: 0 if name in costs.kept else costs.tensor_bytes[name][0] for name in names}
    return travelling(graph, parts or (graph,), costs.caches, sizes, goal.outputs)
