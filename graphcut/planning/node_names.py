"""Nodes by name: the node names, tensor names and glob patterns that users give."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..core.errors import UsageError, did_you_mean
from ..core.graph import Graph


def find_nodes(graph: Graph, patterns: Iterable[str]) -> set[int]:
    """The flowing nodes that `patterns` name: by node name, by a tensor they write, or by a glob of either.

    A UsageError if a pattern matches nothing, or only constants or inputs of the model.
    """
    found: set[int] = set()
    for pattern in patterns:
        matches = _matches(graph, pattern)
        flowing = {i for i in matches if not graph.nodes[i].is_constant}
        if not flowing:
            raise _not_found(graph, pattern, matches)
        found |= flowing
    return found


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _matches(graph: Graph, pattern: str) -> set[int]:
    if pattern in graph.node_index:
        return {graph.node_index[pattern]}
    if pattern in graph.producer:
        return {graph.producer[pattern]}
    if not _is_glob(pattern):
        return set()
    return {
        i for i, node in enumerate(graph.nodes) if any(fnmatchcase(name, pattern) for name in (node.name, *node.writes))
    }


def _not_found(graph: Graph, pattern: str, constants: set[int]) -> UsageError:
    hint = "`graphcut analyze MODEL --cuts` lists the cut points"
    if constants:
        name = graph.nodes[min(constants)].name
        return UsageError(f"{name!r} is a constant: no data flows through it, so it can't be cut", hint=hint)
    if pattern in graph.weights:
        return UsageError(f"{pattern!r} is a weight: no data flows through it, so it can't be cut", hint=hint)
    if pattern in graph.reads:
        return UsageError(f"{pattern!r} is an input of the model: there is nothing before it", hint=hint)
    verb = "matches" if _is_glob(pattern) else "is called"
    return UsageError(f"no node or tensor {verb} {pattern!r}", hint=guess(graph, pattern) + hint)


def guess(graph: Graph, name: str) -> str:
    """`did you mean '...'? `, with the node or tensor whose name is most similar to `name`; empty where none is."""
    names = [known for i in graph.flow for known in (graph.nodes[i].name, *graph.nodes[i].writes)]
    # Only names of about the same length: difflib would take seconds for all names of a large model.
    similar = [known for known in dict.fromkeys(names) if abs(len(known) - len(name)) <= max(2, len(name) // 8)]
    return did_you_mean(name, similar)
