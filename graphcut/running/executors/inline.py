"""One worker without a thread of its own: it works while the scheduler waits, which saves going to and fro."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

from .protocol import Event
from .threads import ThreadExecutor
from .worker import Worker


class InlineExecutor(ThreadExecutor):
    """See `Executor`. For steps so short that two changes of thread for each are felt: a token of a small decoder."""

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """The parts are loaded when the first event is asked for."""
        self._workers[worker] = Worker(self._cascade, self._states, self._stage)
        self._tasks[worker] = SimpleQueue()
        self._tasks[worker].put(lambda made: self._hold(worker, made, parts))

    def next_event(self, timeout_s: float | None) -> Event | None:
        """Do what is to be done next, and report it."""
        for worker, tasks in self._tasks.items():
            while not tasks.empty():
                task = tasks.get_nowait()
                event = None if task is None else task(self._workers[worker])
                if event is not None:
                    return event
        return super().next_event(timeout_s)
