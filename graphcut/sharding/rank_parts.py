"""Parts of a sharded model: one for each round and each rank that works in it.

A rank's nodes are those that were divided for it. The other nodes are common: each rank that reads what they write
repeats them, so that nothing is sent twice and no rank waits for another one's copy. A common node with large weights,
or one that must run once, is given to the first rank of its stage. A new round begins where a rank reads what another
one computed: an exchange. Within a round ranks need nothing of each other, so they work at the same time.

With stages (a pipeline of groups of ranks) each stage has rounds of its own, one stage after the other.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.graph import Graph, grouped
from .rank_costs import is_repeatable


class RankPart(NamedTuple):
    """The nodes of a rank in a round."""

    stage: int
    number: int  #: that of the round, counted over all stages.
    rank: int
    nodes: tuple[int, ...]  #: common ones included.


def rank_parts(
    graph: Graph, rank_of: Mapping[int, int], stage_of: Mapping[int, int], first_ranks: Sequence[int]
) -> list[RankPart]:
    """The parts of a sharded model's graph, in an order in which they can run.

    They follow from the rank of each node that was divided, the stage of each node, and the first rank of each stage.
    """
    bound = (node for node in graph.flow if not is_repeatable(graph, node))
    ranks = {**{node: first_ranks[stage_of[node]] for node in bound}, **rank_of}
    rounds: dict[int, tuple[int, int]] = {}
    for node in graph.flow:
        before = (one for one in graph.predecessors(node) if stage_of[one] == stage_of[node])
        # A round begins with what another rank wrote.
        after = (rounds[one][1] + (one in ranks and ranks[one] != ranks.get(node)) for one in before)
        rounds[node] = stage_of[node], max(after, default=0)
    holders: dict[int, set[int]] = {}
    for node in reversed(graph.flow):
        near = (holders[reader] for reader in graph.successors(node) if rounds[reader] == rounds[node])
        holders[node] = {ranks[node]} if node in ranks else set().union(*near) or {first_ranks[stage_of[node]]}
    numbers = {one: number for number, one in enumerate(sorted({*rounds.values()}))}
    members = grouped(((rounds[node], rank), node) for node, own in holders.items() for rank in own)
    found = sorted(members.items())
    return [RankPart(one[0], numbers[one], rank, tuple(sorted(nodes))) for (one, rank), nodes in found]
