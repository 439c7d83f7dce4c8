"""Commands that run to their end, and what they took."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

GRAPHCUT = (sys.executable, "-m", "graphcut")


@dataclass(frozen=True)
class Measured:
    """One finished process: its wall time, its processor time, and the most memory it had."""

    wall_s: float
    processor_s: float
    peak_mib: float


def measure(command: Iterable[str | Path]) -> Measured:
    """Run a command to its end; it must succeed."""
    begin = time.perf_counter()
    words = [str(word) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{' '.join(words)} failed:\n{process.stderr.read().decode() if process.stderr else ''}")
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def middle(runs: Sequence[Measured]) -> Measured:
    """The median of each figure; of memory the most."""
    times = ((one.wall_s, one.processor_s) for one in runs)
    return Measured(*map(statistics.median, zip(*times, strict=True)), max(one.peak_mib for one in runs))
