"""What all terminal pictures share: their signs, in Unicode and in ASCII; titles, sections, bars, notes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from ...core.text import printable

Section = list[RenderableType]  #: lines and tables that belong together; an empty one is not drawn.
BAR_CELLS: Final = 10


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


UNICODE: Final = Glyphs("■", "●", "─", "╌", "▲", "·", "━", "│", "✓", "✗", " ▁▂▃▄▅▆▇█", "…", "≥ ")
_ASCII: Final = str.maketrans({"≥": ">=", "…": "...", "✓": "ok", "✗": "NO", "µ": "u", "×": "x", "→": "->"})  # noqa: RUF001 - a sign
ASCII: Final = Glyphs("#", "o", "-", ".", "^", ".", "=", "|", "ok", "NO", " .:-=+*#@", "...", ">= ", _ASCII)


def glyphs_for(console: Console) -> Glyphs:
    """Unicode if the terminal can show it."""
    return UNICODE if (console.encoding or "").lower().replace("-", "") == "utf8" else ASCII


@dataclass(frozen=True)
class Screen:
    """What a picture is drawn with: the signs that the terminal can show, and its width in columns."""

    glyphs: Glyphs
    width: int

    def text(self, text: str, style: str = "") -> Text:
        """A line of text, never read as markup."""
        return Text(self.glyphs.plain(text), style=style)

    def title(self, name: str, facts: str = "", dims: str = "") -> Text:
        """A name in bold, facts about it, and the dims that sizes are for."""
        line = self.text(name, "bold")
        if facts:
            line.append(f"  {self.glyphs.plain(facts)}", "not bold")
        return line.append(f"  {self.glyphs.plain(dims)}", "not bold dim") if dims else line

    def note(self, text: str) -> Text:
        """A note."""
        return self.text(f"note: {text}", "yellow")

    def verdict(self, text: str, *, holds: bool) -> Text:
        """An answer with its sign, in green or red."""
        sign, colour = (self.glyphs.yes, "green") if holds else (self.glyphs.no, "red")
        return self.text(f"{sign} {text}", f"bold {colour}")

    def more(self, text: str) -> Text:
        """What is left out."""
        return self.text(f"{self.glyphs.more} {text}", "dim")

    def bar(self, share: float, cells: int = BAR_CELLS) -> str:
        """A bar of that share of `cells`; at least one cell for anything above 0."""
        return self.glyphs.bar * max(round(share * cells), int(share > 0))


def screen_on(console: Console) -> Screen:
    """The screen of a console."""
    return Screen(glyphs_for(console), console.width)


def picture(*sections: Iterable[RenderableType], notes: Iterable[RenderableType] = ()) -> RenderableType:
    """Sections with a blank line between them, and notes below, without blanks at the ends of lines."""
    lines: Section = []
    for section in map(list, sections):
        if section:
            lines += [Text(), *section] if lines else section
    return _Trimmed(Group(*lines, *notes))


@dataclass(frozen=True)
class _Trimmed:
    """Something without blanks at the ends of its lines, which would disturb other programs."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.shown, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            yield from line[:-1]
            if line:
                yield Segment(line[-1].text.rstrip(), line[-1].style)
            yield Segment.line()
