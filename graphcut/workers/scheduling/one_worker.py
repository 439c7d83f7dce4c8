"""One worker in this process, in place of a scheduler: a step runs in the thread that asks for its answer.

For steps so short that queues and events would show, such as a token of a small decoder.
"""

from collections.abc import Iterable, Iterator
from time import perf_counter

from ...core.errors import RunError
from ..executors.worker import Worker
from ..run_log import RunLog
from .in_flight import Answer
from .requests import Request, Routing


class OneWorker:
    """Runs requests through all parts, one after another."""

    def __init__(self, routing: Routing, worker: Worker, log: RunLog | None = None) -> None:
        """Loads nothing yet."""
        self.log = log or RunLog(len(routing.parts), 1)
        self.worker_names = ("worker 0",)  #: the workers in the log.
        self._parts = tuple(range(len(routing.parts)))
        self._outputs = tuple(routing.outputs)
        self._worker = worker

    def run(self, requests: Iterable[Request | None]) -> Iterator[Answer]:
        """The answers, in the order of the requests, each of which is fetched when its answer is asked for.

        None among the requests is left out. A part that can't be loaded is an error.
        """
        log, worker = self.log, self._worker
        try:
            worker.hold(frozenset(self._parts))
            log.loaded(0, worker.placements, perf_counter())
            for number, request in enumerate(filter(None, requests)):
                parts = tuple(part for part in self._parts if part not in request.done)
                step = request.step(number, parts, self._outputs)
                log.arrived(perf_counter())
                log.started(0, step, perf_counter())
                try:
                    answer, seconds = worker.run(step, request.feeds)
                except RunError as error:
                    log.delivered(number, perf_counter(), failed=True)
                    yield error
                else:
                    log.done(0, step, seconds, perf_counter())
                    log.copied_bytes += worker.copied_bytes
                    log.delivered(number, perf_counter(), failed=False)
                    yield answer
                    del answer  # its memory is free in the next step
        finally:
            log.placements.update(worker.placements)
            worker.hold(frozenset())

    def forget(self, sequence: int, *, states: bool = True) -> None:
        """Delete the states of a sequence that has ended, unless others may begin with them."""
        if states:
            self._worker.forget(sequence)
