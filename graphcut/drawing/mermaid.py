"""The Mermaid pen: parts and what flows between them, as GitHub draws it in issues and READMEs.

Mermaid stops at 500 edges and at 50,000 characters (its defaults, which GitHub leaves as they are). Pictures that would
be larger are folded: neighbouring parts stand in one box, and the picture says so.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

from ..core.units import count, size
from .scene import Bus, Card, Scene

MOST_EDGES: Final = 500
MOST_CHARACTERS: Final = 50_000

_MOST_NAME: Final = 60
_SAFE: Final = frozenset(" ,_/")
_BULLETS: Final = frozenset(".-")
"""Harmless, but before a space: there Markdown sees a list (`1. `, `- `)."""
_RESIDUAL: Final = "stroke:#b04a06,stroke-dasharray:6 4"
_SEQUENTIAL: Final = "stroke:#1f5fbf"


def mermaid_of(scene: Scene) -> str:
    """The parts of `scene` as a Mermaid flowchart, from left to right, a box around what one device runs.

    Solid edges are sequential, dashed ones residual. What several parts read branches where its bytes stand.
    """
    fold = 1
    while True:
        text, edges = _drawn(scene, fold)
        if (edges <= MOST_EDGES and len(text) <= MOST_CHARACTERS) or fold >= len(scene.cards):
            return text
        fold *= 2


def _drawn(scene: Scene, fold: int) -> tuple[str, int]:
    """The flowchart with `fold` parts to a box, and how many edges it has."""
    lines = ["flowchart LR"]
    boxes = [scene.cards[i : i + fold] for i in range(0, len(scene.cards), fold)]
    lines += _devices(boxes)
    if fold > 1:
        said = f"each box stands for {fold} parts; what flows inside a box is not drawn"
        lines.append(f'  note["{_text(said)}"]')
    edges = 0
    inks: dict[bool, list[int]] = {False: [], True: []}
    for place, bus in enumerate(_folded(scene, fold)):
        drawn = list(_bus(place, bus))
        lines += [line for line, _ in drawn]
        own = sum(is_edge for _, is_edge in drawn)
        inks[bus.is_residual] += range(edges, edges + own)
        edges += own
    for is_residual, style in ((False, _SEQUENTIAL), (True, _RESIDUAL)):
        if inks[is_residual]:
            lines.append(f"  linkStyle {','.join(map(str, inks[is_residual]))} {style}")
    return "\n".join([*lines, ""]), edges


def _devices(boxes: list[tuple[Card, ...]]) -> Iterator[str]:
    devices = dict.fromkeys(_device(box) for box in boxes)
    for number, device in enumerate(devices):
        own = [f'p{place}["{_label(box)}"]' for place, box in enumerate(boxes) if _device(box) == device]
        if device:
            yield f'  subgraph d{number}["{_name(device)}"]'
            yield from (f"    {line}" for line in own)
            yield "  end"
        else:
            yield from (f"  {line}" for line in own)


def _device(box: tuple[Card, ...]) -> str:
    """The device of all its parts; empty where they differ."""
    devices = {card.device for card in box}
    return devices.pop() if len(devices) == 1 else ""


def _label(box: tuple[Card, ...]) -> str:
    first, last = box[0], box[-1]
    name = _name(first.name) if len(box) == 1 else f"{_name(first.name)} to {_name(last.name)}"
    content = [_name(first.content)] if len(box) == 1 and first.content else []
    needs = size(max(card.need_bytes for card in box))
    limits = {card.budget_bytes for card in box}
    budget = limits.pop() if len(limits) == 1 else None
    need = f"{needs} of {size(budget)}" if budget is not None else needs
    over = ", over" if any(card.is_over for card in box) else ""
    return "<br/>".join((name, *content, _text(f"{'' if len(box) == 1 else 'at most '}{need}{over}")))


def _folded(scene: Scene, fold: int) -> list[Bus]:
    """The buses between boxes of `fold` parts; those that end alike are one."""
    found: dict[tuple[int, tuple[int, ...]], list[Bus]] = {}
    for bus in scene.buses:
        source = bus.source // fold
        readers = tuple(sorted({reader // fold for reader in bus.readers} - {source}))
        if readers:
            found.setdefault((source, readers), []).append(bus)
    return [
        Bus(
            source,
            readers,
            tuple(lane for bus in own for lane in bus.lanes),
            sum(bus.bytes for bus in own),
            all(bus.is_exact for bus in own),
        )
        for (source, readers), own in found.items()
    ]


def _bus(place: int, bus: Bus) -> Iterator[tuple[str, bool]]:
    """Its lines, each with whether it is an edge."""
    least = "" if bus.is_exact else "at least "
    said = _text(f"{least}{size(bus.bytes)}, {count(len(bus.lanes), 'tensor')}")
    arrow = "-.->" if bus.is_residual else "-->"
    if len(bus.readers) == 1:
        yield f'  p{bus.source} {arrow}|"{said}"| p{bus.readers[0]}', True
        return
    yield f'  b{place}(["{said}"])', False
    yield f"  p{bus.source} {arrow.removesuffix('>')}{'' if bus.is_residual else '-'} b{place}", True
    for reader in bus.readers:
        yield f"  b{place} {arrow} p{reader}", True


def _name(text: str) -> str:
    """A name, shortened to its end where it is long."""
    return _text(text if len(text) <= _MOST_NAME else "\N{HORIZONTAL ELLIPSIS}" + text[1 - _MOST_NAME :])


def _text(text: str) -> str:
    """`text` as it may stand between quotes: everything that could mean something is written as its number."""
    return "".join(_letter(letter, after) for letter, after in zip(text, text[1:] + " ", strict=True))


def _letter(letter: str, after: str) -> str:
    is_safe = letter in _SAFE or (letter in _BULLETS and after != " ")
    if is_safe or (letter.isascii() and letter.isalnum()):
        return letter
    category = unicodedata.category(letter)
    if category in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return "#65533;"
    return letter if category[0] in "LN" else f"#{ord(letter)};"
