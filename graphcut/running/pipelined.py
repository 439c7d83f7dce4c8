"""Many feeds through a cascade at the same time: workers each own some parts, and each works on another feed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import ceil
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Literal, Self

from ..core.errors import RunError, UsageError
from ..core.manifest import Cascade
from .batches import BatchAxis, agree, batch_axis
from .in_process.sequential import input_values
from .run_log import RunLog
from .scheduling.assignment import Via, assign_parts, load_balance_of, make_executor, scheduled_parts, share_threads
from .scheduling.requests import Request, Routing
from .scheduling.scheduler import DEADLINE_S, Answer, OnError, Scheduler
from .stage import SessionConfig
from .values import Value, to_array

Outputs = dict[str, Any]

_CLOSED: Final = "the pipeline was closed before this was answered"

_LONGEST_S: Final = 1_000_000
"""The longest deadline; systems can't wait much longer at a stretch."""


class Pipeline:
    """A cascade whose parts are loaded, each with the worker that owns it. Use it in a `with`.

    Attributes:
        log: what happened.
        window: how many feeds, or pieces of feeds, are on their way at most.
        workers: what the workers are called: their devices, or numbers.
    """

    def __init__(  # noqa: PLR0913 - each is a decision of its own, and has a default that serves
        self,
        cascade: Cascade,
        *,
        via: Via = "threads",
        workers: int | None = None,
        window: int | None = None,
        overlap: int = 0,
        balanced: bool = True,
        micro_batch: int | Literal["auto"] | None = None,
        deadline_s: float = DEADLINE_S,
        config: SessionConfig | None = None,
        is_tracing: bool = False,
        log: RunLog | None = None,
    ) -> None:
        """Load the parts; see `stream` for the arguments. With `is_tracing` its own log keeps every span."""
        if not 0 < deadline_s <= _LONGEST_S:
            raise UsageError(
                f"a deadline of {deadline_s:g} s can't be kept",
                hint=f"give it more than 0 seconds, and {_LONGEST_S:,} at most",
            )
        pool = assign_parts(cascade, workers, overlap)
        if isinstance(micro_batch, int) and micro_batch < 1:
            raise UsageError(f"a batch can't be divided into pieces of {micro_batch}", hint="take 1 example or more")
        self.window = window or 2 * len(pool)
        self.log = log or RunLog(len(cascade.parts), len(pool), is_tracing=is_tracing)
        self._cascade = cascade
        self._length = micro_batch
        self.workers = tuple(worker.name for worker in pool)
        self._axis = batch_axis(cascade) if micro_batch else None
        self._is_compared = False
        self._comparing = Lock()
        executor = make_executor(cascade, via, share_threads(config or SessionConfig(), len(pool), via), {}, pool)
        self._wake = executor.wake
        units = scheduled_parts(cascade, {})
        self._scheduler = Scheduler(
            Routing(units, cascade.manifest.writes),
            executor,
            pool,
            window=self.window,
            on_error="skip",
            deadline_s=deadline_s,
            balance=load_balance_of(units, pool) if balanced else None,
            log=self.log,
        )
        self._inbox: SimpleQueue[tuple[Request, Future[Outputs]] | None] = SimpleQueue()
        self._pending: deque[Future[Outputs]] = deque()
        self._end: BaseException | None = None
        self._is_over = False
        self._submitted_so_far = 0
        self._sending = Lock()
        self._thread = Thread(target=self._work, name="graphcut scheduler", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, feeds: Mapping[str, object]) -> Future[Outputs]:
        """Send a feed on its way. The result is its outputs by name, or raises `RunError`.

        The first feed that can be divided, and whose examples are not all the same, is run whole as well as in pieces,
        and only if both agree are others divided.

        Raises:
            RunError: an input is missing, unknown or of the wrong type; or the pipeline has ended.
        """
        with self._sending:
            self._submitted_so_far += 1
            title = f"input {self._submitted_so_far - 1}"
        values = input_values(self._cascade, feeds)
        axis = self._axis
        if axis is None or (size := axis.size(values)) <= (length := self._piece(size)):
            return self._send(values, title)
        with self._comparing:
            if not self._is_compared:
                return self._compared(axis, values, length, title)
        if self._axis is None:
            return self._send(values, title)
        return _joined([self._send(piece, title) for piece in axis.pieces(values, length)], axis.together)

    def _compared(self, axis: BatchAxis, values: Mapping[str, Value], length: int, title: str) -> Future[Outputs]:
        """The outputs of the whole; whether they agree with those of its pieces decides about all feeds to come."""
        whole = self._send(values, title)
        pieces = [self._send(piece, title) for piece in axis.pieces(values, length)]
        if whole.exception() is None:
            try:
                same = agree(whole.result(), axis.together([piece.result() for piece in pieces]))
            except (RunError, ValueError):  # a piece fails where the whole does not, or they don't fit together
                same = False
            self._axis = axis if same else None
            self._is_compared = not same or axis.tells(values)
        return whole

    def map(
        self, feeds: Iterable[Mapping[str, object]], *, on_error: OnError = "raise"
    ) -> Iterator[Outputs | RunError]:
        """The outputs for each of `feeds`, in order; see `stream`."""
        waiting: deque[Future[Outputs]] = deque()
        for feed in feeds:
            waiting.append(self._submitted(feed))
            while waiting and (len(waiting) > self.window or waiting[0].done()):
                yield self._answer(waiting.popleft(), on_error)
        while waiting:
            yield self._answer(waiting.popleft(), on_error)

    @property
    def is_divided(self) -> bool:
        """Are feeds sent in pieces? Not where no axis is declared, or where pieces once gave other results."""
        return self._axis is not None

    def close(self) -> None:
        """End the workers at once."""
        self._inbox.put(None)
        self._scheduler.stop()
        self._thread.join()

    def _piece(self, size: int) -> int:
        """How many examples go together, of `size`."""
        return self._length if isinstance(self._length, int) else ceil(size / len(self.workers))

    def _submitted(self, feed: Mapping[str, object]) -> Future[Outputs]:
        """What is wrong with a feed is said in its turn."""
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
            if on_error == "raise" or error is self._end:
                raise
            return error

    def _send(self, values: Mapping[str, Value], title: str) -> Future[Outputs]:
        future: Future[Outputs] = Future()
        future.set_running_or_notify_cancel()  # what is on its way can't be called back
        with self._sending:
            if self._is_over:
                future.set_exception(self._end or RunError(_CLOSED))
            else:
                self._inbox.put((Request(values, title=title), future))
        self._wake()
        return future

    def _requests(self) -> Iterator[Request | None]:
        while True:
            try:
                found = self._inbox.get_nowait()
            except Empty:
                yield None
                continue
            if found is None:
                return
            self._pending.append(found[1])
            yield found[0]

    def _work(self) -> None:
        try:
            for answer in self._scheduler.run(self._requests()):
                self._settle(self._pending.popleft(), answer)
        except BaseException as error:  # noqa: BLE001 - it is raised where results are asked for
            self._end = error
        self._fail_all()

    def _settle(self, future: Future[Outputs], answer: Answer) -> None:
        if isinstance(answer, RunError):
            future.set_exception(answer)
            return
        tensors = self._cascade.tensors
        future.set_result({name: to_array(value, tensors[name]) for name, value in answer.items()})

    def _fail_all(self) -> None:
        """Nothing more will be answered, and nothing more is taken."""
        with self._sending:
            self._is_over = True
        with suppress(Empty):
            while True:
                left = self._inbox.get_nowait()
                if left is not None:
                    self._pending.append(left[1])
        for future in self._pending:
            future.set_exception(self._end or RunError(_CLOSED))


def stream(  # noqa: PLR0913 - each is a decision of its own, and has a default that serves
    cascade: Cascade,
    feeds: Iterable[Mapping[str, object]],
    *,
    via: Via = "threads",
    workers: int | None = None,
    window: int | None = None,
    overlap: int = 0,
    balanced: bool = True,
    micro_batch: int | Literal["auto"] | None = None,
    deadline_s: float = DEADLINE_S,
    on_error: OnError = "raise",
    config: SessionConfig | None = None,
    log: RunLog | None = None,
) -> Iterator[Outputs | RunError]:
    """The model's outputs for each of `feeds`, in order, while other parts work on other feeds.

    Parts that don't depend on each other run at the same time, for one feed too. Feeds are fetched as there is room for
    them, never all at once.

    Args:
        cascade: from `split` or `open_cascade`.
        feeds: the model's inputs by name, as for `run`.
        via: `threads` of this process; `processes` of this machine, which may die and are replaced; actors of a `ray`
            cluster.
        workers: how many; by themselves one for each device of the plan, or else one for each core, though no more than
            parts. Those beyond the number of parts share the work of the heaviest.
        window: how many feeds may be on their way; twice the number of workers by itself.
        overlap: how many parts of each neighbour a worker holds besides its own. They can change hands at once where
            one is slower than the other; others are loaded first.
        balanced: parts change hands between neighbours when measured times say that it pays.
        micro_batch: divide feeds with more examples than this into pieces of so many, where the model declares an axis
            for them and pieces give what the whole gives; `auto`: into as many pieces as there are workers.
        deadline_s: how long loading may take, and a step of which nothing is known yet; who takes longer is taken for
            hung. Threads can't be ended, and have no deadline.
        on_error: `raise` what goes wrong with a feed, or give the error in place of its outputs and go on.
        config: how sessions are built; threads are shared out among the workers by themselves.
        log: what happens is noted there.

    Raises:
        UsageError: there can't be so many workers, or there can't be such a deadline.
        RunError: an input is missing, unknown or of the wrong type; a part fails or can't be loaded; a device is lost
            for which no other has room.
    """
    with Pipeline(
        cascade,
        via=via,
        workers=workers,
        window=window,
        overlap=overlap,
        balanced=balanced,
        micro_batch=micro_batch,
        deadline_s=deadline_s,
        config=config,
        log=log,
    ) as pipeline:
        yield from pipeline.map(feeds, on_error=on_error)


def _joined(pieces: Sequence[Future[Outputs]], together: Callable[[Sequence[Outputs]], Outputs]) -> Future[Outputs]:
    """One result of many: all of them together, or the first error among them."""
    joined: Future[Outputs] = Future()
    joined.set_running_or_notify_cancel()
    left, lock = [len(pieces)], Lock()

    def count_down(_piece: Future[Outputs]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        try:
            joined.set_result(together([piece.result() for piece in pieces]))
        except RunError as error:
            joined.set_exception(error)
        except ValueError as error:
            hint = "leave out --micro-batch: for this input the model gives pieces of other sizes"
            joined.set_exception(
                RunError(f"the outputs for the pieces of a batch don't fit together: {error}", hint=hint)
            )

    for piece in pieces:
        piece.add_done_callback(count_down)
    return joined
