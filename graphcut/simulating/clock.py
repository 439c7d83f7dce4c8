"""The virtual clock: simulated time advances from one scheduled event to the next."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf


@dataclass(slots=True)
class ScheduledEvent:
    """An action that runs at a known time, unless the event is cancelled before."""

    action: Callable[[], None] = lambda: None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Never run the action. Has no effect if it has run."""
        self.is_cancelled = True


class Clock:
    """A queue of events in the order of their times; events at equal times run in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0  #: the simulated time. May be set to a time before the next event.
        self._queue: list[tuple[float, int, ScheduledEvent]] = []
        self._numbers = count()

    @property
    def next_s(self) -> float:
        """The time of the next event; infinite if there is none."""
        while self._queue and self._queue[0][2].is_cancelled:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else inf

    def after(self, seconds: float, action: Callable[[], None]) -> ScheduledEvent:
        """Schedule an action `seconds` from now."""
        return self.at(self.now_s + seconds, action)

    def at(self, time_s: float, action: Callable[[], None]) -> ScheduledEvent:
        """Schedule an action at a time that is not in the past."""
        event = ScheduledEvent(action)
        heapq.heappush(self._queue, (time_s, next(self._numbers), event))
        return event

    def step(self) -> None:
        """Advance to the next event, and run it."""
        self.now_s = self.next_s
        heapq.heappop(self._queue)[2].action()
