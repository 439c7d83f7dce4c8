"""Output of commands: results on stdout; messages and progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import typer

from ..core.errors import UsageError
from ..core.text import escaped, printable
from ..core.units import count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

    from .. import RunLog
    from ..drawing.terminal.screen import Screen

    Draw = Callable[[Screen], RenderableType]

SOME_FAILED: Final = 3  #: the exit code if some of several inputs failed.
INTERRUPTED: Final = 130  #: the exit code after Ctrl-C.
_WIDE: Final = 10_000  #: columns for output that is not a terminal: nothing is shortened in a pipe or a file.


@dataclass
class Settings:
    """What the command line sets for all output."""

    is_quiet: bool = False
    has_no_color: bool = False
    bars: Progress | None = None  #: the progress bars that are on the terminal.
    is_in_line: bool = False  #: what is on stdout does not end with its line.
    words: Callable[[str], str] = str  #: gives a sentence of the library in the words of the command that runs.


settings: Final = Settings()


def console_(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, of unlimited width where that is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    no_color = settings.has_no_color or None  # None: as NO_COLOR says
    return Console(stderr=stderr, width=width, height=50 if width else None, highlight=False, no_color=no_color)


def print_(draw: Draw, *, stderr: bool = False) -> None:
    """Print a drawing: a result on stdout, or a summary on stderr, which --quiet leaves out."""
    if not (stderr and settings.is_quiet):
        from ..drawing.terminal.screen import screen_on

        console = console_(stderr=stderr)
        console.print(draw(screen_on(console, settings.words)))


def put_json(record: object, output: Path | None = None) -> None:
    """Print a record, or write it to a file."""
    from ..drawing.json_records import dumps

    put_text(dumps(record) + "\n", output)


def put_answer(record: object, draw: Draw, output: Path | None = None, *, as_json: bool, is_yes: bool = True) -> None:
    """Print a result, or write it to a file, as JSON or drawn. If it is no, the exit code is 1."""
    if as_json:
        put_json(record, output)
    else:
        put_drawing(draw, output)
    if not is_yes:
        raise typer.Exit(1)


def print_lines(*lines: str) -> None:
    """Print lines on stdout, with escapes for what does not print in them, tabs excepted."""
    for line in lines:
        sys.stdout.write("\t".join(map(escaped, line.split("\t"))) + "\n")


def put_text(text: str, output: Path | None) -> None:
    """Write text to a file, or to stdout. A GraphcutError if the file can't be written."""
    if output is None:
        sys.stdout.write(text)
        return
    from ..core.atomic_files import write_file

    write_file(output, text.encode(), "check the folder and the space on the disk")
    say(f"wrote {output}")


def put_drawing(draw: Draw, output: Path | None) -> None:
    """Print a drawing, or write it to a file as plain text of unlimited width."""
    if output is None:
        print_(draw)
        return
    from rich.console import Console

    from ..drawing.terminal.screen import screen_on

    console = Console(file=StringIO(), width=_WIDE, height=50, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(draw(screen_on(console, settings.words)))
    put_text("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), output)


def say(text: str) -> None:
    """A message on stderr; --quiet leaves it out."""
    if not settings.is_quiet:
        complain(text)


def complain(text: str) -> None:
    """A message on stderr that --quiet does not leave out. What does not print is escaped, and long text shortened.

    It begins a line, also where an unfinished one of stdout is shown.
    """
    is_between = settings.is_in_line and _is_one_place()
    settings.is_in_line &= not is_between
    sys.stderr.write("\n" * is_between + f"{printable(text)}\n")


def _is_one_place() -> bool:
    """Whether stdout and stderr go to the same terminal, pipe or file."""
    with suppress(OSError):
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    return False


def say_next(command: str) -> None:
    if command:
        say(f"next: {command}")


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar over items, with items per second, and room for others; only on a terminal."""
    if settings.is_quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    began_s, done = perf_counter(), 0

    def advance() -> None:
        nonlocal done
        done += 1
        bars.update(task, advance=1, description=f"{what}, {done / (perf_counter() - began_s):,.1f} a second")

    with Progress(*columns, console=console_(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total, visible=total > 1)
        settings.bars = bars
        try:
            yield advance
        finally:
            settings.bars = None


def workers_notes() -> Callable[[str, float | None], None]:
    """Says what happens to workers. What is sent has a bar among others on a terminal, else a line each quarter."""
    tasks: dict[str, TaskID] = {}
    quarters: dict[str, int] = {}

    def say_note(text: str, share: float | None) -> None:
        if share is None:
            say(text)
        elif settings.bars is not None:
            if text not in tasks:
                from rich.markup import escape as without_markup

                tasks[text] = settings.bars.add_task(without_markup(f"% sending {printable(text)}"), total=100)
            settings.bars.update(tasks[text], completed=int(100 * share), visible=share < 1)
        elif quarters.get(text) != int(4 * share):
            quarters[text] = int(4 * share)
            say(f"sending {text}, {25 * quarters[text]} %")

    return say_note


@contextmanager
def writing(*, is_silent: bool = False, verb: str = "writing") -> Iterator[Callable[[str, int, int], None] | None]:
    """Progress over bytes of files that are written, or what `verb` says: a bar on a terminal, else a line per file."""
    if is_silent or settings.is_quiet:
        yield None
    elif not sys.stderr.isatty():
        announce = cache(lambda file: say(f"{verb} {file}"))  # once for each file
        yield lambda file, _moved, _total: announce(file)
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = TextColumn(f"{verb} {{task.description}}"), BarColumn(), DownloadColumn(binary_units=True)
        with Progress(*columns, TransferSpeedColumn(), console=console_(stderr=True), transient=True) as bar:
            task = bar.add_task("", visible=False)  # until it is known how much there is
            yield lambda file, moved, total: bar.update(
                task, description=file, advance=moved, total=total, visible=True
            )


def put_trace(log: RunLog, parts: Mapping[str, Any], workers: Sequence[str], path: Path) -> None:
    """Write the timeline of a run: its first requests as a picture (.svg, .txt, - for stdout), or all of it.

    `parts` are by their names, and have `reads` and `writes`.
    """
    from .. import save_trace
    from ..drawing.schedule import schedule_of
    from ..drawing.svg.schedule_chart import schedule_svg
    from ..drawing.terminal.schedule import draw_schedule

    schedule = schedule_of(log, workers, [*parts.values()], f"the first of {count(log.answered, 'request')}")
    if path.suffix.lower() == ".svg":
        put_text(schedule_svg(schedule), path)
    elif path.name == "-":
        print_lines("")
        print_(partial(draw_schedule, schedule))
    elif path.suffix.lower() == ".txt":
        put_drawing(partial(draw_schedule, schedule), path)
    else:
        save_trace(log, [*parts], workers, path)
        say(f"wrote {path}")


def check_output(output: Path | None, *reads: Path | None, force: bool, suffixes: Sequence[str] = ()) -> None:
    """Refuse an output file that exists or has no folder, before any work is done.

    Also one of the files that the command reads, and of the manifests and parts in the folders that it reads; and one
    whose name has none of these `suffixes`, if some are given.
    """
    from ..core.atomic_files import mend

    if output is None:
        return
    mend(output.absolute().parent, output.name)
    if output.exists() and not force:
        raise UsageError(f"{output} already exists", hint="choose another name, or add --force")
    for path in filter(None, reads):
        files = [*path.glob("*cascade.json"), *path.glob("*.onnx*")] if path.is_dir() else [path]
        if output.exists() and any(file.exists() and file.samefile(output) for file in files):
            raise UsageError(f"{output} is also to be read", hint="choose another name")
    if suffixes and output.suffix.lower() not in suffixes and output.name != "-":
        raise UsageError(f"{output}: no format is known by this file name", hint=f"use {' or '.join(suffixes)}")
