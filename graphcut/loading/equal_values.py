"""Finding the values of a tensor in files: equal byte for byte, or as a matrix that is stored transposed."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..core.digests import hashing_threads
from ..core.graph import grouped
from .external_data import ByteRange, read_at, same_bytes

_PLACES: Final = 16  #: values at so many places, of a matrix in each direction, say which ranges are compared.
_TILE_BYTES: Final = 4096  #: length of the rows of a tile, in which a matrix is compared with a transposed one: a page.
_BLOCK: Final = 128  #: rows and columns of what is compared at a time: both sides stay in a cache.
_Groups = Mapping[bytes, Sequence[ByteRange]]


class ValueFinder:
    """Finds values in ranges of files. Those that are equal at a few places are compared as a whole.

    So what is looked up and what it is found in are read once, unless many ranges are equal at these places.
    """

    def __init__(self, ranges: Iterable[ByteRange]) -> None:
        self._by_length = grouped((span.length, span) for span in ranges)
        self._groups: dict[tuple[int, int, tuple[int, ...]], _Groups] = {}

    def equal(self, span: ByteRange) -> ByteRange | None:
        """The first range with the same bytes."""
        size = min(8, span.length)
        places = tuple(i * (span.length - size) // _PLACES for i in range(_PLACES + 1))
        return next((found for found in self._alike(span, size, places, places) if same_bytes(span, found)), None)

    def transposed(self, span: ByteRange, rows: int, columns: int) -> ByteRange | None:
        """The first range that holds the transposed matrix, if `span` holds one with so many rows and columns."""
        size = span.length // (rows * columns)
        pairs = [(r * rows // _PLACES, c * columns // _PLACES) for r, c in product(range(_PLACES), repeat=2)]
        own, others = [size * (r * columns + c) for r, c in pairs], tuple(size * (c * rows + r) for r, c in pairs)
        alike = self._alike(span, size, own, others)
        return next((found for found in alike if _is_transposed(span, found, rows, columns)), None)

    def _alike(self, span: ByteRange, size: int, own: Sequence[int], others: tuple[int, ...]) -> Sequence[ByteRange]:
        """The ranges of this length that have at the places `others` what `span` has at its `own`."""
        key = span.length, size, others
        if key not in self._groups:
            alike = self._by_length.get(span.length, ())
            self._groups[key] = grouped((_values_at(other, size, others), other) for other in alike)
        return self._groups[key].get(_values_at(span, size, own), ()) if self._groups[key] else ()


def _values_at(span: ByteRange, size: int, places: Iterable[int]) -> bytes:
    with span.file.open("rb", buffering=0) as file:
        return b"".join(os.pread(file.fileno(), size, span.offset + place) for place in places)


def _is_transposed(matrix: ByteRange, other: ByteRange, rows: int, columns: int) -> bool:
    size = matrix.length // (rows * columns)
    step = max(_BLOCK, _TILE_BYTES // size)
    with matrix.file.open("rb") as a, other.file.open("rb") as b, hashing_threads() as threads:

        def is_same(corner: tuple[int, int]) -> bool:
            r, c = corner
            height, width = min(step, rows - r), min(step, columns - c)
            left = _read_tile(a.fileno(), matrix, size, columns, (r, c, height, width))
            right = _read_tile(b.fileno(), other, size, rows, (c, r, width, height)).T
            corners = product(range(0, height, _BLOCK), range(0, width, _BLOCK))
            blocks = (np.s_[i : i + _BLOCK, j : j + _BLOCK] for i, j in corners)
            return all(np.array_equal(left[block], right[block]) for block in blocks)

        return all(threads.map(is_same, product(range(0, rows, step), range(0, columns, step))))


def _read_tile(handle: int, span: ByteRange, size: int, columns: int, tile: tuple[int, int, int, int]) -> NDArray[Any]:
    """A rectangle of a matrix, by its first row and column, its height and width."""
    r, c, height, width = tile
    rows = np.empty((height, width * size), np.uint8)
    for i, row in enumerate(rows):
        read_at(handle, span, ((r + i) * columns + c) * size, row)
    return rows.view(f"u{size}")
