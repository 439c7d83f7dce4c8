"""The worker pool: which worker owns and holds which parts, what it runs, and what happens when it ends."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from ...core.errors import RunError
from ...core.units import size
from ..executors.protocol import Executor, Step
from .requests import RequestState, ScheduledPart

#: how long after its first, second and third death a worker is restarted. After a fourth one without finishing a step
#: in between, it is not restarted any more.
_PAUSES_S: Final = (0.0, 0.2, 1.0)
_HUNG: Final = "it hung"
LOOK_S: Final = 0.25  #: the scheduler reads its clock at least so often while it waits for a worker.


class WatchClock:
    """The time in which the scheduler watched its workers, for deadlines and restarts.

    Between two readings it advances by `LOOK_S` at most. More real time means that this process, or the whole machine,
    was stopped: workers could not report, or could not work.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._read_s = executor.now()
        self._left_out_s = 0.0

    def now(self) -> float:
        """The watched time in seconds."""
        time_s = self._executor.now()
        self._left_out_s += max(0.0, time_s - self._read_s - LOOK_S)
        self._read_s = time_s
        return time_s - self._left_out_s


class GivenStep(NamedTuple):
    """A step that a worker was given."""

    step: Step
    state: RequestState | None  #: its request; None for a step that rebuilds states.
    given_s: float  #: when, on the clock of the executor.


class WorkerState(msgspec.Struct):
    """The state of a worker."""

    name: str  #: its name in messages: its device, or `worker N`.
    memory_bytes: int | None  #: the memory limit for its parts; None without one.
    owns: tuple[int, ...]  #: the parts that it runs.
    holds: frozenset[int] = frozenset()  #: the parts that it has loaded.
    requested: frozenset[int] = frozenset()  #: the parts that it was last told to hold.
    #: the step that it runs and, behind it, the one that it goes on with by itself.
    steps: deque[GivenStep] = msgspec.field(default_factory=deque)
    deadline: float | None = None  #: when it is considered hung.
    patience_s: float = 0.0  #: how long before its deadline that was set.
    deaths: int = 0  #: how often it ended since it last finished a step.
    is_up: bool = False  #: it has loaded its parts and takes steps.
    is_gone: bool = False  #: it will not be restarted.
    death_reason: str = ""  #: why it ended last.
    #: parts that it holds although others own them, so that it can take them over without loading.
    overlap: frozenset[int] = frozenset()

    @property
    def is_idle(self) -> bool:
        """Does it wait for a step?"""
        return self.is_up and not self.steps

    @property
    def can_run(self) -> list[int]:
        """The parts that it owns and holds, ascending."""
        return [part for part in self.owns if part in self.holds]


class WorkerPool:
    """All workers of a run."""

    def __init__(
        self, executor: Executor, workers: Sequence[WorkerState], parts: Sequence[ScheduledPart], start_s: float
    ) -> None:
        """Starts nothing."""
        self.workers = list(workers)
        self.parts = parts
        self._executor = executor
        self.start_s = start_s  #: how long a worker may take to load its parts, and for a step of unknown duration.
        self._clock = WatchClock(executor)
        self._restarts: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, int]] = []
        self._asked_s = 0.0  # when it was asked last which links are down
        self._takers: list[list[int]] = [[] for _ in parts]
        self._listed: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Start all workers."""
        for index in range(len(self.workers)):
            self._start(index)

    def runnable_on(self, index: int) -> list[int]:
        """The parts with which a step can begin that is given to a worker now.

        A worker that runs a step is given one more, so that it need not wait for the scheduler then. Not if another
        worker owns the part, too, and may be idle earlier; if states are rebuilt; or if it has parts to drop first.
        """
        worker = self.workers[index]
        if worker.is_idle:
            return worker.can_run
        if not (self._executor.queues and worker.is_up and len(worker.steps) == 1) or self._unused(index):
            return []
        step, state, _ = worker.steps[0]
        if state is None or step.exchange is not None:
            return []
        return [part for part in worker.can_run if sum(part in other.owns for other in self.workers) == 1]

    def taker(self, part: int) -> int | None:
        """The first worker that can be given a step with a part."""
        queue = self._takers[part]
        while queue and part not in self.runnable_on(queue[0]):
            self._listed.discard((part, heapq.heappop(queue)))
        return queue[0] if queue else None

    def list_taker(self, index: int) -> None:
        """List a worker for `taker`, which then need not look at all workers: there may be thousands."""
        for part in self.runnable_on(index):
            if (part, index) not in self._listed:
                self._listed.add((part, index))
                heapq.heappush(self._takers[part], index)

    def hold(self, index: int, more: Iterable[int]) -> None:
        """Tell a running worker to load more parts, unless it was told already."""
        requested = self.workers[index].requested
        if not requested.issuperset(more):
            self._hold_exactly(index, requested.union(more))

    def drop_unused(self, index: int) -> None:
        """Tell an idle worker with a memory limit to drop the parts that it does not own any more."""
        if unused := self._unused(index):
            self._hold_exactly(index, self.workers[index].requested - unused)

    def _unused(self, index: int) -> frozenset[int]:
        worker = self.workers[index]
        if worker.memory_bytes is None:
            return frozenset()
        return worker.requested.difference(worker.owns, worker.overlap)

    def fits(self, index: int, more: Iterable[int]) -> bool:
        """Has a worker memory for more parts, in addition to all it holds?"""
        worker = self.workers[index]
        if worker.memory_bytes is None:
            return True
        parts = {*worker.owns, *worker.overlap, *worker.requested, *more}
        return sum(self.parts[i].memory_bytes for i in parts) <= worker.memory_bytes

    def left_s(self) -> float | None:
        """How long the scheduler may wait for an event: until the next restart or deadline, at most `LOOK_S`."""
        while self._deadlines and self.workers[self._deadlines[0][1]].deadline != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)  # it was met
        due = min([time for time, _ in (*self._restarts[:1], *self._deadlines[:1])], default=None)
        return None if due is None else min(LOOK_S, max(0.0, due - self._clock.now()))

    def excuse(self) -> None:
        """Look, once a second, which links are or were down, and give their workers their whole time again."""
        if not self._deadlines or self._clock.now() < self._asked_s + 1.0:
            return
        self._asked_s = self._clock.now()
        for index, worker in enumerate(self.workers):
            if worker.deadline is not None and self._executor.is_excused(index):
                self.set_deadline(index, worker.patience_s)

    def restart_and_kill(self) -> None:
        """Restart the workers whose pause is over, and kill those whose deadline has passed."""
        now = self._clock.now()
        while self._restarts and self._restarts[0][0] <= now:
            self._start(heapq.heappop(self._restarts)[1])
        while self._deadlines and self._deadlines[0][0] <= now:
            time, index = heapq.heappop(self._deadlines)
            worker = self.workers[index]
            if worker.deadline == time and self._executor.is_excused(index):
                self.set_deadline(index, worker.patience_s)
            elif worker.deadline == time:
                worker.deadline, worker.death_reason = None, _HUNG
                self._executor.kill(index)

    def set_deadline(self, index: int, seconds: float) -> None:
        """Consider a worker hung after `seconds` from now."""
        if self._executor.can_die:
            time = self._clock.now() + seconds
            self.workers[index].deadline, self.workers[index].patience_s = time, seconds
            heapq.heappush(self._deadlines, (time, index))

    def loaded(self, index: int, parts: frozenset[int]) -> None:
        """A worker has loaded `parts`."""
        worker = self.workers[index]
        worker.holds = parts
        if not worker.is_up:
            worker.is_up, worker.deadline = True, None
        self.hold(index, worker.owns)  # it may have got some while it loaded

    def died(self, index: int, reason: str, *, for_good: bool) -> str:
        """A worker ended: restart it later, or give its parts to others. Says so.

        Raises:
            RunError: no other worker has memory for a part.
        """
        worker = self.workers[index]
        worker.death_reason = worker.death_reason or reason
        worker.is_up, worker.deadline = False, None
        worker.steps.clear()
        worker.holds = worker.requested = frozenset()
        worker.deaths += 1
        if for_good or worker.deaths > len(_PAUSES_S):
            worker.is_gone = True
            heirs = self._reassign(index)
            taken = (f"{self.workers[i].name} is to take over {self._names(parts)}" for i, parts in heirs.items())
            return "; ".join((f"{worker.name} is lost: {worker.death_reason}", *taken))
        heapq.heappush(self._restarts, (self._clock.now() + _PAUSES_S[worker.deaths - 1], index))
        return f"{worker.name} ended: {worker.death_reason}; it is to be started again"

    def _start(self, index: int) -> None:
        worker = self.workers[index]
        worker.death_reason, worker.requested = "", worker.overlap.union(worker.owns)
        self.set_deadline(index, self.start_s)
        self._executor.start(index, sorted(worker.requested))

    def _names(self, parts: Iterable[int]) -> str:
        return ", ".join(self.parts[part].name for part in parts)

    def _reassign(self, lost: int) -> dict[int, list[int]]:
        """Give each part that only `lost` owns to a worker with memory for it: one that holds it, else the nearest.

        Returns the parts by their new worker.
        """
        alive = [i for i, worker in enumerate(self.workers) if not worker.is_gone]
        given: dict[int, list[int]] = {}
        for part in self.workers[lost].owns:
            if any(part in self.workers[i].owns for i in alive):
                continue
            heirs = sorted(alive, key=lambda i: (part not in self.workers[i].holds, abs(i - lost), i))
            heir = next((i for i in heirs if self.fits(i, [*given.get(i, []), part])), None)
            if heir is None:
                raise self._no_memory(lost, part, has_others=bool(alive))
            given.setdefault(heir, []).append(part)
        for heir, parts in given.items():
            worker = self.workers[heir]
            worker.owns = tuple(sorted({*worker.owns, *parts}))
            if worker.is_up:
                self.hold(heir, parts)
        self.workers[lost].owns = ()
        return given

    def _no_memory(self, lost: int, part: int, *, has_others: bool) -> RunError:
        worker = self.workers[lost]
        needed = f"{self.parts[part].name}, which needs {size(self.parts[part].memory_bytes)}"
        others = f"no other worker has memory for {needed}" if has_others else f"no worker is left for {needed}"
        is_slow = worker.death_reason == _HUNG
        hint = "give it longer (`deadline_s`) if it is only slow" if is_slow else "bring the device back"
        message = f"{worker.name} is lost ({worker.death_reason}), and {others}"
        return RunError(message, hint=f"{hint}, or plan again without it")

    def _hold_exactly(self, index: int, parts: frozenset[int]) -> None:
        self.workers[index].requested = parts
        self._executor.hold(index, sorted(parts))
