"""Load balancing: divisions against brute force, and the gain in a simulated pipeline.

In the simulation a round takes as long as its slowest worker, like the period of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, combinations_with_replacement, pairwise

import numpy as np
import pytest

from graphcut.core.errors import UsageError
from graphcut.workers.scheduling.load_balancing import Bounds, LoadBalance, MeasuredSpeeds, better_bounds, even_bounds

from cases import each, seeded


def always(_worker: int, _parts: range) -> bool:
    return True


def divisions(parts: int, workers: int) -> Iterator[Bounds]:
    for inner in combinations(range(1, parts), workers - 1):
        yield (0, *inner, parts)


def loads(costs: Sequence[float], slowness: Sequence[float], bounds: Bounds) -> list[float]:
    return [s * sum(costs[start:end]) for s, (start, end) in zip(slowness, pairwise(bounds), strict=True)]


def owners(bounds: Bounds) -> list[int]:
    return [worker for worker, (start, end) in enumerate(pairwise(bounds)) for _ in range(start, end)]


def moved(old: Bounds, new: Bounds) -> int:
    return sum(a != b for a, b in zip(owners(old), owners(new), strict=True))


class Pipeline:
    """A simulated pipeline that accepts what its load balance proposes, `delay` rounds later.

    Attributes:
        clock_s: the time of the rounds so far.
        changes: the round after which each new division was in force, and the division.
    """

    def __init__(
        self,
        costs: Sequence[float],
        bounds: Bounds,
        *,
        noise: float = 0.0,
        delay: int = 0,
        first_run: float = 1.0,
        balanced: bool = True,
        allowed: Callable[[int, range], bool] = always,
    ) -> None:
        self.costs, self.noise, self.delay, self.balanced = costs, noise, delay, balanced
        self.first_run = first_run
        self.balance = LoadBalance(bounds, allowed)
        self.clock_s = 0.0
        self.changes: list[tuple[int, Bounds]] = []
        self._rounds = 0
        self._draw = np.random.default_rng(7)
        self._prepared: tuple[int, Bounds] | None = None
        self._ran: set[tuple[int, int]] = set()

    def run(self, rounds: int, slowness: Sequence[float]) -> Pipeline:
        for _ in range(rounds):
            self._rounds += 1
            self.clock_s += max(loads(self.costs, slowness, self.balance.bounds))
            for part, worker in enumerate(owners(self.balance.bounds)):
                self._report(worker, part, slowness[worker])
            if proposed := self.balance.proposal():
                self._prepared = self._prepared or (self._rounds + self.delay, proposed)
            self._switch()
        return self

    def _report(self, worker: int, part: int, slow: float) -> None:
        warming = 1.0 if (worker, part) in self._ran else self.first_run
        self._ran.add((worker, part))
        noise = 1 + self.noise * float(self._draw.standard_normal())
        self.balance.measured(worker, part, self.costs[part] * slow * warming * noise)

    def _switch(self) -> None:
        if self.balanced and self._prepared and self._rounds >= self._prepared[0]:
            self.balance.accept(self._prepared[1])
            self.changes.append((self._rounds, self._prepared[1]))
            self._prepared = None


# Even divisions


def test_an_even_division_is_skienas_example() -> None:
    # The Algorithm Design Manual, "the partition problem": 100 .. 500 | 600 700 | 800 900, no heap above 1700.
    assert even_bounds([100, 200, 300, 400, 500, 600, 700, 800, 900], 3) == (0, 5, 7, 9)


@seeded(20, together=20)
def test_an_even_division_has_the_least_maximum_and_then_the_least_squares(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = int(draw.integers(1, 10))
    workers = int(draw.integers(1, parts + 1))
    weights = [int(w) for w in draw.integers(0, 9, parts)]

    def worth(bounds: Bounds) -> tuple[float, float]:
        sums = loads(weights, [1] * workers, bounds)
        return max(sums), sum(s * s for s in sums)

    assert worth(even_bounds(weights, workers)) == min(map(worth, divisions(parts, workers)))


def test_the_other_parts_are_divided_evenly_too() -> None:
    assert even_bounds([10, 1, 1, 1, 1], 3) == (0, 1, 3, 5)


def test_one_worker_gets_all_and_as_many_workers_as_parts_get_one_each() -> None:
    assert even_bounds([3, 1, 2], 1) == (0, 3)
    assert even_bounds([3, 1, 2], 3) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("weights", "workers", "hint"),
    [([1, 1], 3, "ask for 1 to 2 workers"), ([1, 1], 0, "ask for 1 to 2 workers"), ([], 1, "there is nothing to run")],
)
def test_more_workers_than_parts_are_refused(weights: list[float], workers: int, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        even_bounds(weights, workers)
    assert str(caught.value) == (
        f"{len(weights)} parts can't be divided among {workers} workers, each with a part of its own"
    )
    assert caught.value.hint == hint


# Divisions for known costs and speeds


@seeded(20, together=20)
@each("is_tight", [False, True])
def test_a_better_division_is_optimal_within_one_percent_and_moves_the_fewest_parts(
    seed: int, *, is_tight: bool
) -> None:
    draw = np.random.default_rng(seed)
    parts = int(draw.integers(2, 10))
    workers = int(draw.integers(1, min(parts, 4) + 1))
    costs, slowness = draw.integers(1, 9, parts).astype(float), draw.choice([0.5, 1.0, 2.0], workers)
    now = list(divisions(parts, workers))[int(draw.integers(len(list(divisions(parts, workers)))))]
    room = [int(r) for r in draw.integers(1, parts + 1, workers)] if is_tight else [parts] * workers

    def worth(bounds: Bounds) -> float:
        return max(loads([float(c) for c in costs], [float(s) for s in slowness], bounds))

    fitting = [
        bounds
        for bounds in divisions(parts, workers)
        if all(end - start <= most for most, (start, end) in zip(room, pairwise(bounds), strict=True))
    ]
    good = [bounds for bounds in fitting if worth(bounds) <= 0.9 * worth(now) + 1e-12]
    found = better_bounds(costs, slowness, now, lambda worker, held: len(held) <= room[worker])
    if not good:
        assert found is None
        return
    equal = [bounds for bounds in good if worth(bounds) <= 1.01 * min(map(worth, good))]
    assert found in equal
    assert moved(now, found) == min(moved(now, bounds) for bounds in equal)


@seeded(20, together=20)
def test_a_worker_with_a_slower_link_may_be_left_without_parts(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = int(draw.integers(2, 7))
    workers = int(draw.integers(2, min(parts, 3) + 1))
    costs, slowness = draw.integers(1, 9, parts).astype(float), draw.choice([0.5, 1.0, 2.0], workers)
    behind = [worker for worker in range(workers) if draw.random() < 0.5]
    slower = {worker: draw.integers(0, 20, (parts + 1, parts + 1)).astype(float) for worker in behind}
    now = next(divisions(parts, workers))

    def worth(bounds: Bounds) -> float:
        times = [
            max(slowness[k] * costs[start:end].sum(), slower[k][start, end] if k in slower and start < end else 0.0)
            for k, (start, end) in enumerate(pairwise(bounds))
        ]
        return float(max(times))

    possible = [
        (0, *inner, parts)
        for inner in combinations_with_replacement(range(parts + 1), workers - 1)
        if all(start < end or k in slower for k, (start, end) in enumerate(pairwise((0, *inner, parts))))
    ]
    least, found = min(map(worth, possible)), better_bounds(costs, slowness, now, always, slower)
    assert (found is None) == (least > 0.9 * worth(now) + 1e-12)
    assert found is None or (found in possible and worth(found) <= 1.01 * least)


def test_the_better_of_two_equal_divisions_moves_fewer_parts() -> None:
    # 2 2 1 | 1 takes 5 s; 2 2 | 1 1 and 2 | 2 1 1 take 4 s, and move one part and two.
    assert better_bounds(np.array([2.0, 2.0, 1.0, 1.0]), np.ones(2), (0, 3, 4), always) == (0, 2, 4)


# Estimated costs and speeds


def after_rounds(speeds: MeasuredSpeeds, seconds: Sequence[dict[int, float]], *, rounds: int = 1) -> MeasuredSpeeds:
    """`speeds` after rounds in which worker k took seconds[k][i] for part i."""
    for _ in range(rounds):
        for worker, times in enumerate(seconds):
            for part, took in times.items():
                speeds.measured(worker, part, took)
        assert speeds.end_round([True] * len(seconds))
    return speeds


def test_all_parts_slower_means_a_slower_worker_and_one_slower_means_that_part() -> None:
    before = [dict.fromkeys(range(6), 1.0), dict.fromkeys(range(6, 12), 1.0)]
    speeds = after_rounds(MeasuredSpeeds(parts=12, workers=2), before, rounds=10)
    costs, slowness = after_rounds(speeds, [before[0], dict.fromkeys(range(6, 12), 2.0)], rounds=40).fitted()
    assert costs == pytest.approx([1.0] * 12, rel=0.01)
    assert slowness == pytest.approx([1, 2], rel=0.01)
    speeds = after_rounds(MeasuredSpeeds(parts=12, workers=2), before, rounds=10)
    costs, slowness = after_rounds(speeds, [before[0] | {5: 7.0}, before[1]], rounds=40).fitted()
    assert costs == pytest.approx([1.0] * 5 + [7.0] + [1.0] * 6, rel=0.1)
    assert slowness == pytest.approx([1, 1], rel=0.1)


def test_a_change_of_a_part_applies_to_all_workers() -> None:
    speeds = after_rounds(MeasuredSpeeds(parts=4, workers=2), [{0: 1, 1: 1}, {2: 1, 3: 1}], rounds=10)
    after_rounds(speeds, [{0: 1, 1: 1, 2: 1}, {3: 1}], rounds=10)
    costs, slowness = after_rounds(speeds, [{0: 1, 1: 1, 2: 2}, {3: 1}], rounds=40).fitted()
    assert costs == pytest.approx([1, 1, 2, 1], rel=0.15)
    assert slowness == pytest.approx([1, 1], rel=0.15)


def test_a_part_that_ran_on_two_workers_compares_them_for_long() -> None:
    # Part 1 showed once, long ago, that the second worker takes twice as long. By the prior the two are about 1.
    speeds = after_rounds(MeasuredSpeeds(parts=3, workers=2), [{0: 1}, {1: 2, 2: 2}], rounds=5)
    _, slowness = after_rounds(speeds, [{0: 1, 1: 1}, {2: 2}], rounds=1000).fitted()
    assert slowness == pytest.approx([2**-0.5, 2**0.5], rel=0.02)


def test_newer_measurements_count_more() -> None:
    # One part says the workers are alike, 50 rounds ago; another says 1 to 3, now. Each weighs as its two measurements
    # in series: 0.05 / 2 and 1 / 2, so that the logarithm of the ratio is 20/21 of that of 3.
    speeds = after_rounds(MeasuredSpeeds(parts=4, workers=2), [{0: 1}, {0: 1}])
    after_rounds(speeds, [{2: 1}, {3: 1}], rounds=50)
    _, slowness = after_rounds(speeds, [{1: 1}, {1: 3}]).fitted()
    assert slowness[1] / slowness[0] == pytest.approx(3 ** (20 / 21), rel=0.01)


def test_the_first_run_of_a_part_counts_for_an_eighth() -> None:
    speeds = after_rounds(MeasuredSpeeds(parts=2, workers=2), [{0: 1}, {1: 5}])
    costs, _ = after_rounds(speeds, [{0: 1}, {1: 1}], rounds=20).fitted()
    assert costs == pytest.approx([1, 5 ** (1 / 8)], rel=0.01)


def test_a_part_without_measurements_has_the_mean_cost() -> None:
    # The geometric mean of 1 and 4.
    costs, _ = after_rounds(MeasuredSpeeds(parts=3, workers=2), [{0: 1}, {1: 4}], rounds=5).fitted()
    assert costs == pytest.approx([1, 4, 2], rel=0.01)


def test_noise_of_a_worker_is_smoothed() -> None:
    # An average that takes over an eighth leaves sqrt(1/8 / (2 - 1/8)) = 0.26 of the noise: 0.013 of 0.05; one that
    # takes over half leaves 0.58 of it.
    draw = np.random.default_rng(3)
    speeds = after_rounds(MeasuredSpeeds(parts=2, workers=2), [{0: 1}, {1: 1}], rounds=5)
    strays = []
    for _ in range(1000):
        _, slowness = after_rounds(speeds, [{0: 1}, {1: float(np.exp(0.05 * draw.standard_normal()))}]).fitted()
        strays.append(float(np.log(slowness[1])))
    assert np.std(strays) <= 0.016


# Simulated pipelines


def test_a_worker_that_becomes_half_as_fast_keeps_a_third_of_the_parts() -> None:
    # 12 equal parts: 6 s and 6 s become 6 s and 12 s; with 8 and 4 parts both take 8 s, two thirds of 12 s.
    pipeline = Pipeline([1.0] * 12, (0, 6, 12)).run(20, [1, 1]).run(20, [1, 2])
    assert [bounds for _, bounds in pipeline.changes] == [(0, 8, 12)]
    assert loads([1.0] * 12, [1, 2], (0, 8, 12)) == [8, 8]


def test_it_reacts_to_a_change_and_to_its_end_within_four_rounds() -> None:
    pipeline = Pipeline([1.0] * 12, (0, 6, 12)).run(20, [1, 1]).run(40, [1, 2]).run(40, [1, 1])
    (slowed, away), (recovered, home) = pipeline.changes
    assert (away, home) == ((0, 8, 12), (0, 6, 12))
    assert slowed <= 24
    assert recovered <= 64


@each("noise", [0.0, 0.05])
@each("delay", [0, 3])
def test_with_one_of_four_workers_slowed_the_pipeline_is_a_third_faster_than_the_even_division(
    noise: float, delay: int
) -> None:
    # At best 24 parts in 7 s instead of 12 s: workers of speed 1, 1, 1/2, 1 get 7, 7, 3, 7.
    clocks = [
        Pipeline([1.0] * 24, (0, 6, 12, 18, 24), noise=noise, delay=delay, balanced=balanced)
        .run(20, [1, 1, 1, 1])
        .run(80, [1, 1, 2, 1])
        .clock_s
        for balanced in (False, True)
    ]
    assert clocks[0] == 20 * 6 + 80 * 12
    assert clocks[0] / clocks[1] >= 1.3


def test_five_percent_noise_moves_nothing_in_a_thousand_rounds() -> None:
    for parts, workers in ((12, 2), (3, 2), (24, 4), (10, 3)):
        bounds = even_bounds([1.0] * parts, workers)
        assert Pipeline([1.0] * parts, bounds, noise=0.05).run(1000, [1] * workers).changes == []


def test_a_slow_worker_and_noise_together_make_one_change_and_one_back() -> None:
    pipeline = Pipeline([1.0] * 12, (0, 6, 12), noise=0.05).run(50, [1, 1]).run(500, [1, 2]).run(500, [1, 1])
    assert [bounds for _, bounds in pipeline.changes] == [(0, 8, 12), (0, 6, 12)]


def test_workers_of_unequal_speed_get_the_optimal_division() -> None:
    # 24 equal parts, speeds 1, 1/2, 1, 1/4: no division takes less than 9 s, which 9, 4, 9, 2 does.
    slowness = [1, 2, 1, 4]
    least = min(max(loads([1.0] * 24, slowness, bounds)) for bounds in divisions(24, 4))
    pipeline = Pipeline([1.0] * 24, (0, 6, 12, 18, 24)).run(60, slowness)
    assert max(loads([1.0] * 24, slowness, pipeline.balance.bounds)) == least == 9


def test_expensive_parts_are_not_taken_for_a_slow_worker() -> None:
    # The second worker's parts take a hundred times as long, and the worker is as fast as the first: 3 of 6 each.
    pipeline = Pipeline([0.01] * 6 + [1.0] * 6, (0, 6, 12)).run(60, [1, 1])
    assert [bounds for _, bounds in pipeline.changes] == [(0, 9, 12)]


def test_the_first_part_that_moves_shows_that_a_worker_was_slow_from_the_start() -> None:
    # 6 s and 12 s. Were the parts heavy, 7 and 5 would be best, with 8 s and 10 s; they are not: 8 and 4, with 8 s.
    pipeline = Pipeline([1.0] * 12, (0, 6, 12)).run(60, [1, 2])
    assert [bounds for _, bounds in pipeline.changes] == [(0, 7, 12), (0, 8, 12)]


def test_a_worker_with_a_slower_part_gives_other_parts_away() -> None:
    # Part 0 takes 5 s instead of 1 s: 10 s and 6 s; with 4 and 8 parts both take 8 s.
    costs = [1.0] * 12
    pipeline = Pipeline(costs, (0, 6, 12)).run(20, [1, 1])
    costs[0] = 5.0
    assert pipeline.run(60, [1, 1]).balance.bounds == (0, 4, 12)


def test_one_part_that_becomes_slower_is_not_taken_for_its_worker() -> None:
    # Parts 0 .. 4 still take 1 s, part 5 takes 7 s: 12 s and 6 s. On the second worker part 5 would make that 5 s and
    # 13 s, so nothing is worth a change. Were it the worker, half as fast, part 5 would cost 3.5 s there: 9.5 s.
    balance = LoadBalance((0, 6, 12), always)
    for seconds in [1.0] * 20 + [7.0] * 20:
        for part, worker in enumerate(owners((0, 6, 12))):
            balance.measured(worker, part, seconds if part == 5 else 1.0)
        assert balance.proposal() is None


def test_a_single_slow_round_changes_nothing() -> None:
    pipeline = Pipeline([1.0] * 12, (0, 6, 12)).run(20, [1, 1]).run(1, [1, 10]).run(20, [1, 1])
    assert pipeline.changes == []


def test_slow_first_runs_change_nothing() -> None:
    pipeline = Pipeline([1.0] * 12, (0, 6, 12), first_run=5.0).run(20, [1, 1])
    assert pipeline.changes == []
    assert [bounds for _, bounds in pipeline.run(200, [1, 2]).changes] == [(0, 8, 12)]


def test_all_workers_slower_together_changes_nothing() -> None:
    assert Pipeline([1.0] * 12, (0, 4, 8, 12)).run(20, [1, 1, 1]).run(20, [3, 3, 3]).changes == []


def test_a_worker_gets_only_the_parts_it_may_hold() -> None:
    # The first worker may hold 7 parts only: 7 s and 10 s is then the best.
    def allowed(worker: int, parts: range) -> bool:
        return worker == 1 or len(parts) <= 7

    pipeline = Pipeline([1.0] * 12, (0, 6, 12), allowed=allowed).run(20, [1, 1]).run(40, [1, 2])
    assert [bounds for _, bounds in pipeline.changes] == [(0, 7, 12)]


def test_nothing_is_proposed_if_nothing_is_allowed() -> None:
    pipeline = Pipeline([1.0] * 12, (0, 6, 12), allowed=lambda _worker, _parts: False)
    assert pipeline.run(20, [1, 1]).run(20, [1, 4]).changes == []


@pytest.mark.parametrize("bounds", [(0, 5), (0, 1, 2, 3)])
def test_one_worker_and_as_many_workers_as_parts_have_nothing_to_change(bounds: Bounds) -> None:
    workers = len(bounds) - 1
    pipeline = Pipeline([1.0] * bounds[-1], bounds).run(10, [1] * workers).run(10, [4, *[1] * (workers - 1)])
    assert pipeline.changes == []


def test_nothing_is_proposed_if_one_part_is_the_bottleneck() -> None:
    assert Pipeline([1.0, 9.0, 1.0, 1.0], (0, 1, 2, 4)).run(30, [1, 1, 1]).changes == []


def test_a_round_ends_when_every_worker_has_reported() -> None:
    balance = LoadBalance((0, 1, 4), always)
    for _ in range(50):
        for part in (1, 2, 3):
            balance.measured(1, part, 1.0)
        assert balance.proposal() is None
    found = []
    for _ in range(7):  # 4 rounds of rest, and 3 that agree
        balance.measured(0, 0, 1.0)
        for part in (1, 2, 3):
            balance.measured(1, part, 1.0)
        found.append(balance.proposal())
        assert balance.proposal() is None
    assert found == [None] * 6 + [(0, 2, 4)]


def test_parts_of_zero_seconds_are_balanced() -> None:
    pipeline = Pipeline([0.0, 1.0, 1.0, 0.0], (0, 1, 4)).run(20, [1, 1])
    assert pipeline.balance.bounds == (0, 2, 4)
