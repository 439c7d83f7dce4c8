"""Workers of a Ray cluster, of which those on this machine are threads: nothing that is for them goes through Ray.

A call of Ray's takes milliseconds, also where nothing crosses a link.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from ...core.manifest import Cascade
from ...running.stage import SessionConfig
from .protocol import Done, Event, Failed, Handle, Lost, Step
from .ray_executor import RayExecutor
from .threads import ThreadExecutor
from .worker import StatesByPart


class RayAndThreads(RayExecutor):
    """Workers that are Ray actors, and threads where this machine says that it is their device.

    Handles are those of Ray: what a thread makes is stored as an input is.
    """

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart, names: Sequence[str]) -> None:
        super().__init__(cascade, config, states, names)
        self._threads_here = ThreadExecutor(cascade, config, states)
        self._threads_here.report = lambda event: self._callbacks.put(partial(self._stored, event))
        self._here: set[int] = set()  # the workers that are threads
        self._waiting: list[tuple[int, Step, Mapping[str, Handle]]] = []  # steps of threads whose inputs come

    def start(self, worker: int, parts: Sequence[int]) -> None:
        if not self._placement.is_here(worker):
            super().start(worker, parts)
            return
        self._here.add(worker)
        self._threads_here.config = self._placement.config(worker)
        if self._has(worker, parts):
            self._threads_here.start(worker, parts)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        if worker not in self._here:
            super().hold(worker, parts)
        elif self._has(worker, parts):
            self._threads_here.hold(worker, parts)

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        if worker in self._here:
            self._waiting.append((worker, step, inputs))
            self._begin_steps()
        else:
            super().run(worker, step, inputs)

    def forget(self, sequence: int) -> None:
        super().forget(sequence)
        self._threads_here.forget(sequence)

    def is_excused(self, worker: int) -> bool:
        return worker in self._here or super().is_excused(worker)  # a thread can't be ended

    def next_event(self, timeout_s: float | None) -> Event | None:
        event = super().next_event(timeout_s)
        self._begin_steps()
        return event

    def close(self) -> None:
        super().close()
        self._threads_here.close()

    def _has(self, worker: int, parts: Sequence[int]) -> bool:
        """Whether this machine has the files of all `parts` that its worker is to hold; a missing one is reported."""
        for part in (self._cascade.parts[index] for index in parts):
            if not self._cascade.file(part).exists():
                self._callbacks.put(partial(Failed, worker, None, self._missing(part, f"not on {self._names[worker]}")))
                return False
        return True

    def _begin_steps(self) -> None:
        """Run the steps of threads whose inputs are on this machine."""
        for one in [*self._waiting]:
            worker, step, inputs = one
            if not self.fetch(inputs.values()):
                continue
            self._waiting.remove(one)
            try:
                values = {name: self.get(handle, name) for name, handle in inputs.items()}
            except LookupError:
                self._callbacks.put(partial(Lost, worker, step))
                continue
            self._threads_here.run(worker, step, values)

    def _stored(self, event: Event) -> Event:
        """The event of a thread, with handles of this executor."""
        if not isinstance(event, Done):
            return event
        return replace(event, outputs={name: self.put(value, name) for name, value in event.outputs.items()})
