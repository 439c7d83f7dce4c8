"""How long the inputs of steps take to their workers, and which links became slower during the run."""

from collections import deque
from statistics import mean, median
from typing import Final, NamedTuple

import msgspec

from ...core.units import duration, size
from ..run_log import Coming

MESSAGES: Final = 5  #: so many tell what is usual, and so many that workers waited for what is so now.
SLOWER: Final = 3.0  #: a link is slower if messages take at least so many times as long as usual,
LEAST_S: Final = 0.1  #: and so many seconds longer.
AGAIN: Final = 1.5  #: it is fast again if they take less than so many times as long, or no worker waits for them.
_TICK_S: Final = 1e-6  #: the least time: clocks that are too coarse say 0.


class _Message(NamedTuple):
    size_bytes: float
    seconds: float  #: what it took.
    computed_s: float  #: what the step computed afterwards.


class _Link(msgspec.Struct):
    """What one worker sends to another."""

    usual: _Message | None = None  #: the medians of the first messages.
    #: the first messages (one that was not waited for took no longer than it says), and what those took that were.
    first: list[_Message] = []
    waited_for_s: list[float] = []
    hidden: int = 0  #: how many of the last ones came while the step before was computed.
    #: those that were waited for.
    last: deque[_Message] = msgspec.field(default_factory=lambda: deque(maxlen=MESSAGES))
    #: how long a byte of the last messages kept the worker, whether they were waited for or not.
    s_per_byte: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=2 * MESSAGES))
    ratio: float = 1.0  #: how many times as long as usual the last messages took, at least.
    is_slower: bool = False

    def add(self, message: _Message, coming: Coming) -> None:
        """Take note of a message. One of less than half of the usual size says little about a link."""
        if self.usual is not None and 2 * message.size_bytes < self.usual.size_bytes:
            return
        self.s_per_byte.append((coming.waited_s + message.computed_s * coming.was_early) / message.size_bytes)
        self.hidden = 0 if coming.is_waited_for else self.hidden + 1
        if self.usual is None:
            self.first.append(message)
            self.waited_for_s += [message.seconds] * coming.is_waited_for
            if len(self.first) == MESSAGES:
                sizes, seconds, computed = zip(*self.first, strict=True)
                usual_s = min(median(seconds), median(self.waited_for_s or seconds))
                self.usual = _Message(median(sizes), usual_s, median(computed))
        elif coming.is_waited_for:
            self.last.append(message)
            if len(self.last) == MESSAGES:
                self._judge(self.usual)
        elif self.hidden == MESSAGES:
            self.is_slower = False

    def _judge(self, usual: _Message) -> None:
        # A machine that also computes for longer is busy, or the messages are larger: neither is its link.
        # The median, since a short computation may wait for its turn on a core for longer than it takes.
        busy = median(m.computed_s for m in self.last) / usual.computed_s
        times = [max(1.0, m.size_bytes / usual.size_bytes, busy) for m in self.last]
        ratios = [one.seconds / (usual.seconds * more) for one, more in zip(self.last, times, strict=True)]
        longer_s = [one.seconds - usual.seconds * more for one, more in zip(self.last, times, strict=True)]
        self.ratio = min(ratios)
        if self.ratio >= SLOWER and min(longer_s) >= LEAST_S:
            self.is_slower = True
        elif max(ratios) < AGAIN:
            self.is_slower = False


class LinkTimes:
    """The links of a run, by the names of the workers at their ends; "" is the driver."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], _Link] = {}
        self._slower: dict[str, float] = {}  # of the link that each worker used last
        self._sources: dict[str, str] = {}  # where most of the last message to each worker came from

    def measured(self, source: str, worker: str, size_bytes: int, coming: Coming, computed_s: float) -> str:
        """The inputs of a step came: `size_bytes` from elsewhere, most from `source`. It computed for `computed_s`.

        Returns a sentence if the link became slower, or is as fast as before again.
        """
        link = self._links.setdefault((source, worker), _Link())
        before = link.is_slower
        link.add(_Message(size_bytes, max(coming.took_s, _TICK_S), max(computed_s, _TICK_S)), coming)
        self._sources[worker] = source
        self._slower[worker] = mean(link.s_per_byte) if link.is_slower else 0.0
        if before == link.is_slower:
            return ""
        what = f"sending {f'from {source}' if source else 'inputs'} to {worker}"
        if before:
            return f"{what} is fast enough again"
        took = f"{duration(coming.took_s)} for {size(size_bytes)}"
        return f"{what} takes {link.ratio:.0f} times as long as at the start: {took}"

    def slower_s_per_byte(self, worker: str) -> float:
        """How long a byte keeps a worker that receives while it computes.

        0 if that has not changed, or if what is sent to the sender takes longer, too: then it is the sender's cable.
        """
        source = self._sources.get(worker, "")
        return 0.0 if self._slower.get(source) else self._slower.get(worker, 0.0)
