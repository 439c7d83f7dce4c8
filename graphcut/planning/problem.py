"""From a model to what is planned: groups of nodes that stay whole, and what they weigh."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..analysis.cut_points import Analysis
from ..core.errors import PlanError, UsageError
from ..core.graph import Graph
from ..core.units import count
from ..costs.weighing import Costs
from .contraction import contract
from .disk_size import SerializedSizes
from .goals import Counted, Limits
from .instance import Hyperedges, Ints, Workload, exact, quantum_for
from .node_names import find_nodes


@dataclass(frozen=True)
class PlanningProblem:
    """What is planned of a model.

    Attributes:
        analysis: the analysed model.
        costs: what its nodes weigh.
        limits: what constrains the plan.
        groups: the flowing nodes, in groups that stay whole; a node is its place in `graph.nodes`.
        cheap: flowing nodes that stand in no group: each part that needs one computes it for itself.
        written: what the things of the model take on disk.
        pins: for a group the part that it must stand in.
    """

    analysis: Analysis
    costs: Costs
    limits: Limits
    groups: tuple[tuple[int, ...], ...]
    cheap: tuple[int, ...]
    written: SerializedSizes
    pins: Mapping[int, int]

    @property
    def graph(self) -> Graph:
        """The graph of the model."""
        return self.analysis.model.graph

    @cached_property
    def home(self) -> Mapping[int, int]:
        """The group of each flowing node, but for the cheap ones."""
        return {node: i for i, group in enumerate(self.groups) for node in group}

    @cached_property
    def users(self) -> Mapping[int, frozenset[int]]:
        """For each flowing node the groups in whose parts it must run: its own, or all that need a cheap node."""
        found = {node: frozenset((group,)) for node, group in self.home.items()}
        for node in reversed(self.cheap):
            found[node] = frozenset[int]().union(*(found[reader] for reader in _readers(self.graph, node)))
        return found

    def called(self, group: int) -> str:
        """A group, as a person would speak of it."""
        nodes = self.groups[group]
        name = self.graph.nodes[nodes[-1]].name
        return f"node {name!r}" if len(nodes) == 1 else f"the segment of {count(len(nodes), 'node')} up to {name!r}"

    def parts(self, parts: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """The nodes of each part, from its groups; a cheap node stands in the first part that needs it."""
        place = {group: i for i, part in enumerate(parts) for group in part}
        rows: list[list[int]] = [[] for _ in range(max(place.values()) + 1)]
        for node in self.graph.flow:
            rows[min(place[group] for group in self.users[node])].append(node)
        return tuple(map(tuple, rows))

    def per_group(self, per_node: Sequence[float]) -> list[float]:
        """Sums over the nodes of each group, of numbers that stand in the order of `graph.flow`."""
        at = dict(zip(self.graph.flow, per_node, strict=True))
        return [sum(at[node] for node in group) for group in self.groups]

    def load(self, work: Sequence[Sequence[float]], counting: Collection[Counted] = ()) -> Workload:
        """The workload of the groups.

        Args:
            work: for each kind of device what each flowing node takes, in the order of `graph.flow`.
            counting: what is held in memory besides what is written.
        """
        own = np.array([self.per_group(row) for row in work], dtype=np.float64).reshape(len(work), len(self.groups))
        at = [dict(zip(self.graph.flow, row, strict=True)) for row in work]
        cheap = np.array([[row[node] for node in self.cheap] for row in at], dtype=np.float64)
        cheap = cheap.reshape(len(work), len(self.cheap))
        grain = quantum_for(float(own[np.isfinite(own)].sum() + cheap.sum()) * 4)
        touches, shared = self._shared(counting)
        return Workload(
            work=exact(own, grain),
            held=self._held(counting),
            inner=self._inner if "activations" in counting else np.zeros(len(self.groups), dtype=np.int64),
            writer=np.array([writer for _, writer, _, _ in self._crossing], dtype=np.int64),
            readers=Hyperedges.of([readers for _, _, readers, _ in self._crossing]),
            tensor_bytes=np.array([self.costs.tensor_bytes[name][0] for name, *_ in self._crossing], dtype=np.int64),
            declared=np.array([self.written.border[name] for name, *_ in self._crossing], dtype=np.int64),
            is_output=np.array([is_given for *_, is_given in self._crossing], dtype=bool),
            # The cheap nodes first: what they take stands in the columns of `shared_work`, and the rest takes nothing.
            sharers=Hyperedges.of(touches),
            shared=np.array(shared, dtype=np.int64),
            shared_work=np.pad(exact(cheap, grain), ((0, 0), (0, len(touches) - len(self.cheap)))),
            part_bytes=self.written.part,
            **_pairs([(self.home[a], self.home[b]) for a, b in _ordered(self.graph, self.limits)]),
        )

    @cached_property
    def _crossing(self) -> list[tuple[str, int, tuple[int, ...], bool]]:
        """Tensors that leave their group: name, group that writes, other groups that read, is it given out."""
        graph, given = self.graph, set(self.graph.writes)
        pasts = {cache.present for cache in self.costs.caches}
        found = []
        for node, home in sorted(self.home.items()):
            for tensor in graph.nodes[node].writes:
                readers = tuple(sorted({self.home[reader] for reader in graph.readers.get(tensor, ())} - {home}))
                is_given = tensor in given and tensor not in pasts
                if readers or is_given:
                    found.append((tensor, home, readers, is_given))
        return found

    def _held(self, counting: Collection[Counted]) -> Ints:
        """Bytes of the nodes' messages, of declaring the model's outputs, and of caches that grow."""
        graph = self.graph
        held = [sum(self.written.nodes[node] for node in group) for group in self.groups]
        for name in dict.fromkeys(graph.writes):
            if graph.producer.get(name) in self.home:
                held[self.home[graph.producer[name]]] += self.written.border[name]
        if "cache" in counting:
            for cache in self.costs.caches:
                if graph.producer.get(cache.present) in self.home:
                    held[self.home[graph.producer[cache.present]]] += self.costs.tensor_bytes[cache.present][0]
        return np.array(held, dtype=np.int64)

    def _shared(self, counting: Collection[Counted]) -> tuple[list[frozenset[int]], list[int]]:
        """What parts need once (cheap nodes, weights, constants, functions, inputs): the groups that do, and bytes."""
        items = [(self._cheap_bytes(node, counting), self.users[node]) for node in self.cheap]
        fixed: dict[frozenset[int], int] = {}

        def add(number: int, nodes: Iterable[int]) -> None:
            groups = frozenset[int]().union(*(self.users[node] for node in nodes))
            fixed[groups] = fixed.get(groups, 0) + number

        for number, nodes in self.written.shared:
            add(number, nodes)
        pasts = {cache.past for cache in self.costs.caches}
        for name in self.graph.reads:
            is_counted = ("cache" if name in pasts else "inputs") in counting
            number = self.written.border[name] + is_counted * self.costs.tensor_bytes[name][0]
            add(number, self.graph.readers.get(name, ()))
        fixed.pop(frozenset(), None)
        items += [(number, groups) for groups, number in fixed.items()]
        return [groups for _, groups in items], [number for number, _ in items]

    def _cheap_bytes(self, node: int, counting: Collection[Counted]) -> int:
        names = self.graph.nodes[node].writes
        given = sum(self.written.border[name] for name in names if name in self.graph.writes)
        kept = [name for name in names if any(reader in self.home for reader in self.graph.readers.get(name, ()))]
        held = sum(self.costs.tensor_bytes[name][0] for name in kept) if "activations" in counting else 0
        return self.written.nodes[node] + given + held

    @cached_property
    def _inner(self) -> Ints:
        leaving = {name for name, *_ in self._crossing}
        found = [self._inner_of(group, leaving) for group in self.groups]
        # What the cheap nodes take while they run, beyond what they hand on: it can't be more than this before a group.
        kept = {name for node in self.cheap for name in self.graph.nodes[node].writes}
        kept = {name for name in kept if any(reader in self.home for reader in self.graph.readers.get(name, ()))}
        least = self._inner_of(self.cheap, kept)
        users = frozenset[int]().union(*(self.users[node] for node in self.cheap))
        return np.array([max(n, least) if i in users else n for i, n in enumerate(found)], dtype=np.int64)

    def _inner_of(self, group: Sequence[int], leaving: Collection[str]) -> int:
        """Most bytes alive, while a group runs, of what it writes and no other group reads."""
        graph, alive, most = self.graph, 0, 0
        inside = set(group)
        last = {t: node for node in group for t in (*graph.nodes[node].writes, *graph.nodes[node].reads)}
        for node in group:
            alive += sum(self.costs.tensor_bytes[t][0] for t in graph.nodes[node].writes if t not in leaving)
            most = max(most, alive)
            for tensor in {*graph.nodes[node].reads, *graph.nodes[node].writes}:
                if last[tensor] == node and tensor not in leaving and graph.producer.get(tensor) in inside:
                    alive -= self.costs.tensor_bytes[tensor][0]
        return most


def problem_of(
    analysis: Analysis,
    costs: Costs,
    limits: Limits,
    written: SerializedSizes,
    *,
    whole_layers: bool,
    cheap: Collection[int] = (),
) -> PlanningProblem:
    """What is planned of `analysis.model`.

    Nodes share a group where a tensor between them has no type that can be declared or is no plain tensor, where they
    touch both ends of a KV cache, where `limits.avoid` says so, and where they are of one layer (`whole_layers`). The
    `cheap` ones, which must be closed under "depends on", stand in no group.

    Raises:
        UsageError: a pin or a glob names nothing.
        PlanError: two pins can't both hold.
    """
    graph = analysis.model.graph
    together = [*_awkward(analysis), *_caches(graph, costs), *_avoided(graph, limits, cheap)]
    if whole_layers and analysis.repeat is not None:
        together += analysis.repeat.blocks
    kept = [node for node in graph.flow if node not in cheap]
    groups = contract(graph, kept, together, _ordered(graph, limits))
    home = {node: i for i, group in enumerate(groups) for node in group}
    pins: dict[int, int] = {}
    for pattern, part in limits.pins:
        for node in sorted(find_nodes(graph, [pattern])):
            if pins.setdefault(home[node], part) != part:
                raise PlanError(
                    f"{graph.nodes[node].name!r} is pinned to part {part}, and what it can't be parted from to part "
                    f"{pins[home[node]]}",
                    hint="pin one of them elsewhere, or leave one pin out",
                )
    return PlanningProblem(analysis, costs, limits, groups, tuple(sorted(cheap)), written, pins)


def _awkward(analysis: Analysis) -> Iterable[Sequence[int]]:
    """Writers and readers of what can't cross a border well: a type nobody knows, a sequence, a map, an optional."""
    graph = analysis.model.graph
    for node in graph.flow:
        for name in graph.nodes[node].writes:
            tensor = analysis.model.tensors[name]
            if not tensor.is_plain or tensor.dtype == "undefined":
                yield node, *graph.readers.get(name, ())


def _caches(graph: Graph, costs: Costs) -> Iterable[Sequence[int]]:
    for cache in costs.caches:
        writer = graph.producer.get(cache.present)
        if writer is not None and not graph.nodes[writer].is_constant:
            yield writer, *graph.readers.get(cache.past, ())


def _avoided(graph: Graph, limits: Limits, cheap: Collection[int]) -> Iterable[Sequence[int]]:
    """Writers and readers of what must not cross; what each part computes for itself does not."""
    for node in sorted(find_nodes(graph, limits.avoid).difference(cheap)) if limits.avoid else ():
        yield node, *(reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ()))


def _ordered(graph: Graph, limits: Limits) -> list[tuple[int, int]]:
    """Pairs of nodes that pins put into this order: each of a part before each of the next part that has pins."""
    by_part: dict[int, list[int]] = {}
    for pattern, part in limits.pins:
        if part < 0:
            raise UsageError(f"there is no part {part}", hint="parts are counted from 0")
        by_part.setdefault(part, []).extend(sorted(find_nodes(graph, [pattern])))
    rows = [by_part[part] for part in sorted(by_part)]
    return [(a, b) for first, second in pairwise(rows) for a in first for b in second]


def _pairs(pairs: Sequence[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    apart = [(a, b) for a, b in pairs if a != b]
    return {"before": tuple(a for a, _ in apart), "after": tuple(b for _, b in apart)}


def _readers(graph: Graph, node: int) -> set[int]:
    return {reader for name in graph.nodes[node].writes for reader in graph.readers.get(name, ())}
