"""The DOT renderer, for Graphviz: the parts and the tensors between them, or the nodes of one part.

A tensor with many readers does not get an edge to each, since long edges make layered layouts slow and hard to read:
between parts, a bus branches at a small dot; inside a part, the name of the tensor is beside each reader.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ..core.errors import UsageError
from ..core.file_checks import check_unchanged
from ..core.graph import Graph
from ..core.manifest import Cascade
from ..core.units import count
from ..loading.opening import load
from .device_groups import device_groups
from .scene import Bus, Card, Scene, buses_of
from .sentences import need_text, of_budget, size_text
from .svg.primitives import plain
from .svg.style import LIGHT

MAX_EDGES: Final = 4  #: a tensor inside a part with more readers has its name beside each, instead of edges.
_DEFAULTS: Final = (
    "  graph [fontname=Helvetica fontsize=12 color=gray60]\n"
    "  node [shape=box style=rounded fontname=Helvetica fontsize=11]\n"
    "  edge [fontname=Helvetica fontsize=10 color=gray40]"
)


def dot_of(scene: Scene) -> str:
    """The parts of `scene` as a DOT graph, with a cluster for each device; of a model that is not cut its segments.

    Blue edges are sequential, dashed orange ones residual. Of a pipeline of models there is a cluster for what runs
    once, at each step, and at the end; an edge goes back to where the next step begins.
    """
    lines = [f"digraph {_quoted(scene.title)} {{", "  rankdir=LR", _DEFAULTS, f"  label={_quoted(scene.sentence)}"]
    boxes = [(card.group, f"p{index} [{_card(card)}]") for index, card in enumerate(scene.cards)]
    boxes = boxes or [("", f"p{index} [label={_quoted(name)}]") for index, name in enumerate(scene.segments)]
    lines += device_groups(boxes, lambda i, device: f"  subgraph cluster_{i} {{\n    label={_quoted(device)}", "  }")
    for index, bus in enumerate(scene.buses or buses_of(scene.segment_tensors)):
        lines += _bus(index, bus)
    if scene.loop is not None:
        first, last = scene.loop
        lines.append(f'  p{last} -> p{first} [label="next step" style=dotted constraint=false]')
    return "\n".join([*lines, "}\n"])


def _card(card: Card) -> str:
    need = f"{card.measure} {need_text(card)}{of_budget(card.budget_bytes)}"
    over = f' color="{LIGHT["over"]}"' if card.is_over else ""
    device = card.device if card.runs else ""
    return f"label={_quoted(card.name, device, card.content, need, count(card.nodes, 'node'))}{over}"


def _bus(index: int, bus: Bus) -> Iterator[str]:
    rgb = LIGHT["far" if bus.is_residual else "near"]
    colour = f'color="{rgb}" fontcolor="{rgb}"{" style=dashed" * bus.is_residual}'
    label = f"label={_quoted(size_text(bus), count(len(bus.tensors), 'tensor'))}"
    if len(bus.readers) == 1:
        yield f"  p{bus.source} -> p{bus.readers[0]} [{label} {colour}]"
        return
    yield f'  b{index} [shape=point width=0.06 label="" {colour}]'
    yield f"  p{bus.source} -> b{index} [{label} arrowhead=none {colour}]"
    yield from (f"  b{index} -> p{reader} [{colour}]" for reader in bus.readers)


def dot_of_part(cascade: Cascade, part: int) -> str:
    """The nodes of the part with that index as a DOT graph, without constant nodes and weights."""
    if not 0 <= part < len(cascade.parts):
        message = f"there is no part {part}: {cascade.path} has {count(len(cascade.parts), 'part')}"
        raise UsageError(message, hint=f"choose from 0 to {len(cascade.parts) - 1}")
    chosen = cascade.parts[part]
    check_unchanged(cascade, {chosen.file: chosen.sha256})
    graph = load(cascade.file(chosen)).graph
    constants = len(graph.nodes) - len(graph.flow)
    title = f"{chosen.file}: {count(len(graph.flow), 'node')}"
    title += f" and {count(constants, 'constant')} (not drawn)" if constants else ""
    lines = [f"digraph {_quoted(chosen.file)} {{", _DEFAULTS, f"  label={_quoted(title)}"]
    lines += (f"  n{i} [label={_quoted(graph.nodes[i].op, graph.nodes[i].name)}]" for i in graph.flow)
    ends = dict.fromkeys((*chosen.reads, *chosen.writes, *graph.reads, *graph.writes))
    lines += _edges(graph, {name: str(cascade.tensors.get(name, "")) for name in ends})
    return "\n".join([*lines, "}\n"])


def _edges(graph: Graph, interface: Mapping[str, str]) -> Iterator[str]:
    """The inputs and outputs of a part, with their types if known, and an edge for each tensor and reader."""
    number = {name: i for i, name in enumerate(dict.fromkeys((*interface, *graph.producer)))}
    for name in graph.reads:
        yield f"  i{number[name]} {_ellipse(name, interface[name])}"
        yield from _reader_edges(graph, name, f"i{number[name]}", number[name])
    for i in graph.flow:
        for tensor in graph.nodes[i].writes:
            yield from _reader_edges(graph, tensor, f"n{i}", number[tensor])
    for name in graph.writes:
        yield f"  o{number[name]} {_ellipse(name, interface[name])}"
        if (writer := graph.producer.get(name)) is not None and not graph.nodes[writer].is_constant:
            yield f"  n{writer} -> o{number[name]}"


def _ellipse(name: str, type_: str) -> str:
    return f"[shape=ellipse style=filled fillcolor=gray92 label={_quoted(name, type_)}]"


def _reader_edges(graph: Graph, tensor: str, writer: str, number: int) -> Iterator[str]:
    readers = graph.readers.get(tensor, ())
    if len(readers) <= MAX_EDGES:
        yield from (f"  {writer} -> n{reader}" for reader in readers)
        return
    for reader in readers:
        yield f"  t{number}_{reader} [shape=plaintext style=solid fontcolor=gray30 label={_quoted(tensor)}]"
        yield f"  t{number}_{reader} -> n{reader}"


def _quoted(*lines: str) -> str:
    r"""A quoted string of DOT, with line breaks between `lines`.

    In labels a backslash begins an escape (`\N` is the node's name) and `&` an HTML entity, so both are escaped.
    """
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;"})
    return '"' + r"\n".join(plain(line).translate(escapes) for line in lines if line) + '"'
