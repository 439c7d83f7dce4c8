"""The terminal pen for runs: a contest of ways to run a model, and what the parts of a cascade took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..benchmarking.comparison import WayResult
from ..core.units import count, duration, size
from ..running.run_log import RunLog
from .glyphs import glyphs_for
from .tables import Column, Trimmed, table

_SAME: Final = "same bits"


def draw_benchmark(standings: Sequence[WayResult], console: Console) -> RenderableType:
    """A row for each way to run it, and what it took; those that could not take part below."""
    signs = glyphs_for(console)
    ran = [one for one in standings if not one.error]
    columns = [
        Column("way to run it", [Text(one.title) for one in ran]),
        Column("one input", [duration(one.run_s) for one in ran]),
        Column("ratio", [f"{one.ratio:.2f}" for one in ran]),
        Column("processor", [duration(one.cpu_s) for one in ran], spare=1),
        Column("memory", [size(one.peak_bytes) if one.peak_bytes else "-" for one in ran]),
        Column("load", [duration(one.load_s) for one in ran], spare=2),
        Column("outputs", [Text(_sameness(one.difference)) for one in ran], spare=3),
    ]
    lines: list[RenderableType] = [table(columns, width=console.width, signs=signs)]
    lines += [signs.text(f"{one.title}: did not take part: {one.error}", "yellow") for one in standings if one.error]
    return Trimmed(Group(*lines))


def draw_run_log(
    log: RunLog,
    parts: Sequence[str],
    workers: Sequence[str],
    console: Console,
    sentence: str | None = None,
    *,
    are_pieces: bool = False,
) -> RenderableType:
    """A sentence, and a row for each part: how often it ran, how long, how long inputs waited for it, and where.

    The sentence counts inputs, or pieces of them, unless there is a better one.
    """
    signs = glyphs_for(console)
    sums = [log.total_of(part) for part in range(len(parts))]
    waiting = list(zip(log.waited_s, sums, strict=True))
    columns = [
        Column("part", [Text(name) for name in parts], fewest=8),
        Column("runs", [f"{total.runs:,}" for total in sums]),
        Column("each", [duration(total.seconds / total.runs) if total.runs else "-" for total in sums]),
        Column("waited", [duration(waited / t.runs) if t.runs else "-" for waited, t in waiting], spare=1),
        Column("by", [Text(", ".join(workers[w] for w in log.workers_of(i))) for i in range(len(parts))], fewest=8),
    ]
    said = signs.text(sentence or _sentence(log, "piece" if are_pieces else "input"))
    lines: list[RenderableType] = [said, table(columns, width=console.width, signs=signs)]
    if log.elapsed_s:
        lines.append(signs.text(f"busy: {_busy(log, workers)}"))
    if log.memory_bytes:
        most = ", ".join(f"{workers[worker]} {size(number)}" for worker, number in sorted(log.memory_bytes.items()))
        lines.append(signs.text(f"memory: {most}"))
    lines += [
        signs.text(f"{workers[worker]} ended ({why}) and was replaced", "yellow") for worker, why, _ in log.deaths
    ]
    if log.rebalances:
        lines.append(
            signs.text(f"parts changed hands {count(len(log.rebalances), 'time')} to keep the workers balanced")
        )
    return Trimmed(Group(*lines))


def _busy(log: RunLog, workers: Sequence[str]) -> str:
    """How much of the time each worker worked; those that never had anything to do are counted."""
    shares = log.utilization()
    told = [f"{name} {share:.0%}" for name, share in zip(workers, shares, strict=True) if share]
    idle = shares.count(0)
    if idle:
        told.append(f"{count(idle, 'worker')} never")
    return ", ".join(told)


def _sentence(log: RunLog, what: str) -> str:
    done = len(log.delivered_s)
    each = f", {done / log.elapsed_s:,.1f} a second" if log.elapsed_s else ""
    failed = f"; {count(log.failures, what)} failed" if log.failures else ""
    return f"{count(done, what)} in {duration(log.elapsed_s)}{each}{failed}."


def _sameness(difference: float | None) -> str:
    if difference is None:
        return "not compared"
    return _SAME if difference == 0 else f"within {difference:.1e}"
