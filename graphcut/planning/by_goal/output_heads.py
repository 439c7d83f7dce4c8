"""One part for each head of a model, and one for what several of them need: the trunk."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ...core.errors import PlanError, UsageError
from ...core.graph import Graph
from ..goals import Heads


def parts_of_heads(graph: Graph, goal: Heads) -> tuple[tuple[int, ...], ...]:
    """The nodes of the trunk, where there is one, and of each head; heads stand in the order of the goal.

    A head holds the nodes that only its outputs need. The trunk holds the nodes that outputs of several heads need,
    or an output that no head names. Heads do not read from each other, so they can run side by side.

    Raises:
        UsageError: a name is no output of the model, or stands in two groups.
        PlanError: there are not two parts to make.
    """
    groups = goal.groups or tuple((name,) for name in dict.fromkeys(graph.writes))
    _check(graph, groups)
    named = {name for group in groups for name in group}
    needed = [_needed(graph, group) for group in groups]
    needed.append(_needed(graph, (name for name in graph.writes if name not in named)))
    times: dict[int, int] = {}
    for i, nodes in enumerate(needed):
        for node in nodes:
            times[node] = times.get(node, 0) + (2 if i == len(groups) else 1)
    trunk = tuple(node for node in graph.flow if times[node] > 1)
    heads = [tuple(node for node in graph.flow if node in nodes and times[node] == 1) for nodes in needed[:-1]]
    rows = tuple(row for row in (trunk, *heads) if row)
    if len(rows) < 2:
        raise PlanError(
            "these outputs share all their nodes: there is no head to part from the rest",
            hint="`graphcut analyze MODEL` lists the outputs; name those that belong together like --heads a,b+c",
        )
    return rows


def _check(graph: Graph, groups: Iterable[tuple[str, ...]]) -> None:
    seen: set[str] = set()
    for name in (name for group in groups for name in group):
        if name not in graph.writes:
            close = difflib.get_close_matches(name, graph.writes, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            outputs = ", ".join(graph.writes[:6]) + (", ..." if len(graph.writes) > 6 else "")
            raise UsageError(f"the model has no output {name!r}", hint=f"{guess}its outputs: {outputs}")
        if name in seen:
            raise UsageError(f"output {name!r} stands in two heads", hint="name each output once")
        seen.add(name)


def _needed(graph: Graph, outputs: Iterable[str]) -> set[int]:
    """The flowing nodes that some of the outputs depend on."""
    found: set[int] = set()
    waiting = [graph.producer[name] for name in outputs if name in graph.producer]
    while waiting:
        node = waiting.pop()
        if node not in found and not graph.nodes[node].is_constant:
            found.add(node)
            waiting.extend(graph.producer[name] for name in graph.nodes[node].reads if name in graph.producer)
    return found
