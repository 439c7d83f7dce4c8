"""The signs of the pictures in a terminal, and which of them it can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.text import Text

from .wording import printable


@dataclass(frozen=True)
class Glyphs:
    """The signs of the pictures, in Unicode or in plain ASCII.

    Attributes:
        made: a tensor is made here.
        read: it is read here.
        near: it goes to the next part.
        far: it passes over a part.
        cut: one can cut here, or does.
        key: a key node.
        bar: how much of something.
        tick: a budget.
        yes: it holds.
        no: it does not.
        levels: from nothing to all of a line.
        more: there is more.
        least: no less than.
        spelling: what stands for signs that sentences use, by their code points.
    """

    made: str
    read: str
    near: str
    far: str
    cut: str
    key: str
    bar: str
    tick: str
    yes: str
    no: str
    levels: str
    more: str
    least: str
    spelling: Mapping[int, str] = field(default_factory=dict)

    def spelt(self, text: str) -> str:
        """`text` as it can be printed: nothing in it moves the cursor, and its signs are among these."""
        return printable(text).translate(self.spelling) if self.spelling else printable(text)

    def text(self, text: str, style: str = "") -> Text:
        """The same as rich draws it; never read as markup."""
        return Text(self.spelt(text), style=style)


UNICODE: Final = Glyphs("■", "●", "─", "╌", "▲", "·", "━", "│", "✓", "✗", " ▁▂▃▄▅▆▇█", "…", "≥ ")
ASCII: Final = Glyphs(
    made="#",
    read="o",
    near="-",
    far=".",
    cut="^",
    key=".",
    bar="=",
    tick="|",
    yes="ok",
    no="NO",
    levels=" .:-=+*#@",
    more="...",
    least=">= ",
    spelling=str.maketrans(
        {
            "≥": ">=",
            "…": "...",
            "✓": "ok",
            "✗": "NO",
            "µ": "u",
            "\N{MULTIPLICATION SIGN}": "x",
            "\N{RIGHTWARDS ARROW}": "->",
        }
    ),
)


def glyphs_for(console: Console) -> Glyphs:
    """Unicode where the terminal can show it."""
    return UNICODE if (console.encoding or "").lower().replace("-", "") == "utf8" else ASCII
