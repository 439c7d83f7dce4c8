"""The dependency maps as a matrix: a row for each part that writes, a column for each part that reads.

The first cells right of the diagonal are the sequential dependency map, those beyond it the residual one. A model that
is not cut has its segments as parts.
"""

from dataclasses import dataclass
from math import ceil, log2

from ..core.graph import grouped
from .scene import Flow, Scene, totals_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Flow):
    """What one row writes and one column reads; `readers` is that column."""

    tensors: tuple[str, ...]  #: names of the tensors.
    share: float  #: of the largest cell, from 0 to 1 on a logarithmic scale: half the bytes are 1/16 less.


@dataclass(frozen=True, slots=True)
class Matrix:
    """The dependency maps of a scene."""

    names: tuple[str, ...]  #: of the rows, which are the columns.
    cells: tuple[Cell, ...]  #: those that are not empty, row by row.


def matrix_legend(scene: Scene) -> str:
    """What the rows, the columns and the colours are."""
    kinds = "Right of the diagonal: sequential, read by the next. Beyond: residual."
    kinds = "Blue: exchanged between ranks. Grey: kept by a rank." if scene.is_ranked else kinds
    return f"Rows write, columns read; darker is more bytes (log scale). {kinds}"


def matrix_of(scene: Scene, most: int) -> Matrix:
    """The matrix in at most `most` rows: of more parts or segments, equally many neighbours share a row."""
    names = tuple(card.short_name for card in scene.cards) or scene.segments
    each = ceil(len(names) / most) or 1
    devices = [{card.device for card in scene.cards[i : i + each]} for i in range(0, len(names), each)]
    tensors = scene.tensors or scene.segment_tensors
    rows = ((one, one.source // each, {i // each for i in one.readers}) for one in tensors)
    found = grouped(((source, reader), one) for one, source, readers in rows for reader in readers - {source})
    totals = {ends: totals_of(tensors) for ends, tensors in found.items()}
    largest = max((total.bytes for total in totals.values()), default=0)
    cells = (
        Cell(
            source=ends[0],
            readers=(ends[1],),
            bytes=total.bytes,
            is_exact=total.is_exact,
            is_exchange=devices[ends[0]] != devices[ends[1]] if scene.is_ranked else None,
            tensors=tuple(tensor.tensor for tensor in found[ends]),
            share=max(0.0, 1 - log2((largest + 1) / (total.bytes + 1)) / 16),
        )
        for ends, total in sorted(totals.items())
    )
    shared = (names[i : i + each] for i in range(0, len(names), each))
    return Matrix(tuple(one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in shared), tuple(cells))
