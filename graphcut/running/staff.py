"""Who does what: which worker owns and holds which parts, what it is busy with, and what happens when one is lost."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import RunError
from ..units import size
from .crew import Crew, Step
from .flights import Unit

MAX_DEATHS: Final = 3
"""So often may a worker end without having finished a step in between before its place counts as lost."""

_PAUSES_S: Final = (0.0, 0.2, 1.0)
"""How long after its first, second and third death a worker is started again."""


@dataclass(slots=True)
class Member:
    """One worker.

    Attributes:
        name: what messages call it: its device, or its number.
        memory_bytes: what its parts may take together; None for no limit.
        owns: the parts it is to run.
        holds: the parts it has loaded.
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


class Staff:
    """All workers of a run.

    Attributes:
        members: the workers, by number.
    """

    def __init__(self, crew: Crew, members: Sequence[Member], units: Sequence[Unit], start_s: float) -> None:
        """Nobody is started yet; `start_s` is how long one may take to load its parts."""
        self.members = list(members)
        self._crew = crew
        self._units = units
        self._start_s = start_s
        self._again: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, int]] = []

    def begin(self) -> None:
        """Start them all."""
        for number in range(len(self.members)):
            self._start(number)

    def owners(self, part: int) -> Iterator[int]:
        """The workers that may run a part, and hold it."""
        return (i for i, one in enumerate(self.members) if part in one.owns and part in one.holds and not one.is_gone)

    def next_time(self) -> float | None:
        """When something is due: a worker to be started again, or one to be taken for hung."""
        while self._deadlines and self.members[self._deadlines[0][1]].deadline != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)  # it was met
        return min([time for time, _ in (*self._again[:1], *self._deadlines[:1])], default=None)

    def look_after(self) -> None:
        """Start again who is due, and end who is hung."""
        now = self._crew.now()
        while self._again and self._again[0][0] <= now:
            self._start(heapq.heappop(self._again)[1])
        while self._deadlines and self._deadlines[0][0] <= now:
            time, number = heapq.heappop(self._deadlines)
            one = self.members[number]
            if one.deadline == time:
                one.deadline, one.lost = None, "it hung"
                self._crew.end(number)

    def within(self, number: int, seconds: float) -> None:
        """A worker that needs longer than `seconds` from now is taken for hung."""
        if self._crew.can_die:
            self.members[number].deadline = time = self._crew.now() + seconds
            heapq.heappush(self._deadlines, (time, number))

    def ready(self, number: int, parts: frozenset[int]) -> None:
        """A worker has loaded parts."""
        one = self.members[number]
        one.holds = parts
        if not one.is_up:
            one.is_up, one.deadline = True, None
        if not parts.issuperset(one.owns):  # it inherited some while it loaded
            self._crew.hold(number, sorted({*parts, *one.owns}))

    def died(self, number: int, why: str, *, for_good: bool) -> None:
        """A worker is gone: start it again, or hand over what it owned.

        Raises:
            RunError: its place is lost, and no other worker has memory for one of its parts.
        """
        one = self.members[number]
        one.lost = one.lost or why
        one.is_up, one.busy, one.deadline, one.holds = False, None, None, frozenset()
        one.deaths += 1
        if for_good or one.deaths > MAX_DEATHS:
            one.is_gone = True
            self._hand_over(number)
        else:
            heapq.heappush(self._again, (self._crew.now() + _PAUSES_S[one.deaths - 1], number))

    def _start(self, number: int) -> None:
        one = self.members[number]
        one.lost = ""
        self.within(number, self._start_s)
        self._crew.start(number, sorted({*one.owns, *one.also}))

    def _hand_over(self, number: int) -> None:
        lost = self.members[number]
        alive = [i for i, one in enumerate(self.members) if not one.is_gone]
        given: dict[int, list[int]] = {}
        for part in lost.owns:
            if any(part in self.members[i].owns for i in alive):
                continue
            heirs = sorted(alive, key=lambda i: (part not in self.members[i].holds, abs(i - number), i))
            heir = next((i for i in heirs if self._fits(i, [*given.get(i, []), part])), None)
            if heir is None:
                raise RunError(
                    f"{lost.name} is lost ({lost.lost}), and no other worker has room for "
                    f"{self._units[part].name}, which needs {size(self._units[part].needs_bytes)}",
                    hint="bring the device back, or plan again without it",
                )
            given.setdefault(heir, []).append(part)
        for heir, parts in given.items():
            one = self.members[heir]
            one.owns = tuple(sorted({*one.owns, *parts}))
            if one.is_up and not one.holds.issuperset(parts):
                self._crew.hold(heir, sorted({*one.holds, *parts}))
        lost.owns = ()

    def _fits(self, number: int, more: Sequence[int]) -> bool:
        one = self.members[number]
        if one.memory_bytes is None:
            return True
        return sum(self._units[i].needs_bytes for i in {*one.owns, *one.also, *one.holds, *more}) <= one.memory_bytes
