"""Finished parts: with what they recompute, and their predicted metrics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf
from statistics import median_low
from typing import Final, get_args

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis
from ..core.graph import Graph
from ..costs.caches import nodes_touching
from ..costs.device import Device, NodeSeconds, run_s
from ..costs.device_groups import DeviceGroup, ModeCosts, RankMode, ranks_of
from ..costs.device_support import possible_s
from ..costs.matching import apply_table, cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs
from ..sharding.rank_costs import RankCosts
from ..solving.instance import Parts
from ..solving.recompute import Prices, Recomputed, TransferPrices, recompute, repeated
from ..solving.transfers import DRIVER
from .by_goal.cut_at_nodes import parts_at
from .disk_size import SerializedSizes, memory_sizes, serialized_sizes
from .goals import Across, At, Goal, Into, Limits, Within, counted_by, is_crossings
from .node_names import find_nodes
from .plans import ANY_DEVICE, Plan, same_parts
from .predictions import driven_bytes, part_metrics, plan_run_s, plan_times, plan_transfers
from .problem import PlanningProblem
from .replicable import inexact_copies, replicable_nodes, rewritable_nodes
from .results import Solution

TOLERANCE: Final = 1e-9  #: times that differ by this share differ only in the order of additions.


@dataclass(frozen=True)
class Finisher:
    """Makes plans of parts: decides what they recompute, and predicts their metrics."""

    analysis: Analysis
    goal: Goal
    limits: Limits
    costs: Costs
    table: CostTable | None

    @property
    def graph(self) -> Graph:
        return self.analysis.model.graph

    @cached_property
    def sizes(self) -> SerializedSizes:
        return self.analysis.model.once(serialized_sizes)

    @cached_property
    def counted_sizes(self) -> SerializedSizes:
        """What the goal counts of parts: bytes on disk, or what sessions hold."""
        return memory_sizes(self.analysis.model, self.sizes) if counted_by(self.goal) else self.sizes

    @cached_property
    def seconds(self) -> NodeSeconds:
        """The seconds of each flowing node on a device."""
        table, begins = self.table, is_crossings(self.goal)

        def seconds(device: Device) -> Sequence[float]:
            if isinstance(device, DeviceGroup) and self.rank_costs is not None:
                return self.rank_costs.seconds_of(device)
            found = run_s(self.costs, device) if table is None else apply_table(self.costs, table, device)[0]
            if before := self.costs.run_before:
                found = tuple(0.0 if i in before else s for i, s in zip(self.graph.flow, found, strict=True))
            return possible_s(self.costs, device, found, begins=begins)

        return cache(seconds)

    @cached_property
    def rank_costs(self) -> RankCosts | None:
        """The costs of layers that are divided among devices; None where no devices are given."""
        goal = self.goal
        return RankCosts(self.costs, goal.cluster, goal.mode, self.seconds) if isinstance(goal, Across) else None

    @cached_property
    def _made(self) -> Callable[[Parts, tuple[Device, ...]], Plan]:
        """The plan of parts on devices, made once: several ways to finish parts often make the same ones.

        For `At` without metrics, which take longest: `at` compares few numbers.
        """
        plain = partial(Plan, self.goal, self.graph, limits=self.limits)
        if isinstance(self.goal, At):
            return lambda parts, devices: plain(parts, devices=devices)
        return cache(lambda parts, devices: self.with_metrics(plain(parts, devices=devices)))

    def with_metrics(self, made: Plan) -> Plan:
        costs, table, devices = self.costs, self.table, made.devices if isinstance(self.goal, At) else made.hosts
        metrics = part_metrics(made.partition, costs, self.sizes, made.hosts, self.seconds, self.goal)
        known = {"dims": costs.dims, "costs": costs, "table": table, "coverage": table and cover(table, costs)[1]}
        return same_parts(made, devices=devices, metrics=metrics, **known)

    def with_repeated(self, made: Plan) -> Plan:
        """A plan with metrics, and with what its parts recompute."""
        made = self.with_metrics(made)
        return same_parts(made, recomputed=repeated(made.graph, made.parts, self.prices(made.parts, made.hosts)))

    @cached_property
    def kept(self) -> frozenset[int]:
        """Nodes in one part only: they touch a cache, are pinned or name a cut, or not all devices can run them.

        And those whose copies give other bits, or that a pipeline of models runs once: a copy would run at each step.
        """
        named = self.goal.nodes if isinstance(self.goal, At) else ()
        pinned = find_nodes(self.graph, [*named, *(pattern for pattern, _ in self.limits.pins)])
        inexact = () if self.limits.recompute == "approximate" else inexact_copies(self.graph)
        touching = (nodes_touching(self.graph, pair) for pair in self.costs.caches)
        once = (node for node, phase in self.costs.model.phases.items() if phase == 0)
        return frozenset(pinned.union(inexact, self.refused, once, *touching))

    @property
    def repeats_nothing(self) -> bool:
        """Whether each node is in one part: that is asked for, or each belongs to the fastest device."""
        return self.limits.recompute == "never" or is_crossings(self.goal)

    @cached_property
    def refused(self) -> frozenset[int]:
        """Nodes that the rules of a device refuse."""
        devices = self.goal.cluster.devices if isinstance(self.goal, Across) else ()
        ruled = [zip(self.graph.flow, self.seconds(one), strict=True) for one in devices if one.rules is not None]
        return frozenset(node for row in ruled for node, seconds in row if seconds == inf)

    def replicable(self, goal: Goal) -> tuple[frozenset[int], frozenset[int]]:
        """The nodes that are planned to run in every part that needs them, and those with a rewritten replica."""
        if self.repeats_nothing:
            return frozenset(), frozenset()
        devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
        slowest = min(devices, key=lambda device: device.flops_per_s)
        run_s = dict(zip(self.graph.flow, self.seconds(slowest), strict=True))
        s_per_byte = 2 / max(device.link_bytes_per_s for device in devices)
        kept, avoided = self.kept, find_nodes(self.graph, self.limits.avoid)
        if isinstance(goal, Across):  # what is asked for comes from one part
            names = driven_bytes(goal, self.costs).keys() & self.graph.producer.keys()
            kept |= {self.graph.producer[name] for name in names}
        replicable = replicable_nodes(self.costs, run_s, s_per_byte, kept, avoided)
        if isinstance(goal, Within) or any(device.memory_bytes for device in devices):
            return replicable, frozenset()
        return replicable, rewritable_nodes(self.costs, run_s, s_per_byte, kept)

    def modes(self, made: Plan) -> Iterator[ModeCosts]:
        """What the ranks of a plan exchange, joined as planned, and in the other way."""
        goal = self.goal
        if not made.has_groups or not isinstance(goal, Across):
            return
        layers = [] if self.analysis.repeat is None else self.analysis.repeat.blocks
        for mode in sorted(get_args(RankMode), key=lambda mode: mode != goal.mode):
            other = replace(self, goal=changed(goal, mode=mode))
            times = other.with_metrics(Plan(other.goal, self.graph, made.parts, devices=made.devices)).times
            firsts, received, divided = list[int](), list[int](), set[int]()
            for nodes, group in zip(made.parts, made.devices, strict=True):
                if isinstance(group, DeviceGroup) and other.rank_costs is not None:
                    found, most = other.rank_costs.exchanged(group, {*nodes})
                    firsts, received, divided = [*firsts, *found], [*received, most], divided | {*nodes}
            inside = [sum(first in layer for first in firsts) for layer in layers if divided.issuperset(layer)]
            if times is not None:  # the first and the last layer may have more than the others
                yield ModeCosts(mode, len(firsts), median_low(inside or [0]), max(received), times.latency_s)

    def at(self, goal: At, devices: tuple[Device, ...] = ()) -> Plan:
        """The parts between named nodes, with the replicas that make the slowest part fastest.

        Nodes that no cut binds to a side go where the fewest bytes cross, what may be repeated counted or not.
        """

        def rank(one: Plan) -> tuple[bool, float, int]:
            run_s = plan_run_s(one.partition, self.costs, one.hosts, self.seconds)
            sent = plan_transfers(one.partition, self.costs, self.goal)
            received = sum(number * len(readers) for number, source, readers in sent if source != DRIVER)
            busy_s = plan_times(sent, run_s, one.hosts, self.goal).busy_s
            return max(one.budget_shares, default=0.0) > 1, max(busy_s), received

        none = frozenset[int](), frozenset[int]()
        repeatable = dict.fromkeys((self.replicable(self.goal), none))
        best = min((way for nodes in repeatable for way in self._ways_at(goal, devices, *nodes)), key=rank)
        return best if best.metrics else self.with_metrics(best)

    def _ways_at(self, goal: At, devices: tuple[Device, ...], *repeatable: frozenset[int]) -> Iterator[Plan]:
        """Ways to finish the parts between named nodes if tensors of replicable nodes cross for nothing."""
        again = {name: (0, True) for node in repeatable[0] for name in self.graph.nodes[node].writes}
        parts = parts_at(self.graph, self.analysis.model.tensors, {**self.costs.sent_bytes, **again}, goal)
        groups = tuple(tuple(node for node in part if node not in repeatable[0]) for part in parts)
        if not all(groups):  # a part of replicable nodes alone must keep one
            repeatable, groups = (frozenset(), frozenset()), tuple(parts)
        replicable, rewritable = (tuple(sorted(row)) for row in repeatable)
        costs, sizes = self.costs, self.counted_sizes
        problem = PlanningProblem(self.analysis, costs, self.limits, groups, replicable, sizes, {}, rewritable)
        found, hosts = [(i,) for i in range(len(groups))], devices or (ANY_DEVICE,) * len(groups)
        yield from self.finished(problem, found, hosts)
        yield self._planned(problem.nodes_of(found), hosts, ())

    def finished(
        self, problem: PlanningProblem, found: Sequence[Sequence[int]], devices: tuple[Device, ...], most: float = inf
    ) -> Iterator[Plan]:
        """Plans of found parts: each repeats what is cheapest for reader and writer, or for the reader, or all.

        `found` are the groups of each part; see `with_replicas` for `most`.
        """
        parts = problem.nodes_of(found)
        if isinstance(self.goal, Across):  # those of the search may have less memory
            known = {device.name: device for device in self.goal.cluster.devices}
            whole = [[known[rank.device.name] for rank in ranks_of(device)] for device in devices]
            pairs = zip(devices, whole, strict=True)
            devices = tuple(d.on(own) if isinstance(d, DeviceGroup) else own[0] for d, own in pairs)
            if any(isinstance(device, DeviceGroup) for device in devices):  # of ranks each node has one home
                yield self._planned(parts, devices, ())
                return
        yield self.with_replicas(parts, devices, problem.repeated, most)
        if problem.repeated:
            if not isinstance(self.goal, Within):
                yield self.with_replicas(parts, devices, problem.repeated, most, counts_all=False)
            parts = problem.nodes_of(found, with_replicas=True)
            yield self._planned(parts, devices, repeated(self.graph, parts, self.prices(parts, devices)))

    def _planned(self, parts: Parts, devices: tuple[Device, ...], recomputed: tuple[Recomputed, ...]) -> Plan:
        return same_parts(self._made(parts, devices), recomputed=recomputed)

    def with_replicas(
        self, parts: Parts, devices: tuple[Device, ...], planned: Sequence[int], most: float, *, counts_all: bool = True
    ) -> Plan:
        """The parts with what they recompute, as long as it fits their memory and no part costs more than `most`.

        A part that would cost more repeats only the nodes that it was `planned` to run, or none. See `Plan.expense`.
        """
        if self.repeats_nothing:
            return self._planned(parts, devices, ())
        goal, repeatable, known = self.goal, dict[int, frozenset[int]](), dict[Hashable, tuple[int, ...]]()
        prices = self.prices(parts, devices, counts_all=counts_all)
        is_time = isinstance(goal, Across) or (isinstance(goal, Into) and goal.by == "time")
        while True:
            made, recomputed = recompute(self.graph, parts, prices, self.kept, repeatable, known)
            found = self._planned(made, devices, recomputed)
            narrowed = {**repeatable}
            for part in (entry.part for entry in found.recomputed if found.metrics):
                fits = found.budget_shares[part] <= 1
                if not fits or found.expense[part] > most * (1 + TOLERANCE):
                    can_stop = fits and is_time
                    narrowed[part] = frozenset(planned if part not in repeatable or can_stop else ())
            if narrowed == repeatable:
                return found
            repeatable = narrowed

    def prices(self, parts: Parts, devices: Sequence[Device], *, counts_all: bool = True) -> Prices:
        """For each part what repeating and sending cost.

        A byte takes the link of the device that sends it and the link of the one that receives it, once each. What an
        earlier part of the same device computes, and does not only repeat, costs nothing. Without `counts_all` only the
        link of the receiver counts, and inputs of the model count nothing, as in `PartMetrics.busy_s` of any device.
        """
        is_cluster = isinstance(self.goal, Across)
        home = {node: i for i in reversed(range(len(parts))) for node in parts[i]} if is_cluster else {}
        avoided = find_nodes(self.graph, self.limits.avoid)
        unsent = frozenset(name for node in avoided for name in self.graph.nodes[node].writes)
        sizes = {name: number for name, (number, _) in self.costs.sent_bytes.items()}
        if not (counts_all or is_cluster):
            sizes |= dict.fromkeys(self.graph.reads, 0)

        @cache
        def prices_of(part: int) -> TransferPrices:
            device, sender = devices[part], devices[part - 1]
            run_s = dict(zip(self.graph.flow, self.seconds(device), strict=True))
            s_per_byte = 1 / device.link_bytes_per_s + counts_all / sender.link_bytes_per_s
            made_here = (node for node, i in home.items() if i < part and devices[i] == device)
            held = {name: 0 for node in made_here for name in self.graph.nodes[node].writes}
            return TransferPrices(run_s, s_per_byte, {**sizes, **held}, unsent)

        return prices_of


def most_planned(goal: Goal, solution: Solution) -> float:
    """What the most expensive part costs as planned; `inf` if the goal does not compare parts. See `Plan.expense`."""
    match goal:
        case Across(interleave=True, objective="throughput"):
            return solution.value
        case Across(objective="throughput" | "latency" | "decode" | "devices"):
            return max(solution.busy_s)
        case Into():
            return max(solution.part_costs)
        case _:
            return inf
