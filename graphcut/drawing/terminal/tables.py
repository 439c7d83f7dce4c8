"""Tables for the terminal. Numbers are never shortened: where room is short, names are, and columns are left out."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ...core.text import shortened
from ...core.units import count
from .screen import Screen, Section

_GAP: Final = 2


class Column(NamedTuple):
    """One column of a table."""

    title: str  #: its title.
    #: one for each row. What comes from a model is `Text`, so that it is never read as markup. Strings are for numbers,
    #: and right-aligned.
    cells: Sequence[Text | str]
    min_width: int = 0  #: letters that a shortened cell keeps while other columns can be left out; 0: never shortened.
    drop_order: int = 0  #: columns with the highest number are left out first; those with 0 never.

    @property
    def is_text(self) -> bool:
        """Whether its cells are words."""
        return not self.cells or isinstance(self.cells[0], Text)

    @property
    def width(self) -> int:
        """Its width if nothing is shortened."""
        return max(cell_len(str(cell)) for cell in (self.title, *self.cells))

    def least(self, min_width: int) -> int:
        """Its width if cells are shortened to `min_width`."""
        return min(self.width, max(min_width, cell_len(self.title))) if self.min_width else self.width


def table(screen: Screen, columns: Iterable[Column]) -> Table:
    """A table without lines, as wide as the screen at most unless its numbers alone are wider.

    Of the columns that may be shortened, the last is shortened first.
    """
    shown = _kept([_plain(column, screen) for column in columns], screen.width)
    widths = _widths(shown, screen.width)
    made = Table(box=None, padding=0, header_style="dim")
    for column, room in zip(shown, widths, strict=True):
        if made.columns:  # a column as gap: rich before 14.3 counts padding after the last column, too
            made.add_column(width=_GAP)
        made.add_column(Text(column.title), width=room, no_wrap=True, justify="left" if column.is_text else "right")
    for row in zip(*(_shortened(column.cells, room) for column, room in zip(shown, widths, strict=True)), strict=True):
        made.add_row(*[part for cell in row for part in ("", cell)][1:])
    return made


def section(screen: Screen, columns: Iterable[Column], *, hidden: int = 0, noun: str = "") -> Section:
    """A table, and how many more there are of what a row is; nothing for a table without rows."""
    shown = list(columns)
    more = [screen.more(f"and {count(hidden, f'more {noun}')}")] if hidden > 0 else []
    return [table(screen, shown), *more] if shown[0].cells else []


def _plain(column: Column, screen: Screen) -> Column:
    def plain(cell: Text | str) -> Text | str:
        if isinstance(cell, str):
            return screen.plain(cell)
        return cell if cell.spans else screen.text(cell.plain, str(cell.style))

    return column._replace(title=screen.plain(column.title), cells=[plain(cell) for cell in column.cells])


def _kept(columns: list[Column], width: int) -> list[Column]:
    """The columns that there is room for."""
    while _total(column.least(column.min_width) for column in columns) > width:
        first = max(columns, key=lambda column: column.drop_order)
        if not first.drop_order:
            break
        columns = [column for column in columns if column is not first]
    return columns


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """The width of each column: names are shortened to `min_width` first, and further only if that is not enough."""
    widths = [column.width for column in columns]
    for shortest in (None, 6):  # letters that are left of a name at least
        for i, column in reversed(list(enumerate(columns))):
            excess = max(0, _total(widths) - width)
            least = column.least(column.min_width if shortest is None else shortest)
            widths[i] -= min(excess, max(0, widths[i] - least))
    return widths


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * (len(found) - 1)


def _shortened(cells: Sequence[Text | str], width: int) -> list[Text]:
    """The cells of a column. Three dots, since not every terminal has the ellipsis."""
    texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
    if all(cell_len(text.plain) <= width for text in texts):
        return texts
    pairs = zip(texts, shortened([text.plain for text in texts], width, cell_len, "..."), strict=True)
    return [text if text.plain == short else Text(short, style=text.style) for text, short in pairs]
