"""The dispatcher: which step runs next, on which worker, and what is done when it doesn't come back.

One for all crews. A step runs at least once, and a request is answered exactly once, in the order of arrival. What a
step reads is let go only after the step is done, so that what is lost begins anew at the last finished border.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, assert_never

from ..errors import RunError
from .balancing import Balance, Bounds
from .crew import Crew, Died, Done, Event, Failed, Handle, Lost, Ready, Step
from .flights import Flight, Request, Wires
from .history import History
from .log import Log
from .staff import Member, Staff
from .values import Value

MAX_KILLS: Final = 3
"""A request that ends so many workers at the same step is not tried again."""

_PATIENCE_S: Final = 5.0
_PATIENCE: Final = 10
"""A worker is taken for hung after ten times what its step usually takes, and five seconds at least."""

OnError = Literal["raise", "skip"]
Answer = Mapping[str, Value] | RunError


class Dispatcher:
    """Sends requests through the parts of a cascade."""

    def __init__(  # noqa: PLR0913 - each is a decision of its own, taken once, in `streaming`
        self,
        wires: Wires,
        crew: Crew,
        members: Sequence[Member],
        *,
        window: int,
        on_error: OnError = "raise",
        deadline_s: float = 300.0,
        balance: Balance | None = None,
        log: Log | None = None,
    ) -> None:
        """Nothing begins before `run`.

        Args:
            wires: the parts, and who reads what.
            crew: the workers.
            members: what each of them owns.
            window: how many requests may be on their way, delivered ones not counted.
            on_error: `raise` the error of a request, or give it in place of its answer and go on.
            deadline_s: how long a step may take of which nothing is known yet, and loading.
            balance: moves parts between neighbours while it runs; None to leave them where they are.
            log: what happens is noted there.
        """
        self._wires = wires
        self._crew = crew
        self._window = window
        self._on_error = on_error
        self._deadline_s = deadline_s
        self._balance = balance
        self._moving: Bounds | None = None
        self.log = log or Log(len(wires.units), len(members))
        self.staff = Staff(crew, members, wires.units, deadline_s)
        self._flights: dict[int, Flight] = {}
        self._arrived = 0
        self._able: list[list[int]] = [[] for _ in wires.units]
        self._history = History(crew)
        self._rebuilding: dict[int, deque[tuple[Step, Mapping[str, Value]]]] = {}
        self._fed_again: dict[int, Mapping[str, Handle]] = {}
        self._stopping = False

    def run(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """The answers, in the order of the requests, which are fetched as the window allows.

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
                if not self._flights or self._stopping:
                    return
                first = self._flights[undelivered]
                if first.is_finished:
                    undelivered += 1
                    yield self._deliver(first)
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

    def _admit(self, source: Iterator[Request]) -> None:
        while len(self._flights) < self._window and (request := next(source, None)) is not None:
            flight = self._flights[self._arrived] = Flight(self._arrived, request, self._wires)
            self._arrived += 1
            self.log.arrived(flight.number, self._crew.now())
            self._begin(flight)

    def _begin(self, flight: Flight) -> None:
        feeds = flight.request.feeds
        used = {name: self._crew.put(value, name) for name, value in feeds.items() if self._is_used(name)}
        absent = {name for name in self._wires.readers if name not in self._wires.made and name not in used}
        self._able_now(flight, flight.begin(used, absent))

    def _is_used(self, name: str) -> bool:
        return name in self._wires.readers or self._wires.is_output(name)

    def _deliver(self, flight: Flight) -> Answer:
        del self._flights[flight.number]
        answer: Answer
        if flight.error is None:
            answer = {name: self._crew.get(flight.held[name], name) for name in self._wires.outputs}
        elif self._on_error == "raise" or not isinstance(flight.error, RunError):
            raise flight.error
        else:
            answer = flight.error
        self._drop(flight)
        self.log.delivered(flight.number, self._crew.now(), failed=flight.error is not None)
        return answer

    def _drop(self, flight: Flight) -> None:
        for handle in flight.held.values():
            self._crew.release(handle)
        flight.held = {}

    # Steps

    def _able_now(self, flight: Flight, parts: Iterable[int]) -> None:
        for part in parts:
            heapq.heappush(self._able[part], flight.number)
            idle = next((i for i in self.staff.owners(part) if self.staff.members[i].is_idle), None)
            if idle is not None:
                self._employ(idle)

    def _employ(self, worker: int) -> None:
        """Give an idle worker what has waited longest."""
        one = self.staff.members[worker]
        if not one.is_idle:
            return
        if self._rebuilding.get(worker):
            self._rebuild(worker)
            return
        found = self._oldest(sorted(one.holds.intersection(one.owns)))
        if found is None:
            return
        flight, first = found
        parts = flight.run_on(first, [p for p in one.owns if p in one.holds])
        request = flight.request
        if request.sequence is not None and (lost := self._history.lost(request.sequence, parts, worker)):
            self._rebuilding[worker] = deque(lost)
            heapq.heappush(self._able[first], flight.number)
            self._rebuild(worker)
            return
        flight.taken.update(parts)
        step = Step(
            flight.number, parts, self._wires.wanted(parts), flight.attempt, request.sequence, dict(request.fresh)
        )
        self._start(worker, step, flight.reads_of(parts))

    def _oldest(self, parts: Sequence[int]) -> tuple[Flight, int] | None:
        """The oldest request that one of `parts` can work on, and which part: taken off the queue."""
        best: tuple[int, int] | None = None
        for part in parts:
            queue = self._able[part]
            while queue and (queue[0] not in self._flights or part in self._flights[queue[0]].taken):
                heapq.heappop(queue)  # another step took the part along, or the request has ended
            if queue and (best is None or queue[0] < best[0]):
                best = (queue[0], part)
        if best is None:
            return None
        heapq.heappop(self._able[best[1]])
        return self._flights[best[0]], best[1]

    def _start(self, worker: int, step: Step, held: Mapping[str, Handle]) -> None:
        self.staff.members[worker].busy = step
        usual = self.log.usual_s(worker, step.parts)
        self.staff.within(worker, self._deadline_s if usual is None else max(_PATIENCE_S, _PATIENCE * usual))
        self.log.started(worker, step, self._crew.now())
        self._crew.run(worker, step, held)

    # Events

    def _wait(self) -> None:
        due = self.staff.next_time()
        event = self._crew.next_event(None if due is None else max(0.0, due - self._crew.now()))
        if event is None:
            self.staff.look_after()
            return
        self._hear(event)

    def _hear(self, event: Event) -> None:
        match event:
            case Ready():
                self.staff.ready(event.worker, event.parts)
                self._move_if_ready()
                self._employ(event.worker)
            case Done():
                self._done(event)
            case Failed(step=None):
                self._not_loaded(event)
            case Failed(step=Step() as step):
                self._free(event.worker)
                self._give_up(step, event.error)
                self._employ(event.worker)
            case Died():
                self._died(event)
            case Lost():
                self._begin_anew(event)
            case _:
                assert_never(event)

    def _free(self, worker: int) -> None:
        one = self.staff.members[worker]
        one.busy, one.deadline = None, None

    def _done(self, event: Done) -> None:
        worker, step = event.worker, event.step
        self._free(worker)
        self.staff.members[worker].deaths = 0
        self.log.done(worker, step, event.seconds, self._crew.now())
        flight = self._flights.get(step.request)
        if step.request < 0:
            self._rebuilt(event)
        elif flight is None or flight.error is not None or flight.attempt != step.attempt:
            for handle in event.made.values():
                self._crew.release(handle)
        else:
            if step.sequence is not None:
                self._history.note(step.sequence, step, worker, flight.reads_of(step.parts))
            able = flight.place(event.made)
            for handle in flight.done(step.parts):
                self._crew.release(handle)
            self._able_now(flight, [part for part in able if part not in flight.taken])
        self._weigh(event)
        self._employ(worker)

    def _failed(self, event: Failed) -> None:
        if event.step is None:
            self._not_loaded(event)
        else:
            self._free(event.worker)
            self._give_up(event.step, event.error)
            self._employ(event.worker)

    def _give_up(self, step: Step, error: Exception) -> None:
        flight = self._flights.get(step.request)
        if flight is None:  # a step that rebuilds states: what it repeats has worked before
            raise error
        if flight.attempt == step.attempt:
            flight.error = error
            self._drop(flight)

    def _not_loaded(self, event: Failed) -> None:
        one = self.staff.members[event.worker]
        if not one.is_up or not one.holds.issuperset(one.owns):
            raise event.error
        self._moving = self._balance = None  # it goes on with the parts it has

    def _died(self, event: Died) -> None:
        one = self.staff.members[event.worker]
        step = one.busy
        self._rebuilding.pop(event.worker, None)
        self._release_fed_again(event.worker)
        self._history.died(event.worker)
        self.staff.died(event.worker, event.why, for_good=event.is_gone_for_good)
        self.log.died(event.worker, one.lost, self._crew.now())
        if one.is_gone:
            self._balance = self._moving = None  # there are fewer workers than it knows
            for heir in range(len(self.staff.members)):
                self._employ(heir)
        flight = self._flights.get(step.request) if step is not None else None
        if step is None or flight is None or flight.attempt != step.attempt:
            return
        flight.deaths[step.parts[0]] += 1
        if flight.deaths[step.parts[0]] >= MAX_KILLS:
            names = ", ".join(self._wires.units[part].name for part in step.parts)
            self._give_up(
                step,
                RunError(
                    f"input {step.request} ended its worker {MAX_KILLS} times in {names} ({one.lost})",
                    hint="leave this input out, or go on without it with --on-error skip",
                ),
            )
        else:
            self._able_now(flight, flight.undone(step.parts))

    def _begin_anew(self, event: Lost) -> None:
        """What was made for a request is lost with a machine: it begins at its inputs again, which are here."""
        self._free(event.worker)
        flight = self._flights.get(event.step.request)
        if flight is not None and flight.attempt == event.step.attempt and flight.error is None:
            flight.attempt += 1
            self._drop(flight)
            if flight.request.sequence is not None:
                self._history.undo(flight.request.sequence, flight.number)
            self._begin(flight)
        self._employ(event.worker)

    # States of sequences

    def _rebuild(self, worker: int) -> None:
        step, values = self._rebuilding[worker].popleft()
        placed = {name: self._crew.put(value, name) for name, value in values.items()}
        self._fed_again[worker] = placed
        self._start(worker, step, placed)

    def _rebuilt(self, event: Done) -> None:
        if event.step.sequence is not None:
            self._history.rebuilt(event.step.sequence, event.step.parts, event.worker)
        self._release_fed_again(event.worker)

    def _release_fed_again(self, worker: int) -> None:
        for handle in self._fed_again.pop(worker, {}).values():
            self._crew.release(handle)

    # Balance

    def _weigh(self, event: Done) -> None:
        if self._balance is None or event.step.request < 0:
            return
        for part, seconds in zip(event.step.parts, event.seconds, strict=True):
            self._balance.saw(event.worker, part, seconds)
        if self._moving is None and (bounds := self._balance.proposal()) is not None:
            self._moving = bounds
            for worker, one in enumerate(self.staff.members):
                wanted = set(range(bounds[worker], bounds[worker + 1]))
                if one.is_up and not one.holds.issuperset(wanted):
                    self._crew.hold(worker, sorted(one.holds | wanted))
            self._move_if_ready()

    def _move_if_ready(self) -> None:
        """Parts change hands once whoever gets them holds them: a word, no loading."""
        bounds = self._moving
        if bounds is None or self._balance is None:
            return
        new = [tuple(range(start, stop)) for start, stop in pairwise(bounds)]
        if not all(one.holds.issuperset(parts) for one, parts in zip(self.staff.members, new, strict=True)):
            return
        for one, parts in zip(self.staff.members, new, strict=True):
            one.owns = parts
        self._moving = None
        self._balance.accept(bounds)
        self.log.moved(bounds, self._crew.now())
        for worker in range(len(new)):
            self._employ(worker)
