"""The processes that a test's own process started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_STATE, _STARTED = 0, 19  # of /proc/PID/stat, counted behind the name, which may hold blanks


def children(process: int | str = "self") -> list[int]:
    """The processes that run and that any thread of a process started, the newest last.

    Process numbers begin anew at 32,768, so that they don't tell which process is the newest.
    """
    started: dict[int, int] = {}
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, file.read_text(encoding="ascii").split()):
            with suppress(OSError):  # it has ended since
                fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
                if fields[_STATE] != "Z":
                    started[child] = int(fields[_STARTED])
    return sorted(started, key=lambda child: (started[child], child))
