"""A cascade at work: run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from ..core.errors import RunError, UsageError
from .common_options import CascadePlace, Force, app, check_goal_file, open_
from .input_files import FeedFiles, InputFiles, input_files
from .output import console_, counting, say

if TYPE_CHECKING:
    from ..running.in_process.runner import Runner
    from ..running.stage import SessionConfig

_SOME_FAILED = 3

_Answer = dict[str, Any] | RunError


class Via(StrEnum):
    """Who runs the parts of a pipeline."""

    threads = "threads"
    processes = "processes"
    ray = "ray"


class OnError(StrEnum):
    """What becomes of an input that fails."""

    stop = "raise"
    skip = "skip"


@app.command()
def run(
    place: CascadePlace,
    inputs: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="A .npz file with the model's inputs by name; an ONNX test-data folder; or a folder of these. "
            "Repeatable.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The .npz file to write; for many inputs, a folder.")
    ],
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What this process may have in memory, such as 300MiB.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --memory: bit for bit what the whole model gives, but slower.")
    ] = False,
    via: Annotated[Via | None, typer.Option(help="Run as a pipeline of workers: each owns parts.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="With --via: how many.")] = None,
    micro_batch: Annotated[
        str | None, typer.Option(metavar="N|auto", help="With --via: divide batches into pieces of N examples.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="With --via: who loads or first runs longer is taken for hung; 300."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --via: a timeline for ui.perfetto.dev, as .json.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="The execution provider, such as CUDAExecutionProvider.")
    ] = None,
    provider_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="What it is told, in its own words. Repeatable.")
    ] = None,
    on_error: Annotated[OnError, typer.Option(help="Stop at the first input that fails, or go on.")] = OnError.stop,
    force: Force = False,
) -> None:
    """Run a cascade on the inputs of a file, or of many."""
    only_via = {"--workers": workers, "--micro-batch": micro_batch, "--deadline": deadline, "--trace": trace}
    _check_words(memory, via, only_via, exact=exact)
    check_goal_file(trace, force=force, option="--trace")
    pipeline = _Pipeline(via, workers, _length(micro_batch), deadline, trace) if via else None
    config = session_config(provider, provider_option)
    cap = None if memory is None else _cap(memory)
    cascade = open_(place)
    files = input_files(cascade, inputs, output, force=force)
    feeds = FeedFiles(files, goes_on=on_error is OnError.skip)
    answered = (
        _through(feeds, pipeline, config, on_error)
        if pipeline
        else _in_this_process(feeds, config, cap, on_error, exact=exact)
    )
    with answered as answers:
        failed = _save_all(feeds, answers)
    if failed:
        say(f"{failed} of {len(files)} inputs failed")
        raise typer.Exit(_SOME_FAILED)


class _Pipeline(NamedTuple):
    """What a command line says of a pipeline."""

    via: Via
    workers: int | None
    micro_batch: int | Literal["auto"] | None
    deadline_s: float | None
    trace: Path | None


def _length(text: str | None) -> int | Literal["auto"] | None:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--micro-batch {text} is no number of examples", hint="write --micro-batch 8, or auto")
    return int(text)


def _check_words(memory: str | None, via: Via | None, only_via: Mapping[str, object], *, exact: bool) -> None:
    if memory is not None and via is not None:
        raise UsageError("--memory is for one process, and --via for many workers", hint="leave out one of them")
    if exact and memory is None:
        raise UsageError(
            "--exact says something with --memory only", hint="without it every run is exact; leave it out"
        )
    for option, value in only_via.items():
        if value is not None and via is None:
            raise UsageError(f"{option} says something with --via only", hint="add --via threads or --via processes")


def _cap(memory: str) -> int:
    from ..core.units import parse_bytes

    return parse_bytes(memory)


def session_config(provider: str | None, options: Sequence[str] | None) -> SessionConfig:
    """How sessions are built, from what a command line says of the provider."""
    from ..running.stage import SessionConfig

    told = {}
    for text in options or ():
        key, found, value = text.partition("=")
        if not (found and key):
            raise UsageError(f"--provider-option {text} does not say KEY=VALUE", hint="write it like device_id=0")
        told[key] = value
    return SessionConfig(provider=provider, options=told)


@contextmanager
def _through(
    feeds: FeedFiles, asked: _Pipeline, config: SessionConfig, on_error: OnError
) -> Iterator[Iterator[_Answer]]:
    """The outputs for each input, in order, from a pipeline; what happened is said afterwards."""
    from ..drawing.run_report import draw_run_log
    from ..running.chrome_trace import save_trace
    from ..running.pipelined import Pipeline
    from ..running.scheduling.scheduler import DEADLINE_S

    cascade = feeds.files.cascade
    parts = [part.file for part in cascade.parts]
    with Pipeline(
        cascade,
        via=asked.via.value,
        workers=asked.workers,
        micro_batch=asked.micro_batch,
        config=config,
        is_tracing=asked.trace is not None,
        deadline_s=DEADLINE_S if asked.deadline_s is None else asked.deadline_s,
    ) as pipeline:
        yield pipeline.map(feeds, on_error=on_error.value)
    console = console_(stderr=True)
    console.print(draw_run_log(pipeline.log, parts, pipeline.workers, console, are_pieces=pipeline.is_divided))
    if asked.trace is not None:
        save_trace(pipeline.log, parts, pipeline.workers, asked.trace)
        say(f"wrote {asked.trace}")


@contextmanager
def _in_this_process(
    feeds: FeedFiles, config: SessionConfig, cap: int | None, on_error: OnError, *, exact: bool
) -> Iterator[Iterator[_Answer]]:
    """The outputs for each input, in order; what memory it takes is said before and after."""
    from ..running.in_process.runner import Runner

    with Runner(feeds.files.cascade, config=config, memory_bytes=cap, exact=exact) as runner:
        with closing(runner.run_all(feeds, on_error=on_error.value)) as answers:
            _say_before(runner, exact=exact)
            yield answers
        _say_after(runner)


def _say_before(runner: Runner, *, exact: bool) -> None:
    from ..core.units import size

    forecast = runner.forecast
    if forecast is None or forecast.memory_bytes is None:
        return
    about = "about " if forecast.is_about else ""
    say(f"predicted peak {about}{size(forecast.peak_bytes)} of {size(forecast.memory_bytes)}: {forecast.residency}")
    if forecast.is_mapped and not exact:
        say("weights are mapped from disk: the last bits may differ from the whole model's; --exact keeps them")
    if forecast.spills:
        say("tensors that wait between parts go to a temporary folder where they find no room")


def _say_after(runner: Runner) -> None:
    from ..core.units import size

    peak, forecast = runner.peak, runner.forecast
    if peak is None or forecast is None or forecast.memory_bytes is None:
        return
    since = ", since the process began" if peak.is_since_start else ""
    say(f"measured peak {size(peak.bytes)} (resident pages{since})")
    if peak.bytes > forecast.memory_bytes:
        say(
            f"that is more than {size(forecast.memory_bytes)}: sizes were estimated; "
            "split with --dim for the sizes you run, and they are known"
        )


def _save_all(feeds: FeedFiles, answers: Iterator[_Answer]) -> int:
    """Write the outputs as they come; how many inputs failed.

    Raises:
        UsageError: an input can't be read, and failures end the run.
        RunError: an input fails, and failures end the run; or the run itself does, or its outputs can't be written.
    """
    files, failed = feeds.files, 0
    try:
        with counting("inputs", len(files)) as advance:
            for outputs in answers:
                if isinstance(outputs, RunError):
                    failed += 1
                    say(f"{files.places[feeds.fed[0]]} failed: {outputs}")
                else:
                    _save(files, feeds.fed[0], outputs)
                feeds.fed.popleft()
                advance()
    except RunError as error:
        if files.folder is not None and feeds.fed:
            error.hint = f"{error.hint or 'look at the input'} (the run stopped at {files.places[feeds.fed[0]]})"
        raise
    if feeds.unread and not feeds.goes_on:
        raise feeds.unread[0]
    for unread in feeds.unread:
        say(str(unread))
    failed += len(feeds.unread)
    if failed < len(files):
        say(f"wrote {files.goals[0] if files.folder is None else files.folder}")
    return failed


def _save(files: InputFiles, number: int, outputs: dict[str, Any]) -> None:
    """Write the outputs for one input."""
    from ..running.npz_files import save_outputs

    if files.folder is not None:
        files.folder.mkdir(exist_ok=True)
    save_outputs(outputs, files.goals[number])
    if files.folder is None:
        for name, value in outputs.items():
            say(f"{name}  {_kind(value)}")


def _kind(value: object) -> str:
    return f"{getattr(value, 'dtype', '')}{list(getattr(value, 'shape', ()))}"
