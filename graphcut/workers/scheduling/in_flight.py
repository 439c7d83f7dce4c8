"""The requests in flight: their tensors, what can run for them, and their answers."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ...core.errors import RunError
from ...running.values import Value
from ..executors.protocol import Done, Executor, Handle, Made
from ..run_log import RunLog
from .requests import Request, RequestState, Routing
from .state_recovery import StepHistory

MAX_LOSSES: Final = 5  #: how often a request is restarted after its tensors were lost.

Answer = Mapping[str, Value] | RunError  #: the outputs of a request, or why it failed.


class RequestsInFlight:
    """The requests that have come and are not answered.

    Attributes:
        states: how far each is, by its number.
    """

    def __init__(
        self, routing: Routing, executor: Executor, history: StepHistory, log: RunLog, take: Callable[[int], None]
    ) -> None:
        """`take` is called with each part that can run for one more request."""
        self.states: dict[int, RequestState] = {}
        self._routing, self._executor, self._history = routing, executor, history
        self._log, self._take = log, take
        self._runnable: list[list[int]] = [[] for _ in routing.parts]

    def start(self, number: int, request: Request, before: RequestState | None = None) -> None:
        """Take in a request, as one more attempt if `before` is given."""
        if (sequence := request.template.sequence) is not None:
            self._history.fork(sequence, request.template)
        used = [name for name in request.feeds if name in self._routing.readers or name in self._routing.outputs]
        handles = {name: self._executor.put(request.feeds[name], name) for name in used}
        state = self.states[number] = RequestState(number, request, self._routing, handles, before)
        self.add_runnable(state, filter(state.is_runnable, range(len(self._routing.parts))))

    def is_here(self, state: RequestState) -> bool:
        """Is there an error, or are all outputs on this machine?"""
        return state.error is not None or self._executor.fetch([state.handles[name] for name in state.outputs])

    def deliver(self, state: RequestState) -> Answer | None:
        """The answer, or its error if that is a RunError; None if it was lost, and the request was restarted."""
        if state.error is None:
            try:
                answer: Answer = {name: self._executor.get(state.handles[name], name) for name in state.outputs}
            except LookupError:
                self.restart(state)
                return None
        elif isinstance(state.error, RunError):
            answer = state.error
        else:
            raise state.error
        self.drop(state)
        del self.states[state.number]
        self._log.delivered(state.number, self._executor.now(), failed=state.error is not None)
        return answer

    def drop(self, state: RequestState) -> None:
        """Release all tensors of a request, as soon as none of its steps runs."""
        state.is_dropped = True
        if not state.running:
            self.release(state.handles.values())
            state.handles = {}

    def release(self, handles: Iterable[Handle]) -> None:
        """Release tensors."""
        for handle in handles:
            self._executor.release(handle)

    def restart(self, state: RequestState) -> None:
        """Restart a request from its inputs, after tensors of it were lost with a machine."""
        self.drop(state)
        if (sequence := state.request.template.sequence) is not None:
            self._history.undo(sequence, state.number)
        if state.attempt < MAX_LOSSES:
            self._log.restarts += 1
            self.start(state.number, state.request, state)
        else:
            hint = "check that its machines stay up and that nothing deletes files in shared memory"
            state.error = RunError(f"the tensors of {state.title} were lost {state.attempt + 1} times", hint=hint)

    def add_runnable(self, state: RequestState, parts: Iterable[int]) -> None:
        """Parts can run for a request."""
        for part in parts:
            heapq.heappush(self._runnable[part], state.number)
            self._log.runnable(part, state.number, self._executor.now())
            self._take(part)

    def oldest(self, parts: Sequence[int]) -> tuple[RequestState, int] | None:
        """The oldest request that one of `parts` can run for, and that part. Removes it from the queue."""
        best: tuple[int, int] | None = None
        for part in parts:
            queue = self._runnable[part]
            while queue and not (queue[0] in self.states and self.states[queue[0]].is_runnable(part)):
                heapq.heappop(queue)  # another step included the part, or the request has ended or was restarted
            if queue and (best is None or queue[0] < best[0]):
                best = (queue[0], part)
        if best is None:
            return None
        heapq.heappop(self._runnable[best[1]])
        return self.states[best[0]], best[1]

    def put_back(self, state: RequestState, part: int) -> None:
        """Queue again what `oldest` returned."""
        heapq.heappush(self._runnable[part], state.number)

    def add(self, state: RequestState, event: Made | Done) -> None:
        """Add what a step has made to the tensors of its request."""
        # A part that passes an input on writes a tensor that exists already.
        self.release([handle for name, handle in event.outputs.items() if name in state.handles])
        made = {name: handle for name, handle in event.outputs.items() if name not in state.handles}
        state.makers.update(dict.fromkeys(made, event.worker))
        self.add_runnable(state, [part for part in state.add(made) if part not in state.taken])

    def leave(self, state: RequestState | None) -> RequestState | None:
        """A step has ended. Its request; None if that was restarted or answered, or if there is none."""
        if state is None:
            return None
        state.running -= 1
        if state.is_dropped:
            self.drop(state)
        return state if self.states.get(state.number) is state else None

    def fail(self, state: RequestState | None, error: Exception) -> None:
        """A request has failed; the first error counts."""
        if state is not None:
            state.error = state.error or error
            self.drop(state)
