"""The scheduler: which step runs next, on which worker, and what is done when it doesn't come back.

One for all executors. A step runs at least once, and a request is answered exactly once, in the order of arrival.
What a step reads is let go only after the step is done, so that what is lost begins anew at the last finished border.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, assert_never

from ...core.errors import RunError
from ..executors.protocol import Died, Done, Event, Executor, Failed, Handle, Lost, Ready, Step
from ..run_log import RunLog
from ..values import Value
from .load_balancing import Bounds, LoadBalance
from .rebalancing import Rebalancing
from .requests import Request, RequestState, Routing
from .state_recovery import StateRecovery
from .step_history import StepHistory
from .worker_pool import WorkerPool, WorkerState

MAX_KILLS: Final = 3
"""A request that ends so many workers at the same step is not tried again."""

MAX_LOSSES: Final = 5
"""A request whose tensors were lost so often is not begun anew."""

DEADLINE_S: Final = 300.0
"""How long loading may take, and a step of which nothing is known yet."""

_PATIENCE_S: Final = 5.0
_PATIENCE: Final = 10
"""A worker is taken for hung after ten times what its step usually takes, and five seconds at least; again ten times
that where the step ended a worker before, since not all requests take what is usual."""

OnError = Literal["raise", "skip"]
Answer = Mapping[str, Value] | RunError


class Scheduler:
    """Sends requests through the parts of a cascade."""

    def __init__(  # noqa: PLR0913 - each is a decision of its own, taken once, in `streaming`
        self,
        routing: Routing,
        executor: Executor,
        workers: Sequence[WorkerState],
        *,
        window: int,
        on_error: OnError = "raise",
        deadline_s: float = DEADLINE_S,
        balance: LoadBalance | None = None,
        log: RunLog | None = None,
    ) -> None:
        """Nothing begins before `run`.

        Args:
            routing: the parts, and which of them reads which tensor.
            executor: the workers.
            workers: the state of each worker, with the parts it owns.
            window: how many requests may be on their way, delivered ones not counted.
            on_error: `raise` the error of a request, or give it in place of its answer and go on.
            deadline_s: how long a step may take of which nothing is known yet, and loading.
            balance: moves parts between neighbours while it runs; None to leave them where they are.
            log: what happens is noted there.
        """
        self._routing = routing
        self._executor = executor
        self._window = window
        self._on_error = on_error
        self._deadline_s = deadline_s
        self.log = log or RunLog(len(routing.parts), len(workers))
        self.pool = WorkerPool(executor, workers, routing.parts, deadline_s)
        self._states: dict[int, RequestState] = {}
        self._arrived = 0
        self._able: list[list[int]] = [[] for _ in routing.parts]
        self._history = StepHistory(executor, routing.parts)
        self._repairs = StateRecovery(executor, self.pool, self._history)
        self._moves = Rebalancing(self.pool, balance)
        self._doomed: dict[tuple[int, int], list[Handle]] = {}
        self._waited = 0
        self._is_all = False
        self._stopping = False

    def run(self, requests: Iterable[Request | None]) -> Iterator[Answer]:
        """The answers, in the order of the requests, which are fetched as the window allows.

        A request that is None means that there is none now, and one should ask again after something has happened.

        Raises:
            RunError: a request failed and `on_error` is `raise`; a part can't be loaded; a device is lost for which no
                other has room.
        """
        source = iter(requests)
        undelivered = 0
        try:
            self.pool.begin()
            while True:
                self._admit(source)
                if self._stopping or (self._is_all and not self._states):
                    return
                first = self._states.get(undelivered)
                if first is not None and first.is_finished:
                    answer = self._deliver(first)
                    if answer is not None:
                        undelivered += 1
                        yield answer
                else:
                    self._wait()
        finally:
            self._executor.close()

    def stop(self) -> None:
        """End the run soon, from another thread; what is on its way is not delivered."""
        self._stopping = True
        self._executor.wake()

    def forget(self, sequence: int) -> None:
        """A sequence is at its end: nobody needs its states any more."""
        self._history.forget(sequence)
        self._executor.forget(sequence)

    # Requests

    def _admit(self, source: Iterator[Request | None]) -> None:
        while len(self._states) < self._window and not self._is_all:
            try:
                request = next(source)
            except StopIteration:
                self._is_all = True
                return
            if request is None:
                return
            state = self._states[self._arrived] = RequestState(self._arrived, request, self._routing)
            self._arrived += 1
            self.log.arrived(state.number, self._executor.now())
            self._begin(state)

    def _begin(self, state: RequestState) -> None:
        feeds = state.request.feeds
        used = {name: self._executor.put(value, name) for name, value in feeds.items() if self._is_used(name)}
        self._able_now(state, state.begin(used, self._routing.inputs - used.keys()))

    def _is_used(self, name: str) -> bool:
        return name in self._routing.readers or self._routing.is_output(name)

    def _deliver(self, state: RequestState) -> Answer | None:
        """The answer; None where it is lost, and worked out once more."""
        answer: Answer
        if state.error is None:
            try:
                answer = {name: self._executor.get(state.held[name], name) for name in self._routing.outputs}
            except LookupError:
                self._begin_anew(state)
                return None
        elif self._on_error == "raise" or not isinstance(state.error, RunError):
            raise state.error
        else:
            answer = state.error
        self._drop(state)
        del self._states[state.number]
        self.log.delivered(state.number, self._executor.now(), failed=state.error is not None)
        return answer

    def _drop(self, state: RequestState) -> None:
        """Let go of all that a request holds, as soon as no step reads it any more."""
        handles, state.held = [*state.held.values()], {}
        if state.running:
            self._doomed.setdefault((state.number, state.attempt), []).extend(handles)
        else:
            self._release(handles)

    def _release(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._executor.release(handle)

    # Steps

    def _able_now(self, state: RequestState, parts: Iterable[int]) -> None:
        for part in parts:
            heapq.heappush(self._able[part], state.number)
            self.log.able(part, state.number, self._executor.now())
            idle = self.pool.idle_owner(part)
            if idle is not None:
                self._employ(idle)

    def _employ(self, worker: int) -> None:
        """Give an idle worker what has waited longest."""
        one = self.pool.workers[worker]
        if not one.is_idle:
            return
        if worker in self._repairs:
            self._repeat(worker)
            return
        if not self._moves.is_preparing:
            self.pool.tidy(worker)
        found = self._oldest(one.can_run)
        if found is None:
            self.pool.idle(worker)
            return
        state, first = found
        parts = state.run_on(first, one.can_run)
        request = state.request
        if request.sequence is not None and (repair := self._history.lost(request.sequence, parts, worker)):
            heapq.heappush(self._able[first], state.number)
            self._repairs.open(worker, repair)
            self._repeat(worker)
            return
        state.taken.update(parts)
        state.running += 1
        step = Step(
            state.number,
            parts,
            self._routing.wanted(parts),
            state.attempt,
            request.sequence,
            dict(request.zero_states),
        )
        self._start(worker, step, state.reads_of(parts))

    def _repeat(self, worker: int) -> None:
        if (found := self._repairs.next_step(worker)) is not None:
            self._start(worker, *found)

    def _oldest(self, parts: Sequence[int]) -> tuple[RequestState, int] | None:
        """The oldest request that one of `parts` can work on, and which part: taken off the queue."""
        best: tuple[int, int] | None = None
        for part in parts:
            queue = self._able[part]
            while queue and not (queue[0] in self._states and self._states[queue[0]].is_able(part)):
                heapq.heappop(queue)  # another step took the part along, or the request has ended or begun anew
            if queue and (best is None or queue[0] < best[0]):
                best = (queue[0], part)
        if best is None:
            return None
        heapq.heappop(self._able[best[1]])
        return self._states[best[0]], best[1]

    def _start(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        self.pool.workers[worker].busy = step
        self.pool.within(worker, self._patience_s(worker, step))
        self.log.started(worker, step, self._executor.now())
        self._executor.run(worker, step, held)

    def _patience_s(self, worker: int, step: Step) -> float:
        usual = self.log.usual_s(worker, step.parts)
        if usual is None:
            return self._deadline_s
        state = self._states.get(step.request)
        deaths = state.deaths[step.parts[0]] if state is not None else 0
        return max(_PATIENCE_S, _PATIENCE * usual) * float(_PATIENCE**deaths)

    # Events

    def _wait(self) -> None:
        due = self.pool.next_time()
        left = None if due is None else max(0.0, due - self._executor.now())
        event = self._executor.next_event(left)
        if event is not None:
            self._hear(event)
        # Where this process was stopped for a while, what workers did meanwhile is heard before anybody is ended.
        self._waited = self._waited + 1 if event is not None and left == 0 else 0
        if event is None or self._waited > len(self.pool.workers):
            self._waited = 0
            self.pool.look_after()

    def _hear(self, event: Event) -> None:
        match event:
            case Ready():
                self.log.up(event.worker, self._executor.now())
                self.pool.ready(event.worker, event.parts)
                self._moved(self._moves.settle())
                self._employ(event.worker)
            case Done():
                self._done(event)
            case Failed():
                self._failed(event)
            case Died():
                self._died(event)
            case Lost():
                self._lost(event)
            case _:
                assert_never(event)

    def _free(self, worker: int) -> None:
        """A worker is done with its step, one way or the other."""
        one = self.pool.workers[worker]
        step, one.busy, one.deadline = one.busy, None, None
        if step is None or step.request < 0:
            return
        key = (step.request, step.attempt)
        state = self._states.get(step.request)
        if state is not None and state.attempt == step.attempt:
            state.running -= 1
        if key in self._doomed and not any(
            other.busy and (other.busy.request, other.busy.attempt) == key for other in self.pool.workers
        ):
            self._release(self._doomed.pop(key))

    def _done(self, event: Done) -> None:
        worker, step = event.worker, event.step
        self._free(worker)
        self.pool.workers[worker].deaths = 0
        self.log.done(worker, step, event.seconds, self._executor.now())
        self.log.has(event.worker, event.memory_bytes)
        state = self._states.get(step.request)
        if step.request < 0:
            self._repairs.done(worker)
        elif state is None or state.error is not None or state.attempt != step.attempt:
            self._release(event.outputs.values())
        else:
            self._go_on(state, event)
        self._moved(self._moves.weigh(event))
        self._employ(worker)

    def _go_on(self, state: RequestState, event: Done) -> None:
        step = event.step
        if step.sequence is not None:
            try:
                self._history.note(step.sequence, step, event.worker, state.reads_of(step.parts))
            except LookupError:
                self._release(event.outputs.values())
                self._begin_anew(state)
                return
        # A part that hands on an input makes what is there already.
        self._release(handle for name, handle in event.outputs.items() if name in state.held)
        able = state.place({name: handle for name, handle in event.outputs.items() if name not in state.held})
        self._release(state.done(step.parts))
        self._able_now(state, [part for part in able if part not in state.taken])

    def _failed(self, event: Failed) -> None:
        if event.step is None:
            self._not_loaded(event)
        else:
            self._free(event.worker)
            self._give_up(event.step, event.error)
            self._employ(event.worker)

    def _give_up(self, step: Step, error: Exception) -> None:
        if step.request < 0:  # it rebuilds states: what it repeats has worked before
            raise error
        state = self._states.get(step.request)
        if state is not None and state.attempt == step.attempt:
            state.error = state.error or error
            self._drop(state)

    def _not_loaded(self, event: Failed) -> None:
        one = self.pool.workers[event.worker]
        if not one.is_up or event.worker in self._repairs or not one.holds.issuperset(one.owns):
            raise event.error
        one.asked = one.holds
        self._moves.end()  # it goes on with the parts it has

    def _died(self, event: Died) -> None:
        one = self.pool.workers[event.worker]
        step = one.busy
        self._free(event.worker)
        self._repairs.died(event.worker)
        self._moves.abandon()
        self._history.died(event.worker)
        self.pool.died(event.worker, event.reason, for_good=event.is_permanent)
        self.log.died(event.worker, one.lost, self._executor.now())
        if one.is_gone:
            self._moves.end()  # there are fewer workers than it knows
            for heir in range(len(self.pool.workers)):
                self._employ(heir)
        state = self._states.get(step.request) if step is not None else None
        if step is None or state is None or state.attempt != step.attempt:
            return
        state.deaths[step.parts[0]] += 1
        if state.deaths[step.parts[0]] >= MAX_KILLS:
            names = ", ".join(self._routing.parts[part].name for part in step.parts)
            self.pool.forgive(event.worker)
            self._give_up(
                step,
                RunError(
                    f"{state.title} ended its worker {MAX_KILLS} times in {names} ({one.lost})",
                    hint="leave it out; `graphcut run` goes on without it with --on-error skip",
                ),
            )
        else:
            self._able_now(state, state.undone(step.parts))

    def _lost(self, event: Lost) -> None:
        self._free(event.worker)
        self._repairs.undone(event.worker)
        state = self._states.get(event.step.request)
        if state is not None and state.attempt == event.step.attempt and state.error is None:
            self._begin_anew(state)
        self._employ(event.worker)

    def _begin_anew(self, state: RequestState) -> None:
        """What was made for a request is lost with a machine: it begins at its inputs again, which are here."""
        self._drop(state)
        if state.request.sequence is not None:
            self._history.undo(state.request.sequence, state.number)
        state.attempt += 1
        if state.attempt > MAX_LOSSES:
            state.error = RunError(
                f"what was made for {state.title} was lost {state.attempt} times",
                hint="do its machines stay up, and does anything remove files from shared memory?",
            )
        else:
            self._begin(state)

    def _moved(self, bounds: Bounds | None) -> None:
        if bounds is not None:
            self.log.rebalanced(bounds, self._executor.now())
            for worker in range(len(self.pool.workers)):
                self._employ(worker)
