"""Workers in this process. They share the loaded parts, so that each part is in memory once."""

from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from weakref import WeakValueDictionary

from ...core.manifest import Cascade
from ..stage import SessionConfig, Stage
from ..values import Value
from .protocol import Done, Event, Executor, Failed, Handle, Ready, Step
from .worker import StatesByPart, Worker

_Task = Callable[[Worker], Event | None]


class ThreadExecutor(Executor):
    """Workers that are threads. They run in parallel, since ONNX Runtime releases the GIL while a session runs.

    A handle is the value itself.
    """

    can_die = False  # a thread can't be ended from outside, and does not end by itself

    def __init__(self, cascade: Cascade, config: SessionConfig, states: StatesByPart) -> None:
        self._cascade = cascade
        self._config = config
        self._states = states
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._tasks: dict[int, SimpleQueue[_Task | None]] = {}
        self._loads: dict[int, SimpleQueue[Sequence[int] | None]] = {}
        self._workers: dict[int, Worker] = {}
        self._threads: list[Thread] = []
        self._stages: WeakValueDictionary[int, Stage] = WeakValueDictionary()  # while a worker holds them
        self._lock = Lock()

    def start(self, worker: int, parts: Sequence[int]) -> None:
        self._workers[worker] = Worker(self._cascade, self._states, self._stage)
        self._tasks[worker] = SimpleQueue()
        self._tasks[worker].put(lambda instance: self._hold(worker, instance, parts))
        self._start_thread(self._run_tasks, worker)

    def hold(self, worker: int, parts: Sequence[int]) -> None:
        if worker not in self._loads:  # a second thread, so that loading does not delay steps
            self._loads[worker] = SimpleQueue()
            self._start_thread(self._run_loads, worker)
        self._loads[worker].put(parts)

    def run(self, worker: int, step: Step, inputs: Mapping[str, Handle]) -> None:
        def task(instance: Worker) -> Event:
            try:
                outputs, seconds = instance.run(step, inputs)
            except Exception as error:  # noqa: BLE001 - any error is reported to the scheduler
                return Failed(worker, step, error)
            return Done(worker, step, outputs, seconds)

        self._tasks[worker].put(task)

    def forget(self, sequence: int) -> None:
        for tasks in self._tasks.values():
            tasks.put(lambda instance: instance.forget(sequence))

    def kill(self, worker: int) -> None:
        raise NotImplementedError(f"worker {worker} is a thread")

    def put(self, value: Value, tensor: str) -> Handle:  # noqa: ARG002 - the interface has it
        return value

    def get(self, handle: Handle, tensor: str) -> Value:  # noqa: ARG002 - the interface has it
        return handle

    def release(self, handle: Handle) -> None:
        pass

    def next_event(self, timeout_s: float | None) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def wake(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        for tasks in self._tasks.values():
            tasks.put(None)
        for loads in self._loads.values():
            loads.put(None)
        for thread in self._threads:
            thread.join()
        self._workers.clear()

    def _start_thread(self, target: Callable[[int], None], worker: int) -> None:
        self._threads.append(Thread(target=target, args=(worker,), daemon=True))
        self._threads[-1].start()

    def _run_tasks(self, worker: int) -> None:
        tasks, instance = self._tasks[worker], self._workers[worker]
        while (task := tasks.get()) is not None:
            event = task(instance)
            if event is not None:
                self._events.put(event)
            del event, task  # otherwise their values would stay in memory until the next task

    def _run_loads(self, worker: int) -> None:
        while (parts := self._loads[worker].get()) is not None:
            self._events.put(self._hold(worker, self._workers[worker], parts))

    def _hold(self, worker: int, instance: Worker, parts: Sequence[int]) -> Event:
        try:
            instance.hold(frozenset(parts))
        except Exception as error:  # noqa: BLE001 - any error is reported to the scheduler
            return Failed(worker, None, error)
        return Ready(worker, frozenset(parts))

    def _stage(self, part: int) -> Stage:
        with self._lock:
            stage = self._stages.get(part)
            if stage is None:
                stage = self._stages[part] = Stage(self._cascade, self._cascade.parts[part], config=self._config)
            return stage


class InlineExecutor(ThreadExecutor):
    """One worker without a thread: it runs inside `next_event`, which saves two thread switches per step.

    For steps so short that this matters, such as a token of a small decoder.
    """

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
