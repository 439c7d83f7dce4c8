"""Tables for the terminal whose numbers are never shortened: where room is short, names lose their beginnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

_GAP = 2


def table(
    titles: Sequence[str], rows: Sequence[Sequence[Text | str]], *, width: int, names: Mapping[int, int]
) -> Table:
    """A table without lines that is at most `width` wide, if its numbers alone are not wider.

    Args:
        titles: of the columns.
        rows: of cells; what comes from a model stands in `Text`, and so is never read as markup.
        width: of the terminal.
        names: the columns that may be shortened, dearest last, and the fewest letters to leave; all others are kept
            whole, and those whose cells are no `Text` stand to the right.
    """
    wanted = [max(len(title), *(len(row[i]) for row in rows)) for i, title in enumerate(titles)]
    excess = sum(wanted) + _GAP * (len(titles) - 1) - width
    for column, fewest in names.items():
        cut = max(0, min(excess, wanted[column] - max(fewest, len(titles[column]))))
        wanted[column] -= cut
        excess -= cut
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for i, title in enumerate(titles):
        is_text = not rows or isinstance(rows[0][i], Text)
        made.add_column(title, width=wanted[i], no_wrap=True, justify="left" if is_text else "right")
    for row in rows:
        made.add_row(*(_shortened(cell, wanted[i]) for i, cell in enumerate(row)))
    return made


def _shortened(cell: Text | str, width: int) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    if len(text) <= width:
        return text
    # The end of a name tells it from its neighbours. Three plain dots, since not every terminal has the sign.
    return Text(f"...{text.plain[3 - width :]}" if width > 3 else text.plain[-width:], style=text.style)
