"""Lanes: one row for each tensor that crosses, a line from the part that makes it to the last that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ..units import size
from ..wiring import Tensor, Wiring
from .glyphs import Glyphs
from .tables import table

MOST_ROWS: Final = 14


def total(tensors: Iterable[Tensor], dims: Mapping[str, int], signs: Glyphs) -> str:
    """What tensors take together, with a sign where that is only the least."""
    sizes = [tensor.bytes_for(dims) for tensor in tensors]
    return f"{'' if all(exact for _, exact in sizes) else signs.least}{size(sum(number for number, _ in sizes))}"


def lanes(
    wiring: Wiring, parts: int, tensors: Mapping[str, Tensor], sizes: Mapping[str, str], signs: Glyphs, width: int
) -> list[RenderableType]:
    """The picture of all that crosses between `parts` parts.

    Args:
        wiring: who hands what to whom.
        parts: how many there are.
        tensors: type and shape of what crosses.
        sizes: what each takes, in words.
        signs: what lines and points are drawn with.
        width: columns there are.
    """
    crossing = wiring.crossing
    if not crossing:
        return [Text("no tensor crosses a border", style="dim")]
    step = next((step for step in (6, 5, 4) if step * parts <= width // 2), 3)
    rows = [
        (Text(name), Text(str(tensors[name]), style="dim"), sizes[name], _lane(*crossing[name], step, signs))
        for name in list(crossing)[:MOST_ROWS]
    ]
    heads = "".join(f"p{i}".ljust(step) for i in range(parts)).rstrip()
    shown: list[RenderableType] = [
        table(("crossing tensor", "type", "bytes", heads), rows, width=width, names={1: 8, 0: 15})
    ]
    if len(crossing) > MOST_ROWS:
        shown.append(Text(f"{signs.more} and {len(crossing) - MOST_ROWS} more", style="dim"))
    shown.append(
        Text(
            f"{signs.near * 2} sequential (next part only)   {signs.far * 2} residual (skips a part)   "
            f"made {signs.made}   read {signs.read}",
            style="dim",
        )
    )
    return shown


def _lane(source: int, readers: Sequence[int], step: int, signs: Glyphs) -> Text:
    is_far = max(readers) > source + 1
    line = signs.far if is_far else signs.near
    cells = [" "] * (step * source) + [signs.made] + [line] * (step * (max(readers) - source) - 1) + [signs.read]
    for reader in readers:
        cells[step * reader] = signs.read
    return Text("".join(cells), style="yellow" if is_far else "blue")
