"""Which nodes of a model an optimized node of ONNX Runtime computes: fusions keep the names of their outputs."""

from collections.abc import Collection, Mapping, Sequence

from onnx import NodeProto


def fused_nodes(original: Sequence[NodeProto], optimized: Sequence[NodeProto]) -> dict[str, tuple[int, ...]]:
    """For each node of `optimized`, by name, the indices of the nodes of `original` that it computes.

    These are the nodes on the paths back from the tensors that it writes to tensors that exist in both graphs. A node
    that writes no tensor of the original graph (its output has another layout, or it is inside a function) is found by
    its name, else it counts for its reader, or for the node that it reads from. Empty where none of these is known.

    Example: MatMul -> Add -> Relu fused into one FusedGemm that writes the Relu's output: {"FusedGemm": (0, 1, 2)}.

    Args:
        original: the nodes of the model, in topological order.
        optimized: the nodes of the optimized graph, in topological order.
    """
    writer = {name: i for i, node in enumerate(original) for name in node.output if name}
    by_name = {node.name: i for i, node in enumerate(original) if node.name}
    last = {node.name: _last_nodes(node, writer, by_name) for node in optimized}
    # The tensors of the optimized graph, also those that it has under another name in another layout.
    kept = {name for node in optimized for name in node.output}
    for node in optimized:
        if not any(name in writer for name in node.output):
            kept.update(name for i in last[node.name] for name in original[i].output)
    found = {name: _ancestors(original, writer, kept, own) for name, own in last.items()}
    _fill_from_neighbours(found, optimized)
    return found


def _last_nodes(node: NodeProto, writer: Mapping[str, int], by_name: Mapping[str, int]) -> tuple[int, ...]:
    known = tuple(dict.fromkeys(writer[name] for name in node.output if name in writer))
    return known or ((by_name[node.name],) if node.name in by_name else ())


def _ancestors(
    original: Sequence[NodeProto], writer: Mapping[str, int], kept: Collection[str], last: Sequence[int]
) -> tuple[int, ...]:
    """`last`, and the nodes before them up to the tensors in `kept`."""
    seen = set(last)
    waiting = list(last)
    while waiting:
        for name in original[waiting.pop()].input:
            source = writer.get(name)
            if source is not None and name not in kept and source not in seen:
                seen.add(source)
                waiting.append(source)
    return tuple(sorted(seen))


def _fill_from_neighbours(found: dict[str, tuple[int, ...]], optimized: Sequence[NodeProto]) -> None:
    """Give a node for which nothing was found what its first reader has, or else the node that it reads from."""
    reader = {name: node.name for node in reversed(optimized) for name in node.input}
    for node in reversed(optimized):
        if not found[node.name]:
            found[node.name] = next((found[reader[name]] for name in node.output if name in reader), ())
    writer = {name: node.name for node in optimized for name in node.output}
    for node in optimized:
        if not found[node.name]:
            found[node.name] = next((found[writer[name]] for name in node.input if name in writer), ())
