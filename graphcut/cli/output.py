"""What a command says: pictures and records on stdout, words on stderr, and how far it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..core.errors import GraphcutError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..surgery.splitting import PreparedFiles

_WIDE: Final = 10_000
"""Columns for what does not go to a terminal: a pipe can't ask for more, so nothing is shortened for it."""


def console_(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr, of unlimited width where that is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, height=50 if width else None, highlight=False, soft_wrap=False)


def print_(draw: Callable[[Console], RenderableType]) -> None:
    """Print a picture."""
    console = console_()
    console.print(draw(console))


def print_json(record: object) -> None:
    """Print a record."""
    from ..drawing.json_records import dumps

    sys.stdout.write(dumps(record) + "\n")


def put_text(text: str, output: Path | None) -> None:
    """Into a file, or onto stdout."""
    if output is None:
        sys.stdout.write(text)
        return
    from ..core.atomic_files import replacing

    try:
        with replacing(output) as new:
            new.write_text(text, encoding="utf-8")
    except OSError as error:  # a full disk has no name
        raise GraphcutError(
            f"{output} can't be written: {error.strerror or error}", hint="is there such a folder, and room in it?"
        ) from None
    say(f"wrote {output}")


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"{text}\n")


def say_next(command: str) -> None:
    """The command to try next."""
    say(f"next: {command}")


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over things that are done one after the other, and how many a second; only on a terminal."""
    if not sys.stderr.isatty() or total < 2:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    began_s, done = perf_counter(), 0

    def advance() -> None:
        nonlocal done
        done += 1
        bar.update(task, advance=1, description=f"{what}, {done / (perf_counter() - began_s):,.1f} a second")

    with Progress(*columns, console=console_(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield advance


@contextmanager
def progress(cut: PreparedFiles, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar over the bytes on a terminal, a line a file elsewhere."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        seen: set[str] = set()

        def announce(file: str, _moved: int, _total: int) -> None:
            if file not in seen:
                seen.add(file)
                say(f"writing {file}")

        yield announce
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = TextColumn("writing {task.description}"), BarColumn(), DownloadColumn(binary_units=True)
        with Progress(*columns, TransferSpeedColumn(), console=console_(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=cut.bytes_to_write)
            yield lambda file, moved, _total: bar.update(task, description=file, advance=moved)
