"""States that were lost with a worker are made again: another one repeats the steps that made them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ...core.errors import RunError
from ..executors.protocol import Executor, Handle, Step
from .step_history import CompletedStep, ReplayPlan, StepHistory
from .worker_pool import WorkerPool


class StateRecovery:
    """What workers repeat before they go on, one repair a worker."""

    def __init__(self, executor: Executor, pool: WorkerPool, history: StepHistory) -> None:
        """Nothing is broken yet."""
        self._executor = executor
        self._pool = pool
        self._history = history
        self._open: dict[int, tuple[ReplayPlan, deque[CompletedStep]]] = {}
        self._fed: dict[int, Mapping[str, Handle]] = {}

    def __contains__(self, worker: int) -> bool:
        """Has a worker something to repeat?"""
        return worker in self._open

    def open(self, worker: int, repair: ReplayPlan) -> None:
        """A worker is to repeat these steps before anything else."""
        self._open[worker] = (repair, deque(repair.entries))

    def next_step(self, worker: int) -> tuple[Step, Mapping[str, Handle]] | None:
        """What it repeats next, and what that reads; None where it has to load parts for it first.

        Raises:
            RunError: it has no room for these parts.
        """
        repair, entries = self._open[worker]
        if not self._pool.workers[worker].holds.issuperset(repair.needs):
            if not self._pool.fits(worker, repair.needs):
                raise self._no_room(worker, repair)
            self._pool.hold(worker, repair.needs)
            return None
        self._fed[worker] = {name: self._executor.put(value, name) for name, value in entries[0].values.items()}
        return entries[0].step, self._fed[worker]

    def done(self, worker: int) -> None:
        """It has repeated a step."""
        self.undone(worker)
        if worker not in self._open:
            return
        repair, entries = self._open[worker]
        entries.popleft()
        if not entries:
            del self._open[worker]
            self._history.rebuilt(repair.sequence, repair.parts, worker)

    def undone(self, worker: int) -> None:
        """It could not repeat a step, and has to begin it again."""
        for handle in self._fed.pop(worker, {}).values():
            self._executor.release(handle)

    def died(self, worker: int) -> None:
        """It is gone: whoever needs these states next repeats it all."""
        self.undone(worker)
        self._open.pop(worker, None)

    def _no_room(self, worker: int, repair: ReplayPlan) -> RunError:
        names = ", ".join(self._pool.parts[part].name for part in sorted(repair.needs))
        return RunError(
            f"sequence {repair.sequence} lost its states with a worker, and {self._pool.workers[worker].name} has no "
            f"room for {names}, which make them again",
            hint="plan again with more memory for it",
        )
