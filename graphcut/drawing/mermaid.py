"""The Mermaid renderer: the parts and the tensors between them, as GitHub draws it in issues and READMEs.

Mermaid accepts at most 500 edges and 50,000 characters by default, also on GitHub. In a larger picture, neighbouring
parts are folded into one box, and a note says so.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from ..core.text import shortened
from ..core.units import count
from .device_groups import device_groups
from .scene import Bus, Card, Scene, buses_of
from .sentences import need_text, of_budget, size_text
from .svg.primitives import plain
from .svg.style import LIGHT

MAX_EDGES: Final = 500
MAX_CHARACTERS: Final = 50_000

_STYLES: Final = {False: f"stroke:{LIGHT['near']}", True: f"stroke:{LIGHT['far']},stroke-dasharray:6 4"}


def mermaid_of(scene: Scene) -> str:
    """The parts of `scene` as a Mermaid flowchart, from left to right, with a box around the parts of a device.

    Of a pipeline of models the boxes are around what runs once, at each step, and at the end, and an edge goes back to
    where the next step begins. Solid edges are sequential, dashed ones residual. A bus with several readers branches at
    its size.
    """
    fold = 1
    while True:
        text, edges = _flowchart(scene, fold)
        if (edges <= MAX_EDGES and len(text) <= MAX_CHARACTERS) or fold >= len(scene.cards):
            return text
        fold *= 2


def _flowchart(scene: Scene, fold: int) -> tuple[str, int]:
    """The flowchart with `fold` parts in a box, and its number of edges."""
    lines = ["flowchart LR"]
    boxes = [scene.cards[i : i + fold] for i in range(0, len(scene.cards), fold)]
    named = ((_group(box), f'p{i}["{_label(box)}"]') for i, box in enumerate(boxes))
    lines += device_groups(named, lambda number, device: f'  subgraph d{number}["{_name(device)}"]', "  end")
    if fold > 1:
        lines.append(f'  note["{_text(f"each box is {fold} parts; tensors inside a box are not drawn")}"]')
    edges: list[bool] = []  # whether each is residual
    for index, bus in enumerate(buses_of(scene.tensors, fold)):
        lines += _bus(index, bus)
        edges += [bus.is_residual] * (len(bus.readers) + (len(bus.readers) > 1))
    if scene.loop is not None:
        first, last = (index // fold for index in scene.loop)
        lines.append(f'  p{last} -.->|"next step"| p{first}')
    for is_residual, style in _STYLES.items():
        if indices := [str(i) for i, kind in enumerate(edges) if kind == is_residual]:
            lines.append(f"  linkStyle {','.join(indices)} {style}")
    return "\n".join([*lines, ""]), len(edges) + (scene.loop is not None)


def _group(box: Sequence[Card]) -> str:
    """The group of all its parts; empty if they differ."""
    groups = {card.group for card in box}
    return groups.pop() if len(groups) == 1 else ""


def _label(box: Sequence[Card]) -> str:
    first, last = box[0], box[-1]
    name = _name(first.name) if len(box) == 1 else f"{_name(first.name)} to {_name(last.name)}"
    known = (first.device if first.runs else "", first.content) if len(box) == 1 else ()
    largest = max(box, key=lambda card: (card.need_bytes, not card.need_exact))
    most = f"{largest.measure} {'' if len(box) == 1 else 'at most ' if largest.need_exact else ''}{need_text(largest)}"
    budgets = {card.budget_bytes for card in box}
    of = of_budget(budgets.pop()) if len(budgets) == 1 else ""
    over = ", over" if any(card.is_over for card in box) else ""
    return "<br/>".join((name, *map(_name, filter(None, known)), _text(f"{most}{of}{over}")))


def _bus(index: int, bus: Bus) -> Iterator[str]:
    """Its lines: an edge, or a box with an edge to it and one to each reader."""
    text = _text(f"{size_text(bus, least='at least ')}, {count(len(bus.tensors), 'tensor')}")
    arrow, plain = ("-.->", "-.-") if bus.is_residual else ("-->", "---")
    if len(bus.readers) == 1:
        yield f'  p{bus.source} {arrow}|"{text}"| p{bus.readers[0]}'
        return
    yield f'  b{index}(["{text}"])'
    yield f"  p{bus.source} {plain} b{index}"
    yield from (f"  b{index} {arrow} p{reader}" for reader in bus.readers)


def _name(text: str) -> str:
    return _text(*shortened([text], 60))


def _text(text: str) -> str:
    """`text` for a quoted string: every character that could have a meaning is written as its number."""
    shown = plain(text)
    return "".join(_character(letter, after) for letter, after in zip(shown, shown[1:] + " ", strict=True))


def _character(letter: str, after: str) -> str:
    # Before a space, a dot or a minus sign makes a list in Markdown (`1. `, `- `).
    is_safe = letter in " ,_/" or (letter in ".-" and after != " ") or unicodedata.category(letter)[0] in "LN"
    return letter if is_safe else f"#{ord(letter)};"
