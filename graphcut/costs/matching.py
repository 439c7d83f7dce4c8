"""Which rows of a cost model belong to which nodes of a model, and the seconds of the nodes that follow."""

import dataclasses
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate, dropwhile, takewhile
from typing import Final

from ..core.graph import grouped
from .device import Device, run_s
from .tables import REMAINDER, CostRow, CostTable
from .weighing import Costs

Words = tuple[str, ...]  #: the path of a module, such as `("layers", "0", "mlp")`.

Group = tuple[int, ...]
"""Indices of the rows of a node: usually one; three for a projection that packs queries, keys and values."""

_SAME: Final = {"attn": "self_attn", "activation_fn": "act_fn"}
"""Names in ONNX Runtime GenAI's model builder and in Phi, and the names of these modules in transformers."""

_FINAL_NORM: Final = "final_norm_layernorm"
"""GenAI's `model/layers.N/final_norm_layernorm`, with N one after the last layer, is `model.norm` of transformers."""

_PACKED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PACKED_IN: Final = {member: packed for packed, members in _PACKED.items() for member in members}


@dataclass(frozen=True)
class Coverage:
    """How well a cost model and a model match."""

    unmatched: tuple[str, ...]  #: the modules whose rows match no node, except rows without costs (dropouts).
    uncovered: tuple[str, ...]  #: the names of the flowing nodes without a row, except nodes that only move data.
    matched: int  #: how many rows match a node.


def cover(table: CostTable, costs: Costs) -> tuple[tuple[Group, ...], Coverage]:
    """For each flowing node the rows that match it, as indices into `table.rows`; `()` if none does.

    A row matches a node if it has the node's name, or else the longest path that is the node's module or contains it.
    `.` and `/` are the same, and words are compared as a whole: `layers.1` does not contain `layers.10`. A leading
    `model` is left out, and also a wrapper around all modules of one side if more rows match without it. Modules with
    different names in different exporters match: `attn` and `self_attn`, GenAI's final norm, and projections that are
    packed on one side only.
    """
    graph = costs.model.graph
    index = _RowIndex(table.rows, {_words(graph.nodes[i].module) for i in graph.flow})
    groups = tuple(index.group(graph.nodes[i].name, graph.nodes[i].module) for i in graph.flow)
    used = {i for group in groups for i in group}
    unused = (row for i, row in enumerate(table.rows) if i not in used)
    nodes = zip(graph.flow, groups, costs.flops, costs.weight_bytes, strict=True)
    return groups, Coverage(
        unmatched=tuple(row.module for row in unused if not row.is_empty and row.module != REMAINDER),
        uncovered=tuple(graph.nodes[i].name for i, group, *own in nodes if not group and any(own)),
        matched=len(used),
    )


def apply_table(costs: Costs, table: CostTable, device: Device) -> tuple[tuple[float, ...], float]:
    """Seconds of each flowing node on `device` by `table`, and how many of all these seconds the table has.

    The time of a module is divided among its nodes in proportion to their times by the roofline model. A module
    without a time, but with FLOPs, divides these in proportion to the FLOPs of the nodes, for the roofline model. Such
    FLOPs are proportions (see `tables`): they are scaled by the weighted median of the ratios to graphcut's own. Nodes
    without a row have their own roofline time. Bytes are those of the model.
    """
    members = grouped((group, i) for i, group in enumerate(cover(table, costs)[0]) if group)
    flops = _flops(costs, table.rows, members)
    seconds, measured_s = list(run_s(dataclasses.replace(costs, flops=flops), device)), 0.0
    for group, indices in members.items():
        times = [time_s for row in group if (time_s := table.rows[row].time_s) is not None]
        if len(times) == len(group):
            measured_s += sum(times)
            for i, share in zip(indices, spread(sum(times), [seconds[i] for i in indices]), strict=True):
                seconds[i] = share
    return tuple(seconds), measured_s


def spread(total: float, weights: Sequence[float]) -> list[float]:
    """`total` divided in proportion to `weights`; equally if all weights are 0."""
    whole = sum(weights)
    return [total * weight / whole for weight in weights] if whole else [total / len(weights)] * len(weights)


def _flops(costs: Costs, rows: Sequence[CostRow], members: Mapping[Group, Sequence[int]]) -> tuple[int, ...]:
    """The FLOPs of each flowing node by the table, in graphcut's unit."""
    given = {group: sum(rows[i].num_flops for i in group) for group in members}
    own = {group: sum(costs.flops[i] for i in indices) for group, indices in members.items()}
    unit = _weighted_median((own[group] / given[group], own[group]) for group in members if given[group] and own[group])
    flops = list(costs.flops)
    for group, indices in members.items():
        if given[group]:
            for i, share in zip(indices, spread(given[group] * unit, [flops[i] for i in indices]), strict=True):
                flops[i] = round(share)
    return tuple(flops)


def _weighted_median(values: Iterable[tuple[float, int]]) -> float:
    """The median of values with weights; 1 if there are none."""
    ordered = sorted(values)
    ends = [*accumulate(weight for _, weight in ordered)]
    return ordered[bisect_left(ends, ends[-1] / 2)][0] if ordered else 1.0


class _RowIndex:
    """The rows of a table, by name and by path."""

    def __init__(self, rows: Sequence[CostRow], modules: AbstractSet[Words]) -> None:
        paths = [_words(row.module) for row in rows]
        self._skipped, skipped_by_rows = _wrappers(paths, modules)
        self._by_name = {row.module: i for i, row in enumerate(rows)}
        # Of rows with one path the first.
        self._by_path = {_bare(paths[i], skipped_by_rows): i for i in reversed(range(len(rows)))}
        self._modules = _prefixes(modules, self._skipped)
        self._known: dict[str, Group] = {}

    def group(self, name: str, module: str) -> Group:
        """The rows of a node with this name and module."""
        if name in self._by_name:
            return (self._by_name[name],)
        if not module:
            return ()
        if module not in self._known:
            path = _bare(_words(module), self._skipped)
            # The empty path is the whole model: its row is for the nodes in no inner module.
            prefixes = (path[:k] for k in range(len(path), 0, -1)) if path else iter([path])
            self._known[module] = next(filter(None, map(self._rows_at, prefixes)), ())
        return self._known[module]

    def _rows_at(self, path: Words) -> Group:
        if path in self._by_path:
            return (self._by_path[path],)
        *before, last = path or ("",)
        members = [(*before, member) for member in _PACKED.get(last, ())]
        # If the model has these projections unpacked as well, the rows are theirs.
        if members and all(member in self._by_path and member not in self._modules for member in members):
            return tuple(self._by_path[member] for member in members)
        packed = (*before, _PACKED_IN.get(last, ""))
        return (self._by_path[packed],) if packed in self._by_path else ()


def _words(module: str) -> Words:
    return tuple(filter(None, re.split(r"[/.]", module)))


def _wrappers(rows: Sequence[Words], modules: AbstractSet[Words]) -> tuple[int, int]:
    """How many words to leave out in front of the model's modules and of the rows, so that most rows match."""
    common, common_by_rows = (common_start(filter(None, paths)) for paths in (modules, rows))
    choices = [(k, 0) for k in range(len(common) + 1)] + [(0, k) for k in range(1, len(common_by_rows) + 1)]

    def matches(choice: tuple[int, int]) -> int:
        known = _prefixes(modules, choice[0])
        return sum(_bare(path, choice[1]) in known for path in rows)

    return max(choices, key=matches)  # the first of equal ones leaves out least


def common_start(paths: Iterable[Sequence[str]]) -> list[str]:
    """The first words of paths, as far as they are equal."""
    return [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*paths, strict=False))]


def _prefixes(modules: Iterable[Words], skipped: int) -> set[Words]:
    """The modules and all modules that contain them."""
    return {path[:k] for path in {_bare(module, skipped) for module in modules} for k in range(1, len(path) + 1)}


def _bare(path: Words, skipped: int) -> Words:
    """`path` in the form in which rows and modules are compared."""
    path = tuple(dropwhile("model".__eq__, path[skipped:]))
    return ("norm",) if path and path[-1] == _FINAL_NORM else tuple(_SAME.get(word, word) for word in path)
