"""The planning problem of a model: groups of nodes that stay in one part, and what they cost."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np

from ..analysis.cut_points import Analysis
from ..core.errors import PlanError, UsageError
from ..core.graph import Graph, grouped
from ..core.manifest import SessionSettings
from ..core.tensors import UNDEFINED
from ..core.units import count
from ..costs.caches import nodes_touching
from ..costs.device import Counted, Device
from ..costs.held_weights import HeldWeights
from ..costs.kernel_work import kernel_work
from ..costs.weighing import Costs, peak_bytes
from ..loading.subgraphs import callee_key, nodes_within
from ..sharding.rank_costs import RankCosts
from ..solving.bound_with_repeats import BoundWithRepeats, PartPrices
from ..solving.boundaries import BoundaryTables
from ..solving.cost_tables import allowed_by
from ..solving.instance import Floats, Hyperedges, Ints, Parts, Replicas, Workload, exact, quantum_for
from .contraction import contract
from .disk_size import SerializedSizes
from .goals import Limits
from .node_names import find_nodes


@dataclass(frozen=True)
class PlanningProblem:
    """The groups of a model that parts are made of."""

    analysis: Analysis  #: the analysed model.
    costs: Costs  #: FLOPs and bytes of its nodes.
    limits: Limits  #: the constraints of the plan.
    #: the flowing nodes (indices in `graph.nodes`) in groups that stay in one part.
    groups: Parts
    replicable: tuple[int, ...]  #: flowing nodes that are in no group: each part that needs one runs it.
    sizes: SerializedSizes  #: bytes of parts: on disk, or in memory if the goal counts these.
    pins: Mapping[int, int]  #: for a group the part that it must be in, one group for each part, in their order.
    #: nodes that a part runs as well, as rewritten replicas, if it reads what these write. Their memory is not counted.
    rewritable: tuple[int, ...] = ()
    #: the device, or one that widens no more weights than any of them.
    device: SessionSettings = field(default_factory=SessionSettings)
    are_replicas_free: bool = False  #: for a lower bound: repeated nodes cost nothing.
    #: kernels count as where they read and write tensors of other parts, and Convs as where no Conv follows.
    is_cautious: bool = False
    kept: Collection[int] = ()  #: nodes that are not repeated.
    phases: Mapping[int, int] = field(default_factory=dict)  #: `Model.phases`, if no part may have nodes of several.

    @property
    def graph(self) -> Graph:
        return self.analysis.model.graph

    @property
    def held(self) -> HeldWeights:
        """The weights as `device` holds them."""
        return self.costs.held(self.device)

    @property
    def keeps_layers(self) -> bool:
        """Whether the model repeats a layer, and layers are not to be cut."""
        return self.analysis.repeat is not None and not self.limits.inside_layers

    @cached_property
    def home(self) -> Mapping[int, int]:
        """The group of each flowing node that is not replicable."""
        return {node: i for i, group in enumerate(self.groups) for node in group}

    @cached_property
    def users(self) -> Mapping[int, frozenset[int]]:
        """For each flowing node the groups whose parts run it: its own, or all that need a replicable node."""
        found = {node: frozenset((group,)) for node, group in self.home.items()}
        for node in reversed(self.replicable):
            found[node] = _union(found, self.graph.successors(node))
        return found

    @property
    def repeated(self) -> tuple[int, ...]:
        """All nodes that several parts may run."""
        return (*self.replicable, *self.rewritable)

    @cached_property
    def rerunners(self) -> Mapping[int, frozenset[int]]:
        """For each rewritable node its own group, and those that read what its rewritten replica writes."""
        copies = ((node, self.graph.copy_of(node)) for node in self.rewritable)
        return {node: self._reading(copy.writes[0]).union((self.home[node],)) for node, copy in copies}

    def _reading(self, tensor: str) -> frozenset[int]:
        """The groups of the nodes that read a tensor and are not replicable."""
        return frozenset(self.home[reader] for reader in self.graph.readers.get(tensor, ()) if reader in self.home)

    def check_pins(self, parts: int) -> None:
        """Raise a UsageError if a group is pinned to a part beyond the number of parts."""
        if unknown := next((part for part in self.pins.values() if part >= parts), None):
            raise UsageError(f"there is no part {unknown}", hint=f"parts are counted from 0, up to {parts - 1}")

    def describe(self, group: int) -> str:
        """A group in words."""
        nodes, last = self.groups[group], self.graph.nodes[self.groups[group][-1]]
        if len(nodes) > 1:
            return f"the segment of {count(len(nodes), 'node')} up to {last.name!r}"
        inside = f" ({last.op}, with {count(self.inside(group), 'node')} inside, which no cut divides)"
        return f"node {last.name!r}{inside * (self.inside(group) > 1)}"

    def inside(self, group: int) -> int:
        """How many nodes are in the subgraphs, or the functions, of the nodes of a group."""
        model = self.analysis.model
        nodes = [model.proto.graph.node[node] for node in self.groups[group]]
        bodies = [model.functions[key].node for key in map(callee_key, nodes) if key in model.functions]
        return len([*nodes_within([*nodes, *(node for body in bodies for node in body)])]) - len(nodes)

    def nodes_of(self, parts: Iterable[Sequence[int]], *, with_replicas: bool = False) -> Parts:
        """The nodes of each part, from its groups; a replicable node is in the first part that needs it, or in all."""
        part_of = {group: i for i, part in enumerate(parts) for group in part}
        users = ((sorted({part_of[group] for group in self._holders[node]}), node) for node in self.graph.flow)
        nodes = grouped((part, node) for own, node in users for part in (own if with_replicas else own[:1]))
        return tuple(tuple(nodes.get(part, ())) for part in range(max(part_of.values()) + 1))

    def workload(
        self, work: Sequence[Sequence[float]], counting: Collection[Counted] = (), sent: Mapping[str, int] | None = None
    ) -> Workload:
        """The workload of the groups; `work` is for each device class the seconds (or else) of each flowing node.

        `sent` are the bytes of the inputs and outputs of the model that are sent from and to the driver.
        """
        travelling = sent or {}
        per_node = [dict(zip(self.graph.flow, row, strict=True)) for row in work]
        alone = [[node for node in group if node not in self.rerunners] for group in self.groups]
        own = np.array([[sum(row[node] for node in group) for group in alone] for row in per_node], dtype=float)
        shared = np.array([[row[node] for node in self.repeated] for row in per_node], dtype=float)
        quantum = quantum_for(float(own[np.isfinite(own)].sum() + shared.sum()) * 4)
        fixed, fixed_bytes = self._shared(counting, travelling, self.users)
        in_phases = (pair for pair in _between_phases(self.graph, self.phases) if self.home.keys() >= {*pair})
        replica_bytes = [self._replica_bytes(node, counting) for node in self.replicable] + [0] * len(self.rewritable)
        load = Workload(
            work=exact(own, quantum),
            own_bytes=self._own_bytes(counting),
            inner_bytes=self._inner_bytes if "activations" in counting else np.zeros(len(self.groups), dtype=np.int64),
            writer=np.array([writer for _, writer, _, _ in self._boundary], dtype=np.int64),
            readers=Hyperedges.of([readers for _, _, readers, _ in self._boundary]),
            tensor_bytes=np.array([self.costs.sent_bytes[name][0] for name, *_ in self._boundary], dtype=np.int64),
            declared_bytes=np.array([self.sizes.declarations[name] for name, *_ in self._boundary], dtype=np.int64),
            opening_bytes=self._opening_with_all() if "activations" in counting else None,
            is_output=np.array([is_output for *_, is_output in self._boundary], dtype=bool),
            # Repeated nodes are the first of the shared items; the others take no time.
            sharers=Hyperedges.of([*(self._holders[node] for node in self.repeated), *fixed]),
            shared_bytes=np.array([*replica_bytes, *fixed_bytes[0]], dtype=np.int64),
            shared_work=np.pad(exact(shared, quantum), ((0, 0), (0, len(fixed)))),
            part_bytes=self.sizes.part,
            ordered=(*pairwise(self.pins), *((self.home[a], self.home[b]) for a, b in in_phases)),
            phase=np.array([self.phases[group[0]] for group in self.groups]) if self.phases else None,
            listed_bytes=np.array([self._listed(name) for name, *_ in self._boundary], dtype=np.int64),
            input_bytes=np.array([*(0 for _ in replica_bytes), *fixed_bytes[1]], dtype=np.int64),
            answers=self._answers(travelling),
        )
        if not self.repeated:
            return load
        without = {**self.users, **dict.fromkeys(self.replicable, frozenset[int]())}
        replicas = self._replicas(load, exact(shared, quantum), *self._shared(counting, travelling, without))
        return replicas.without if self.are_replicas_free else replace(load, replicas=replicas)

    def bound_with_repeats(
        self, tables: BoundaryTables, prices: PartPrices, limit: float, parts: int
    ) -> BoundWithRepeats:
        """The search for plans below a limit in which parts repeat whatever nodes they like."""
        allowed = allowed_by(tables, self.pins)
        graph = self.graph
        return BoundWithRepeats(graph, tables, self.groups, self.replicable, self.kept, prices, limit, parts, allowed)

    def second_prices(self, tables: BoundaryTables, seconds: Sequence[float], device: Device) -> PartPrices:
        """What parts of a device that does one thing at a time pay in seconds; see `busy_s`."""
        run_s = dict(zip(self.graph.flow, seconds, strict=True))
        sums = tables.inside @ np.array([sum(run_s[node] for node in group) for group in self.groups])
        own = np.where(tables.nested, sums[:, None] - sums[None, :], np.inf)
        moved = {name: number / device.link_bytes_per_s for name, (number, _) in self.costs.sent_bytes.items()}
        moved |= dict.fromkeys(self.graph.reads, 0.0)
        latency_s = device.latency_s if all(moved[name] for name in self.graph.producer if name in moved) else 0.0
        return PartPrices(own, run_s, moved, moved, latency_s)

    def byte_prices(self, tables: BoundaryTables, counting: Collection[Counted] = ()) -> PartPrices:
        """What parts pay at least in bytes."""
        replicas, sizes = tables.load.replicas, self.sizes
        lean = tables if replicas is None else replace(tables, load=replicas.without)
        needed = lean.own_bytes + lean.shared_bytes + lean.load.part_bytes
        is_counted = "inputs" in counting
        counted = {name: number * is_counted for name, (number, _) in self.costs.tensor_bytes.items()}
        receive = {name: number + counted.get(name, 0) for name, number in sizes.declarations.items()}  # weights too
        send = {name: number - self._listed(name) for name, number in sizes.declarations.items()}
        return PartPrices(np.where(tables.nested, needed, np.inf), {**sizes.nodes, **sizes.rewritten}, receive, send)

    def saved(self, ranks: RankCosts, shares: tuple[int, ...]) -> tuple[Hyperedges, Ints, Ints]:
        """What each rank of a group need not hold: the groups any of which need it, and bytes `[rank, item]`.

        And for each group what it takes besides while it is opened, `[rank, group]`.
        """
        found = defaultdict[frozenset[int], Ints](lambda: np.zeros(len(shares), dtype=np.int64))
        for nodes, numbers in ranks.saved_bytes(shares, self.held):
            found[_union(self.users, nodes)] += numbers
        found.pop(frozenset(), None)
        saved = np.array([*found.values()], dtype=np.int64).reshape(-1, len(shares)).T
        return Hyperedges.of(list(found)), saved, self._opening_bytes(len(shares), ranks.portions(shares))

    def wider(self, device: Device) -> tuple[Hyperedges, Ints] | None:
        """What a device holds of weights besides what `held` counts: the groups any of which need it, and bytes."""
        if (own := self.costs.held(device)) == self.held:
            return None
        rows = [*own.at_least, *((-number, nodes) for number, nodes in self.held.at_least)]
        users = Hyperedges.of([_union(self.users, nodes) for _, nodes in rows])
        return users, np.array([number for number, _ in rows], dtype=np.int64)

    @cached_property
    def _holders(self) -> Mapping[int, frozenset[int]]:
        """For each flowing node the groups whose parts run it if no part receives what it can repeat."""
        return {**self.users, **self.rerunners}

    def _replicas(self, load: Workload, work: Floats, fixed: Sequence[Collection[int]], fixed_bytes: Ints) -> Replicas:
        """The repeated nodes as values; a rewritten norm only where the sum that it is computed from is read, too.

        `fixed` is what parts hold once, if nobody computes these values; see `_shared`.
        """
        graph, index, copied = self.graph, {node: i for i, node in enumerate(self.replicable)}, len(self.rewritable)
        readers = [frozenset[int]().union(*map(self._reading, graph.nodes[node].writes)) for node in self.replicable]
        copies = [(self.home[node], graph.copy_of(node)) for node in self.rewritable]
        readers += [(self._reading(c.writes[0]) & self._reading(c.reads[0])) | {home} for home, c in copies]
        written = [*(graph.nodes[node].writes for node in index), *(copy.writes[:1] for _, copy in copies)]
        return Replicas(
            readers=Hyperedges.of(readers),
            sources=(*(tuple(index[n] for n in sorted(graph.predecessors(node))) for node in index), *((),) * copied),
            work=work,
            own_bytes=np.array([*(self.sizes.nodes[node] for node in index), *[0] * copied], dtype=np.int64),
            tensor_bytes=np.array([min(self.costs.sent_bytes[name][0] for name in names) for names in written]),
            declared_bytes=np.array([min(self.sizes.declarations[name] for name in names) for names in written]),
            without=replace(
                load,
                inner_bytes=self._own_inner_bytes if load.inner_bytes.any() else load.inner_bytes,
                sharers=Hyperedges.of(fixed),
                shared_bytes=fixed_bytes[0],
                shared_work=np.zeros((len(work), len(fixed))),
                input_bytes=fixed_bytes[1],
            ),
        )

    def _answers(self, travelling: Mapping[str, int]) -> tuple[tuple[int, int, int], ...]:
        """`Workload.answers`: the outputs that travel."""
        sizes = self.costs.sent_bytes
        read = {(name, sizes[name][0]): i for i, (name, _, readers, _) in enumerate(self._boundary) if readers}
        made = [(self.home.get(self.graph.producer.get(name, -1)), name, size) for name, size in travelling.items()]
        return tuple((group, size, read.get((name, size), -1)) for group, name, size in made if group is not None)

    @cached_property
    def _boundary(self) -> list[tuple[str, int, tuple[int, ...], bool]]:
        """Tensors that leave their group: name, group that writes it, other groups that read it, is it an output."""
        graph, presents, found = self.graph, {cache.present for cache in self.costs.caches}, []
        for node, home in sorted(self.home.items()):
            for tensor in graph.nodes[node].writes:
                readers = self._reading(tensor)
                if node in self.rerunners:
                    is_sent = tensor == graph.copy_of(node).reads[0]
                    readers = self.rerunners[node] | readers if is_sent else frozenset()
                readers -= {home}
                is_output = tensor in graph.outputs and tensor not in presents
                if readers or is_output:
                    found.append((tensor, home, tuple(sorted(readers)), is_output))
        return found

    def _listed(self, tensor: str) -> int:
        """What `_own_bytes` has of declaring a tensor: all if it is an output of the model."""
        return self.sizes.declarations[tensor] if tensor in self.graph.outputs else self.sizes.listed.get(tensor, 0)

    def _own_bytes(self, counting: Collection[Counted]) -> Ints:
        """For each group the bytes of its nodes, of declaring outputs of the model, and of caches after the run."""
        producer, tensor_bytes = self.graph.producer, self.costs.tensor_bytes
        found = [sum(self.sizes.nodes[node] for node in group) for group in self.groups]
        added = [(name, self.sizes.as_output(name)) for name in dict.fromkeys(self.graph.writes)]
        if "cache" in counting:
            added += [(cache.present, tensor_bytes[cache.present][0]) for cache in self.costs.caches]
        for name, number in added:
            if producer.get(name) in self.home:
                found[self.home[producer[name]]] += number
        return np.array(found, dtype=np.int64)

    def _shared(
        self, counting: Collection[Counted], travelling: Mapping[str, int], users: Mapping[int, frozenset[int]]
    ) -> tuple[list[frozenset[int]], Ints]:
        """What a part holds once (weights, constants, functions, inputs): the groups that need it, and `[2, item]`.

        These are its bytes, and those of them that the driver sends: each input that it sends is an item of its own.
        `users` are the groups whose parts run each node. The inputs of a KV cache count as "cache", all other inputs as
        "inputs".
        """
        fixed: dict[tuple[frozenset[int], str], Ints] = defaultdict(lambda: np.zeros(2, dtype=np.int64))
        for number, nodes in (*self.sizes.shared, *(self.held.at_least if counting else ())):
            fixed[_union(users, nodes), ""] += (number, 0)
        pasts = {cache.past for cache in self.costs.caches}
        for name in self.graph.reads:
            is_counted = ("cache" if name in pasts else "inputs") in counting
            number, readers = self.costs.tensor_bytes[name][0], self.graph.readers.get(name, ())
            held = self.sizes.declarations[name] + is_counted * number
            fixed[_union(users, readers), name if name in travelling else ""] += (held, travelling.get(name, 0))
        found = {key: numbers for key, numbers in fixed.items() if key[0]}
        return [needed for needed, _ in found], np.array([*found.values()], dtype=np.int64).reshape(-1, 2).T

    def _replica_bytes(self, node: int, counting: Collection[Counted]) -> int:
        names = self.graph.nodes[node].writes
        declared = sum(self.sizes.as_output(name) for name in names if name in self.graph.outputs)
        alive = sum(self.costs.tensor_bytes[name][0] for name in names if self._reading(name))
        return self.sizes.nodes[node] + declared + (alive if "activations" in counting else 0)

    def _opening_bytes(self, ranks: int = 1, portions: Mapping[int, Sequence[float]] = {}) -> Ints:
        """`[rank, group]`: what a group takes besides while it is opened, by ranks that have portions of some nodes."""
        found = np.zeros((ranks, len(self.groups)), dtype=np.int64)
        for node, (least, most) in self.held.opening_bytes.items():
            number = most if self.is_cautious else least
            if node in self.home:
                row = found[:, self.home[node]]
                np.maximum(row, [int(number * one) for one in portions.get(node, [1.0] * ranks)], out=row)
        return found

    def _opening_with_all(self) -> Ints:
        """`Workload.opening_bytes`."""
        of_all = self.held.opening_of_all_bytes
        return np.stack((self._opening_bytes()[0], [sum(of_all.get(n, 0) for n in group) for group in self.groups]))

    @cached_property
    def _own_inner_bytes(self) -> Ints:
        leaving = {name for name, *_ in self._boundary}
        return np.array([self._peak_within(group, leaving) for group in self.groups], dtype=np.int64)

    @cached_property
    def _inner_bytes(self) -> Ints:
        # Replicable nodes of a part run before the groups that need them, and need no more than this meanwhile.
        written = {name for node in self.replicable for name in self.graph.nodes[node].writes}
        least = self._peak_within(self.replicable, set(filter(self._reading, written)))
        users = list(_union(self.users, self.replicable))
        found = self._own_inner_bytes.copy()
        found[users] = np.maximum(found[users], least)
        return found

    def _peak_within(self, group: Sequence[int], leaving: Collection[str]) -> int:
        """The most bytes alive while a group runs: what its kernels take, and what it writes and does not leave it."""
        written = (tensor for node in group for tensor in self.graph.nodes[node].writes)
        own = {tensor: self.costs.tensor_bytes[tensor] for tensor in written if tensor not in leaving}

        def peak() -> int:
            kernels = {node: kernel_work(self.held, node, self.costs.tensor_bytes) for node in group}
            work = {node: max(found[:3]) if self.is_cautious else found.always for node, found in kernels.items()}
            return peak_bytes(self.graph, group, own, writes=(), work=work) if own or any(work.values()) else 0

        return self.costs.once((self.device.widened, self.is_cautious, *group, *own), peak)


def _union(users: Mapping[int, frozenset[int]], nodes: Iterable[int]) -> frozenset[int]:
    return frozenset[int]().union(*(users[node] for node in nodes))


def problem_of(
    analysis: Analysis,
    costs: Costs,
    limits: Limits,
    sizes: SerializedSizes,
    replicable: Collection[int] = (),
    rewritable: Collection[int] = (),
) -> PlanningProblem:
    """The planning problem of `analysis.model`.

    Nodes share a group if a tensor between them has an unknown type or is not a plain tensor, if they touch both ends
    of a KV cache, or if the limits say so (`avoid`, `inside_layers`). The `replicable` ones, which must contain their
    predecessors, are in no group.
    """
    graph = analysis.model.graph
    pinned = _pinned(graph, limits)
    together = [*_inseparable(analysis, costs), *pinned.values()]  # so one node of each orders all the pinned ones
    phases = analysis.model.phases
    if any(len({phases.get(node) for node in row}) > 1 for row in together):
        phases = {}
    avoided = sorted(find_nodes(graph, limits.avoid).difference(replicable))
    together += ((node, *sorted(graph.successors(node))) for node in avoided)
    if analysis.repeat is not None and not limits.inside_layers:
        together += analysis.repeat.blocks
    if phases:
        together = [nodes for row in together for nodes in grouped((phases.get(node), node) for node in row).values()]
    kept = [node for node in graph.flow if node not in replicable]
    ordered = (*pairwise(nodes[0] for nodes in pinned.values()), *_between_phases(graph, phases))
    groups = contract(graph, kept, together, ordered)
    home = {node: i for i, group in enumerate(groups) for node in group}
    pins: dict[int, int] = {}
    for part, (node, *_) in pinned.items():
        if pins.setdefault(home[node], part) != part:
            name, other = graph.nodes[node].name, pins[home[node]]
            message = f"{name!r} is pinned to part {part}, and nodes that must stay with it to part {other}"
            raise PlanError(message, hint="pin one of them elsewhere, or leave one pin out")
    replicas, rewritten = tuple(sorted(replicable)), tuple(sorted(rewritable))
    return PlanningProblem(analysis, costs, limits, groups, replicas, sizes, pins, rewritten, phases=phases)


def _between_phases(graph: Graph, phases: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Pairs of nodes whose order puts every node of a phase before every one of the next phase."""
    edges = [(node, after) for node in phases for after in graph.successors(node) if phases[after] == phases[node]]
    inner, led = {node for node, _ in edges}, {after for _, after in edges}
    for phase in {*phases.values()}:
        lasts = [node for node in phases if phases[node] == phase and node not in inner]
        firsts = [node for node in phases if phases[node] == phase + 1 and node not in led]
        yield from product(lasts, firsts)


def _inseparable(analysis: Analysis, costs: Costs) -> Iterable[Sequence[int]]:
    """Both ends of caches, and of tensors that can't cross: those of unknown types, sequences, maps, optionals."""
    graph = analysis.model.graph
    for node in graph.flow:
        for name in graph.nodes[node].writes:
            tensor = analysis.model.tensors[name]
            if not tensor.is_plain or tensor.dtype == UNDEFINED:
                yield node, *graph.readers.get(name, ())
    yield from (nodes_touching(graph, cache) for cache in costs.caches)


def _pinned(graph: Graph, limits: Limits) -> Mapping[int, Sequence[int]]:
    """The nodes that are pinned to each part, in the order of the parts."""
    part_of: dict[int, int] = {}
    for pattern, part in limits.pins:
        if part < 0:
            raise UsageError(f"there is no part {part}", hint="parts are counted from 0")
        for node in sorted(find_nodes(graph, [pattern])):
            if part_of.setdefault(node, part) != part:
                message = f"{graph.nodes[node].name!r} is pinned to part {part_of[node]} and to part {part}"
                raise UsageError(message, hint="a node is in one part: leave one of the two pins out")
    return {part: sorted(n for n, at in part_of.items() if at == part) for part in sorted({*part_of.values()})}
