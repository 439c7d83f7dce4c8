"""How the numbers of a tensor are spread in two models."""

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from ..running.values import Array

BINS: Final = 32


@dataclass(frozen=True)
class Histogram:
    """How many numbers of a tensor are in each of 32 intervals of equal length from `low` to `high`."""

    low: float
    high: float
    counts: tuple[tuple[int, ...], tuple[int, ...]]  #: in the first model, and in the second.
    others: tuple[int, int]  #: how many are not finite, or masks: more than 1000 times the median of the first model.
    step: int  #: of so many numbers one is counted.


def histogram_of(one: Array, two: Array, most: float) -> Histogram:
    """The histogram of two arrays of real numbers; those larger than `most` are counted apart."""
    step = -(-max(one.size, two.size, 1) // (1 << 18))  # of larger tensors every second is counted, or every third, ...
    numbers = [array.reshape(-1)[::step].astype(np.float64) for array in (one, two)]
    kept = [array[np.isfinite(array) & (np.abs(array) <= most)] for array in numbers]
    low, high = (float(end([end(a, initial=-start) for a in kept])) for end, start in ((np.min, -inf), (np.max, inf)))
    low, high = (low, high) if low < high else (low, low + 1) if low == high else (0.0, 1.0)
    first, second = (tuple(np.histogram(array, BINS, (low, high))[0].tolist()) for array in kept)
    others = [all_.size - array.size for all_, array in zip(numbers, kept, strict=True)]
    return Histogram(low, high, (first, second), (others[0], others[1]), step)
