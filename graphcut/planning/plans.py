"""A plan: which node goes into which part, on which device, at what predicted cost, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from math import inf
from typing import Final, assert_never

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis, AnalysisLike, analyze
from ..core.errors import PlanError, UsageError
from ..core.graph import Graph, Partition, partition
from ..core.product import Product
from ..costs.caches import DecoderProfile, decoder_sizes, nodes_touching, profile_dims
from ..costs.device import Device, run_s
from ..costs.matching import Coverage, apply_table, cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from .by_goal.cluster_mapping import plan_across
from .by_goal.cut_at_nodes import parts_at
from .by_goal.memory_budget import fewest_parts, plan_within
from .by_goal.output_heads import parts_of_heads
from .by_goal.part_count import plan_into
from .cluster import Cluster
from .disk_size import SerializedSizes, serialized_sizes
from .explanations import Reason, reasons
from .goals import Across, At, Goal, Heads, Into, Limits, Within
from .node_names import find_nodes
from .predictions import PartMetrics, part_metrics
from .problem import PlanningProblem, problem_of
from .replicable import replicable_nodes
from .results import Optimality, Solution
from .solver.recompute import Recomputed, TransferPrices, recompute, repeated

_SLACK: Final = 1e-9
"""Times that are the same but for the order of additions."""

ANY_DEVICE: Final = Device(name="any")
"""What a part is thought to run on where no cluster is given: a small computer in a wired network."""


@dataclass(frozen=True, repr=False)
class Plan(Product):
    """An order of the nodes with bars in it.

    Attributes:
        goal: what was wanted.
        graph: the graph that is cut.
        parts: the flowing nodes of each part, in an order in which the parts can run. A node that stands in several
            rows has its home in the first, and is computed again in the others.
        devices: the device of each part; empty for goals that name places.
        limits: what constrained it.
        dims: the numbers that sizes were evaluated for.
        costs: what nodes weigh for these; None for goals that name places.
        coverage: what of a cost model fitted the model, where one was given.
        outcome: how good it is, before anything is recomputed; None for goals that name places.
        unlimited: the same without pins and what to avoid, where there are any.
        front: see `Solution.front`.
        recomputed: what parts compute for themselves instead of receiving it.
        metrics: what each part takes; empty for goals that name places.
        reasons: why each cut is where it is.
        model: the model that is cut, so that a notebook can draw it; None for a plan that was put together by hand.
    """

    goal: Goal
    graph: Graph
    parts: tuple[tuple[int, ...], ...]
    devices: tuple[Device, ...] = ()
    limits: Limits = field(default_factory=Limits)
    dims: Mapping[str, int] = field(default_factory=dict)
    costs: Costs | None = None
    coverage: Coverage | None = None
    outcome: Optimality | None = None
    unlimited: Optimality | None = None
    front: tuple[tuple[float, float], ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    metrics: tuple[PartMetrics, ...] = ()
    reasons: tuple[Reason, ...] = ()
    model: Model | None = field(default=None, repr=False, compare=False)

    @cached_property
    def partition(self) -> Partition:
        """The parts as blocks of nodes, and the links between them."""
        return partition(self.graph, self.parts)

    @property
    def reached(self) -> float | None:
        """What the finished plan comes to, recomputing included, in the unit of `outcome`; None for what is no time."""
        busy = [figures.busy_s for figures in self.metrics]
        match self.goal:
            case Into(by="time"):
                return max(busy, default=None)
            case Across(objective="throughput"):
                return max(busy, default=None)
            case Across(objective="latency"):
                return sum(busy)
            case Across(objective="decode", in_flight=in_flight) if busy:
                return 1 / max(sum(busy) / in_flight, *busy)
            case _:
                return None


def plan(
    source: AnalysisLike,
    goal: Goal,
    *,
    limits: Limits | None = None,
    costs: Costs | None = None,
    table: CostTable | None = None,
    prove_s: float = 0.0,
) -> Plan:
    """The best cut of a model that meets `goal`. The same arguments give the same plan.

    Args:
        source: the analysis of the model, the model, or its path.
        goal: what is wanted.
        limits: what constrains it.
        costs: what nodes weigh, for the sizes that count; without it for `default_dims`.
        table: a cost model whose figures replace computed ones.
        prove_s: how long the exact solver may take, where the search can't tell how good its plan is.

    Raises:
        UsageError: the goal or the limits name what the model doesn't have, or would leave a part empty.
        PlanError: no cut meets the goal; the hint says what would.
    """
    analysis = analyze(source)
    model, limits = analysis.model, limits or Limits()
    if not model.graph.flow:
        raise PlanError(
            f"{model.path.name} has nothing to cut: no node depends on an input", hint="run the model as it is"
        )
    if isinstance(goal, At):
        rows = tuple(parts_at(model.graph, model.tensors, model.tensor_bytes, goal))
        made = Plan(goal, model.graph, rows, limits=limits, dims=model.dims, model=model)
        check_limits(made)
        return made
    costs = costs or weigh(model, default_dims(analysis, goal))
    if table is not None and not cover(table, costs)[1].matched:
        raise UsageError(
            f"the cost model matched no node of {model.path.name}",
            hint=f"its first row is called {table.rows[0].module!r}" if table.rows else "it has no rows",
        )
    study = _PlanContext(analysis, goal, limits, costs, table)
    return study.heads(goal) if isinstance(goal, Heads) else study.planned(goal, prove_s)


def default_dims(
    analysis: Analysis, goal: Goal, profile: DecoderProfile | None = None, tokens: int | None = None
) -> Mapping[str, int]:
    """The sizes that a goal is planned for, on top of those that the model was opened with: see `decoder_dims`.

    For the objective `decode` those of one token, if no profile is named.
    """
    is_decoding = isinstance(goal, Across) and goal.objective == "decode"
    if is_decoding and profile is None and decoder_sizes(analysis.model) is not None:
        profile = "decode"
    return decoder_dims(analysis, profile, tokens)


def decoder_dims(
    analysis: Analysis, profile: DecoderProfile | None = None, tokens: int | None = None
) -> Mapping[str, int]:
    """Sizes for a decoder: of a prompt of 512 tokens, or as the profile and the number say. Nothing for other models.

    Raises:
        UsageError: a profile or a number is given, and the model is no decoder.
    """
    if profile is None and tokens is None and decoder_sizes(analysis.model) is None:
        return {}
    return profile_dims(analysis.model, profile or "prefill", 512 if tokens is None else tokens)


def with_metrics(analysis: Analysis, made: Plan, costs: Costs, table: CostTable | None = None) -> Plan:
    """A plan that has no figures (it names places, or was edited) with those of its parts, and what they recompute."""
    study = _PlanContext(analysis, made.goal, made.limits, costs, table)
    return study.with_recomputed(study.with_metrics(made))


@dataclass(frozen=True)
class _PlanContext:
    """One planning: everything that its steps look at."""

    analysis: Analysis
    goal: Goal
    limits: Limits
    costs: Costs
    table: CostTable | None

    @property
    def graph(self) -> Graph:
        return self.analysis.model.graph

    @property
    def cluster(self) -> Cluster | None:
        return self.goal.cluster if isinstance(self.goal, Across) else None

    @cached_property
    def written(self) -> SerializedSizes:
        return serialized_sizes(self.analysis.model)

    @cached_property
    def seconds(self) -> Callable[[Device], Sequence[float]]:
        """What it takes on a device for each flowing node."""
        table = self.table
        if table is None:
            return cache(lambda device: run_s(self.costs, device))
        return cache(lambda device: apply_table(self.costs, table, device)[0])

    def planned(self, goal: Into | Within | Across, prove_s: float) -> Plan:
        task, choice = self.best(goal, prove_s)
        most_s = _slowest(goal, choice)
        rows, recomputed = self._with_replicas(task.parts(choice.found.parts), choice.devices, task.cheap, most_s)
        made = Plan(
            goal,
            self.graph,
            rows,
            devices=choice.devices,
            limits=self.limits,
            outcome=choice.outcome,
            unlimited=self._unlimited(goal),
            front=choice.front,
            recomputed=recomputed,
            reasons=reasons(choice, task),
            model=self.analysis.model,
        )
        return self.with_metrics(made)

    def heads(self, goal: Heads) -> Plan:
        rows = parts_of_heads(self.graph, goal)
        check_limits(Plan(goal, self.graph, rows, limits=self.limits))
        devices = (ANY_DEVICE,) * len(rows)
        rows, recomputed = self._with_replicas(rows, devices, (), inf)
        model = self.analysis.model
        made = Plan(goal, self.graph, rows, devices=devices, limits=self.limits, recomputed=recomputed, model=model)
        return self.with_metrics(made)

    def with_metrics(self, made: Plan) -> Plan:
        devices = made.devices or (ANY_DEVICE,) * len(made.parts)
        figures = part_metrics(made.partition, self.costs, self.written, devices, self.seconds, self.cluster)
        coverage = None if self.table is None else cover(self.table, self.costs)[1]
        return replace(
            made, devices=devices, dims=self.costs.dims, costs=self.costs, coverage=coverage, metrics=figures
        )

    def with_recomputed(self, made: Plan) -> Plan:
        """What its rows say that parts compute for themselves."""
        return replace(made, recomputed=repeated(self.graph, made.parts, cache(self._pricing(made.devices))))

    def best(self, goal: Into | Within | Across, prove_s: float) -> tuple[PlanningProblem, Solution]:
        """The task and its best plan. For a budget layers are cut where that takes fewer parts, or is the only way."""
        if not isinstance(goal, Within) or self.limits.inside_layers or self.analysis.repeat is None:
            return self._possible(goal, self.limits, prove_s)
        inside = changed(self.limits, inside_layers=True)
        try:
            task, whole = self._possible(goal, self.limits, prove_s)
        except PlanError:
            return self._possible(goal, inside, prove_s)
        if whole.outcome.value <= fewest_parts(self._task(goal, inside), goal):
            return task, whole
        finer, cut = self._possible(goal, inside, prove_s)
        return (finer, cut) if cut.outcome.value < whole.outcome.value else (task, whole)

    def _possible(
        self, goal: Into | Within | Across, limits: Limits, prove_s: float
    ) -> tuple[PlanningProblem, Solution]:
        """The task and its best plan; where that is impossible with cheap values in all parts, without them."""
        task = self._task(goal, limits)
        try:
            return task, self._chosen(task, goal, prove_s)
        except PlanError:
            if not task.cheap:
                raise
        plain = self._task(goal, limits, with_cheap=False)
        return plain, self._chosen(plain, goal, prove_s)

    def _task(self, goal: Into | Within | Across, limits: Limits, *, with_cheap: bool = True) -> PlanningProblem:
        """What is planned; what every part may compute for itself is left out of it."""
        cheap = frozenset[int]()
        if with_cheap and limits.recompute == "auto":
            devices = goal.cluster.devices if isinstance(goal, Across) else (ANY_DEVICE,)
            slowest = min(devices, key=lambda device: device.flops_per_s)
            run = dict(zip(self.graph.flow, self.seconds(slowest), strict=True))
            s_per_byte = 2 / max(device.link_bytes_per_s for device in devices)
            cheap = replicable_nodes(
                self.graph, self.costs, run, s_per_byte, kept=self._single(limits), avoided=self._avoided(limits)
            )
        whole_layers = not limits.inside_layers
        return problem_of(self.analysis, self.costs, limits, self.written, whole_layers=whole_layers, cheap=cheap)

    def _single(self, limits: Limits) -> frozenset[int]:
        """Nodes that stand in one part alone: they touch a cache, or are pinned."""
        named = find_nodes(self.graph, [pattern for pattern, _ in limits.pins])
        return frozenset(named.union(*(nodes_touching(self.graph, pair) for pair in self.costs.caches)))

    def _avoided(self, limits: Limits) -> set[int]:
        return find_nodes(self.graph, limits.avoid) if limits.avoid else set()

    def _chosen(self, task: PlanningProblem, goal: Into | Within | Across, prove_s: float) -> Solution:
        match goal:
            case Into():
                return plan_into(task, goal, ANY_DEVICE, self.seconds(ANY_DEVICE), prove_s=prove_s)
            case Within():
                return plan_within(task, goal, ANY_DEVICE, prove_s=prove_s)
            case Across():
                return plan_across(task, goal, self.seconds, prove_s=prove_s)
            case _:
                assert_never(goal)

    def _unlimited(self, goal: Into | Within | Across) -> Optimality | None:
        """How good the plan would be without pins and what to avoid."""
        if not (self.limits.pins or self.limits.avoid):
            return None
        free = changed(self.limits, pins=(), avoid=())
        return _PlanContext(self.analysis, goal, free, self.costs, self.table).best(goal, 0.0)[1].outcome

    def _with_replicas(
        self, rows: tuple[tuple[int, ...], ...], devices: Sequence[Device], cheap: Sequence[int], most_s: float
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[Recomputed, ...]]:
        """The rows with what parts recompute, as far as their memory allows and no part gets slower than `most_s`.

        A part that would be too slow repeats no more than the `cheap` nodes, which it was planned to compute.
        """
        if self.limits.recompute == "never":
            return rows, ()
        kept = self._single(self.limits)
        repeatable: dict[int, frozenset[int]] = {}
        while True:
            made, found = recompute(self.graph, rows, cache(self._pricing(devices, repeatable)), kept)
            blocks = partition(self.graph, made)
            figures = part_metrics(blocks, self.costs, self.written, devices, self.seconds, self.cluster)
            narrowed = dict(repeatable)
            for part in (entry.part for entry in found):
                if not self._fits(devices[part], figures[part]):
                    narrowed[part] = frozenset(cheap if part not in repeatable else ())
                elif figures[part].busy_s > most_s * (1 + _SLACK):
                    narrowed.setdefault(part, frozenset(cheap))
            if narrowed == repeatable:
                return made, found
            repeatable.update(narrowed)

    def _pricing(
        self, devices: Sequence[Device], repeatable: Mapping[int, frozenset[int]] | None = None
    ) -> Callable[[int], TransferPrices]:
        """For each part what it costs to repeat and to be sent; `repeatable` tells what some may repeat at most."""
        unsent = frozenset(name for node in self._avoided(self.limits) for name in self.graph.nodes[node].writes)
        sizes = {name: number for name, (number, _) in self.costs.tensor_bytes.items()}

        def prices(part: int) -> TransferPrices:
            device, before = devices[part], devices[part - 1]
            run = dict(zip(self.graph.flow, self.seconds(device), strict=True))
            sending = 1 / device.link_bytes_per_s + 1 / before.link_bytes_per_s
            return TransferPrices(run, sending, sizes, unsent, (repeatable or {}).get(part))

        return prices

    def _fits(self, device: Device, part: PartMetrics) -> bool:
        """Has a part that recomputes still room? Never says yes where it has not."""
        if isinstance(self.goal, Within):
            counted = part.activation_bytes + part.cache_bytes if self.goal.counting else 0
            return part.written_bytes + counted <= self.goal.memory_bytes
        needed = part.written_bytes + part.activation_bytes + part.cache_bytes
        return device.memory_bytes is None or needed <= device.memory_bytes


def _slowest(goal: Goal, choice: Solution) -> float:
    """Seconds of the part that was planned to be the slowest; `inf` where the plan was not for time."""
    if not (isinstance(goal, Into) and goal.by == "time") and not (
        isinstance(goal, Across) and goal.objective != "bytes"
    ):
        return inf
    climb = choice.found.climb
    return max(float(t[high, low]) for t, (low, high) in zip(choice.costs, pairwise(climb.rungs), strict=True))


def check_limits(made: Plan) -> None:
    """Pins and what to avoid, for a plan that leaves nothing to choose: it names places, or was edited.

    Raises:
        PlanError: a limit does not hold.
    """
    graph, limits = made.graph, made.limits
    home = {node: part for part, row in enumerate(made.parts) for node in row}
    for pattern, part in limits.pins:
        for node in sorted(find_nodes(graph, [pattern])):
            if home[node] != part:
                raise PlanError(
                    f"{graph.nodes[node].name!r} stands in part {home[node]} then, and is pinned to part {part}",
                    hint="cut somewhere else, or leave the pin out",
                )
    avoided = find_nodes(graph, limits.avoid) if limits.avoid else set()
    for tensor in made.partition.wiring.boundary_tensors:
        if graph.producer.get(tensor) in avoided:
            raise PlanError(
                f"{tensor!r} would cross, and is to be avoided", hint="cut somewhere else, or drop --avoid for it"
            )
