"""The DOT renderer, for Graphviz: the parts and the tensors between them.

A tensor with many readers does not get an edge to each, since long edges make layered layouts slow and hard to read: a
bus branches at a small dot.
"""

from collections.abc import Iterator

from ..core.records import table
from ..core.units import count
from .device_groups import device_groups
from .scene import Bus, Card, Scene, buses_of
from .sentences import need_text, of_budget, size_text
from .svg.primitives import plain
from .svg.style import LIGHT


def dot_of(scene: Scene) -> str:
    """The parts of `scene` as a DOT graph, with a cluster for each device; of a model that is not cut its segments.

    Blue edges are sequential, dashed orange ones residual. Of a pipeline of models there is a cluster for what runs
    once, at each step, and at the end; an edge goes back to where the next step begins.
    """
    lines = [f"digraph {_quoted(scene.title)} {{", "  rankdir=LR", f"  label={_quoted(scene.sentence)}"]
    lines[2:2] = [f"  {kind} [{style}]" for kind, style in table("drawing/dot.toml", dict[str, str]).items()]
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


def _quoted(*lines: str) -> str:
    r"""A quoted string of DOT, with line breaks between `lines`.

    In labels a backslash begins an escape (`\N` is the node's name) and `&` an HTML entity, so both are escaped.
    """
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;"})
    return '"' + r"\n".join(plain(line).translate(escapes) for line in lines if line) + '"'
