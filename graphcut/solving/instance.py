"""The input of the solver: groups of nodes, their costs, and the tensors between them. Arrays only, no ONNX.

Every goal but `At` and `Heads` is planned on a `Workload`, and so are published instances of other authors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.graph import grouped

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Parts = tuple[tuple[int, ...], ...]  #: the nodes, or the groups, of each part.
Edges = tuple[Parts, Parts]  #: for each group its predecessors, and for each group its successors.

_EXACT_BITS: Final = 50
"""Integers of so many bits add up exactly in float64, in any order; two bits are left for sums of sums."""


@dataclass(frozen=True)
class Hyperedges:
    """Items that several groups touch: a tensor and its readers, a weight and the groups that read it."""

    count: int  #: the number of items.
    item: Ints  #: the item of each (item, group) pair, ascending.
    group: Ints  #: the group of each pair; each pair occurs once.

    @classmethod
    def of(cls, touches: Sequence[Iterable[int]]) -> Hyperedges:
        """One item for each entry of `touches`, which lists its groups."""
        rows = [sorted(set(groups)) for groups in touches]
        item = np.repeat(np.arange(len(rows), dtype=np.int64), [len(row) for row in rows])
        return cls(len(rows), item, np.array([group for row in rows for group in row], dtype=np.int64))

    @cached_property
    def sizes(self) -> Ints:
        """The number of groups of each item."""
        return np.bincount(self.item, minlength=self.count)

    @cached_property
    def groups_of_items(self) -> tuple[tuple[int, ...], ...]:
        groups, ends = tuple(self.group.tolist()), np.cumsum(self.sizes).tolist()
        return tuple(groups[begin:end] for begin, end in pairwise([0, *ends]))

    def items_of_groups(self, groups: int) -> list[list[int]]:
        """The items of each of a number of groups, ascending."""
        found = grouped(zip(self.group.tolist(), self.item.tolist(), strict=True))
        return [found.get(group, []) for group in range(groups)]


class Replicas(NamedTuple):
    """Values that each part that needs them either computes or receives, in a topological order."""

    readers: Hyperedges  #: the groups that read each value.
    sources: tuple[tuple[int, ...], ...]  #: the values that each value is computed from.
    work: Floats  #: seconds to compute each value, one row for each device class.
    own_bytes: Ints  #: bytes that computing each value adds to a part at least.
    tensor_bytes: Ints  #: bytes that a part receives at least instead.
    declared_bytes: Ints  #: bytes that it takes at least to declare each value as an input of a part.
    without: Workload  #: the workload if these values were there without being computed or received.


@dataclass(frozen=True)
class Workload:
    """Groups in a topological order, and the tensors between them."""

    #: seconds (or another measure to balance) of each group, one row for each device class; `inf` where the group can't
    #: run.
    work: Floats
    own_bytes: Ints  #: bytes that each group adds to the part that holds it, whatever else the part holds.
    inner_bytes: Ints  #: bytes that a group needs while it runs, beyond what it passes to other groups.
    writer: Ints  #: the group that writes each tensor that other groups read or that is an output of the model.
    readers: Hyperedges  #: the other groups that read each tensor.
    tensor_bytes: Ints  #: bytes of each tensor.
    declared_bytes: Ints  #: bytes that it takes to declare each tensor as an input or an output of a part.
    is_output: Bools  #: whether each tensor is an output of the model.
    #: items that a part holds once, however many of its groups need them (weights, constants, inputs of the model), and
    #: the groups that do.
    sharers: Hyperedges
    shared_bytes: Ints  #: bytes of each of these items.
    shared_work: Floats  #: seconds that each item takes in each part that needs it, one row for each device class.
    part_bytes: int = 0  #: bytes that every part takes, whatever it holds.
    #: pairs of groups that must be in this order although no tensor flows between them.
    ordered: tuple[tuple[int, int], ...] = ()
    #: whether a tensor's writer comes before its readers. Else, as in the backward pass of training, a tensor costs the
    #: same but may flow to earlier parts: only `ordered` orders the groups, and all tensors are `is_output`.
    is_ordered: bool = True
    #: `[0, group]`: bytes that a part takes at least, beside what it holds all the time, to be opened with a group;
    #: `[1, group]`: bytes that each group adds to the most of these; None for none.
    opening_bytes: Ints | None = None
    #: of `declared_bytes` what `own_bytes` of the writer has already; None for nothing.
    listed_bytes: Ints | None = None
    #: bytes of these items that the driver sends to each part that needs them; empty if none are counted.
    input_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: for each output that the driver gets the group that writes it, its bytes, and the tensor that it is, if other
    #: groups read it, too, else -1; empty if none are counted.
    answers: tuple[tuple[int, int, int], ...] = ()
    #: for each group a number, if no part may have groups with different ones. Groups with a smaller one come first.
    phase: Ints | None = None
    #: the shared items that a part may receive instead of holding them; None if there are none.
    replicas: Replicas | None = None

    @property
    def groups(self) -> int:
        """The number of groups."""
        return int(self.work.shape[1])

    @property
    def phase_ends(self) -> list[int]:
        """How many groups are before the end of each phase but the last; empty if parts may have groups of several."""
        return [] if self.phase is None else np.bincount(self.phase).cumsum()[:-1].tolist()

    @property
    def sent_declared_bytes(self) -> Ints:
        """Bytes that it takes to declare each tensor as an output of the part of its writer, beyond `own_bytes`."""
        return self.declared_bytes if self.listed_bytes is None else self.declared_bytes - self.listed_bytes

    @property
    def total_bytes(self) -> float:
        """The least bytes of one part that holds everything, without `part_bytes` and what is alive while it runs."""
        shared_bytes = self.shared_bytes.copy()
        if self.replicas is not None:  # they are the first of the shared items
            shared_bytes[: len(self.replicas.own_bytes)] = self.replicas.own_bytes
        return float(self.own_bytes.sum() + shared_bytes.sum())

    @cached_property
    def written_bytes(self) -> Floats:
        """Bytes of the tensors that each group writes."""
        return np.bincount(self.writer, weights=self.tensor_bytes, minlength=self.groups).astype(np.float64)

    @cached_property
    def single_bytes(self) -> Ints:
        """Bytes of a part that holds this group alone, without `part_bytes` and what it needs while it runs."""
        found = self.own_bytes.copy()
        np.add.at(found, self.sharers.group, self.shared_bytes[self.sharers.item])
        return found

    @cached_property
    def edges(self) -> Edges:
        """For each group its predecessors, and for each group its successors."""
        source, target = np.array(self.ordered, dtype=np.int64).reshape(-1, 2).T
        if self.is_ordered:
            source = np.concatenate([source, self.writer[self.readers.item]])
            target = np.concatenate([target, self.readers.group])
        predecessors: list[list[int]] = [[] for _ in range(self.groups)]
        successors: list[list[int]] = [[] for _ in range(self.groups)]
        for a, b in np.unique(np.stack([source, target]), axis=1).T.tolist():
            successors[a].append(b)
            predecessors[b].append(a)
        return tuple(map(tuple, predecessors)), tuple(map(tuple, successors))


def exact(numbers: Floats, quantum: float) -> Floats:
    """`numbers` rounded to whole multiples of `quantum`; `inf` stays."""
    return np.asarray(np.round(numbers / quantum) * quantum)


def quantum_for(total: float) -> float:
    """The quantum (a power of two) to which numbers are rounded so that float64 sums up to `total` are exact."""
    if not np.isfinite(total) or total <= 0:
        return 2.0**-_EXACT_BITS
    return float(2.0 ** (np.ceil(np.log2(total)) - _EXACT_BITS))
