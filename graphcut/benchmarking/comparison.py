"""Compare the ways to run a model: several rounds of each, medians, and ratios to the whole model."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from ..core.arguments import Optimization
from ..core.errors import CascadeError, RunError, UsageError, check_names, check_positive, check_word
from ..core.manifest import CascadeLike, open_cascade
from ..core.product import Product
from ..running.npz_files import save_outputs
from ..verifying.differences import difference
from .contender import BenchmarkRun, BenchmarkTask
from .ways import BASELINE, WAYS

_NUMBERS: Final = "biufc"  #: the kinds of numpy arrays that hold numbers.


class WayResult(Product, BenchmarkRun, frozen=True, kw_only=True):
    """The result for one way; times and memory are medians over the rounds."""

    way: str  #: its name in `WAYS`.
    title: str  #: its title.
    ratio: float = 0.0  #: `run_s` divided by that of the whole model in the same round.
    #: the largest absolute difference from the outputs of the whole model; 0 if all bits are the same, None if they
    #: can't be compared.
    difference: float | None = None
    error: str = ""  #: why it could not run; empty if it ran.


class BenchmarkRecord(Product, msgspec.Struct, frozen=True, tag_field="format", tag="graphcut.benchmark/1"):
    """The results of the ways to run a model."""

    ways: tuple[WayResult, ...]  #: one result for each way.


def bench(
    cascade: CascadeLike,
    feed: Mapping[str, Any],
    *,
    model: Path | None = None,
    ways: Sequence[str] = tuple(WAYS),
    rounds: int = 3,
    optimize: Optimization = "all",
    progress: Callable[[str, int], None] | None = None,
) -> tuple[WayResult, ...]:
    """Measure the whole model and its cascade in several ways, on one feed.

    The whole model is measured in any case. Each way is started anew in each round, in a process of its own, and runs
    the feed for about a second.

    Args:
        cascade: the cascade or its path.
        feed: the inputs by name: arrays of numbers.
        model: the whole model, if it has moved.
        ways: names in `WAYS`.
        rounds: how often each way is started; of a figure the median counts.
        optimize: ONNX Runtime's graph optimizations.
        progress: called before a way is started, with its title and the index of the round.

    Returns:
        The whole model first, then a result for each of `ways`; that of a way that failed has an error.

    Raises:
        UsageError: there is no such way, `rounds` is below 1, an input has no numbers, or the model is a pipeline.
        CascadeError: there is no such cascade or model, or a file of them was changed.
        RunError: the whole model can't be run.
    """
    check_names(ways, WAYS, "there is no way", "choose from", " to run a cascade")
    check_word(optimize, Optimization, "optimize")
    check_positive(rounds, f"can't measure in {rounds} rounds")
    cascade = open_cascade(cascade)
    source = model or cascade.source
    if source.is_dir() or source.suffix == ".toml":
        hint = "`verify(...)` compares their outputs; measure the cascade of one of its models"
        raise UsageError(f"{source} is a pipeline of models, which has no session to be compared with", hint=hint)
    if not source.is_file():
        raise CascadeError(f"the whole model {source} does not exist", hint="name it with `model`")
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    if strange := next((name for name, array in arrays.items() if array.dtype.kind not in _NUMBERS), None):
        hint = "only models with numeric inputs can be compared"
        raise UsageError(f"input {strange!r} is not an array of numbers", hint=hint)
    measured: dict[str, list[BenchmarkRun]] = {way: [] for way in (BASELINE, *ways)}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="graphcut-bench-") as folder:
        places = {"model": str(source), "cascade": str(cascade.path), "folder": folder}
        task = BenchmarkTask(way=BASELINE, **places, runs=3, optimize=optimize)
        save_outputs(arrays, task.inputs)
        pilot = _measured(task)
        if isinstance(pilot, str):
            raise RunError(f"{source} can't be run: {pilot}", hint="give inputs that it accepts with `inputs`")
        runs = min(200, max(3, round(1.0 / max(pilot.run_s, 1e-6))))  # about a second for each round
        for number in range(rounds):
            for way in [way for way in measured if way not in failed]:
                if progress is not None:
                    progress(WAYS[way].title, number)
                found = _measured(replace(task, way=way, runs=runs))
                if isinstance(found, str):
                    failed[way] = found
                else:
                    measured[way].append(found)
        if BASELINE in failed:
            message = f"{source} ran once and then failed: {failed[BASELINE]}"
            raise RunError(message, hint="is there enough memory for it?")
        lost = {way: WayResult(way=way, title=WAYS[way].title, error=error) for way, error in failed.items()}
        return tuple(lost.get(way) or _result(way, runs, measured[BASELINE], folder) for way, runs in measured.items())


def _measured(task: BenchmarkTask) -> BenchmarkRun | str:
    """What a process of its own measured, or the last line of its error."""
    task.result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "graphcut.benchmarking.contender", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this package
    if task.result.exists():
        return msgspec.json.decode(task.result.read_bytes(), type=BenchmarkRun)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # The last line of a traceback begins with the class of the error.
    return re.sub(r"^[\w.]+: (?=\S)", "", lines[-1]) if lines else "it ended without a message"


def _result(way: str, runs: Sequence[BenchmarkRun], whole: Sequence[BenchmarkRun], folder: str) -> WayResult:
    with np.load(f"{folder}/{BASELINE}.npz") as expected, np.load(f"{folder}/{way}.npz") as found:
        gap = largest_difference([(expected[name], found[name]) for name in expected.files])
    ratio = median(run.run_s / other.run_s for run, other in zip(runs, whole, strict=True))
    figures = {name: median_low(getattr(run, name) for run in runs) for name in BenchmarkRun.__struct_fields__}
    return WayResult(way=way, title=WAYS[way].title, ratio=ratio, difference=gap, **figures)


def largest_difference(pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> float | None:
    """The largest absolute difference in pairs of arrays; None if shapes differ or a pair holds no numbers.

    A NaN that only one array has is an infinite difference.
    """
    if any(a.shape != b.shape or a.dtype.kind not in _NUMBERS for a, b in pairs):
        return None
    return difference([a for a, _ in pairs], [b for _, b in pairs])[0]
