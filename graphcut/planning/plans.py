"""Plans: which node goes into which part, on which device, at what predicted cost, and why."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from math import ceil, inf
from typing import Final, assert_never

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis, AnalysisLike, analyze
from ..core.errors import PlanError, UsageError
from ..core.graph import Graph, Partition, partition
from ..core.product import Product, short_repr
from ..core.units import count, size
from ..costs.caches import DecoderProfile, nodes_touching, sized_dims
from ..costs.device import Device, run_s
from ..costs.matching import Coverage, apply_table, cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from .by_goal.cluster_mapping import COUNTING, plan_across
from .by_goal.cut_at_nodes import parts_at
from .by_goal.interleaved_mapping import plan_interleaved
from .by_goal.memory_budget import fewest_parts, plan_within
from .by_goal.output_heads import parts_of_heads
from .by_goal.part_count import plan_into
from .disk_size import SerializedSizes, serialized_sizes
from .goals import Across, At, Goal, Heads, Into, Limits, Within, check_goal
from .node_names import find_nodes
from .predictions import PartMetrics, counted_bytes, part_metrics, plan_times, plan_transfers
from .problem import PlanningProblem, problem_of
from .replicable import inexact_copies, replicable_nodes, rewritable_nodes
from .results import Optimality, Reason, Solution, reasons
from .solver.recompute import Recomputed, TransferPrices, recompute, repeated
from .transfers import RequestTimes, travelling

_TOLERANCE: Final = 1e-9  #: times that differ by this share differ only in the order of additions.
_MOST_IN_REPR: Final = 6
_TRIES: Final = 10  #: so often a goal is searched again with less memory, each time down to _STEP of it at least.
_STEP: Final = 0.85
_Searched = Into | Within | Across  #: the goals that a search finds parts for.

ANY_DEVICE: Final = Device(name="any")
"""The device of every part if no cluster is given: a small computer in a wired network."""


@dataclass(frozen=True, repr=False)
class Plan(Product):
    """An ordered partition of the nodes of a graph into parts."""

    goal: Goal  #: what it is for.
    graph: Graph  #: the graph that is cut.
    #: the flowing nodes of each part (indices in `graph.nodes`), in an order in which the parts can run. A node that is
    #: in several parts has its home in the first, and is recomputed in the others.
    parts: tuple[tuple[int, ...], ...]
    devices: tuple[Device, ...] = ()  #: the device of each part; empty for `At`.
    limits: Limits = field(default_factory=Limits)  #: its constraints.
    dims: Mapping[str, int] = field(default_factory=dict)  #: the sizes of symbolic dimensions that it was made for.
    costs: Costs | None = None  #: FLOPs and bytes of the nodes for these sizes; None for `At`.
    coverage: Coverage | None = None  #: how many nodes a cost model matched, if one was given.
    outcome: Optimality | None = None  #: how good it is, before anything is recomputed; None for `At` and `Heads`.
    unlimited: Optimality | None = None  #: the same without pins and nodes to avoid, if there are any.
    front: tuple[tuple[float, float], ...] = ()  #: see `Solution.front`.
    recomputed: tuple[Recomputed, ...] = ()  #: what parts compute instead of receiving it.
    metrics: tuple[PartMetrics, ...] = ()  #: predicted metrics of each part; empty for `At`.
    reasons: tuple[Reason, ...] = ()  #: why each cut is where it is.
    #: the model that is cut, so that a notebook can draw it; None for a plan that was made by hand.
    model: Model | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """The goal, how good the plan is, and the nodes and the file sizes of the parts; at most three lines."""
        shown = self.metrics[:_MOST_IN_REPR]
        of_parts = [f"{count(one.nodes, 'node')}, {size(one.written_bytes)}" for one in shown]
        of_parts = of_parts or [count(len(nodes), "node") for nodes in self.parts[:_MOST_IN_REPR]]
        more = ["..."] * (len(self.parts) > _MOST_IN_REPR)
        title = f"Plan({short_repr(self.goal)}: {count(len(self.parts), 'part')}"
        outcome = [] if self.outcome is None else [str(self.outcome)]
        return "\n     ".join([title, *outcome, " | ".join(of_parts + more)]) + ")"

    @cached_property
    def partition(self) -> Partition:
        """The parts as blocks of nodes, and the tensors between them."""
        return partition(self.graph, self.parts)

    @cached_property
    def counted_bytes(self) -> tuple[int, ...]:
        """For each part what its goal counts besides its files."""
        goal = self.goal
        counting = goal.counting if isinstance(goal, Within) else COUNTING if isinstance(goal, Across) else ()
        costs = self.costs
        return tuple(0 if costs is None else counted_bytes(block, costs, counting) for block in self.partition.blocks)

    @property
    def budgets(self) -> tuple[int | None, ...]:
        """For each part the most bytes that it may need; None for no limit."""
        if isinstance(self.goal, Within):
            return (self.goal.memory_bytes,) * len(self.parts)
        return (
            tuple(d.memory_bytes for d in self.devices) if isinstance(self.goal, Across) else (None,) * len(self.parts)
        )

    @cached_property
    def budget_shares(self) -> tuple[float, ...]:
        """For each part what the parts of its device need, as a share of its budget; 0 without a budget.

        Empty without metrics.
        """
        if not self.metrics:
            return ()
        rows = zip(self.metrics, self.counted_bytes, self.budgets, strict=True)
        shares = [(part.written_bytes + counted) / budget if budget else 0.0 for part, counted, budget in rows]
        return tuple(_on_device(self.goal, self.devices, shares))

    @property
    def reached(self) -> float | None:
        """The value of the objective with recomputation, in the unit of `outcome`; None if it is not a time."""
        match self.goal:
            case Into(by="time"):
                return max((part.busy_s for part in self.metrics), default=None)
            case Across(objective="throughput" | "latency" | "decode") as goal if self.times is not None:
                value = self.times.objective(goal)
                return 1 / value if goal.objective == "decode" and value else value
            case _:
                return None

    @cached_property
    def times(self) -> RequestTimes | None:
        """The predicted times of a request; None without metrics."""
        if self.costs is None or not self.metrics:
            return None
        transfers, run_s = plan_transfers(self.partition, self.costs, self.goal), [part.run_s for part in self.metrics]
        return plan_times(transfers, run_s, self.devices, self.goal)


def plan(
    source: AnalysisLike,
    goal: Goal,
    *,
    limits: Limits | None = None,
    costs: Costs | None = None,
    table: CostTable | None = None,
    prove_s: float = 0.0,
) -> Plan:
    """The best plan for a goal. The same arguments give the same plan.

    Args:
        source: the analysis of the model, the model, or its path.
        goal: `At`, `Into`, `Within`, `Across` or `Heads`.
        limits: its constraints.
        costs: FLOPs and bytes of the nodes; by default for `default_dims`.
        table: a cost model whose values replace computed ones.
        prove_s: time limit of the exact solver, which is asked if the search can't prove that its plan is optimal.

    Raises:
        TypeError: the goal is not a goal.
        UsageError: the goal or the limits name what the model does not have, or would leave a part empty.
        PlanError: no plan meets the goal; the hint says what would.
    """
    check_goal(goal)
    analysis = analyze(source)
    model, limits = analysis.model, limits or Limits()
    if not model.graph.flow:
        raise PlanError(
            f"{model.path.name} has nothing to cut: no node depends on an input", hint="run the model as it is"
        )
    if isinstance(goal, At):
        parts = tuple(parts_at(model.graph, model.tensors, analysis.sized.tensor_bytes, goal))
        made = Plan(goal, model.graph, parts, limits=limits, dims=analysis.sized.dims, model=model)
        check_limits(made)
        return made
    costs = costs or weigh(model, default_dims(analysis, goal))
    if table is not None and not cover(table, costs)[1].matched:
        raise UsageError(
            f"the cost model matched no node of {model.path.name}",
            hint=f"its first row is called {table.rows[0].module!r}" if table.rows else "it has no rows",
        )
    costs = replace(costs, sends_half=limits.boundary_dtype is not None)
    planner = _Planner(analysis, goal, limits, costs, table)
    return planner.heads(goal) if isinstance(goal, Heads) else planner.optimized(goal, prove_s)


def default_dims(
    analysis: Analysis, goal: Goal | None = None, profile: DecoderProfile | None = None, tokens: int | None = None
) -> Mapping[str, int]:
    """`sized_dims`, as an analysis has them; for the objective `decode` those of one token with 512 in the cache."""
    is_decoding = isinstance(goal, Across) and goal.objective == "decode"
    return sized_dims(analysis.model, profile, tokens, default="decode" if is_decoding else "prefill")


def with_metrics(analysis: Analysis, made: Plan, costs: Costs) -> Plan:
    """A plan without metrics (for `At`, or edited) with those of its parts, and with what they recompute."""
    costs = replace(costs, sends_half=made.limits.boundary_dtype is not None)
    planner = _Planner(analysis, made.goal, made.limits, costs, None)
    prices = cache(planner.prices(made.parts, made.devices or (ANY_DEVICE,) * len(made.parts)))
    return replace(planner.with_metrics(made), recomputed=repeated(made.graph, made.parts, prices))


@dataclass(frozen=True)
class _Planner:
    """The arguments of `plan`, and what several of its steps compute from them."""

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
        return serialized_sizes(self.analysis.model)

    @cached_property
    def seconds(self) -> Callable[[Device], Sequence[float]]:
        """The seconds of each flowing node on a device."""
        table = self.table
        if table is None:
            return cache(lambda device: run_s(self.costs, device))
        return cache(lambda device: apply_table(self.costs, table, device)[0])

    def optimized(self, goal: _Searched, prove_s: float) -> Plan:
        """The best plan found whose parts keep their budgets in the order in which ONNX Runtime runs their nodes.

        The search counts what is alive when groups run in its own order. Where a part then needs more than its budget,
        the search is repeated with less memory. Its bound stays that of the first search.
        """
        share, least, first = 1.0, inf, None
        for _ in range(_TRIES):
            try:
                made = self._searched(goal, share, prove_s)
            except PlanError:
                if first is None:
                    raise
                break
            first = first or made.outcome
            if max(made.budget_shares) <= 1 and made.outcome is not None and first is not None:
                is_optimal = first.is_optimal and made.outcome.value == first.value
                return replace(made, outcome=changed(made.outcome, bound=first.bound, is_optimal=is_optimal))
            excess = max(made.budget_shares)
            share, least = share * max(1 / excess, _STEP), min(least, excess)
        what = "a part" if isinstance(goal, Within) else "a device"
        more = f"--memory {ceil(least * goal.memory_bytes)}" if isinstance(goal, Within) else "more memory for devices"
        raise PlanError(
            f"no plan was found in which ONNX Runtime runs each part in the memory of {what}",
            hint=f"the closest one needs {least:.2f} times that much: allow {more}",
        )

    def _searched(self, goal: _Searched, share: float, prove_s: float) -> Plan:
        """The best plan for a goal, as counted by the search, when there is only a share of its memory."""
        problem, solution = self.best(_with_memory(goal, share), prove_s)
        parts, devices = problem.nodes_of(solution.found.parts), solution.devices
        if isinstance(goal, Across):
            known = {device.name: device for device in goal.cluster.devices}
            devices = tuple(known[device.name] for device in devices)
        parts, recomputed = self._with_replicas(parts, devices, problem.repeated, _slowest_s(goal, solution))
        made = Plan(
            goal,
            self.graph,
            parts,
            devices=devices,
            limits=self.limits,
            outcome=self._as_known(solution.outcome, problem),
            unlimited=self._unlimited(goal),
            front=solution.front,
            recomputed=recomputed,
            reasons=reasons(solution, problem),
            model=self.analysis.model,
        )
        return self.with_metrics(made)

    def heads(self, goal: Heads) -> Plan:
        parts = parts_of_heads(self.graph, goal)
        made = Plan(goal, self.graph, parts, limits=self.limits, model=self.analysis.model)
        check_limits(made)
        devices = (ANY_DEVICE,) * len(parts)
        parts, recomputed = self._with_replicas(parts, devices, (), inf)
        return self.with_metrics(replace(made, parts=parts, devices=devices, recomputed=recomputed))

    def with_metrics(self, made: Plan) -> Plan:
        devices = made.devices or (ANY_DEVICE,) * len(made.parts)
        metrics = part_metrics(made.partition, self.costs, self.sizes, devices, self.seconds, self.goal)
        coverage = None if self.table is None else cover(self.table, self.costs)[1]
        return replace(
            made, devices=devices, dims=self.costs.dims, costs=self.costs, coverage=coverage, metrics=metrics
        )

    def best(self, goal: _Searched, prove_s: float) -> tuple[PlanningProblem, Solution]:
        """The best solution, and its problem. For a budget layers are cut if that takes fewer parts or is needed."""
        if not isinstance(goal, Within) or self.limits.inside_layers or self.analysis.repeat is None:
            return self._feasible(goal, self.limits, prove_s)
        inside = changed(self.limits, inside_layers=True)
        try:
            whole = self._feasible(goal, self.limits, prove_s)
        except PlanError:
            return self._feasible(goal, inside, prove_s)
        if whole[1].outcome.value <= fewest_parts(self._problem(goal, inside), goal):
            return whole
        cut = self._feasible(goal, inside, prove_s)
        return cut if cut[1].outcome.value < whole[1].outcome.value else whole

    def _feasible(self, goal: _Searched, limits: Limits, prove_s: float) -> tuple[PlanningProblem, Solution]:
        """The best solution, and its problem; if it is infeasible with replicable nodes in all parts, without them."""
        problem = self._problem(goal, limits)
        try:
            return problem, self._solve(problem, goal, prove_s)
        except PlanError:
            if not (problem.replicable or problem.rewritable):
                raise
        plain = self._problem(goal, limits, with_replicable=False)
        return plain, self._solve(plain, goal, prove_s)

    def _problem(self, goal: _Searched, limits: Limits, *, with_replicable: bool = True) -> PlanningProblem:
        replicable = rewritable = frozenset[int]()
        if with_replicable and limits.recompute != "never":
            devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
            slowest = min(devices, key=lambda device: device.flops_per_s)
            run_s = dict(zip(self.graph.flow, self.seconds(slowest), strict=True))
            s_per_byte = 2 / max(device.link_bytes_per_s for device in devices)
            kept, avoided = self._kept(limits), find_nodes(self.graph, limits.avoid)
            if isinstance(goal, Across):  # what is asked for comes from one part
                names = travelling(goal, self.graph, self.costs.caches) & self.graph.producer.keys()
                kept |= {self.graph.producer[name] for name in names}
            replicable = replicable_nodes(self.graph, self.costs, run_s, s_per_byte, kept=kept, avoided=avoided)
            if not (isinstance(goal, Within) or any(device.memory_bytes for device in devices)):
                rewritable = rewritable_nodes(self.graph, self.costs, run_s, s_per_byte, kept=kept)
        return problem_of(self.analysis, self.costs, limits, self.sizes, replicable, rewritable)

    def _kept(self, limits: Limits) -> frozenset[int]:
        """Nodes that must be in one part only: they touch a cache, are pinned, or their copies give other bits."""
        pinned = find_nodes(self.graph, [pattern for pattern, _ in limits.pins])
        inexact = () if limits.recompute == "approximate" else inexact_copies(self.graph)
        return frozenset(pinned.union(inexact, *(nodes_touching(self.graph, pair) for pair in self.costs.caches)))

    def _solve(self, problem: PlanningProblem, goal: _Searched, prove_s: float) -> Solution:
        match goal:
            case Into():
                return plan_into(problem, goal, ANY_DEVICE, self.seconds(ANY_DEVICE), prove_s=prove_s)
            case Within():
                return plan_within(problem, goal, ANY_DEVICE, prove_s=prove_s)
            case Across(interleave=True):
                return plan_interleaved(problem, goal, self.seconds, prove_s=prove_s)
            case Across():
                return plan_across(problem, goal, self.seconds, prove_s=prove_s)
            case _:
                assert_never(goal)

    def _unlimited(self, goal: _Searched) -> Optimality | None:
        """How good the plan would be without pins and nodes to avoid; None if there are none."""
        if not (self.limits.pins or self.limits.avoid):
            return None
        free = changed(self.limits, pins=(), avoid=())
        return replace(self, limits=free).best(goal, 0.0)[1].outcome

    def _as_known(self, outcome: Optimality, problem: PlanningProblem) -> Optimality:
        """The outcome; nothing is proven of a value that hangs on tensors without a size, or on an order of nodes."""
        counting = self.goal.counting if isinstance(self.goal, Within) else ("work",)
        is_of_files = (isinstance(self.goal, Into) and self.goal.by in {"bytes", "layers"}) or not counting
        if self.costs.sizes.unknown and not is_of_files:
            return changed(outcome, is_optimal=False, bound=inf if outcome.unit == "tokens/s" else 0.0)
        if isinstance(self.goal, Within) and "activations" in counting and outcome.is_optimal:
            bound = fewest_parts(problem, self.goal)
            return changed(outcome, is_optimal=outcome.value <= bound, bound=bound)
        return outcome

    def _with_replicas(
        self, parts: tuple[tuple[int, ...], ...], devices: tuple[Device, ...], planned: Sequence[int], most_s: float
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[Recomputed, ...]]:
        """The parts with what they recompute, as long as it fits their memory and no part gets slower than `most_s`.

        A part that would be too slow repeats only the nodes that it was `planned` to run.
        """
        if self.limits.recompute == "never":
            return parts, ()
        kept = self._kept(self.limits)
        repeatable: dict[int, frozenset[int]] = {}
        while True:
            made, found = recompute(self.graph, parts, cache(self.prices(parts, devices, repeatable)), kept)
            drawn = self.with_metrics(Plan(self.goal, self.graph, made, devices=devices, limits=self.limits))
            busy_s = _on_device(self.goal, devices, [part.busy_s for part in drawn.metrics])
            narrowed = dict(repeatable)
            for part in (entry.part for entry in found):
                if drawn.budget_shares[part] > 1:
                    narrowed[part] = frozenset(planned if part not in repeatable else ())
                elif busy_s[part] > most_s * (1 + _TOLERANCE):
                    narrowed.setdefault(part, frozenset(planned))
            if narrowed == repeatable:
                return made, found
            repeatable.update(narrowed)

    def prices(
        self,
        parts: Sequence[Sequence[int]],
        devices: Sequence[Device],
        repeatable: Mapping[int, frozenset[int]] | None = None,
    ) -> Callable[[int], TransferPrices]:
        """For each part what repeating and sending cost; `repeatable` is what some parts may repeat at most.

        A byte takes the link of the device that sends it and the link of the one that receives it, once each. What an
        earlier part of the same device computes, and does not only repeat, costs nothing.
        """
        home = (
            {node: i for i in reversed(range(len(parts))) for node in parts[i]} if isinstance(self.goal, Across) else {}
        )
        avoided = find_nodes(self.graph, self.limits.avoid)
        unsent = frozenset(name for node in avoided for name in self.graph.nodes[node].writes)
        sizes = {name: number for name, (number, _) in self.costs.sent_bytes.items()}

        def prices_of(part: int) -> TransferPrices:
            device, sender = devices[part], devices[part - 1]
            run_s = dict(zip(self.graph.flow, self.seconds(device), strict=True))
            s_per_byte = 1 / device.link_bytes_per_s + 1 / sender.link_bytes_per_s
            made_here = (node for node, i in home.items() if i < part and devices[i] == device)
            held = {name: 0 for node in made_here for name in self.graph.nodes[node].writes}
            return TransferPrices(run_s, s_per_byte, {**sizes, **held}, unsent, (repeatable or {}).get(part))

        return prices_of


def _on_device(goal: Goal, devices: Sequence[Device], numbers: Iterable[float]) -> list[float]:
    """For each part the sum of the numbers of all parts of its device; without a cluster each part has its own."""
    hosts = [device.name if isinstance(goal, Across) else str(part) for part, device in enumerate(devices)]
    totals: defaultdict[str, float] = defaultdict(float)
    for host, number in zip(hosts, numbers, strict=True):
        totals[host] += number
    return [totals[host] for host in hosts]


def _with_memory(goal: _Searched, share: float) -> _Searched:
    """The goal with a share of its memory."""
    match goal:
        case Within():
            return changed(goal, memory_bytes=int(share * goal.memory_bytes))
        case Across():
            limits = ((device, device.memory_bytes) for device in goal.cluster.devices)
            devices = (d if size is None else changed(d, memory_bytes=int(share * size)) for d, size in limits)
            return changed(goal, cluster=changed(goal.cluster, devices=tuple(devices)))
        case _:
            return goal


def _slowest_s(goal: Goal, solution: Solution) -> float:
    """Seconds of the slowest part as planned; `inf` if the plan does not optimize time."""
    match goal:
        case Across(interleave=True):
            return solution.outcome.value
        case Across(objective="throughput" | "latency" | "decode" | "devices"):
            return max(solution.busy_s)
        case Into(by="time"):
            boundaries = pairwise(solution.found.chain.boundaries)
            return max(float(table[j, i]) for table, (i, j) in zip(solution.costs, boundaries, strict=True))
        case _:
            return inf


def check_budgets(made: Plan, file_bytes: Sequence[int]) -> None:
    """Raise a PlanError if a part needs more than its budget. `file_bytes` are the sizes of the files of each part."""
    needed = [number + counted for number, counted in zip(file_bytes, made.counted_bytes, strict=True)]
    on_device = _on_device(made.goal, made.devices, needed) if made.devices else needed
    for i, (number, budget) in enumerate(zip(on_device, made.budgets, strict=True)):
        if budget is not None and number > budget:
            raise PlanError(
                f"part {i} needs {int(number):,} bytes, but the plan allows {budget:,}",
                hint="plan again: an edited plan must keep its own budget",
            )


def check_limits(made: Plan) -> None:
    """Raise a PlanError where a plan that was not searched for (`At`, or edited) does not keep its limits."""
    graph, limits = made.graph, made.limits
    home = {node: part for part, nodes in enumerate(made.parts) for node in nodes}
    for pattern, part in limits.pins:
        for node in sorted(find_nodes(graph, [pattern])):
            if home[node] != part:
                raise PlanError(
                    f"{graph.nodes[node].name!r} is pinned to part {part}, and these cuts put it in part {home[node]}",
                    hint="cut somewhere else, or leave the pin out",
                )
    repeated = {node for block in made.partition.blocks for node in block.replicas}
    if limits.recompute != "approximate" and (inexact := repeated.intersection(inexact_copies(graph))):
        raise PlanError(
            f"{graph.nodes[min(inexact)].name!r} is repeated, and its copy need not give the same bits",
            hint="set `recompute` of `limits` to approximate, or let one part have the node",
        )
    avoided = find_nodes(graph, limits.avoid)
    for tensor in made.partition.wiring.boundary_tensors:
        if graph.producer.get(tensor) in avoided:
            raise PlanError(
                f"{tensor!r} would cross, and is to be avoided", hint="cut somewhere else, or drop --avoid for it"
            )
