"""Interleaved plans: a device may have several parts, each an interval of one topological order.

These are the virtual pipeline stages of Megatron-LM (Narayanan et al., SC 2021) and the non-contiguous splits of
Tarnawski et al. (NeurIPS 2020). A tensor that two parts of one device share crosses no link, and one that several parts
of a device read is received once.

Found by threshold accepting (Dueck and Scheuer, 1990): simulated annealing whose threshold is not an exponential. A
change gives an interval of the order to another device; most concern the device that is busiest. The seed and the
number of steps are fixed, and only sums, products and square roots are computed, so the result is always the same.

Example: a chain of groups of 2, 4 and 2 ms that sends nothing. Of two devices one takes the outer groups:

    >>> from graphcut.costs.device import Device
    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[2.0, 4.0, 2.0]], [(0, (1,), 0), (1, (2,), 0)])
    >>> cluster = Cluster(devices=(Device(name="a"), Device(name="b")), overlap="none")
    >>> pair = DeviceClass(cluster.devices, np.inf, 0.0, 0.0)
    >>> found = improved(Interleaving(((0, 1), (2,)), (0, 1)), load, [pair], cluster)
    >>> found.parts
    ((0,), (1,), (2,))
    >>> found.devices[0] == found.devices[2] != found.devices[1]
    True
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from math import inf, sqrt
from random import Random
from typing import Final, NamedTuple

import numpy as np

from ..costs.cluster import Cluster
from ..costs.device import COUNTING
from .cost_tables import DeviceClass, memory_bytes, pair_costs
from .instance import Parts, Workload
from .order_prefixes import PrefixTables, prefix_tables
from .search import bytes_alive, prefix_lengths
from .topological_orders import Order, fewest_runs
from .transfers import DRIVER, STEPS_AT_ONCE, transfers_of

_MOST_BOUNDARIES: Final = 500
_PER_DEVICE: Final = 3  #: the most parts for each device, on average.
_STEPS_OF_A_SEGMENT: Final = 100
_MOST_STEPS: Final = 10_000
_OPERATIONS: Final = 2e6  #: about how many numbers are added along one order.
_FIRST_THRESHOLD: Final = 0.02  #: how much worse, as a share, a change may make the score at first.
_OF_BUSIEST: Final = 0.6  #: the share of changes to a part of the busiest device.
_MOVES: Final = 0.6  #: the share of changes that move an end of a part,
_INTERVALS: Final = 0.2  #: and of those that give any interval to a device.
_SQUARINGS: Final = 6  #: loads count in the score with this power of two as their exponent.
_MEAN: Final = 0.001  #: the weight of the mean load beside the largest load.


class Interleaving(NamedTuple):
    """Parts in an order in which they can run, and their devices."""

    parts: Parts  #: the groups of each part, in a topological order.
    devices: tuple[int, ...]  #: the device of each part, counted over all device classes.

    @property
    def order(self) -> Order:
        return tuple(group for part in self.parts for group in part)

    def along(self, order: Order) -> "Interleaving":
        """The same devices of the groups, and their parts along another order."""
        home = {group: device for part, device in zip(self.parts, self.devices, strict=True) for group in part}
        runs = [(device, tuple(part)) for device, part in groupby(order, home.__getitem__)]
        return Interleaving(tuple(part for _, part in runs), tuple(device for device, _ in runs))


class _Along:
    """What parts along one order cost the devices of a cluster, and what segments send each other."""

    def __init__(self, tables: PrefixTables, classes: Sequence[DeviceClass], cluster: Cluster) -> None:
        load, pairs = tables.load, pair_costs(classes, cluster, tables.load)
        self.in_turn = cluster.overlap == "none"
        self.order, self.lengths = tables.order, tables.lengths.tolist()
        self.kinds = [c for c, kind in enumerate(classes) for _ in kind.devices]
        self.s_per_byte = [classes[c].s_per_byte for c in self.kinds]
        self.room = [classes[c].memory_bytes for c in self.kinds]
        refused = np.isinf(load.work)  # a group that a class can't run counts as where it takes longest
        work = np.where(refused, np.where(refused, 0.0, load.work).max(axis=0), load.work)
        finite = replace(tables, load=replace(load, work=work))
        self.work_s = np.stack([finite.work(c) for c in range(len(classes))])
        self.refused = np.pad(refused[:, list(self.order)].cumsum(axis=1), ((0, 0), (1, 0)))[:, tables.lengths]
        self.rest_s = np.zeros_like(self.work_s)  # of a step, besides computing and tensors of other parts
        for c, kind in enumerate(classes):
            self.rest_s[c] += tables.inputs * pairs.received_s[-1, c]
            sent_s = tables.answers * pairs.sent_s[c, -1]
            self.rest_s[c] += sent_s if self.in_turn else tables.nested * pairs.overhead_s[c]
            self.rest_s[c] += kind.latency_s * (tables.received > 0)
        self.memory = np.where(tables.nested, memory_bytes(tables, COUNTING), 0.0) if min(self.room) < inf else None
        tensors = Counter[tuple[int, ...]]()  # bytes that one segment sends to others: by writer, and then readers
        for number, writer, readers in transfers_of(load, [self.order[a:b] for a, b in pairwise(self.lengths)]):
            others = [reader for reader in readers if reader != DRIVER]
            if writer != DRIVER and others:
                tensors[writer, *others] += number
        self.tensors = [(writer, readers, number) for (writer, *readers), number in tensors.items()]
        self.tensors_of: list[list[int]] = [[] for _ in self.lengths[1:]]
        for tensor, segments in enumerate(tensors):
            for segment in segments:
                self.tensors_of[segment].append(tensor)
        self.alive = bytes_alive(load, self.order)[tables.lengths].tolist()
        numbers = 100 + sum(map(len, self.tensors_of)) // 12  # of a step, which all take about the same time
        self.steps = min(_MOST_STEPS, _STEPS_OF_A_SEGMENT * len(self.tensors_of), int(_OPERATIONS / numbers))


class _Placement:
    """The device of each segment of an order, and what that costs.

    `sums` has for each device its seconds of work, of the rest of its steps, of receiving and of sending, the bytes
    of memory that its parts need, and how many of its groups it can't run.
    """

    def __init__(self, along: _Along, device_of: list[int]) -> None:
        self.along, self.device_of = along, device_of
        self.ends = [0, *(i for i in range(1, len(device_of)) if device_of[i] != device_of[i - 1]), len(device_of)]
        self.sums = [[0.0] * 6 for _ in along.kinds]
        self._count(pairwise(self.ends), range(len(along.tensors)), 1)
        self._value()

    def changed(self, changes: Sequence[tuple[int, int, int]]) -> "_Placement":
        """Another one, in which each of some intervals of segments (its first, and its end) has another device."""
        found = object.__new__(_Placement)
        found.along, found.device_of, found.sums = self.along, self.device_of[:], [own[:] for own in self.sums]
        bounds = [bound for first, end, _ in changes for bound in (first, end)]
        low = max(bisect_left(self.ends, min(bounds)) - 1, 0)
        high = min(bisect_right(self.ends, max(bounds)), len(self.ends) - 1)
        near = self.ends[low : high + 1]
        tensors = {tensor for first, end, _ in changes for own in self.along.tensors_of[first:end] for tensor in own}
        found._count(pairwise(near), tensors, -1)
        for first, end, device in changes:
            found.device_of[first:end] = [device] * (end - first)
        inside = sorted({*near[1:-1], *bounds} - {near[0], near[-1]})
        near[1:-1] = [i for i in inside if found.device_of[i] != found.device_of[i - 1]]
        found._count(pairwise(near), tensors, 1)
        found.ends = self.ends[:low] + near + self.ends[high + 1 :]
        found._value()
        return found

    def _count(self, parts: Iterable[tuple[int, int]], tensors: Iterable[int], sign: int) -> None:
        """Add what parts and tensors cost to `sums`, or subtract it."""
        along, device_of, sums = self.along, self.device_of, self.sums
        for first, end in parts:
            own, kind = sums[device_of[first]], along.kinds[device_of[first]]
            own[0] += sign * along.work_s.item(kind, end, first)
            own[1] += sign * along.rest_s.item(kind, end, first)
            own[4] += 0.0 if along.memory is None else sign * along.memory.item(end, first)
            own[5] += sign * (along.refused.item(kind, end) - along.refused.item(kind, first))
        for tensor in tensors:
            writer, readers, number = along.tensors[tensor]
            reached = {source := device_of[writer]}
            for reader in readers:
                if (device := device_of[reader]) not in reached:
                    reached.add(device)
                    sums[device][2] += sign * number * along.s_per_byte[device]
            if copies := len(reached) - 1:
                sums[source][3] += sign * number * along.s_per_byte[source] * (1 if along.in_turn else copies)

    def _value(self) -> None:
        """Find the device with the largest load, that load (`inf` if a device can't hold or run its parts), the score.

        The score is near the largest load, and less if other devices have smaller loads or less is lacking.
        """
        loads, lacking = [], 0.0
        for (work_s, rest_s, received_s, sent_s, memory, refused), room in zip(self.sums, self.along.room, strict=True):
            step_s = work_s + rest_s + received_s
            half_s = max(work_s, step_s / STEPS_AT_ONCE, received_s, sent_s)
            loads.append(step_s + sent_s if self.along.in_turn else half_s)
            lacking += refused + (max(0.0, memory / max(room, 1.0) - 1) if room < inf else 0.0)
        most = max(loads)
        shares = [load / most if most else 0.0 for load in loads]
        for _ in range(_SQUARINGS):
            shares = [share * share for share in shares]
        norm = sum(shares)
        for _ in range(_SQUARINGS):
            norm = sqrt(norm)
        self.busiest, self.busiest_s = loads.index(most), inf if lacking else most
        self.score = most * norm * (1 + lacking) + _MEAN * sum(loads) / len(loads)

    def drawn_changes(self, draw: Random) -> list[tuple[int, int, int]]:
        """Intervals and their new devices: at an end of a part, anywhere, a part, or two parts that are exchanged."""
        ends, device_of, parts = self.ends, self.device_of, range(len(self.ends) - 1)
        own = [part for part in parts if device_of[ends[part]] == self.busiest]
        part, other = draw.choice(own if draw.random() < _OF_BUSIEST else parts), draw.choice(parts)
        first, end, device = ends[part], ends[part + 1], draw.randrange(len(self.sums))
        action, side = draw.random(), draw.randrange(2)
        if action < _MOVES and (at := ends[part + side]) not in {0, len(device_of)}:
            if draw.random() < 0.5:
                return [(self._drawn(at, -1, ends[part + side - 1], draw), at, device_of[at])]
            return [(at, self._drawn(at, 1, ends[part + side + 1], draw), device_of[at - 1])]
        if action < _MOVES + _INTERVALS:
            first = draw.randrange(first, end)
            return [(first, self._drawn(first, 1, len(device_of), draw), device)]
        exchanged = [(first, end, device_of[ends[other]]), (ends[other], ends[other + 1], device_of[first])]
        return exchanged if side else [(first, end, device)]

    def _drawn(self, at: int, sign: int, limit: int, draw: Random) -> int:
        """A boundary before or after another one, most often a near one; half of the time the cheapest of three."""
        shares, reach = [draw.random() for _ in range(draw.choice((1, 3)))], len(self.device_of) / 2
        distances = [min(1 + int(share * share * share * share * reach), abs(limit - at)) for share in shares]
        return min((at + sign * distance for distance in distances), key=self.along.alive.__getitem__)


def improved(
    start: Interleaving, load: Workload, classes: Sequence[DeviceClass], cluster: Cluster, seed: int = 0
) -> Interleaving:
    """The best interleaving found along the order of `start`, with three parts for each device on average at most.

    It may lack memory, or have groups where they can't run, only if `start` does.
    """
    near = [*accumulate(map(len, start.parts))]
    lengths = sorted({*prefix_lengths(load, start.order, _MOST_BOUNDARIES, near[:-1]), *near})
    along = _Along(prefix_tables(load, start.order, lengths), classes, cluster)
    best = one = _Placement(along, [start.devices[bisect_right(near, length)] for length in lengths[:-1]])
    draw = Random(seed)  # noqa: S311 - the same plan each time
    most_parts = max(_PER_DEVICE * len(along.kinds), len(start.parts))
    for step in range(along.steps):
        drawn = one.drawn_changes(draw)
        if all({*one.device_of[first:end]} == {device} for first, end, device in drawn):
            continue
        other, left = one.changed(drawn), 1 - step / along.steps
        threshold = _FIRST_THRESHOLD * left * left * draw.random()
        if other.score <= one.score * (1 + threshold) and len(other.ends) <= most_parts + 1:
            one = other
            best = one if one.busiest_s < best.busiest_s else best
    cuts = [(along.lengths[a], along.lengths[b]) for a, b in pairwise(best.ends)]
    return Interleaving(tuple(along.order[a:b] for a, b in cuts), tuple(best.device_of[end] for end in best.ends[:-1]))


def merged(load: Workload, found: Interleaving) -> Interleaving:
    """The same devices of the groups in as few parts as can be found."""
    runs_on = np.zeros((max(found.devices) + 1, load.groups), dtype=bool)
    for part, device in zip(found.parts, found.devices, strict=True):
        runs_on[device, list(part)] = True
    devices, parts = zip(*fewest_runs(load, runs_on), strict=True)
    return Interleaving(parts, devices)
