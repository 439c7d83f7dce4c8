"""The dataflow as a networkx graph, and what is found on it, each against its definition on random graphs."""

# ruff: noqa: S311 - seeds make the same graphs each time, and keep no secrets

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import networkx as nx
import numpy as np
from onnx import helper, numpy_helper

import graphcut
from graphcut import Analysis, Graph, Model, Node, analyze, to_networkx
from graphcut.demos import write
from graphcut.planning.goals import At

from conftest import Draw, floats, model_of

RANDOM = range(200)


def node(name: str, *reads: str, writes: Sequence[str] = ()) -> Node:
    return Node(name, "Op", reads, tuple(writes) or (name,), (), (), is_constant=False, is_stateful=False, module="")


def found_in(nodes: Sequence[Node]) -> Analysis:
    """The analysis of a model with these nodes."""
    graph = Graph(tuple(nodes), {}, ("x",), ())
    analysis = Analysis(cast("Model", SimpleNamespace(graph=graph)))
    vars(analysis)["digraph"] = to_networkx(graph)
    return analysis


def random_analysis(seed: int) -> Analysis:
    """Up to 12 nodes; most read a recent tensor, so that chains, branches and joins all occur; some write two."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    made = ["x"]
    for i in range(draw.randint(1, 12)):
        reads = {draw.choice(made[-3:] if draw.random() < 0.8 else made) for _ in range(draw.choice((1, 1, 1, 2, 3)))}
        writes = [f"t{i}", f"u{i}"][: draw.choice((1, 1, 2))]
        nodes.append(node(f"n{i}", *sorted(reads), writes=writes))
        made += writes
    return found_in(nodes)


def starts(digraph: nx.DiGraph[int]) -> list[int]:
    return [n for n in digraph if not digraph.pred[n]]


def ends(digraph: nx.DiGraph[int]) -> list[int]:
    return [n for n in digraph if not digraph.succ[n]]


def paths(digraph: nx.DiGraph[int], sources: Sequence[int], targets: Sequence[int]) -> Iterator[set[int]]:
    for source in sources:
        for target in targets:
            yield from map(set, nx.all_simple_paths(digraph, source, target)) if source != target else [{source}]


def test_the_digraph_has_the_flowing_nodes_and_the_tensors_between_them(opened: Draw) -> None:
    nodes = [
        helper.make_node("Neg", ["w"], ["c"], name="constant"),
        helper.make_node("Split", ["x"], ["a", "b"], name="block/split"),
        helper.make_node("Mul", ["a", "b"], ["d"], name="block/mul"),
        helper.make_node("Add", ["d", "c"], ["y"], name="add"),
        helper.make_node("Sub", ["y", "a"], ["z"], name="sub"),
    ]
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    model = opened(model_of(nodes, [floats("x", 4)], [floats("y", 2), floats("z", 2)], [weight]))
    digraph = analyze(model).digraph
    assert dict(digraph.nodes(data=True)) == {
        1: {"name": "block/split", "op": "Split", "module": "block", "reads": ("x",)},
        2: {"name": "block/mul", "op": "Mul", "module": "block", "reads": ("a", "b")},
        3: {"name": "add", "op": "Add", "module": "", "reads": ("d",)},
        4: {"name": "sub", "op": "Sub", "module": "", "reads": ("y", "a")},
    }
    assert {(a, b): data for a, b, data in digraph.edges(data=True)} == {
        (1, 2): {"tensors": ("a", "b"), "bytes": 16},
        (1, 4): {"tensors": ("a",), "bytes": 8},
        (2, 3): {"tensors": ("d",), "bytes": 8},
        (3, 4): {"tensors": ("y",), "bytes": 8},
    }
    assert to_networkx(model.graph).edges[1, 2] == {"tensors": ("a", "b")}


def test_a_key_node_has_one_data_input_and_two_readers() -> None:
    analysis = found_in(
        [
            node("key", "x"),
            node("two inputs", "key", "x"),
            node("two readers of two tensors", "key", writes=["a", "b"]),
            node("reads a", "a", "two inputs"),
            node("reads b", "b", "two inputs"),
            node("reads two tensors of one node", "reads a", "reads b"),
        ]
    )
    assert [analysis.digraph.nodes[n]["name"] for n in analysis.key_nodes] == ["key", "two readers of two tensors"]


def test_without_a_dominator_no_end_is_reached() -> None:
    for analysis in map(random_analysis, RANDOM):
        digraph = analysis.digraph
        expected = [n for n in digraph if all(n in path for path in paths(digraph, starts(digraph), ends(digraph)))]
        assert list(analysis.dominators) == expected


def test_the_dominators_are_the_dominator_tree_above_a_single_end() -> None:
    for analysis in map(random_analysis, RANDOM):
        digraph = analysis.digraph
        source, end = -1, len(digraph)
        closed = nx.DiGraph(digraph)
        closed.add_edges_from([*((source, n) for n in starts(digraph)), *((n, end) for n in ends(digraph))])
        above = nx.immediate_dominators(closed, source)
        chain = []
        step = above[end]
        while step != source:
            chain.append(step)
            step = above[step]
        assert tuple(reversed(chain)) == analysis.dominators


def test_without_a_dominator_that_is_no_start_or_end_the_graph_is_in_more_pieces() -> None:
    for analysis in map(random_analysis, RANDOM):
        digraph = analysis.digraph
        inner = {n for n in analysis.dominators if digraph.pred[n] and digraph.succ[n]}
        assert inner <= set(nx.articulation_points(nx.Graph(digraph)))


def test_branches_join_at_a_dominator(opened: Draw) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["fork"]),
        helper.make_node("Neg", ["fork"], ["left"]),
        helper.make_node("Exp", ["fork"], ["right"]),
        helper.make_node("Add", ["left", "right"], ["join"]),
        helper.make_node("Abs", ["join"], ["y"]),
        helper.make_node("Sqrt", ["join"], ["z"]),
    ]
    analysis = analyze(opened(model_of(nodes, [floats("x", 4)], [floats("y", 4), floats("z", 4)])))
    assert analysis.dominators == (0, 3)


def test_a_cut_after_a_dominator_sends_its_outputs_and_nothing_else(tmp_path: Path) -> None:
    write("resnet", tmp_path / "m.onnx")
    analysis = analyze(graphcut.load(tmp_path / "m.onnx"))
    *inner, last = analysis.dominators
    assert last == analysis.model.graph.flow[-1]
    assert len(inner) > 5
    for n in inner:
        found = analysis.model.graph.nodes[n]
        sent = graphcut.plan(analysis, At((found.name,))).partition.wiring.boundary_tensors
        assert set(sent) <= set(found.writes)


def test_the_trunk_of_a_multi_task_model_ends_in_a_dominator_before_its_heads(tmp_path: Path) -> None:
    write("multitask", tmp_path / "m.onnx")
    analysis = analyze(graphcut.load(tmp_path / "m.onnx"))
    trunk = analysis.dominators[-1]
    rest = analysis.digraph.copy()
    rest.remove_node(trunk)
    heads = [piece for piece in nx.weakly_connected_components(rest) if min(piece) > trunk]
    assert len(heads) > 1


def test_a_graph_without_nodes_has_none_of_these() -> None:
    analysis = found_in([])
    assert (analysis.key_nodes, analysis.dominators) == ((), ())


def test_dominators_take_linear_time_where_two_long_branches_meet_often() -> None:
    length = 20_000
    nodes = [node("s", "x")]
    nodes += [node(f"{side}{i}", f"{side}{i - 1}" if i else "s") for side in "ab" for i in range(length)]
    nodes += [node(f"c{i}", f"a{i}", f"b{length - 1 - i}") for i in range(length)]
    analysis = found_in(nodes)
    begin = time.process_time()
    assert analysis.dominators == (0,)
    assert time.process_time() - begin < 1
