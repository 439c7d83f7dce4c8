"""A run as a timeline in the trace event format, which chrome://tracing and ui.perfetto.dev open.

The format: "Trace Event Format", Google, 2016: an array of events, with times in microseconds.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..core.atomic_files import replacing
from ..core.errors import RunError
from .run_log import RunLog


def save_trace(log: RunLog, parts: Sequence[str], workers: Sequence[str], path: Path) -> None:
    """Write a .json file with a row for each worker, a bar for each run of a part, and a mark for each death.

    `parts` and `workers` are their names. The log must be one of a run with tracing.

    Raises:
        RunError: the file can't be written.
    """
    raw = msgspec.json.encode({"traceEvents": list(_events(log, parts, workers)), "displayTimeUnit": "ms"})
    try:
        with replacing(path) as new:
            new.write_bytes(raw)
    except OSError as error:
        raise RunError(f"{path} can't be written: {error.strerror or error}", hint="choose another --trace") from None


def _events(log: RunLog, parts: Sequence[str], workers: Sequence[str]) -> Iterator[dict[str, Any]]:
    zero_s = min(log.arrived_s, default=0.0)
    for worker, name in enumerate(workers):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": worker, "args": {"name": name}}
    for span in log.spans:
        yield {
            "ph": "X",
            "name": parts[span.part],
            "cat": "states rebuilt" if span.request < 0 else "part",
            "pid": 0,
            "tid": span.worker,
            "ts": (span.began_s - zero_s) * 1e6,
            "dur": span.seconds * 1e6,
            "args": {"input": span.request},
        }
    marks = [(f"ended: {reason}", worker, time_s) for worker, reason, time_s in log.deaths]
    marks += [(f"rebalanced: {list(bounds)}", 0, time_s) for bounds, time_s in log.rebalances]
    for name, worker, time_s in marks:
        yield {"ph": "i", "s": "g", "name": name, "pid": 0, "tid": worker, "ts": (time_s - zero_s) * 1e6}
