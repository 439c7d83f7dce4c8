"""Plans that may send a sum without its norm are the best of all, by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from fused_decoders import fused_decoder

import graphcut
from graphcut import Into, Plan
from graphcut.core.graph import Graph
from graphcut.costs.device import COUNTING
from graphcut.costs.weighing import weigh
from graphcut.planning.disk_size import serialized_sizes
from graphcut.planning.goals import Limits
from graphcut.planning.planner import with_metrics
from graphcut.planning.problem import problem_of

from cases import each


def ideals(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Every set of flowing nodes, neither none nor all, that holds what its nodes depend on."""
    before = {n: [graph.producer[name] for name in graph.nodes[n].reads if name in graph.producer] for n in graph.flow}
    found = {frozenset[int]()}
    for n in graph.flow:
        found |= {ideal | {n} for ideal in found if ideal.issuperset(before[n])}
    yield from (tuple(sorted(ideal)) for ideal in found if 0 < len(ideal) < len(graph.flow))


@each("tokens", [1, 8, 96, 700])
@each("has_bias", [False, True])
def test_no_division_in_two_is_better_whatever_it_repeats(tokens: int, tmp_path: Path, *, has_bias: bool) -> None:
    onnx.save(fused_decoder(3, has_bias=has_bias), tmp_path / "model.onnx")
    analysis = graphcut.analyze(graphcut.load(tmp_path / "model.onnx", dims={"batch": 1, "seq": tokens}))
    graph, goal, costs = analysis.model.graph, Into(2), weigh(analysis.model)
    rewritable = [n for n in graph.flow if graph.nodes[n].rewrite]
    values = []
    for first in ideals(graph):
        rest = tuple(n for n in graph.flow if n not in first)
        held = [n for n in rewritable if n in first]
        for number in range(len(held) + 1):
            for repeated in itertools.combinations(held, number):
                parts = (first, tuple(sorted({*rest, *repeated})))
                made = with_metrics(analysis, Plan(goal, graph, parts), costs)
                values.append(max(part.busy_s for part in made.metrics))
    made = graphcut.plan(analysis, goal, limits=Limits(inside_layers=True), costs=costs)
    assert made.outcome is not None
    assert made.outcome.value == pytest.approx(min(values))
    assert made.outcome.bound is not None
    assert made.outcome.bound <= min(values) * (1 + 1e-6)


def test_a_rewritten_norm_takes_no_bytes_of_its_own(tmp_path: Path) -> None:
    """Its weight is one that the part holds, and what it writes is counted where it is read."""
    onnx.save(fused_decoder(3), tmp_path / "model.onnx")
    analysis = graphcut.analyze(graphcut.load(tmp_path / "model.onnx", dims={"batch": 1, "seq": 8}))
    graph, costs = analysis.model.graph, weigh(analysis.model)
    norms = [n for n in graph.flow if graph.nodes[n].rewrite]
    sizes, limits = serialized_sizes(analysis.model), Limits(inside_layers=True)
    problem = problem_of(analysis, costs, limits, sizes, rewritable=norms)
    assert problem.workload([costs.flops], COUNTING).shared_bytes[: len(norms)].tolist() == [0] * len(norms)
