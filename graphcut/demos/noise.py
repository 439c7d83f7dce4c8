"""Random weight values of any size in little memory.

One array of 2**19 - 1 random numbers is computed once and repeated cyclically. Every weight starts at another
offset, so that no two weights have equal bytes.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from math import prod, sqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.arguments import FloatType

# A prime: no row length divides it, so the rows of a large matrix differ.
_COUNT = 2**19 - 1


class RandomWeight(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a random weight, whose values are generated when it is written."""

    name: str  #: of the initializer.
    shape: tuple[int, ...]  #: of the weight.
    dtype: FloatType  #: element type.
    mean: float  #: of the values.
    scale: float  #: standard deviation of the values; none differs by more than 3.5 of these from the mean.
    index: int  #: of the weight in its model, from 0; weights with different indices have different values.

    @property
    def size_bytes(self) -> int:
        """Size of the values in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def pieces(self) -> Iterator[memoryview]:
        """The values as little-endian bytes in row-major order, in pieces of at most 2 MiB."""
        values = _values(self.dtype, self.mean, self.scale)
        # About the golden ratio of the length: successive offsets are far apart and do not repeat.
        start, left = self.index * 324_027 % _COUNT, prod(self.shape)
        while left:
            piece = values[start : start + left]
            yield piece.data.cast("B")
            start, left = 0, left - len(piece)


# A language model uses three of them again and again; others are used once.
@lru_cache(maxsize=4)
def _values(dtype: FloatType, mean: float, scale: float) -> NDArray[Any]:
    return (_standard_normal() * np.float32(scale) + np.float32(mean)).astype(np.dtype(dtype).newbyteorder("<"))


@cache
def _standard_normal() -> NDArray[np.float32]:
    """Numbers of mean 0 and standard deviation 1: sums of four uniform numbers (Irwin-Hall distribution).

    numpy guarantees the stream of a bit generator in all versions, but not that of `Generator.normal`.
    """
    quarters = np.random.PCG64(17).random_raw(_COUNT).astype("<u8").view("<u2").reshape(-1, 4)
    centred = quarters.sum(axis=1, dtype=np.int64) - 2 * 0xFFFF
    deviation = sqrt(4 / 12) * 0x10000
    numbers: NDArray[np.float32] = (centred / deviation).astype(np.float32)
    return numbers
