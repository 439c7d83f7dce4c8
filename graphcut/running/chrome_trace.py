"""A run as a timeline, in the trace event format that chrome://tracing and ui.perfetto.dev open.

The format: "Trace Event Format", Google, 2016: an array of events, times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..core.atomic_files import replacing
from ..core.errors import RunError
from .run_log import RunLog


def save_trace(log: RunLog, parts: Sequence[str], workers: Sequence[str], path: Path) -> None:
    """Write what `log` noted; a row for each worker, a bar for each part at work, a mark for what went wrong.

    Args:
        log: kept while tracing.
        parts: what the parts are called.
        workers: what the workers are called.
        path: the file.

    Raises:
        RunError: the disk refuses.
    """
    raw = msgspec.json.encode({"traceEvents": list(_events(log, parts, workers)), "displayTimeUnit": "ms"})
    try:
        with replacing(path) as new:
            new.write_bytes(raw)
    except OSError as error:
        raise RunError(f"{path} can't be written: {error.strerror or error}", hint="choose another --trace") from None


def _events(log: RunLog, parts: Sequence[str], workers: Sequence[str]) -> Iterator[dict[str, Any]]:
    zero_s = min(log.arrived_s, default=0.0)
    for number, name in enumerate(workers):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": name}}
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
    for worker, why, at_s in log.deaths:
        yield _mark(f"ended: {why}", worker, at_s - zero_s)
    for bounds, at_s in log.rebalances:
        yield _mark(f"parts changed hands: {list(bounds)}", 0, at_s - zero_s)


def _mark(name: str, worker: int, at_s: float) -> dict[str, Any]:
    return {"ph": "i", "s": "g", "name": name, "pid": 0, "tid": worker, "ts": at_s * 1e6}
