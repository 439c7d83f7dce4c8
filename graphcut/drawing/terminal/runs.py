"""A run on the terminal: what the parts of a cascade took."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from ...core.units import count, duration, size
from ...workers.run_log import RunLog
from .screen import Screen, Section, picture
from .tables import Column, table


def draw_run_log(
    log: RunLog, parts: Sequence[str], workers: Sequence[str], screen: Screen, sentence: str = "", noun: str = "input"
) -> RenderableType:
    """A sentence, then a row for each part: number of runs, time per run, waiting time of its inputs, its workers.

    The default sentence tells how many requests there were; `noun` is what they are.
    """
    totals = [log.total_of(part) for part in range(len(parts))]
    waited = [_each(waited_s, total.runs) for waited_s, total in zip(log.waited_s, totals, strict=True)]
    columns = [
        Column("part", [Text(name) for name in parts], min_width=8),
        Column("runs", [f"{total.runs:,}" for total in totals]),
        Column("each", [_each(total.seconds, total.runs) for total in totals]),
        Column("waited", waited, drop_order=1),
        Column("by", [Text(", ".join(workers[w] for w in log.workers_of(i))) for i in range(len(parts))], min_width=8),
    ]
    lines: Section = [screen.text(sentence or _sentence(log, noun)), table(screen, columns)]
    if log.elapsed_s:
        lines.append(screen.text(f"busy: {_busy(log, workers)}"))
    if log.memory_bytes:
        most = ", ".join(f"{workers[worker]} {size(number)}" for worker, number in sorted(log.memory_bytes.items()))
        lines.append(screen.text(f"memory: {most}"))
    if log.copied_bytes:
        lines.append(screen.text(f"copied to and from devices: {size(log.copied_bytes)}"))
    said = [placement_text(parts[index], nodes) for index, nodes in sorted(log.placements.items())]
    said += [f"{workers[worker]} ended ({why})" for worker, why, _ in log.deaths]
    lines += [screen.text(text, "yellow") for text in said]
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


def placement_text(file: str, nodes: Mapping[str, int]) -> str:
    """A sentence: which providers run how many nodes of a part."""
    taken = (f"{count(nodes[name], 'node')} with {name}" for name in sorted(nodes))
    return f"{file} runs {', '.join(taken)}"
