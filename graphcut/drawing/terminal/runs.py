"""Runs on the terminal: a comparison of ways to run a model, and what the parts of a cascade took."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ...benchmarking.comparison import WayResult
from ...core.units import count, duration, size
from ...workers.run_log import RunLog
from ..sentences import placement_text
from .screen import Section, picture, screen_on
from .tables import Column, table


def draw_benchmark(results: Sequence[WayResult], console: Console) -> RenderableType:
    """A row for each way to run the model; below, the ways that failed."""
    screen = screen_on(console)
    ran = [one for one in results if not one.error]
    columns = [
        Column("way to run it", [Text(one.title) for one in ran]),
        Column("one input", [duration(one.run_s) for one in ran]),
        Column("ratio", [f"{one.ratio:.2f}" for one in ran]),
        Column("processor", [duration(one.cpu_s) for one in ran], drop_order=1),
        Column("memory", [size(one.peak_bytes) if one.peak_bytes else "-" for one in ran]),
        Column("load", [duration(one.load_s) for one in ran], drop_order=2),
        Column("outputs", [Text(_difference(one.difference)) for one in ran], drop_order=3),
    ]
    failed = (screen.text(f"{one.title}: not measured: {one.error}", "yellow") for one in results if one.error)
    return picture([table(screen, columns), *failed])


def draw_run_log(
    log: RunLog,
    parts: Sequence[str],
    workers: Sequence[str],
    console: Console,
    sentence: str | None = None,
    *,
    are_pieces: bool = False,
) -> RenderableType:
    """A sentence, then a row for each part: number of runs, time per run, waiting time of its inputs, its workers.

    The default sentence tells how many inputs there were, or pieces of inputs if the requests `are_pieces`.
    """
    screen = screen_on(console)
    totals = [log.total_of(part) for part in range(len(parts))]
    waiting = list(zip(log.waited_s, totals, strict=True))
    columns = [
        Column("part", [Text(name) for name in parts], min_width=8),
        Column("runs", [f"{total.runs:,}" for total in totals]),
        Column("each", [_each(total.seconds, total.runs) for total in totals]),
        Column("waited", [_each(waited_s, total.runs) for waited_s, total in waiting], drop_order=1),
        Column("by", [Text(", ".join(workers[w] for w in log.workers_of(i))) for i in range(len(parts))], min_width=8),
    ]
    sentence = sentence or _sentence(log, "piece" if are_pieces else "input")
    lines: Section = [screen.text(sentence), table(screen, columns)]
    if log.elapsed_s:
        lines.append(screen.text(f"busy: {_busy(log, workers)}"))
    if log.memory_bytes:
        most = ", ".join(f"{workers[worker]} {size(number)}" for worker, number in sorted(log.memory_bytes.items()))
        lines.append(screen.text(f"memory: {most}"))
    lines.extend(
        screen.text(placement_text(parts[index], nodes), "yellow") for index, nodes in sorted(log.placements.items())
    )
    for worker, why, _ in log.deaths:
        lines.append(screen.text(f"{workers[worker]} ended ({why})", "yellow"))
    if log.rebalances:
        lines.append(screen.text(f"rebalanced {count(len(log.rebalances), 'time')}: parts moved between workers"))
    return picture(lines)


def _each(seconds: float, times: int) -> str:
    return duration(seconds / times) if times else "-"


def _busy(log: RunLog, workers: Sequence[str]) -> str:
    """The share of the time that each worker was busy; workers without work are only counted."""
    shares = log.utilization()
    busy = [f"{name} {share:.0%}" for name, share in zip(workers, shares, strict=True) if share]
    idle = [f"{count(shares.count(0), 'worker')} never"] if shares.count(0) else []
    return ", ".join(busy + idle)


def _sentence(log: RunLog, what: str) -> str:
    each = f", {log.answered / log.elapsed_s:,.1f} a second" if log.elapsed_s else ""
    failed = f"; {count(log.failures, what)} failed" if log.failures else ""
    return f"{count(log.answered, what)} in {duration(log.elapsed_s)}{each}{failed}."


def _difference(difference: float | None) -> str:
    if difference is None:
        return "not compared"
    return "same bits" if difference == 0 else f"within {difference:.1e}"
