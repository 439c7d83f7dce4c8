"""The command `graphcut generate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Option

from ..core.errors import UsageError
from ..core.units import count, duration
from .application import check_applicable, given_options
from .common_options import AsJson, CascadePath, Inputs, OriginalOptions, SessionOptions, States, Via, Workers, open_
from .input_files import is_random, say_generated
from .memory_options import NEEDS_MEMORY, MemoryOptions, say_after, say_before
from .output import complain, print_, print_json, say

if TYPE_CHECKING:
    from ..core.manifest import Cascade
    from ..running.decoding.generation import Generation

_SOME_FAILED: Final = 3
_RANDOM_LENGTH: Final = 8  #: tokens of a random prompt.


def generate(
    ctx: typer.Context,
    cascade_path: CascadePath,
    prompt_ids: Annotated[list[str], Option(metavar="N,N,...", help="Token ids of a prompt, or `random`. Repeatable.")],
    session: SessionOptions,
    original: OriginalOptions,
    memory: MemoryOptions,
    max_tokens: Annotated[int, Option(metavar="N", min=1, help="Tokens to generate at most.")] = 64,
    stop_ids: Annotated[list[str] | None, Option(metavar="N,N,...", help="Token ids that end a sequence.")] = None,
    max_context: Annotated[int | None, Option(metavar="N", min=1, help="Tokens of a sequence at most.")] = None,
    inputs: Inputs = None,
    state: States = None,
    batch: Annotated[int, Option(metavar="N", min=1, help="Sequences that are decoded together at most.")] = 8,
    via: Annotated[Via, Option(help="Where the parts run.")] = "threads",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Generate tokens with a decoder, greedily.

    Every part keeps its own KV cache. Token ids are printed as they come. --inputs gives inputs that are the same at
    every step, or initial states; `random` generates the former. Of several sequences, one that fails ends alone.
    """
    from ..core.states import parse_state_pairs
    from ..running.decoding.generation import generate as decode

    given = given_options(ctx)
    check_applicable(given, NEEDS_MEMORY, given)
    if memory.memory is not None and {"--via", "--workers"}.intersection(given):
        raise UsageError("--memory limits one process, and --via starts workers", hint="leave out one of them")
    stop = [number for text in stop_ids or () for number in _ids("--stop-ids", text)]
    states = parse_state_pairs(state or ())
    cascade = open_(cascade_path)
    prompts, fed = _prompts_and_inputs(cascade, prompt_ids, inputs or (), states, original)
    tokens = decode(
        cascade,
        prompts,
        max_tokens=max_tokens,
        stop=stop,
        inputs=fed,
        states=states,
        dims=original.dims,
        max_context=max_context,
        batch=batch,
        on_error="skip" if len(prompts) > 1 else "raise",
        via=via,
        workers=workers,
        memory_bytes=memory.memory_bytes,
        exact=memory.exact,
        forced=memory.force_memory,
        config=session.session_config(),
    )
    if tokens.limited is not None:
        say_before(tokens.limited, exact=memory.exact)
    made, times = _printed(tokens, len(prompts), is_silent=as_json)
    if as_json:
        from ..drawing.run_records import generation_record

        began = times[0] if times else None
        print_json(generation_record(cascade, tokens, list(zip(prompts, made, strict=True)), began, _rate(times)))
    elif times:
        _summarize(cascade, tokens, made, times)
    if tokens.limited is not None:
        say_after(tokens.limited, cascade.parts)
    for _, error in sorted(tokens.errors.items()):
        complain(str(error))
    if tokens.errors:
        complain(f"{len(tokens.errors)} of {count(len(prompts), 'sequence')} failed")
        raise typer.Exit(_SOME_FAILED)


def _prompts_and_inputs(
    cascade: Cascade, texts: Sequence[str], files: Sequence[Path], states: Mapping[str, str], original: OriginalOptions
) -> tuple[list[list[int]], dict[str, object]]:
    """The prompts and the constant inputs that a command line names; what is generated of them is reported."""
    from ..inputs.input_files import read_inputs

    asks_for_prompt, asks_for_inputs = "random" in texts, any(map(is_random, files))
    prompt, constants = _generated(cascade, states, original) if asks_for_prompt or asks_for_inputs else ([], {})
    if asks_for_prompt:
        say(f"prompt generated with --seed {original.seed}: {','.join(map(str, prompt))}")
    if asks_for_inputs:
        say_generated(constants, original.seed)
    reads, tensors = cascade.manifest.reads, cascade.tensors
    fed: dict[str, object] = {}
    for file in files:
        fed |= constants if is_random(file) else read_inputs(file, reads, tensors=tensors)
    return [prompt if text == "random" else _ids("--prompt-ids", text) for text in texts], fed


def _generated(
    cascade: Cascade, states: Mapping[str, str], original: OriginalOptions
) -> tuple[list[int], dict[str, object]]:
    """A random prompt, and random inputs that neither are states nor follow from the tokens."""
    from ..core.states import states_of
    from ..inputs.generating import generate as generate_inputs
    from ..running.decoding.token_inputs import role_of

    tensors = {name: cascade.tensors[name] for name in cascade.manifest.reads}
    roles = {name: role_of(tensor) for name, tensor in tensors.items()}
    ids = next((name for name, role in roles.items() if role == "ids"), None)
    if ids is None:
        raise UsageError("no input of the model is called input_ids", hint="give token ids and input files")
    sizes = zip(tensors[ids].shape or (), (1, _RANDOM_LENGTH), strict=False)
    dims = [f"{dim}={size}" for dim, size in sizes if isinstance(dim, str)]
    feeds = generate_inputs(replace(original, dim=dims).load(cascade), seed=original.seed)
    past = {state.past for state in states_of(cascade, states)}
    constants = {name: value for name, value in feeds.items() if roles[name] is None and name not in past}
    return [int(token) for token in feeds[ids].ravel()], constants


def _ids(option: str, text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise UsageError(
            f"{option} {text!r} is not a comma-separated list of token ids", hint=f"for example {option} 1,15,27"
        )
    return [int(word) for word in words]


def _printed(tokens: Generation, sequences: int, *, is_silent: bool) -> tuple[list[list[int]], list[float]]:
    """The tokens of each sequence, and the times at which tokens came.

    Printed are the tokens of a single sequence as they come, or else a line for each sequence, in the order of the
    prompts, when it and all before it have ended.
    """
    made: list[list[int]] = [[] for _ in range(sequences)]
    began, times, printed = perf_counter(), list[float](), 0
    for sequence, token in tokens:
        times.append(perf_counter() - began)
        made[sequence].append(token)
        if not is_silent and sequences == 1:
            _put(f"{' ' if len(made[0]) > 1 else ''}{token}")
        while not is_silent and sequences > 1 and printed in tokens.ends:
            _put(" ".join(map(str, made[printed])) + "\n")
            printed += 1
    if not is_silent and sequences > 1:  # what failed after the last token
        _put("".join(" ".join(map(str, row)) + "\n" for row in made[printed:]))
    if not is_silent and sequences == 1:
        _put("\n")
    return made, times


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _rate(times: Sequence[float]) -> float | None:
    """Tokens per second after the first; None for less than two."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else None


def _summarize(cascade: Cascade, tokens: Generation, made: Sequence[Sequence[int]], times: Sequence[float]) -> None:
    from ..drawing.terminal.runs import draw_run_log

    rate = _rate(times)
    total = sum(map(len, made))
    said = f"{count(total, 'token')}, the first after {duration(times[0])}"
    said += f", then {rate:,.1f} a second." if rate else "."
    if full := sum(end == "full" for end in tokens.ends.values()):
        said += f" {count(full, 'sequence')} ended because the model has no room for more tokens."
    parts = [part.file for part in cascade.parts]
    print_(lambda console: draw_run_log(tokens.log, parts, tokens.workers, console, said), stderr=True)
