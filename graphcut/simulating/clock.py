"""The virtual clock: simulated time advances from one scheduled event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class ScheduledEvent:
    """An action at a time; the action is None once it was cancelled or has run."""

    time_s: float
    action: Callable[[], None] | None

    def cancel(self) -> None:
        """Drop the action."""
        self.action = None


class Clock:
    """A queue of events in the order of their times; events at equal times run in the order they were scheduled.

    Attributes:
        now_s: the simulated time, from 0.
    """

    def __init__(self) -> None:
        """Time 0, without events."""
        self.now_s = 0.0
        self._queue: list[tuple[float, int, ScheduledEvent]] = []
        self._count = 0

    @property
    def next_s(self) -> float:
        """The time of the next event; infinite if there is none."""
        while self._queue and self._queue[0][2].action is None:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else inf

    def after(self, seconds: float, action: Callable[[], None]) -> ScheduledEvent:
        """Schedule an action `seconds` from now."""
        return self.at(self.now_s + seconds, action)

    def at(self, time_s: float, action: Callable[[], None]) -> ScheduledEvent:
        """Schedule an action at a time that is not in the past."""
        event = ScheduledEvent(time_s, action)
        heapq.heappush(self._queue, (time_s, self._count, event))
        self._count += 1
        return event

    def step(self) -> None:
        """Advance to the next event, and run it."""
        self.now_s = self.next_s
        event = heapq.heappop(self._queue)[2]
        action, event.action = event.action, None
        if action is not None:
            action()

    def advance_to(self, time_s: float) -> None:
        """Advance to a time before the next event."""
        self.now_s = max(self.now_s, time_s)
