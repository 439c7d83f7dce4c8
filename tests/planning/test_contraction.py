"""Groups: the finest that keep together what must stay, without waiting for each other."""

# ruff: noqa: S311 - seeds make the same graphs each time, and keep no secrets

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from graphcut.core.graph import Graph, Node
from graphcut.planning.contraction import contract

from cases import seeded

Groups = tuple[tuple[int, ...], ...]


def graph_of(*reads: Sequence[int]) -> Graph:
    """Node i writes one tensor and reads those of the nodes listed at i; without any it reads the input."""
    nodes = [
        Node(f"N{i}", "Op", tuple(f"t{j}" for j in row) or ("x",), (f"t{i}",), (), (), False, False, "")
        for i, row in enumerate(reads)
    ]
    return Graph(tuple(nodes), {}, ("x",), ())


def slow_contract(
    reads: Sequence[Sequence[int]],
    nodes: Sequence[int],
    together: Sequence[Sequence[int]],
    ordered: Sequence[tuple[int, int]],
) -> set[frozenset[int]]:
    """Join what must be; then, as long as two groups can reach each other, join them."""
    groups = [{node} for node in nodes]

    def join(a: int, b: int) -> None:
        first, second = (next(group for group in groups if n in group) for n in (a, b))
        if first is not second:
            first |= second
            groups.remove(second)

    for row in together:
        for a, b in itertools.pairwise([node for node in row if node in nodes]):
            join(a, b)
    edges = [(a, b) for b, row in enumerate(reads) for a in row] + list(ordered)
    edges = [(a, b) for a, b in edges if a in nodes and b in nodes]
    while pair := circle(groups, edges):
        join(*pair)
    return {frozenset(group) for group in groups}


def circle(groups: Sequence[set[int]], edges: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """A node of each of two groups that depend on each other."""
    above = {id(group): [g for g in groups if any(a in group and b in g for a, b in edges)] for group in groups}

    def reached(start: set[int]) -> list[int]:
        found: list[int] = []
        waiting = [start]
        while waiting:
            for group in above[id(waiting.pop())]:
                if id(group) not in found:
                    found.append(id(group))
                    waiting.append(group)
        return found

    for a, b in itertools.combinations(groups, 2):
        if id(b) in reached(a) and id(a) in reached(b):
            return min(a), min(b)
    return None


@seeded(50, together=50)
def test_groups_are_the_finest_without_a_cycle_and_in_topological_order(seed: int) -> None:
    draw = random.Random(seed)
    total = draw.randint(1, 9)
    reads = [sorted({draw.randrange(i) for _ in range(draw.randint(0, 3))}) if i else [] for i in range(total)]
    nodes = [i for i in range(total) if draw.random() < 0.9] or [0]
    together = [draw.sample(range(total), min(total, draw.randint(1, 3))) for _ in range(draw.randint(0, 3))]
    ordered = [tuple(draw.sample(range(total), 2)) for _ in range(draw.randint(0, 2))] if total > 1 else []
    groups = contract(graph_of(*reads), nodes, together, ordered)  # type: ignore[arg-type]
    assert set(map(frozenset, groups)) == slow_contract(reads, nodes, together, ordered)  # type: ignore[arg-type]
    assert all(list(group) == sorted(group) for group in groups)
    home = {node: i for i, group in enumerate(groups) for node in group}
    edges = [(a, b) for b, row in enumerate(reads) for a in row] + ordered
    assert all(home[a] <= home[b] for a, b in edges if a in home and b in home)


def test_a_node_between_two_nodes_of_a_group_joins_it() -> None:
    graph = graph_of([], [0], [1], [2])
    assert contract(graph, range(4), [(0, 2)]) == ((0, 1, 2), (3,))


def test_groups_that_depend_on_each_other_become_one() -> None:
    """0 → 2 and 1 → 3 are two rows; joining 0 with 3 and 1 with 2 makes a circle of the groups."""
    graph = graph_of([], [], [0], [1])
    assert contract(graph, range(4), [(0, 3), (1, 2)]) == ((0, 1, 2, 3),)


def test_a_demanded_order_against_the_edges_joins_all_nodes_between() -> None:
    graph = graph_of([], [0], [1], [2])
    assert contract(graph, range(4), [], [(2, 1)]) == ((0,), (1, 2), (3,))


def test_nodes_that_are_not_grouped_join_nothing() -> None:
    graph = graph_of([], [0], [1], [2])
    assert contract(graph, (0, 2, 3), [(0, 3), (1, 2)]) == ((2,), (0, 3))


def test_of_ready_groups_the_one_with_the_first_node_comes_next() -> None:
    graph = graph_of([], [], [0], [1], [2, 3])
    assert contract(graph, range(5), [(1, 3)]) == ((0,), (1, 3), (2,), (4,))


def test_a_deep_graph_needs_no_recursion() -> None:
    graph = graph_of([], *([i] for i in range(19_999)))
    assert len(contract(graph, range(20_000), [(5, 10), (9_000, 19_000)])) == 20_000 - 5 - 10_000
