"""Pipelining: workers own parts, and work on several requests at the same time."""

import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import count
from math import ceil
from queue import SimpleQueue
from threading import Condition, Lock, Thread, current_thread
from typing import Final, Literal, TypedDict, Unpack
from weakref import finalize

from ..core.arguments import OnError
from ..core.errors import RunError, UsageError, check_keywords, check_word
from ..core.manifest import CascadeLike, open_cascade
from ..core.tensors import Tensor
from ..core.wiring import asked_for
from ..running.in_process.sequential import input_values
from ..running.stage import SessionConfig
from ..running.values import Feeds, Outputs, UserInputs, Value, to_array
from .batches import BatchAxis, are_close, batch_axis
from .executors.making import make_executor
from .executors.via import Via, is_elsewhere
from .looping import LoopRouting, run_steps
from .run_log import RunLog
from .scheduling.assignment import assign_parts, scheduled_parts, share_threads
from .scheduling.requests import Request, Routing
from .scheduling.scheduler import DEADLINE_S, Scheduler

_LONGEST_S: Final = 1_000_000  #: the longest deadline. Systems can't wait much longer in one call.

EXIT_S: Final = 10.0  #: so long a process that ends waits for the workers of what was not closed.


class PipelineSettings(TypedDict, total=False):
    """How workers run a cascade. All have defaults."""

    #: `threads` of this process; `processes` of this machine, which are restarted if they end; or actors of a `ray`
    #: cluster.
    via: Via
    #: the number of workers; by default one for each device of the plan, or else one for each core but not more than
    #: parts. More workers than parts share the parts with the most memory.
    workers: int | None
    window: int | None  #: at most so many feeds are fetched and in flight; by default twice the number of workers.
    #: how many parts of each neighbour a worker also holds. They can be taken over at once if one worker is slower than
    #: the other; other parts have to be loaded first.
    overlap: int
    #: move parts between neighbours if measured times show a gain. On a Ray cluster a worker whose link became slower
    #: may be left without parts.
    balanced: bool
    #: divide feeds into micro-batches of so many examples if the model declares an axis for examples and the outputs
    #: stay the same; `auto`: into as many micro-batches as there are workers.
    micro_batch: int | Literal["auto"] | None
    #: restart a worker that takes longer to load its parts, or for a step whose duration is not known yet. Threads
    #: can't be ended, and have no deadline.
    deadline_s: float
    config: SessionConfig | None  #: how sessions are built; by default the cores are divided among the workers.
    log: RunLog | None  #: the log to write to.
    outputs: Sequence[str] | None  #: the outputs that are asked for; others are not sent. By default all.


class Pipeline(AbstractContextManager["Pipeline"]):
    """A cascade whose parts are loaded by workers. A context manager; or call `close`.

    Attributes:
        log: the log of its run.
        window: the maximum number of feeds, or micro-batches, in flight.
        workers: the names of the workers: their devices, or `worker N`.
    """

    def __init__(self, cascade: CascadeLike, **settings: Unpack[PipelineSettings]) -> None:
        """Start the workers. See `stream` for the errors."""
        check_keywords(settings, PipelineSettings.__annotations__)
        via, deadline_s = settings.get("via", "threads"), settings.get("deadline_s", DEADLINE_S)
        if not 0 < deadline_s <= _LONGEST_S:
            hint = f"give more than 0 and at most {_LONGEST_S:,} seconds"
            raise UsageError(f"a deadline of {deadline_s:g} s is not possible", hint=hint)
        micro_batch = self._micro_batch = settings.get("micro_batch")
        if micro_batch not in {None, "auto"} and not (isinstance(micro_batch, int) and micro_batch >= 1):
            raise UsageError(f"a batch can't be divided into pieces of {micro_batch}", hint="take 1 or more, or 'auto'")
        self._cascade = cascade = open_cascade(cascade, may_lack_parts=is_elsewhere(via))
        pool = assign_parts(cascade, settings.get("workers"), settings.get("overlap", 0))
        config = share_threads(settings.get("config") or SessionConfig(), len(pool), via)
        executor = make_executor(cascade, via, config, {}, [worker.name for worker in pool])
        self.window = window = settings.get("window") or 2 * len(pool)
        outputs = asked_for(cascade.manifest.writes, settings.get("outputs"))
        self._loop = None if cascade.manifest.loop is None else LoopRouting(cascade, outputs)
        routing = self._loop.routing if self._loop else Routing(scheduled_parts(cascade), outputs)
        balanced, log = settings.get("balanced", True), settings.get("log")
        scheduler = Scheduler(routing, executor, pool, window=window, deadline_s=deadline_s, balanced=balanced, log=log)
        self.log = scheduler.log
        self.workers = scheduler.worker_names
        self._axis = batch_axis(cascade) if micro_batch and self._loop is None else None
        self._is_compared = False
        self._comparing = Lock()
        self._numbers = count()
        # Only Ray's object stores, and the inputs of a user, are memory that others read or write after the answer.
        copied = cascade.manifest.writes if is_elsewhere(via) else cascade.manifest.reads
        self._service = _Service(scheduler, cascade.tensors, frozenset(copied), most=2 * window)
        finalize(self, self._service.end_later).atexit = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, feeds: Feeds) -> Future[Outputs]:
        """Run the cascade on `feeds`. The future's result is the outputs by name; or it raises `RunError`.

        Waits while twice as many feeds (or micro-batches) as `window` are unanswered; not in a callback of a future.

        The first feed that can be divided and whose examples differ is run whole and in micro-batches. Later feeds are
        divided only if both gave the same outputs.

        Raises:
            RunError: an input is missing, unknown or of the wrong type.
        """
        title = f"input {(number := next(self._numbers))}"
        values = input_values(self._cascade, feeds)
        if self._loop is not None:
            return run_steps(self._loop, values, title, number, self._service.send, self._service.forget)
        axis = self._axis
        if axis is None or (size := axis.size(values)) <= (length := self._length(size)):
            return self._service.send(Request(values, title))
        with self._comparing:
            if not self._is_compared:
                return self._compared(axis, values, length, title)
        if self._axis is None:
            return self._service.send(Request(values, title))
        pieces = (Request(piece, title) for piece in axis.divided(values, length))
        return _joined([*map(self._service.send, pieces)], axis.joined)

    def _compared(self, axis: BatchAxis, values: Mapping[str, Value], length: int, title: str) -> Future[Outputs]:
        """Run a feed whole and divided. If the outputs differ, no feed is divided from now on."""
        whole = self._service.send(Request(values, title))
        pieces = [self._service.send(Request(piece, title)) for piece in axis.divided(values, length)]
        if whole.exception() is None:
            try:
                same = are_close(whole.result(), axis.joined([piece.result() for piece in pieces]))
            except (RunError, ValueError):  # a piece fails although the whole does not, or they don't fit together
                same = False
            self._axis = axis if same else None
            self._is_compared = not same or axis.has_different_examples(values)
        return whole

    def map(self, feeds: Iterable[Feeds], *, on_error: OnError = "raise") -> Iterator[Outputs | RunError]:
        """The outputs for each of `feeds`, in order; see `stream`."""
        check_word(on_error, OnError, "on_error")
        waiting: deque[Future[Outputs]] = deque()
        source = UserInputs(feeds)
        for feed in source:
            waiting.append(self._try_submit(feed))
            while waiting and (len(waiting) > self.window or waiting[0].done()):
                yield self._answer(waiting.popleft(), on_error)
        while waiting:
            yield self._answer(waiting.popleft(), on_error)
        source.check()

    @property
    def is_divided(self) -> bool:
        """Are feeds divided into micro-batches? Not if no axis is declared, or if outputs were found to differ."""
        return self._axis is not None

    @property
    def error(self) -> BaseException | None:
        """Why nothing is run any more; None as long as it goes on."""
        return self._service.end

    def close(self) -> None:
        """End the workers at once."""
        self._service.close()

    def _length(self, size: int) -> int:
        """The examples in a micro-batch, for a feed with `size` examples."""
        return self._micro_batch if isinstance(self._micro_batch, int) else ceil(size / len(self.workers))

    def _try_submit(self, feed: Feeds) -> Future[Outputs]:
        """As `submit`, but errors are in the future, so that they are raised in order."""
        try:
            return self.submit(feed)
        except RunError as error:
            failed: Future[Outputs] = Future()
            failed.set_exception(error)
            return failed

    def _answer(self, future: Future[Outputs], on_error: OnError) -> Outputs | RunError:
        try:
            return future.result()
        except RunError as error:
            if on_error == "raise" or error is self._service.end:
                raise
            return error


class _Service:
    """A scheduler in a thread, and the futures of its requests.

    It does not refer to the pipeline, so that one that nobody refers to any more is freed and ends its workers.
    """

    def __init__(self, scheduler: Scheduler, tensors: Mapping[str, Tensor], copied: frozenset[str], most: int) -> None:
        """Start the thread. `send` waits while `most` requests are unanswered; outputs in `copied` are copied."""
        self.end: BaseException | None = None  #: why there are no more answers.
        self._scheduler = scheduler
        #: deletes what parts keep of a sequence of steps. Only called while an answer is given.
        self.forget: Callable[[int], None] = scheduler.forget
        self._tensors, self._copied, self._most = tensors, copied, most
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._pending: deque[Future[Outputs]] = deque()
        self._answered = Condition()
        self._thread = Thread(target=self._work, name="graphcut scheduler", daemon=True)
        # ONNX Runtime aborts a process that ends while a session is made or runs.
        atexit.register(self.close, EXIT_S)
        self._thread.start()

    def send(self, request: Request, then: Callable[[Future[Outputs]], None] | None = None) -> Future[Outputs]:
        """Send a request; `then` is called with the future once it is answered, in the thread of the scheduler."""
        future: Future[Outputs] = Future()
        if then is not None:
            future.add_done_callback(then)
        future.set_running_or_notify_cancel()  # a request in flight can't be canceled
        with self._answered:
            if current_thread() is not self._thread:
                self._answered.wait_for(lambda: self.end is not None or len(self._pending) < self._most)
            if self.end is not None:
                future.set_exception(self.end)
            else:
                self._pending.append(future)
                self._inbox.put(request)
        self._scheduler.executor.wake()
        return future

    def end_later(self) -> None:
        """End the workers once all requests are answered."""
        self._inbox.put(None)
        self._scheduler.executor.wake()

    def close(self, wait_s: float | None = None) -> None:
        """End the workers at once. Waits until they have ended, or so long."""
        self._inbox.put(None)
        self._scheduler.stop()
        self._thread.join(wait_s)

    def _work(self) -> None:
        end: BaseException = RunError("the pipeline was closed before this was answered")
        try:
            for answer in self._scheduler.run(self._requests()):
                values = {} if isinstance(answer, RunError) else answer
                outputs = {n: to_array(v, self._tensors[n], copy=n in self._copied) for n, v in values.items()}
                with self._answered:  # what leaves `_pending` is answered: nothing fails from here on
                    future = self._pending.popleft()
                    self._answered.notify()
                if isinstance(answer, RunError):
                    future.set_exception(answer)
                else:
                    future.set_result(outputs)
        except BaseException as error:  # noqa: BLE001 - it is raised where results are asked for
            end = error
        with self._answered:
            self.end = end
            self._answered.notify_all()
        for future in self._pending:
            future.set_exception(end)
        atexit.unregister(self.close)

    def _requests(self) -> Iterator[Request | None]:
        while True:
            if self._inbox.empty():  # nobody else takes from it
                yield None
            elif (request := self._inbox.get_nowait()) is not None:
                yield request
            else:
                return


def stream(
    cascade: CascadeLike, feeds: Iterable[Feeds], *, on_error: OnError = "raise", **settings: Unpack[PipelineSettings]
) -> Iterator[Outputs | RunError]:
    """The model's outputs for each of `feeds`, in order, from a pipeline.

    Workers work on several feeds at the same time, and parts that don't depend on each other also for one feed.

    Args:
        cascade: a cascade or its path.
        feeds: the model's inputs by name, as for `run`.
        on_error: what to do with a feed that fails: `raise` the error, or return it in place of the outputs (`skip`).
        **settings: see `PipelineSettings`.

    Raises:
        TypeError: there is no such setting.
        UsageError: the number of workers, the size of micro-batches or the deadline is not possible; there is no such
            output.
        RunError: an input is missing, unknown or of the wrong type; a part fails or can't be loaded; a worker is lost
            and no other has memory for its parts.
    """
    with Pipeline(cascade, **settings) as pipeline:
        yield from pipeline.map(feeds, on_error=on_error)


def _joined(pieces: Sequence[Future[Outputs]], join: Callable[[Sequence[Outputs]], Outputs]) -> Future[Outputs]:
    """A future for the outputs of all pieces, or for the first error among them. They are answered in order."""
    joined: Future[Outputs] = Future()
    joined.set_running_or_notify_cancel()

    def answer(_last: Future[Outputs]) -> None:
        try:
            joined.set_result(join([piece.result() for piece in pieces]))
        except RunError as error:
            joined.set_exception(error)
        except ValueError as error:
            hint = "leave out `micro_batch`: the outputs for this input have unexpected sizes"
            joined.set_exception(RunError(f"the outputs of micro-batches don't fit together: {error}", hint=hint))

    pieces[-1].add_done_callback(answer)
    return joined
