"""Random models against brute force: all divisions, with all that parts may repeat, for goals of all kinds.

No plan is better than one that is called proven, or than a bound; a budget that a hint names works, and none that is
called the smallest is larger than one that works.
"""

# ruff: noqa: S311 - seeds make the same models each time, and keep no secrets

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import Analysis, Plan, PlanError
from graphcut.core.errors import GraphcutError
from graphcut.core.graph import partition
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import COUNTING, Counted, Device, run_s
from graphcut.costs.part_memory import SESSION_BYTES
from graphcut.costs.weighing import Costs, weigh
from graphcut.planning.disk_size import serialized_sizes
from graphcut.planning.goals import Across, At, Into, Limits, Within
from graphcut.planning.planner import plan
from graphcut.planning.plans import ANY_DEVICE
from graphcut.planning.predictions import block_memory, part_metrics
from graphcut.planning.predictions import counted_bytes as counted

from cases import seeded
from conftest import Draw, floats, model_of, weight

SearchedGoal = Into | Within | Across
Repeated = tuple[tuple[int, ...], ...]  #: the nodes of each part, repeated ones included.
MOST_PARTS = 3
COUNTED: tuple[tuple[Counted, ...], ...] = ((), (), ("inputs",))


def random_model(seed: int) -> ModelProto:
    """Nodes that write much or compute much, a weight that several share, outputs that are read inside."""
    draw = random.Random(seed)
    names, rows, nodes, weights = ["x"], {"x": 1}, [], {}
    for i in range(draw.randint(3, 6)):
        name, read = f"t{i}", draw.choice(names[-3:])
        kind = draw.choice(("repeat", "heavy", "shared", "shared", "add", "add", "unary"))
        rows[name] = rows[read]
        if kind == "repeat" and rows[read] == 1:  # cheap to compute, dear to send
            rows[name] = draw.choice((8, 64, 512))
            weights[f"r{i}"] = np.array([rows[name], 1], dtype=np.int64)
            nodes.append(helper.make_node("Tile", [read, f"r{i}"], [name], name=f"n{i}"))
        elif kind == "heavy":
            width = draw.choice((8, 900))
            weights |= {f"w{i}a": np.zeros((16, width), np.float32), f"w{i}b": np.zeros((width, 16), np.float32)}
            nodes.append(helper.make_node("MatMul", [read, f"w{i}a"], [f"{name}m"], name=f"n{i}m"))
            nodes.append(helper.make_node("MatMul", [f"{name}m", f"w{i}b"], [name], name=f"n{i}"))
        elif kind == "shared":
            weights["wt"] = np.zeros((16, 16), np.float32)
            nodes.append(helper.make_node("MatMul", [read, "wt"], [name], name=f"n{i}"))
        elif kind == "add":
            other = draw.choice([other for other in names if rows[read] == 1 or rows[other] in {1, rows[read]}])
            nodes.append(helper.make_node("Add", [read, other], [name], name=f"n{i}"))
            rows[name] = max(rows[read], rows[other])
        else:
            nodes.append(helper.make_node(draw.choice(("Relu", "Exp", "Tanh")), [read], [name], name=f"n{i}"))
        names.append(name)
    is_read = {name for node in nodes for name in node.input}
    ends = [name for name in names[1:] if name not in is_read or draw.random() < 0.25]
    values = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    return model_of(nodes, [floats("x", 1, 16)], [floats(name, rows[name], 16) for name in ends], values)


def divisions(analysis: Analysis, most: int, limits: Limits) -> Iterator[Repeated]:
    """All parts that can run one after another, with all that each may repeat of what earlier parts have."""
    graph = analysis.model.graph
    before = {n: {graph.producer[t] for t in graph.nodes[n].reads if t in graph.producer} for n in graph.flow}
    pinned = {node: part for node in graph.flow for name, part in limits.pins if name == graph.nodes[node].name}
    for own in homes(frozenset(graph.flow), most, before):
        if any(part >= len(own) or node not in own[part] for node, part in pinned.items()):
            continue
        choices = []
        for k, nodes in enumerate(own):
            earlier = (
                [] if limits.recompute == "never" else sorted({*itertools.chain.from_iterable(own[:k])} - {*pinned})
            )
            sets = itertools.chain.from_iterable(itertools.combinations(earlier, k) for k in range(len(earlier) + 1))
            choices.append([again for again in sets if are_read(again, {*nodes, *again}, before)])
        for repeated in itertools.product(*choices):
            yield tuple(tuple(sorted((*a, *b))) for a, b in zip(own, repeated, strict=True))


def homes(left: frozenset[int], parts: int, before: Mapping[int, set[int]]) -> Iterator[tuple[frozenset[int], ...]]:
    """The nodes that are left, in at most so many parts."""
    if not left:
        yield ()
    for size in range(1, len(left) + 1) if parts else ():
        for own in map(frozenset, itertools.combinations(sorted(left), size)):
            if all(before[node].isdisjoint(left - own) for node in own):
                yield from ((own, *rest) for rest in homes(left - own, parts - 1, before))


def are_read(again: Sequence[int], nodes: Collection[int], before: Mapping[int, set[int]]) -> bool:
    """Whether the part needs all that it repeats."""
    return set(again) <= {node for reader in nodes for node in before[reader]}


@dataclass(frozen=True)
class Figures:
    """What parts without a cluster cost, by definition: each tensor is received once, and sent once."""

    analysis: Analysis
    costs: Costs

    def __post_init__(self) -> None:
        graph, sizes = self.analysis.model.graph, serialized_sizes(self.analysis.model)
        seconds = dict(zip(graph.flow, run_s(self.costs, ANY_DEVICE), strict=True))
        flops = dict(zip(graph.flow, self.costs.flops, strict=True))
        self.__dict__.update(graph=graph, sizes=sizes, run_s=seconds, flops=flops)
        self.__dict__.update(tensor_bytes={name: number for name, (number, _) in self.costs.tensor_bytes.items()})

    def of(self, parts: Repeated) -> list[dict[str, float]]:
        graph, sizes, tensor_bytes = self.graph, self.sizes, self.tensor_bytes  # type: ignore[attr-defined]
        written = [{t for n in nodes for t in graph.nodes[n].writes} for nodes in parts]
        read = [
            {t for n in nodes for t in graph.nodes[n].reads} - own for nodes, own in zip(parts, written, strict=True)
        ]
        found, seen = [], set[str]()
        for k, nodes in enumerate(parts):
            first = written[k] - seen
            seen |= written[k]
            received = read[k].difference(graph.reads)
            sent = {t for t in first if any(t in other for other in read[k + 1 :])}
            declared = sum(sizes.declarations[t] for t in read[k])
            declared += sum(sizes.as_output(t) for t in sent | first.intersection(graph.writes))
            moved = sum(tensor_bytes[t] for t in received) + sum(tensor_bytes[t] for t in sent)
            found.append(
                {
                    "bytes": sizes.part + sum(sizes.nodes[n] for n in nodes) + sizes.shared_bytes(nodes) + declared,
                    "time": sum(self.run_s[n] for n in nodes)  # type: ignore[attr-defined]
                    + moved / ANY_DEVICE.link_bytes_per_s
                    + ANY_DEVICE.latency_s * bool(received),
                    "flops": sum(self.flops[n] for n in nodes),  # type: ignore[attr-defined]
                }
            )
        return found

    def needed(self, parts: Repeated, goal: Within) -> float:
        if not goal.counting:
            return max(part["bytes"] for part in self.of(parts))
        blocks = partition(self.analysis.model.graph, parts).blocks
        return max(counted(block_memory(block, self.costs, ANY_DEVICE), goal.counting) for block in blocks)


def least(analysis: Analysis, costs: Costs, goal: SearchedGoal, limits: Limits) -> float:
    """The least value of all plans, on all devices; of `Within` of any number of bytes the least number of parts."""
    if isinstance(goal, Across):
        return min(
            map(minimized_by(analysis, costs, goal), divisions(analysis, len(goal.cluster.devices), limits)),
            default=np.inf,
        )
    figures, best = Figures(analysis, costs), np.inf
    for parts in divisions(analysis, goal.parts if isinstance(goal, Into) else MOST_PARTS, limits):
        if isinstance(goal, Into):
            if len(parts) == goal.parts:
                best = min(best, max(part[goal.by] for part in figures.of(parts)))
        elif isinstance(goal, Within) and len(parts) < best and figures.needed(parts, goal) <= goal.memory_bytes:
            best = len(parts)
    return best


def minimized_by(analysis: Analysis, costs: Costs, goal: Across) -> Callable[[Repeated], float]:
    """The least value of parts of a cluster, on the devices whose memory they fit."""
    graph, sizes = analysis.model.graph, serialized_sizes(analysis.model)

    def value(parts: Repeated) -> float:
        made, best = partition(graph, parts), np.inf
        for chosen in itertools.permutations(goal.cluster.devices, len(parts)):
            metrics = part_metrics(made, costs, sizes, chosen, lambda device: run_s(costs, device), goal)
            one = Plan(goal, graph, parts, devices=chosen, costs=costs, metrics=metrics)
            if max(one.budget_shares) <= 1:
                best = min(best, one.minimized(np.inf))
        return best

    return value


def random_goal(analysis: Analysis, costs: Costs, draw: random.Random) -> SearchedGoal:
    """A goal; budgets are close to the sizes of parts."""
    kind = draw.choice(("into", "into", "within", "within", "across"))
    if kind == "into":
        return Into(draw.choice((2, 2, 3)), draw.choice(("time", "time", "bytes", "flops")))
    whole = plan(analysis, Into(1, "bytes"), costs=costs)
    if kind == "within":
        counting, share = draw.choice(COUNTED), draw.choice((0.3, 0.45, 0.55, 0.7, 0.9))
        held, least = whole.metrics[0].written_bytes, 0
        if counting:
            held, least = counted(whole.memory[0], counting), SESSION_BYTES
        jitter = draw.randint(-150, 150) + 64 * draw.choice((0, 8, 64)) * bool(counting)
        return Within(max(1, least + int((held - least) * share) + jitter), counting)
    fast, slow = draw.choice((1e11, 3e10)), draw.choice((1e11, 1e9))
    memory = draw.choice((None, SESSION_BYTES + int((whole.memory[0].needs - SESSION_BYTES) * draw.choice((0.6, 0.8)))))
    devices = (
        Device(name="a", flops_per_s=fast, memory_bytes=memory),
        Device(name="b", flops_per_s=slow, memory_bytes=memory),
    )
    cluster = Cluster(devices=devices, overlap=draw.choice(("all", "none")))
    return Across(
        cluster, draw.choice(("throughput", "latency", "decode", "bytes", "devices")), draw.choice((1, 2)), ranks=1
    )


def minimized(made: Plan) -> tuple[float, float]:
    """Value and bound of what the goal minimizes."""
    assert made.outcome is not None
    value, bound = made.outcome.value, made.outcome.bound
    if made.outcome.unit == "tokens/s":
        return 1 / value, 0.0 if bound is None else 1 / bound
    return value, -np.inf if bound is None else bound


@seeded(50, 98, 143, 199, 227, 314, 447, together=5)  # 98, 199, 227: budgets; the others: plans called proven
def test_no_plan_beats_a_bound_or_a_budget_that_is_named(seed: int, opened: Draw) -> None:
    draw = random.Random(seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    goal = random_goal(analysis, costs, draw)
    limits = Limits(inside_layers=True, recompute=draw.choice(("auto", "auto", "never")))
    assert_no_plan_is_better(analysis, costs, goal, limits)


@seeded(10, 112, together=6)  # 112: a budget of memory that was called the smallest
def test_the_same_with_pins_with_all_memory_counted_and_on_three_devices(seed: int, opened: Draw) -> None:
    draw = random.Random(1000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs, graph = weigh(analysis.model), analysis.model.graph
    goal = random_goal(analysis, costs, draw)
    if isinstance(goal, Within):
        counting, share = draw.choice(((), ("activations",), COUNTING)), draw.choice((0.3, 0.5, 0.7, 0.9))
        held = counted(plan(analysis, Into(1, "bytes"), costs=costs).memory[0], counting)
        goal = Within(held - int((held - SESSION_BYTES) * (1 - share)), counting)
    elif isinstance(goal, Across) and draw.random() < 0.5:
        third = replace(goal.cluster.devices[0], name="c", flops_per_s=5e10)
        goal = replace(goal, cluster=replace(goal.cluster, devices=(*goal.cluster.devices, third)))
    pins = tuple((graph.nodes[node].name, draw.randrange(2)) for node in draw.sample(graph.flow, draw.randint(0, 2)))
    limits = Limits(pins=pins, inside_layers=True, recompute=draw.choice(("auto", "auto", "never")))
    if isinstance(goal, Across):
        goal = replace(goal, cluster=replace(goal.cluster, origin=draw.choice((None, "a"))))
    assert_no_plan_is_better(analysis, costs, goal, limits)


@seeded(3, 251, 1663, together=5)  # three parts that were called the fewest of two
def test_no_plan_of_fewer_parts_keeps_a_budget_of_all_memory_than_one_that_is_proven(seed: int, opened: Draw) -> None:
    """Parts that take more than was counted are searched for once more, with less memory."""
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    held = plan(analysis, Into(1, "bytes"), costs=costs).memory[0].needs - SESSION_BYTES
    goal = Within(SESSION_BYTES + int(held * random.Random(seed).uniform(0.3, 1)), COUNTING)
    assert_no_plan_is_better(analysis, costs, goal, Limits(inside_layers=True))


@seeded(2, 6, 11, together=8)
def test_no_plan_beats_a_bound_of_the_exact_solver_where_not_all_ways_to_cut_are_searched(
    seed: int, opened: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of large models: what the solver bounds are plans in which each node is in one part."""
    monkeypatch.setattr("graphcut.solving.search.ideal_tables", lambda *_: None)
    draw = random.Random(5000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs = weigh(analysis.model)
    goal = random_goal(analysis, costs, draw)
    assert_no_plan_is_better(analysis, costs, goal, Limits(inside_layers=True), prove_s=10.0)


@seeded(10, 322, 341, 34317, 39288, together=12)
def test_no_named_cuts_beat_the_bound_of_plans_and_none_are_worse_for_what_they_repeat(seed: int, opened: Draw) -> None:
    draw = random.Random(2000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs, graph = weigh(analysis.model), analysis.model.graph
    names = [graph.nodes[node].name for node in sorted(draw.sample(graph.flow[:-1], draw.choice((1, 2))))]
    try:
        never, made = (
            plan(analysis, At(names), costs=costs, limits=Limits(recompute=how)) for how in ("never", "auto")
        )
    except GraphcutError:
        return
    slowest, without = (max(part.busy_s for part in one.metrics) for one in (made, never))
    best = plan(analysis, Into(len(made.parts)), costs=costs, limits=Limits(inside_layers=True))
    assert minimized(best)[1] <= slowest * (1 + 1e-9), names
    if len(never.parts) == len(made.parts):
        assert slowest <= without * (1 + 1e-9), names


@seeded(6, 9, 15, together=8)
def test_cuts_that_are_suggested_instead_keep_pins_and_budgets_and_are_in_their_order(seed: int, opened: Draw) -> None:
    draw = random.Random(3000 + seed)
    analysis = graphcut.analyze(opened(random_model(seed)))
    costs, graph = weigh(analysis.model), analysis.model.graph
    held = plan(analysis, Into(1, "bytes"), costs=costs).metrics[0].written_bytes
    goal = draw.choice((Into(3), Within(int(held * draw.choice((0.3, 0.5, 0.7))), ())))
    pins = tuple((graph.nodes[node].name, draw.randrange(2)) for node in draw.sample(graph.flow, draw.randrange(2)))
    try:
        reasons = plan(analysis, goal, costs=costs, limits=Limits(pins=pins, inside_layers=True)).reasons
    except GraphcutError:
        return
    for cut, reason in enumerate(reasons):
        for other in reason.alternatives:
            names = [one.chosen.after for one in reasons]
            names[cut] = other.after
            order = [graph.node_index[name] for name in names]
            assert order == sorted({*order}), names
            ways = [
                plan(analysis, At(names), costs=costs, limits=Limits(pins, recompute=how)) for how in ("auto", "never")
            ]
            largest = min(max(part.written_bytes for part in named.metrics) for named in ways)
            assert isinstance(goal, Into) or largest <= goal.memory_bytes, names


def test_a_part_without_room_for_all_that_is_cheap_to_repeat_repeats_what_fits(opened: Draw) -> None:
    """`r`, of 1 MiB, and `t`, of 128 KiB, take longer to send than to compute, and both parts read them.

    The first part computes both. The second one has no room for the weights of `t` beside its own, of 1.25 MiB: it
    repeats `r` and receives `t`. With each node in one part, the cut would be elsewhere, so that nobody sends `r`.
    """
    nodes = [
        helper.make_node("Expand", ["s", "square"], ["r"], "repeated"),
        helper.make_node("MatMul", ["v", "wt"], ["t"], "sent"),
        helper.make_node("Gemm", ["x", "r", "t"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "r"], ["b"], "second"),
        helper.make_node("Sum", ["b", "t", "wz"], ["z"], "heavy"),
        helper.make_node("ReduceMax", ["z"], ["y"], "last", axes=[0], keepdims=0),
    ]
    inputs = [floats("x", 64, 512), floats("v", 64, 98), floats("s", 1, 512)]
    weights = [
        weight("wt", 98, 512),
        weight("wz", 10, 64, 512),
        numpy_helper.from_array(np.array([512, 512]), "square"),
    ]
    analysis = graphcut.analyze(opened(model_of(nodes, inputs, [floats("y", 64, 512)], weights)))
    near = Device(name="a", memory_bytes=3600 << 10, flops_per_s=1e9, link_bytes_per_s=2.15e7, latency_s=0)
    goal = Across(Cluster(devices=(near, replace(near, name="b")), overlap="none"), ranks=1)
    costs, limits = weigh(analysis.model), Limits(inside_layers=True)
    made = plan(analysis, goal, costs=costs, limits=limits)
    assert [analysis.model.graph.names(part) for part in made.parts] == [
        ("repeated", "sent", "first"),
        ("repeated", "second", "heavy", "last"),
    ]
    assert minimized(made)[0] == pytest.approx(least(analysis, costs, goal, limits))


def assert_no_plan_is_better(
    analysis: Analysis, costs: Costs, goal: SearchedGoal, limits: Limits, *, prove_s: float = 0.0
) -> None:
    try:
        made = plan(analysis, goal, costs=costs, limits=limits, prove_s=prove_s)
    except PlanError as error:
        if "pinned to part" in str(error):
            assert next(divisions(analysis, MOST_PARTS, limits), None) is None, limits.pins
        elif isinstance(goal, Within):
            assert_budget_is_right(analysis, costs, goal, limits, error)
        return
    if len(made.parts) > MOST_PARTS:
        return
    value, bound = minimized(made)
    best = least(analysis, costs, goal, limits)
    assert best <= value * (1 + 1e-9), (goal, "brute force has this plan, too")
    assert bound <= best * (1 + 1e-6), (goal, limits, value, bound, best)
    if made.outcome is not None and made.outcome.is_optimal:
        assert value <= best * (1 + 1e-6), (goal, limits, value, bound, best)
        assert value == pytest.approx(bound), goal


def assert_budget_is_right(analysis: Analysis, costs: Costs, goal: Within, limits: Limits, error: PlanError) -> None:
    """The budget that a hint names works; if it is called the smallest, no plan needs less."""
    figures = Figures(analysis, costs)
    if "keeps these pins" in str(error):
        assert next(divisions(analysis, MOST_PARTS, limits), None) is None, limits.pins
        return
    named = [int(number) for number in re.findall(r"`Within\((\d+)\)`", error.hint or "")]
    assert len(named) == 1, error.hint
    plan(analysis, Within(named[0], goal.counting), costs=costs, limits=limits)
    is_called_smallest = "the smallest budget" in error.hint
    if "activations" in goal.counting:  # nobody has tried all orders of the nodes of a part
        assert not is_called_smallest, error.hint
    elif limits.recompute == "never":
        assert is_called_smallest, error.hint
    if is_called_smallest:
        smallest = min(figures.needed(parts, goal) for parts in divisions(analysis, MOST_PARTS, limits))
        assert named[0] <= smallest, error.hint
