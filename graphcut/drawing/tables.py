"""Tables for the terminal whose numbers are never shortened: where room is short, names are, and columns stay away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from .glyphs import Glyphs

_GAP: Final = 2
_FEWEST: Final = 6
"""Letters of a name that are left at worst."""


@dataclass(frozen=True)
class Trimmed:
    """Something without the blanks at the ends of its lines, which other programs would have to read past."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.shown, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            yield from line[:-1]
            if line:
                yield Segment(line[-1].text.rstrip(), line[-1].style)
            yield Segment.line()


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: above it.
        cells: one a row. What comes from a model stands in `Text`, and so is never read as markup; columns of strings
            are numbers, and stand to the right.
        fewest: how many letters a shortened cell keeps as long as other columns can stay away; 0 where none may be
            shortened.
        spare: whether it may stay away; those with the greatest number go first, those with 0 never.
    """

    title: str
    cells: Sequence[Text | str]
    fewest: int = 0
    spare: int = 0

    @property
    def is_text(self) -> bool:
        """Are its cells words?"""
        return not self.cells or isinstance(self.cells[0], Text)

    @property
    def width(self) -> int:
        """What it takes when nothing is shortened."""
        return max(cell_len(self.title), *(_width(cell) for cell in self.cells)) if self.cells else len(self.title)

    def least(self, fewest: int) -> int:
        """What it takes when its cells are shortened to so many letters."""
        return min(self.width, max(fewest, cell_len(self.title))) if self.fewest else self.width


def table(columns: Sequence[Column], *, width: int, signs: Glyphs) -> Table:
    """A table without lines that is at most `width` wide, if its numbers alone are not wider.

    Args:
        columns: all of one length. Of those that may be shortened the last is, first.
        width: of the terminal.
        signs: what it can show.
    """
    shown = _kept([_spelt(column, signs) for column in columns], width)
    wanted = _widths(shown, width)
    made = Table(box=None, padding=0, header_style="dim")
    for column, room in zip(shown, wanted, strict=True):
        if made.columns:  # a column as gap: rich before 14.3 counts padding after the last column, too
            made.add_column(width=_GAP)
        made.add_column(Text(column.title), width=room, no_wrap=True, justify="left" if column.is_text else "right")
    for row in zip(*(column.cells for column in shown), strict=True):
        cells = [("", _shortened(cell, room)) for cell, room in zip(row, wanted, strict=True)]
        made.add_row(*[part for cell in cells for part in cell][1:])
    return made


def _spelt(column: Column, signs: Glyphs) -> Column:
    cells = [
        signs.spelt(cell) if isinstance(cell, str) else cell if cell.spans else signs.text(cell.plain, str(cell.style))
        for cell in column.cells
    ]
    return Column(signs.spelt(column.title), cells, column.fewest, column.spare)


def _kept(columns: list[Column], width: int) -> list[Column]:
    """The columns that there is room for."""
    while _total(column.least(column.fewest) for column in columns) > width:
        first = max(columns, key=lambda column: column.spare)
        if not first.spare:
            break
        columns = [column for column in columns if column is not first]
    return columns


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """What each column gets: first names are shortened to what they should keep, then to what they must."""
    wanted = [column.width for column in columns]
    for fewest in (None, _FEWEST):
        for i, column in reversed(list(enumerate(columns))):
            excess = max(0, _total(wanted) - width)
            wanted[i] -= min(excess, max(0, wanted[i] - column.least(column.fewest if fewest is None else fewest)))
    return wanted


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * (len(found) - 1)


def _width(cell: Text | str) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)


def _shortened(cell: Text | str, width: int) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    if cell_len(text.plain) <= width:
        return text
    # The end of a name tells it from its neighbours. Three plain dots, since not every terminal has the sign.
    tail = text.plain
    while cell_len(tail) > max(1, width - 3):
        tail = tail[1:]
    return Text(f"...{tail}", style=text.style)
