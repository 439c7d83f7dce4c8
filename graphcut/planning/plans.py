"""Plans: which node goes into which part, on which device, at what predicted cost, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf
from typing import Final

from msgspec.structs import replace as changed

from ..analysis.cut_points import Analysis, AnalysisLike, analyze
from ..core.errors import PlanError, UsageError
from ..core.graph import Graph, Partition, partition
from ..core.product import Product, short_repr
from ..core.units import count, size
from ..costs.caches import DecoderProfile, decoder_sizes, profile_dims
from ..costs.device import Device
from ..costs.matching import Coverage, cover
from ..costs.tables import CostTable
from ..costs.weighing import Costs, weigh
from ..loading.model import Model
from .by_goal.cut_at_nodes import parts_at
from .by_goal.output_heads import parts_of_heads
from .goals import Across, At, Goal, Heads, Into, Limits, Within, check_goal
from .node_names import find_nodes
from .planner import ANY_DEVICE, Planner, SearchedGoal
from .predictions import PartMetrics
from .results import LayerChoice, Optimality, Reason, reasons
from .solver.recompute import Recomputed, repeated

_MOST_IN_REPR: Final = 6


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
    outcome: Optimality | None = None  #: how good it is; None for `At` and `Heads`.
    unlimited: Optimality | None = None  #: the same without pins and nodes to avoid, if there are any.
    layers: LayerChoice | None = None  #: whether it cuts repeated layers, if that was left open.
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
        dims = {**model.dims, **default_dims(analysis, goal)}
        parts = tuple(parts_at(model.graph, model.tensors, model.with_dims(dims).tensor_bytes, goal))
        made = Plan(goal, model.graph, parts, limits=limits, dims=dims, model=model)
        check_limits(made)
        return made
    costs = costs or weigh(model, default_dims(analysis, goal))
    if table is not None and not cover(table, costs)[1].matched:
        raise UsageError(
            f"the cost model matched no node of {model.path.name}",
            hint=f"its first row is called {table.rows[0].module!r}" if table.rows else "it has no rows",
        )
    planner = Planner(analysis, goal, limits, costs, table)
    return _heads(planner, goal) if isinstance(goal, Heads) else _searched(planner, goal, prove_s)


def default_dims(
    analysis: Analysis, goal: Goal | None = None, profile: DecoderProfile | None = None, tokens: int | None = None
) -> Mapping[str, int]:
    """Sizes for a decoder, on top of those that the model was loaded with; empty for other models.

    By default a prompt of 512 tokens, for the objective `decode` one token with 512 in the cache. A UsageError where a
    profile or a number of tokens is given and the model is not a decoder.
    """
    if profile is None and tokens is None and decoder_sizes(analysis.model) is None:
        return {}
    is_decoding = isinstance(goal, Across) and goal.objective == "decode"
    default: DecoderProfile = "decode" if is_decoding else "prefill"
    return profile_dims(analysis.model, profile or default, 512 if tokens is None else tokens)


def with_metrics(analysis: Analysis, made: Plan, costs: Costs) -> Plan:
    """A plan without metrics (for `At`, or edited) with those of its parts, and with what they recompute."""
    planner = Planner(analysis, made.goal, made.limits, costs, None)
    prices = cache(planner.prices(made.devices or (ANY_DEVICE,) * len(made.parts)))
    return replace(_predicted(planner, made), recomputed=repeated(made.graph, made.parts, prices))


def _searched(planner: Planner, goal: SearchedGoal, prove_s: float) -> Plan:
    best, outcome, layers = planner.best(goal, prove_s)
    made = Plan(
        goal,
        planner.graph,
        best.parts,
        devices=best.solution.devices,
        limits=planner.limits,
        outcome=_as_known(planner, outcome),
        unlimited=_unlimited(planner, goal),
        layers=layers,
        front=best.solution.front,
        recomputed=best.recomputed,
        reasons=reasons(best.solution, best.problem),
        model=planner.analysis.model,
    )
    return _predicted(planner, made)


def _heads(planner: Planner, goal: Heads) -> Plan:
    parts = parts_of_heads(planner.graph, goal)
    made = Plan(goal, planner.graph, parts, limits=planner.limits, model=planner.analysis.model)
    check_limits(made)
    devices = (ANY_DEVICE,) * len(parts)
    parts, recomputed = planner.with_replicas(parts, devices, (), inf)
    return _predicted(planner, replace(made, parts=parts, devices=devices, recomputed=recomputed))


def _predicted(planner: Planner, made: Plan) -> Plan:
    """The plan with metrics, and with what they were computed from."""
    devices, costs = made.devices or (ANY_DEVICE,) * len(made.parts), planner.costs
    metrics = planner.metrics(made.partition, devices)
    coverage = None if planner.table is None else cover(planner.table, costs)[1]
    return replace(made, devices=devices, dims=costs.dims, costs=costs, coverage=coverage, metrics=metrics)


def _as_known(planner: Planner, outcome: Optimality) -> Optimality:
    """The outcome; nothing is proven of a value that hangs on tensors without a size."""
    goal = planner.goal
    is_of_files = isinstance(goal, Into) and goal.by in {"bytes", "layers"}
    if not planner.costs.unsized or is_of_files or (isinstance(goal, Within) and not goal.counting):
        return outcome
    return changed(outcome, is_optimal=False, bound=inf if outcome.unit == "tokens/s" else 0.0)


def _unlimited(planner: Planner, goal: SearchedGoal) -> Optimality | None:
    """How good the plan would be without pins and nodes to avoid; None if there are none."""
    if not (planner.limits.pins or planner.limits.avoid):
        return None
    free = changed(planner.limits, pins=(), avoid=())
    return replace(planner, limits=free).best(goal, 0.0)[1]


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
    avoided = find_nodes(graph, limits.avoid)
    for tensor in made.partition.wiring.boundary_tensors:
        if graph.producer.get(tensor) in avoided:
            raise PlanError(
                f"{tensor!r} would cross, and is to be avoided", hint="cut somewhere else, or drop --avoid for it"
            )
