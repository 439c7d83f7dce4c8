"""The ladder of all ideals of a small workload: the best climb of it is the best plan there is.

Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020. What they sum pair
by pair is a product of matrices here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..instance import Bools, Floats, Hyperedges, Ints, Workload
from .boundaries import BoundaryTables, last_readers


@dataclass(frozen=True)
class IdealTables(BoundaryTables):
    """All ideals, the smaller first.

    Attributes:
        rungs: for each the groups in it; rungs times groups.
    """

    rungs: Bools

    @property
    def is_complete(self) -> bool:
        """Yes."""
        return True

    def members(self, low: int, high: int) -> tuple[int, ...]:
        """The groups between two rungs, in order."""
        return tuple(np.flatnonzero(self.rungs[high] & ~self.rungs[low]).tolist())

    def below(self, rung: int) -> Bools:
        """The groups below a rung, as a mask."""
        return np.asarray(self.rungs[rung])

    @cached_property
    def peak(self) -> Floats:
        """Most bytes alive, at any one time, of what a part writes itself; its groups run in order."""
        table = np.zeros((self.height, self.height))
        holders = np.ascontiguousarray(self.rungs.T)
        for low in range(self.height):
            table[low:, low] = self._peak_above(low, holders)
        return table

    def _peak_above(self, low: int, holders: Bools) -> Floats:
        """The peaks of the parts between one rung and each from there on; `holders` is `rungs`, turned over."""
        inside = self.rungs[low]
        alive = np.zeros(self.height - low)
        peak = np.zeros(self.height - low)
        for group in np.flatnonzero(~inside).tolist():
            here = holders[group, low:]
            alive += here * self._born[group]
            np.maximum(peak, (alive + float(self.load.inner[group])) * here, out=peak)
            for writer, gone in self._dying[group]:
                if not inside[writer]:
                    alive -= gone[low:]
        return peak

    @cached_property
    def _born(self) -> list[float]:
        """Bytes that each group writes."""
        load = self.load
        sums: list[float] = np.bincount(load.writer, weights=load.tensor_bytes, minlength=load.groups).tolist()
        return sums

    @cached_property
    def _dying(self) -> list[list[tuple[int, Floats]]]:
        """For each group what nobody needs after it: who wrote it, and its bytes at the rungs above all its readers."""
        load = self.load
        edges = load.readers
        is_read = _touched(self.rungs, edges) == np.bincount(edges.thing, minlength=edges.number)
        last = last_readers(load, np.arange(load.groups))
        found: list[dict[int, Floats]] = [{} for _ in range(load.groups)]
        for tensor in np.flatnonzero(~load.is_output).tolist():
            writer, rows = int(load.writer[tensor]), found[int(last[tensor])]
            gone = (self.rungs[:, writer] & is_read[:, tensor]) * float(load.tensor_bytes[tensor])
            rows[writer] = rows[writer] + gone if writer in rows else gone
        return [list(rows.items()) for rows in found]

    def _below_sums(self, numbers: Floats) -> Floats:
        return np.asarray(self.rungs.astype(np.float64) @ numbers)

    def _shared_sums(self, numbers: Floats) -> Floats:
        edges = self.load.sharers
        return _first_touches(self.rungs, edges, numbers, np.ones((len(self.rungs), edges.number), dtype=bool))


def ideal_tables(load: Workload, most: int) -> IdealTables | None:
    """The ladder of all ideals; None where there are more than `most`."""
    ideals = _ideals(load, most)
    if ideals is None:
        return None
    rungs = np.array([[ideal >> group & 1 for group in range(load.groups)] for ideal in ideals], dtype=bool)
    rungs = rungs.reshape(len(ideals), load.groups)
    edges = load.readers
    written = rungs[:, load.writer]
    alive = written & (_touched(rungs, edges) < np.bincount(edges.thing, minlength=edges.number))
    tensor_bytes, declared = load.tensor_bytes.astype(np.float64), load.declared.astype(np.float64)

    def leaving(numbers: Floats) -> Floats:
        return np.asarray((alive * numbers) @ (~written).T.astype(np.float64))

    return IdealTables(
        load=load,
        order=tuple(range(load.groups)),
        fits=_subsets(rungs),
        received=_first_touches(rungs, edges, tensor_bytes, written),
        sent=leaving(tensor_bytes),
        declared=_first_touches(rungs, edges, declared, written) + leaving(declared),
        rungs=rungs,
    )


def _ideals(load: Workload, most: int) -> list[int] | None:
    """All sets closed under "depends on", as bits, the smaller first; None where there are more than `most`."""
    below, above = load.edges
    needs = [sum(1 << other for other in groups) for groups in below]
    start = sum(1 << group for group in range(load.groups) if not below[group])
    rows: list[list[int]] = [[0]]
    # What can be added to each ideal of a size; each step adds one group.
    ready = {0: start}
    total = 1
    while ready:
        following: dict[int, int] = {}
        for ideal, free in ready.items():
            rest = free
            while rest:
                bit = rest & -rest
                rest ^= bit
                bigger = ideal | bit
                if bigger not in following:
                    total += 1
                    if total > most:
                        return None
                    now = [reader for reader in above[bit.bit_length() - 1] if needs[reader] & ~bigger == 0]
                    following[bigger] = (free ^ bit) | sum(1 << reader for reader in now)
        rows.append(sorted(following))
        ready = {ideal: following[ideal] for ideal in rows[-1]}
    return [ideal for row in rows for ideal in row]


def _subsets(rungs: Bools) -> Bools:
    outside = rungs.astype(np.float64) @ (~rungs).T.astype(np.float64)
    is_subset = (outside == 0).T  # [high, low]: nothing of low lies outside high
    return np.asarray(is_subset & ~np.eye(len(rungs), dtype=bool))


def _touched(rungs: Bools, edges: Hyperedges) -> Ints:
    """How many of the groups that touch each thing stand below each rung."""
    found = np.zeros((edges.number, len(rungs)), dtype=np.int64)
    np.add.at(found, edges.thing, rungs[:, edges.group].T)
    return np.asarray(found.T)


def _first_touches(rungs: Bools, edges: Hyperedges, numbers: Floats, counted: Bools) -> Floats:
    """Sums of the numbers of all things that some group between two rungs touches, where `counted` at the lower.

    A thing is touched in between exactly if more of its groups stand below the upper rung than below the lower: the
    sum over c of [c touched below the lower] · [more than c below the upper], a product of matrices.
    """
    read = _touched(rungs, edges)
    most = int(np.bincount(edges.thing, minlength=1).max()) if edges.number else 0
    found = np.zeros((len(rungs), len(rungs)))
    for c in range(most):
        here = (read == c) & counted
        things = here.any(axis=0)
        if things.any():
            found += (read[:, things] > c).astype(np.float64) @ (here[:, things] * numbers[things]).T
    return found
