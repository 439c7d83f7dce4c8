"""Schedules: which device ran which part for which request, and when. This needs nothing that plans need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..core.wiring import Unit
from ..workers.run_log import RunLog, Span

REQUESTS: Final = 3  #: so many are drawn.


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The runs of parts for the first requests."""

    title: str  #: what was run.
    devices: tuple[str, ...]  #: a row each.
    runs: tuple[Span, ...]  #: in the order in which they began; times count from the first.
    exchanges: tuple[tuple[int, int], ...]  #: runs on two devices, of which the second reads what the first wrote.


def schedule_of(log: RunLog, devices: Sequence[str], parts: Sequence[Unit], title: str) -> Schedule:
    """The schedule of a run with tracing; `devices` are the names of the workers."""
    first = sorted({span.request for span in log.spans if span.request >= 0})[:REQUESTS]
    spans = sorted((span for span in log.spans if span.request in first), key=lambda span: span.began_s)
    start = spans[0].began_s if spans else 0.0
    rows = {worker: row for row, worker in enumerate(dict.fromkeys(span.worker for span in spans))}
    runs = [Span(rows[one.worker], one.part, one.request, one.began_s - start, one.seconds) for one in spans]
    writer = {name: part for part, one in enumerate(parts) for name in one.writes}
    done: dict[tuple[int, int], int] = {}
    exchanges = []
    for i, run in enumerate(runs):
        before = dict.fromkeys(done.get((run.request, writer.get(name, -1))) for name in parts[run.part].reads)
        exchanges += [(one, i) for one in before if one is not None and runs[one].worker != run.worker]
        done[run.request, run.part] = i
    names = tuple(devices[worker] for worker in rows)
    return Schedule(title=title, devices=names, runs=tuple(runs), exchanges=tuple(exchanges))
