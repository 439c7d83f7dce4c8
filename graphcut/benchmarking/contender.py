"""Run a model in one way and measure it. `comparison` starts this module as a process of its own."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import msgspec
import numpy as np
import onnxruntime as ort

from ..core.arguments import Optimization
from ..core.errors import MemoryCapError
from ..running.in_process.runner import Runner
from ..running.npz_files import save_outputs
from ..running.process_memory import status_bytes, unloaded_library_bytes
from ..running.stage import SessionConfig, session_options
from ..running.values import Feeds
from ..workers.executors.via import Via
from ..workers.pipelined import Pipeline
from .ways import CORES

Answers = Callable[[Sequence[Feeds]], Iterator[Any]]
"""Runs all feeds and yields the outputs of each, by name."""


class BenchmarkTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    way: str  #: a name in `WAYS`.
    model: str  #: path of the whole model.
    cascade: str  #: path of its cascade.
    folder: str  #: with `inputs.npz`, one feed; for the outputs, WAY.npz, and the `BenchmarkRun`, `result.json`.
    runs: int  #: how often to run it, after one run that is not measured.
    optimize: Optimization = "all"  #: ONNX Runtime's graph optimizations.

    @property
    def inputs(self) -> Path:
        """The file with the feed."""
        return Path(self.folder, "inputs.npz")

    @property
    def result(self) -> Path:
        """The file for the result."""
        return Path(self.folder, "result.json")


class BenchmarkRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one way in one round."""

    load_s: float = 0.0  #: seconds until the first outputs were there, loading included.
    run_s: float = 0.0  #: seconds for one feed, with as many in flight as the way allows.
    cpu_s: float = 0.0  #: seconds of processor time for one feed.
    peak_bytes: int = 0  #: maximum resident memory above that of Python and ONNX Runtime alone; 0 if unknown.
    others_cores: float = 0.0  #: how many cores other programs kept busy meanwhile; 0 if unknown.


def measure_way(task: BenchmarkTask) -> None:
    """Run `task` and write its two files."""
    with np.load(task.inputs) as file:
        feed = {name: file[name] for name in file.files}
    base = status_bytes("VmRSS") + unloaded_library_bytes()
    began = perf_counter()
    with _OPENERS[task.way](task, SessionConfig(optimize=task.optimize)) as answers:
        (first,) = answers([feed])
        loaded, cpu, all_cpu = perf_counter(), _cpu_s(), _machine_cpu_s()
        deque(answers([feed] * task.runs), maxlen=1)  # outputs are dropped, as a user would drop them
        ended, own_s, all_s = perf_counter(), _cpu_s() - cpu, _machine_cpu_s() - all_cpu
        result = BenchmarkRun(
            load_s=loaded - began,
            run_s=(ended - loaded) / task.runs,
            cpu_s=own_s / task.runs,
            peak_bytes=max(0, sum(status_bytes("VmHWM", p) - base for p in _processes())),
            others_cores=max(0.0, all_s - own_s) / (ended - loaded),
        )
    save_outputs(first, Path(task.folder, f"{task.way}.npz"))
    task.result.write_bytes(msgspec.json.encode(result))


def _processes() -> list[Path]:
    """The /proc folders of this process and its children; empty on systems without /proc."""
    own = Path("/proc/self")
    found = [own] if own.exists() else []
    for children in own.glob("task/*/children"):
        with suppress(OSError):
            found += [Path(f"/proc/{pid}") for pid in children.read_text().split()]
    return found


def _cpu_s() -> float:
    """Processor time of this process and of its children that still run."""
    total = process_time()
    for process in _processes()[1:]:
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _machine_cpu_s() -> float:
    """Processor time of all programs since the machine started; 0 on systems without /proc."""
    with suppress(OSError):
        user, nice, system, _idle, _waiting, *interrupts = map(int, Path("/proc/stat").read_text().split(None, 8)[1:8])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return 0.0


# The ways


@contextmanager
def _whole(task: BenchmarkTask, config: SessionConfig, *, callers: int = 1, spins: bool = False) -> Iterator[Answers]:
    options = session_options(config, {"session.intra_op.allow_spinning": str(int(spins))})
    session = ort.InferenceSession(task.model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feed: Feeds) -> dict[str, Any]:
        return dict(zip(names, session.run(None, dict(feed)), strict=True))

    with ThreadPoolExecutor(callers) as pool:
        yield partial(pool.map if callers > 1 else map, run)


@contextmanager
def _parts(task: BenchmarkTask, config: SessionConfig) -> Iterator[Answers]:
    with Runner(task.cascade, config=config) as runner:
        yield partial(map, runner.run)


@contextmanager
def _parts_in_turn(task: BenchmarkTask, config: SessionConfig, *, exact: bool) -> Iterator[Answers]:
    def answers(feeds: Sequence[Feeds]) -> Iterator[Any]:
        limit = None
        try:
            Runner(task.cascade, config=config, memory_bytes=1, exact=exact).run(feeds[0])
        except MemoryCapError as error:
            limit = error.smallest_bytes
        with Runner(task.cascade, config=config, memory_bytes=limit, exact=exact) as runner:
            yield from map(runner.run, feeds)

    yield answers


@contextmanager
def _pipeline(task: BenchmarkTask, config: SessionConfig, *, via: Via) -> Iterator[Answers]:
    with Pipeline(task.cascade, via=via, config=config) as pipeline:
        yield pipeline.map


#: for each of `WAYS`, a context manager that loads the model or the cascade.
_OPENERS: Final[Mapping[str, Callable[[BenchmarkTask, SessionConfig], AbstractContextManager[Answers]]]] = {
    "whole": _whole,
    "whole-one-thread": lambda task, config: _whole(task, replace(config, threads=1)),
    "whole-spinning": partial(_whole, spins=True),
    "whole-concurrent": lambda task, config: _whole(task, replace(config, threads=1), callers=CORES),
    "whole-mapped": lambda task, config: _whole(task, replace(config, prepacked=False)),
    "parts": _parts,
    "parts-in-turn": partial(_parts_in_turn, exact=True),
    "parts-in-turn-mapped": partial(_parts_in_turn, exact=False),
    "threads": partial(_pipeline, via="threads"),
    "processes": partial(_pipeline, via="processes"),
}


if __name__ == "__main__":
    measure_way(msgspec.json.decode(sys.argv[1], type=BenchmarkTask))
