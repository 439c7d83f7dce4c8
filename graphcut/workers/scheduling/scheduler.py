"""The scheduler: which step runs next on which worker, and what happens when a step is lost.

There is one for all executors. A step runs at least once; a request is answered exactly once, in the order of arrival.
The tensors that a step reads are released only after the step is done, so lost work is repeated from the last boundary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, assert_never

from ...core.errors import RunError
from ..executors.exchange import Exchange
from ..executors.protocol import Died, Done, Event, Executor, Failed, Handle, Lost, Made, Note, Ready, Step
from ..run_log import Coming, RunLog
from .in_flight import Answer, RequestsInFlight
from .link_times import LinkTimes
from .load_balancing import Bounds, Rebalancing, movable_bounds
from .requests import Request, RequestState, Routing, waiting_in_turn
from .state_recovery import LostStatesError, StateRecovery, StepHistory
from .worker_pool import GivenStep, WorkerPool, WorkerState

MAX_KILLS: Final = 3  #: a request fails once so many workers ended while they ran the same step of it.
DEADLINE_S: Final = 300.0  #: how long a worker may take to load its parts, and for a step of unknown duration.
LEAST_PATIENCE_S: Final = 5.0  #: a worker is never considered hung earlier.
#: a worker is considered hung after so many times the expected time of its step. Each death in that step multiplies
#: this again: some requests take longer than others.
PATIENCE: Final = 10


class Scheduler:
    """Runs requests through the parts of a cascade."""

    def __init__(
        self,
        routing: Routing,
        executor: Executor,
        workers: Sequence[WorkerState],
        *,
        window: int,
        deadline_s: float = DEADLINE_S,
        balanced: bool = False,
        log: RunLog | None = None,
    ) -> None:
        """Starts nothing. At most `window` requests are in flight; unless `balanced`, parts stay where they are."""
        self.log = log or RunLog(len(routing.parts), len(workers))
        self.worker_names = tuple(worker.name for worker in workers)  #: the workers in the log.
        self.pool = WorkerPool(executor, workers, routing.parts, deadline_s)
        self._routing = routing
        self.executor = executor
        self._window = window
        self._arrived = 0
        self._history = StepHistory(executor, routing.parts)
        self._flight = RequestsInFlight(routing, executor, self._history, self.log, self._take)
        self._recovery = StateRecovery(executor, self.pool, self._history)
        self._links = LinkTimes()
        bounds = movable_bounds(workers, has_links=executor.has_links) if balanced else None
        self._rebalancing = Rebalancing(self.pool, bounds, self._links)
        self._overdue_events = 0
        self._is_all = False
        self._stopping = False
        self._groups = waiting_in_turn(routing, [worker.owns for worker in workers]) if executor.exchanges else {}

    def run(self, requests: Iterable[Request | None]) -> Iterator[Answer]:
        """The answers, in the order of the requests, which are fetched as the window allows.

        A request that is None means that there is none now, and to ask again after the next event. Errors are raised if
        a part can't be loaded, and if a worker is lost and no other has memory for its parts.
        """
        source = iter(requests)
        undelivered = 0
        try:
            self.pool.start()
            while True:
                self._admit(source)
                if self._stopping or (self._is_all and not self._flight.states):
                    return
                first = self._flight.states.get(undelivered)
                if first is None or not first.is_finished or not self._flight.is_here(first):
                    self._wait()
                elif (answer := self._flight.deliver(first)) is not None:
                    undelivered += 1
                    yield answer
        finally:
            self.executor.close()

    def stop(self) -> None:
        """End the run soon, without delivering requests in flight. For other threads."""
        self._stopping = True
        self.executor.wake()

    def forget(self, sequence: int, *, states: bool = True) -> None:
        """Delete the steps of a sequence that has ended, and its states, unless others may begin with them."""
        self._history.forget(sequence, states=states)
        if states:
            self.executor.forget(sequence)

    # Requests

    def _admit(self, source: Iterator[Request | None]) -> None:
        while len(self._flight.states) < self._window and not self._is_all:
            try:
                request = next(source)
            except StopIteration:
                self._is_all = True
                return
            if request is None:
                return
            self.log.arrived(self.executor.now())
            self._flight.start(self._arrived, request)
            self._arrived += 1

    # Steps

    def _take(self, part: int) -> None:
        """A part can run for one more request."""
        if (taker := self.pool.taker(part)) is not None:
            self._employ(taker)

    def _employ(self, index: int) -> None:
        """Give a worker the oldest request that it can work on, now or after the step that it runs."""
        worker = self.pool.workers[index]
        if index in self._recovery:
            if worker.is_idle and (found := self._recovery.next_step(index)) is not None:
                self._run(index, *found)
            return
        if worker.is_idle and self._rebalancing.next is None:
            self.pool.drop_unused(index)
        if index in self._groups:
            self._employ_group(self._groups[index])
            return
        if (oldest := self._flight.oldest(self.pool.runnable_on(index))) is None:
            self.pool.list_taker(index)
            return
        state, first = oldest
        parts, sequence = state.step_parts(first, worker.can_run), state.request.template.sequence
        if sequence is not None and (replay := self._history.lost(sequence, parts, index)):
            if not replay.entries:
                self._flight.fail(state, LostStatesError(f"{state.title} lost its states with a worker"))
                self._employ(index)
                return
            self._flight.put_back(state, first)
            self._recovery.open(index, replay)
            self._employ(index)
            return
        later = {part: [other for other in parts if other > part] for part in state.enabling(parts)}
        early = tuple(part for part, row in later.items() if self.log.outlasts_message(index, row, state.pace))
        if early and not self.executor.reports_early:
            parts, early = tuple(part for part in parts if part <= early[0]), ()
        step = state.request.step(state.number, parts, self._routing.wanted(parts), attempt=state.attempt, early=early)
        self._run(index, step, state.inputs_of(parts), state)
        self._employ(index)

    def _employ_group(self, group: Sequence[int]) -> None:
        """Give workers that wait for each other in turn, once all are idle, the oldest request they can work on.

        Each gets all its parts that then can run, and they hand each other what they make.
        """
        owners = {part: index for index in group for part in self.pool.workers[index].can_run}
        are_idle = all(self.pool.workers[index].is_idle for index in group)
        found = self._flight.oldest(sorted(owners)) if are_idle else None
        if found is None:
            for index in group:
                self.pool.list_taker(index)
            return
        state = found[0]
        steps = state.joint_steps(owners)
        wanted = self._routing.wanted(tuple(part for parts in steps.values() for part in parts))
        exchange = Exchange(self._routing.handed_over(list(steps.values())))
        for index, parts in steps.items():
            own = {name for part in parts for name in self._routing.parts[part].writes}
            writes = tuple(name for name in wanted if name in own)
            step = state.request.step(state.number, parts, writes, attempt=state.attempt, exchange=exchange)
            self._run(index, step, state.inputs_of(parts), state)

    def _run(self, index: int, step: Step, handles: Mapping[str, Handle], state: RequestState | None = None) -> None:
        if state is not None:
            state.taken.update(step.parts)
            state.running += 1
        steps = self.pool.workers[index].steps
        steps.append(GivenStep(step, state, self.executor.now()))
        if len(steps) == 1:
            self._begin(index)
        self.executor.run(index, step, handles)

    def _begin(self, index: int) -> None:
        """A worker begins the first of its steps."""
        step, state, given_s = self.pool.workers[index].steps[0]
        deaths = state.deaths[step.parts[0]] if state is not None else 0
        expected = self.log.expected_s(index, step.parts)
        patience_s = self.pool.start_s
        if expected is not None:
            patience_s = max(LEAST_PATIENCE_S, PATIENCE * expected) * float(PATIENCE**deaths)
        self.pool.set_deadline(index, patience_s)
        self.log.started(index, step, self.executor.now(), given_s)

    # Events

    def _wait(self) -> None:
        self.pool.excuse()
        left = self.pool.left_s()
        event = self.executor.next_event(left)
        if event is not None:
            self._handle(event)
        # Events that came already are handled before any worker is killed.
        self._overdue_events = self._overdue_events + 1 if event is not None and left == 0 else 0
        if event is None or self._overdue_events > len(self.pool.workers):
            self._overdue_events = 0
            self.pool.restart_and_kill()

    def _handle(self, event: Event) -> None:
        match event:
            case Note():
                self.log.notify(event.text, event.share)
                return
            case Ready():
                self._ready(event)
            case Made():
                self._made(event)
                return
            case Done():
                self._done(event)
            case Failed():
                if event.step is None:
                    self._not_loaded(event)
                    return
                if event.step.request < 0:  # it rebuilds states, with steps that succeeded before
                    raise event.error
                self._overtake(event.worker, event.step)
                self._flight.fail(self._free(event.worker), event.error)
            case Died():
                self._died(event)
                return
            case Lost():
                self._overtake(event.worker, event.step)
                self._lost(event.worker)
            case _:
                assert_never(event)
        self._employ(event.worker)

    def _ready(self, event: Ready) -> None:
        worker = self.pool.workers[event.worker]
        if worker.deaths and not worker.is_up:
            self.log.notify(f"{worker.name} runs again", None)
        self.log.loaded(event.worker, event.placements, self.executor.now())
        self.pool.loaded(event.worker, event.parts)
        self._apply(self._rebalancing.finish())

    def _overtake(self, index: int, step: Step) -> None:
        """A worker's step has ended. If it began before the one in front of it, that still waits for its inputs."""
        steps = self.pool.workers[index].steps
        if steps[0].step != step:
            steps.rotate(1)
            self.log.started(index, step, self.executor.now(), steps[0].given_s)

    def _free(self, index: int) -> RequestState | None:
        """A worker's step has ended. Its request; None if that was restarted or answered, or if states were rebuilt."""
        worker = self.pool.workers[index]
        given = worker.steps.popleft()
        worker.deadline = None
        if worker.steps:
            self._begin(index)
        return self._flight.leave(given.state)

    def _done(self, event: Done) -> None:
        step = event.step
        self._overtake(event.worker, step)
        usual_s = self.log.recent_s(event.worker, step.parts)
        coming = self.log.done(event.worker, step, event.seconds, self.executor.now(), event.waits)
        self.log.copied_bytes += event.copied_bytes
        state = self._free(event.worker)
        self.pool.workers[event.worker].deaths = 0
        if state is not None and usual_s:
            state.pace = sum(event.seconds) / usual_s
        if state is not None and self.executor.has_links:
            self._received(state, event, coming)
        self.log.memory(event.worker, event.memory_bytes)
        if step.request < 0:
            self._recovery.done(event.worker)
        elif state is None or state.error is not None:
            self._flight.release(event.outputs.values())
        else:
            self._continue(state, event)
        self._apply(self._rebalancing.measured(event))

    def _received(self, state: RequestState, event: Done, coming: Coming) -> None:
        """Take note of how long the inputs of a step took to its worker."""
        sizes = {name: self.executor.bytes_of(handle) for name, handle in state.inputs_of(event.step.parts).items()}
        self._rebalancing.tensor_bytes.update(sizes)
        came = {name: size for name, size in sizes.items() if state.makers.get(name) != event.worker}
        if total_bytes := sum(came.values()):
            maker = state.makers.get(max(came, key=came.__getitem__))
            source = "" if maker is None else self.pool.workers[maker].name
            name, computed_s = self.pool.workers[event.worker].name, sum(event.seconds)
            if text := self._links.measured(source, name, total_bytes, coming, computed_s):
                self.log.notify(text, None)

    def _made(self, event: Made) -> None:
        state = self.pool.workers[event.worker].steps[0].state
        if state is None or state.is_dropped:
            self._flight.release(event.outputs.values())
        else:
            state.reported.add(event.step.parts[0])
            self._flight.add(state, event)

    def _continue(self, state: RequestState, event: Done) -> None:
        step = event.step
        read = state.inputs_of(step.parts)
        self._flight.add(state, event)  # first, so that workers go on meanwhile
        if step.sequence is not None:
            try:
                self._history.note(step.sequence, step, event.worker, read)
            except LookupError:
                self._flight.restart(state)
                return
        self._flight.release(state.finish(step.parts))
        if state.is_finished:
            self._flight.is_here(state)

    def _lost(self, index: int) -> None:
        state = self._free(index)
        self._recovery.undone(index)
        if state is not None and state.error is None:
            self._flight.restart(state)

    def _not_loaded(self, event: Failed) -> None:
        worker = self.pool.workers[event.worker]
        if not worker.is_up or event.worker in self._recovery or not worker.holds.issuperset(worker.owns):
            raise event.error
        worker.requested = worker.holds
        self._rebalancing.end()  # it goes on with the parts that it holds

    def _died(self, event: Died) -> None:
        worker = self.pool.workers[event.worker]
        given = [(one.step, self._flight.leave(one.state)) for one in worker.steps]
        self._recovery.died(event.worker)
        self._rebalancing.next = None
        self._history.died(event.worker)
        self.log.notify(self.pool.died(event.worker, event.reason, for_good=event.is_permanent), None)
        self.log.deaths.append((event.worker, worker.death_reason, self.executor.now()))
        if worker.is_gone:
            self._rebalancing.end()  # the load balance is for all workers
            self._employ_all()
        for number, (step, state) in enumerate(given):
            if state is not None:
                self._repeat(step, state, worker, has_run=number == 0)

    def _repeat(self, step: Step, state: RequestState, worker: WorkerState, *, has_run: bool) -> None:
        """Repeat a step that was lost with its worker, unless it ended too many."""
        first = step.parts[0]
        state.deaths[first] += has_run
        if state.deaths[first] >= MAX_KILLS:
            worker.deaths = 0  # the request is to blame
            names = ", ".join(self._routing.parts[part].name for part in step.parts)
            message = f"{state.title} ended its worker {MAX_KILLS} times in {names} ({worker.death_reason})"
            self._flight.fail(state, RunError(message, hint="leave it out; or go on without it with `on_error='skip'`"))
        elif first in state.reported:
            # Others went on with what a repeated step would make again: parts may draw numbers.
            self._flight.restart(state)
        else:
            state.taken.difference_update(step.parts)
            self._flight.add_runnable(state, filter(state.is_runnable, step.parts))

    def _apply(self, bounds: Bounds | None) -> None:
        """Parts were moved to other workers, if `bounds` are given."""
        if bounds is not None:
            self.log.rebalances.append((bounds, self.executor.now()))
            if self.executor.has_links:
                parts = (f"{worker.name} {len(worker.owns)}" for worker in self.pool.workers)
                self.log.notify(f"parts moved, there are now: {', '.join(parts)}", None)
            self._employ_all()

    def _employ_all(self) -> None:
        for index in range(len(self.pool.workers)):
            self._employ(index)
