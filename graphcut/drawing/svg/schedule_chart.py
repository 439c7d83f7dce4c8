"""A schedule as a chart: devices as rows, runs of parts as blocks in time, exchanges as lines between rows."""

from collections.abc import Iterator
from math import floor, log10
from typing import Final

from ...core.units import duration
from ..scene import LEGENDS
from ..schedule import Schedule
from .primitives import BODY, SMALL, Panel, box, label, line, stacked, thing, width_of
from .style import svg_file

KINDS: Final = ("near", "far", "pick")  #: the classes of requests, in turn.
_ROW: Final = 34.0
_BLOCK: Final = 22.0
_TICKS: Final = 6
_WIDTH: Final = 1000.0


def draw_schedule(schedule: Schedule, width: float, first: int = 0) -> Panel:
    """The schedule, `width` wide; `first` is the number of its first run."""
    names = min(130.0, width / 4)
    end_s = max((run.began_s + run.seconds for run in schedule.runs), default=0.0) or 1.0
    scale = (width - names - 8) / end_s
    bottom = _ROW * len(schedule.devices)
    marks = [*_time(names, scale, end_s, bottom)]
    for row, device in enumerate(schedule.devices):
        marks.append(label(0, _ROW * row + _ROW / 2 + 4, device, BODY, room=names - 8))
    corners = [(names + scale * run.began_s, _ROW * run.worker + (_ROW - _BLOCK) / 2) for run in schedule.runs]
    for before, after in schedule.exchanges:  # below the blocks: there may be many
        (x, y), (left, top) = corners[before], corners[after]
        start = x + scale * schedule.runs[before].seconds, y + _BLOCK / 2
        marks.append(line((start, (left, top + _BLOCK / 2)), "exchange"))
    for i, (run, (x, y)) in enumerate(zip(schedule.runs, corners, strict=True)):
        length = max(scale * run.seconds, 1.0)
        text = f"part {run.part}, request {run.request + 1}, on {schedule.devices[run.worker]}"
        what = f"{text}: {duration(run.seconds)}, from {duration(run.began_s)} on"
        fits = width_of(str(run.part), SMALL) + 2 <= length
        name = [label(x + length / 2, y + 15, str(run.part), SMALL, anchor="middle")] if fits else []
        css = KINDS[run.request % len(KINDS)]
        marks.append(thing("run", first + i, what, [box(x, y, length, _BLOCK, "block"), *name], css))
    return Panel(width, bottom + 24, tuple(marks))


def _time(left: float, scale: float, end_s: float, bottom: float) -> Iterator[str]:
    """Lines at round times."""
    step = 10 ** floor(log10(end_s / _TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if end_s / (step * factor) <= _TICKS)
    for i in range(int(end_s / step) + 1):
        x = left + scale * step * i
        yield line(((x, 0), (x, bottom)), "grid")
        text = duration(step * i) if i else "0"
        yield label(x, bottom + 14, text, SMALL, css="muted", anchor="middle" if i else "start")


def schedule_svg(schedule: Schedule) -> str:
    """A schedule as an SVG file."""
    legend = label(0, 14, f"{LEGENDS['schedule']} {schedule.title}.", SMALL, css="muted")
    panel = stacked([Panel(_WIDTH, 26, (legend,)), draw_schedule(schedule, _WIDTH)])
    return svg_file("Schedule", schedule.title, panel)
