"""Parts that change hands while the cascade runs: proposed by what was measured, loaded first, then a word."""

from __future__ import annotations

from itertools import pairwise

from ..executors.protocol import Done
from .load_balancing import Bounds, LoadBalance
from .worker_pool import WorkerPool


class Rebalancing:
    """At most one division of the parts that is being prepared."""

    def __init__(self, pool: WorkerPool, balance: LoadBalance | None) -> None:
        """Without a balance nothing ever moves."""
        self._pool = pool
        self._balance = balance
        self._next: Bounds | None = None

    @property
    def is_preparing(self) -> bool:
        """Are parts being loaded to change hands?"""
        return self._next is not None

    def weigh(self, event: Done) -> Bounds | None:
        """Learn from a step. The division that is in force from now on, if parts changed hands at once."""
        if self._balance is None or event.step.sequence is not None:
            return None  # parts that keep states stay where these are
        for part, seconds in zip(event.step.parts, event.seconds, strict=True):
            self._balance.saw(event.worker, part, seconds)
        if self._next is None and (bounds := self._balance.proposal()) is not None:
            self._prepare(bounds)
        return self.settle()

    def settle(self) -> Bounds | None:
        """Let parts change hands once whoever gets them holds them. The division that is in force then, if so."""
        bounds = self._next
        if bounds is None or self._balance is None:
            return None
        owned = [tuple(range(start, stop)) for start, stop in pairwise(bounds)]
        if not all(one.holds.issuperset(parts) for one, parts in zip(self._pool.workers, owned, strict=True)):
            return None
        self._pool.own(owned)
        self._balance.accept(bounds)
        self._next = None
        return bounds

    def abandon(self) -> None:
        """What was prepared is gone with a worker."""
        self._next = None

    def end(self) -> None:
        """Parts stay where they are from now on."""
        self._next = self._balance = None

    def _prepare(self, bounds: Bounds) -> None:
        wanted = [range(start, stop) for start, stop in pairwise(bounds)]
        workers = self._pool.workers
        if not all(one.is_up and self._pool.fits(i, wanted[i]) for i, one in enumerate(workers)):
            return  # it is proposed again
        self._next = bounds
        for worker, parts in enumerate(wanted):
            self._pool.hold(worker, parts)
