"""Commands that run to their end, and what they took."""

from __future__ import annotations

import json
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
    """Run a command to its end; it must succeed.

    A small process starts it: Linux counts the memory of the one that starts a process in that one's peak.
    """
    words = [str(word) for word in command]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
    return Measured(*json.loads(done.stdout))


def run(words: Sequence[str]) -> tuple[float, float, float]:
    """Run a command from here to its end; the figures of `Measured`."""
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    if status != 0:
        sys.exit(os.waitstatus_to_exitcode(status))
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def middle(runs: Sequence[Measured]) -> Measured:
    """The median of each figure; of memory the most."""
    times = ((one.wall_s, one.processor_s) for one in runs)
    return Measured(*map(statistics.median, zip(*times, strict=True)), max(one.peak_mib for one in runs))


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1:])))
