"""The block that a model repeats, such as its transformer layer, found from the graph alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from ..core.graph import Graph
from ..core.units import count

_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """Equal blocks of a model.

    Attributes:
        blocks: the nodes of each block, in topological order; first block first.
        block: what a block is called: `layer` where it holds attention, else `block`.
        before: what stands before the blocks, in a word or two.
        after: what stands after them.
    """

    blocks: tuple[tuple[int, ...], ...]
    block: str
    before: str
    after: str

    def __str__(self) -> str:
        around = [f"{what} {where}" for what, where in ((self.before, "before"), (self.after, "after")) if what]
        return ", ".join([f"{len(self.blocks)} \N{MULTIPLICATION SIGN} {self.block}", *around])


def inputs_first(graph: Graph) -> list[int]:
    """The flowing nodes, each right after all that it depends on: an order that only the graph decides.

    A walk from the outputs, in the order of outputs and inputs, that comes back to a node once all it reads stands. In
    it the nodes of a layer stand together, whatever order the file has.
    """
    order: list[int] = []
    seen: set[int] = set()
    for output in graph.writes:
        waiting = [(graph.producer[output], False)] if output in graph.producer else []
        while waiting:
            node, is_ready = waiting.pop()
            if is_ready:
                order.append(node)
            elif node not in seen and not graph.nodes[node].is_constant:
                seen.add(node)
                waiting.append((node, True))
                reads = reversed(graph.nodes[node].reads)
                waiting.extend((graph.producer[tensor], False) for tensor in reads if tensor in graph.producer)
    return order


def find_repeat(
    graph: Graph, order: Sequence[int], labels: Sequence[int], alive: Sequence[int]
) -> RepeatedBlock | None:
    """The repetition in which most nodes repeat an earlier one; None where those are less than a fifth of all.

    Two places `lag` apart with the same label belong to neighbouring blocks. For each likely lag, the longest run of
    such places is a repetition. Of the ways to divide it into blocks those with the cheapest borders are looked at,
    and the one with most blocks is taken. Linear in the number of nodes for each of at most 64 lags.

    Args:
        graph: the graph.
        order: its flowing nodes, such that a block's nodes stand together.
        labels: for each node of `order` a number; equal for nodes that look alike.
        alive: bytes alive after each node of `order`.
    """
    if len(labels) < 4:
        return None
    best: tuple[int, int, int] | None = None
    for lag in _likely_lags(labels):
        start, run = _longest_run(labels, lag)
        # Of two blocks whose first is mixed with other nodes, only a part lies in a run.
        if 2 * run >= lag and (best is None or (run, -lag) > (best[0], -best[1])):
            best = run, lag, start
    if best is None or best[0] * 5 < len(labels):
        return None
    run, lag, start = best
    end = start + run + lag

    def cost(first: int) -> int:
        return median_low(alive[i] for i in range(first + lag - 1, end - lag, lag) or [first + lag - 1])

    phases = range(start, min(start + lag, end - lag + 1))
    cheapest = min(map(cost, phases))
    divisions = (_division(labels, first, lag, end) for first in phases if cost(first) == cheapest)
    rows, before, after = max(divisions, key=lambda division: len(division[0]))
    if len(rows) < 2:
        return None
    return RepeatedBlock(
        blocks=tuple(tuple(sorted(order[i] for i in row)) for row in rows),
        block="layer" if _has_attention([graph.nodes[order[i]].op for i in rows[0]]) else "block",
        before=_content(graph, [order[i] for i in before]),
        after=_content(graph, [order[i] for i in after]),
    )


def _division(
    labels: Sequence[int], first: int, lag: int, end: int
) -> tuple[list[Sequence[int]], Sequence[int], Sequence[int]]:
    """The places of each block when the run up to `end` is divided from `first` on, those before and those after."""
    last = first + (end - first) // lag * lag
    block = Counter(labels[first : first + lag])
    early, before = _one_more(labels, range(first - 1, -1, -1), block)
    late, after = _one_more(labels, range(last, len(labels)), block)
    rows = [early, *(range(i, i + lag) for i in range(first, last, lag)), late]
    return [row for row in rows if row], before, after


def _one_more(labels: Sequence[int], outwards: Sequence[int], block: Counter[int]) -> tuple[list[int], list[int]]:
    """The places of one more block next to the run, mixed with other nodes, if there is one; and the places left.

    What all layers share (the mask, the rotary table) stands where it is first read: inside the first layer.
    """
    wanted = Counter(block)
    taken: list[int] = []
    rest: list[int] = []
    for i in outwards:
        if wanted[labels[i]] > 0:
            wanted[labels[i]] -= 1
            taken.append(i)
        else:
            rest.append(i)
    return (taken, rest) if not any(wanted.values()) else ([], list(outwards))


def _likely_lags(labels: Sequence[int]) -> list[int]:
    """The distances between neighbours of one label, those that would cover most first."""
    last: dict[int, int] = {}
    times: dict[int, int] = {}
    for i, label in enumerate(labels):
        if label in last:
            gap = i - last[label]
            times[gap] = times.get(gap, 0) + gap
        last[label] = i
    return sorted(times, key=lambda gap: (-times[gap], gap))[:_CANDIDATES]


def _longest_run(labels: Sequence[int], lag: int) -> tuple[int, int]:
    """Where the longest run of places begins whose label stands again `lag` later, and how long it is."""
    best_start = best_length = length = 0
    for i in range(len(labels) - lag):
        length = length + 1 if labels[i] == labels[i + lag] else 0
        if length > best_length:
            best_start, best_length = i - length + 1, length
    return best_start, best_length


def _has_attention(names: Sequence[str]) -> bool:
    return any("Attention" in name or name == "Softmax" for name in names)


def _content(graph: Graph, places: Sequence[int]) -> str:
    """What some nodes are, by their operators."""
    nodes = [graph.nodes[i] for i in places]
    words = []
    if any(node.op.startswith("Gather") and node.weights for node in nodes):
        words.append("embedding")
    if any("Norm" in node.op or node.op == "ReduceMean" for node in nodes):
        words.append("norm")
    if any("Conv" in node.op for node in nodes):
        words.append("convolutions")
    if any(("MatMul" in node.op or node.op == "Gemm") and node.weights for node in nodes):
        words.append("head")
    if words or not nodes:
        return " and ".join(words)
    return count(len(nodes), "node")
