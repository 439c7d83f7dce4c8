"""The dependency matrix on the terminal: the height of a block is the logarithm of the bytes."""

from math import ceil
from typing import Final

from rich.text import Text

from ...core.text import shortened
from ..dependency_matrix import Matrix, matrix_of
from ..scene import Scene
from .lanes import STYLES
from .screen import KEY, LEVELS, Screen, Section

_STEP: Final = 3
_MAX_NAME: Final = 26


def matrix(scene: Scene, screen: Screen) -> Section:
    """A row for each part or segment that writes, a column for each that reads."""
    found = matrix_of(scene, min(16, max(1, (screen.width - _MAX_NAME) // _STEP)))
    if not found.cells:
        return []
    legend = f"a row's {'part' if scene.cards else 'segment'} writes, a column's reads; higher is more bytes"
    names = shortened([screen.plain(name) for name in found.names], _MAX_NAME, dots="...")
    width = max(map(len, names))
    head = Text(" " * (width + 1) + "".join(str(i).rjust(_STEP) for i in range(len(names))), style="dim")
    rows = (_row(found, i, name.ljust(width), screen) for i, name in enumerate(names))
    return [Text("dependency maps", style="bold"), head, *rows, screen.text(legend, "dim")]


def _row(found: Matrix, row: int, name: str, screen: Screen) -> Text:
    line = Text(f"{name} ")
    levels, cells = screen.plain(LEVELS), {cell.readers[0]: cell for cell in found.cells if cell.source == row}
    for column in range(len(found.names)):
        if (cell := cells.get(column)) is None:
            line.append((str(row) if column == row else screen.plain(KEY)).rjust(_STEP), "dim")
        else:
            sign = levels[max(1, ceil(cell.share * (len(levels) - 1)))]
            line.append(f" {sign * (_STEP - 1)}", STYLES[cell.kind])
    return line
