"""The best climb of a ladder: dynamic programs over rungs, and over how many devices of each kind are used.

Interval mapping on devices of different speed is NP-hard in the number of devices (Benoit and Robert, JPDC 2008); the
exponential part is the set of devices alone: O(product of (count + 1) · kinds · rungs²), exact for the ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Literal

import numpy as np

from ..instance import Bools, Floats

Aggregation = Literal["sum", "max"]
DeviceCounts = tuple[int, ...]


@dataclass(frozen=True)
class Criterion:
    """One number by which climbs are ranked: the sum, or the greatest, of what its parts cost.

    Attributes:
        costs: for each kind of device a table of what the part between two rungs costs; `inf` where it can't be.
        joined: how the costs of the parts make one number.
    """

    costs: Sequence[Floats]
    joined: Aggregation

    def join(self, first: Floats, second: Floats) -> Floats:
        """The number of two stretches together."""
        return np.asarray(first + second if self.joined == "sum" else np.maximum(first, second))


@dataclass(frozen=True)
class ChainPartition:
    """A way from the lowest rung to the highest.

    Attributes:
        rungs: the rungs it uses, the lowest and the highest among them.
        kinds: the kind of device that runs each part.
        ranks: the numbers it was chosen by.
    """

    rungs: tuple[int, ...]
    kinds: tuple[int, ...]
    ranks: tuple[float, ...]


@dataclass(frozen=True)
class DpTable:
    """The best ranks of reaching each rung with so many devices of each kind."""

    terms: Sequence[Criterion]
    ranks: Mapping[DeviceCounts, Sequence[Floats]]

    def best(self, choose: Callable[[DeviceCounts], bool] = lambda _: True) -> ChainPartition | None:
        """The best climb to the top, among the states that `choose` admits; of equal ones the fewest parts."""
        found = [(tuple(float(r[-1]) for r in ranks), sum(s), s) for s, ranks in self.ranks.items() if choose(s)]
        found = [entry for entry in found if np.isfinite(entry[0][0])]
        if not found:
            return None
        ranks, _, state = min(found)
        return self._climb(state, ranks)

    def _climb(self, state: DeviceCounts, ranks: tuple[float, ...]) -> ChainPartition:
        rung = len(self.ranks[state][0]) - 1
        rungs, kinds = [rung], []
        while sum(state):
            state, rung, kind = next(self._steps_to(state, rung))
            rungs.append(rung)
            kinds.append(kind)
        return ChainPartition(tuple(reversed(rungs)), tuple(reversed(kinds)), ranks)

    def _steps_to(self, state: DeviceCounts, rung: int) -> Iterator[tuple[DeviceCounts, int, int]]:
        """The last steps by which the ranks of a rung come about; ranks are exact, so that equality finds them."""
        wanted = [ranks[rung] for ranks in self.ranks[state]]
        for kind, used in enumerate(state):
            before = _one_less(state, kind)
            if not used or before not in self.ranks:
                continue
            reached = np.ones(len(self.ranks[before][0]), dtype=bool)
            for term, ranks, number in zip(self.terms, self.ranks[before], wanted, strict=True):
                reached &= term.join(ranks, term.costs[kind][rung]) == number
            for low in np.flatnonzero(reached)[::-1]:
                yield before, int(low), kind


def chain_dp_table(
    terms: Sequence[Criterion],
    counts: DeviceCounts,
    *,
    allowed: Callable[[int], Bools] | None = None,
    enough: bool = False,
) -> DpTable:
    """Rank every way up: by the first term, and where that is equal by the next.

    Args:
        terms: what climbs are ranked by. Behind the first, a term only decides between equals; a first term that
            takes the greatest must then be the only one.
        counts: how many devices there are of each kind.
        allowed: for a number of parts, which rungs may be reached with so many.
        enough: stop at the first number of parts that reaches the top.
    """
    rungs = terms[0].costs[0].shape[0]
    start = np.full(rungs, np.inf)
    start[0] = 0.0
    ranks: dict[DeviceCounts, Sequence[Floats]] = {tuple(0 for _ in counts): [start.copy() for _ in terms]}
    states = sorted(product(*(range(count + 1) for count in counts)), key=lambda state: (sum(state), state))
    for parts, level in groupby(states[1:], key=sum):
        reached = [ranks[state] for state in ranks if sum(state) == parts - 1]
        if not reached or (enough and any(np.isfinite(found[0][-1]) for found in reached)):
            break
        mask = np.zeros(rungs, dtype=bool) if allowed is None else ~allowed(parts)
        for state in level:
            best = _best_into(terms, ranks, state)
            for found in best:
                found[mask] = np.inf
            if np.isfinite(best[0]).any():
                ranks[state] = best
    return DpTable(terms, ranks)


def _best_into(
    terms: Sequence[Criterion], ranks: Mapping[DeviceCounts, Sequence[Floats]], state: DeviceCounts
) -> list[Floats]:
    """The best ranks of reaching each rung with these devices, whichever of them runs the last part."""
    best = [np.full(terms[0].costs[0].shape[0], np.inf) for _ in terms]
    for kind, used in enumerate(state):
        before = _one_less(state, kind)
        if used and before in ranks:
            best = _better(best, _step(terms, ranks[before], kind))
    return best


def _step(terms: Sequence[Criterion], ranks: Sequence[Floats], kind: int) -> list[Floats]:
    """The best ranks after one more part on a device of that kind."""
    options = [term.join(rank[None, :], term.costs[kind]) for term, rank in zip(terms, ranks, strict=True)]
    best = [options[0].min(axis=1)]
    for before, option in pairwise(options):
        option[before > best[-1][:, None]] = np.inf
        best.append(option.min(axis=1))
    return best


def _better(first: Sequence[Floats], second: Sequence[Floats]) -> list[Floats]:
    """For each rung the better of two ranks."""
    wins = np.zeros(len(first[0]), dtype=bool)
    equal = np.ones(len(first[0]), dtype=bool)
    for a, b in zip(first, second, strict=True):
        wins |= equal & (b < a)
        equal &= a == b
    return [np.where(wins, b, a) for a, b in zip(first, second, strict=True)]


def _one_less(state: DeviceCounts, kind: int) -> DeviceCounts:
    return (*state[:kind], state[kind] - 1, *state[kind + 1 :])


def min_max_cost(costs: Floats) -> float:
    """The least number that the dearest part of any climb, of any number of parts, can cost."""
    best = np.full(len(costs), np.inf)
    best[0] = -np.inf
    for rung in range(1, len(costs)):
        best[rung] = np.maximum(best[:rung], costs[rung, :rung]).min()
    return float(best[-1])
