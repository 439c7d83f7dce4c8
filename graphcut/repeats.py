"""The block that a model repeats, such as its transformer layer, found from the graph alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .graph import Graph
from .units import count

_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run of equal blocks in the order of the nodes.

    Attributes:
        count: how many blocks.
        length: flowing nodes in each.
        first: how many flowing nodes stand before the first block.
        block: what a block is called: `layer` where it holds attention, else `block`.
        before: what stands before the blocks, in a word or two.
        after: what stands after them.
    """

    count: int
    length: int
    first: int
    block: str
    before: str
    after: str

    def __str__(self) -> str:
        around = [f"{what} {where}" for what, where in ((self.before, "before"), (self.after, "after")) if what]
        return ", ".join([f"{self.count} \N{MULTIPLICATION SIGN} {self.block}", *around])


def find_repeat(graph: Graph, profile: Sequence[int], labels: Sequence[int]) -> Repeat | None:
    """The repetition in which most nodes repeat an earlier one; None where those are less than a fifth of the flow.

    Two places `lag` apart with the same label belong to neighbouring blocks. For each likely lag, the longest run of
    such places is a repetition. Of the ways to divide it into blocks the one with the cheapest borders is taken, then
    the one with most blocks. Linear in the number of nodes for each of at most 64 lags.
    """
    if len(labels) < 4:
        return None
    best: tuple[int, int, int, int] | None = None
    for lag in _likely_lags(labels):
        start, run = _longest_run(labels, lag)
        repeated = run // lag * lag
        if repeated and (best is None or (repeated, -lag) > (best[0], -best[1])):
            best = repeated, lag, start, run
    if best is None or best[0] * 5 < len(labels):
        return None
    _, lag, start, run = best
    end = start + run + lag

    def cost(first: int) -> tuple[float, int]:
        borders = range(first - 1 if first else first + lag - 1, end - lag, lag)
        return sum(profile[i] for i in borders) / len(borders), first

    first = min(range(start, min(start + lag, end - 2 * lag + 1)), key=cost)
    last = first + (end - first) // lag * lag
    block = Counter(labels[first : first + lag])
    early, before = _one_more(labels, range(first - 1, -1, -1), block)
    late, after = _one_more(labels, range(last, len(labels)), block)
    inside = [graph.nodes[i].op for i in graph.flow[first : first + lag]]
    return Repeat(
        count=early + (last - first) // lag + late,
        length=lag,
        first=min(set(range(first)) - set(before), default=first) if early else first,
        block="layer" if _has_attention(inside) else "block",
        before=_content(graph, before),
        after=_content(graph, after),
    )


def _one_more(labels: Sequence[int], outwards: Iterable[int], block: Counter[int]) -> tuple[int, list[int]]:
    """Whether one more block lies next to the run, mixed with other nodes, and which nodes remain.

    Exporters put what all layers share (the mask, the rotary table) where it is first read: inside the first layer.
    """
    wanted = Counter(block)
    rest = []
    for i in outwards:
        if wanted[labels[i]] > 0:
            wanted[labels[i]] -= 1
        else:
            rest.append(i)
    if any(wanted.values()):
        return 0, sorted(outwards)
    return 1, sorted(rest)


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
    """What the flowing nodes at `places` are, by their operators."""
    nodes = [graph.nodes[graph.flow[i]] for i in places]
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
