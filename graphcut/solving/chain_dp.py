"""Chain DP: divide a chain of boundaries into consecutive parts, each on a device of some class, at the least cost.

Boundaries 0..B are order ideals of the graph; boundary 0 is empty, boundary B holds every group. The part between
boundaries i < j costs `costs[c][j, i]` on a device of class c (`inf`: impossible). The state of the DP is how many
devices of each class are used, so the result is exact for the chain. Mapping intervals to devices of different speed is
NP-hard in the number of devices (Benoit and Robert, JPDC 2008); the DP takes O(prod(count_c + 1) * classes * B**2).

Example: three groups of 1, 2 and 3 ms, two equal devices, no transfer cost. Boundary i holds the first i groups.

    >>> import numpy as np
    >>> ms = np.array([0.0, 1, 3, 6])  # total of the groups in each boundary
    >>> costs = np.where(ms[:, None] > ms, ms[:, None] - ms, np.inf)
    >>> table = chain_dp([Criterion([costs], "max")], counts=(2,))
    >>> table.best()  # parts {1, 2} and {3}: the slower one takes 3 ms
    ChainPartition(boundaries=(0, 2, 3), classes=(0, 0), values=(3.0,))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, product
from typing import Final, Literal, NamedTuple

import numpy as np

from .instance import Bools, Floats

Aggregation = Literal["sum", "max"]
COMBINED: Final[Mapping[Aggregation, np.ufunc]] = {"sum": np.add, "max": np.maximum}
DeviceCounts = tuple[int, ...]  #: the number of devices of each class: the state of the DP.


class Criterion(NamedTuple):
    """A number that partitions are compared by: the sum, or the maximum, of the costs of their parts."""

    #: for each device class a table: `costs[c][j, i]` is the cost of the part between boundaries i and j.
    costs: Sequence[Floats]
    aggregation: Aggregation  #: how the costs of the parts make one number.


@dataclass(frozen=True)
class ChainPartition:
    """A division of the chain into parts."""

    boundaries: tuple[int, ...]  #: the boundaries used, from the first to the last of the chain.
    classes: tuple[int, ...]  #: the device class of each part.
    values: tuple[float, ...]  #: the values of the criteria.
    #: whether no partition over these boundaries has a smaller first value.
    is_best: bool = field(default=True, repr=False)

    def ranked_by(self, first: float) -> ChainPartition:
        """The same with one more value before the others."""
        return replace(self, values=(float(first), *self.values))


class DpTable(NamedTuple):
    """The best values of the criteria for reaching each boundary."""

    criteria: Sequence[Criterion]  #: what partitions are compared by, the most important first.
    #: `values[state][k]` is an array over the boundaries for criterion k; `inf` where the state can't reach.
    values: Mapping[DeviceCounts, Sequence[Floats]]

    def best(self, choose: Callable[[DeviceCounts], bool] = lambda _: True) -> ChainPartition | None:
        """The best partition among the states that `choose` admits; of equal ones the one with the fewest parts."""
        admitted = ((state, values) for state, values in self.values.items() if choose(state))
        found = [(tuple(float(row[-1]) for row in values), sum(state), state) for state, values in admitted]
        best, _, state = min(found, default=((np.inf,), 0, ()))
        if not np.isfinite(best[0]):
            return None
        boundary = len(self.values[state][0]) - 1
        boundaries, classes = [boundary], []
        while sum(state):
            state, boundary, device_class = next(self._last_parts(state, boundary))
            boundaries.append(boundary)
            classes.append(device_class)
        return ChainPartition(tuple(reversed(boundaries)), tuple(reversed(classes)), best)

    def _last_parts(self, state: DeviceCounts, j: int) -> Iterator[tuple[DeviceCounts, int, int]]:
        """The parts that end at boundary j in a best partition: state before, first boundary, device class.

        Times are multiples of a quantum, so sums are exact and equality identifies them.
        """
        wanted = [values[j] for values in self.values[state]]
        for c, before in _predecessors(state):
            if before not in self.values:
                continue
            is_best = np.ones(len(self.values[before][0]), dtype=bool)
            for (costs, aggregation), values, number in zip(self.criteria, self.values[before], wanted, strict=True):
                is_best &= COMBINED[aggregation](values, costs[c][j]) == number
            for i in np.flatnonzero(is_best)[::-1]:
                yield before, int(i), c


def chain_dp(
    criteria: Sequence[Criterion],
    counts: DeviceCounts,
    *,
    allowed: Callable[[int], Bools] | None = None,
    only: Collection[DeviceCounts] | None = None,
    fewest_parts: bool = False,
) -> DpTable:
    """The DP table of all partitions of a chain, compared by the first criterion, of equal ones by the next.

    A first criterion that aggregates by "max" must be the only one. `counts` has the devices of each class, `allowed`
    is, for a number of parts, a mask over the boundaries that may be reached with that many, `only` are the states that
    may be passed (None: all). With `fewest_parts` the DP stops at the smallest number of parts that reaches the last
    boundary.
    """
    start = np.full(len(criteria[0].costs[0]), np.inf)
    start[0] = 0.0
    values: dict[DeviceCounts, Sequence[Floats]] = {tuple(0 for _ in counts): [start.copy() for _ in criteria]}
    every = product(*(range(count + 1) for count in counts)) if only is None else only
    states = sorted(every, key=lambda state: (sum(state), state))
    for parts, level in groupby(states[1:], key=sum):
        reached = [values[state] for state in values if sum(state) == parts - 1]
        if not reached or (fewest_parts and any(np.isfinite(found[0][-1]) for found in reached)):
            break
        mask = np.zeros(len(start), dtype=bool) if allowed is None else ~allowed(parts)
        for state in level:
            before = [(c, values[other]) for c, other in _predecessors(state) if other in values]
            best = _with_one_more_part(criteria, before) if before else []
            for found in best:
                found[mask] = np.inf
            if best and np.isfinite(best[0]).any():
                values[state] = best
    return DpTable(criteria, values)


def _predecessors(state: DeviceCounts) -> Iterator[tuple[int, DeviceCounts]]:
    """Each device class that the state uses, and the state with one device of it less."""
    for c, used in enumerate(state):
        if used:
            yield c, (*state[:c], used - 1, *state[c + 1 :])


def _with_one_more_part(criteria: Sequence[Criterion], before: Sequence[tuple[int, Sequence[Floats]]]) -> list[Floats]:
    """The best values for each boundary after one more part: for each device class the values of what is before it."""
    rows = (
        [COMBINED[aggregation](values[k][None, :], costs[c]) for c, values in before]
        for k, (costs, aggregation) in enumerate(criteria)
    )
    options = [np.hstack(row) if len(row) > 1 else row[0] for row in rows]  # hstack would copy a single one
    best = [options[0].min(axis=1)]
    for option, next_option in pairwise(options):
        next_option[option > best[-1][:, None]] = np.inf
        best.append(next_option.min(axis=1))
    return best


def best_chain(criteria: Sequence[tuple[Floats, Aggregation]]) -> ChainPartition | None:
    """The best partition into any number of parts on devices of one class, compared as in `chain_dp`.

    The number of parts is no state: O(criteria * B**2), however many parts there are.

    >>> import numpy as np
    >>> inf = np.inf
    >>> costs = np.array([[inf, inf, inf], [4.0, inf, inf], [9.0, 3.0, inf]])
    >>> best_chain([(costs, "max")])  # parts of 4 and of 3; one part would cost 9
    ChainPartition(boundaries=(0, 1, 2), classes=(0, 0), values=(4.0,))
    """
    values, before = np.zeros((len(criteria), len(criteria[0][0]))), [0]
    for j in range(1, values.shape[1]):
        kept = np.arange(j)
        for (costs, aggregation), row in zip(criteria, values, strict=True):
            options = COMBINED[aggregation](row[kept], costs[j, kept])
            row[j] = options.min()
            kept = kept[options == row[j]]
        before.append(int(kept[-1]))
    if not np.isfinite(values[0, -1]):
        return None
    boundaries = [values.shape[1] - 1]
    while boundaries[-1]:
        boundaries.append(before[boundaries[-1]])
    return ChainPartition(tuple(reversed(boundaries)), (0,) * (len(boundaries) - 1), tuple(values[:, -1].tolist()))
