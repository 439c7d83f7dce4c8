"""Workers of a Ray cluster, of which those on this machine are processes: nothing that is for them goes through Ray.

A call of Ray's takes milliseconds, also where nothing crosses a link; a message to a process takes a tenth of one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from ...core.manifest import Cascade
from ..stage import SessionConfig
from .processes import ProcessExecutor
from .protocol import Died, Done, Event, Failed, Handle, Lost, Step
from .ray_executor import RayExecutor
from .worker import StatesByPart


class _Queue(SimpleQueue[Any]):
    """A queue that wakes the thread that waits for events."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def put(self, item: Any, *_: Any) -> None:  # noqa: ANN401 - as in the class above
        super().put(item)
        self._wake()


class RayAndProcesses(RayExecutor):
    """Workers that are Ray actors, and processes where this machine says that it is their device.

    Handles are those of Ray: what a process makes is stored as an input is.
    """

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart, names: Sequence[str]) -> None:
        super().__init__(cascade, config, states, names)
        self._processes = ProcessExecutor(cascade, config, states)
        self._callbacks = _Queue(self._processes.wake)
        self._here: set[int] = set()  # the workers that are processes
        self._waiting: dict[int, tuple[Step, Mapping[str, Handle]]] = {}  # by worker, a step whose inputs come
        self._fed: dict[int, dict[str, Handle]] = {}  # by worker, what its step reads

    def start(self, worker: int, parts: Sequence[int]) -> None:
        placement = self._placed()
        if not placement.is_here(worker):
            super().start(worker, parts)
            return
        self._here.add(worker)
        self._processes.config = placement.config(worker)
        self._processes.start(worker, parts)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        if worker in self._here:
            self._processes.hold(worker, parts)
        else:
            super().hold(worker, parts)

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        if worker in self._here:
            self._waiting[worker] = (step, inputs)
            self._begin_steps()
        else:
            super().run(worker, step, inputs)

    def forget(self, sequence: int) -> None:
        super().forget(sequence)
        self._processes.forget(sequence)

    def kill(self, worker: int) -> None:
        if worker in self._here:
            self._processes.kill(worker)
        else:
            super().kill(worker)

    def is_excused(self, worker: int) -> bool:
        if worker not in self._here:
            return super().is_excused(worker)
        _, inputs = self._waiting.get(worker, (None, {}))
        return self._are_excused(self._nodes_of(inputs))

    def next_event(self, timeout_s: float | None) -> Event | None:
        if (found := super().next_event(0)) is None:
            self._begin_steps()
            found = super().next_event(0)
        if found is not None:
            return found
        found = self._processes.next_event(timeout_s)
        return super().next_event(0) if found is None else self._ended_step(found)

    def close(self) -> None:
        super().close()
        self._processes.close()

    def _begin_steps(self) -> None:
        """Run the steps of processes whose inputs are on this machine."""
        for worker, (step, inputs) in [*self._waiting.items()]:
            if not self.fetch(inputs.values()):
                continue
            del self._waiting[worker]
            try:
                values = {name: self.get(handle, name) for name, handle in inputs.items()}
            except LookupError:
                self._callbacks.put(partial(Lost, worker, step))
                continue
            fed = self._fed[worker] = {name: self._processes.put(value, name) for name, value in values.items()}
            self._processes.run(worker, step, fed)

    def _ended_step(self, event: Event) -> Event:
        """The event of a process, with handles of this executor. What its step was fed is freed."""
        is_end = isinstance(event, Done | Failed | Lost) and event.step is not None
        if not (is_end or isinstance(event, Died)):
            return event
        self._waiting.pop(event.worker, None)
        fed = self._fed.pop(event.worker, {})
        made = event.outputs if isinstance(event, Done) else {}
        outputs = {name: self.put(self._processes.get(handle, name), name) for name, handle in made.items()}
        for handle in (*fed.values(), *made.values()):
            self._processes.release(handle)
        return replace(event, outputs=outputs) if isinstance(event, Done) else event
