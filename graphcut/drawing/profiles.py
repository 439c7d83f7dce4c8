"""Bytes alive along an order of the nodes: what a cut costs at each place, where it is cheap, what is long-lived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ..analysis.liveness import Liveness
from ..analysis.repeated_blocks import RepeatedBlock
from ..core.graph import Graph
from ..loading.model import TensorBytes
from .scene import CutOption, CutProfile


def profile_of(
    graph: Graph,
    rows: Sequence[Sequence[int]],
    sizes: TensorBytes,
    keys: Iterable[int],
    repeat: RepeatedBlock | None = None,
) -> CutProfile:
    """The profile of a graph; linear in its nodes and edges.

    Args:
        graph: the graph.
        rows: the flowing nodes of each part, in an order in which they can run; one row where nothing is cut.
        sizes: what each activation takes.
        keys: the key nodes.
        repeat: what the graph repeats, for a graph that is not cut.
    """
    order = [node for row in rows for node in row]
    liveness = Liveness(graph, order, sizes)
    index = liveness.index
    key_nodes = frozenset(keys)
    homes = {node: part for part, row in enumerate(rows) for node in row}
    far = _passing(liveness, homes) if len(rows) > 1 else _long_lived(liveness, repeat)
    near = [name for name in liveness.lifetimes if name not in far]
    return CutProfile(
        nodes=tuple(graph.nodes[node].name for node in order),
        ops=tuple(graph.nodes[node].op for node in order),
        modules=tuple(graph.nodes[node].module for node in order),
        alive=tuple(liveness.profile),
        near=tuple(liveness.bytes_alive(near)),
        exact=tuple(number == 0 for number in liveness.unknown_alive()),
        near_exact=tuple(number == 0 for number in liveness.unknown_alive(near)),
        tensors=tuple(liveness.total(lambda _: 1)),
        weights=tuple(liveness.weights_before),
        keys=tuple(sorted(index[node] for node in key_nodes)),
        parts=tuple(homes[node] for node in order) if len(rows) > 1 else (),
        valleys=tuple(_valleys(liveness, key_nodes)),
    )


def spread(valleys: Sequence[CutOption], nodes: int, weight_bytes: int, number: int) -> list[CutOption]:
    """For each of `number` equal shares of the model the cheapest place to cut; of equal ones the first.

    Nodes and weights count alike: a share of the weights alone says nothing where the nodes make them.

    Args:
        valleys: the places.
        nodes: how many nodes the model has.
        weight_bytes: what its weights take.
        number: of shares.
    """
    best: dict[int, CutOption] = {}
    for valley in valleys:
        share = int(number * (valley.position / nodes + valley.weights_before / (weight_bytes + 1)) / 2)
        if share not in best or valley.bytes < best[share].bytes:
            best[share] = valley
    return [best[share] for share in sorted(best)]


def _valleys(liveness: Liveness, keys: AbstractSet[int]) -> Iterable[CutOption]:
    tensors, unknown = liveness.total(lambda _: 1), liveness.unknown_alive()
    for index, node in liveness.cut_points:
        yield CutOption(
            node=liveness.graph.nodes[node].name,
            position=index + 1,
            bytes=liveness.profile[index],
            is_exact=unknown[index] == 0,
            tensors=tensors[index],
            weights_before=liveness.weights_before[index],
            weights_after=liveness.weights_after[index],
            is_key=node in keys,
            module=liveness.graph.nodes[node].module,
        )


def _passing(liveness: Liveness, unit: Mapping[int, int]) -> AbstractSet[str]:
    """The tensors that pass over a unit, from that of their writer to that of a reader."""
    readers, producer = liveness.graph.readers, liveness.graph.producer
    return {name for name in liveness.lifetimes if max(map(unit.__getitem__, readers[name])) > unit[producer[name]] + 1}


def _long_lived(liveness: Liveness, repeat: RepeatedBlock | None) -> AbstractSet[str]:
    """The tensors that pass over a block of `repeat`, or without one over very many nodes."""
    if repeat is not None:
        return _passing(liveness, _blocks(liveness.graph, repeat))
    fewest = max(1, len(liveness.order) / 8)
    return {name for name, (first, last) in liveness.lifetimes.items() if last - first - 1 > fewest}


def _blocks(graph: Graph, repeat: RepeatedBlock) -> Mapping[int, int]:
    """For each flowing node the block it belongs to, from 1; one outside of all, the last block that it depends on."""
    unit = {node: i for i, block in enumerate(repeat.blocks, 1) for node in block}
    for node in graph.flow:
        if node not in unit:
            makers = map(graph.producer.get, graph.nodes[node].reads)
            unit[node] = max((unit[maker] for maker in makers if maker is not None), default=0)
    return unit
