"""Where a model can be cut: key nodes, segments, dominators, the cut profile and its cut points."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from ..core.graph import Partition, grouped, partition
from ..core.product import Product
from ..costs.caches import sized_dims
from ..loading.model import Model
from ..loading.opening import ModelLike, load
from .dataflow import to_networkx
from .liveness import Liveness
from .repeated_blocks import RepeatedBlock, repeated_block

if TYPE_CHECKING:  # networkx takes a fifth of a second to import
    import networkx as nx


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A cut between two nodes of the topological order, and what it costs."""

    node: str  #: the node that names the cut in `At`.
    nodes_before: int  #: how many flowing nodes are before the cut.
    boundary_tensors: tuple[str, ...]  #: the tensors alive at the cut.
    bytes: int  #: what these take, for the bound dims.
    is_exact: bool  #: whether all their sizes are known; else `bytes` is a lower bound.
    weights_before: int  #: bytes of the weights that the nodes before the cut read.
    weights_after: int  #: bytes of the weights that the nodes after it read; a weight that both read counts in both.
    is_key: bool  #: whether `node` is a key node.
    module: str  #: the module of `node`.

    @property
    def tensors(self) -> int:
        """The number of tensors alive at the cut."""
        return len(self.boundary_tensors)


@dataclass(frozen=True, repr=False)
class Analysis(Product):
    """Where a model can be cut. Each property is computed on first use; nodes are indices into `model.graph.nodes`.

    `digraph` is the model's dataflow as a networkx graph, and most properties are statements about it. In these, a
    start is a node that reads no other node's tensor, an end is a node whose tensors no node reads, and a path leads
    from node to node along tensors. Inputs of the model don't belong to the digraph: every part can be given them.
    """

    model: Model  #: the analysed model.

    @cached_property
    def sized(self) -> Model:
        """The model with the numbers that all sizes here are for: its own, and a prompt of 512 tokens of a decoder.

        `plan` assumes the same ones (`costs.caches.sized_dims`).
        """
        return self.model.with_dims(sized_dims(self.model))

    @cached_property
    def digraph(self) -> nx.DiGraph[int]:
        """The flowing nodes and the tensors between them; see `to_networkx` for their attributes."""
        return to_networkx(self.model.graph, self.sized.tensor_bytes)

    @cached_property
    def key_nodes(self) -> tuple[int, ...]:
        """The key nodes: one data input, and outputs that two or more nodes read; in topological order.

        Initializers and constants are not data inputs. Source: LinguaLinked (Zhao et al., ACL 2024), section 3.1.
        """
        nodes = self.model.graph.nodes
        return tuple(n for n, readers in self._readers.items() if len(nodes[n].reads) == 1 and len(readers) >= 2)

    @cached_property
    def dominators(self) -> tuple[int, ...]:
        """The nodes that every path from a start to an end passes, in topological order.

        A cut after one of them sends its outputs and nothing else: all other nodes lead to it, or it leads to them. If
        the model ends in a single node, that is the last of them.

        They are the chain of `networkx.immediate_dominators` above a virtual sink. That algorithm is quadratic where
        long branches meet often, so they are found in one pass: a node is on every path if no edge leads from a node
        before it to one after it, no start comes after it and no end before it.
        """
        follow = {node for readers in self._readers.values() for node in readers}
        furthest = max((node for node in self._readers if node not in follow), default=0)
        found = []
        for node, readers in self._readers.items():
            if furthest <= node:
                found.append(node)
            if not readers:
                break
            furthest = max(furthest, *readers)
        return tuple(found)

    @cached_property
    def segments(self) -> Partition:
        """The runs of nodes between key nodes, each beginning with one, and the tensor edges between the runs.

        `segments.wiring.sequential` and `.residual` are the sequential and the residual dependency map.
        """
        starts, flow = {*self.key_nodes}, self.model.graph.flow
        key_nodes_until = accumulate(node in starts for node in flow)
        runs = grouped(zip(key_nodes_until, flow, strict=True))
        return partition(self.model.graph, [*runs.values()] or [[]])

    @cached_property
    def profile(self) -> tuple[int, ...]:
        """The cut profile: bytes alive after each flowing node, in topological order, which a cut there sends.

        Inputs of the model are not counted, since every part can be given them; nor are outputs that no node reads.
        """
        return tuple(self._liveness.profile)

    @cached_property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """The cuts where the profile has a local minimum, in topological order.

        Of equal neighbours all are listed that have a node of their own to name them. A cut `At` the node sends
        `CutPoint.bytes`, or less: nodes before the cut that the named node doesn't need may go after it.
        """
        return cut_points_of(self._liveness, set(self.key_nodes))

    @cached_property
    def repeat(self) -> RepeatedBlock | None:
        """The block that covers most of the model, such as its transformer layer; None if it repeats nothing."""
        return repeated_block(self.sized)

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """The nodes that read what a flowing node writes, in topological order: the edges of `digraph`.

        The command needs no more than these, and networkx takes a fifth of a second to import.
        """
        return {node: self.model.graph.successors(node) for node in self.model.graph.flow}

    @cached_property
    def _liveness(self) -> Liveness:
        return Liveness(self.model.graph, self.model.graph.flow, self.sized.tensor_bytes)


def cut_points_of(liveness: Liveness, keys: AbstractSet[int]) -> tuple[CutPoint, ...]:
    """The cuts where the profile of any topological order has a local minimum; `keys` are the key nodes."""
    graph, unknown = liveness.graph, liveness.unknown_alive
    alive_after = liveness.alive_after(index for index, _ in liveness.cut_points)
    return tuple(
        CutPoint(
            node=graph.nodes[node].name,
            nodes_before=index + 1,
            boundary_tensors=tensors,
            bytes=liveness.profile[index],
            is_exact=unknown[index] == 0,
            weights_before=liveness.weights_before[index],
            weights_after=liveness.weights_after[index],
            is_key=node in keys,
            module=graph.nodes[node].module,
        )
        for (index, node), tensors in zip(liveness.cut_points, alive_after, strict=True)
    )


AnalysisLike = ModelLike | Analysis  #: an analysis, a model, or the path of a model.


def analyze(source: AnalysisLike) -> Analysis:
    """Where a model can be cut. Returns at once: each property of the result is computed on first use.

    Args:
        source: a model or its path; an `Analysis` is returned as it is.
    """
    return source if isinstance(source, Analysis) else Analysis(load(source))
