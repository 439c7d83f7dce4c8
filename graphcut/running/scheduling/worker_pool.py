"""Who does what: which worker owns and holds which parts, what it is busy with, and what happens when one is lost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ...core.errors import RunError
from ...core.units import size
from ..executors.protocol import Executor, Step
from .requests import ScheduledPart

MAX_DEATHS: Final = 3
"""So often may a worker end without having finished a step in between before its place counts as lost."""

_HUNG: Final = "it hung"

_PAUSES_S: Final = (0.0, 0.2, 1.0)
"""How long after its first, second and third death a worker is started again."""


@dataclass(slots=True)
class WorkerState:
    """One worker.

    Attributes:
        name: what messages call it: its device, or its number.
        memory_bytes: what its parts may take together; None for no limit.
        owns: the parts it is to run.
        holds: the parts it has loaded.
        asked: the parts it was last told to hold.
        busy: the step that it runs.
        deadline: when it is taken for hung.
        deaths: how often it ended since it last finished a step.
        is_up: it is loaded, and takes steps.
        is_gone: it is not coming back.
        lost: why it ended last.
        also: parts that it holds besides, so that they can become its own without loading.
    """

    name: str
    memory_bytes: int | None
    owns: tuple[int, ...]
    holds: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    busy: Step | None = None
    deadline: float | None = None
    deaths: int = 0
    is_up: bool = False
    is_gone: bool = False
    lost: str = ""
    also: frozenset[int] = frozenset()

    @property
    def is_idle(self) -> bool:
        """Can it take a step?"""
        return self.is_up and self.busy is None

    @property
    def can_run(self) -> list[int]:
        """The parts that it owns and holds, ascending."""
        return [part for part in self.owns if part in self.holds]


class WorkerPool:
    """All workers of a run.

    Attributes:
        members: the workers, by number.
        units: the parts, by their places.
    """

    def __init__(
        self, executor: Executor, workers: Sequence[WorkerState], parts: Sequence[ScheduledPart], start_s: float
    ) -> None:
        """Nobody is started yet; `start_s` is how long one may take to load its parts."""
        self.workers = list(workers)
        self._executor = executor
        self.parts = parts
        self._start_s = start_s
        self._again: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, int]] = []
        self._idle: list[list[int]] = [[] for _ in parts]
        self._listed: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Start them all."""
        for number in range(len(self.workers)):
            self._start(number)

    def idle_owner(self, part: int) -> int | None:
        """The first idle worker that may run a part."""
        queue = self._idle[part]
        while queue and not (self.workers[queue[0]].is_idle and part in self.workers[queue[0]].can_run):
            self._listed.discard((part, heapq.heappop(queue)))
        return queue[0] if queue else None

    def idle(self, number: int) -> None:
        """A worker has nothing to do. It is found again without a look at all workers: there may be thousands."""
        for part in self.workers[number].can_run:
            if (part, number) not in self._listed:
                self._listed.add((part, number))
                heapq.heappush(self._idle[part], number)

    def own(self, owned: Sequence[tuple[int, ...]]) -> None:
        """Parts change hands: what each worker owns from now on."""
        for one, parts in zip(self.workers, owned, strict=True):
            one.owns = parts

    def hold(self, number: int, more: Iterable[int]) -> None:
        """Let a running worker load more parts, if it has not been told to."""
        one = self.workers[number]
        if not one.asked.issuperset(more):
            self._hold_exactly(number, one.asked.union(more))

    def tidy(self, number: int) -> None:
        """Let an idle worker of little memory drop parts that changed hands."""
        one = self.workers[number]
        kept = one.also.union(one.owns)
        if one.memory_bytes is not None and not kept.issuperset(one.asked):
            self._hold_exactly(number, kept)

    def fits(self, number: int, more: Iterable[int]) -> bool:
        """Has a worker memory for more parts, besides all it holds?"""
        one = self.workers[number]
        if one.memory_bytes is None:
            return True
        return sum(self.parts[i].memory_bytes for i in {*one.owns, *one.also, *one.asked, *more}) <= one.memory_bytes

    def next_time(self) -> float | None:
        """When something is due: a worker to be started again, or one to be taken for hung."""
        while self._deadlines and self.workers[self._deadlines[0][1]].deadline != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)  # it was met
        return min([time for time, _ in (*self._again[:1], *self._deadlines[:1])], default=None)

    def look_after(self) -> None:
        """Start again who is due, and end who is hung."""
        now = self._executor.now()
        while self._again and self._again[0][0] <= now:
            self._start(heapq.heappop(self._again)[1])
        while self._deadlines and self._deadlines[0][0] <= now:
            time, number = heapq.heappop(self._deadlines)
            one = self.workers[number]
            if one.deadline == time:
                one.deadline, one.lost = None, _HUNG
                self._executor.kill(number)

    def within(self, number: int, seconds: float) -> None:
        """A worker that needs longer than `seconds` from now is taken for hung."""
        if self._executor.can_die:
            self.workers[number].deadline = time = self._executor.now() + seconds
            heapq.heappush(self._deadlines, (time, number))

    def ready(self, number: int, parts: frozenset[int]) -> None:
        """A worker has loaded parts."""
        one = self.workers[number]
        one.holds = parts
        if not one.is_up:
            one.is_up, one.deadline = True, None
        self.hold(number, one.owns)  # it may have inherited some while it loaded

    def forgive(self, number: int) -> None:
        """It was not the worker's fault that it ended."""
        self.workers[number].deaths = 0

    def died(self, number: int, why: str, *, for_good: bool) -> None:
        """A worker is gone: start it again, or hand over what it owned.

        Raises:
            RunError: its place is lost, and no other worker has memory for one of its parts.
        """
        one = self.workers[number]
        one.lost = one.lost or why
        one.is_up, one.busy, one.deadline, one.holds, one.asked = False, None, None, frozenset(), frozenset()
        one.deaths += 1
        if for_good or one.deaths > MAX_DEATHS:
            one.is_gone = True
            self._hand_over(number)
        else:
            heapq.heappush(self._again, (self._executor.now() + _PAUSES_S[one.deaths - 1], number))

    def _start(self, number: int) -> None:
        one = self.workers[number]
        one.lost, one.asked = "", one.also.union(one.owns)
        self.within(number, self._start_s)
        self._executor.start(number, sorted(one.asked))

    def _hand_over(self, number: int) -> None:
        lost = self.workers[number]
        alive = [i for i, one in enumerate(self.workers) if not one.is_gone]
        given: dict[int, list[int]] = {}
        for part in lost.owns:
            if any(part in self.workers[i].owns for i in alive):
                continue
            heirs = sorted(alive, key=lambda i: (part not in self.workers[i].holds, abs(i - number), i))
            heir = next((i for i in heirs if self.fits(i, [*given.get(i, []), part])), None)
            if heir is None:
                needed = f"{self.parts[part].name}, which needs {size(self.parts[part].memory_bytes)}"
                others = f"no other worker has room for {needed}" if alive else f"no worker is left for {needed}"
                raise RunError(
                    f"{lost.name} is lost ({lost.lost}), and {others}",
                    hint="give it longer (--deadline) if it is only slow, or plan again without it"
                    if lost.lost == _HUNG
                    else "bring the device back, or plan again without it",
                )
            given.setdefault(heir, []).append(part)
        for heir, parts in given.items():
            one = self.workers[heir]
            one.owns = tuple(sorted({*one.owns, *parts}))
            if one.is_up:
                self.hold(heir, parts)
        lost.owns = ()

    def _hold_exactly(self, number: int, parts: frozenset[int]) -> None:
        self.workers[number].asked = parts
        self._executor.hold(number, sorted(parts))
