"""The dependency matrix as a chart."""

from collections.abc import Iterator
from typing import Final

from ...core.units import count
from ..dependency_matrix import Matrix
from ..scene import KINDS
from ..sentences import size_text
from .bus_lines import CSS
from .primitives import BODY, SMALL, Panel, box, label, number, thing, width_of

MAX_ROWS: Final = 64
_NAMES: Final = 150.0
_TOP: Final = 18.0


def draw_matrix(matrix: Matrix, width: float) -> Panel:
    """A coloured cell for each writer and reader, darker for more bytes; with the bytes where there is room."""
    cell_width = min(72.0, (width - _NAMES) / len(matrix.names))
    height = min(20.0, cell_width)
    has_text = all(width_of(size_text(cell), SMALL) + 4 <= cell_width for cell in matrix.cells)
    marks = list(_names(matrix, cell_width, height))
    for i, cell in enumerate(matrix.cells):
        x, y = _NAMES + cell_width * cell.readers[0], _TOP + height * cell.source
        opacity = (0.15 + 0.2 * cell.share) if has_text else (0.3 + 0.7 * cell.share)
        shown = [f'<g fill-opacity="{number(opacity)}">{box(x + 0.5, y + 0.5, cell_width - 1, height - 1, "tip")}</g>']
        if has_text:
            shown.append(label(x + cell_width / 2, y + height / 2 + 4, size_text(cell), SMALL, anchor="middle"))
        ends = f"{matrix.names[cell.source]} → {matrix.names[cell.readers[0]]}: {size_text(cell)}"
        what = f"{ends}, {count(len(cell.tensors), 'tensor')}, {', '.join(cell.tensors[:8])}; {KINDS[cell.kind]}"
        marks.append(thing("cell", i, what, shown, CSS[cell.kind]))
    return Panel(width, _TOP + height * len(matrix.names) + 4, tuple(marks))


def _names(matrix: Matrix, cell_width: float, height: float) -> Iterator[str]:
    """The names of the rows, and the numbers of the columns; each row's diagonal says its number."""
    for i, name in enumerate(matrix.names):
        x, y = _NAMES + cell_width * i, _TOP + height * i
        yield label(_NAMES - 8, y + height / 2 + 4, name, BODY, room=_NAMES - 12, anchor="end", among=matrix.names)
        yield box(x, y, cell_width, height, "track")
        if cell_width >= width_of(str(i), SMALL) + 2:
            yield label(x + cell_width / 2, y + height / 2 + 4, str(i), SMALL, css="muted", anchor="middle")
