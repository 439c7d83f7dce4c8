"""Workers in this process. They share the loaded parts, so that each part is in memory once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from weakref import WeakValueDictionary

from ...core.manifest import Cascade
from ...running.stage import SessionConfig, Stage
from ...running.values import Value
from .protocol import Done, Event, Executor, Failed, Handle, Made, Ready, Step
from .worker import StatesByPart, Worker

_Tasks = SimpleQueue[Callable[[], Event | None] | None]  #: what a thread does next; None ends it.


class ThreadExecutor(Executor):
    """Workers that are threads. They run in parallel, since ONNX Runtime releases the GIL while a session runs.

    A handle is the value itself.
    """

    can_die = False  # a thread can't be ended from outside, and does not end by itself
    reports_early = queues = exchanges = True

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart) -> None:
        self._cascade, self._states = cascade, states
        self.config = config  #: how parts that are loaded next build sessions.
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self.report: Callable[[Event], None] = self._events.put  #: takes events; by default `next_event` returns them.
        self._steps: dict[int, _Tasks] = {}
        self._loads: dict[int, _Tasks] = {}
        self._workers: dict[int, Worker] = {}
        self._threads: list[Thread] = []
        self._stages: WeakValueDictionary[int, Stage] = WeakValueDictionary()  # while a worker holds them
        self._loading = [Lock() for _ in cascade.parts]

    def start(self, worker: int, parts: Sequence[int]) -> None:
        self._workers[worker] = Worker(self._cascade, self._states, self._stage)
        self._steps[worker] = self._start_thread()
        self._steps[worker].put(partial(self._hold, worker, parts))

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        if worker not in self._loads:  # a second thread, so that loading does not delay steps
            self._loads[worker] = self._start_thread()
        self._loads[worker].put(partial(self._hold, worker, parts))

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        self._steps[worker].put(partial(self._run, worker, step, inputs))

    def forget(self, sequence: int) -> None:
        for worker, tasks in self._steps.items():
            tasks.put(partial(self._workers[worker].forget, sequence))

    def kill(self, worker: int) -> None:
        raise NotImplementedError(f"worker {worker} is a thread")

    def put(self, value: Value, tensor: str) -> Handle:  # noqa: ARG002 - the interface has it
        return value

    def get(self, handle: Handle, tensor: str) -> Value:  # noqa: ARG002 - the interface has it
        return handle

    def next_event(self, timeout_s: float | None) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def wake(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        for tasks in (*self._steps.values(), *self._loads.values()):
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers.values():
            worker.hold(frozenset())
        self._workers.clear()

    def _start_thread(self) -> _Tasks:
        tasks: _Tasks = SimpleQueue()
        self._threads.append(Thread(target=self._serve, args=(tasks,), daemon=True))
        self._threads[-1].start()
        return tasks

    def _serve(self, tasks: _Tasks) -> None:
        while (task := tasks.get()) is not None:
            if (event := task()) is not None:
                self.report(event)
            del event, task  # otherwise their values would stay in memory until the next task

    def _run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> Event:
        report = lambda outputs: self.report(Made(worker, step, outputs))  # noqa: E731
        try:
            outputs, seconds = self._workers[worker].run(step, inputs, report=report)
        except Exception as error:  # noqa: BLE001 - any error is reported to the scheduler
            if step.exchange is not None:
                step.exchange.fail(error)
            return Failed(worker, step, error)
        own = self._workers[worker]
        return Done(worker, step, outputs, seconds, waits=tuple(own.waits), copied_bytes=own.copied_bytes)

    def _hold(self, worker: int, parts: Sequence[int]) -> Event:
        try:
            self._workers[worker].hold(frozenset(parts))
        except Exception as error:  # noqa: BLE001 - any error is reported to the scheduler
            return Failed(worker, None, error)
        return Ready(worker, frozenset(parts), self._workers[worker].placements)

    def _stage(self, part: int) -> Stage:
        with self._loading[part]:
            stage = self._stages.get(part)
            if stage is None:
                stage = self._stages[part] = Stage(self._cascade, self._cascade.parts[part], config=self.config)
            return stage
