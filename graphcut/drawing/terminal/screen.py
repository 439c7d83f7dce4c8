"""What all terminal pictures share: their signs, in Unicode and in ASCII; titles, sections, bars, notes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from ...core.records import table
from ...core.text import printable

Section = list[RenderableType]  #: lines and tables that belong together; an empty one is not drawn.
BAR_CELLS: Final = 10


MADE, READ = "■●"  #: a part makes a tensor, reads it.
NEAR, FAR = "─╌"  #: lines of tensors: sequential, residual.
CUT, KEY = "▲·"  #: a cut or a cut point; a key node.
BAR, TICK = "━│"  #: cells of bars; a budget.
YES, NO = "✓✗"
LEVELS: Final = " ▁▂▃▄▅▆▇█"  #: heights of a column, from empty to full.
_IN_ASCII: Final = str.maketrans(table("drawing/terminal/ascii.toml", dict[str, str]))


class Screen(NamedTuple):
    """What a picture is drawn on."""

    width: int  #: in columns.
    is_ascii: bool = False  #: it can't show the signs above, nor those of sentences.
    words: Callable[[str], str] = str  #: gives the words in which notes name arguments.

    def plain(self, text: str) -> str:
        """`text` with escapes for what does not print, and with signs that it can show."""
        return printable(text).translate(_IN_ASCII) if self.is_ascii else printable(text)

    def text(self, text: str, style: str = "") -> Text:
        """A line of text, never read as markup."""
        return Text(self.plain(text), style=style)

    def title(self, name: str, facts: str = "", dims: str = "") -> Text:
        """A name in bold, facts about it, and the dims that sizes are for."""
        line = self.text(name, "bold")
        if facts:
            line.append(f"  {self.plain(facts)}", "not bold")
        return line.append(f"  {self.plain(dims)}", "not bold dim") if dims else line

    def note(self, text: str) -> Text:
        """A note."""
        return self.text(f"note: {self.words(text)}", "yellow")

    def verdict(self, text: str, *, holds: bool) -> Text:
        """An answer with its sign, in green or red."""
        sign, colour = (YES, "green") if holds else (NO, "red")
        return self.text(f"{sign} {text}", f"bold {colour}")

    def more(self, text: str) -> Text:
        """What is left out."""
        return self.text(f"… {text}", "dim")

    def bar(self, share: float, cells: int = BAR_CELLS) -> str:
        """A bar of that share of `cells`; at least one cell for anything above 0."""
        return self.plain(BAR) * max(round(share * cells), int(share > 0))


def screen_on(console: Console, words: Callable[[str], str] = str) -> Screen:
    """The screen of a console. Its signs are in Unicode if the terminal can show that."""
    return Screen(console.width, (console.encoding or "").lower().replace("-", "") != "utf8", words)


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
