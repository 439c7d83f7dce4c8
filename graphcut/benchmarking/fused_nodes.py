"""Which nodes of a model a node of ONNX Runtime's optimised graph took in: fusions keep the names of their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import NodeProto


def taken_in(original: Sequence[NodeProto], optimized: Sequence[NodeProto]) -> dict[str, tuple[int, ...]]:
    """For each node of `optimized`, by name, the places of the nodes of `original` whose work it does.

    A node of the optimised graph does what stands between the tensors it writes and those that stand in the optimised
    graph too, walking back in the original one. Where it writes none that the original knows (a layout of its own, the
    inside of a function), its name tells; else it belongs to the node that reads it, or to the one that it reads. Empty
    where nothing tells. Both sequences are in topological order.
    """
    writer = {name: i for i, node in enumerate(original) for name in node.output if name}
    by_name = {node.name: i for i, node in enumerate(original) if node.name}
    roots = {node.name: _roots(node, writer, by_name) for node in optimized}
    # What stands in the optimised graph, and what a node of another layout makes under another name.
    standing = {name for node in optimized for name in node.output}
    for node in optimized:
        if not any(name in writer for name in node.output):
            standing.update(name for i in roots[node.name] for name in original[i].output)
    found = {name: _between(original, writer, standing, own) for name, own in roots.items()}
    _lend(found, optimized)
    return found


def _roots(node: NodeProto, writer: Mapping[str, int], by_name: Mapping[str, int]) -> tuple[int, ...]:
    known = tuple(dict.fromkeys(writer[name] for name in node.output if name in writer))
    return known or ((by_name[node.name],) if node.name in by_name else ())


def _between(
    original: Sequence[NodeProto], writer: Mapping[str, int], standing: Iterable[str], roots: Sequence[int]
) -> tuple[int, ...]:
    seen = set(roots)
    waiting = list(roots)
    while waiting:
        for name in original[waiting.pop()].input:
            source = writer.get(name)
            if source is not None and name not in standing and source not in seen:
                seen.add(source)
                waiting.append(source)
    return tuple(sorted(seen))


def _lend(found: dict[str, tuple[int, ...]], optimized: Sequence[NodeProto]) -> None:
    """Give a node that took in nothing what its first reader has, or else what it reads from has."""
    reader = {name: node.name for node in reversed(optimized) for name in node.input}
    for node in reversed(optimized):
        if not found[node.name]:
            found[node.name] = next((found[reader[name]] for name in node.output if name in reader), ())
    writer = {name: node.name for node in optimized for name in node.output}
    for node in optimized:
        if not found[node.name]:
            found[node.name] = next((found[writer[name]] for name in node.input if name in writer), ())
