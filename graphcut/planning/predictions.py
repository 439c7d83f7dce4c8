"""Predicted metrics of the parts of a plan: file size, memory, run time, transfers."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

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
    found = {
        name: SentTensor(costs.sent_bytes[name][0], *ends) for name, ends in partition.wiring.boundary_tensors.items()
    }
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
    transfers: Iterable[SentTensor], run_s: Sequence[float], devices: Sequence[Device], goal: Goal
) -> RequestTimes:
    """The times of parts on their devices; without a cluster each has a device of its own, and nothing overlaps."""
    if isinstance(goal, Across):
        return request_times(transfers, run_s, devices, goal.cluster)
    devices = tuple(replace(device, name=f"{i}") for i, device in enumerate(devices))
    return request_times(transfers, run_s, devices, Cluster(devices=devices, overlap="none"))


def part_metrics(
    partition: Partition,
    costs: Costs,
    sizes: SerializedSizes,
    devices: Sequence[Device],
    seconds: NodeSeconds,
    goal: Goal,
) -> tuple[PartMetrics, ...]:
    """The metrics of each part on its device, where the flowing nodes take `seconds`."""
    graph, tensor_bytes = costs.model.graph, costs.tensor_bytes
    flow_index = {node: i for i, node in enumerate(graph.flow)}

    def file_bytes(block: Block, nodes: Sequence[int]) -> int:
        written = {name for node in nodes for name in graph.nodes[node].writes}.intersection(block.writes)
        declared = sum(sizes.declarations[name] for name in {*block.reads, *block.writes}.difference(written))
        declared += sum(map(sizes.as_output, written))
        declared += sum(4 * len(name.encode()) + 96 for name in halves.keys() & {*block.reads, *block.writes})  # casts
        copies = sizes.rewritten.keys() & block.replicas
        of_nodes = sum((sizes.rewritten if n in copies else sizes.nodes)[n] for n in nodes)
        return sizes.part + declared + of_nodes + sizes.shared_bytes(nodes)

    sent = {t: costs.sent_bytes[t][0] for t in partition.wiring.boundary_tensors}
    halves = {t: number for t, number in sent.items() if number < tensor_bytes[t][0]}  # held beside the whole tensor
    runs = [sorted({*block.nodes, *flow_index.keys() & set(block.replicas)}) for block in partition.blocks]
    indices_of = [[flow_index[node] for node in nodes] for nodes in runs]
    run_s = [sum(map(seconds(device).__getitem__, own)) for own, device in zip(indices_of, devices, strict=True)]
    transfers = plan_transfers(partition, costs, goal)
    busy_s = plan_times(transfers, run_s, devices, goal).busy_s
    made = []
    for part, (block, nodes, indices) in enumerate(zip(partition.blocks, runs, indices_of, strict=True)):
        flops = sum(costs.flops[i] for i in indices)
        touched = sum(costs.weight_bytes[i] + costs.moved_bytes[i] for i in indices)
        moved = Counter[str]()
        for number, source, readers in transfers:
            moved["received_bytes" if source != DRIVER else "input_bytes"] += number * (part in readers)
            moved["sent_bytes"] += number * (source == part and {*readers} != {DRIVER})
            moved["output_bytes"] += number * (source == part and DRIVER in readers)
        metrics = PartMetrics(
            nodes=len(nodes),
            flops=flops,
            weight_bytes=sum(graph.weights[name].bytes for name in block.weights),
            written_bytes=file_bytes(block, nodes),
            activation_bytes=peak_bytes(graph, nodes, tensor_bytes, writes=block.writes, copies={*block.replicas})
            + sum(halves.get(name, 0) for name in {*block.reads, *block.writes}),
            cache_bytes=sum(tensor_bytes[c.present][0] for c in costs.caches if c.present in block.writes),
            **moved,
            run_s=run_s[part],
            busy_s=busy_s[part],
            intensity=flops / touched if touched else 0.0,
            is_exact=all(tensor_bytes[t][1] for n in nodes for t in (*graph.nodes[n].reads, *graph.nodes[n].writes)),
        )
        made.append(metrics)
    return tuple(made)


def block_memory(block: Block, costs: Costs, device: SessionSettings) -> RunMemory:
    """The memory of a part on a device."""
    sent = ((costs.sent_bytes[name][0], costs.tensor_bytes[name][0]) for name in {*block.reads, *block.writes})
    halves = sum(number for number, whole in sent if number < whole)
    return part_memory(costs.held(device), costs.tensor_bytes, costs.caches, block, halves)


def counted_bytes(memory: RunMemory, counting: Collection[Counted]) -> int:
    """Of the memory of a part that of weights and graph, and what a goal counts besides."""
    activations = max(memory.opening, memory.activations)
    counted = {"inputs": memory.inputs, "cache": memory.states, "activations": activations}
    return memory.load + sum(counted[what] for what in counting)


def driven_bytes(goal: Across, costs: Costs, parts: Sequence[Unit] = ()) -> dict[str, int]:
    """What the driver sends and gets for a request; without `parts` as if all states stayed, as a search has it."""
    graph = costs.model.graph
    sizes = {name: costs.tensor_bytes[name][0] for name in (*graph.reads, *graph.writes)}
    return travelling(graph, parts or (graph,), costs.caches, sizes, goal.outputs)
