"""One worker that runs in the scheduler's own thread, which saves two thread switches per step."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

from .protocol import Event
from .threads import ThreadExecutor
from .worker import Worker


class InlineExecutor(ThreadExecutor):
    """Runs its task inside `next_event`. For steps so short that thread switches matter: a token of a small decoder."""

    def start(self, worker: int, parts: Sequence[int]) -> None:
        self._workers[worker] = Worker(self._cascade, self._states, self._stage)
        self._tasks[worker] = SimpleQueue()
        self._tasks[worker].put(lambda instance: self._hold(worker, instance, parts))

    def next_event(self, timeout_s: float | None) -> Event | None:
        for worker, tasks in self._tasks.items():
            while not tasks.empty():
                task = tasks.get_nowait()
                event = None if task is None else task(self._workers[worker])
                if event is not None:
                    return event
        return super().next_event(timeout_s)
