"""Weight values out of a short tape of random numbers, for weights of any size in little memory.

The tape is made once and read in a circle. Every weight starts reading at another place, so no two weights are
the same bytes, and a weight of gigabytes costs no more memory than the tape.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Precision: TypeAlias = Literal["float32", "float16"]

# A prime: no row length divides it, so the rows of a large matrix are not copies of each other.
_TAPE_LENGTH = 2**19 - 1
# The golden ratio of the tape: successive starts lie far apart, and no two of the first _TAPE_LENGTH coincide.
_STRIDE = 324_027
_SEED = 17


class RandomWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A weight described: its values are made when they are written.

    Attributes:
        name: of the initializer.
        shape: its dimensions.
        dtype: of its elements.
        mean: of its values.
        scale: standard deviation of its values; none is further than 3.5 of these from the mean.
        place: which weight of its model this is, counted from 0; two places have different values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Precision
    mean: float
    scale: float
    place: int

    @property
    def size_bytes(self) -> int:
        """How many bytes the values take."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def pieces(self) -> Iterator[memoryview]:
        """The values as little-endian bytes, in row-major order, a piece of at most 2 MiB at a time."""
        tape = _tape(self.dtype, self.mean, self.scale)
        start, left = self.place * _STRIDE % _TAPE_LENGTH, prod(self.shape)
        while left:
            piece = tape[start : start + left]
            yield piece.data.cast("B")
            start, left = 0, left - len(piece)


# A language model needs three tapes; the convolutional ones need more, but theirs are read once each.
@lru_cache(maxsize=4)
def _tape(dtype: Precision, mean: float, scale: float) -> NDArray[Any]:
    return (_bell() * np.float32(scale) + np.float32(mean)).astype(np.dtype(dtype).newbyteorder("<"))


@cache
def _bell() -> NDArray[np.float32]:
    """Numbers of mean 0 and deviation 1, each the sum of four uniform ones (the Irwin-Hall distribution).

    numpy promises the stream of a bit generator for ever, but not that of `Generator.normal`.
    """
    quarters = np.random.PCG64(_SEED).random_raw(_TAPE_LENGTH).astype("<u8").view("<u2").reshape(-1, 4)
    centred = quarters.sum(axis=1, dtype=np.int64) - 2 * 0xFFFF
    deviation = sqrt(4 / 12) * 0x10000
    bell: NDArray[np.float32] = (centred / deviation).astype(np.float32)
    return bell
