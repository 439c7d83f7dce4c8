"""The lane chart: a row for each boundary tensor, with a line from the part that makes it to the last that reads it."""

import re
from collections.abc import Mapping
from typing import Final

from rich.text import Text

from ...core.units import count
from ..lane_rows import lane_rows
from ..part_labels import ranges
from ..scene import Flow, FlowKind, Scene
from ..sentences import size_text
from .screen import FAR, MADE, NEAR, READ, Screen, Section
from .tables import Column, table

MAX_ROWS: Final = 14
_STEP: Final = 3
STYLES: Final[Mapping[FlowKind, str]] = {"sequential": "blue", "residual": "yellow", "exchange": "blue", "kept": "dim"}


def lanes(scene: Scene, screen: Screen) -> Section:
    """The boundary tensors."""
    if not scene.tensors:
        return [Text("no tensor crosses a boundary" + " between the parts here" * bool(scene.elsewhere), style="dim")]
    rows, hidden = lane_rows(scene, MAX_ROWS)
    width, parts = screen.width, len(scene.cards)
    names = Column("boundary tensor", [Text(row.name) for row in rows], min_width=24)
    sizes = Column("bytes", [size_text(row.flow) for row in rows])
    step = _step(parts, width, width - names.least(15) - sizes.width - 4)
    cells = [_line(row.flow, step) if step else ends_text(row.flow) for row in rows]
    picture = Column(_titles(parts, step) if step else "from and to", cells)
    types = Column("type", [Text(row.type, style="dim") for row in rows], drop_order=1)
    if names.width + types.width + sizes.width + picture.width + 6 > width:  # short names of types: `f16[1,512,4096]`
        short = (re.sub(r"^(b?f|i|u)(?:loat|nt|int)(\d+\[)", r"\1\2", row.type) for row in rows)
        types = Column("type", [Text(one, style="dim") for one in short], drop_order=1)
    near, far = ("sequential (next part only)", "residual (skips a part)")
    if scene.is_ranked:
        near, far = ("exchange (read by another rank)", "kept (read by its own rank only)")
    legend = f"{NEAR * 2} {near}   {FAR * 2} {far}" + f"   made {MADE}   read {READ}" * bool(step)
    more = [screen.more(hidden)] if hidden else []
    return [table(screen, [names, types, sizes, picture]), *more, screen.text(legend, "dim")]


def ends_text(flow: Flow, *, is_short: bool = False) -> Text:
    """`p0 ──> p1-p63`: which part makes it, and which parts read it; if short, only how many."""
    readers = ranges(flow.readers, "p")
    if is_short and len(readers) > 2:
        readers = [count(len(flow.readers), "part")]
    elif len(readers) > 4:
        readers = [*readers[:2], f"{len(flow.readers)} parts, up to {readers[-1]}"]
    return Text(f"p{flow.source} {_sign(flow) * 2}> {', '.join(readers)}", style=STYLES[flow.kind])


def _step(parts: int, width: int, room: int) -> int:
    """Columns from one part to the next; 0 if there is no room for lines."""
    if parts <= 8:
        for step in (6, 5, 4):
            if step * parts <= width // 2 and step * (parts - 1) + 2 <= room:
                return step
    return _STEP if parts <= 32 and _STEP * (parts - 1) + 2 <= room else 0  # for more parts, words instead of lines


def _titles(parts: int, step: int) -> str:
    """The parts above the lines; the number alone where `p10` would touch the next."""
    names = (f"p{i}" if len(f"p{i}") < step else f"{i}" for i in range(parts))
    return "".join(name.ljust(step) for name in names).rstrip()


def _line(flow: Flow, step: int) -> Text:
    cells = [" "] * (step * flow.source) + [MADE] + [_sign(flow)] * (step * (flow.readers[-1] - flow.source))
    for reader in flow.readers:
        cells[step * reader] = READ
    return Text("".join(cells), style=STYLES[flow.kind])


def _sign(flow: Flow) -> str:
    return FAR if flow.kind in {"residual", "kept"} else NEAR
