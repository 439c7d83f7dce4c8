"""What all terminal pictures share: titles, sections, tables, bars, notes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from ...core.units import count
from .glyphs import Glyphs, glyphs_for
from .tables import Column, table

Section = list[RenderableType]
"""Lines and tables that belong together; an empty one is not drawn."""

BAR_CELLS: Final = 10


@dataclass(frozen=True)
class Screen:
    """What a picture is drawn with: the signs that the terminal can show, and its width in columns."""

    glyphs: Glyphs
    width: int

    def text(self, text: str, style: str = "") -> Text:
        """A line of text, never read as markup."""
        return self.glyphs.text(text, style)

    def title(self, name: str, facts: str = "", dims: str = "") -> Text:
        """A name in bold, facts about it, and the dims that sizes are for."""
        line = self.text(name, "bold")
        if facts:
            line.append(f"  {self.glyphs.plain(facts)}", "not bold")
        return line.append(f"  {self.glyphs.plain(dims)}", "not bold dim") if dims else line

    def note(self, text: str) -> Text:
        """A note."""
        return self.text(f"note: {text}", "yellow")

    def table(self, columns: Iterable[Column]) -> RenderableType:
        """A table that fits the terminal."""
        return table(columns, width=self.width, glyphs=self.glyphs)

    def hidden(self, number: int, noun: str) -> Section:
        """A line about rows that are left out, if there are any."""
        return [self.text(f"{self.glyphs.more} and {count(number, f'more {noun}')}", "dim")] if number > 0 else []

    def bar(self, share: float, cells: int = BAR_CELLS) -> str:
        """A bar of that share of `cells`; at least one cell for anything above 0."""
        return self.glyphs.bar * max(round(share * cells), int(share > 0))

    def result_sign(self, is_good: bool | None) -> str:  # noqa: FBT001 - three-valued
        """The sign for passed, failed, or (None) not run."""
        return self.glyphs.more if is_good is None else self.glyphs.yes if is_good else self.glyphs.no


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


def dims_text(dims: Mapping[str, object]) -> str:
    """`batch=1, seq=512`."""
    return ", ".join(f"{name}={number}" for name, number in dims.items())


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
