"""What happened while a cascade ran: how long parts took and waited, who died, what moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.product import Product
from .executors.protocol import Step


@dataclass(frozen=True, slots=True)
class Span:
    """One part at work for one request.

    Attributes:
        worker: who.
        part: the place of the part.
        request: the number of the request.
        began_s: when, on the clock of the executor.
        seconds: how long.
    """

    worker: int
    part: int
    request: int
    began_s: float
    seconds: float


@dataclass(slots=True)
class PartTotals:
    """What a part took, all requests together.

    Attributes:
        times: how often it ran.
        seconds: how long it ran.
        usual_s: what it takes now: half the last time, half what was usual before.
    """

    runs: int = 0
    seconds: float = 0.0
    usual_s: float = 0.0


@dataclass(slots=True, repr=False)
class RunLog(Product):
    """Everything that is noted of a run.

    Attributes:
        parts: how many parts there are.
        workers: how many workers there are.
        is_tracing: keep every span, not only their sums.
        tallies: what each part took on each worker, by part and worker.
        busy_s: how long each worker worked.
        waited_s: how long requests waited for the worker of each part, once the part could run.
        spans: what ran when; empty without tracing.
        delivered_s: when each request was answered.
        arrived_s: when each request came in.
        failures: how many requests failed.
        memory_bytes: the most that each worker had in memory; only of those that are processes of their own.
        deaths: who died, why, and when.
        moves: which bounds came into force, and when.
    """

    parts: int
    workers: int
    is_tracing: bool = False
    part_totals: dict[tuple[int, int], PartTotals] = field(default_factory=dict)
    busy_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    delivered_s: list[float] = field(default_factory=list)
    failures: int = 0
    memory_bytes: dict[int, int] = field(default_factory=dict)
    deaths: list[tuple[int, str, float]] = field(default_factory=list)
    rebalances: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    _able_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _up_s: dict[int, float] = field(default_factory=dict)
    _started_s: dict[int, float] = field(default_factory=dict)
    _besides_s: dict[int, float] = field(default_factory=dict)
    _first_s: float | None = None

    def __post_init__(self) -> None:
        """A sum for each worker, and one for each part."""
        self.busy_s = [0.0] * self.workers
        self.waited_s = [0.0] * self.parts

    def arrived(self, request: int, now_s: float) -> None:  # noqa: ARG002 - requests arrive in order
        """A request came in."""
        self.arrived_s.append(now_s)

    def delivered(self, request: int, now_s: float, *, failed: bool) -> None:
        """A request was answered."""
        self.delivered_s.append(now_s)
        self.failures += failed
        for part in range(self.parts):  # those that ran along with others never waited
            self._able_s.pop((request, part), None)

    def up(self, worker: int, now_s: float) -> None:
        """A worker has loaded its parts."""
        self._up_s[worker] = now_s

    def started(self, worker: int, step: Step, now_s: float) -> None:
        """A step was handed to a worker. That requests waited for it to load counts as loading, not as waiting."""
        able_s = self._able_s.pop((step.request, step.parts[0]), now_s)
        self.waited_s[step.parts[0]] += now_s - min(now_s, max(able_s, self._up_s.get(worker, able_s)))
        self._started_s[worker] = now_s
        self._first_s = now_s if self._first_s is None else self._first_s

    def done(self, worker: int, step: Step, seconds: Sequence[float], now_s: float) -> None:
        """A step was done; it ended just now."""
        self.busy_s[worker] += sum(seconds)
        besides_s = now_s - self._started_s.get(worker, now_s) - sum(seconds)
        self._besides_s[worker] = (self._besides_s.get(worker, besides_s) + besides_s) / 2
        began_s = now_s - sum(seconds)
        for part, took in zip(step.parts, seconds, strict=True):
            total = self.part_totals.setdefault((part, worker), PartTotals())
            total.usual_s = took if not total.runs else (total.usual_s + took) / 2
            total.runs += 1
            total.seconds += took
            if self.is_tracing:
                self.spans.append(Span(worker, part, step.request, began_s, took))
            began_s += took

    def has(self, worker: int, memory_bytes: int) -> None:
        """What a worker has in memory; 0 where nobody tells."""
        if memory_bytes:
            self.memory_bytes[worker] = max(memory_bytes, self.memory_bytes.get(worker, 0))

    def able(self, part: int, request: int, now_s: float) -> None:
        """A part could run for a request, and waits for its worker."""
        self._able_s[request, part] = now_s

    @property
    def elapsed_s(self) -> float:
        """From the first step, when its worker had loaded, to the last answer."""
        return self.delivered_s[-1] - self._first_s if self.delivered_s and self._first_s is not None else 0.0

    def total_of(self, part: int) -> PartTotals:
        """What a part took, all workers together."""
        own = [total for (place, _), total in self.part_totals.items() if place == part]
        return PartTotals(sum(total.runs for total in own), sum(total.seconds for total in own))

    def workers_of(self, part: int) -> list[int]:
        """Who ran a part."""
        return sorted(worker for place, worker in self.part_totals if place == part)

    def utilization(self) -> list[float]:
        """How much of the time each worker worked."""
        return [seconds / self.elapsed_s if self.elapsed_s else 0.0 for seconds in self.busy_s]

    def usual_s(self, worker: int, parts: Sequence[int]) -> float | None:
        """What a step usually takes there, with what is sent to and fro; None where a part of it never ran there."""
        part_totals = [self.part_totals.get((part, worker)) for part in parts]
        if any(total is None for total in part_totals):
            return None
        return sum(total.usual_s for total in part_totals if total is not None) + self._besides_s.get(worker, 0.0)

    def died(self, worker: int, why: str, now_s: float) -> None:
        """A worker ended."""
        self.deaths.append((worker, why, now_s))

    def rebalanced(self, bounds: Sequence[int], now_s: float) -> None:
        """Parts changed hands."""
        self.rebalances.append((tuple(bounds), now_s))
