"""The DOT renderer: parts with their devices, hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from onnx import helper

import graphcut
from graphcut.drawing.dot import dot_of
from graphcut.drawing.scene import Scene
from graphcut.drawing.scene_builders import scene_of_analysis

from cases import each
from conftest import floats, model_of
from scenes_by_hand import HOSTILE, KIB, card, decoder, fork, hostile, scene, tangle, tensor, uncut

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
STATEMENT = re.compile(
    r"""digraph\ S\ \{ | subgraph\ cluster_\d+\ \{ | \} | (rankdir|label)=\w+
      | (graph|node|edge)\ \[[\w=.\ ]*\] | \w+(\ ->\ \w+)?(\ \[[\w=.\ S]*\])?""",
    re.VERBOSE,
)


def outside_strings(text: str) -> list[str]:
    """The lines with every quoted string as an S."""
    return [line.strip() for line in STRING.sub("S", text).splitlines()]


def strings(text: str) -> list[str]:
    """The quoted strings, as Graphviz understands them."""
    found = []
    for raw in STRING.findall(text):
        lines = re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], raw)
        found.append(lines.replace("&amp;", "&"))
    return found


@each("make", [lambda: decoder(1), lambda: decoder(9), fork, hostile, uncut, lambda: tangle(7), lambda: scene(())])
def test_the_text_is_dot(make: Callable[[], Scene]) -> None:
    text = dot_of(make())
    assert [line for line in outside_strings(text) if not STATEMENT.fullmatch(line)] == []
    bare = " ".join(outside_strings(text))
    assert bare.count("{") == bare.count("}")


def test_the_text_for_two_parts() -> None:
    cards = [card(0, need_bytes=5 * KIB, content="embedding"), card(1, need_bytes=9 * KIB, budget_bytes=8 * KIB)]
    drawn = scene(cards, [tensor("a", 0, 1, size=2 * KIB), tensor("b", 0, 1, size=KIB, is_exact=False)])
    body = dot_of(drawn).split("label=", 1)[1].splitlines()
    assert body == [
        '"Cut into some parts."',
        r'  p0 [label="part-0.onnx\nembedding\nweights and graph 5 KiB\n100 nodes"]',
        r'  p1 [label="part-1.onnx\nweights and graph 9 KiB of 8 KiB\n101 nodes" color="#c22a22"]',
        r'  p0 -> p1 [label="≥ 3 KiB\n2 tensors" color="#1f5fbf" fontcolor="#1f5fbf"]',
        "}",
    ]


def test_each_device_has_a_cluster_around_its_parts() -> None:
    cards = [card(0, device="phone"), card(1, device="laptop"), card(2, device="phone"), card(3)]
    lines = outside_strings(dot_of(scene(cards)))
    start = lines.index("subgraph cluster_0 {")
    assert [line.split(" ")[0] for line in lines[start:]] == [
        "subgraph", "label=S", "p0", "p2", "}", "subgraph", "label=S", "p1", "}", "p3", "}",
    ]  # fmt: skip
    assert [words for words in strings(dot_of(scene(cards))) if words in {"phone", "laptop"}] == ["phone", "laptop"]


def test_a_bus_with_several_readers_branches_and_names_its_size_once() -> None:
    text = dot_of(scene([card(i) for i in range(3)], [tensor("mask", 0, 1, 2, size=7)]))
    edges = [line for line in outside_strings(text) if "->" in line]
    assert [line.split(" [")[0] for line in edges] == ["p0 -> b0", "b0 -> p1", "b0 -> p2"]
    assert all("style=dashed" in line for line in edges)
    assert strings(text).count("7 B\n1 tensor") == 1


def test_names_are_escaped() -> None:
    shown = HOSTILE
    for letter in "\n\x00\u202e\ud800":
        shown = shown.replace(letter, "\ufffd")
    first = strings(dot_of(replace(hostile(), facts=())))[0]
    assert first == shown


def test_a_name_may_end_with_a_backslash() -> None:
    assert strings(dot_of(scene([card(0, name="\\")])))[-1].startswith("\\\n")


def test_a_model_that_is_not_cut_is_drawn_as_its_segments() -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(3)]
    nodes.append(helper.make_node("Add", ["t1", "t3"], ["y"], "last"))
    analysis = graphcut.analyze(graphcut.load(model_of(nodes, [floats("t0", 2)], [floats("y", 2)])))
    drawn = dot_of(scene_of_analysis(analysis))
    boxes = re.findall(r"p(\d+) \[label=\"(\w+)\"", drawn)
    assert [name for _, name in boxes] == [
        analysis.model.graph.nodes[one.nodes[0]].name for one in analysis.segments.blocks
    ]
    assert len(re.findall(r"p\d+ -> ", drawn)) == len(
        {(t, r) for t, (_, rs) in analysis.segments.wiring.boundary_tensors.items() for r in rs}
    )
