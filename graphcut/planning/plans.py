"""Plans: which node goes into which part, on which device, at what predicted cost, and why."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from ..core.errors import PlanError
from ..core.graph import Graph, Partition
from ..core.manifest import RunMemory
from ..core.product import Product, short_repr
from ..core.units import count, size
from ..costs.device import Device
from ..costs.device_groups import DeviceGroup, ModeCosts
from ..costs.device_support import refusals
from ..costs.matching import Coverage, apply_table
from ..costs.tables import CostTable
from ..costs.weighing import Costs
from ..loading.model import Model
from ..solving.instance import Parts
from ..solving.recompute import Recomputed
from ..solving.transfers import RequestTimes, totals
from .goals import Across, At, Goal, Into, Limits, Within, counted_by, is_crossings
from .node_names import find_nodes
from .predictions import PartMetrics, block_memory, counted_bytes, plan_times, plan_transfers
from .replicable import inexact_copies
from .results import FrontPlan, Optimality, Reason

_MOST_IN_REPR: Final = 6

ANY_DEVICE: Final = Device(name="any")
"""The device of every part if no cluster is given: a small computer in a wired network."""


@dataclass(frozen=True, repr=False)
class Plan(Product):
    """An ordered partition of the nodes of a graph into parts."""

    goal: Goal  #: what it is for.
    graph: Graph  #: the graph that is cut.
    #: the flowing nodes of each part (indices in `graph.nodes`), in an order in which the parts can run. A node that is
    #: in several parts has its home in the first, and is recomputed in the others.
    parts: Parts
    devices: tuple[Device, ...] = ()  #: the device of each part; empty for `At` without devices.
    limits: Limits = field(default_factory=Limits)  #: its constraints.
    dims: Mapping[str, int] = field(default_factory=dict)  #: the sizes of symbolic dimensions that it was made for.
    costs: Costs | None = None  #: FLOPs and bytes of the nodes for these sizes; None without metrics.
    coverage: Coverage | None = None  #: how many nodes a cost model matched, if one was given.
    table: CostTable | None = field(default=None, compare=False)  #: that cost model.
    outcome: Optimality | None = None  #: how good it is; None for `At` and `Heads`.
    inside_layers: Optimality | None = None  #: the same with cuts inside layers, if it is known to be better.
    unlimited: Optimality | None = None  #: the same without pins and nodes to avoid, if there are any.
    front: tuple[FrontPlan, ...] = ()  #: see `Solution.find_front`.
    modes: tuple[ModeCosts, ...] = ()  #: what ranks exchange, joined as planned, and in the other way.
    recomputed: tuple[Recomputed, ...] = ()  #: what parts compute instead of receiving it.
    metrics: tuple[PartMetrics, ...] = ()  #: predicted metrics of each part; empty for a plan that was made by hand.
    #: gives `reasons`, which take time: other cuts are finished, too.
    explain: Callable[[], tuple[Reason, ...]] = field(default=tuple, compare=False)
    #: the model that is cut, so that a notebook can draw it; None for a plan that was made by hand.
    model: Model | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """The goal, how good the plan is, and the nodes and the file sizes of the parts; at most three lines."""
        of_parts = [f"{count(one.nodes, 'node')}, {size(one.written_bytes)}" for one in self.metrics]
        of_parts = of_parts or [count(len(nodes), "node") for nodes in self.parts]
        of_parts[_MOST_IN_REPR:] = ["..."] * (len(of_parts) > _MOST_IN_REPR)
        title = f"Plan({short_repr(self.goal)}: {count(len(self.parts), 'part')}"
        outcome = [] if self.outcome is None else [str(self.outcome)]
        return "\n     ".join([title, *outcome, " | ".join(of_parts)]) + ")"

    @property
    def has_groups(self) -> bool:
        """Whether layers are divided among devices."""
        return any(isinstance(device, DeviceGroup) for device in self.devices)

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """Why each cut is where it is."""
        return self.explain()

    @cached_property
    def boundary_bytes(self) -> tuple[int, ...]:
        """For each cut the bytes that cross there, each tensor once; empty without metrics."""
        ends = self.partition.wiring.boundary_tensors.items()
        sizes = {} if self.costs is None else self.costs.sent_bytes
        cuts = range(len(self.parts) - 1 if sizes else 0)
        return tuple(sum(sizes[name][0] for name, (i, readers) in ends if i <= cut < max(readers)) for cut in cuts)

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the cuts of a plan for `At`, as they were given."""
        return self.goal.nodes if isinstance(self.goal, At) else ()

    @property
    def is_exact(self) -> bool:
        """Whether all tensors have a size; else what counts activations is a lower bound."""
        return all(part.is_exact for part in self.metrics)

    @property
    def received_bytes(self) -> int:
        """What all parts receive from others, each tensor once for each part."""
        return sum(part.received_bytes for part in self.metrics)

    @property
    def is_measured(self) -> bool:
        """Whether most rows of the cost model match a node, and most of the time is that of rows that have one."""
        if self.costs is None or self.table is None or self.coverage is None:
            return False
        seconds, measured_s = apply_table(self.costs, self.table, self.hosts[0])
        return self.coverage.matched > len(self.coverage.unmatched) and 2 * measured_s > sum(seconds)

    @property
    def hosts(self) -> tuple[Device, ...]:
        """The device of each part that predictions are for: the one that a plan without devices assumes."""
        return self.devices or (ANY_DEVICE,) * len(self.parts)

    @cached_property
    def partition(self) -> Partition:
        """The parts as blocks of nodes, and the tensors between them."""
        return self.graph.partitioned(self.parts)

    @cached_property
    def memory(self) -> tuple[RunMemory, ...]:
        """The memory of each part on its device; empty without metrics."""
        if self.costs is None or not self.metrics:
            return ()
        blocks = zip(self.partition.blocks, self.hosts, strict=True)
        return tuple(block_memory(block, self.costs, device) for block, device in blocks)

    @property
    def needs(self) -> tuple[int, ...]:
        """For each part what its goal counts, its files or its memory; empty without metrics."""
        if not (counting := counted_by(self.goal)):
            return tuple(part.written_bytes for part in self.metrics)
        return tuple(counted_bytes(memory, counting) for memory in self.memory)

    @property
    def budgets(self) -> tuple[int | None, ...]:
        """For each part the most bytes that it may need; None for no limit."""
        if isinstance(self.goal, Across):
            return tuple(device.memory_bytes for device in self.devices)
        return (self.goal.memory_bytes if isinstance(self.goal, Within) else None,) * len(self.parts)

    @cached_property
    def budget_shares(self) -> tuple[float, ...]:
        """For each part what the parts of its device need, as a share of its budget; 0 without a budget.

        Empty without metrics.
        """
        if not self.metrics or not any(self.budgets):  # what parts need takes longer than all else
            return (0.0,) * len(self.metrics)
        shares = [own / budget if budget else 0.0 for own, budget in zip(self.needs, self.budgets, strict=True)]
        return tuple(on_device(self.goal, self.devices, shares))

    @cached_property
    def times(self) -> RequestTimes | None:
        """The predicted times of a request; None without metrics."""
        if self.costs is None or not self.metrics:
            return None
        transfers, run_s = plan_transfers(self.partition, self.costs, self.goal), [part.run_s for part in self.metrics]
        return plan_times(transfers, run_s, self.hosts, self.goal)

    @property
    def expense(self) -> tuple[float, ...]:
        """For each part, with all parts of its device, what the goal compares; 0 if it compares no parts."""
        match self.goal:
            case Into(by="time") | Across(objective="throughput" | "latency" | "decode" | "devices"):
                return tuple(on_device(self.goal, self.devices, [part.busy_s for part in self.metrics]))
            case Into(by="bytes" | "flops" as by):
                return tuple(float(part.written_bytes if by == "bytes" else part.flops) for part in self.metrics)
            case _:
                return (0.0,) * len(self.parts)

    def minimized(self, planned: float) -> float:
        """What the goal minimizes; for tokens a second the seconds of a step.

        `planned` is returned where metrics don't say it: layers are counted before anything is recomputed.
        """
        match self.goal:
            case Into(by="time" | "bytes" | "flops"):
                return max(self.expense)
            case Across(objective="throughput" | "latency" | "decode") as goal if self.times is not None:
                return self.times.objective(goal.objective, goal.in_flight)
            case Across(objective="bytes") as goal:
                is_far = [device.name != goal.cluster.driver.name for device in self.devices]
                rows = zip(self.metrics, is_far, strict=True)
                return float(sum(m.received_bytes + far * (m.input_bytes + m.output_bytes) for m, far in rows))
            case Across(objective="crossings"):
                return float(len(self.parts) - 1)
            case Within() | Across(objective="devices"):
                return float(len(self.parts))
            case _:
                return planned


def same_parts(made: Plan, **changes: Any) -> Plan:  # noqa: ANN401 - fields of any type
    """The plan with other fields and the same parts, which are not divided again."""
    found = replace(made, **changes)
    found.__dict__["partition"] = made.partition
    return found


def on_device(goal: Goal, devices: Sequence[Device], numbers: Iterable[float]) -> list[float]:
    """For each part the sum of the numbers of all parts of its device; without a cluster each part has its own."""
    if not isinstance(goal, Across):
        return list(numbers)
    found = totals([device.name for device in devices], numbers)
    return [found[device.name] for device in devices]


def check_budgets(made: Plan, file_bytes: Sequence[int]) -> None:
    """Raise a PlanError if a part needs more than its budget. `file_bytes` are the sizes of the files of each part."""
    needed = made.needs if counted_by(made.goal) else file_bytes
    for i, (number, budget) in enumerate(zip(on_device(made.goal, made.devices, needed), made.budgets, strict=True)):
        if budget is not None and number > budget:
            hint = "plan again: an edited plan must keep its own budget"
            raise PlanError(f"part {i} needs {int(number):,} bytes, but the plan allows {budget:,}", hint=hint)


def check_part_count(made: Plan) -> None:
    """Raise a PlanError if a plan has more parts than its goal allows."""
    goal, number = made.goal, len(made.parts)
    if not isinstance(goal, Within) or goal.most_parts is None or number <= goal.most_parts:
        return
    budget, outcome = size(goal.memory_bytes), made.outcome
    what = "needs" if outcome is not None and outcome.is_optimal else "has"
    least = f" ({outcome.bound:.0f} or more are needed)" if outcome and outcome.bound and not outcome.is_optimal else ""
    parts = f"{count(number, 'part')} of at most {budget}{least}"
    message = f"this {what} {parts}, and at most {goal.most_parts} may be made"
    raise PlanError(message, hint="allow more parts, or more memory for each")


def checked(made: Plan) -> Plan:
    """A plan that was searched for, if it has no more parts than its goal allows, and each keeps the rules."""
    check_part_count(made)
    check_part_limits(made)
    return made


def check_part_limits(made: Plan) -> None:
    """Raise a PlanError if a part has a node that the rules of its device refuse, or is larger than they allow."""
    for i, (block, device) in enumerate(zip(made.partition.blocks, made.devices, strict=False)):  # it may have none
        if device.rules is None or made.costs is None:
            continue
        begins = is_crossings(made.goal)
        refused = dict(zip(made.graph.flow, refusals(made.costs, device.rules, begins=begins), strict=True))
        for node in (*block.nodes, *block.replicas):
            if (refusal := refused.get(node)) is not None:
                name = made.graph.nodes[node].name
                message = f"part {i} has {name!r}, which {device.name!r} can't run: {refusal.why}"
                raise PlanError(message, hint="give the part to another device, or plan again")
        sizes = made.metrics[i].written_bytes, made.metrics[i].nodes, len(block.reads), len(block.writes)
        for (name, limit), number in zip(device.rules.part_limits.items(), sizes, strict=True):
            if limit is not None and number > limit:
                hint = "plan for crossings, which keeps limits of nodes and bytes, or cut at nodes that you name"
                if begins:
                    hint = "refuse a node of the part in the rules, so that another device runs it"
                message = f"part {i} on {device.name!r} has {number:,}, and {name} of its rules is {limit:,}"
                raise PlanError(message, hint=hint)


def check_limits(made: Plan) -> None:
    """Raise a PlanError where a plan that was not searched for (`At`, or edited) does not keep its limits."""
    check_part_count(made)
    graph, limits = made.graph, made.limits
    home = {node: part for part, nodes in enumerate(made.parts) for node in nodes}
    for pattern, part in limits.pins:
        for node in sorted(find_nodes(graph, [pattern])):
            if home[node] != part:
                name, other = graph.nodes[node].name, home[node]
                message = f"{name!r} is pinned to part {part}, and these cuts put it in part {other}"
                raise PlanError(message, hint="cut somewhere else, or leave the pin out")
    repeated = {node for block in made.partition.blocks for node in block.replicas}
    if limits.recompute != "approximate" and (inexact := repeated.intersection(inexact_copies(graph))):
        message = f"{graph.nodes[min(inexact)].name!r} is repeated, and its copy need not give the same bits"
        raise PlanError(message, hint="allow it with `Limits(recompute='approximate')`, or let one part have the node")
    avoided = find_nodes(graph, limits.avoid)
    sent = made.partition.wiring.boundary_tensors
    if tensor := next((name for name in sent if graph.producer.get(name) in avoided), None):
        hint = "cut somewhere else, or drop it from `avoid`"
        raise PlanError(f"{tensor!r} would cross, and is to be avoided", hint=hint)
