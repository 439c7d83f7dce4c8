"""What each part of a plan is predicted to take: on disk, in memory, on its device, on the link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ..core.graph import Block, Partition
from ..costs.device import Device
from ..costs.weighing import Costs, peak_bytes
from .by_goal.direct_links import moving_s
from .cluster import Cluster
from .disk_size import SerializedSizes


class PartMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one part takes.

    Attributes:
        nodes: flowing nodes, those that it repeats included.
        flops: floating-point operations of one run.
        weight_bytes: the weights that its nodes read.
        written_bytes: its files; no less than they will be, and hardly more.
        activation_bytes: the most that lives at any one time of what it is fed, computes and gives out, caches too.
        cache_bytes: the KV caches of its layers, as they are after the run.
        received_bytes: what other parts send it, each tensor once.
        sent_bytes: what it sends, each tensor once.
        run_s: seconds that its device computes.
        busy_s: the same with what it receives and sends.
        intensity: FLOPs for each byte of weights and activations that it touches.
    """

    nodes: int
    flops: int
    weight_bytes: int
    written_bytes: int
    activation_bytes: int
    cache_bytes: int
    received_bytes: int
    sent_bytes: int
    run_s: float
    busy_s: float
    intensity: float


def part_metrics(
    found: Partition,
    costs: Costs,
    written: SerializedSizes,
    devices: Sequence[Device],
    seconds: Callable[[Device], Sequence[float]],
    cluster: Cluster | None = None,
) -> tuple[PartMetrics, ...]:
    """What each part of `found` takes on its device.

    Args:
        found: the parts.
        costs: what nodes weigh.
        written: what they take on disk.
        devices: the device of each part.
        seconds: what it takes on a device for each flowing node.
        cluster: what links there are besides those to the router.
    """
    graph = costs.model.graph
    place = {node: i for i, node in enumerate(graph.flow)}
    shares: dict[int, list[int]] = {}
    for i, (_, users) in enumerate(written.shared):
        for node in users:
            shares.setdefault(node, []).append(i)
    crossing = found.wiring.boundary_tensors
    moved = ((costs.tensor_bytes[t][0], source, readers) for t, (source, readers) in crossing.items())
    moving = moving_s(moved, devices, cluster)
    made = []
    for number, (block, device) in enumerate(zip(found.blocks, devices, strict=True)):
        nodes = sorted({*block.nodes, *(node for node in block.replicas if node in place)})
        places = [place[node] for node in nodes]
        received = sum(costs.tensor_bytes[t][0] for t, (_, readers) in crossing.items() if number in readers)
        sent = sum(costs.tensor_bytes[t][0] for t, (source, _) in crossing.items() if source == number)
        per_node = seconds(device)
        run_s = sum(per_node[i] for i in places)
        touched = sum(costs.weight_bytes[i] + costs.moved_bytes[i] for i in places)
        flops = sum(costs.flops[i] for i in places)
        made.append(
            PartMetrics(
                nodes=len(nodes),
                flops=flops,
                weight_bytes=sum(graph.weights[name].bytes for name in block.weights),
                written_bytes=_written(block, nodes, written, shares),
                activation_bytes=peak_bytes(graph, nodes, costs.tensor_bytes, writes=block.writes),
                cache_bytes=sum(costs.tensor_bytes[c.present][0] for c in costs.caches if c.present in block.writes),
                received_bytes=received,
                sent_bytes=sent,
                run_s=run_s,
                busy_s=run_s + moving[number],
                intensity=flops / touched if touched else 0.0,
            )
        )
    return tuple(made)


def _written(block: Block, nodes: Sequence[int], written: SerializedSizes, shares: Mapping[int, Sequence[int]]) -> int:
    shared = {i for node in nodes for i in shares.get(node, ())}
    messages = sum(written.nodes[node] for node in nodes)
    border = sum(written.border[name] for name in {*block.reads, *block.writes})
    return written.part + messages + border + sum(written.shared[i][0] for i in shared)
