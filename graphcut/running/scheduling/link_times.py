"""How long the inputs of steps take to their workers, and which links became slower during the run."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from ...core.units import duration, size

MESSAGES: Final = 5  #: so many tell what is usual, and so many in a row what is so now.
SLOWER: Final = 3.0  #: a link is slower if messages take at least so many times as long as usual,
LEAST_S: Final = 0.1  #: and so many seconds longer.
AGAIN: Final = 1.5  #: it is as fast as before if they take less than so many times as long.
_TICK_S: Final = 1e-6  #: the least time: clocks that are too coarse say 0.


class _Message(NamedTuple):
    size_bytes: int
    seconds: float  #: what they took.
    computed_s: float  #: what the step computed afterwards.


@dataclass(slots=True)
class _Link:
    """What one worker sends to another."""

    usual: _Message | None = None  #: the medians of the first messages.
    last: deque[_Message] = field(default_factory=lambda: deque(maxlen=MESSAGES))
    ratio: float = 1.0  #: how many times as long as usual the last messages took, at least.
    slower_s_per_byte: float = 0.0  #: how much longer than usual a byte takes; 0 unless the link is slower.

    def add(self, message: _Message) -> None:
        """Take note of a message. One of less than half of the usual size says little about a link."""
        if self.usual is not None and 2 * message.size_bytes < self.usual.size_bytes:
            return
        self.last.append(message)
        if len(self.last) < MESSAGES:
            return
        if self.usual is None:
            sizes, times, computed = zip(*self.last, strict=True)
            self.usual = _Message(int(median(sizes)), median(times), median(computed))
            self.last.clear()
        else:
            self._judge(self.usual)

    def _judge(self, usual: _Message) -> None:
        # A machine that also computes for longer is busy, or the messages are larger: neither is its link.
        times = [max(1.0, m.size_bytes / usual.size_bytes, m.computed_s / usual.computed_s) for m in self.last]
        ratios = [one.seconds / (usual.seconds * more) for one, more in zip(self.last, times, strict=True)]
        extra_s = [one.seconds * (1 - 1 / ratio) for one, ratio in zip(self.last, ratios, strict=True)]
        self.ratio = min(ratios)
        if self.ratio >= SLOWER and min(extra_s) >= LEAST_S:
            self.slower_s_per_byte = median(s / one.size_bytes for one, s in zip(self.last, extra_s, strict=True))
        elif max(ratios) < AGAIN:
            self.slower_s_per_byte = 0.0


class LinkTimes:
    """The links of a run, by the names of the workers at their ends; "" is the driver."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], _Link] = {}
        self._slower: dict[str, float] = {}  # of the link that each worker used last
        self._sources: dict[str, str] = {}  # where most of the last message to each worker came from

    def measured(self, source: str, worker: str, size_bytes: int, seconds: float, computed_s: float) -> str:
        """A step took `seconds` besides computing. Of its inputs `size_bytes` came from elsewhere, most from `source`.

        Returns a sentence if the link became slower, or is as fast as before again.
        """
        link = self._links.setdefault((source, worker), _Link())
        before = link.slower_s_per_byte
        link.add(_Message(size_bytes, max(seconds, _TICK_S), max(computed_s, _TICK_S)))
        self._sources[worker], self._slower[worker] = source, link.slower_s_per_byte
        if bool(before) == bool(link.slower_s_per_byte):
            return ""
        what = f"sending {f'from {source}' if source else 'inputs'} to {worker} takes"
        if before:
            return f"{what} as long as at the start again"
        return f"{what} {link.ratio:.0f} times as long as at the start: {duration(seconds)} for {size(size_bytes)}"

    def slower_s_per_byte(self, worker: str) -> float:
        """How much longer than usual a byte takes to a worker.

        0 if that has not changed, or if what is sent to the sender takes longer, too: then it is the sender's cable.
        """
        source = self._sources.get(worker, "")
        return 0.0 if self._slower.get(source) else self._slower.get(worker, 0.0)
