"""Time that passes only from one event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class ScheduledEvent:
    """Something that is to happen.

    Attributes:
        at_s: when.
        what: what is done then; None once it is called off, or done.
    """

    at_s: float
    what: Callable[[], None] | None

    def call_off(self) -> None:
        """It is not to happen."""
        self.what = None


class Clock:
    """What is to happen, in order; of what happens at the same time, what was set first.

    Attributes:
        now_s: the time.
    """

    def __init__(self) -> None:
        """It is time 0, and nothing is to happen."""
        self.now_s = 0.0
        self._alarms: list[tuple[float, int, ScheduledEvent]] = []
        self._set = 0

    @property
    def next_s(self) -> float:
        """When something happens next; infinite if nothing does."""
        while self._alarms and self._alarms[0][2].what is None:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else inf

    def after(self, seconds: float, what: Callable[[], None]) -> ScheduledEvent:
        """Let `what` happen in so many seconds."""
        return self.at(self.now_s + seconds, what)

    def at(self, time_s: float, what: Callable[[], None]) -> ScheduledEvent:
        """Let `what` happen at a time that is not past."""
        alarm = ScheduledEvent(time_s, what)
        heapq.heappush(self._alarms, (alarm.at_s, self._set, alarm))
        self._set += 1
        return alarm

    def step(self) -> None:
        """Go to what happens next, and let it happen."""
        self.now_s = self.next_s
        alarm = heapq.heappop(self._alarms)[2]
        what, alarm.what = alarm.what, None
        if what is not None:
            what()

    def go_to(self, time_s: float) -> None:
        """Go to a time at which nothing has happened yet."""
        self.now_s = max(self.now_s, time_s)
