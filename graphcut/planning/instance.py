"""What is planned: groups of work that stay whole, and what flows between them. No names, no ONNX, arrays only.

Every goal but `At` and `Heads` is planned on this record, and so are the published instances of other people's papers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EXACT_BITS: Final = 50
"""Sums of so many bits are exact in float64, whatever the order of addition; two bits are left for sums of sums."""


@dataclass(frozen=True)
class Hyperedges:
    """Things that several groups touch: a tensor and its readers, a weight and the groups that read it.

    Attributes:
        number: how many things there are.
        thing: for each touch the thing, ascending.
        group: for each touch the group; each pair once.
    """

    number: int
    thing: Ints
    group: Ints

    @classmethod
    def of(cls, touches: Sequence[Iterable[int]]) -> Hyperedges:
        """One thing for each entry, touched by the groups it lists."""
        rows = [sorted(set(groups)) for groups in touches]
        thing = np.repeat(np.arange(len(rows), dtype=np.int64), [len(row) for row in rows])
        group = np.array([group for row in rows for group in row], dtype=np.int64)
        return cls(len(rows), thing, group)


@dataclass(frozen=True)
class Workload:
    """Groups in a topological order, and what flows between them.

    Attributes:
        work: seconds (or what else is balanced) of each group on each kind of device, one row a kind; `inf` where it
            can't run there.
        held: bytes that each group takes in the part that holds it, whatever else stands there.
        inner: bytes that a group takes while it runs, beyond what it hands to other groups.
        writer: the group that writes each tensor that other groups read, or that is given out.
        readers: the other groups that read each tensor.
        tensor_bytes: bytes of each tensor.
        declared: bytes that it takes to declare each tensor at a border.
        is_output: whether the model gives it out.
        sharers: for each thing that a part needs once however many of its groups do (a weight, a constant, an input
            of the model): the groups that do.
        shared: bytes of each of these.
        shared_work: seconds that each of these takes in each part that needs it, one row for each kind of device.
        part_bytes: bytes that every part takes, whatever stands in it.
        before, after: pairs of groups that must stand in this order though nothing flows between them.
    """

    work: Floats
    held: Ints
    inner: Ints
    writer: Ints
    readers: Hyperedges
    tensor_bytes: Ints
    declared: Ints
    is_output: Bools
    sharers: Hyperedges
    shared: Ints
    shared_work: Floats
    part_bytes: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return int(self.work.shape[1])

    @cached_property
    def alone(self) -> Ints:
        """Bytes that each group takes with all that it shares with others; what it does while it runs left out."""
        found = self.held.copy()
        np.add.at(found, self.sharers.group, self.shared[self.sharers.thing])
        return found

    @cached_property
    def edges(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """For each group the groups it depends on, and the groups that depend on it."""
        source = np.concatenate([self.writer[self.readers.thing], np.array(self.before, dtype=np.int64)])
        target = np.concatenate([self.readers.group, np.array(self.after, dtype=np.int64)])
        found = np.unique(np.stack([source, target]), axis=1)
        below: list[list[int]] = [[] for _ in range(self.groups)]
        above: list[list[int]] = [[] for _ in range(self.groups)]
        for a, b in found.T.tolist():
            above[a].append(b)
            below[b].append(a)
        return tuple(map(tuple, below)), tuple(map(tuple, above))


def exact(numbers: Floats, quantum: float) -> Floats:
    """`numbers` as whole multiples of `quantum`; `inf` stays."""
    return np.asarray(np.round(numbers / quantum) * quantum)


def quantum_for(total: float) -> float:
    """The power of two by which sums up to `total` are exact in float64, so that no order of addition matters."""
    if not np.isfinite(total) or total <= 0:
        return 2.0**-_EXACT_BITS
    return float(2.0 ** (np.ceil(np.log2(total)) - _EXACT_BITS))
