"""Chains of parts on devices whose links differ from pair to pair.

Dynamic programming finds for each boundary, each set of devices used before it and each sender before it the least cost
of the rest. It charges what the part before has written for certain at its link, and what may come from further back at
the receiver's best link. So it is exact for a chain of groups, and otherwise a lower bound. A depth-first search then
charges each part exactly, from the devices that wrote what it receives, with that bound for the rest (branch and bound,
Land and Doig 1960): what it finds is the best over these boundaries unless it is stopped early.

Example: parts a, b, c, each written by one device; c reads 8 bytes of b and, past b, 4 bytes of a. While b's device is
known, the 8 bytes cost what they do; the 4 bytes cost at least what they do over the best link to c's device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce
from itertools import pairwise, product
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..costs.cluster import Cluster
from .boundaries import BoundaryTables, touch_counts
from .chain_dp import COMBINED, Aggregation, ChainPartition, DeviceCounts
from .cost_tables import DeviceClass, PairCosts, assigned_devices, used_devices
from .instance import Bools, Floats, Ints, Workload, exact
from .transfers import STEPS_AT_ONCE, RequestTimes, request_times

_SAME: Final = 1e-12  #: times that differ by this share differ only in rounding.
_AT_ONCE: Final = 128  #: boundaries that are looked at together: of more some parts would span far fewer than others.
_ROWS: Final = 64  #: of tables are computed together, so that they stay in the processor's cache.
_CALL: Final = 5e4  #: what a call of Python takes, in numbers that numpy computes meanwhile.
_State = tuple[DeviceCounts, int]  #: the devices used, and the last one as a sender (`PairCosts.senders`).


@dataclass(frozen=True)
class LinkedChains:
    """The partitions over given boundaries, and what they cost on the devices of a cluster."""

    tables: BoundaryTables  #: the boundaries.
    classes: Sequence[DeviceClass]  #: the device classes.
    pairs: PairCosts  #: what their links cost.
    cluster: Cluster  #: its rules.
    quantum: float  #: see `time_quantum`.
    fits: Sequence[Bools]  #: for each class the parts that fit in its memory.
    allowed: Callable[[int], Bools] | None  #: see `chain_dp`.
    only: Collection[DeviceCounts] | None  #: the sets of devices that are tried; None for all.
    most_work: float  #: about how many numbers a branch and bound may compute.

    def best(
        self,
        aggregation: Aggregation,
        *,
        limit: float = np.inf,
        most_parts: int | None = None,
        most_work: float | None = None,
    ) -> ChainPartition | None:
        """The partition of least period ("max") or least latency ("sum") whose period is at most `limit`.

        Its values are these two times, the one that is minimized first.
        """
        rest = self.cost_to_go(aggregation, limit, most_parts)
        search = _BranchAndBound(self, aggregation, limit, rest, self.most_work if most_work is None else most_work)
        search.visit(_Node((0,), (), self._unused, 0.0, np.full(self.tables.load.groups, -1)))
        return search.best and replace(search.best, is_best=not search.is_stopped)

    def lower_bound(self, aggregation: Aggregation) -> float:
        """No partition over these boundaries has a shorter period, or a smaller latency."""
        rest = self.cost_to_go(aggregation).get((self._unused, 0))
        of_driver_s = driver_s(aggregation, self.tables.load, self.pairs, self.cluster)
        return np.inf if rest is None else float(COMBINED[aggregation](rest[0], of_driver_s))

    def costs(self, sender: int, c: int) -> tuple[Floats, Floats]:
        """For each part on class c behind one on `sender`: seconds that it keeps its device busy, and of a request."""
        return self._costs[self.pairs.senders[sender], c]

    def times(self, boundaries: Sequence[int], classes: Sequence[int]) -> RequestTimes:
        """The exact times of a partition."""
        steps, devices = list(pairwise(boundaries)), assigned_devices(self.classes, classes)
        transfers = self.tables.transfers([self.tables.groups_between(i, j) for i, j in steps])

        def seconds(work: Sequence[Floats]) -> list[float]:
            return [float(work[c][j, i]) for (i, j), c in zip(steps, classes, strict=True)]

        least_s, least_or_wait_s, most_s = map(seconds, self._work)
        slowest = request_times(transfers, least_or_wait_s, devices, self.cluster)
        if self.tables.relaxation is None or self.cluster.overlap == "none":
            return slowest
        times = request_times(transfers, least_s, devices, self.cluster, most_s)
        return times._replace(latency_s=slowest.latency_s)

    # Dynamic programming

    def cost_to_go(
        self, aggregation: Aggregation, limit: float = np.inf, most_parts: int | None = None
    ) -> Mapping[_State, Floats]:
        """For each state an array over the boundaries: a lower bound of what the parts behind the boundary cost."""
        counts, senders = [len(c.devices) for c in self.classes if not c.members], sorted({*self.pairs.senders})
        every = product(*(range(count + 1) for count in counts)) if self.only is None else self.only
        most_used, boundaries = max(map(sum, self.uses)), self.tables.boundary_count
        most = self.tables.load.groups * most_used if most_parts is None else most_parts
        most_s = min(limit * (1 + _SAME), np.finfo(float).max)
        ends, begins = np.nonzero(np.logical_or.reduce([busy_s <= most_s for busy_s, _ in self._costs.values()]))
        width = int((ends - begins).max(initial=1))  # the most boundaries that a possible part spans
        options = [self._options(c, senders, aggregation, most_s, width) for c in range(len(self.classes))]
        states = sorted((used for used in every if sum(used) <= most), key=lambda used: (-sum(used), used))
        index = {used: i for i, used in enumerate(states)}
        reach = [_reach(costs) for costs in options]
        last_end, first = self._last_ends(states, reach), dict.fromkeys(states, boundaries - 1)
        rest = np.full((len(states), len(senders), boundaries + width), np.inf)
        rest[:, :, boundaries - 1] = 0.0
        behind = sliding_window_view(rest[:, :, 1:], width, axis=2).swapaxes(2, 3)  # `[..., k, i]` is behind i + 1 + k
        for used in states:
            after = [(c, to, sender) for c, (to, sender) in enumerate(self.next_states(used)) if to in index]
            first[used] = min([first[used], *(int(np.searchsorted(reach[c][:-1], first[to])) for c, to, _ in after)])
            # Nothing can be behind other boundaries, or before them.
            for begin in range(first[used], last_end[used] + 1, _AT_ONCE):
                some = slice(begin, min(begin + _AT_ONCE, last_end[used] + 1))
                row = rest[index[used], :, some]
                for c, to, sender in after:
                    if (k := slice(int(reach[c][some.stop - 1]) - begin)).stop > 0:  # none spans more boundaries
                        row_behind = behind[index[to], senders.index(sender), k, some]
                        costs = COMBINED[aggregation](options[c][:, k, some], row_behind)
                        np.minimum(row, costs.min(axis=1), out=row)
            if self.allowed is not None:  # a group takes several devices for one part
                parts = range(-(-sum(used) // most_used), sum(used) + 1)
                is_allowed = np.any([self.allowed(number) for number in parts], axis=0)
                rest[index[used], :, :boundaries][:, ~is_allowed] = np.inf
        found = {(used, last): rest[i, k, :boundaries] for used, i in index.items() for k, last in enumerate(senders)}
        return {state: row for state, row in found.items() if row.min() < np.inf}

    def _options(self, c: int, senders: Sequence[int], aggregation: Aggregation, limit: float, width: int) -> Floats:
        """`[s, k, i]`: what the part from i to i + 1 + k costs on class c behind sender s."""
        found = np.full((len(senders), width, self.tables.boundary_count), np.inf)
        for row, sender in zip(found, senders, strict=True):
            costs = _minimized(self._costs[sender, c], aggregation, limit)
            for k in range(width):
                own = np.diagonal(costs, -k - 1)
                row[k, : len(own)] = own
        return found

    def _last_ends(self, states: Sequence[DeviceCounts], reach: Sequence[Ints]) -> dict[DeviceCounts, int]:
        """For each set of devices the last boundary that parts on all of them can reach; -1 for none."""
        found = {**dict.fromkeys(states, -1), self._unused: 0}
        for used in reversed(states):
            for c, (to, _) in enumerate(self.next_states(used)):
                found[to] = max(found.get(to, -1), int(reach[c][found[used]]))
        return found

    @cached_property
    def uses(self) -> list[DeviceCounts]:
        """For each class the devices that a part on it takes; see `used_devices`."""
        return used_devices(self.classes)

    @property
    def _unused(self) -> DeviceCounts:
        return tuple(0 for _ in self.uses[0])

    @cached_property
    def next_states(self) -> Callable[[DeviceCounts], Sequence[_State]]:
        """For a set of devices the state after one more part on a device of each class."""
        ways = [*zip(self.uses, self.pairs.senders, strict=True)]
        return cache(lambda used: [(tuple(map(int.__add__, used, taken)), sender) for taken, sender in ways])

    # Costs

    @cached_property
    def near(self) -> Floats:
        """Of the bytes that a part receives those whose costs are exact: the part before wrote them, or any may."""
        is_uniform = len({*self.pairs.senders}) == 1
        return self.tables.received if is_uniform else self.tables.received_from_last

    @cached_property
    def readers_inside(self) -> Ints:
        """`[i, t]`: how many readers of tensor t are in boundary i."""
        return np.ascontiguousarray(touch_counts(self.tables.inside, self.tables.load.readers))

    @cached_property
    def _work(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """For each class what parts compute, in three ways.

        What they may receive instead takes no time (relaxed_tables.py); or as long as that, if that is less; or they
        receive nothing that they may compute.
        """
        own, relaxation = [self.tables.work(c) for c in range(len(self.classes))], self.tables.relaxation
        if relaxation is None:
            return own, own, own
        s_per_byte = self.pairs.received_s[:-1, :-1].min(axis=0).tolist()
        waiting = [self.tables.work(c, number) for c, number in enumerate(s_per_byte)]
        return own, waiting, [relaxation.given.work(c) for c in range(len(own))]

    @cached_property
    def _costs(self) -> Mapping[tuple[int, int], tuple[Floats, Floats]]:
        found, size = {}, self.tables.boundary_count
        for sender, c in product(sorted({*self.pairs.senders}), range(len(self.classes))):
            s_per_byte, late_s = self.pairs.received_s[:-1, c], self.pairs.latency_s[:-1, c]
            busy_s, latency_s = found[sender, c] = (np.full((size, size), np.inf), np.full((size, size), np.inf))
            for at in (np.s_[end - _ROWS : end, :end] for end in range(_ROWS, size + _ROWS, _ROWS)):
                near, far = self.near[at], self.tables.received[at] - self.near[at]
                received_s = near * s_per_byte[sender] + far * s_per_byte.min()
                latest_s = np.maximum(_times(near > 0, late_s[sender]), _times(far > 0, late_s.min()))
                busy_s[at], latency_s[at] = self.part_s(sender, c, received_s, latest_s, at)
        return found

    @cached_property
    def _driven(self) -> tuple[Floats, Floats, Floats]:
        """For each part the bytes of large inputs, of answers that no other part reads, and of small ones of these."""
        inputs = self.tables.inputs_of(lambda number: not self.cluster.is_small(number))
        return inputs, self.tables.answers_of(lambda _: True), self.tables.answers_of(self.cluster.is_small)

    def part_s(
        self, sender: int, c: int, received_s: Floats, late_s: Floats, at: tuple[slice, int | slice]
    ) -> tuple[Floats, Floats]:
        """What parts cost that are `at` these places in a table, given the seconds to receive, and the latency."""
        tables, pairs, driver = self.tables, self.pairs, len(self.classes)
        in_turn = self.cluster.overlap == "none"
        run_s, run_or_wait_s, most_run_s = (work[c][at] for work in self._work)
        large_inputs, answers, small_answers = (table[at] for table in self._driven)
        inputs_s = _times(tables.inputs[at], pairs.received_s[driver, c])
        late_s = np.maximum(late_s, _times(large_inputs > 0, pairs.latency_s[driver, c]))
        answers_s = _times(answers, (pairs.sent_s if in_turn else pairs.received_s)[c, driver])
        sent_s = _times(tables.sent[at], pairs.reported_s[c])
        runs = (most_run_s > 0) | (received_s + inputs_s > 0)  # what ran before has no step
        step_s = run_or_wait_s + pairs.overhead_s[c] * runs + received_s + inputs_s + late_s + sent_s
        latency_s = step_s + answers_s
        if in_turn:
            busy_s = latency_s = latency_s + _times(tables.sent[at], pairs.sent_s[c, :-1].min())
        else:
            small_s = _times(small_answers, pairs.received_s[c, driver])
            both_s = step_s + small_s + np.maximum(received_s + inputs_s - most_run_s, 0.0)
            both_s += np.maximum(small_s + sent_s - most_run_s, 0.0) if (small_s + sent_s).any() else 0.0
            near_s = _times(self.near[at], pairs.received_s[sender, c])
            busy_s = reduce(np.maximum, [both_s / STEPS_AT_ONCE, run_s, near_s, inputs_s, answers_s])
        is_possible = self.fits[c][at] & tables.nested[at]
        busy_s, latency_s = (np.where(is_possible, exact(s, self.quantum), np.inf) for s in (busy_s, latency_s))
        return busy_s, latency_s


def _times(numbers: Floats | Bools, factor: float) -> Floats:
    """The product, for its time one number where the factor is 0: links often have no latency, devices no overhead."""
    return np.asarray(numbers * factor if factor else 0.0)


def _reach(costs: Floats) -> Ints:
    """For each boundary the last one at which a part may end that begins there or before, then -1; see `_options`."""
    ends = np.add.outer(np.arange(1, costs.shape[1] + 1), np.arange(costs.shape[2]))
    return np.append(np.maximum.accumulate(np.where(np.isfinite(costs).any(axis=0), ends, -1).max(axis=0)), -1)


def _minimized(costs: tuple[Floats, Floats], aggregation: Aggregation, limit: float) -> Floats:
    """What is minimized of the two times of each part; `inf` where it keeps its device busy longer than the limit."""
    return np.where(costs[0] <= limit, costs[aggregation == "sum"], np.inf)


def driver_s(aggregation: Aggregation, load: Workload, pairs: PairCosts, cluster: Cluster) -> float:
    """Seconds of the driver: what it adds to any latency ("sum"), or the least that any period is ("max")."""
    links, overlap, answers = pairs.sent_s[-1, :-1], cluster.overlap, [number for _, number, _ in load.answers]
    s_per_byte = links.min() if links.min() == links.max() else 0.0  # one link carries everything, or others may
    sent_s, answers_s = load.input_bytes.sum() * s_per_byte, sum(answers) * s_per_byte
    is_late = any(number and not cluster.is_small(number) for number in answers)
    late_s = pairs.latency_s[:-1, -1].min() * is_late
    one_s = max(answers, default=0) * pairs.received_s[:-1, -1].min()
    if aggregation == "max":
        own_s = sent_s + answers_s + late_s if overlap == "none" else max(sent_s, answers_s)
        return float(max(own_s, one_s))
    return float(late_s + (sent_s + answers_s if overlap == "none" else 0.0))


class _Node(NamedTuple):
    """The first parts of a partition."""

    boundaries: tuple[int, ...]
    classes: tuple[int, ...]
    used: DeviceCounts
    value: float  #: what they cost.
    home: Ints  #: for each group its device class; -1 behind the last boundary.


class _BranchAndBound:
    """Tries the next part that looks best first, and leaves out what can't be better than the best plan."""

    def __init__(
        self, chains: LinkedChains, aggregation: Aggregation, limit: float, rest: Mapping[_State, Floats], most: float
    ) -> None:
        self.best: ChainPartition | None = None
        self.is_stopped = False
        self._chains, self._aggregation, self._limit, self._rest = chains, aggregation, limit * (1 + _SAME), rest
        tables, load = chains.tables, chains.tables.load
        self._combine, self._driver_s = COMBINED[aggregation], driver_s(aggregation, load, chains.pairs, chains.cluster)
        step, exact_step = _CALL + tables.boundary_count, _CALL + tables.boundary_count * load.readers.count
        self._are_tables_enough = bool((chains.near == tables.received).all()) or exact_step > most / 100
        self._step = len(chains.classes) * (step if self._are_tables_enough else exact_step)
        self._leaf = _CALL / 5 * (load.readers.count + load.groups)
        self._left = self._most = most

    def visit(self, node: _Node) -> None:
        """Search the partitions that begin with these parts."""
        chains = self._chains
        if node.boundaries[-1] == chains.tables.boundary_count - 1:
            self._found(node)
            return
        self._left -= self._step
        if self._left <= 0 and (self.best is not None or self._left <= -self._most):
            self.is_stopped = True
            return
        options: list[tuple[float, int, int, float]] = []
        for c, state in enumerate(states := chains.next_states(node.used)):
            if state in self._rest:
                value = np.asarray(self._combine(node.value, self._costs(node, c)))
                least = self._combine(self._combine(value, self._rest[state]), self._driver_s)
                kept = np.flatnonzero(least < (np.inf if self.best is None else self.best.values[0] * (1 - _SAME)))
                options += [(float(least[j]), -int(j), c, float(value[j])) for j in kept]
        for bound, j, c, cost in sorted(options):
            if self.is_stopped or (self.best is not None and bound >= self.best.values[0] * (1 - _SAME)):
                return
            home = node.home.copy()
            home[list(chains.tables.groups_between(node.boundaries[-1], -j))] = c
            self.visit(_Node((*node.boundaries, -j), (*node.classes, c), states[c][0], cost, home))

    def _found(self, node: _Node) -> None:
        self._left -= self._leaf
        times = self._chains.times(node.boundaries, node.classes)
        values = (times.period_s, times.latency_s) if self._aggregation == "max" else (times.latency_s, times.period_s)
        if times.period_s <= self._limit and (self.best is None or values < self.best.values):
            self.best = ChainPartition(node.boundaries, node.classes, values)

    def _costs(self, node: _Node, c: int) -> Floats:
        """What the next part costs for each boundary at which it may end, charged from where its tensors are."""
        chains, begin = self._chains, node.boundaries[-1]
        busy_s, latency_s = chains.costs(node.classes[-1] if node.classes else 0, c)
        costs = busy_s[:, begin], latency_s[:, begin]
        if not self._are_tables_enough and node.classes:
            load, pairs = chains.tables.load, chains.pairs
            writer = node.home[load.writer]
            is_read = chains.readers_inside > chains.readers_inside[begin]
            is_sent = (writer >= 0) & (load.tensor_bytes > 0)
            received_s = is_read @ (load.tensor_bytes * is_sent * pairs.received_s[writer, c])
            late_s = (is_read * (is_sent * pairs.latency_s[writer, c])).max(axis=1, initial=0.0)
            costs = chains.part_s(node.classes[-1], c, received_s, late_s, np.s_[:, begin])
        found = _minimized(costs, self._aggregation, self._limit)
        return found if chains.allowed is None else np.where(chains.allowed(len(node.classes) + 1), found, np.inf)
