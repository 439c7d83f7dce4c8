"""Nodes and tensors by name: the node names, tensor names and glob patterns that users give."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from ..core.errors import UsageError, did_you_mean
from ..core.graph import Graph, Node

_LIST: Final = "`analyze(...).cut_points` lists the cut points"


def find_nodes(graph: Graph, patterns: Iterable[str]) -> set[int]:
    """The flowing nodes that `patterns` name: by node name, by a tensor they write, or by a glob of either.

    A UsageError if a pattern matches nothing, or only constants or inputs of the model.
    """
    found: set[int] = set()
    for pattern in patterns:
        matches = _matches(graph, pattern)
        if not (flowing := {i for i in matches if not graph.nodes[i].is_constant}):
            raise _not_found(graph, pattern, matches)
        found |= flowing
    return found


def find_tensors(graph: Graph, patterns: Iterable[str]) -> tuple[str, ...]:
    """The tensors that `patterns` name: by their name, by the node that writes them, or by a glob of either.

    A node stands for those of its outputs that are read. A glob leaves out constants and weights.

    Raises:
        UsageError: a pattern matches nothing.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if pattern in graph.input_index or pattern in graph.producer or pattern in graph.weights:
            names = [pattern]
        else:
            inputs = [name for name in graph.reads if fnmatchcase(name, pattern)]
            named = [graph.nodes[i] for i in sorted(_matches(graph, pattern))]
            nodes = [node for node in named if not (node.is_constant and _is_glob(pattern))]
            names = inputs + [name for node in nodes for name in _outputs(graph, node, pattern)]
        if not names:
            raise _unknown(graph, pattern)
        found.update(dict.fromkeys(names))
    return tuple(found)


def _outputs(graph: Graph, node: Node, pattern: str) -> list[str]:
    """The outputs of a node whose name or outputs match; those that are read if it is the node that is named."""
    if node.name in node.writes or not (node.name == pattern or fnmatchcase(node.name, pattern)):
        return [name for name in node.writes if fnmatchcase(name, pattern)]
    return [name for name in node.writes if name in graph.readers or name in graph.outputs] or [*node.writes]


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _matches(graph: Graph, pattern: str) -> set[int]:
    if pattern in graph.node_index:
        return {graph.node_index[pattern]}
    if pattern in graph.producer:
        return {graph.producer[pattern]}
    if not _is_glob(pattern):
        return set()
    names = ((i, name) for i, node in enumerate(graph.nodes) for name in (node.name, *node.writes))
    return {i for i, name in names if fnmatchcase(name, pattern)}


def _not_found(graph: Graph, pattern: str, constants: set[int]) -> UsageError:
    if constants or pattern in graph.weights:
        name, kind = (graph.nodes[min(constants)].name, "constant") if constants else (pattern, "weight")
        return UsageError(f"{name!r} is a {kind}: no data flows through it, so it can't be cut", hint=_LIST)
    if pattern in graph.reads:
        return UsageError(f"{pattern!r} is an input of the model: there is nothing before it", hint=_LIST)
    return _unknown(graph, pattern)


def _unknown(graph: Graph, pattern: str) -> UsageError:
    """The error for a pattern that matches nothing."""
    if pattern in graph.removed:
        return UsageError(f"{pattern!r} was removed at loading: no output of the model depends on it", hint=_LIST)
    verb = "matches" if _is_glob(pattern) else "is called"
    return UsageError(f"no node or tensor {verb} {pattern!r}", hint=guess(graph, pattern) + _LIST)


def guess(graph: Graph, name: str) -> str:
    """`did you mean '...'? `, with the node or tensor whose name is most similar to `name`; empty where none is."""
    names = [known for i in graph.flow for known in (graph.nodes[i].name, *graph.nodes[i].writes)]
    # Only names of about the same length: difflib would take seconds for all names of a large model.
    similar = [known for known in dict.fromkeys(names) if abs(len(known) - len(name)) <= max(2, len(name) // 8)]
    return did_you_mean(name, similar)
