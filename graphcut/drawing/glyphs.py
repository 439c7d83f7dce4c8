"""The signs of the pictures in a terminal, and which of them it can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Glyphs:
    """The signs of the pictures, in Unicode or in plain ASCII."""

    made: str
    read: str
    near: str
    far: str
    cut: str
    yes: str
    no: str
    levels: str
    more: str
    least: str
    times: str


UNICODE: Final = Glyphs("■", "●", "─", "╌", "▲", "✓", "✗", _BLOCKS, "…", "≥ ", "\N{MULTIPLICATION SIGN}")
ASCII: Final = Glyphs("#", "o", "-", ".", "^", "ok", "NO", " .:-=+*#@", "...", ">= ", "x")


def glyphs_for(console: Console) -> Glyphs:
    """Unicode where the terminal can show it."""
    return UNICODE if (console.encoding or "").lower().replace("-", "") == "utf8" else ASCII
