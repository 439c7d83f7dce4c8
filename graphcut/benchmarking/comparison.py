"""The contest: every way to run a model, in turn, several rounds of it; medians, and ratios to the whole model."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from ..core.errors import RunError, UsageError
from ..core.manifest import Cascade
from ..running.npz_files import save_outputs
from .contender import BenchmarkRun, BenchmarkTask
from .ways import WAYS

_LONG_ENOUGH_S: Final = 1.0
_MOST: Final = 200
_FIRST: Final = "whole"
"""The way that the others are compared with."""

_CLASS: Final = re.compile(r"^[\w.]+: (?=\S)")
"""How Python begins the last line of a traceback."""


@dataclass(frozen=True)
class WayResult:
    """What came of one way to run it; times and memory are medians over the rounds.

    Attributes:
        way: the word that names it.
        title: what it is called.
        load_s: from nothing to the first answer.
        run_s: seconds for one feed.
        ratio: of `run_s` to that of the whole model in the same round.
        cpu_s: seconds of processor time for one feed.
        peak_bytes: memory above what Python and ONNX Runtime take by themselves.
        difference: the largest difference of its outputs from those of the whole model; 0 where all are the same, None
            where they can't be compared.
        error: why it could not take part; empty where it did.
    """

    way: str
    title: str
    load_s: float = 0.0
    run_s: float = 0.0
    ratio: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    difference: float | None = None
    error: str = ""


def compare(
    cascade: Cascade,
    feed: Mapping[str, Any],
    *,
    model: Path | None = None,
    ways: Sequence[str] = tuple(WAYS),
    rounds: int = 3,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[WayResult, ...]:
    """Run the model that was cut and its cascade every way there is.

    Args:
        cascade: the parts.
        feed: inputs by name, as arrays of numbers.
        model: the model, if it has moved.
        ways: which of `WAYS`; `whole` takes part in any case.
        rounds: how often each is started and measured.
        progress: told who runs, and in which round.

    Raises:
        UsageError: the model is not there, or inputs can't be written to a file.
        RunError: the whole model can't be run.
    """
    source = model or cascade.source
    if not source.is_file():
        raise UsageError(f"the model {source} is not there to compare with", hint="name it with --model FILE")
    strange = next((name for name, value in feed.items() if np.asarray(value).dtype.kind not in "biufc"), None)
    if strange is not None:
        raise UsageError(f"input {strange!r} is no array of numbers", hint="only models that read numbers can compete")
    with tempfile.TemporaryDirectory(prefix="graphcut-bench-") as scratch:
        contest = _Contest(cascade, source, Path(scratch), progress)
        save_outputs({name: np.asarray(value) for name, value in feed.items()}, contest.inputs)
        return contest.held(dict.fromkeys((_FIRST, *ways)), rounds)


class _Contest:
    def __init__(
        self, cascade: Cascade, model: Path, scratch: Path, progress: Callable[[str, int], None] | None
    ) -> None:
        self.inputs = scratch / "inputs.npz"
        self._cascade = cascade
        self._model = model
        self._scratch = scratch
        self._progress = progress

    def held(self, ways: Iterable[str], rounds: int) -> tuple[WayResult, ...]:
        pilot = self._run(_FIRST, 3, 0)
        if isinstance(pilot, str):
            raise RunError(f"{self._model} can't be run: {pilot}", hint="give inputs that it accepts with --inputs")
        times = min(_MOST, max(3, round(_LONG_ENOUGH_S / max(pilot.run_s, 1e-6))))
        runs: dict[str, list[BenchmarkRun]] = {way: [] for way in ways}
        failed: dict[str, str] = {}
        for number in range(rounds):
            for way, earlier in runs.items():
                found = failed.get(way) or self._run(way, times, number)
                if isinstance(found, str):
                    failed[way] = found
                else:
                    earlier.append(found)
        if _FIRST in failed:
            raise RunError(f"{self._model} ran, and later did not: {failed[_FIRST]}", hint="is there memory for it?")
        return tuple(self._standing(way, own, runs[_FIRST], failed.get(way, "")) for way, own in runs.items())

    def _run(self, way: str, times: int, number: int) -> BenchmarkRun | str:
        if self._progress is not None:
            self._progress(WAYS[way].title, number)
        result = self._scratch / "result.json"
        result.unlink(missing_ok=True)
        task = BenchmarkTask(
            way=way,
            model=str(self._model),
            cascade=str(self._cascade.path),
            inputs=str(self.inputs),
            times=times,
            outputs=str(self._scratch / f"{way}.npz"),
            result=str(result),
        )
        command = [sys.executable, "-m", "graphcut.benchmarking.contender", msgspec.json.encode(task).decode()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
        if not result.exists():
            return _last_words(done.stderr)
        return msgspec.json.decode(result.read_bytes(), type=BenchmarkRun)

    def _standing(self, way: str, runs: Sequence[BenchmarkRun], first: Sequence[BenchmarkRun], error: str) -> WayResult:
        title = WAYS[way].title
        if error or not runs:
            return WayResult(way, title, error=error)
        return WayResult(
            way,
            title,
            load_s=median(run.load_s for run in runs),
            run_s=median(run.run_s for run in runs),
            ratio=median(run.run_s / other.run_s for run, other in zip(runs, first, strict=True)),
            cpu_s=median(run.cpu_s for run in runs),
            peak_bytes=round(median(run.peak_bytes for run in runs)),
            difference=self._difference(way),
        )

    def _difference(self, way: str) -> float | None:
        with np.load(self._scratch / f"{_FIRST}.npz") as whole, np.load(self._scratch / f"{way}.npz") as other:
            pairs = [(whole[name], other[name]) for name in whole.files]
        if any(a.shape != b.shape or a.dtype.kind not in "biufc" for a, b in pairs):
            return None
        return max((_largest(a, b) for a, b in pairs if a.size), default=0.0)


def _largest(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return 0.0
    a, b = (array if array.dtype.kind in "fc" else array.astype(float) for array in (a, b))
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    return float(np.nanmax(np.abs(a - b)))


def _last_words(stderr: str) -> str:
    """The last line of a process that failed, without the name of the class of its error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return _CLASS.sub("", lines[-1]) if lines else "it ended, and said nothing"
