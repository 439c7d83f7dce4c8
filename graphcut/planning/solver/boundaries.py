"""Ladders: boundaries to choose from, and what lies between any two of them.

A boundary is a set of groups closed under "depends on" (an ideal). A plan climbs from the empty set to the set of all
groups; what stands between two rungs is a part. There are two kinds of ladders: all ideals of a small workload (see
ideals.py), and the prefixes of one order (see prefixes.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..instance import Bools, Floats, Ints, Workload
from .topological_orders import Order


@dataclass(frozen=True)
class BoundaryTables(ABC):
    """Rungs, the lowest first, and tables over pairs of rungs: `table[high, low]` is of the part between them.

    Attributes:
        load: the workload.
        order: a topological order of the groups.
        fits: whether `low` is a proper subset of `high`.
        received: bytes of tensors that enter a part, each once.
        sent: bytes of tensors that leave it, each once.
        declared: bytes that it takes to declare those tensors.
    """

    load: Workload
    order: Order
    fits: Bools
    received: Floats
    sent: Floats
    declared: Floats

    @property
    def height(self) -> int:
        """How many rungs there are."""
        return len(self.fits)

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Are the rungs all ideals of the workload?"""

    @abstractmethod
    def members(self, low: int, high: int) -> tuple[int, ...]:
        """The groups between two rungs, in order."""

    @abstractmethod
    def below(self, rung: int) -> Bools:
        """The groups below a rung, as a mask."""

    @cached_property
    @abstractmethod
    def peak(self) -> Floats:
        """Most bytes alive, at any one time, of what a part writes itself; its groups run in order."""

    @abstractmethod
    def _below_sums(self, numbers: Floats) -> Floats:
        """Sums over the groups below each rung; the last rung is above all others."""

    @abstractmethod
    def _shared_sums(self, numbers: Floats) -> Floats:
        """Sums over the things that some group between two rungs needs."""

    @cached_property
    def peak_roof(self) -> Floats:
        """No less than `peak`, and found at once: all that a part writes, and the most that a group takes."""
        load = self.load
        written = np.bincount(load.writer, weights=load.tensor_bytes, minlength=load.groups)
        return self._between(np.asarray(written, dtype=np.float64)) + float(load.inner.max(initial=0))

    def work(self, kind: int) -> Floats:
        """Seconds that a kind of device takes for the groups between two rungs, and for what they share."""
        own, shared = self._between(self.load.work[kind]), self.load.shared_work[kind]
        return own + self._shared_sums(shared) if shared.any() else own

    @cached_property
    def held(self) -> Floats:
        """Bytes that the groups between two rungs take of their own."""
        return self._between(self.load.held.astype(np.float64))

    @cached_property
    def shared(self) -> Floats:
        """Bytes of what the groups between two rungs share: weights, constants, inputs of the model."""
        return self._shared_sums(self.load.shared.astype(np.float64))

    def _between(self, numbers: Floats) -> Floats:
        """Sums over the groups between two rungs; groups that can't be there count as infinite."""
        known = np.where(np.isfinite(numbers), numbers, 0.0)
        impossible = (~np.isfinite(numbers)).astype(np.float64)
        sums, bad = self._below_sums(known), self._below_sums(impossible)
        found = sums[:, None] - sums[None, :]
        if bad[-1]:
            found[bad[:, None] > bad[None, :]] = np.inf
        return np.asarray(found)


def last_readers(load: Workload, places: Ints) -> Ints:
    """For each tensor the greatest place among its writer and its readers."""
    last = places[load.writer]
    np.maximum.at(last, load.readers.thing, places[load.readers.group])
    return last
