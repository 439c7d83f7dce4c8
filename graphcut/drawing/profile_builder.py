"""The cut profile of a scene: bytes alive after each node, and the cheap cut points."""

from operator import attrgetter

from ..analysis.cut_points import Analysis, CutPoint, cut_points_of
from ..analysis.liveness import Liveness
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
    return CutProfile(
        nodes=tuple(graph.nodes[node].name for node in order),
        ops=tuple(graph.nodes[node].op for node in order),
        modules=tuple(modules[node] for node in order) if modules else (),
        alive=tuple(liveness.profile),
        exact=tuple(number == 0 for number in liveness.unknown_alive),
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
