"""The log of a run: how long parts ran and waited, and which workers ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..core.atomic_files import write_file
from ..core.product import Product

if TYPE_CHECKING:  # onnxruntime takes a tenth of a second to import; simulations need none of it
    from ..running.providers import NodesByProvider
    from .executors.protocol import Step


class Coming(NamedTuple):
    """How a step and its inputs came to a worker."""

    took_s: float  #: from when the step was given until it could be computed: for messages, and for its inputs.
    waited_s: float  #: how much of that the worker waited. The rest is that of the step before.

    @property
    def was_early(self) -> bool:
        """Was it given while the worker ran another one?"""
        return self.waited_s < self.took_s

    @property
    def is_waited_for(self) -> bool:
        """Did the worker wait for it? Else it came while the step before was computed."""
        return self.waited_s > 0.1 * self.took_s  # a tenth is notable


class Span(msgspec.Struct, frozen=True):
    """One run of a part for a request on a worker. `began_s` is on the clock of the executor."""

    worker: int
    part: int
    request: int
    began_s: float
    seconds: float


class PartTotals(msgspec.Struct):
    """The runs of a part: their number, their total time, and a moving average of it (half the last run)."""

    runs: int = 0
    seconds: float = 0.0
    recent_s: float = 0.0


@dataclass(slots=True, repr=False)
class RunLog(Product):
    """The log of a run."""

    parts: int  #: the number of parts.
    workers: int  #: the number of workers.
    is_tracing: bool = False  #: keep every span, not only totals.
    #: by index of the part and of the worker.
    part_totals: dict[tuple[int, int], PartTotals] = field(default_factory=dict)
    busy_s: list[float] = field(default_factory=list)  #: how long each worker ran parts.
    #: by part, how long requests that it could run waited for a worker. Waiting for a worker to load its parts does not
    #: count.
    waited_s: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  #: every run of a part; empty without tracing.
    began_s: float | None = None  #: when the first request arrived.
    #: when the first part began to run, later by the time until the first answer in which none ran since workers were
    #: still loading theirs.
    first_s: float | None = None
    answered: int = 0  #: the number of requests that were answered.
    failures: int = 0  #: the number of requests that failed.
    restarts: int = 0  #: how often a request was restarted, since tensors of it were lost.
    #: the maximum resident memory by worker, for workers that are processes.
    memory_bytes: dict[int, int] = field(default_factory=dict)
    copied_bytes: int = 0  #: the bytes of tensors that were copied between the CPU's memory and that of devices.
    #: how many nodes each execution provider took, for the parts whose provider did not take all, by index.
    placements: dict[int, NodesByProvider] = field(default_factory=dict)
    #: worker, reason and time for each worker that ended.
    deaths: list[tuple[int, str, float]] = field(default_factory=list)
    #: the new bounds and the time of each rebalancing.
    rebalances: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    #: called when something happens to a worker, with a sentence; while a part is sent, with what goes where, and the
    #: share that arrived.
    notify: Callable[[str, float | None], None] = field(default=lambda _text, _share: None)
    _runnable_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _loaded_s: dict[int, float] = field(default_factory=dict)
    _begun_s: dict[int, tuple[float, float]] = field(default_factory=dict)
    _ended_s: dict[int, float] = field(default_factory=dict)
    _overhead_s: dict[int, float] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)
    _idle_since_s: float = 0.0
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin with totals of zero."""
        self.busy_s = [0.0] * self.workers
        self.waited_s = [0.0] * self.parts

    # What the scheduler reports

    def arrived(self, now_s: float) -> None:
        """A request arrived."""
        self.began_s = now_s if self.began_s is None else self.began_s

    def delivered(self, request: int, now_s: float, *, failed: bool) -> None:
        """A request was answered."""
        self.answered += 1
        self._last_s = now_s
        self.failures += failed
        for part in range(self.parts):  # parts that ran in one step with others never waited
            self._runnable_s.pop((request, part), None)

    def loaded(self, worker: int, placements: Mapping[int, NodesByProvider], now_s: float) -> None:
        """A worker has loaded its parts."""
        self.placements.update(placements)
        if worker not in self._loaded_s and self.first_s is not None and not (self._running or self.answered):
            self.first_s += now_s - self._idle_since_s
            self._idle_since_s = now_s
        self._loaded_s[worker] = now_s

    def runnable(self, part: int, request: int, now_s: float) -> None:
        """A part can run for a request, and waits for a worker."""
        self._runnable_s[request, part] = now_s

    def started(self, worker: int, step: Step, now_s: float, given_s: float | None = None) -> None:
        """A worker begins a step now, which it was given at `given_s`: now by default, or while it ran another one."""
        since_s = self._runnable_s.pop((step.request, step.parts[0]), now_s)
        self.waited_s[step.parts[0]] += now_s - min(now_s, max(since_s, self._loaded_s.get(worker, since_s)))
        self._begun_s[worker] = now_s if given_s is None else given_s, now_s
        self.first_s = now_s if self.first_s is None else self.first_s
        self._running.add(worker)

    def done(
        self, worker: int, step: Step, seconds: Sequence[float], now_s: float, waits: Sequence[float] = ()
    ) -> Coming:
        """A step ended now; `seconds` are those of its parts, and `waits` what each waited for other steps before."""
        self.busy_s[worker] += sum(seconds)
        self._running.discard(worker)
        self._idle_since_s = now_s
        began_s = max(self._ended_s.get(worker, -inf), now_s - sum(seconds) - sum(waits))  # reports take unequal times
        given_s, begun_s = self._begun_s.get(worker, (began_s, began_s))
        coming = Coming(began_s - given_s, began_s - begun_s)
        if coming.is_waited_for or not coming.was_early:
            self._overhead_s[worker] = (self._overhead_s.get(worker, coming.took_s) + coming.took_s) / 2
        for part, part_s, wait_s in zip(step.parts, seconds, waits or [0.0] * len(seconds), strict=True):
            began_s += wait_s
            total = self.part_totals.setdefault((part, worker), PartTotals())
            total.recent_s = part_s if not total.runs else (total.recent_s + part_s) / 2
            total.runs += 1
            total.seconds += part_s
            if self.is_tracing:
                self.spans.append(Span(worker, part, step.request, began_s, part_s))
            began_s += part_s
        self._ended_s[worker] = began_s
        return coming

    def memory(self, worker: int, memory_bytes: int) -> None:
        """A worker has so much resident memory; 0 if unknown."""
        if memory_bytes:
            self.memory_bytes[worker] = max(memory_bytes, self.memory_bytes.get(worker, 0))

    # What it says

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start of the first step to the last answer, without waiting for parts to load."""
        return self._last_s - self.first_s if self.answered and self.first_s is not None else 0.0

    def total_of(self, part: int) -> PartTotals:
        """The totals of a part over all workers, without `recent_s`."""
        own = [total for (index, _), total in self.part_totals.items() if index == part]
        return PartTotals(sum(total.runs for total in own), sum(total.seconds for total in own))

    def workers_of(self, part: int) -> list[int]:
        """The workers that ran a part."""
        return sorted(worker for index, worker in self.part_totals if index == part)

    def utilization(self) -> list[float]:
        """The share of `elapsed_s` in which each worker ran parts."""
        return [seconds / self.elapsed_s if self.elapsed_s else 0.0 for seconds in self.busy_s]

    def expected_s(self, worker: int, parts: Sequence[int]) -> float | None:
        """The expected time of a step, transfers included; None if the worker never ran one of `parts`."""
        recent_s = self.recent_s(worker, parts)
        return None if recent_s is None else recent_s + self._overhead_s.get(worker, 0.0)

    def recent_s(self, worker: int, parts: Sequence[int]) -> float | None:
        """The expected time of a step without transfers."""
        totals = [self.part_totals[part, worker] for part in parts if (part, worker) in self.part_totals]
        return sum(total.recent_s for total in totals) if len(totals) == len(parts) else None

    def outlasts_message(self, worker: int, parts: Sequence[int], pace: float) -> bool:
        """Do parts, `pace` times as long as usual, take longer than a message to and from a worker?

        Unknown times are taken for long.
        """
        recent_s = self.recent_s(worker, parts)
        return recent_s is None or pace * recent_s > self._overhead_s.get(worker, 0.0)


def save_trace(log: RunLog, parts: Sequence[str], workers: Sequence[str], path: Path) -> None:
    """Write the timeline of a run with tracing as a file that chrome://tracing and ui.perfetto.dev open.

    It has a row for each worker, a bar for each run of a part, and a mark for each death; `parts` and `workers` are
    their names. The format is Google's "Trace Event Format" of 2016: an array of events, with times in microseconds.
    """
    raw = msgspec.json.encode({"traceEvents": list(_events(log, parts, workers)), "displayTimeUnit": "ms"})
    write_file(path, raw, "choose another `path`")


def _events(log: RunLog, parts: Sequence[str], workers: Sequence[str]) -> Iterator[dict[str, Any]]:
    def event(kind: str, worker: int, name: str, **more: object) -> dict[str, Any]:
        return {"ph": kind, "pid": 0, "tid": worker, "name": name, **more}

    zero_s = log.began_s or 0.0
    for worker, name in enumerate(workers):
        yield event("M", worker, "thread_name", args={"name": name})
    for span in log.spans:
        times = {"ts": (span.began_s - zero_s) * 1e6, "dur": span.seconds * 1e6}
        category = "states rebuilt" if span.request < 0 else "part"
        yield event("X", span.worker, parts[span.part], cat=category, args={"input": span.request}, **times)
    marks = [(f"ended: {reason}", worker, time_s) for worker, reason, time_s in log.deaths]
    marks += [(f"rebalanced: {list(bounds)}", 0, time_s) for bounds, time_s in log.rebalances]
    for name, worker, time_s in marks:
        yield event("i", worker, name, s="g", ts=(time_s - zero_s) * 1e6)
