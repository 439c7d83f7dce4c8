"""Workers that are threads of this process. They share what is loaded: a part is in memory once, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter

from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Value
from .protocol import Done, Event, Failed, Handle, Ready, Step
from .worker import StatesByPart, Worker

_Task = Callable[[Worker], Event | None]


class ThreadExecutor:
    """See `Executor`. Sessions let go of Python's lock while they run, so threads do run side by side.

    Attributes:
        can_die: False: a thread can't be ended from outside, and none ends by itself.
    """

    can_die = False

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart) -> None:
        """Nothing runs yet; see `start`."""
        self._cascade = cascade
        self._policy = config
        self._states = states
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._tasks: dict[int, SimpleQueue[_Task | None]] = {}
        self._loads: dict[int, SimpleQueue[Sequence[int] | None]] = {}
        self._workers: dict[int, Worker] = {}
        self._threads: list[Thread] = []
        self._asked: dict[int, frozenset[int]] = {}
        self._stages: dict[int, Stage] = {}
        self._lock = Lock()

    def start(self, worker: int, parts: Sequence[int]) -> None:
        """Begin a thread; its parts are loaded by it."""
        made = self._workers[worker] = Worker(self._cascade, self._states, self._stage)
        tasks = self._tasks[worker] = SimpleQueue()
        self._asked[worker] = frozenset(parts)
        self._begin(lambda: self._work(made, tasks))
        tasks.put(lambda held: self._hold(worker, held, parts))

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        """Load beside the worker's own thread."""
        if worker not in self._loads:
            self._loads[worker] = SimpleQueue()
            self._begin(lambda: self._load_all(worker))
        self._asked[worker] = frozenset(parts)
        self._loads[worker].put(parts)

    def run(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        """Values are handed over as they are."""

        def task(made: Worker) -> Event:
            try:
                values, seconds = made.run(step, held)
            except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler is told
                return Failed(worker, step, error)
            return Done(worker, step, values, seconds)

        self._tasks[worker].put(task)

    def forget(self, sequence: int) -> None:
        """Each worker forgets between its steps."""
        for tasks in self._tasks.values():
            tasks.put(lambda made: made.forget(sequence))

    def kill(self, worker: int) -> None:
        """Not to be had: a thread can't be ended from outside."""
        raise NotImplementedError(f"worker {worker} is a thread")

    def put(self, value: Value, tensor: str) -> Handle:  # noqa: ARG002 - see Executor
        """A value lies where it is."""
        return value

    def get(self, handle: Handle, tensor: str) -> Value:  # noqa: ARG002 - see Executor
        """A value lies where it is."""
        return handle

    def release(self, handle: Handle) -> None:
        """Python drops what nobody refers to."""

    def now(self) -> float:
        """The clock of this machine."""
        return perf_counter()

    def next_event(self, timeout_s: float | None) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def wake(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        """Wait for what runs, and let go of all parts."""
        for tasks in self._tasks.values():
            tasks.put(None)
        for loads in self._loads.values():
            loads.put(None)
        for thread in self._threads:
            thread.join()
        self._stages.clear()

    def _begin(self, what: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=what, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, made: Worker, tasks: SimpleQueue[_Task | None]) -> None:
        while (task := tasks.get()) is not None:
            event = task(made)
            if event is not None:
                self._events.put(event)
            del event, task  # or what it refers to would live until there is more to do

    def _load_all(self, worker: int) -> None:
        """One after the other: what was asked for last is what is held."""
        while (parts := self._loads[worker].get()) is not None:
            self._events.put(self._hold(worker, self._workers[worker], parts))

    def _hold(self, worker: int, made: Worker, parts: Sequence[int]) -> Event:
        try:
            made.hold(frozenset(parts))
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler is told
            return Failed(worker, None, error)
        with self._lock:
            used = set().union(*self._asked.values(), *(one.stages for one in self._workers.values()))
            self._stages = {place: stage for place, stage in self._stages.items() if place in used}
        return Ready(worker, frozenset(parts))

    def _stage(self, place: int) -> Stage:
        with self._lock:
            if place not in self._stages:
                part = self._cascade.parts[place]
                self._stages[place] = Stage(self._cascade, part, config=self._policy)
            return self._stages[place]
