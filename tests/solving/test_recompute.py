"""Recompute or transfer: the least cost of all choices, and parts that still give the same answers."""

# ruff: noqa: S311 - seeds make the same graphs each time, and keep no secrets

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import graphcut
from graphcut import demos, verify
from graphcut.core.graph import Graph, Node, Weight, partition
from graphcut.costs.cluster import Cluster
from graphcut.costs.device import Device, run_s
from graphcut.costs.weighing import weigh
from graphcut.planning.finishing import Finisher
from graphcut.planning.goals import Across, Heads, Into, Limits
from graphcut.planning.planner import plan
from graphcut.planning.plans import ANY_DEVICE
from graphcut.planning.replicable import replicable_nodes
from graphcut.solving.recompute import Recomputed, TransferPrices, least_s, recompute, repeated

from cases import FUZZ, crossed, each, seeded
from conftest import Draw, floats, model_of
from control_flow import write_model

HEAVY = (1 << 20) + 1
"""Bytes of a weight that may not be held twice."""


def node(writes: str, *reads: str, weights: Sequence[str] = (), is_stateful: bool = False) -> Node:
    """A node called like its first tensor."""
    made = tuple(writes.split())
    return Node(
        made[0].upper(), "Op", reads, made, tuple(weights), (), is_constant=False, is_stateful=is_stateful, module=""
    )


def graph_of(*nodes: Node, gives: Sequence[str] = (), weights: Mapping[str, int] | None = None) -> Graph:
    """What nobody writes is an input of the model; what nobody reads is an output, and so is what it `gives`."""
    read = dict.fromkeys(name for n in nodes for name in n.reads)
    written = dict.fromkeys(name for n in nodes for name in n.writes)
    ends = dict.fromkeys([*(name for name in written if name not in read), *gives])
    held = {name: Weight(name, number, is_default=False) for name, number in (weights or {}).items()}
    return Graph(nodes, held, tuple(name for name in read if name not in written), tuple(ends))


def flat(graph: Graph, s_per_byte: float = 1.0, run_s: float = 1.0, size: int = 10) -> TransferPrices:
    """Every node takes as long, and every tensor as many bytes."""
    names = {name for n in graph.nodes for name in (*n.reads, *n.writes)}
    return TransferPrices(dict.fromkeys(graph.flow, run_s), s_per_byte, dict.fromkeys(names, size))


@dataclass(frozen=True)
class Case:
    """A random graph in parts, what things cost, and which nodes must not be repeated."""

    graph: Graph
    rows: tuple[tuple[int, ...], ...]
    prices: TransferPrices
    kept: frozenset[int]

    @classmethod
    def of(cls, draw: random.Random) -> Case:
        inputs, nodes = ["x", "ids", "mask"], []
        standing = [*inputs]
        weights = {"light": 8, "heavy": HEAVY, "half": HEAVY // 2 + 1, "other": HEAVY // 2 + 1}
        for i in range(draw.randint(2, 9)):
            reads = draw.sample(standing, min(len(standing), draw.randint(1, 3)))
            own = draw.sample(sorted(weights), draw.choice((0, 0, 0, 1, 2)))
            writes = [f"t{i}"] if draw.random() < 0.8 else [f"t{i}", f"u{i}"]
            nodes.append(node(" ".join(writes), *reads, weights=own, is_stateful=draw.random() < 0.08))
            standing += writes
        made = [name for name in standing if name not in inputs]
        graph = graph_of(*nodes, gives=draw.sample(made, draw.randint(0, 1)), weights=weights)
        label, labels = 0, []
        for _ in nodes:
            label += draw.random() < 0.3
            labels.append(label)
        rows = tuple(tuple(i for i, own in enumerate(labels) if own == part) for part in range(label + 1))
        scale = draw.choice((1, 1000, 2**33))
        names = {name for n in nodes for name in (*n.reads, *n.writes)}
        sizes = {name: draw.randint(1, 12) * scale for name in sorted(names)}
        run_s = {i: float(draw.randint(1, 9)) for i in range(len(nodes))}
        return cls(
            graph,
            rows,
            TransferPrices(run_s, 1 / scale, sizes),
            frozenset(i for i in graph.flow if draw.random() < 0.1),
        )

    def received(self, nodes: Collection[int]) -> set[str]:
        """What a part with these nodes must be sent or fed."""
        read = {name for n in nodes for name in self.graph.nodes[n].reads}
        return read - {name for n in nodes for name in self.graph.nodes[n].writes}

    def choices(self, part: int) -> Iterator[tuple[float, frozenset[int]]]:
        """Every set of nodes that the part may repeat, and what comes of it in seconds."""
        row = self.rows[part]
        held = {weight for n in row for weight in self.graph.nodes[n].weights}
        fed = self.received(row) & set(self.graph.reads)

        def may_be_repeated(n: int) -> bool:
            own = self.graph.nodes[n]
            brought = sum(self.graph.weights[weight].bytes for weight in own.weights if weight not in held)
            return n not in self.kept and not own.is_stateful and brought < HEAVY

        upstream = [n for earlier in self.rows[:part] for n in earlier if may_be_repeated(n)]
        for number in range(len(upstream) + 1):
            for chosen in itertools.combinations(upstream, number):
                sent = self.received({*row, *chosen}) - fed
                running = sum(self.prices.run_s[n] for n in chosen)
                yield (
                    running + sum(self.prices.tensor_bytes[name] for name in sent) * self.prices.s_per_byte,
                    frozenset(chosen),
                )


def least_sets(case: Case) -> dict[int, frozenset[int]]:
    """For each part the cheapest set to repeat, of equal ones the one that lies in all others."""
    wanted = {}
    for part in range(1, len(case.rows)):
        choices = list(case.choices(part))
        least = min(cost for cost, _ in choices)
        wanted[part] = frozenset.intersection(*(chosen for cost, chosen in choices if cost == least))
        assert (least, wanted[part]) in choices
    if emptied := emptied_by(case, wanted):  # a part must keep something: what stands there is not repeated then
        return least_sets(replace(case, kept=case.kept | emptied))
    return {part: nodes for part, nodes in wanted.items() if nodes}


def emptied_by(case: Case, repeated: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The nodes of the last part that would have no node of its own left: those before may be empty only for that."""
    graph, rows = case.graph, [{*row, *repeated.get(part, ())} for part, row in enumerate(case.rows)]
    for n in reversed(graph.flow):
        holders = [row for row in rows if n in row]
        tensors = graph.nodes[n].writes
        reading = [row for row in rows if any(r in row for t in tensors for r in graph.readers.get(t, ()))]
        is_sent = any(n not in row for row in reading) or not set(graph.writes).isdisjoint(tensors)
        for row in holders if len(holders) > 1 else ():
            if not any(row is other for other in reading) and not (row is holders[0] and is_sent):
                row.discard(n)
    home = {n: next(i for i, row in enumerate(rows) if n in row) for n in graph.flow}
    empty = [row for part, row in enumerate(case.rows) if row and part not in home.values()]
    return frozenset(empty[-1] if empty else ())


@seeded(25, together=25)
def test_a_part_repeats_the_cheapest_set_of_nodes_and_of_equal_ones_the_smallest(seed: int) -> None:
    case = Case.of(random.Random(seed))
    _, found = recompute(case.graph, case.rows, lambda _: case.prices, case.kept)
    chosen = {entry.part: frozenset(map(case.graph.node_index.__getitem__, entry.nodes)) for entry in found}
    assert chosen == least_sets(case)
    for entry in found:
        own = case.rows[entry.part]
        before, after = case.received(own), case.received({*own, *chosen[entry.part]})
        sizes = case.prices.tensor_bytes
        assert set(entry.tensors) == before - after
        assert entry.saved_bytes == sum(sizes[name] for name in before) - sum(sizes[name] for name in after)
        assert entry.cost_s == sum(case.prices.run_s[n] for n in sorted(chosen[entry.part]))


@seeded(25, together=25)
def test_the_least_that_a_part_pays_is_that_of_the_cheapest_set_and_inputs_of_the_model_cost_nothing(seed: int) -> None:
    case = Case.of(random.Random(seed))
    for part, row in enumerate(case.rows):
        choices = list(case.choices(part))
        repeatable, cheapest = frozenset[int]().union(*(nodes for _, nodes in choices)), min(s for s, _ in choices)
        least = least_s(case.graph, row, set(row), case.prices, repeatable.__contains__)
        assert least <= cheapest
        assert least == pytest.approx(cheapest, abs=1e-9)


@seeded(25, together=25)
def test_the_parts_still_compute_every_output_and_repeat_no_forbidden_node(seed: int) -> None:
    case = Case.of(random.Random(seed))
    rows, found = recompute(case.graph, case.rows, lambda _: case.prices, case.kept)
    made = partition(case.graph, rows)
    assert len(made.blocks) == len(case.rows)
    times = {n: sum(n in row for row in rows) for n in case.graph.flow}
    assert min(times.values()) >= 1
    stateful = {n for n in case.graph.flow if case.graph.nodes[n].is_stateful}
    assert all(times[n] == 1 for n in case.kept | stateful)
    # What stands in the rows is needed there: `partition` finds no idle copy to leave out.
    assert [sorted({*block.nodes, *block.replicas}) for block in made.blocks] == [sorted(row) for row in rows]
    for entry in found:
        kept_tensors = set(made.blocks[entry.part].reads)
        assert kept_tensors.isdisjoint(entry.tensors)


def test_a_mask_that_is_cheap_to_compute_is_recomputed() -> None:
    graph = graph_of(node("m", "mask"), node("a", "x", "m"), node("b", "a", "m"))
    prices = TransferPrices({0: 1.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    rows, found = recompute(graph, ((0, 1), (2,)), lambda _: prices, frozenset())
    assert rows == ((0, 1), (0, 2))
    assert found == (Recomputed(part=1, nodes=("M",), tensors=("m",), saved_bytes=6, cost_s=1.0),)


def test_a_tensor_that_costs_as_much_to_compute_as_to_send_is_sent() -> None:
    graph = graph_of(node("m", "mask"), node("a", "x", "m"), node("b", "a", "m"))
    prices = TransferPrices({0: 6.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    assert recompute(graph, ((0, 1), (2,)), lambda _: prices, frozenset()) == (((0, 1), (2,)), ())


def test_an_input_that_the_part_receives_anyway_costs_nothing_more() -> None:
    graph = graph_of(node("m", "mask"), node("a", "x", "m"), node("b", "a", "m", "mask"))
    prices = TransferPrices({0: 7.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    rows, _ = recompute(graph, ((0, 1), (2,)), lambda _: prices, frozenset())
    assert rows == ((0, 1), (0, 2))


def test_a_view_is_recomputed_rather_than_sent() -> None:
    graph = graph_of(node("v", "mask"), node("a", "x", "v"), node("b", "a", "v", "mask"))
    prices = TransferPrices({0: 0.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "v": 2, "x": 8, "a": 8, "b": 8})
    rows, _ = recompute(graph, ((0, 1), (2,)), lambda _: prices, frozenset())
    assert rows == ((0, 1), (0, 2))


def test_a_node_of_which_only_the_replica_is_needed_moves() -> None:
    """The first part made the mask for the second alone."""
    graph = graph_of(node("m", "mask"), node("a", "x"), node("b", "a", "m"))
    rows, _ = recompute(graph, ((0, 1), (2,)), lambda _: flat(graph, run_s=1.0, size=10), frozenset({1}))
    assert rows == ((0, 1), (2,))  # the mask is as dear to send as what it is made of
    prices = TransferPrices({0: 1.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    rows, found = recompute(graph, ((0, 1), (2,)), lambda _: prices, frozenset())
    assert rows == ((1,), (0, 2))
    assert [entry.nodes for entry in found] == [("M",)]


def test_repeated_nodes_of_given_parts_are_reported_with_what_they_save() -> None:
    """The last part makes `a` and `b` again, of an input that it is not fed else: two tensors of 10 for one."""
    graph = graph_of(node("a", "x"), node("b", "a"), node("c", "a"), node("d", "b", "a", "c"))
    prices = flat(graph, run_s=3.0)
    assert repeated(graph, ((0, 1), (2,), (0, 1, 3)), lambda _: prices) == (
        Recomputed(part=2, nodes=("A", "B"), tensors=("b", "a"), saved_bytes=2 * 10 - 10, cost_s=2 * 3.0),
    )
    assert repeated(graph, ((0, 1), (2,), (3,)), lambda _: prices) == ()


def test_a_part_that_would_be_left_empty_keeps_its_nodes() -> None:
    graph = graph_of(node("m", "mask"), node("b", "x", "m"))
    prices = TransferPrices({0: 1.0, 1: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "b": 8})
    assert recompute(graph, ((0,), (1,)), lambda _: prices, frozenset()) == (((0,), (1,)), ())


def test_a_part_without_nodes_stays_so() -> None:
    graph = graph_of(node("a", "x"), node("b", "a"))
    prices = TransferPrices({0: 1.0, 1: 1.0}, 1.0, {"x": 1, "a": 8, "b": 1})
    assert recompute(graph, ((), (0,), (1,)), lambda _: prices, frozenset()) == (((), (0,), (1,)), ())


def test_a_part_that_only_an_empty_one_needs_stays_as_it_is_and_may_be_repeated() -> None:
    """`a` takes 6 s, `m` and `b` 2 s; to send `a` or `b` takes 20 s, `m` 9 s, the input 2 s.

    The second part receives `m`: to run what it is made of takes 10 s. Cheapest for the last part would be to run all,
    in 12 s, after which no other has a node that anyone needs. So the second part keeps `b`, and needs the first.
    """
    graph = graph_of(node("a", "x"), node("m", "a"), node("b", "m"), node("c", "a", "b"))
    prices = TransferPrices({0: 6.0, 1: 2.0, 2: 2.0, 3: 1.0}, 1.0, {"x": 2, "a": 20, "m": 9, "b": 20, "c": 1})
    parts, found = recompute(graph, ((0, 1), (2,), (3,)), lambda _: prices, frozenset())
    assert parts == ((0, 1), (2,), (0, 3))
    assert [(one.part, one.tensors) for one in found] == [(2, ("a",))]


@pytest.mark.parametrize("reason", ["stateful", "kept", "heavy"])
def test_the_output_of_a_node_that_must_run_once_is_sent(reason: str) -> None:
    weights = ("heavy",) if reason == "heavy" else ()
    first = node("m", "mask", weights=weights, is_stateful=reason == "stateful")
    graph = graph_of(first, node("a", "x", "m"), node("b", "a", "m"), weights={"heavy": HEAVY})
    prices = TransferPrices({0: 1.0, 1: 9.0, 2: 9.0}, 1.0, {"mask": 2, "m": 8, "x": 8, "a": 8, "b": 8})
    kept = frozenset({0} if reason == "kept" else ())
    assert recompute(graph, ((0, 1), (2,)), lambda _: prices, kept) == (((0, 1), (2,)), ())


def test_a_deep_chain_needs_no_recursion_and_is_repeated_as_far_as_it_pays() -> None:
    """A chain of 300 nodes beside the stream; its last tensor takes 100 s to send, its first 1 s, a node 0.1 s."""
    chain = [node("t0", "mask"), *(node(f"t{i}", f"t{i - 1}") for i in range(1, 300))]
    graph = graph_of(*chain, node("a", "x", "t299"), node("b", "a", "t299"))
    run_s = dict.fromkeys(graph.flow, 0.125)
    sizes = {"mask": 1, "x": 1, "a": 1, "b": 1, **{f"t{i}": 100 for i in range(300)}}
    rows, found = recompute(
        graph, (tuple(range(301)), (301,)), lambda _: TransferPrices(run_s, 1.0, sizes), frozenset()
    )
    assert rows == (tuple(range(301)), (*range(300), 301))
    assert found[0].cost_s == 300 * 0.125
    sizes["t200"] = 2
    rows, found = recompute(
        graph, (tuple(range(301)), (301,)), lambda _: TransferPrices(run_s, 1.0, sizes), frozenset()
    )
    assert found[0].nodes == tuple(f"T{i}" for i in range(201, 300))


def model_with_a_cheap_node(width: int) -> ModelProto:
    """Two heads that read a cheap node, an expensive chain of nodes, and the input that both are computed from."""
    sizes = floats("x", width)
    chain = [helper.make_node("Neg", [f"c{i - 1}" if i else "x"], [f"c{i}"], name=f"c{i}") for i in range(20)]
    heads = [helper.make_node("Sum", ["x", "cheap", "c19"], [f"y{i}"], name=f"head{i}") for i in range(2)]
    nodes = [helper.make_node("Relu", ["x"], ["cheap"], name="cheap"), *chain, *heads]
    return model_of(nodes, [sizes], [floats(f"y{i}", width) for i in range(2)])


SLOW_AND_FAST = Cluster(devices=(Device(name="slow", link_bytes_per_s=5e7), Device(name="fast", link_bytes_per_s=2e8)))


@each("goal", [Heads(), Across(SLOW_AND_FAST, "bytes")], ids=["heads", "across"])
@each("width", (30, 50, 60, 70, 80, 120))
def test_a_node_is_repeated_if_it_runs_faster_than_its_output_takes_over_both_links(
    width: int, goal: Heads | Across, opened: Draw
) -> None:
    """A byte takes the link of the sender and the link of the receiver, once each."""
    model = opened(model_with_a_cheap_node(width))
    pins = (("c19", 0), ("head0", 0), ("head1", 1)) if isinstance(goal, Across) else ()
    made = plan(graphcut.analyze(model), goal, limits=Limits(pins=pins))
    assert made.costs is not None
    sender, receiver = made.devices[:2]
    cheap = model.graph.node_index["cheap"]
    send_s = width * 4 * (1 / sender.link_bytes_per_s + 1 / receiver.link_bytes_per_s)
    is_faster = run_s(made.costs, receiver)[model.graph.flow.index(cheap)] < send_s
    assert is_faster == (width >= (80 if isinstance(goal, Heads) else 60))
    assert {entry.nodes for entry in made.recomputed} == ({("cheap",)} if is_faster else set())


def random_model(draw: random.Random) -> ModelProto:
    """Up to 16 nodes on float32[4,6]; every node can read everything, and two thirds of them read little."""
    standing, nodes = ["x", "y", "z"], []
    for i in range(draw.randint(6, 16)):
        op = draw.choice(("Add", "Mul", "Sub", "Relu", "Tanh", "Sigmoid", "Neg", "weighted"))
        reads = draw.sample(standing, 2 if op in {"Add", "Mul", "Sub"} else 1)
        if op == "weighted":
            op, reads = "Add", [*reads, f"w{i % 2}"]
        nodes.append(helper.make_node(op, reads, [f"t{i}"], name=f"n{i}"))
        standing.append(f"t{i}")
    read = {name for n in nodes for name in n.input}
    ends = [floats(name, 4, 6) for name in standing if name not in read and name.startswith("t")]
    weights = [numpy_helper.from_array(np.full((4, 6), i + 0.5, dtype=np.float32), f"w{i}") for i in range(2)]
    used = [tensor for tensor in weights if tensor.name in read]
    inputs = [floats(name, 4, 6) for name in ("x", "y", "z") if name in read]
    return model_of(nodes, inputs, ends, used)


@seeded(4)
def test_parts_that_recompute_are_bit_identical(seed: int, opened: Draw, tmp_path: Path) -> None:
    model = opened(random_model(random.Random(seed)))
    analysis = graphcut.analyze(model)
    cluster = Cluster(devices=tuple(Device(name=f"d{i}", link_bytes_per_s=2e6, latency_s=0.0) for i in range(3)))
    goals: tuple[Into | Across, ...] = (Into(3, "flops"), Into(2, "bytes"), Across(cluster))
    for number, goal in enumerate(goals):
        made = plan(analysis, goal)
        cascade = graphcut.split(model, made, tmp_path / f"parts-{number}")
        report = verify(model, cascade)
        assert report.same
        assert report.is_identical, report.first_difference


def test_a_decoder_recomputes_mask_and_rotary_angles_in_every_part(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    model = graphcut.load(tmp_path / "llm.onnx")
    made = plan(graphcut.analyze(model), Into(3, "layers"))
    dear = {"/model/rotary_emb/Cos_output_0", "/model/rotary_emb/Sin_output_0", "/model/causal_mask/Where_output_0"}
    assert dear <= set(model.tensors)
    assert dear.isdisjoint(made.partition.wiring.boundary_tensors)
    sending = plan(graphcut.analyze(model), Into(3, "layers"), limits=Limits(recompute="never"))
    assert dear <= set(sending.partition.wiring.boundary_tensors)
    # The residual stream alone is 512 tokens of 64 floats; mask and angles would be ten times as much.
    assert [figures.received_bytes < 140_000 for figures in made.metrics] == [True, True, True]
    assert [figures.received_bytes > 1_200_000 for figures in sending.metrics] == [False, True, True]
    assert [entry.part for entry in made.recomputed] == [1, 2]
    assert verify(model, graphcut.split(model, made, tmp_path / "parts")).is_identical


def test_a_decoder_that_must_not_recompute_sends_them(tmp_path: Path) -> None:
    demos.write("llm", tmp_path / "llm.onnx")
    model = graphcut.load(tmp_path / "llm.onnx")
    made = plan(graphcut.analyze(model), Into(3, "layers"), limits=Limits(recompute="never"))
    assert made.recomputed == ()
    assert sorted(n for row in made.parts for n in row) == sorted(model.graph.flow)
    assert len(made.partition.wiring.boundary_tensors) > 2
    assert verify(model, graphcut.split(model, made, tmp_path / "parts")).is_identical


@each("name", ["llm", "unet", "resnet", "multitask", "control-flow"])
def test_replicable_nodes_contain_their_predecessors_and_are_cheap(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    graph, costs = model.graph, weigh(model)
    run_s = {n: float(number + 1) for n, number in zip(graph.flow, costs.flops, strict=True)}
    found = replicable_nodes(costs, run_s, 1.0, (), ())
    makers = {graph.producer[tensor] for n in found for tensor in graph.nodes[n].reads if tensor in graph.producer}
    assert {n for n in makers if not graph.nodes[n].is_constant} <= found
    readers = [
        {reader for tensor in graph.nodes[n].writes for reader in graph.readers.get(tensor, ())} for n in sorted(found)
    ]
    assert all(readers)
    kept = frozenset(list(graph.flow)[::3])
    assert replicable_nodes(costs, run_s, 1.0, kept, ()).isdisjoint(kept)
    assert not any(graph.nodes[n].is_stateful for n in found)
    assert replicable_nodes(costs, run_s, 0.0, (), ()) == frozenset()


def test_random_nodes_are_never_replicable(opened: Draw) -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["noise"], name="noise"),
        helper.make_node("Neg", ["noise"], ["less"], name="less"),
        *(
            helper.make_node("Add", ["x" if i == 0 else f"t{i - 1}", "less"], [f"t{i}"], name=f"n{i}")
            for i in range(40)
        ),
    ]
    model = opened(model_of(nodes, [floats("x", 64)], [floats("t39", 64)]))
    run_s = dict.fromkeys(model.graph.flow, 1e-9)
    assert replicable_nodes(weigh(model), run_s, 1.0, (), ()) == frozenset()
    made = plan(graphcut.analyze(model), Into(3, "bytes"))
    assert [sum(0 in row for row in made.parts), sum(1 in row for row in made.parts)] == [1, 1]
    onnx.checker.check_model(model.proto)


def test_the_reason_of_a_cut_counts_all_that_crosses_it_in_the_finished_plan(tmp_path: Path) -> None:
    """Parts of a decoder recompute its mask from a smaller one, which crosses beside the hidden state."""
    demos.write("llm", tmp_path / "llm.onnx")
    made = plan(graphcut.load(tmp_path / "llm.onnx"), Into(3))
    assert made.recomputed
    assert made.costs is not None
    ends, sizes = made.partition.wiring.boundary_tensors, made.costs.sent_bytes
    sent = [[name for name, (i, readers) in ends.items() if i <= cut < max(readers)] for cut in (0, 1)]
    assert min(map(len, sent)) > 1
    expected = [sum(sizes[name][0] for name in names) for names in sent]
    assert [reason.chosen.boundary_bytes for reason in made.reasons] == expected


@crossed(("name", "parts"), ["llm", "unet"] + ["resnet", "light_densenet121"] * bool(FUZZ), [4, 2], times=1, together=4)
def test_recomputing_makes_no_part_slower_than_the_slowest_part_planned(name: str, parts: int, tmp_path: Path) -> None:
    """What is cheaper for both sides together may be dearer for the part that everybody waits for."""
    path = tmp_path / "model.onnx"
    if name.startswith("light"):
        light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        path = light / f"{name}.onnx"
    else:
        demos.write(name, path)
    made = plan(graphcut.analyze(graphcut.load(path)), Into(parts))
    assert made.outcome is not None
    assert made.metrics
    assert made.outcome.value == pytest.approx(max(part.busy_s for part in made.metrics), rel=1e-12)


@pytest.mark.parametrize(("by", "repeated"), [("time", 1), ("bytes", 0)])
def test_a_part_that_stays_too_slow_repeats_what_was_planned_and_one_that_stays_too_large_nothing(
    by: Literal["time", "bytes"], repeated: int, opened: Draw
) -> None:
    """A mask of 4 kB from 4 bytes is read by both parts; no part may cost anything."""
    nodes = [
        helper.make_node("Expand", ["s", "size"], ["mask"], name="mask"),
        helper.make_node("Add", ["x", "mask"], ["a"], name="add"),
        helper.make_node("Mul", ["a", "mask"], ["y"], name="mul"),
    ]
    size = numpy_helper.from_array(np.array([1000]), "size")
    analysis = graphcut.analyze(
        opened(model_of(nodes, [floats("x", 1000), floats("s", 1)], [floats("y", 1000)], [size]))
    )
    finisher = Finisher(analysis, Into(2, by), Limits(), weigh(analysis.model), None)
    made = finisher.with_replicas(((0, 1), (2,)), (ANY_DEVICE,) * 2, planned=[0], most=0.0)
    assert len(made.recomputed) == repeated


def test_an_input_of_the_model_costs_a_part_nothing_where_the_reader_alone_counts(chain: Path) -> None:
    analysis = graphcut.analyze(graphcut.load(chain, dims={"n": 1}))
    finisher = Finisher(analysis, Into(2), Limits(), weigh(analysis.model), None)
    pays = [
        finisher.prices(((0, 1), (2, 3)), (ANY_DEVICE,) * 2, counts_all=counts_all)(0).send_s("x") > 0
        for counts_all in (True, False)
    ]
    assert pays == [True, False]
