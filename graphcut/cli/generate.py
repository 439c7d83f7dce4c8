"""A cascade that speaks: generate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import UsageError
from ..core.units import count, duration
from .common_options import AsJson, CascadePlace, Quiet, States, app, dims, open_
from .output import print_json
from .run import Via, session_config

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..running.decoding.generation import Generation


@app.command()
def generate(
    place: CascadePlace,
    prompt_ids: Annotated[
        list[str], typer.Option(metavar="N,N,...", help="The token ids of a prompt. Repeatable, for several sequences.")
    ],
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="How many tokens follow a prompt at most.")] = 64,
    stop_ids: Annotated[
        list[str] | None, typer.Option(metavar="N,N,...", help="Tokens after which a sequence ends.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many tokens a sequence may have, prompt included.")
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A .npz file with inputs that stay the same, or states to begin with."),
    ] = None,
    state: States = None,
    dim: Annotated[
        list[str] | None, typer.Option("--dim", metavar="NAME=N", help="A size of a state, where nothing tells it.")
    ] = None,
    via: Annotated[Via, typer.Option(help="Where the parts run.")] = Via.threads,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many workers share the parts.")] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="The execution provider, such as CUDAExecutionProvider.")
    ] = None,
    provider_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="What it is told, in its own words. Repeatable.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Greedy decoding through the parts, each of which keeps its own cache. Token ids go to stdout as they come."""
    from ..core.states import parse_state_pairs
    from ..inputs.input_files import read_inputs
    from ..running.decoding.generation import generate as decode

    prompts = [_ids("--prompt-ids", text) for text in prompt_ids]
    cascade = open_(place)
    fed: dict[str, object] = {}
    for file in inputs or ():
        fed |= read_inputs(file, cascade.manifest.reads, tensors=cascade.tensors)
    tokens = decode(
        cascade,
        prompts,
        max_tokens=max_tokens,
        stop=[number for text in stop_ids or () for number in _ids("--stop-ids", text)],
        inputs=fed,
        states=parse_state_pairs(state or ()),
        dims=dims(dim),
        max_context=max_context,
        via=via.value,
        workers=workers,
        config=session_config(provider, provider_option),
    )
    made, times = _spoken(tokens, len(prompts), shows=not as_json)
    if as_json:
        print_json(_record(cascade, tokens, prompts, made, times))
    elif not quiet:
        _sum_up(cascade, tokens, made, times)


def _ids(option: str, text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{option} {text!r} is no list of token ids", hint="write it like 1,15,27")
    return [int(word) for word in words]


def _spoken(tokens: Generation, sequences: int, *, shows: bool) -> tuple[list[list[int]], list[float]]:
    """The tokens of all sequences, and when they came.

    What is shown: the tokens of a single sequence as they come, else a line for each sequence, in the order of the
    prompts, once it and all before it are over.
    """
    made: list[list[int]] = [[] for _ in range(sequences)]
    began, times, told = perf_counter(), list[float](), 0
    for sequence, token in tokens:
        times.append(perf_counter() - began)
        made[sequence].append(token)
        if shows and sequences == 1:
            _put(f"{' ' if len(made[0]) > 1 else ''}{token}")
        while shows and sequences > 1 and told in tokens.ends:
            _put(" ".join(map(str, made[told])) + "\n")
            told += 1
    if shows and sequences == 1:
        _put("\n")
    return made, times


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _rate(times: Sequence[float]) -> float | None:
    """Tokens a second after the first; None where that says nothing."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else None


def _record(
    cascade: Cascade, tokens: Generation, prompts: Sequence[Sequence[int]], made: Sequence[Sequence[int]],
    times: Sequence[float],
) -> dict[str, Any]:  # fmt: skip
    log = tokens.log
    sums = [log.total_of(place) for place in range(len(cascade.parts))]
    return {
        "sequences": [
            {"prompt": list(prompt), "tokens": list(own), "end": tokens.ends[place]}
            for place, (prompt, own) in enumerate(zip(prompts, made, strict=True))
        ],
        "first_token_s": times[0],
        "tokens_per_s": _rate(times),
        "parts": [
            {"file": part.file, "steps": total.runs, "run_s": total.seconds, "waited_s": waited}
            for part, total, waited in zip(cascade.parts, sums, log.waited_s, strict=True)
        ],
        "deaths": [{"worker": tokens.workers[worker], "why": why} for worker, why, _ in log.deaths],
    }


def _sum_up(cascade: Cascade, tokens: Generation, made: Sequence[Sequence[int]], times: Sequence[float]) -> None:
    from ..drawing.run_report import draw_run_log
    from .output import console_

    rate = _rate(times)
    total = sum(map(len, made))
    said = f"{count(total, 'token')}, the first after {duration(times[0])}"
    said += f", then {rate:,.1f} a second." if rate else "."
    if full := sum(end == "full" for end in tokens.ends.values()):
        said += f" {count(full, 'sequence')} ended since there is no room for more tokens."
    console = console_(stderr=True)
    console.print(draw_run_log(tokens.log, [part.file for part in cascade.parts], tokens.workers, console, said))
