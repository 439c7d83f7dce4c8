"""The command `graphcut run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import Via
from ..core.arguments import OnError
from ..core.errors import RunError, UsageError
from ..core.units import size
from .common_options import TRACES, OriginalOptions, Place, Places, SessionOptions, Texts, output_names, say_gap
from .input_files import RANDOM, FeedReader, feed_reader, is_random, read_or_generate, type_of, value_text
from .memory_options import MemoryOptions, say_after, say_before
from .output import SOME_FAILED, check_output, complain, counting, print_, print_lines, put_trace, say, workers_notes
from .text_options import texts_of

if TYPE_CHECKING:
    from .. import SessionConfig


_Answers = Iterator[dict[str, Any] | RunError]


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a run on several workers."""

    via: Via | None = None
    workers: int | None = None
    micro_batch: Annotated[Any, {"parser": lambda text: int(text) if text.isdecimal() else text}] = None
    deadline: float = 300
    trace: Place = None


def run(
    cascade_path: Path,
    pipeline: PipelineOptions,
    session: SessionOptions,
    original: OriginalOptions,
    memory: MemoryOptions,
    inputs: Places = None,
    text: Texts = None,
    output: Place = None,
    outputs: str | None = None,
    on_error: OnError = "raise",
    force: bool = False,
) -> None:
    """Run a cascade on inputs.

    `--inputs random` generates inputs, from a seed, with sizes of symbolic dimensions, for the model that was cut.

    Examples:
        graphcut run unet.parts --inputs random
        graphcut run llm.parts --inputs random -o y.npz --memory-limit 500MB
        graphcut run unet.parts --inputs random -o mask.npz --via threads
    """
    from ..core.manifest import open_cascade
    from ..core.present_parts import open_present
    from ..core.wiring import asked_for

    texts = texts_of(text)
    if bool(inputs) == bool(texts):
        what = "--inputs and --text were both given" if texts else "no inputs were given"
        raise UsageError(what, hint="give --inputs FILE, --inputs random to generate them, or --text TEXT")
    inputs = inputs or [RANDOM]
    is_generated = not texts and any(map(is_random, inputs))
    if pipeline.via and memory.memory_bytes is not None:
        raise UsageError("a memory limit is for one process, without other workers", hint="leave out one of them")
    check_output(pipeline.trace, cascade_path, *inputs, force=force, suffixes=TRACES)
    config, is_alone = session.session_config(), pipeline.via is None  # a pipeline checks what its workers need
    cascade = (open_present if is_alone else open_cascade)(cascade_path, check_files=is_alone)
    say_gap(cascade)
    if cascade.absent:
        absent = ", ".join(cascade.absent)
        if is_generated:
            raise UsageError("inputs can't be generated for some parts alone", hint="give a file with --inputs")
        say(f"note: running {', '.join(part.file for part in cascade.parts)} alone; not here: {absent}")
    feeds = feed_reader(cascade, inputs, output, on_error, force=force)
    if texts:
        from .. import text_inputs

        feeds.generated = text_inputs(cascade, texts)
    if is_generated:
        feeds.generated = read_or_generate(RANDOM, original.load(cascade), original.seed)
    names = asked_for(cascade.manifest.writes, output_names(outputs))
    run_all = partial(_in_this_process, memory) if is_alone else partial(_on_workers, pipeline, names)
    with run_all(feeds, config) as answers:
        failed = _save_all(feeds, answers, names)
    if failed:
        complain(f"{failed} of {len(feeds)} inputs failed")
        raise typer.Exit(SOME_FAILED)


@contextmanager
def _on_workers(
    options: PipelineOptions, outputs: Sequence[str], feeds: FeedReader, config: SessionConfig
) -> Iterator[_Answers]:
    """The outputs of each input, in order, from a pipeline of workers; afterwards a summary is printed."""
    from .. import Pipeline
    from ..drawing.terminal.runs import draw_run_log

    parts = {part.file: part for part in feeds.cascade.parts}
    with Pipeline(
        feeds.cascade.path,
        via=options.via or "threads",
        workers=options.workers,
        micro_batch=options.micro_batch,
        config=config,
        deadline_s=options.deadline,
        outputs=outputs,
    ) as pipeline:
        pipeline.log.notify, pipeline.log.is_tracing = workers_notes(), options.trace is not None
        yield pipeline.map(feeds, on_error=feeds.on_error)
    log, workers = pipeline.log, pipeline.workers
    noun = "piece" if pipeline.is_divided else "input"
    print_(lambda screen: draw_run_log(log, [*parts], workers, screen, noun=noun), stderr=True)
    if options.trace is not None:
        put_trace(log, parts, workers, options.trace)


@contextmanager
def _in_this_process(memory: MemoryOptions, feeds: FeedReader, config: SessionConfig) -> Iterator[_Answers]:
    """The outputs of each input, in order; predicted and measured memory are printed before and after."""
    from .. import Runner

    with Runner(feeds.cascade, memory_bytes=memory.memory_bytes, exact=memory.exact, config=config) as runner:
        with closing(runner.run_all(feeds, on_error=feeds.on_error)) as answers:
            say_before(runner, exact=memory.exact)
            yield answers
        say_after(runner, feeds.cascade.parts)
        if runner.copied_bytes:
            say(f"copied to and from devices: {size(runner.copied_bytes)}")


def _save_all(feeds: FeedReader, answers: _Answers, names: Sequence[str]) -> int:
    """Write or print the outputs with these names as they come; returns how many inputs failed."""
    failed = 0
    try:
        with counting("inputs", len(feeds)) as advance:
            for outputs in answers:
                if isinstance(outputs, RunError):
                    failed += 1
                    complain(f"{feeds.inputs[feeds.fed[0]]} failed: {outputs}")
                else:
                    _save(feeds, feeds.fed[0], {name: outputs[name] for name in names})
                feeds.fed.popleft()
                advance()
    except RunError as error:
        if feeds.folder is not None and feeds.fed:
            error.hint = f"{error.hint or 'look at the input'} (the run stopped at {feeds.inputs[feeds.fed[0]]})"
        raise
    if feeds.unread and feeds.on_error == "raise":
        raise feeds.unread[0]
    for unread in feeds.unread:
        complain(str(unread))
    failed += len(feeds.unread)
    if failed < len(feeds) and feeds.outputs:
        say(f"wrote {feeds.outputs[0] if feeds.folder is None else feeds.folder}")
    return failed


def _save(feeds: FeedReader, index: int, outputs: dict[str, Any]) -> None:
    from .. import save_outputs

    if not feeds.outputs:
        before = [f"{feeds.inputs[index]}:"] * (len(feeds) > 1)
        for line in (*before, *(f"{name}  {type_of(value)}  {value_text(value)}" for name, value in outputs.items())):
            print_lines(line.rstrip())
        return
    if feeds.folder is not None:
        feeds.folder.mkdir(exist_ok=True)
    save_outputs(outputs, feeds.outputs[index])
    if feeds.folder is None:
        for name, value in outputs.items():
            say(f"{name}  {type_of(value)}")
