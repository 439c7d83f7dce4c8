"""The signs that terminal pictures use, in Unicode and in ASCII."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.text import Text

from ..sentences import printable


@dataclass(frozen=True)
class Glyphs:
    """A set of signs."""

    made: str  #: a part makes the tensor.
    read: str  #: a part reads the tensor.
    near: str  #: line of a sequential tensor.
    far: str  #: line of a residual tensor.
    cut: str  #: a cut or a cut point.
    key: str  #: a key node.
    bar: str  #: cell of a bar.
    tick: str  #: a budget.
    yes: str  #: passed.
    no: str  #: failed.
    levels: str  #: heights of a column, from empty to full.
    more: str  #: something is left out.
    least: str  #: before a lower bound.
    replacements: Mapping[int, str] = field(default_factory=dict)  #: for signs in sentences, by code point.

    def plain(self, text: str) -> str:
        """`text` with escapes for what does not print, and with these signs only."""
        return printable(text).translate(self.replacements) if self.replacements else printable(text)

    def text(self, text: str, style: str = "") -> Text:
        """The same for rich, never read as markup."""
        return Text(self.plain(text), style=style)


UNICODE: Final = Glyphs("■", "●", "─", "╌", "▲", "·", "━", "│", "✓", "✗", " ▁▂▃▄▅▆▇█", "…", "≥ ")
_ASCII_FOR: Final = {"≥": ">=", "…": "...", "✓": "ok", "✗": "NO", "µ": "u", "×": "x", "→": "->"}  # noqa: RUF001 - a sign
ASCII: Final = Glyphs(
    "#", "o", "-", ".", "^", ".", "=", "|", "ok", "NO", " .:-=+*#@", "...", ">= ", str.maketrans(_ASCII_FOR)
)


def glyphs_for(console: Console) -> Glyphs:
    """Unicode if the terminal can show it."""
    return UNICODE if (console.encoding or "").lower().replace("-", "") == "utf8" else ASCII
