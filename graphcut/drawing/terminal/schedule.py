"""Schedules on the terminal: a row for each device, a block for each run of a part."""

from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ...core.units import count, duration
from ..schedule import Schedule
from .screen import BAR, FAR, NEAR, Screen, Section, picture

_STYLES: Final = ("blue", "yellow", "magenta")  #: of requests, in turn.


def draw_schedule(schedule: Schedule, screen: Screen) -> RenderableType:
    """A schedule alone."""
    return picture(schedule_rows(schedule, screen))


def schedule_rows(schedule: Schedule, screen: Screen) -> Section:
    """The rows of a schedule. Requests differ in their lines, too; the number of a part is left out without room."""
    signs = screen.plain(NEAR + BAR + FAR)
    names = [screen.plain(device)[:26] for device in schedule.devices]
    width = max(map(len, names), default=0) + 2
    room = max(20, min(screen.width, 120) - width)
    end_s = max((run.began_s + run.seconds for run in schedule.runs), default=0.0)
    cells = [[(" ", "")] * room for _ in names]
    for run in schedule.runs:
        start, end = (int(room * time_s / (end_s or 1)) for time_s in (run.began_s, run.began_s + run.seconds))
        start, kind = min(start, room - 1), run.request % len(signs)
        word = str(run.part) if len(str(run.part)) <= end - start else ""
        for i, sign in enumerate(word.ljust(max(1, end - start), signs[kind]), start):
            cells[run.worker][i] = sign, _STYLES[kind]
    facts = f"{schedule.title}: {duration(end_s)}, {count(len(schedule.exchanges), 'exchange')} between devices"
    rows = (Text(name.ljust(width)).append_text(Text.assemble(*row)) for name, row in zip(names, cells, strict=True))
    legend = Text("a block is a part, with its number; requests: ", style="dim")
    for i, sign in enumerate(signs):
        legend.append(f"{i + 1} {sign * 2}  ", f"not dim {_STYLES[i]}")
    return [Text("schedule  ", "bold").append(screen.plain(facts), "not bold"), *rows, legend]
