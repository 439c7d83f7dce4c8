"""Which rows of a cost model speak of which nodes of a model, and what they say of the nodes' seconds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from .device import Device, run_s
from .tables import REMAINDER, CostRow, CostTable
from .weighing import Costs

Words = tuple[str, ...]
Group = tuple[int, ...]
"""Places of rows that speak of the same nodes: mostly one; three for a projection that packs queries, keys, values."""

_SAME: Final = {"attn": "self_attn", "activation_fn": "act_fn"}
"""Words of ONNX Runtime GenAI's model builder and of Phi, and what transformers calls these modules elsewhere."""

_FINAL_NORM: Final = "final_norm_layernorm"
"""GenAI's `model/layers.N/final_norm_layernorm`, with N one beyond the last layer, is `model.norm` of transformers."""

_PACKED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PACKED_IN: Final = {member: packed for packed, members in _PACKED.items() for member in members}


@dataclass(frozen=True)
class Coverage:
    """What of a cost model and of a model fits together.

    Attributes:
        unmatched: the modules whose rows matched no node. Rows that say nothing (a dropout) are left out.
        uncovered: the names of the flowing nodes of which no row speaks. Only those that compute or read weights: what
            moves data alone is no gap.
        matched: how many rows matched a node.
    """

    unmatched: tuple[str, ...]
    uncovered: tuple[str, ...]
    matched: int


def cover(table: CostTable, costs: Costs) -> tuple[tuple[Group, ...], Coverage]:
    """Which rows of `table` speak of each flowing node, as places in `table.rows`; () for none.

    A row matches a node by the node's name, else by the longest path that is the node's module or one around it.
    `.` and `/` are the same, and words are compared whole: `layers.1` is not `layers.10`. A leading `model` is left
    out on both sides, and a wrapper that all modules of one side lie in where more rows match without it. Modules that
    exporters name differently are brought together (`attn` and `self_attn`, GenAI's final norm, and projections that
    are packed on one side and not on the other).
    """
    graph = costs.model.graph
    index = _Index(table.rows, {_words(graph.nodes[i].module) for i in graph.flow})
    groups = tuple(index.group(graph.nodes[i].name, graph.nodes[i].module) for i in graph.flow)
    used = {place for group in groups for place in group}
    weighs = zip(graph.flow, groups, costs.flops, costs.weight_bytes, strict=True)
    return groups, Coverage(
        unmatched=tuple(row.module for i, row in enumerate(table.rows) if i not in used and _is_told(row)),
        uncovered=tuple(graph.nodes[i].name for i, group, *weight in weighs if not group and any(weight)),
        matched=len(used),
    )


def _is_told(row: CostRow) -> bool:
    return not row.is_empty and row.module != REMAINDER


def apply_table(costs: Costs, table: CostTable, device: Device) -> tuple[tuple[float, ...], Coverage]:
    """Seconds for each flowing node on `device` as `table` has it, and what of the table was used.

    Where a row says how long its module ran, that time is spread over the module's nodes in proportion to what the
    roofline gives them. Where it gives operations alone, these are spread over the nodes in proportion to their own,
    and the roofline takes them; they count as proportions (see tables.py): all are scaled so that most of the model's
    operations come out as graphcut counts them. All other nodes have their own roofline. Bytes are always the model's.
    """
    groups, coverage = cover(table, costs)
    members: dict[Group, list[int]] = {}
    for place, group in enumerate(groups):
        if group:
            members.setdefault(group, []).append(place)
    flops = _flops(costs, table.rows, members)
    seconds = list(run_s(dataclasses.replace(costs, flops=flops), device))
    for group, places in members.items():
        times = [time for i in group if (time := table.rows[i].time_s) is not None]
        if len(times) == len(group):
            for place, part in zip(places, spread(sum(times), [seconds[p] for p in places]), strict=True):
                seconds[place] = part
    return tuple(seconds), coverage


def spread(total: float, weights: Sequence[float]) -> list[float]:
    """`total` in parts that are to each other as `weights`; equal ones where all weights are 0."""
    whole = sum(weights)
    return [total * weight / whole for weight in weights] if whole else [total / len(weights)] * len(weights)


def _flops(costs: Costs, rows: Sequence[CostRow], members: Mapping[Group, Sequence[int]]) -> tuple[int, ...]:
    """The operations of each flowing node as the table has them, in graphcut's unit."""
    said = {group: sum(rows[i].num_flops for i in group) for group in members}
    own = {group: sum(costs.flops[place] for place in places) for group, places in members.items()}
    unit = _middle((own[group] / said[group], own[group]) for group in members if said[group] and own[group])
    flops = list(costs.flops)
    for group, places in members.items():
        if said[group]:
            parts = spread(said[group] * unit, [costs.flops[place] for place in places])
            for place, part in zip(places, parts, strict=True):
                flops[place] = round(part)
    return tuple(flops)


def _middle(values: Iterable[tuple[float, int]]) -> float:
    """The median of values with weights; 1 where there is none."""
    ordered = sorted(values)
    left = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return 1.0


class _Index:
    """The rows by name and by path."""

    def __init__(self, rows: Sequence[CostRow], modules: AbstractSet[Words]) -> None:
        paths = [_words(row.module) for row in rows]
        self._skipped, skipped_by_rows = _wrappers(paths, modules)
        self._by_name = {row.module: i for i, row in enumerate(rows)}
        self._by_path: dict[Words, int] = {}
        for i, path in enumerate(paths):
            self._by_path.setdefault(_bare(path, skipped_by_rows), i)
        self._standing = _around(modules, self._skipped)
        self._known: dict[str, Group] = {}

    def group(self, name: str, module: str) -> Group:
        """The rows for a node of that name in that module."""
        if name in self._by_name:
            return (self._by_name[name],)
        if not module:
            return ()
        if module not in self._known:
            path = _bare(_words(module), self._skipped)
            # The empty path is that of the whole model: its row speaks of what stands in no module inside.
            around = (path[:k] for k in range(len(path), 0, -1)) if path else iter([path])
            self._known[module] = next(filter(None, map(self._at, around)), ())
        return self._known[module]

    def _at(self, path: Words) -> Group:
        if path in self._by_path:
            return (self._by_path[path],)
        *before, last = path or ("",)
        if last in _PACKED:
            members = [(*before, member) for member in _PACKED[last]]
            # Rows of projections that this model has unpacked as well speak of those.
            if all(member in self._by_path and member not in self._standing for member in members):
                return tuple(self._by_path[member] for member in members)
        packed = (*before, _PACKED_IN.get(last, ""))
        return (self._by_path[packed],) if packed in self._by_path else ()


def _words(module: str) -> Words:
    return tuple(filter(None, re.split(r"[/.]", module)))


def _wrappers(rows: Sequence[Words], modules: AbstractSet[Words]) -> tuple[int, int]:
    """How many words to leave out in front of the model's modules, and of the rows: what matches most rows."""
    choices = [(0, 0)]
    choices += [(k, 0) for k in range(1, _shared(modules) + 1)]
    choices += [(0, k) for k in range(1, _shared(rows) + 1)]

    def matches(choice: tuple[int, int]) -> int:
        standing = _around(modules, choice[0])
        return sum(_bare(path, choice[1]) in standing for path in rows)

    return max(choices, key=matches)  # of equal ones the first, which leaves out least


def _around(modules: Iterable[Words], skipped: int) -> set[Words]:
    """The modules, and those around them."""
    bare = {_bare(module, skipped) for module in modules}
    return {path[:k] for path in bare for k in range(1, len(path) + 1)}


def _shared(paths: Iterable[Words]) -> int:
    """How many words all paths begin with."""
    columns = zip(*(path for path in paths if path), strict=False)  # as far as the shortest goes
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, columns))


def _bare(path: Words, skipped: int) -> Words:
    """`path` as both sides write it."""
    path = path[skipped:]
    while path and path[0] == "model":
        path = path[1:]
    return ("norm",) if path and path[-1] == _FINAL_NORM else tuple(_SAME.get(word, word) for word in path)
