"""The parts of a sharded model: which nodes each rank runs in each round."""

from __future__ import annotations

from graphcut.core.graph import Graph, Node
from graphcut.sharding.rank_parts import RankPart, rank_parts


def test_the_nodes_of_a_part_are_in_the_order_of_the_graph() -> None:
    """Nodes that need nothing of each other; the first and the last are of rank 0, the others of rank 1."""
    nodes = [Node(f"n{i}", "Relu", ("x",), (f"t{i}",), (), (), False, False, "") for i in range(9)]
    ranks = {node: 0 if node in {0, 8} else 1 for node in range(9)}
    parts = rank_parts(Graph(tuple(nodes), {}, ("x",), ()), ranks, dict.fromkeys(ranks, 0), [0])
    assert parts == [RankPart(0, 0, 0, (0, 8)), RankPart(0, 0, 1, tuple(range(1, 8)))]
