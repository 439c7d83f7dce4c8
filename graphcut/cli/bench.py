"""The command `graphcut bench`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from .. import WAYS
from ..core.arguments import Optimization
from .common_options import OriginalOptions, Texts, say_gap
from .input_files import RANDOM, read_or_generate
from .output import SOME_FAILED, complain, put_answer, say

LEGEND: Final = {"Ways": {name: way.description for name, way in WAYS.items()}}


def bench(
    cascade_path: Path,
    original: OriginalOptions,
    inputs: Path = RANDOM,
    rounds: int = 3,
    way: Annotated[Texts, {"autocompletion": lambda: [(name, way.description) for name, way in WAYS.items()]}] = None,
    optimize: Optimization = "all",
    as_json: bool = False,
) -> None:
    """Compare the model and its parts: time, memory, outputs.

    Examples:
        graphcut bench llm.parts --way parts --rounds 1
        graphcut bench llm.parts --way threads --rounds 1
    """
    from .. import BenchmarkRecord, bench, open_cascade
    from .result_tables import draw_benchmark

    cascade = open_cascade(cascade_path)
    say_gap(cascade)
    whole = original.load(cascade)
    results = bench(
        cascade,
        read_or_generate(inputs, whole, original.seed),
        model=whole.path,
        ways=tuple(way or WAYS),
        rounds=rounds,
        optimize=optimize,
        progress=lambda title, number: say(f"round {number + 1} of {rounds}: {title}"),
    )
    others = max(result.others_cores for result in results)
    if others > 0.2:  # below this, they hardly change the times
        complain(f"other programs kept {others:.1f} cores busy: compare the processor column, not times and ratios")
    put_answer(BenchmarkRecord(results), partial(draw_benchmark, results), as_json=as_json)
    tried = [result for result in results if not result.way.startswith("whole")] or results[1:]
    if tried and all(result.error for result in tried):
        raise typer.Exit(SOME_FAILED)
