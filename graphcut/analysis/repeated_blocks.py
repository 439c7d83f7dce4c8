"""The block that a model repeats, such as its transformer layer, found from the graph alone."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Final

import numpy as np

from ..core.graph import Graph, grouped, post_order
from ..core.units import count
from ..loading.model import Model
from .liveness import Liveness

_Numbers = Sequence[int]
_MAX_PERIODS: Final = 64


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """Equal blocks of a model."""

    blocks: tuple[tuple[int, ...], ...]  #: the nodes of each block, in topological order; first block first.
    block: str  #: what to call a block: `layer` if it holds attention, else `block`.
    before: str  #: what is before the blocks, in a word or two.
    after: str  #: what is after them.

    def __str__(self) -> str:
        around = [f"{what} {where}" for what, where in ((self.before, "before"), (self.after, "after")) if what]
        return ", ".join([f"{len(self.blocks)} \N{MULTIPLICATION SIGN} {self.block}", *around])


def repeated_block(model: Model) -> RepeatedBlock | None:
    """The repetition of `model` that covers most of it; None if it repeats less than a fifth of its nodes."""
    graph = model.graph
    order = _depth_first_order(graph)
    labels = dict(zip(graph.flow, _labels(model), strict=True))
    profile = Liveness(graph, order, model.tensor_bytes).profile
    return find_repeat(graph, order, [labels[node] for node in order], profile)


def _depth_first_order(graph: Graph) -> list[int]:
    """The flowing nodes in the post-order of a depth-first search from the outputs back, in the order of inputs.

    It depends on the graph alone and not on the order of nodes in the file, and keeps the nodes of a layer together.
    """

    def writers(tensors: Sequence[str]) -> list[int]:
        return [graph.producer[tensor] for tensor in reversed(tensors) if tensor in graph.producer]

    ends = [node for node in writers(graph.writes) if not graph.nodes[node].is_constant]
    return post_order(ends, lambda node: writers(graph.nodes[node].reads))


def _labels(model: Model) -> Iterator[int]:
    """For each flowing node a number; equal for nodes with equal operators, attributes and shapes of weights."""
    graph = model.graph
    shapes = {tensor.name: (tensor.data_type, *tensor.dims) for tensor in model.proto.graph.initializer}
    numbers: dict[object, int] = {}
    for i in graph.flow:
        node, proto = graph.nodes[i], model.proto.graph.node[i]
        attributes = tuple(attribute.SerializeToString(deterministic=True) for attribute in proto.attribute)
        key = node.op, attributes, tuple(map(shapes.get, node.weights)), len(node.reads)
        yield numbers.setdefault(key, len(numbers))


def find_repeat(graph: Graph, order: _Numbers, labels: _Numbers, profile: _Numbers) -> RepeatedBlock | None:
    """The repetition of `labels` that covers most nodes; None if it covers less than a fifth of them.

    A repetition with period p is a run of indices i with `labels[i] == labels[i + p]`. The longest run is taken, over
    the 64 periods that are most likely. Of the ways to divide it into blocks of p nodes, those with the fewest bytes
    between blocks are considered, and of these the one with most blocks. O(nodes) for each period.

    Example: in `a b c b c b c d` the run of period 2 is at indices 1 to 4, and the blocks are `b c`, three times.

    `order` has the flowing nodes in a topological order that keeps the nodes of a block together; `labels` a number for
    each, equal for nodes that look alike; `profile` the bytes alive after each.
    """
    if len(labels) < 4:
        return None
    runs = [(*_longest_run(labels, period), period) for period in _likely_periods(labels)]
    # Two blocks whose first is mixed with other nodes have only a part of themselves in a run.
    runs = [(start, run, period) for start, run, period in runs if 2 * run >= period and run * 5 >= len(labels)]
    if not runs:
        return None
    start, run, period = max(runs, key=lambda found: (found[1], -found[2]))
    end = start + run + period

    def bytes_between(first: int) -> int:
        ends = range(first + period - 1, end - period, period)
        return median_low(profile[i] for i in ends or [first + period - 1])

    firsts = range(start, min(start + period, end - period + 1))
    fewest = min(map(bytes_between, firsts))
    divisions = (_division(labels, first, period, end) for first in firsts if bytes_between(first) == fewest)
    blocks, before, after = max(divisions, key=lambda division: len(division[0]))
    if len(blocks) < 2:
        return None
    operators = [graph.nodes[order[i]].op for i in blocks[0]]
    return RepeatedBlock(
        blocks=tuple(tuple(sorted(order[i] for i in block)) for block in blocks),
        block="layer" if any("Attention" in op or op == "Softmax" for op in operators) else "block",
        before=_content(graph, [order[i] for i in before]),
        after=_content(graph, [order[i] for i in after]),
    )


def _division(labels: _Numbers, first: int, period: int, end: int) -> tuple[list[_Numbers], _Numbers, _Numbers]:
    """The indices of each block when the run up to `end` is divided from `first` on; those before and those after."""
    last = first + (end - first) // period * period
    block = Counter(labels[first : first + period])
    first_block, before = _one_more(labels, range(first - 1, -1, -1), block)
    last_block, after = _one_more(labels, range(last, len(labels)), block)
    blocks = [first_block, *(range(i, i + period) for i in range(first, last, period)), last_block]
    return [indices for indices in blocks if indices], before, after


def _one_more(labels: _Numbers, outwards: _Numbers, block: Counter[int]) -> tuple[list[int], list[int]]:
    """The indices of one more block next to the run, mixed with other nodes, if there is one; and the others.

    What all layers share (the mask, the rotary table) is computed where it is first read: inside the first layer.
    """
    wanted, taken, others = Counter(block), list[int](), list[int]()
    for i in outwards:
        is_wanted = wanted[labels[i]] > 0
        (taken if is_wanted else others).append(i)
        wanted[labels[i]] -= is_wanted
    return (taken, others) if not any(wanted.values()) else ([], list(outwards))


def _likely_periods(labels: _Numbers) -> list[int]:
    """The distances between neighbours of one label, those that would cover most nodes first."""
    places = grouped((label, i) for i, label in enumerate(labels))
    times = Counter(after - i for own in places.values() for i, after in pairwise(own))
    return sorted(times, key=lambda period: (-times[period] * period, period))[:_MAX_PERIODS]


def _longest_run(labels: _Numbers, period: int) -> tuple[int, int]:
    """Start and length of the longest run of indices whose labels occur again `period` later."""
    array = np.asarray(labels)
    starts = np.concatenate([[-1], np.flatnonzero(array[:-period] != array[period:])])
    lengths = np.diff(np.append(starts, len(labels) - period)) - 1
    longest = int(lengths.argmax())
    return int(starts[longest]) + 1, int(lengths[longest])


def _content(graph: Graph, indices: _Numbers) -> str:
    """What some nodes are, in a word or two, by their operators."""
    nodes = [graph.nodes[i] for i in indices]
    found = {
        "embedding": any(node.op.startswith("Gather") and node.weights for node in nodes),
        "norm": any("Norm" in node.op or node.op == "ReduceMean" for node in nodes),
        "convolutions": any("Conv" in node.op for node in nodes),
        "head": any(("MatMul" in node.op or node.op == "Gemm") and node.weights for node in nodes),
    }
    words = " and ".join(word for word, is_there in found.items() if is_there)
    return words or (count(len(nodes), "node") if nodes else "")
