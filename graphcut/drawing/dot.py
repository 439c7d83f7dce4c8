"""The DOT pen: parts and what flows between them for Graphviz, and the nodes of one part.

What many read is never an edge to each: long edges over everything are what makes layered layouts slow and unreadable.
Between parts a bus branches at a small dot, so that its bytes stand there once; inside a part a tensor with many
readers is written beside each of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..core.errors import UsageError
from ..core.graph import Graph
from ..core.manifest import Cascade, Part
from ..core.units import count, size
from ..loading.model import load
from .scene import Bus, Card, Scene

MOST_EDGES: Final = 4
"""Readers of a tensor inside a part that are joined to it by edges; if more read it, its name stands beside each."""

_INKS: Final = {False: 'color="#1f5fbf" fontcolor="#1f5fbf"', True: 'color="#b04a06" fontcolor="#b04a06" style=dashed'}
_LOOKS: Final = (
    "  graph [fontname=Helvetica fontsize=12 color=gray60]\n"
    "  node [shape=box style=rounded fontname=Helvetica fontsize=11]\n"
    "  edge [fontname=Helvetica fontsize=10 color=gray40]"
)


def dot_of(scene: Scene) -> str:
    """The parts of `scene` as a DOT graph, with a cluster around what one device runs.

    Blue edges are sequential, dashed orange ones residual.
    """
    lines = [f"digraph {_quoted(scene.title)} {{", "  rankdir=LR", _LOOKS, f"  label={_quoted(scene.sentence)}"]
    lines += _clusters(scene.cards)
    for place, bus in enumerate(scene.buses):
        lines += _bus(place, bus)
    return "\n".join([*lines, "}\n"])


def _clusters(cards: Sequence[Card]) -> Iterator[str]:
    devices = dict.fromkeys(card.device for card in cards)
    for number, device in enumerate(devices):
        own = [f"p{place} [{_card(card)}]" for place, card in enumerate(cards) if card.device == device]
        if device:
            yield f"  subgraph cluster_{number} {{"
            yield f"    label={_quoted(device)}"
            yield from (f"    {line}" for line in own)
            yield "  }"
        else:
            yield from (f"  {line}" for line in own)


def _card(card: Card) -> str:
    budget = "" if card.budget_bytes is None else f" of {size(card.budget_bytes)}"
    lines = (card.name, card.content, f"{size(card.need_bytes)}{budget}", count(card.nodes, "node"))
    over = ' color="#c22a22"' if card.is_over else ""
    return f"label={_quoted(*(line for line in lines if line))}{over}"


def _bus(place: int, bus: Bus) -> Iterator[str]:
    ink = _INKS[bus.is_residual]
    least = "" if bus.is_exact else "\N{GREATER-THAN OR EQUAL TO} "
    label = f"label={_quoted(f'{least}{size(bus.bytes)}', count(len(bus.lanes), 'tensor'))}"
    if len(bus.readers) == 1:
        yield f"  p{bus.source} -> p{bus.readers[0]} [{label} {ink}]"
        return
    yield f'  b{place} [shape=point width=0.06 label="" {ink}]'
    yield f"  p{bus.source} -> b{place} [{label} arrowhead=none {ink}]"
    yield from (f"  b{place} -> p{reader} [{ink}]" for reader in bus.readers)


def dot_of_part(cascade: Cascade, part: int) -> str:
    """The nodes of one part as a DOT graph; constant nodes are left out, weights too.

    Args:
        cascade: where the part lies.
        part: its place among `cascade.parts`.

    Raises:
        UsageError: there is no such part.
        ModelError: its file is damaged.
    """
    if not 0 <= part < len(cascade.parts):
        known = f"{cascade.path} has {count(len(cascade.parts), 'part')}"
        raise UsageError(f"there is no part {part}: {known}", hint=f"choose from 0 to {len(cascade.parts) - 1}")
    chosen = cascade.parts[part]
    graph = load(cascade.file(chosen)).graph
    constants = len(graph.nodes) - len(graph.flow)
    said = f"{chosen.file}: {count(len(graph.flow), 'node')}"
    said += f" and {count(constants, 'constant')} (not drawn)" if constants else ""
    lines = [f"digraph {_quoted(chosen.file)} {{", _LOOKS, f"  label={_quoted(said)}"]
    lines += (f"  n{i} [label={_quoted(graph.nodes[i].op, graph.nodes[i].name)}]" for i in graph.flow)
    lines += _flows(graph, _ends(cascade, chosen, graph))
    return "\n".join([*lines, "}\n"])


def _ends(cascade: Cascade, part: Part, graph: Graph) -> Mapping[str, str]:
    """What stands at the borders of a part: each tensor and, where it is known, its type."""
    names = dict.fromkeys((*part.reads, *part.writes, *graph.reads, *graph.writes))
    return {name: str(cascade.tensors.get(name, "")) for name in names}


def _flows(graph: Graph, ends: Mapping[str, str]) -> Iterator[str]:
    """An edge for each tensor and reader, and boxes for what comes from outside and goes there."""
    numbers = {name: i for i, name in enumerate(ends)}
    for name in graph.reads:
        yield f"  i{numbers[name]} [shape=ellipse style=filled fillcolor=gray92 label={_quoted(name, ends[name])}]"
        yield from _readers(graph, name, f"i{numbers[name]}", len(numbers))
    places = {tensor: len(numbers) + i for i, tensor in enumerate(graph.producer)}
    for i in graph.flow:
        for tensor in graph.nodes[i].writes:
            yield from _readers(graph, tensor, f"n{i}", places[tensor])
    for name in graph.writes:
        yield f"  o{numbers[name]} [shape=ellipse style=filled fillcolor=gray92 label={_quoted(name, ends[name])}]"
        maker = graph.producer.get(name)
        if maker is not None and not graph.nodes[maker].is_constant:
            yield f"  n{maker} -> o{numbers[name]}"


def _readers(graph: Graph, tensor: str, maker: str, place: int) -> Iterator[str]:
    readers = graph.readers.get(tensor, ())
    if len(readers) <= MOST_EDGES:
        yield from (f"  {maker} -> n{reader}" for reader in readers)
        return
    for reader in readers:
        yield f"  t{place}_{reader} [shape=plaintext style=solid fontcolor=gray30 label={_quoted(tensor)}]"
        yield f"  t{place}_{reader} -> n{reader}"


def _quoted(*lines: str) -> str:
    r"""A quoted string of DOT, with a line break between `lines`.

    In labels a backslash begins an escape (`\N` is the node's name) and `&` an HTML entity, so both are escaped.
    """
    return '"' + r"\n".join(_escaped(line) for line in lines if line) + '"'


def _escaped(text: str) -> str:
    shown = "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else c for c in text)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
