"""Nodes by name: the names, tensors and glob patterns that users give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..core.errors import UsageError
from ..core.graph import Graph


def find_nodes(graph: Graph, patterns: Iterable[str]) -> set[int]:
    """The flowing nodes that `patterns` name: by node name, by a tensor they write, or by a glob of either.

    Raises:
        UsageError: a pattern matches nothing, or only constants or inputs of the model.
    """
    found: set[int] = set()
    for pattern in patterns:
        places = _matches(graph, pattern)
        flowing = {i for i in places if not graph.nodes[i].is_constant}
        if not flowing:
            raise _no_such_place(graph, pattern, places)
        found |= flowing
    return found


def _matches(graph: Graph, pattern: str) -> set[int]:
    if pattern in graph.node_index:
        return {graph.node_index[pattern]}
    if pattern in graph.producer:
        return {graph.producer[pattern]}
    if not any(sign in pattern for sign in "*?["):
        return set()
    return {
        i for i, node in enumerate(graph.nodes) if any(fnmatchcase(name, pattern) for name in (node.name, *node.writes))
    }


def _no_such_place(graph: Graph, pattern: str, constants: set[int]) -> UsageError:
    listing = "`graphcut analyze MODEL --cuts` lists the places to cut"
    if constants:
        name = graph.nodes[min(constants)].name
        return UsageError(f"{name!r} is a constant: nothing flows across it, so there is nothing to cut", hint=listing)
    if pattern in graph.weights:
        return UsageError(f"{pattern!r} is a weight: nothing flows across it, so there is nothing to cut", hint=listing)
    if pattern in graph.reads:
        return UsageError(f"{pattern!r} is an input of the model: nothing stands before it", hint=listing)
    kind = "matches" if any(sign in pattern for sign in "*?[") else "is called"
    return UsageError(f"no node or tensor {kind} {pattern!r}", hint=guess(graph, pattern) + listing)


def guess(graph: Graph, name: str) -> str:
    """`did you mean '...'? `, with the node or tensor whose name is most like `name`; empty where none is."""
    names = [known for i in graph.flow for known in (graph.nodes[i].name, *graph.nodes[i].writes)]
    # Only names of about the same length: difflib would take seconds for all names of a large model.
    alike = [known for known in dict.fromkeys(names) if abs(len(known) - len(name)) <= max(2, len(name) // 8)]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""
