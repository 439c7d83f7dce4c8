"""Nodes that several parts compute for themselves: who gives out what, what is refused, and that nothing changes."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper
from test_random_models import SHAPE, models

import graphcut
from graphcut import At, Cascade, GraphcutError, Model, Plan, TensorEdge
from graphcut.core.arguments import Storage
from graphcut.core.digests import digest_of
from graphcut.core.graph import Block, Graph, Node, Partition, Weight, partition
from graphcut.loading.fingerprint import graph_digest
from graphcut.verifying.numerical import compare
from graphcut.verifying.structural import prove

from conftest import floats, model_of

Rows = list[list[int]]


def drawn(*lines: str, gives: str, stateful: str = "", weights: str = "", constants: str = "") -> Graph:
    """A graph from lines like `"c d: a b"`: node C reads a and b, writes c and d; what nobody writes is an input."""
    nodes = []
    for line in lines:
        writes, _, reads = (tuple(side.split()) for side in line.partition(":"))
        name = writes[0].upper()
        own = tuple(read for read in reads if read in weights.split())
        fixed = tuple(read for read in reads if read in constants.split())
        flowing = tuple(read for read in reads if read not in own + fixed)
        is_stateful = name in stateful.split()
        nodes.append(Node(name, "Op", flowing, writes, own, fixed, not flowing and not is_stateful, is_stateful, ""))
    written = {tensor for node in nodes for tensor in node.writes}
    inputs = dict.fromkeys(tensor for node in nodes for tensor in node.reads if tensor not in written)
    held = {name: Weight(name, 4, is_default=False) for name in weights.split()}
    return Graph(tuple(nodes), held, tuple(inputs), tuple(gives.split()))


def grouped(graph: Graph, *rows: str) -> Partition:
    return partition(graph, [[graph.node_index[name] for name in row.split()] for row in rows])


def said(graph: Graph, block: Block) -> str:
    """`nodes + replicas: reads > writes`."""
    own, copied = (" ".join(graph.nodes[n].name for n in some) for some in (block.nodes, block.replicas))
    return f"{own} + {copied}: {' '.join(block.reads)} > {' '.join(block.writes)}".replace("  ", " ")


def blocks(graph: Graph, *rows: str) -> list[str]:
    return [said(graph, block) for block in grouped(graph, *rows).blocks]


MASKED = drawn("m: ids", "a: x m", "b: a m", "y: b m", gives="y")
"""M makes a mask of the ids, and A, B and Y, in a chain, read it."""


# Who computes what, and what crosses


def test_a_node_belongs_to_the_first_group_and_is_copied_in_the_others() -> None:
    assert blocks(MASKED, "M A", "M B", "M Y") == ["M A + : ids x > a", "B + M: ids a > b", "Y + M: ids b > y"]


def test_a_tensor_that_every_reader_recomputes_is_not_sent() -> None:
    assert grouped(MASKED, "M A", "M B", "M Y").wiring.edges == (
        TensorEdge("ids", None, 0),
        TensorEdge("x", None, 0),
        TensorEdge("ids", None, 1),
        TensorEdge("a", 0, 1),
        TensorEdge("ids", None, 2),
        TensorEdge("b", 1, 2),
        TensorEdge("y", 2, None),
    )


def test_a_part_without_a_copy_is_sent_the_tensor() -> None:
    found = grouped(MASKED, "M A", "M B", "Y")
    assert [said(MASKED, block) for block in found.blocks] == [
        "M A + : ids x > m a",
        "B + M: ids a > b",
        "Y + : b m > y",
    ]
    assert found.wiring.boundary_tensors == {"a": (0, (1,)), "m": (0, (2,)), "b": (1, (2,))}


def test_an_output_is_written_by_the_part_that_the_node_belongs_to() -> None:
    graph = drawn("m: ids", "a: x m", "y: a m", gives="m y")
    assert blocks(graph, "M A", "M Y") == ["M A + : ids x > m a", "Y + M: ids a > y"]


def test_a_copy_may_read_a_tensor_of_another_part() -> None:
    graph = drawn("s: x", "m: s", "a: x m", "y: a m", gives="y")
    assert blocks(graph, "S M A", "M Y") == ["S M A + : x > s a", "Y + M: s a > y"]


def test_copies_may_read_each_other() -> None:
    graph = drawn("s: x", "m: s", "a: x m", "y: a m", gives="y")
    assert blocks(graph, "S M A", "S M Y") == ["S M A + : x > a", "Y + S M: x a > y"]


def test_a_part_that_copies_a_node_receives_none_of_its_outputs() -> None:
    """Q reads both halves; the other reader of one half gets it from the home."""
    graph = drawn("l r: x", "a: l", "q: a l r", "y: q r", gives="y")
    assert blocks(graph, "L A", "L Q", "Y") == ["L A + : x > r a", "Q + L: x a > q", "Y + : q r > y"]


def test_a_part_has_the_weights_and_constants_of_its_copies() -> None:
    graph = drawn("k:", "m: ids w k", "a: x m", "y: a m", gives="y", weights="w", constants="k")
    first, second = grouped(graph, "M A", "M Y").blocks
    assert (said(graph, first), first.weights) == ("M A + K: ids x > a", ("w",))
    assert (said(graph, second), second.weights) == ("Y + K M: ids a > y", ("w",))


# Copies that nothing needs


def test_a_copy_that_no_node_of_its_group_reads_is_left_out() -> None:
    graph = drawn("m: ids", "a: x m", "b: a", "y: b m", gives="y")
    assert blocks(graph, "M A", "M B", "M Y") == ["M A + : ids x > a", "B + : a > b", "Y + M: ids b > y"]


def test_if_all_readers_recompute_a_node_belongs_to_the_first_of_them() -> None:
    graph = drawn("m: ids", "a: x", "b: a m", "y: b m", gives="y")
    assert blocks(graph, "M A", "M B", "M Y") == ["A + : x > a", "M B + : ids a > b", "Y + M: ids b > y"]


def test_a_node_that_only_such_a_copy_reads_is_left_out_too() -> None:
    graph = drawn("s: x", "m: s", "a: x", "y: a m", gives="y")
    assert blocks(graph, "S M A", "S M Y") == ["A + : x > a", "S M Y + : x a > y"]


def test_a_copy_that_only_others_read_stays_in_the_first_group() -> None:
    graph = drawn("m: ids", "a: x", "b: a m", "y: b m", gives="y")
    assert blocks(graph, "M A", "M B", "Y") == ["M A + : ids x > m a", "B + M: ids a > b", "Y + : b m > y"]


# What is refused


def test_a_random_node_is_not_recomputed() -> None:
    graph = drawn("r: x", "a: r", "y: a r", gives="y", stateful="R")
    with pytest.raises(GraphcutError) as caught:
        grouped(graph, "R A", "R Y")
    assert str(caught.value) == "node 'R' is random or stateful, and it is in 2 parts"
    assert caught.value.hint == "such a node must run exactly once: put it into one part, which sends its tensors"
    assert blocks(graph, "R A", "Y") == ["R A + : x > r a", "Y + : a r > y"]


def test_a_node_that_depends_on_a_random_node_may_be_recomputed() -> None:
    graph = drawn("r: x", "m: r", "a: m", "y: a m", gives="y", stateful="R")
    assert blocks(graph, "R M A", "M Y") == ["R M A + : x > r a", "Y + M: r a > y"]


def test_a_copy_that_depends_on_a_later_group_is_refused() -> None:
    with pytest.raises(GraphcutError, match="part 0 reads 'a' before any part writes it"):
        grouped(drawn("a: x", "m: a", "b: x m", "y: b m", gives="y"), "M B", "A M Y")


# Against the definition, on random graphs


@st.composite
def graphs_and_rows(draw: Callable[..., Any]) -> tuple[Graph, Rows]:
    """Up to 12 nodes of one or two outputs, in rows that can run in this order, with copies in rows further on."""
    standing, lines = ["x"], []
    for i in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(standing), min_size=1, max_size=3, unique=True))
        writes = draw(st.sampled_from([[f"t{i}"], [f"t{i}", f"u{i}"]]))
        lines.append(f"{' '.join(writes)}: {' '.join(reads)}")
        standing += writes
    read = {tensor for line in lines for tensor in line.partition(":")[2].split()}
    ends = [tensor for tensor in standing if tensor not in read]
    graph = drawn(*lines, gives=" ".join([*ends, *draw(st.lists(st.sampled_from(standing[1:]), max_size=1))]))
    return graph, draw(rows_of(graph))


@st.composite
def rows_of(draw: Callable[..., Any], graph: Graph) -> Rows:
    """Rows that can run in this order, none empty, and copies of nodes in rows after their own."""
    row_of: dict[int, int] = {}
    for n in graph.flow:
        makers = [row_of[graph.producer[tensor]] for tensor in graph.nodes[n].reads if tensor in graph.producer]
        row_of[n] = draw(st.integers(max(makers, default=0), 3))
    used = sorted(set(row_of.values()))
    rows: Rows = [[n for n in graph.flow if row_of[n] == row] for row in used]
    for n in graph.flow:
        if not graph.nodes[n].is_stateful:
            for row, place in zip(rows, used, strict=True):
                if place > row_of[n] and draw(st.booleans()):
                    row.append(n)
    return rows


def computed(graph: Graph, block: Block, nodes: Sequence[int]) -> set[str]:
    """Every tensor that a block holds once those of `nodes` have run that can."""
    held = set(block.reads)
    for n in sorted(nodes):
        if held.issuperset(graph.nodes[n].reads):
            held.update(graph.nodes[n].writes)
    return held


@settings(max_examples=300, deadline=None)
@given(graphs_and_rows())
def test_each_part_computes_its_outputs_from_its_inputs_with_no_other_nodes(drawing: tuple[Graph, Rows]) -> None:
    graph, rows = drawing
    found = partition(graph, rows)
    homes = [n for block in found.blocks for n in block.nodes]
    assert sorted(homes) == list(graph.flow)
    wanted = {(tensor, i) for i, block in enumerate(found.blocks) for tensor in block.reads}
    for i, (block, row) in enumerate(zip(found.blocks, rows, strict=True)):
        running = {*block.nodes, *block.replicas}
        assert running <= set(row)
        assert set(block.replicas) <= {n for earlier in found.blocks[:i] for n in earlier.nodes}
        made = {tensor for n in running for tensor in graph.nodes[n].writes}
        assert made.isdisjoint(block.reads)
        assert {tensor for n in block.nodes for tensor in graph.nodes[n].writes} >= set(block.writes)
        others = {tensor for tensor, reader in wanted if reader != i}
        assert set(block.writes) <= others | set(graph.writes)
        assert computed(graph, block, list(running)) == made | set(block.reads)
        for n in running:  # without any one of them the part could not make what it must
            assert not computed(graph, block, [m for m in running if m != n]).issuperset(block.writes)


@settings(max_examples=100, deadline=None)
@given(graphs_and_rows())
def test_groups_without_common_nodes_are_the_blocks(drawing: tuple[Graph, Rows]) -> None:
    graph, rows = drawing
    once = [[n for n in row if not any(n in earlier for earlier in rows[:i])] for i, row in enumerate(rows)]
    found = partition(graph, once)
    assert [(list(block.nodes), block.replicas) for block in found.blocks] == [(row, ()) for row in once]


# In files


def split_by(model: Model, rows: Sequence[Sequence[int]], **options: Any) -> Cascade:  # noqa: ANN401 - those of `split`
    return graphcut.split(model, Plan(At(()), model.graph, tuple(map(tuple, rows))), **options)


def named(model: Model, *rows: str) -> Rows:
    return [[model.graph.node_index[name] for name in row.split()] for row in rows]


def masked() -> ModelProto:
    """A mask by a weight of 2 KiB and a constant, halved; read by three nodes in a chain, and given out in part."""
    nodes = [
        helper.make_node("MatMul", ["ids", "w"], ["raw"], name="raw"),
        helper.make_node("Constant", [], ["k"], name="k", value=numpy_helper.from_array(np.array(2, np.float32), "k")),
        helper.make_node("Mul", ["raw", "k"], ["both"], name="both"),
        helper.make_node("Split", ["both"], ["low", "high"], name="halves", axis=1),
        helper.make_node("Add", ["x", "low"], ["a"], name="a"),
        helper.make_node("Mul", ["a", "high"], ["b"], name="b"),
        helper.make_node("Sub", ["b", "low"], ["y"], name="y"),
    ]
    weight = numpy_helper.from_array(np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32), "w")
    boundaries = [floats("x", "n", 16), floats("ids", "n", 16)], [floats("y", "n", 16), floats("high", "n", 16)]
    model = model_of(nodes, *boundaries, [weight], opset=13)
    # `low` gets a better type at a boundary than this note gives; `high` is noted although it is an output.
    model.graph.value_info.extend([floats("raw", "n", 32), floats("low", None, 16), floats("high", "n", 16)])
    return model


FEEDS = {"x": np.ones((3, 16), np.float32), "ids": np.linspace(0, 1, 48, dtype=np.float32).reshape(3, 16)}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    onnx.save(masked(), tmp_path / "model.onnx")
    return graphcut.load(tmp_path / "model.onnx")


@pytest.fixture
def cascade(model: Model) -> Cascade:
    """The mask is made in part 0, made again in part 1, and sent to part 2."""
    return split_by(model, named(model, "raw both halves a", "raw both halves b", "y"))


def boundaries(cascade: Cascade) -> list[str]:
    return [f"{' '.join(part.reads)} > {' '.join(part.writes)}" for part in cascade.parts]


def test_parts_have_the_nodes_of_the_groups(model: Model, cascade: Cascade) -> None:
    assert boundaries(cascade) == ["x ids > low high a", "ids a > b", "b low > y"]
    assert [part.replicas for part in cascade.parts] == [("k",), ("raw", "k", "both", "halves"), ()]
    assert [(part.nodes, part.weight_bytes) for part in cascade.parts] == [(5, 2048), (5, 2048), (1, 0)]
    assert [[value.name for value in onnx.load(cascade.file(part)).graph.value_info] for part in cascade.parts] == [
        ["raw"],
        ["raw", "low", "high"],
        [],
    ]
    assert prove(model, cascade).objections == ()


def test_copies_are_counted_and_compared(model: Model, cascade: Cascade) -> None:
    proof = prove(model, cascade)
    assert (proof.nodes, proof.replicas, proof.weight_bytes) == (7, 4, 2 * 2048)


@pytest.mark.parametrize("optimized", [False, True])
def test_recomputed_tensors_are_bit_identical(model: Model, cascade: Cascade, *, optimized: bool) -> None:
    found = compare(model, cascade, FEEDS, optimized=optimized)
    sent = [] if optimized else [(0, "low"), (0, "a"), (1, "b")]
    assert sorted((c.part, c.tensor) for c in found) == sorted([(0, "high"), (2, "y"), *sent])
    assert all(c.passes and (optimized or c.is_identical) for c in found)


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_merging_restores_the_model_with_each_node_once(model: Model, weights: Storage, tmp_path: Path) -> None:
    cascade = split_by(model, named(model, "raw both halves a", "raw both halves b", "y"), weights=weights)
    whole = graphcut.merge(cascade, tmp_path / "whole.onnx")
    assert graph_digest(whole.proto) == graph_digest(model.proto)
    assert [node.name for node in whole.proto.graph.node] == ["raw", "k", "both", "halves", "a", "b", "y"]
    notes = {value.name: value for value in whole.proto.graph.value_info}
    assert notes.keys() == {"raw", "low", "a", "b"}
    assert [notes["raw"], notes["low"]] == [floats("raw", "n", 32), floats("low", None, 16)]
    onnx.checker.check_model(whole.path, full_check=True)


# What the proof says of copies that are not in order


def edited(cascade: Cascade, change: Callable[[list[dict[str, Any]]], object]) -> Cascade:
    record = json.loads(cascade.path.read_text(encoding="utf-8"))
    change(record["parts"])
    cascade.path.write_text(json.dumps(record), encoding="utf-8")
    return graphcut.open_cascade(cascade.path)


def replicas(**lists: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(parts: list[dict[str, Any]]) -> None:
        for part, names in lists.items():
            parts[int(part[-1])]["replicas"] = names.split()

    return change


@pytest.mark.parametrize(
    ("lists", "objection"),
    [
        ({"part1": "k both"}, "part-1.onnx: the manifest gives replicas as ['k', 'both'], but it is [RIGHT]"),
        ({"part0": "raw k"}, "part-0.onnx: the manifest gives replicas as ['raw', 'k'], but it is ['k']"),
        ({"part2": "raw"}, "part-2.onnx: the manifest gives replicas as ['raw'], but it is []"),
        ({"part2": "other"}, "part-2.onnx: the manifest gives replicas as ['other'], but it is []"),
        (
            {"part1": "raw k both b"},
            "part-1.onnx: the manifest gives replicas as ['raw', 'k', 'both', 'b'], but it is [RIGHT]",
        ),
    ],
)
def test_a_copy_that_the_manifest_does_not_list_is_an_objection(
    model: Model, cascade: Cascade, lists: Mapping[str, str], objection: str
) -> None:
    right = objection.replace("RIGHT", "'raw', 'k', 'both', 'halves'")
    assert prove(model, edited(cascade, replicas(**lists))).objections == (right,)


def test_a_changed_copy_is_found(model: Model, cascade: Cascade) -> None:
    file = cascade.file(cascade.parts[1])
    part = onnx.load(file, load_external_data=False)
    next(node for node in part.graph.node if node.name == "halves").attribute[0].i = -1
    file.write_bytes(part.SerializeToString())
    digests = {"graph": graph_digest(part), "sha256": digest_of(file.read_bytes())}
    changed = edited(cascade, lambda parts: parts[1].update(digests))
    assert prove(model, changed).objections == ("part-1.onnx: node 'halves' differs from the model's",)


def test_a_random_node_in_two_parts_is_an_objection_even_as_a_replica(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="r"),
        helper.make_node("Add", ["x", "r"], ["a"], name="a"),
        helper.make_node("Mul", ["a", "r"], ["y"], name="y"),
    ]
    onnx.save(model_of(nodes, [floats("x", 4)], [floats("y", 4)]), tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    with pytest.raises(GraphcutError, match="node 'r' is random or stateful"):
        split_by(model, named(model, "r a", "r y"))
    # What a cascade made without that check looks like: the same graph, its nodes said to be harmless.
    calm = tuple(dataclasses.replace(node, is_stateful=False) for node in model.graph.nodes)
    careless = dataclasses.replace(model, graph=dataclasses.replace(model.graph, nodes=calm))
    cascade = split_by(careless, named(model, "r a", "r y"))
    assert prove(model, cascade).objections == ("node 'r' must run once, but is in 2 parts: part-0.onnx, part-1.onnx",)


# An input with a default, which is an output too, goes on from the last part that reads it; copies read as well


def test_a_default_that_is_an_output_is_written_by_the_last_part_that_reads_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["d", "d"], ["m"], name="m"),
        helper.make_node("Add", ["x", "m"], ["a"], name="a"),
        helper.make_node("Mul", ["a", "m"], ["y"], name="y"),
    ]
    default = numpy_helper.from_array(np.full(4, 3, np.float32), "d")
    proto = model_of(nodes, [floats("x", 4), floats("d", 4)], [floats("y", 4), floats("d", 4)], [default])
    onnx.save(proto, tmp_path / "model.onnx")
    model = graphcut.load(tmp_path / "model.onnx")
    cascade = split_by(model, named(model, "m a", "m y"))
    assert boundaries(cascade) == ["x d > a", "d a > y d"]
    assert prove(model, cascade).objections == ()
    x = np.ones(4, np.float32)
    assert graphcut.run(cascade, {"x": x})["y"].tolist() == [90.0] * 4  # (1 + 9) * 9
    assert graphcut.run(cascade, {"x": x, "d": x})["d"].tolist() == [1.0] * 4


# Random models, cut and copied at random


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(proto=models(), data=st.data())
def test_random_models_with_random_copies_are_bit_identical_and_merge_back(
    proto: ModelProto, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        path = Path(folder, "model.onnx")
        onnx.save(proto, path)
        model = graphcut.load(path)
        if not model.graph.flow:
            return
        rows = data.draw(rows_of(model.graph))
        found = partition(model.graph, rows)
        if not all(block.nodes for block in found.blocks):
            return  # all that stood in one row is computed where it is read
        cascade = split_by(model, rows, weights=data.draw(st.sampled_from(("copy", "share"))))
        assert cascade.wiring == found.wiring
        proof = prove(model, cascade)
        held = [n for block in found.blocks for n in (*block.nodes, *block.replicas)]
        assert (proof.objections, proof.replicas) == ((), len(held) - len(set(held)))
        rng = np.random.default_rng(0)
        feeds = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x0", "x1")}
        feeds["flag"] = np.array(data.draw(st.booleans()))
        fed = {name: feeds[name] for name in model.graph.reads}
        assert [c for c in compare(model, cascade, fed, optimized=False) if not c.is_identical] == []
        whole = graphcut.merge(cascade, Path(folder, "whole.onnx"))
        assert whole.notes == ()  # as there would be, were its nodes out of order
        # An input that is handed straight on has one type in the manifest; these models declare another for the output.
        if set(model.graph.reads).isdisjoint(model.graph.writes):
            assert graph_digest(whole.proto) == graph_digest(model.proto)
