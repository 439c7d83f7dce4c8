"""One way to run a model, in a process of its own: load it, run it, note what that took. Started by `rounds`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter, process_time

import msgspec
import numpy as np

from ..running.in_process.process_memory import code_to_come_bytes
from ..running.npz_files import save_outputs
from .ways import WAYS


class BenchmarkTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        way: the word of the way to run it.
        model: the model that was cut.
        cascade: its cascade.
        inputs: a .npz file with one feed.
        times: how often to run it, after one time that does not count.
        outputs: the .npz file for what comes out, once.
        result: the file for what was measured.
    """

    way: str
    model: str
    cascade: str
    inputs: str
    times: int
    outputs: str
    result: str


class BenchmarkRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one contender in one round.

    Attributes:
        load_s: from nothing to ready.
        run_s: seconds for one feed, with as many on their way as the way allows.
        cpu_s: seconds of processor time for one feed, all threads and processes together.
        peak_bytes: the most memory that was resident, above what Python and ONNX Runtime take by themselves; 0 where
            the system does not tell.
    """

    load_s: float
    run_s: float
    cpu_s: float
    peak_bytes: int


def contend(task: BenchmarkTask) -> None:
    """Do it, and write down what it took."""
    with np.load(task.inputs) as file:
        feed = {name: file[name] for name in file.files}
    base = _memory(Path("/proc/self"), "VmRSS") + code_to_come_bytes()
    began = perf_counter()
    with WAYS[task.way].opened(Path(task.model), Path(task.cascade)) as answer:
        first = answer([feed])
        loaded = perf_counter()
        cpu = _cpu_s()
        answer([feed] * task.times)
        ended = perf_counter()
        result = BenchmarkRun(
            load_s=loaded - began,
            run_s=(ended - loaded) / task.times,
            cpu_s=(_cpu_s() - cpu) / task.times,
            peak_bytes=max(0, sum(_memory(p, "VmHWM") for p in _family()) - base * len(_family())),
        )
    save_outputs(first, Path(task.outputs))
    Path(task.result).write_bytes(msgspec.json.encode(result))


def _family() -> list[Path]:
    """This process and its children, as /proc has them; empty on other systems."""
    own = Path("/proc/self")
    if not own.exists():
        return []
    found = [own]
    for tasks in own.glob("task/*/children"):
        with suppress(OSError):
            found += [Path(f"/proc/{number}") for number in tasks.read_text().split()]
    return found


def _memory(process: Path, line: str) -> int:
    with suppress(OSError):
        for text in (process / "status").read_text().splitlines():
            if text.startswith(f"{line}:"):
                return int(text.split()[1]) * 1024
    return 0


def _cpu_s() -> float:
    """Processor time of this process and its children, who still run."""
    total = process_time()
    for process in _family()[1:]:
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    contend(msgspec.json.decode(sys.argv[1], type=BenchmarkTask))
