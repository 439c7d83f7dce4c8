"""Rebalancing: parts move to other workers during a run, once their new owners have loaded them."""

from ..executors.protocol import Done
from .load_balancing import Bounds, LoadBalance, spans_of
from .worker_pool import WorkerPool


class Rebalancing:
    """Prepares at most one new division of the parts at a time."""

    def __init__(self, pool: WorkerPool, balance: LoadBalance | None) -> None:
        """Without a load balance nothing moves."""
        self._pool = pool
        self._balance = balance
        self._next: Bounds | None = None

    @property
    def is_preparing(self) -> bool:
        """Are parts being loaded by their new owners?"""
        return self._next is not None

    def measured(self, event: Done) -> Bounds | None:
        """Take note of the times of a step. The new division, if parts moved."""
        if self._balance is None or event.step.sequence is not None:
            return None  # parts with states stay with them
        for part, seconds in zip(event.step.parts, event.seconds, strict=True):
            self._balance.measured(event.worker, part, seconds)
        if self._next is None and (bounds := self._balance.proposal()) is not None:
            wanted = spans_of(bounds)
            # If a worker is not up or has no memory, it is proposed again.
            if all(worker.is_up and self._pool.fits(i, wanted[i]) for i, worker in enumerate(self._pool.workers)):
                self._next = bounds
                for index, parts in enumerate(wanted):
                    self._pool.hold(index, parts)
        return self.finish()

    def finish(self) -> Bounds | None:
        """Move the parts if their new owners hold them. The new division, if parts moved."""
        bounds = self._next
        if bounds is None or self._balance is None:
            return None
        owned = list(zip(self._pool.workers, spans_of(bounds), strict=True))
        if not all(worker.holds.issuperset(parts) for worker, parts in owned):
            return None
        for worker, parts in owned:
            worker.owns = parts
        self._balance.accept(bounds)
        self._next = None
        return bounds

    def abandon(self) -> None:
        """Drop the division that is being prepared, after a worker ended."""
        self._next = None

    def end(self) -> None:
        """Move nothing from now on."""
        self._next = self._balance = None
