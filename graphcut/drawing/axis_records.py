"""Axis classes, and what was found by running operators, as records of JSON documents."""

from collections.abc import Iterable

import msgspec

from ..analysis.axes.classes import AxisClass
from ..analysis.axes.factors import FoundRule
from ..core.graph import Graph


class AxisClassRecord(msgspec.Struct, frozen=True):
    """Axes of tensors that are divided alike; see docs/explanation/sharding.md."""

    units: int  #: how many units they consist of; 1 if they can't be divided.
    axes: dict[str, int]  #: the weights that have such an axis, each with its index.
    nodes: tuple[str, ...]  #: the nodes that are divided along it.
    blocked_by: dict[str, str]  #: the nodes that need such an axis whole, each with its operator or the reason.


class FactorRecord(msgspec.Struct, frozen=True):
    """Along what a node can be divided."""

    units: int  #: into how many equal units.
    inputs: tuple[tuple[int, int], ...]  #: the inputs that are divided: index and axis.
    outputs: tuple[tuple[int, int], ...]  #: the same of the outputs; empty if what the pieces give is added.
    attributes: tuple[str, ...]  #: attributes that are proportional to the number of units.


class FoundRuleRecord(msgspec.Struct, frozen=True):
    """What running an operator without a rule showed."""

    op: str  #: the operator.
    nodes: tuple[str, ...]  #: the nodes for which it holds.
    factors: tuple[FactorRecord, ...]  #: along what they can be divided.
    problem: str  #: why it could not be run; empty if it was.


def axis_class_records(graph: Graph, classes: Iterable[AxisClass]) -> tuple[AxisClassRecord, ...]:
    """The records of axis classes."""
    return tuple(
        AxisClassRecord(
            units=one.units,
            axes={use.tensor: layout.axis for use, layout in one.layouts.items() if use.tensor in one.weights},
            nodes=tuple(graph.nodes[node].name for node in one.factors),
            blocked_by={graph.nodes[blocker.node].name: blocker.reason for blocker in one.blockers},
        )
        for one in classes
    )


def found_rule_records(graph: Graph, rules: Iterable[FoundRule]) -> tuple[FoundRuleRecord, ...]:
    """The records of what running operators showed."""
    return tuple(
        FoundRuleRecord(
            op=rule.op,
            nodes=tuple(graph.nodes[node].name for node in rule.nodes),
            factors=tuple(
                FactorRecord(
                    units=factor.units,
                    inputs=tuple((place.slot, place.axis) for place in factor.reads),
                    outputs=tuple((place.slot, place.axis) for place in factor.writes),
                    attributes=factor.counts,
                )
                for factor in rule.factors
            ),
            problem=rule.problem,
        )
        for rule in rules
    )
