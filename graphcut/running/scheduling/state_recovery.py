"""State recovery: a worker repeats the steps that made the states which were lost with another worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ...core.errors import RunError
from ..executors.protocol import Executor, Handle, Step
from .step_history import CompletedStep, ReplayPlan, StepHistory
from .worker_pool import WorkerPool


class StateRecovery:
    """The replays that workers have to do before anything else, at most one for each worker."""

    def __init__(self, executor: Executor, pool: WorkerPool, history: StepHistory) -> None:
        self._executor = executor
        self._pool = pool
        self._history = history
        self._open: dict[int, tuple[ReplayPlan, deque[CompletedStep]]] = {}
        self._inputs: dict[int, Mapping[str, Handle]] = {}

    def __contains__(self, worker: int) -> bool:
        """Has a worker a replay to do?"""
        return worker in self._open

    def open(self, worker: int, replay: ReplayPlan) -> None:
        """Let a worker do a replay before anything else."""
        self._open[worker] = (replay, deque(replay.entries))

    def next_step(self, worker: int) -> tuple[Step, Mapping[str, Handle]] | None:
        """The next step to repeat and its inputs; None if the worker has to load parts first.

        Raises:
            RunError: it has no memory for these parts.
        """
        replay, entries = self._open[worker]
        if not self._pool.workers[worker].holds.issuperset(replay.needs):
            if not self._pool.fits(worker, replay.needs):
                names = ", ".join(self._pool.parts[part].name for part in sorted(replay.needs))
                raise RunError(
                    f"sequence {replay.sequence} lost its states with a worker, and "
                    f"{self._pool.workers[worker].name} has no memory for {names}, which make them again",
                    hint="plan again with more memory for it",
                )
            self._pool.hold(worker, replay.needs)
            return None
        self._inputs[worker] = {name: self._executor.put(value, name) for name, value in entries[0].values.items()}
        return entries[0].step, self._inputs[worker]

    def done(self, worker: int) -> None:
        """The worker has repeated a step."""
        self.undone(worker)
        if worker not in self._open:
            return
        replay, entries = self._open[worker]
        entries.popleft()
        if not entries:
            del self._open[worker]
            self._history.rebuilt(replay.sequence, replay.parts, worker)

    def undone(self, worker: int) -> None:
        """The worker could not repeat a step, and has to try again."""
        for handle in self._inputs.pop(worker, {}).values():
            self._executor.release(handle)

    def died(self, worker: int) -> None:
        """The worker ended: the next one that needs these states does the whole replay."""
        self.undone(worker)
        self._open.pop(worker, None)
