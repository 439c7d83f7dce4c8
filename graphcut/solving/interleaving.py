"""Interleaved plans: a device may have several parts, each an interval of one topological order.

These are the virtual pipeline stages of Megatron-LM (Narayanan et al., SC 2021) and the non-contiguous splits of
Tarnawski et al. (NeurIPS 2020). A tensor that two parts of one device share crosses no link, and one that several parts
of a device read is received once.

Found by threshold accepting (Dueck and Scheuer, 1990): simulated annealing whose threshold is not an exponential. What
changes is where the parts of an order end, and which device has each. Many candidates are changed and valued at once.
The seed and the number of steps are fixed, and times are multiples of a quantum, so the result is always the same.

Example: a chain of groups of 2, 4 and 2 ms that sends nothing. Of two devices one takes the outer groups:

    >>> from graphcut.costs.device import Device
    >>> from workloads import workload  # tests/workloads.py
    >>> load = workload([[2.0, 4.0, 2.0]], [(0, (1,), 0), (1, (2,), 0)])
    >>> cluster = Cluster(devices=(Device(name="a"), Device(name="b")), overlap="none")
    >>> pair = DeviceClass(cluster.devices, np.inf, 0.0, 0.0)
    >>> found = improved(Interleaving(((0, 1), (2,)), (0, 1)), load, [pair], cluster, per_device=2)
    >>> found.parts
    ((0,), (1,), (2,))
    >>> found.devices[0] == found.devices[2] != found.devices[1]
    True
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from ..costs.cluster import Cluster
from ..costs.device import COUNTING
from .cost_tables import DeviceClass, memory_bytes, pair_costs
from .instance import Floats, Ints, Parts, Workload
from .order_prefixes import PrefixTables, prefix_tables
from .search import prefix_lengths
from .topological_orders import Order
from .transfers import DRIVER, STEPS_AT_ONCE, transfers_of

_CANDIDATES: Final = 32
_MOST_STEPS: Final = 2000
_FEWEST_STEPS: Final = 100
_OPERATIONS: Final = 1.5e8  #: about how many numbers are computed along one order.
_MOST_BOUNDARIES: Final = 400
_FIRST_THRESHOLD: Final = 0.02  #: how much worse, as a share, a change may make a candidate at first.
_SELECTION: Final = 300  #: after so many steps the better half of the candidates replaces the other half.
_MOVES: Final = 0.7  #: the share of changes that move a boundary.
_MEAN: Final = 0.05  #: the weight of the mean load beside the largest load.
MOST_DEVICES: Final = 62  #: a set of devices is the bits of an int64.


@dataclass(frozen=True)
class Interleaving:
    """Parts in an order in which they can run, and their devices."""

    parts: Parts  #: the groups of each part, in a topological order.
    devices: tuple[int, ...]  #: the device of each part, counted over all device classes.

    @property
    def order(self) -> Order:
        return tuple(group for part in self.parts for group in part)


class _Along:
    """Candidates along one order, and their loads.

    `ends[n, p]` and `ends[n, p + 1]` are the boundaries of part p of candidate n, which may be empty, and
    `devices[n, p]` is its device.
    """

    def __init__(self, tables: PrefixTables, classes: Sequence[DeviceClass], cluster: Cluster) -> None:
        load, pairs = tables.load, pair_costs(classes, cluster, tables.load)
        self.in_turn = cluster.overlap == "none"
        self.order, self.lengths = tables.order, tables.lengths.tolist()
        self.kinds = np.array([c for c, kind in enumerate(classes) for _ in kind.devices])
        refused = np.isinf(load.work)  # a group that a class can't run counts as where it takes longest
        work = np.where(refused, np.where(refused, 0.0, load.work).max(axis=0), load.work)
        finite = replace(tables, load=replace(load, work=work))
        self.work_s = np.stack([finite.work(c) for c in range(len(classes))])
        before = np.pad(refused[:, list(self.order)].cumsum(axis=1), ((0, 0), (1, 0)))[:, tables.lengths]
        self.refused = before[:, :, None] - before[:, None, :]  # groups of a segment that a class can't run
        self.rest_s = np.zeros_like(self.work_s)  # of a step, besides computing and tensors of other parts
        for c, kind in enumerate(classes):
            self.rest_s[c] += tables.inputs * pairs.received_s[-1, c]
            sent_s = tables.answers * pairs.sent_s[c, -1]
            self.rest_s[c] += sent_s if self.in_turn else tables.nested * pairs.overhead_s[c]
            self.rest_s[c] += kind.latency_s * (tables.received > 0)
        self.s_per_byte = np.array([kind.s_per_byte for kind in classes])[self.kinds]
        self.room = np.array([kind.memory_bytes for kind in classes])[self.kinds]
        limited = bool(np.isfinite(self.room).any())
        self.memory = np.where(tables.nested, memory_bytes(tables, COUNTING), 0.0) if limited else None
        tensors = Counter[tuple[int, ...]]()  # bytes that one segment sends to others: by writer, and then readers
        for number, writer, readers in transfers_of(load, [self.order[a:b] for a, b in pairwise(self.lengths)]):
            others = [reader for reader in readers if reader != DRIVER]
            if writer != DRIVER and others:
                tensors[writer, *others] += number
        self.bytes = np.array([*tensors.values()], dtype=float)
        self.writer = np.array([writer for writer, *_ in tensors], dtype=np.int64)
        self.readers = np.array([reader for _, *readers in tensors for reader in readers], dtype=np.int64)
        self.first_reader = np.cumsum([0, *(len(ends) - 1 for ends in tensors)])[:-1]
        self.segments = np.arange(len(self.lengths) - 1)

    def values(self, ends: Ints, devices: Ints) -> tuple[Floats, Floats]:
        """For each candidate the load of its busiest device, `inf` if it can't run there; and its score."""
        received_s, sent_s = self._transfer_s(ends, devices)
        work_s, rest_s = np.zeros((2, *received_s.shape))
        starts, stops = ends[:, :-1], ends[:, 1:]
        kinds = self.kinds[devices]
        lacking = self.refused[kinds, stops, starts].sum(axis=1).astype(float)
        for device, room in enumerate(self.room.tolist()):
            own = devices == device
            work_s[:, device] = np.where(own, self.work_s[kinds, stops, starts], 0.0).sum(axis=1)
            rest_s[:, device] = np.where(own, self.rest_s[kinds, stops, starts], 0.0).sum(axis=1)
            if self.memory is not None and room < np.inf:
                needed = np.where(own, self.memory[stops, starts], 0.0).sum(axis=1)
                lacking += np.maximum(0.0, needed / max(room, 1.0) - 1)
        loads = work_s + rest_s + received_s
        if self.in_turn:
            loads += sent_s
        else:
            loads = np.maximum.reduce([work_s, loads / STEPS_AT_ONCE, received_s, sent_s])
        busiest = loads.max(axis=1)
        score = busiest * (1 + lacking) + _MEAN * loads.mean(axis=1)
        return np.where(lacking > 0, np.inf, busiest), score

    def _transfer_s(self, ends: Ints, devices: Ints) -> tuple[Floats, Floats]:
        """Seconds that each device receives, each tensor once, and sends: once, or once for each reading device."""
        part = (ends[:, 1:-1, None] <= self.segments).sum(axis=1)
        bit = np.left_shift(1, np.take_along_axis(devices, part, axis=1))
        if not len(self.writer):
            return np.zeros((len(ends), len(self.kinds))), np.zeros((len(ends), len(self.kinds)))
        own = bit[:, self.writer]
        others = np.bitwise_or.reduceat(bit[:, self.readers], self.first_reader, axis=1) & ~own
        is_read = [(others >> device) & 1 for device in range(len(self.kinds))]
        copied = (others != 0 if self.in_turn else np.sum(is_read, axis=0)) * self.bytes
        received = np.stack([read @ self.bytes for read in is_read], axis=1)
        sent = np.stack([np.where(own == 1 << d, copied, 0.0).sum(axis=1) for d in range(len(is_read))], axis=1)
        return received * self.s_per_byte, sent * self.s_per_byte

    def annealed(self, ends: Ints, devices: Ints, draw: np.random.Generator) -> Interleaving:
        """The best interleaving that is met while the candidates change."""
        busiest, score = self.values(ends, devices)
        best = int(busiest.argmin())
        least, found = busiest[best], (ends[best].copy(), devices[best].copy())
        steps = self._steps(devices.shape[1])
        for step in range(steps):
            new_ends, new_devices = _changed(ends, devices, len(self.kinds), draw)
            busiest, new_score = self.values(new_ends, new_devices)
            threshold = _FIRST_THRESHOLD * (1 - step / steps) ** 2 * draw.random(_CANDIDATES)
            taken = new_score <= score * (1 + threshold)
            ends[taken], devices[taken], score[taken] = new_ends[taken], new_devices[taken], new_score[taken]
            best = int(busiest.argmin())
            if busiest[best] < least:
                least, found = busiest[best], (new_ends[best], new_devices[best])
            if step % _SELECTION == _SELECTION - 1:
                ranks = np.argsort(score, kind="stable")
                better, worse = ranks[: _CANDIDATES // 2], ranks[_CANDIDATES // 2 :]
                ends[worse], devices[worse], score[worse] = ends[better], devices[better], score[better]
        cuts, chosen = [self.lengths[end] for end in found[0].tolist()], found[1].tolist()
        kept = [p for p in range(len(chosen)) if cuts[p] < cuts[p + 1]]  # the others are empty
        return Interleaving(tuple(self.order[cuts[p] : cuts[p + 1]] for p in kept), tuple(chosen[p] for p in kept))

    def _steps(self, parts: int) -> int:
        """As many as take about the same time for any workload; fewer for a small one."""
        numbers = parts * len(self.segments) + len(self.readers) + len(self.kinds) * len(self.writer)
        most = min(_MOST_STEPS, _FEWEST_STEPS + 30 * len(self.segments))
        return int(np.clip(_OPERATIONS / (_CANDIDATES * (numbers + 500)), _FEWEST_STEPS, most))


def improved(
    start: Interleaving, load: Workload, classes: Sequence[DeviceClass], cluster: Cluster, *, per_device: int
) -> Interleaving:
    """The best interleaving found along the order of `start`, with so many parts for each device on average at most.

    It may lack memory, or have groups where they can't run, only if `start` does.
    """
    near = [*accumulate(map(len, start.parts))][:-1]
    lengths = sorted({*prefix_lengths(load, start.order, _MOST_BOUNDARIES, near), *near})
    along = _Along(prefix_tables(load, start.order, lengths), classes, cluster)
    parts = max(per_device * len(along.kinds), len(start.parts))
    draw = np.random.Generator(np.random.PCG64(0))
    ends = np.zeros((_CANDIDATES, parts + 1), dtype=np.int64)
    ends[:, 1:-1] = np.sort(draw.integers(0, len(lengths), (_CANDIDATES, parts - 1)))
    ends[:, -1] = len(lengths) - 1
    devices = np.tile(np.arange(parts) % len(along.kinds), (_CANDIDATES, 1))
    own = np.searchsorted(lengths, [0, *near])
    ends[::2] = np.sort([*own, *draw.choice(own, parts - len(own)), len(lengths) - 1])
    starts_until = np.searchsorted(ends[0, :-1], own, side="right")
    devices[::2] = np.repeat(start.devices, np.diff(starts_until, prepend=0))
    return along.annealed(ends, devices, draw)


def _changed(ends: Ints, devices: Ints, count: int, draw: np.random.Generator) -> tuple[Ints, Ints]:
    """The candidates, in each a boundary moved, the device of a part changed, or those of two parts exchanged."""
    ends, devices = ends.copy(), devices.copy()
    rows, parts = np.arange(len(ends)), devices.shape[1]
    action, distance, side, first, second, other = draw.random((6, len(ends)))
    first, second, other = ((n * k).astype(np.int64) for n, k in ((first, parts), (second, parts), (other, count)))
    moved = (action < _MOVES) & (first > 0)
    row, at = rows[moved], first[moved]
    step = (1 + distance[moved] ** 4 * (ends[0, -1] / 2)).astype(np.int64) * np.where(side[moved] < 0.5, 1, -1)
    ends[row, at] = np.clip(ends[row, at] + step, ends[row, at - 1], ends[row, at + 1])
    given = (action >= _MOVES) & (side < 0.5)
    devices[rows[given], first[given]] = other[given]
    swapped = (action >= _MOVES) & (side >= 0.5)
    row, one, two = rows[swapped], first[swapped], second[swapped]
    devices[row, one], devices[row, two] = devices[row, two], devices[row, one]
    return ends, devices


def merged(load: Workload, found: Interleaving) -> Interleaving:
    """The same with fewer parts: two parts of a device become one where no third part must run between them."""
    parts, devices = [*found.parts], [*found.devices]
    while (pair := _mergeable(after := _successors(load, parts), devices)) is not None:
        one, two = pair
        new = [one if p == two else p for p in range(len(parts))]
        edges = sorted({(new[p], new[reader]) for p, readers in enumerate(after) for reader in readers})
        before = {p: [source for source, reader in edges if reader == p != source] for p in sorted({*new})}
        parts[one] += parts[two]
        order = [*TopologicalSorter(before).static_order()]
        parts, devices = [parts[p] for p in order], [devices[p] for p in order]
    return Interleaving(tuple(parts), tuple(devices))


def _successors(load: Workload, parts: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each part the parts that depend on it, itself perhaps included."""
    home = {group: p for p, part in enumerate(parts) for group in part}
    after = load.edges[1]
    return [{home[other] for group in part for other in after[group]} for part in parts]


def _mergeable(after: Sequence[set[int]], devices: Sequence[int]) -> tuple[int, int] | None:
    """Two parts of one device, the earlier first, without a path from one to the other over a third part."""
    reached: list[set[int]] = [set() for _ in after]
    for p in reversed(range(len(after))):
        direct = after[p] - {p}
        over_others = set[int]().union(*(reached[reader] for reader in direct))
        for q in range(p + 1, len(after)):
            if devices[p] == devices[q] and q not in over_others:
                return p, q
        reached[p] = direct | over_others
    return None
