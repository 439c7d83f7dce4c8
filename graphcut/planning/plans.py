"""A plan: which node goes into which part, and what then crosses between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..analysis import Analysis
from ..errors import PlanError
from ..graph import Graph, Partition, partition
from .at import rows_at
from .goals import Goal


@dataclass(frozen=True)
class Plan:
    """An order of the nodes with bars in it.

    Attributes:
        goal: what was wanted.
        graph: the graph that is cut.
        rows: the flowing nodes of each part, in an order in which the parts can run.
    """

    goal: Goal
    graph: Graph
    rows: tuple[tuple[int, ...], ...]

    @cached_property
    def partition(self) -> Partition:
        """The parts as blocks of nodes, and the links between them."""
        return partition(self.graph, self.rows)


def plan(analysis: Analysis, goal: Goal) -> Plan:
    """The best cut of the analysed model that meets `goal`.

    Raises:
        UsageError: the goal names what the model doesn't have, or would leave a part empty.
        PlanError: the model holds nothing that can be cut.
    """
    model = analysis.model
    if not model.graph.flow:
        raise PlanError(
            f"{model.path.name} has nothing to cut: no node depends on an input", hint="run the model as it is"
        )
    return Plan(goal, model.graph, tuple(rows_at(model.graph, model.tensors, model.tensor_bytes, goal)))
