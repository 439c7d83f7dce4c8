"""The cut profile of a scene: bytes alive after each node, the cheap cut points, the long-lived tensors."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter

from ..analysis.cut_points import Analysis, CutPoint, cut_points_of
from ..analysis.liveness import Liveness
from ..analysis.repeated_blocks import RepeatedBlock
from ..core.graph import grouped
from ..core.tensors import TensorBytes
from .scene import CutProfile, Modules, NodeRows


def build_profile(analysis: Analysis, rows: NodeRows, sizes: TensorBytes, modules: Modules | None = None) -> CutProfile:
    """The profile of a graph; linear in its nodes and edges.

    `rows` are the flowing nodes of each part, in topological order; `modules` their `layer_modules`. A model that is
    not cut has one row and needs none of these.
    """
    graph = analysis.model.graph
    part = {node: index for index, row in enumerate(rows) for node in row}
    order, is_cut = list(part), len(rows) > 1
    liveness = Liveness(graph, order, sizes)
    far = _skipping(liveness, part) if is_cut else _long_lived(liveness, None if modules else analysis.repeat)
    near = [name for name in liveness.lifetimes if name not in far]
    return CutProfile(
        nodes=tuple(graph.nodes[node].name for node in order),
        ops=tuple(graph.nodes[node].op for node in order),
        modules=tuple(modules[node] for node in order) if modules else (),
        alive=tuple(liveness.profile),
        near=tuple(liveness.bytes_alive(near)),
        exact=tuple(number == 0 for number in liveness.unknown_alive()),
        near_exact=tuple(number == 0 for number in liveness.unknown_alive(near)),
        tensors=tuple(liveness.total(lambda _: 1)),
        weights=tuple(liveness.weights_before),
        keys=tuple(sorted(liveness.index[node] for node in analysis.key_nodes)),
        parts=tuple(part.values()) if is_cut else (),
        cut_options=cut_points_of(liveness, set(analysis.key_nodes)),
    )


def best_options(profile: CutProfile) -> list[CutPoint]:
    """The cheapest cut point in each eighth of the model; the first of equal ones.

    Nodes and weights count alike for an eighth: the share of the weights alone means nothing where nodes compute them.
    """
    nodes, weight_bytes = len(profile.nodes), profile.weights[-1] if profile.weights else 0

    def eighth(one: CutPoint) -> int:
        return int(8 * (one.nodes_before / nodes + one.weights_before / (weight_bytes + 1)) / 2)

    found = grouped((eighth(one), one) for one in profile.cut_options)
    return [min(found[number], key=attrgetter("bytes")) for number in sorted(found)]


def _skipping(liveness: Liveness, unit: Mapping[int, int]) -> AbstractSet[str]:
    """The tensors that skip a unit, between the unit of their writer and that of a reader."""
    readers, producer = liveness.graph.readers, liveness.graph.producer
    return {name for name in liveness.lifetimes if max(map(unit.__getitem__, readers[name])) > unit[producer[name]] + 1}


def _long_lived(liveness: Liveness, repeat: RepeatedBlock | None) -> AbstractSet[str]:
    """The tensors that skip a block of `repeat`; without one, those that skip more than an eighth of the nodes."""
    graph = liveness.graph
    if repeat is None:
        fewest = max(1, len(liveness.order) / 8)
        return {name for name, (first, last) in liveness.lifetimes.items() if last - first - 1 > fewest}
    # For each flowing node its block, from 1; for nodes outside of all blocks, the last block that they depend on.
    unit = {node: i for i, block in enumerate(repeat.blocks, 1) for node in block}
    for node in (node for node in graph.flow if node not in unit):
        writers = map(graph.producer.get, graph.nodes[node].reads)
        unit[node] = max((unit[writer] for writer in writers if writer is not None), default=0)
    return _skipping(liveness, unit)
