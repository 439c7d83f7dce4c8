"""Which worker owns which parts of a cascade, while it runs: from measured times to a better division.

The scheduler says how long each part took on which worker (`LoadBalance.saw`), asks now and then for a better division
(`LoadBalance.proposal`), prepares it, and says when it is in force (`LoadBalance.accept`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...core.errors import UsageError

Bounds = tuple[int, ...]
"""Worker k owns the parts bounds[k] .. bounds[k + 1] - 1, one at least; the first bound is 0, the last how many there
are."""

Allowed = Callable[[int, range], bool]
"""May this worker hold these parts? What is allowed for a run of parts is taken to be allowed for a shorter one."""

Array = npt.NDArray[np.float64]

GAIN = 0.10  # the share of the slowest worker's time that a division must save to be worth a change
ROUNDS = 3  # successive rounds that must find such a gain
REST = 4  # rounds at first and after a change in which nothing is proposed: parts run slower when new to a worker
SAME = 0.01  # divisions this close are of equal worth, and the one that moves fewer parts is taken
EXACT = 1e-9  # what sums of floats may differ by

NOISE = 0.05  # by how much (log) a part's time differs from step to step with no reason that lasts
SURPRISE = 4 * NOISE  # a difference that noise does not make
MOST = math.log(2)  # a single round is believed up to a factor of two: one hiccup must not move parts
SETTLED = 4  # measurements after which the usual time of a part on a worker is known
AGING = 0.9  # what a measurement counts for, against one that is a round younger ...
OLD = 0.05  # ... and at least, so that what was learned once outweighs the prior
PRIOR = 1e-3  # what "workers are equally fast" counts for, against a measurement
ALIKE = 1e-6  # and what "parts cost alike", which hardly matters but for parts that nobody has measured
TICK_S = 1e-9  # clocks too coarse for a part say 0


def always(_worker: int, _parts: range) -> bool:
    """Every worker may hold everything."""
    return True


def even_bounds(weights: Sequence[float], workers: int) -> Bounds:
    """The division of parts in a row among equally fast workers whose largest sum of weights is least.

    Of several, the one with the least sum of squares, so that what the largest leaves open is even too. Exact, by
    dynamic programming (the linear partition problem: Skiena, The Algorithm Design Manual), in O(workers · parts²).

    Args:
        weights: what each part costs, in any unit, none negative.
        workers: how many, each of which gets one part at least.

    Raises:
        UsageError: fewer than one worker, or more workers than parts.
    """
    if not 1 <= workers <= len(weights):
        raise UsageError(
            f"{len(weights)} parts can't be divided among {workers} workers, each with a part of its own",
            hint=f"ask for 1 to {len(weights)} workers" if weights else "there is nothing to run",
        )
    spans = _spans(np.asarray(weights, dtype=float))
    loads = [spans] * workers
    return _cheapest(loads, [spans**2] * workers, limit=_least_greatest(loads) * (1 + EXACT))


def better_bounds(costs: Array, slowness: Array, bounds: Bounds, *, allowed: Allowed = always) -> Bounds | None:
    """A division with a slowest worker at least `GAIN` faster than now, or None where there is none.

    Part i takes costs[i] · slowness[k] seconds on worker k. The division is optimal within `SAME`, and among those
    the one in which the fewest parts change their worker. Exact, by dynamic programming in O(workers · parts²).
    """
    spans = _spans(costs)
    now = max(slow * spans[start, end] for slow, (start, end) in zip(slowness, pairwise(bounds), strict=True))
    enough = (1 - GAIN) * now
    if enough < costs.sum() / (1 / slowness).sum():  # no division beats parts that could be cut at will
        return None
    loads = [
        np.where(_allowed_spans(len(costs), worker, allowed), slow * spans, np.inf)
        for worker, slow in enumerate(slowness)
    ]
    least = _least_greatest(loads)
    if least > enough:
        return None
    moves = [_newcomers(len(costs), start, end) for start, end in pairwise(bounds)]
    return _cheapest(loads, moves, limit=min(least * (1 + SAME), enough))


class LoadBalance:
    """The division in force, and what would be better.

    A division is proposed when three successive rounds found that it makes the slowest worker at least 10 % faster; a
    round is over when every worker has reported. At first and after a change nothing is proposed for some rounds. Where
    one part is the bottleneck there is nothing to propose.

    Attributes:
        bounds: the division in force.
    """

    bounds: Bounds

    def __init__(self, bounds: Bounds, *, allowed: Allowed = always) -> None:
        """Begin with `bounds`, and propose only what is `allowed`.

        Args:
            bounds: the division at the beginning.
            allowed: may a worker hold these parts? It is asked about the parts it would own, and answers for whatever
                it holds besides: the parts it owns now, for as long as a change takes, and overlaps.

        Raises:
            UsageError: `bounds` are none.
        """
        self.bounds = _checked(bounds, parts=bounds[-1], workers=len(bounds) - 1)
        self._allowed = allowed
        self._speeds = MeasuredSpeeds(parts=bounds[-1], workers=len(bounds) - 1)
        self._streak, self._rest = 0, REST

    def saw(self, worker: int, part: int, seconds: float) -> None:
        """`part` took `seconds` on `worker`, waiting not included; also if another worker owns it by now."""
        self._speeds.saw(worker, part, seconds)

    def proposal(self) -> Bounds | None:
        """A better division, when there is one worth having.

        To be asked as often as one likes: only the first call after the end of a round does any work or returns
        anything. What is proposed and not accepted is proposed again, as the next rounds see it.
        """
        if not self._speeds.end_round():
            return None
        if self._rest:
            self._rest -= 1
            return None
        better = better_bounds(*self._speeds.fitted(), self.bounds, allowed=self._allowed)
        self._streak = self._streak + 1 if better else 0
        return better if self._streak >= ROUNDS else None

    def accept(self, bounds: Bounds) -> None:
        """`bounds` are in force now, whether they were proposed or not.

        Raises:
            UsageError: they are not a division of these parts among these workers.
        """
        self.bounds = _checked(bounds, parts=self.bounds[-1], workers=len(self.bounds) - 1)
        self._streak, self._rest = 0, REST


class MeasuredSpeeds:
    """What each part costs and how slow each worker is, told apart.

    In logarithms, part i takes `cost[i] + offset[k] + level[k]` on worker k. The level says how the worker has changed
    since it began: parts that became slower together mean the worker, one that did alone means the part. What is left
    when the level is taken away is the *usual* time of a part on a worker, and costs and offsets are fitted to all
    usual times by least squares. A part that ran on two workers tells how they compare; where none did, nothing tells
    heavy parts from a worker that was slow from the start. They are taken for heavy then: if that is wrong, moving
    one gains more than predicted, and shows it.
    """

    def __init__(self, *, parts: int, workers: int) -> None:
        self._level = np.zeros(workers)
        self._usual = np.zeros((parts, workers))
        self._times = np.zeros((parts, workers), dtype=int)
        self._last = np.zeros((parts, workers), dtype=int)
        self._round = 0
        self._seen: list[dict[int, tuple[float, int]]] = [{} for _ in range(workers)]

    def saw(self, worker: int, part: int, seconds: float) -> None:
        """Note a measurement."""
        seen = self._seen[worker]
        total, times = seen.get(part, (0.0, 0))
        seen[part] = total + math.log(max(seconds, TICK_S)), times + 1

    def end_round(self) -> bool:
        """Learn from what was seen, if every worker has reported since the last round; say whether."""
        if not all(self._seen):
            return False
        self._round += 1
        for worker, seen in enumerate(self._seen):
            means = np.array([total / times for total, times in seen.values()])
            self._learn(worker, np.array([*seen]), means)
            seen.clear()
        return True

    def _learn(self, worker: int, parts: npt.NDArray[np.intp], logs: Array) -> None:
        known = self._times[parts, worker] >= SETTLED
        shift = self._level[worker]
        if known.any():
            differ = logs[known] - self._usual[parts[known], worker]
            shift = _together(differ)
            self._level[worker] += _believed(shift - self._level[worker], SURPRISE / math.sqrt(len(differ)))
            # A part that changed has changed for all workers, also for those that ran it before.
            self._usual[parts[known]] += _believed(differ - shift, SURPRISE)[:, None]
        new, first_logs = parts[~known], logs[~known] - shift
        share = np.where(self._times[new, worker], 0.5, 1.0)
        self._usual[new, worker] += share * (first_logs - self._usual[new, worker])
        self._times[parts, worker] += 1
        self._last[parts, worker] = self._round

    def fitted(self) -> tuple[Array, Array]:
        """The cost of each part in seconds, and how slow each worker is, about 1.

        Least squares in closed form: the costs are eliminated, and a system with a row a worker remains. One column
        more than there are workers holds the prior that parts cost alike, around a mean that is free: it gives a part
        that nobody has measured yet the usual cost.
        """
        parts, workers = self._usual.shape
        recent = np.maximum(AGING ** (self._round - self._last), OLD)
        measured = np.where(self._times > 0, recent, 0.0)
        weight = np.column_stack([measured, np.full(parts, ALIKE)])
        usual = np.column_stack([self._usual, np.zeros(parts)])
        share = weight / weight.sum(axis=1, keepdims=True)
        mean = (share * usual).sum(axis=1)
        prior = np.append(np.full(workers, PRIOR), 0.0)
        matrix = np.diag(weight.sum(axis=0) + prior) - weight.T @ share
        offset = np.linalg.solve(matrix, (weight * (usual - mean[:, None])).sum(axis=0))
        return np.exp(mean - share @ offset), np.exp(offset[:-1] + self._level)


def _together(values: Array) -> float:
    """Huber's estimate of location: the mean where all values are near it, and one that is far off hardly counts.

    Not the median: under mere noise, what the values differ by from it does not add up to zero, and the usual times,
    to which it is added round after round, would drift.
    """
    centre = float(values.mean())
    if np.abs(values - centre).max() <= SURPRISE:
        return centre
    centre = float(np.median(values))
    for _ in range(20):
        weight = SURPRISE / np.maximum(np.abs(values - centre), SURPRISE)
        centre = float(weight @ values / weight.sum())
    return centre


def _believed(differ: Array, noise: float) -> Array:
    """How much of a difference is taken over in one round: half of a surprise, an eighth of what may be noise."""
    return np.clip(differ, -MOST, MOST) * np.where(np.abs(differ) > noise, 1 / 2, 1 / 8)


def _spans(costs: Array) -> Array:
    """[start, end]: what the parts start .. end - 1 cost together; infinite where there are none."""
    upto = np.concatenate([[0.0], np.cumsum(costs)])
    place = np.arange(len(upto))
    return np.where(place[:, None] < place, upto - upto[:, None], np.inf)


def _allowed_spans(parts: int, worker: int, allowed: Allowed) -> npt.NDArray[np.bool_]:
    """[start, end]: may the worker hold the parts start .. end - 1? Asks at most twice a part."""
    first = np.fromiter(_first_starts(parts, worker, allowed), dtype=int, count=parts + 1)
    return np.arange(parts + 1)[:, None] >= first


def _first_starts(parts: int, worker: int, allowed: Allowed) -> Iterator[int]:
    start = 0
    for end in range(parts + 1):
        while start < end and not allowed(worker, range(start, end)):
            start += 1
        yield start


def _newcomers(parts: int, start: int, end: int) -> Array:
    """[i, j]: how many of the parts i .. j - 1 are new to the worker that owns start .. end - 1."""
    place = np.arange(parts + 1)
    kept: Array = np.maximum(np.minimum(place, end) - np.maximum(place[:, None], start), 0.0)
    return place - place[:, None] - kept


def _least_greatest(loads: Sequence[Array]) -> float:
    """The least that the greatest load can be, loads[k][i, j] being that of worker k with the parts i .. j - 1."""
    best = loads[0][0]
    for load in loads[1:]:
        best = np.maximum(best[:, None], load).min(axis=0)
    return float(best[-1])


def _cheapest(loads: Sequence[Array], prices: Sequence[Array], *, limit: float) -> Bounds:
    """The division with the least sum of prices among those in which no load exceeds `limit`; there is one."""
    tables = [np.where(load <= limit, price, np.inf) for load, price in zip(loads, prices, strict=True)]
    total = tables[0][0]
    starts = []
    for table in tables[1:]:
        sums = total[:, None] + table
        starts.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    bounds = [len(total) - 1]
    for start in reversed(starts):
        bounds.append(int(start[bounds[-1]]))
    return (0, *bounds[::-1])


def _checked(bounds: Bounds, *, parts: int, workers: int) -> Bounds:
    fits = len(bounds) == workers + 1 and bounds[0] == 0 and bounds[-1] == parts
    if not fits or workers < 1 or any(end <= start for start, end in pairwise(bounds)):
        raise UsageError(
            f"the bounds {bounds} don't divide {parts} parts among {workers} workers",
            hint=f"they are {workers + 1} rising numbers, from 0 to {parts}",
        )
    return bounds
