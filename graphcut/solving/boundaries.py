"""Boundaries that a partition may use, and tables of what the part between any two of them takes.

A boundary is an order ideal of the groups: a set that contains all predecessors of its members. A partition into
parts is a chain of boundaries from the empty set to the set of all groups; a part holds the groups between two
consecutive ones. The boundaries are all order ideals of a small workload or some of them (order_ideals.py), or prefixes
of one topological order (order_prefixes.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .instance import Bools, Floats, Hyperedges, Ints, Replicas, Workload
from .min_cut import cheapest_replicas
from .transfers import DRIVER, SentTensor, transfers_of


@dataclass(frozen=True)
class BoundaryTables(ABC):
    """Boundaries 0, 1, ... by growing size, and tables over pairs of them: `table[j, i]` is of the part from i to j."""

    load: Workload  #: the workload.
    nested: Bools  #: whether boundary i is a proper subset of boundary j, so that there is a part between them.
    received: Floats  #: bytes of tensors that enter the part, each tensor once.
    find_sent: Callable[[], Floats]  #: finds `sent`, which few goals count.
    find_declared: Callable[[], Floats]  #: finds `declared`, likewise.
    #: whether these are all order ideals of the workload.
    is_complete: bool = field(default=False, kw_only=True)
    #: what parts pay at least for values that they may compute or receive; None if `load` has what they pay.
    relaxation: Relaxation | None = field(default=None, kw_only=True)

    @property
    def boundary_count(self) -> int:
        return len(self.nested)

    @property
    def sent(self) -> Floats:
        """Bytes of tensors that leave the part, each tensor once."""
        return self.find_sent()

    @property
    def declared(self) -> Floats:
        """Bytes that it takes to declare the tensors that enter or leave the part."""
        return self.find_declared()

    @abstractmethod
    def groups_between(self, i: int, j: int) -> tuple[int, ...]:
        """The groups in boundary j and not in boundary i, in a topological order that all parts share."""

    @cached_property
    def peak(self) -> Floats:
        """The most bytes alive at one time of the tensors that the part writes, when its groups run in that order."""
        return self.peak_of(self.nested)

    @abstractmethod
    def peak_of(self, possible: Bools) -> Floats:
        """The same of the parts that are possible; of others no more."""

    @property
    def opening(self) -> Floats:
        """The most bytes that the part takes besides, while it is opened: the most for one group, and for all."""
        if self.load.opening_bytes is None:
            return np.zeros(self.nested.shape)
        most, of_all = self.load.opening_bytes
        return self.largest(most) + (self._sums_between(of_all) if of_all.any() else 0.0)

    def largest(self, numbers: Ints) -> Floats:
        """For each part the largest of the numbers of its groups."""
        found = np.zeros(self.nested.shape)
        for number in np.unique(numbers).tolist():
            inside = self._sums_inside((numbers == number).astype(np.float64))
            found[inside[:, None] > inside[None, :]] = number
        return found

    @cached_property
    def inside(self) -> Bools:
        """`[i, g]`: whether boundary i contains group g."""
        found = np.zeros((self.boundary_count, self.load.groups), dtype=bool)
        for boundary in range(self.boundary_count):
            found[boundary, list(self.groups_between(0, boundary))] = True
        return found

    @cached_property
    @abstractmethod
    def received_from_last(self) -> Floats:
        """Of `received`, what the part before has written for certain, wherever that begins."""

    def transfers(self, parts: Sequence[Sequence[int]]) -> list[SentTensor]:
        """What these parts send, and what the driver sends them."""
        found = transfers_of(self.load, parts)
        return found if self.relaxation is None else found + self.relaxation.transfers(found, parts)

    @cached_property
    def inputs(self) -> Floats:
        """Bytes that the driver sends to the part: each input of the model that it needs."""
        return self.inputs_of(lambda _: True)

    def inputs_of(self, counts: Callable[[int], bool]) -> Floats:
        """`inputs`, of those alone whose number of bytes counts."""
        number = np.array([n if counts(n) else 0 for n in self.load.input_bytes.tolist()], dtype=np.float64)
        found = self._sums_of_shared(number) if number.any() else np.zeros(self.nested.shape)
        return found if self.relaxation is None else self.relaxation.inputs_of(found, counts)

    @cached_property
    def answers(self) -> Floats:
        """Bytes that the part sends to the driver."""
        return self.answers_of(lambda _: True, with_read=True)

    def answers_of(self, counts: Callable[[int], bool], *, with_read: bool = False) -> Floats:
        """`answers`, of those alone whose number of bytes counts, without those that other groups read.

        They may reach the driver on their way to another part.
        """
        sums = np.zeros(self.load.groups)
        for group, number, tensor in self.load.answers:
            sums[group] += number * (counts(number) and (with_read or tensor < 0))
        return self._sums_between(sums) if sums.any() else np.zeros(self.nested.shape)

    @abstractmethod
    def _sums_inside(self, numbers: Floats) -> Floats:
        """For each boundary the sum of `numbers` over its groups."""

    @abstractmethod
    def _sums_of_shared(self, numbers: Floats) -> Floats:
        """For each part the sum of `numbers` over the shared items that some of its groups need."""

    @cached_property
    def peak_upper_bound(self) -> Floats:
        """No less than `peak`, and much faster: all that the part writes, and the most that one group needs."""
        return self._sums_between(self.load.written_bytes) + float(self.load.inner_bytes.max(initial=0))

    def work(self, device_class: int, s_per_byte: float = 0.0) -> Floats:
        """Seconds that the part takes on a device of a class, shared items included.

        Where parts may receive such items instead, a byte takes `s_per_byte` (relaxed_tables.py).
        """
        found, shared = self._sums_between(self.load.work[device_class]), self._shared_work[device_class]
        found = found if shared is None else found + shared
        return found if self.relaxation is None else self.relaxation.work(found, device_class, s_per_byte)

    @cached_property
    def _shared_work(self) -> list[Floats | None]:
        """For each device class the seconds of the shared items that each part needs."""
        return [self._sums_of_shared(seconds) if seconds.any() else None for seconds in self.load.shared_work]

    @property
    def own_bytes(self) -> Floats:
        """Bytes that the groups of the part take, without what they share."""
        return self._sums_between(self.load.own_bytes.astype(np.float64))

    @cached_property
    def shared_bytes(self) -> Floats:
        """Bytes of the items that the groups of the part share: weights, constants, inputs of the model."""
        found = self._sums_of_shared(self.load.shared_bytes.astype(np.float64))
        return found if self.relaxation is None else self.relaxation.shared_bytes(found)

    def _sums_between(self, numbers: Floats) -> Floats:
        """For each part the sum of `numbers` over its groups; infinite where it holds an infinite one."""
        finite = np.isfinite(numbers)
        sums = self._sums_inside(np.where(finite, numbers, 0.0))
        found = np.asarray(sums[:, None] - sums[None, :])
        if not finite.all():
            infinite = self._sums_inside((~finite).astype(np.float64))
            found[infinite[:, None] > infinite[None, :]] = np.inf
        return found


class Relaxation(NamedTuple):
    """What each part pays at least for its replicable values; the load of its tables is `Replicas.without`."""

    given: BoundaryTables  #: the tables in which each part computes the values that it needs.
    replicas: Replicas  #: the values.
    #: sets of values, and for each part the index of the set that its groups read.
    needed: tuple[list[list[int]], Ints]
    is_first: bool = True  #: nothing runs before the part that begins at the empty boundary: it receives no value.

    @property
    def tables(self) -> BoundaryTables:
        """The tables of the same parts, with the least that each can take."""
        return replace(self.given, load=self.replicas.without, relaxation=self)

    def work(self, own: Floats, device_class: int, s_per_byte: float) -> Floats:
        """Seconds of each part on a device of a class, from those without the values."""
        least = self._cheapest(self.replicas.work[device_class], np.asarray(self.replicas.tensor_bytes * s_per_byte))
        return self._or_first(own + least, self.given.work(device_class))

    def shared_bytes(self, own: Floats) -> Floats:
        """Bytes of what the groups of each part share, from those without the values."""
        least = self._cheapest(self.replicas.own_bytes, self.replicas.declared_bytes)
        return self._or_first(own + least, self.given.shared_bytes)

    def inputs_of(self, own: Floats, counts: Callable[[int], bool]) -> Floats:
        """Bytes that the driver sends to each part, from those without the values."""
        return self._or_first(own, self.given.inputs_of(counts))

    def transfers(self, without: Sequence[SentTensor], parts: Sequence[Sequence[int]]) -> list[SentTensor]:
        """What the driver sends to the first part for the values, beside what is sent `without` them."""

        def given(transfers: Iterable[SentTensor]) -> Counter[int]:
            return Counter(number for number, source, readers in transfers if source == DRIVER and 0 in readers)

        # Each by itself: whether it is small depends on its own size.
        more = given(self.given.transfers(parts)) - given(without)
        return [SentTensor(number, DRIVER, (0,)) for number in more.elements()] if self.is_first else []

    def _or_first(self, least: Floats, exact: Floats) -> Floats:
        if self.is_first:
            least[:, 0] = exact[:, 0]
        return least

    def _cheapest(self, compute: Floats | Ints, receive: Floats | Ints) -> Floats:
        """For each part the cheapest way to have the values that its groups read."""
        needed, kind = self.needed
        costs = [cheapest_replicas(self.replicas.sources, values, compute, receive) for values in needed]
        return np.asarray(np.array(costs, dtype=np.float64)[kind])


def of_one_phase(load: Workload, inside: Callable[[Floats], Floats]) -> Bools:
    """`[j, i]`: whether the part from boundary i to j has groups of one phase alone.

    `inside` sums numbers of groups over those of each boundary.
    """
    found = np.zeros((1, 1), dtype=np.int8)
    for phase in () if load.phase is None else np.unique(load.phase):
        sums = inside((load.phase == phase).astype(np.float64))
        found = found + (sums[:, None] > sums[None, :])
    return np.asarray(found <= 1)


def lifetimes(load: Workload, index: Ints) -> tuple[Ints, Ints]:
    """For each tensor the least and the greatest `index` (one number for each group) of its writer and its readers."""
    first, last = index[load.writer], index[load.writer]
    np.minimum.at(first, load.readers.item, index[load.readers.group])
    np.maximum.at(last, load.readers.item, index[load.readers.group])
    return first, last


def touch_counts(inside: Bools, edges: Hyperedges) -> Ints:
    """`[i, t]`: how many of the groups that touch item t are in boundary i; see `BoundaryTables.inside`."""
    incidence = np.zeros((inside.shape[1], edges.count), np.float32)
    incidence[edges.group, edges.item] = 1
    return np.asarray(inside.astype(np.float32) @ incidence).astype(np.int64)
