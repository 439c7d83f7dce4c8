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
        wires: Routing,
        executor: Executor,
        members: Sequence[WorkerState],
        *,
        window: int,
        on_error: OnError = "raise",
        deadline_s: float = DEADLINE_S,
        balance: LoadBalance | None = None,
        log: RunLog | None = None,
    ) -> None:
        """Nothing begins before `run`.

        Args:
            wires: the parts, and who reads what.
            executor: the workers.
            members: what each of them owns.
            window: how many requests may be on their way, delivered ones not counted.
            on_error: `raise` the error of a request, or give it in place of its answer and go on.
            deadline_s: how long a step may take of which nothing is known yet, and loading.
            balance: moves parts between neighbours while it runs; None to leave them where they are.
            log: what happens is noted there.
        """
        self._wires = wires
        self._crew = executor
        self._window = window
        self._on_error = on_error
        self._deadline_s = deadline_s
        self.log = log or RunLog(len(wires.units), len(members))
        self.staff = WorkerPool(executor, members, wires.units, deadline_s)
        self._flights: dict[int, RequestState] = {}
        self._arrived = 0
        self._able: list[list[int]] = [[] for _ in wires.units]
        self._history = StepHistory(executor, wires.units)
        self._repairs = StateRecovery(executor, self.staff, self._history)
        self._moves = Rebalancing(self.staff, balance)
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
            self.staff.begin()
            while True:
                self._admit(source)
                if self._stopping or (self._is_all and not self._flights):
                    return
                first = self._flights.get(undelivered)
                if first is not None and first.is_finished:
                    answer = self._deliver(first)
                    if answer is not None:
                        undelivered += 1
                        yield answer
                else:
                    self._wait()
        finally:
            self._crew.close()

    def stop(self) -> None:
        """End the run soon, from another thread; what is on its way is not delivered."""
        self._stopping = True
        self._crew.wake()

    def forget(self, sequence: int) -> None:
        """A sequence is at its end: nobody needs its states any more."""
        self._history.forget(sequence)
        self._crew.forget(sequence)

    # Requests

    def _admit(self, source: Iterator[Request | None]) -> None:
        while len(self._flights) < self._window and not self._is_all:
            try:
                request = next(source)
            except StopIteration:
                self._is_all = True
                return
            if request is None:
                return
            flight = self._flights[self._arrived] = RequestState(self._arrived, request, self._wires)
            self._arrived += 1
            self.log.arrived(flight.number, self._crew.now())
            self._begin(flight)

    def _begin(self, flight: RequestState) -> None:
        feeds = flight.request.feeds
        used = {name: self._crew.put(value, name) for name, value in feeds.items() if self._is_used(name)}
        self._able_now(flight, flight.begin(used, self._wires.inputs - used.keys()))

    def _is_used(self, name: str) -> bool:
        return name in self._wires.readers or self._wires.is_output(name)

    def _deliver(self, flight: RequestState) -> Answer | None:
        """The answer; None where it is lost, and worked out once more."""
        answer: Answer
        if flight.error is None:
            try:
                answer = {name: self._crew.get(flight.held[name], name) for name in self._wires.outputs}
            except LookupError:
                self._begin_anew(flight)
                return None
        elif self._on_error == "raise" or not isinstance(flight.error, RunError):
            raise flight.error
        else:
            answer = flight.error
        self._drop(flight)
        del self._flights[flight.number]
        self.log.delivered(flight.number, self._crew.now(), failed=flight.error is not None)
        return answer

    def _drop(self, flight: RequestState) -> None:
        """Let go of all that a request holds, as soon as no step reads it any more."""
        handles, flight.held = [*flight.held.values()], {}
        if flight.running:
            self._doomed.setdefault((flight.number, flight.attempt), []).extend(handles)
        else:
            self._release(handles)

    def _release(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._crew.release(handle)

    # Steps

    def _able_now(self, flight: RequestState, parts: Iterable[int]) -> None:
        for part in parts:
            heapq.heappush(self._able[part], flight.number)
            self.log.able(part, flight.number, self._crew.now())
            idle = self.staff.idle_owner(part)
            if idle is not None:
                self._employ(idle)

    def _employ(self, worker: int) -> None:
        """Give an idle worker what has waited longest."""
        one = self.staff.members[worker]
        if not one.is_idle:
            return
        if worker in self._repairs:
            self._repeat(worker)
            return
        if not self._moves.is_preparing:
            self.staff.tidy(worker)
        found = self._oldest(one.can_run)
        if found is None:
            self.staff.idle(worker)
            return
        flight, first = found
        parts = flight.run_on(first, one.can_run)
        request = flight.request
        if request.sequence is not None and (repair := self._history.lost(request.sequence, parts, worker)):
            heapq.heappush(self._able[first], flight.number)
            self._repairs.open(worker, repair)
            self._repeat(worker)
            return
        flight.taken.update(parts)
        flight.running += 1
        step = Step(
            flight.number, parts, self._wires.wanted(parts), flight.attempt, request.sequence, dict(request.zero_states)
        )
        self._start(worker, step, flight.reads_of(parts))

    def _repeat(self, worker: int) -> None:
        if (found := self._repairs.next_step(worker)) is not None:
            self._start(worker, *found)

    def _oldest(self, parts: Sequence[int]) -> tuple[RequestState, int] | None:
        """The oldest request that one of `parts` can work on, and which part: taken off the queue."""
        best: tuple[int, int] | None = None
        for part in parts:
            queue = self._able[part]
            while queue and not (queue[0] in self._flights and self._flights[queue[0]].is_able(part)):
                heapq.heappop(queue)  # another step took the part along, or the request has ended or begun anew
            if queue and (best is None or queue[0] < best[0]):
                best = (queue[0], part)
        if best is None:
            return None
        heapq.heappop(self._able[best[1]])
        return self._flights[best[0]], best[1]

    def _start(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        self.staff.members[worker].busy = step
        self.staff.within(worker, self._patience_s(worker, step))
        self.log.started(worker, step, self._crew.now())
        self._crew.run(worker, step, held)

    def _patience_s(self, worker: int, step: Step) -> float:
        usual = self.log.usual_s(worker, step.parts)
        if usual is None:
            return self._deadline_s
        flight = self._flights.get(step.request)
        deaths = flight.deaths[step.parts[0]] if flight is not None else 0
        return max(_PATIENCE_S, _PATIENCE * usual) * float(_PATIENCE**deaths)

    # Events

    def _wait(self) -> None:
        due = self.staff.next_time()
        left = None if due is None else max(0.0, due - self._crew.now())
        event = self._crew.next_event(left)
        if event is not None:
            self._hear(event)
        # Where this process was stopped for a while, what workers did meanwhile is heard before anybody is ended.
        self._waited = self._waited + 1 if event is not None and left == 0 else 0
        if event is None or self._waited > len(self.staff.members):
            self._waited = 0
            self.staff.look_after()

    def _hear(self, event: Event) -> None:
        match event:
            case Ready():
                self.log.up(event.worker, self._crew.now())
                self.staff.ready(event.worker, event.parts)
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
        one = self.staff.members[worker]
        step, one.busy, one.deadline = one.busy, None, None
        if step is None or step.request < 0:
            return
        key = (step.request, step.attempt)
        flight = self._flights.get(step.request)
        if flight is not None and flight.attempt == step.attempt:
            flight.running -= 1
        if key in self._doomed and not any(
            other.busy and (other.busy.request, other.busy.attempt) == key for other in self.staff.members
        ):
            self._release(self._doomed.pop(key))

    def _done(self, event: Done) -> None:
        worker, step = event.worker, event.step
        self._free(worker)
        self.staff.members[worker].deaths = 0
        self.log.done(worker, step, event.seconds, self._crew.now())
        self.log.has(event.worker, event.memory_bytes)
        flight = self._flights.get(step.request)
        if step.request < 0:
            self._repairs.done(worker)
        elif flight is None or flight.error is not None or flight.attempt != step.attempt:
            self._release(event.outputs.values())
        else:
            self._go_on(flight, event)
        self._moved(self._moves.weigh(event))
        self._employ(worker)

    def _go_on(self, flight: RequestState, event: Done) -> None:
        step = event.step
        if step.sequence is not None:
            try:
                self._history.note(step.sequence, step, event.worker, flight.reads_of(step.parts))
            except LookupError:
                self._release(event.outputs.values())
                self._begin_anew(flight)
                return
        # A part that hands on an input makes what is there already.
        self._release(handle for name, handle in event.outputs.items() if name in flight.held)
        able = flight.place({name: handle for name, handle in event.outputs.items() if name not in flight.held})
        self._release(flight.done(step.parts))
        self._able_now(flight, [part for part in able if part not in flight.taken])

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
        flight = self._flights.get(step.request)
        if flight is not None and flight.attempt == step.attempt:
            flight.error = flight.error or error
            self._drop(flight)

    def _not_loaded(self, event: Failed) -> None:
        one = self.staff.members[event.worker]
        if not one.is_up or event.worker in self._repairs or not one.holds.issuperset(one.owns):
            raise event.error
        one.asked = one.holds
        self._moves.end()  # it goes on with the parts it has

    def _died(self, event: Died) -> None:
        one = self.staff.members[event.worker]
        step = one.busy
        self._free(event.worker)
        self._repairs.died(event.worker)
        self._moves.abandon()
        self._history.died(event.worker)
        self.staff.died(event.worker, event.reason, for_good=event.is_permanent)
        self.log.died(event.worker, one.lost, self._crew.now())
        if one.is_gone:
            self._moves.end()  # there are fewer workers than it knows
            for heir in range(len(self.staff.members)):
                self._employ(heir)
        flight = self._flights.get(step.request) if step is not None else None
        if step is None or flight is None or flight.attempt != step.attempt:
            return
        flight.deaths[step.parts[0]] += 1
        if flight.deaths[step.parts[0]] >= MAX_KILLS:
            names = ", ".join(self._wires.units[part].name for part in step.parts)
            self.staff.forgive(event.worker)
            self._give_up(
                step,
                RunError(
                    f"{flight.title} ended its worker {MAX_KILLS} times in {names} ({one.lost})",
                    hint="leave it out; `graphcut run` goes on without it with --on-error skip",
                ),
            )
        else:
            self._able_now(flight, flight.undone(step.parts))

    def _lost(self, event: Lost) -> None:
        self._free(event.worker)
        self._repairs.undone(event.worker)
        flight = self._flights.get(event.step.request)
        if flight is not None and flight.attempt == event.step.attempt and flight.error is None:
            self._begin_anew(flight)
        self._employ(event.worker)

    def _begin_anew(self, flight: RequestState) -> None:
        """What was made for a request is lost with a machine: it begins at its inputs again, which are here."""
        self._drop(flight)
        if flight.request.sequence is not None:
            self._history.undo(flight.request.sequence, flight.number)
        flight.attempt += 1
        if flight.attempt > MAX_LOSSES:
            flight.error = RunError(
                f"what was made for {flight.title} was lost {flight.attempt} times",
                hint="do its machines stay up, and does anything remove files from shared memory?",
            )
        else:
            self._begin(flight)

    def _moved(self, bounds: Bounds | None) -> None:
        if bounds is not None:
            self.log.moved(bounds, self._crew.now())
            for worker in range(len(self.staff.members)):
                self._employ(worker)
