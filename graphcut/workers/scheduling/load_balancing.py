"""Load balancing: which worker should own which parts, from measured times.

`LoadBalance.measured` takes the time of each run of a part, `LoadBalance.proposal` returns a better division of the
parts if there is one, and `LoadBalance.accept` is called when it is in force.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from ...core.errors import UsageError
from ..executors.protocol import Done
from .link_times import LinkTimes
from .requests import ScheduledPart
from .worker_pool import WorkerPool, WorkerState

Bounds = tuple[int, ...]
"""A division of parts among workers. Worker k owns the parts bounds[k] .. bounds[k + 1] - 1; at least one, unless its
link became slower. The first bound is 0, the last the number of parts."""

#: may this worker hold these parts? If it may, it may also hold any consecutive subset of them.
Allowed = Callable[[int, range], bool]
Array = npt.NDArray[np.float64]
#: by worker whose link became slower, how many seconds the inputs of the parts start .. end - 1 take.
Delays = Mapping[int, Array]

NO_DELAYS: Final[Delays] = MappingProxyType({})
GAIN: Final = 0.10  #: the share of the slowest worker's time that a division must save.
ROUNDS: Final = 3  #: the number of successive rounds that must find such a gain.
REST: Final = 4  #: rounds without a proposal at first and after a change: first runs of a part on a worker are slower.
SAME: Final = 0.01  #: slowest workers that differ by less are equal; the division that moves fewest parts wins.
EXACT: Final = 1e-9  #: the relative rounding error of sums of floats.
SURPRISE: Final = 0.2  #: a difference that is not random, as a logarithm: times vary by 0.05 from step to step.
MOST: Final = math.log(2)  #: the largest change that a round can show, as a logarithm: a slow step must not move parts.
SETTLED: Final = 4  #: the number of measurements after which the usual time of a part on a worker is known.
AGING: Final = 0.9  #: the weight of a measurement relative to one that is a round younger.
OLD: Final = 0.05  #: the least weight of a measurement, so that it outweighs the priors.
PRIOR: Final = 1e-3  #: the weight of the prior that workers are equally fast, relative to a measurement.
ALIKE: Final = 1e-6  #: the weight of the prior that parts cost the same. It matters for parts never measured.
TICK_S: Final = 1e-9  #: the least time of a part: clocks that are too coarse say 0.


def even_bounds(weights: Sequence[float], workers: int) -> Bounds:
    """The division of parts among equally fast workers whose largest sum of weights is smallest.

    Of several such divisions, the one with the least sum of squares. Exact, by dynamic programming (the linear
    partition problem: Skiena, The Algorithm Design Manual), in O(workers * parts²).

    Example: even_bounds([1, 1, 1, 3], 2) is (0, 3, 4): both workers have 3. Weights are in any unit, not negative.
    """
    if not 1 <= workers <= len(weights):
        message = f"{len(weights)} parts can't be divided among {workers} workers, each with a part of its own"
        raise UsageError(message, hint=f"ask for 1 to {len(weights)} workers" if weights else "there is nothing to run")
    spans = _spans(np.asarray(weights, dtype=float))
    loads = [spans] * workers
    return _cheapest(loads, [spans**2] * workers, limit=_min_max_load(loads) * (1 + EXACT))


def spans_of(bounds: Bounds) -> list[tuple[int, ...]]:
    """The parts of each worker."""
    return [tuple(range(start, end)) for start, end in pairwise(bounds)]


def movable_bounds(workers: Sequence[WorkerState], *, has_links: bool) -> Bounds | None:
    """The division of the parts among `workers`; None if parts can't move.

    Parts can move if each worker owns consecutive parts that no other worker owns, and some worker owns several, or,
    where links may become slower, may be left without parts.
    """
    owned = [part for worker in workers for part in worker.owns]
    is_row = owned == list(range(len(owned))) and all(worker.owns for worker in workers)
    if len(workers) < 2 or not is_row or (len(owned) == len(workers) and not has_links):
        return None
    return (0, *(worker.owns[-1] + 1 for worker in workers))


def better_bounds(
    costs: Array, slowness: Array, bounds: Bounds, allowed: Allowed, delays: Delays = NO_DELAYS
) -> Bounds | None:
    """A division whose slowest worker takes at least `GAIN` less time than now; None if there is none.

    Part i takes costs[i] * slowness[k] seconds on worker k; inputs come meanwhile, for `delays` if that is longer. Only
    a worker with delays, or without parts now, may be left without parts. The time of the slowest worker is optimal
    within `SAME`, and of such divisions this is the one that moves the fewest parts. Exact, by dynamic programming in
    O(workers * parts²).
    """
    loads = [slow * _spans(costs) for slow in slowness]
    for worker, span in enumerate(pairwise(bounds)):
        loads[worker] = np.maximum(loads[worker], delays.get(worker, 0.0))
        if worker in delays or span[0] == span[1]:
            np.fill_diagonal(loads[worker], 0.0)
    now = max(load[span] for load, span in zip(loads, pairwise(bounds), strict=True))
    enough = (1 - GAIN) * now
    if enough < costs.sum() / (1 / slowness).sum():  # a lower bound: parts divided in any proportion
        return None
    loads = [np.where(_allowed_spans(len(costs), worker, allowed), load, np.inf) for worker, load in enumerate(loads)]
    least = _min_max_load(loads)
    if least > enough:
        return None
    moves = [_new_parts(len(costs), start, end) for start, end in pairwise(bounds)]
    return _cheapest(loads, moves, limit=min(least * (1 + SAME), enough))


class LoadBalance:
    """The division in force, and proposals for a better one.

    A round ends when every worker that has parts has reported a time. A division is proposed when `ROUNDS` successive
    rounds found one that makes the slowest worker at least 10 % faster. At first and after a change nothing is proposed
    for `REST` rounds. If a single part is the bottleneck, there is nothing to propose.
    """

    def __init__(self, bounds: Bounds, allowed: Allowed) -> None:
        """Begin with `bounds`, and propose only what is `allowed`.

        `allowed` is asked about the parts that a worker would own, and has to take into account what else it holds:
        overlaps, and during a change the parts that it owns now.
        """
        self.bounds = bounds  #: the division in force.
        self._allowed = allowed
        self._speeds = MeasuredSpeeds(parts=bounds[-1], workers=len(bounds) - 1)
        self._streak, self._rest = 0, REST

    def measured(self, worker: int, part: int, seconds: float) -> None:
        """`part` ran for `seconds` on `worker`, waiting not included, even if another worker owns it by now."""
        self._speeds.measured(worker, part, seconds)

    def proposal(self, delays: Delays = NO_DELAYS) -> Bounds | None:
        """A better division, if there is one worth the change.

        Only the first call after the end of a round computes anything; others return None. What is proposed and not
        accepted is proposed again after the next round, as that round measures it.
        """
        if not self._speeds.end_round([start < end for start, end in pairwise(self.bounds)]):
            return None
        if self._rest:
            self._rest -= 1
            return None
        better = better_bounds(*self._speeds.fitted(), self.bounds, self._allowed, delays)
        self._streak = self._streak + 1 if better else 0
        return better if self._streak >= ROUNDS else None

    def accept(self, bounds: Bounds) -> None:
        """`bounds` are in force now, whether they were proposed or not."""
        self.bounds = bounds
        self._streak, self._rest = 0, REST


class MeasuredSpeeds:
    """Estimates the cost of each part and the slowness of each worker from measured times.

    In logarithms, part i takes `cost[i] + offset[k] + level[k]` on worker k. The level is how the worker has changed
    since it began: if its parts became slower together, the worker changed; if one did alone, the part changed. What
    remains after subtracting the level is the *usual* time of a part on a worker. Costs and offsets are fitted to all
    usual times by least squares. A part that ran on two workers shows how these compare. Without such a part, parts
    that cost more can't be told from a worker that was slow from the start, and are assumed to cost more. If that is
    wrong, the first part that moves gains more than predicted, and shows it.
    """

    def __init__(self, *, parts: int, workers: int) -> None:
        self._level = np.zeros(workers)
        self._usual = np.zeros((parts, workers))
        self._times = np.zeros((parts, workers), dtype=int)
        self._last = np.zeros((parts, workers), dtype=int)
        self._round = 0
        self._seen: list[dict[int, tuple[float, int]]] = [{} for _ in range(workers)]

    def measured(self, worker: int, part: int, seconds: float) -> None:
        """Add a measurement."""
        seen = self._seen[worker]
        total, times = seen.get(part, (0.0, 0))
        seen[part] = total + math.log(max(seconds, TICK_S)), times + 1

    def end_round(self, has_parts: Sequence[bool]) -> bool:
        """End the round and learn from it if every worker that has parts has reported; returns whether."""
        if not all(seen or not expected for seen, expected in zip(self._seen, has_parts, strict=True)):
            return False
        self._round += 1
        for worker, seen in enumerate(self._seen):
            if not seen:
                continue
            self._learn(worker, np.array([*seen]), np.array([total / times for total, times in seen.values()]))
            seen.clear()
        return True

    def _learn(self, worker: int, parts: npt.NDArray[np.intp], logs: Array) -> None:
        known = self._times[parts, worker] >= SETTLED
        shift = self._level[worker]
        if known.any():
            differences = logs[known] - self._usual[parts[known], worker]
            shift = _location(differences)
            self._level[worker] += _damped(shift - self._level[worker], SURPRISE / math.sqrt(len(differences)))
            # A part that changed has changed for all workers, also for those that ran it before.
            self._usual[parts[known]] += _damped(differences - shift, SURPRISE)[:, None]
        new, first_logs = parts[~known], logs[~known] - shift
        share = np.where(self._times[new, worker], 0.5, 1.0)
        self._usual[new, worker] += share * (first_logs - self._usual[new, worker])
        self._times[parts, worker] += 1
        self._last[parts, worker] = self._round

    def fitted(self) -> tuple[Array, Array]:
        """The cost of each part in seconds, and the slowness of each worker, about 1.

        Least squares in closed form: costs are eliminated, and a linear system with a row for each worker remains. An
        additional column holds the prior that parts cost the same, around a mean that is free: a part that was never
        measured gets the mean cost.
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


class Rebalancing:
    """Moves parts to other workers during a run, once their new owners have loaded them; one division at a time."""

    def __init__(self, pool: WorkerPool, bounds: Bounds | None, links: LinkTimes) -> None:
        """Begin with `bounds`; without them nothing moves."""
        self.tensor_bytes: dict[str, int] = {}  #: the last known sizes of tensors.
        self.next: Bounds | None = None  #: the division whose parts are being loaded by their new owners.
        self._pool = pool
        self._balance = None if bounds is None else LoadBalance(bounds, pool.fits)
        self._links = links

    def measured(self, event: Done) -> Bounds | None:
        """Take note of the times of a step. The new division, if parts moved."""
        if self._balance is None or event.step.sequence is not None:
            return None  # parts with states stay with them
        for part, seconds in zip(event.step.parts, event.seconds, strict=True):
            self._balance.measured(event.worker, part, seconds)
        bounds = self._balance.proposal(self._delays()) if self.next is None else None
        if bounds is not None and all(worker.is_up for worker in self._pool.workers):  # else it is proposed again
            self.next = bounds
            for index, parts in enumerate(spans_of(bounds)):
                self._pool.hold(index, parts)
        return self.finish()

    def _delays(self) -> Delays:
        slower = {i: self._links.slower_s_per_byte(worker.name) for i, worker in enumerate(self._pool.workers)}
        found = _received_bytes(self._pool.parts, self.tensor_bytes) if any(slower.values()) else np.zeros(())
        return {worker: seconds * found for worker, seconds in slower.items() if seconds}

    def finish(self) -> Bounds | None:
        """Move the parts if their new owners hold them. The new division, if parts moved."""
        if (bounds := self.next) is None or self._balance is None:
            return None
        owned = list(zip(self._pool.workers, spans_of(bounds), strict=True))
        if not all(worker.holds.issuperset(parts) for worker, parts in owned):
            return None
        for worker, parts in owned:
            worker.owns = parts
        self._balance.accept(bounds)
        self.next = None
        return bounds

    def end(self) -> None:
        """Move nothing from now on."""
        self.next = self._balance = None


def _received_bytes(parts: Sequence[ScheduledPart], sizes: Mapping[str, int]) -> Array:
    """[start, end]: the bytes that the parts start .. end - 1 read of what they don't make.

    A tensor whose size is not known, since it has not left its worker, counts as the largest known one.
    """
    found, most = np.zeros((len(parts) + 1, len(parts) + 1)), max(sizes.values())
    for start in range(len(parts)):
        made, read = set[str](), set[str]()
        for end, part in enumerate(parts[start:], start + 1):
            read.update(name for name in part.reads if name not in made)
            made.update(part.writes)
            found[start, end] = sum(sizes.get(name, most) for name in read)
    return found


def _location(values: Array) -> float:
    """Huber's estimate of location: the mean, in which values further than `SURPRISE` from it hardly count.

    The median would drift under mere noise: differences from it don't add up to zero, and the usual times, to which
    they are added round after round, would grow.
    """
    center = float(values.mean())
    if np.abs(values - center).max() <= SURPRISE:
        return center
    center = float(np.median(values))
    for _ in range(20):
        weight = SURPRISE / np.maximum(np.abs(values - center), SURPRISE)
        center = float(weight @ values / weight.sum())
    return center


def _damped(difference: Array, noise: float) -> Array:
    """The share of a difference that one round applies: half if it exceeds `noise`, else an eighth; `MOST` at most."""
    return np.clip(difference, -MOST, MOST) * np.where(np.abs(difference) > noise, 1 / 2, 1 / 8)


def _spans(costs: Array) -> Array:
    """[start, end]: the cost of the parts start .. end - 1; infinite if there are none."""
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    index = np.arange(len(sums))
    return np.where(index[:, None] < index, sums - sums[:, None], np.inf)


def _allowed_spans(parts: int, worker: int, allowed: Allowed) -> npt.NDArray[np.bool_]:
    """[start, end]: may the worker hold the parts start .. end - 1? Asks at most twice for each part."""
    first = [0]
    for end in range(1, parts + 1):
        start = first[-1]
        while start < end and not allowed(worker, range(start, end)):
            start += 1
        first.append(start)
    return np.arange(parts + 1)[:, None] >= np.array(first)


def _new_parts(parts: int, start: int, end: int) -> Array:
    """[i, j]: how many of the parts i .. j - 1 are new to the worker that owns start .. end - 1."""
    index = np.arange(parts + 1)
    kept: Array = np.maximum(np.minimum(index, end) - np.maximum(index[:, None], start), 0.0)
    return index - index[:, None] - kept


def _min_max_load(loads: Sequence[Array]) -> float:
    """The least possible load of the most loaded worker; loads[k][i, j] is that of worker k with parts i .. j - 1."""
    best = loads[0][0]
    for load in loads[1:]:
        best = np.maximum(best[:, None], load).min(axis=0)
    return float(best[-1])


def _cheapest(loads: Sequence[Array], prices: Sequence[Array], *, limit: float) -> Bounds:
    """The division with the least sum of prices among those in which no load exceeds `limit`; at least one exists."""
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
