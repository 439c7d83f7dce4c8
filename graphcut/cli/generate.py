"""The command `graphcut generate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from .. import Via
from ..core.errors import UsageError
from ..core.units import count
from .common_options import OriginalOptions, Places, SessionOptions, Texts, parsed_dims, say_gap
from .generated import Output, converse, print_as_it_comes, put
from .input_files import is_random, say_generated
from .memory_options import MemoryOptions, say_after, say_before
from .output import INTERRUPTED, SOME_FAILED, complain, print_, say, workers_notes
from .text_options import SamplingOptions, TextOptions, token_ids

_PAST_BYTES: Final = 1 << 30  #: so much of the past of a conversation is kept.

if TYPE_CHECKING:
    from .. import Generation
    from ..core.manifest import Cascade


def generate(
    cascade_path: Path,
    session: SessionOptions,
    text: TextOptions,
    drawing: SamplingOptions,
    memory: MemoryOptions,
    max_tokens: int = 64,
    beams: int = 1,
    draft: str | None = None,
    inputs: Places = None,
    dims: Texts = None,
    seed: int = 0,
    batch: int = 8,
    via: Via = "threads",
    workers: int | None = None,
    as_json: bool = False,
) -> None:
    """Generate text or tokens with a decoder.

    Every part keeps its own KV cache. What is generated is printed as it comes. Inputs are those that are the same at
    every step, or initial states; `random` generates the former. Of several sequences, one that fails ends alone.

    Examples:
        graphcut generate llm.parts --prompt-ids 1,15,27 --max-tokens 8
        graphcut generate llm.parts --prompt-ids random --temperature 0.8 --top-k 40
    """
    from .. import DecodingSettings, open_cascade
    from .. import generate as decoded

    original = OriginalOptions(dims=dims, seed=seed)
    cascade = open_cascade(cascade_path, check_files=False)  # `generate` checks what its workers need
    say_gap(cascade)
    given_prompts, fed = _prompts_and_inputs(cascade, text.prompt_ids or (), inputs or (), original)
    prompts, tokenizer = text.prompts_of(cascade, given_prompts, has_inputs=bool(fed))
    settings = DecodingSettings(inputs=fed, dims=parsed_dims(dims), via=via, workers=workers)
    settings |= {"memory_bytes": memory.memory_bytes, "exact": memory.exact}
    settings |= {"draft": draft, "cache_bytes": _PAST_BYTES if text.chat else 0}
    settings["config"], sampling = session.session_config(), drawing.sampling(seed)
    stop_ids, stop = text.stop_of(tokenizer)
    output_of = partial(Output, stop_ids=stop_ids, tokenizer=tokenizer, stop=stop)
    if beams > 1 and (text.chat or len(stop_ids) < len(stop)):
        hint = "leave out --beams, --chat, or the --stop that is no single token"
        raise UsageError("beams come as a whole, and end at a token", hint=hint)
    if text.chat and tokenizer is not None:
        converse(cascade, settings, tokenizer, output_of, max_tokens=max_tokens, sampling=sampling, as_json=as_json)
        return
    output = output_of(prompts)
    output.is_searched = beams > 1
    tokens = decoded(
        cascade.path,
        prompts,
        max_tokens=max_tokens,
        stop=output.ends if beams == 1 else output.stop_ids,
        sampling=sampling,
        beams=beams,
        batch=batch,
        on_error="skip" if len(prompts) > 1 else "raise",
        **settings,
    )
    tokens.log.notify = workers_notes()
    say_before(tokens.limited, exact=memory.exact)
    _print(cascade, tokens, output, as_json=as_json)


def _print(cascade: Cascade, tokens: Generation, output: Output, *, as_json: bool) -> None:
    """Print what is generated, how that went, and what failed."""
    was_interrupted = print_as_it_comes(tokens, output, as_json=as_json)
    say_after(tokens.limited, cascade.parts)
    if as_json and not was_interrupted:
        put(output.document(cascade, tokens, tokens.reused, tokens.ends))
    elif output.times:
        from ..drawing.terminal.runs import draw_run_log

        said, parts = output.sentence(tokens.log, tokens.reused), [part.file for part in cascade.parts]
        if full := sum(end == "full" for end in tokens.ends.values()):
            said += f" {count(full, 'sequence')} ended because the model has no room for more tokens."
        print_(lambda screen: draw_run_log(tokens.log, parts, tokens.workers, screen, said), stderr=True)
    if was_interrupted:
        complain("error: interrupted")  # nothing is said of files: there are none, and tokens were printed
        sys.exit(INTERRUPTED)
    for _, error in sorted(tokens.errors.items()):
        complain(str(error))
    if tokens.errors:
        complain(f"{len(tokens.errors)} of {count(len(tokens.ends), 'sequence')} failed")
        raise typer.Exit(SOME_FAILED)


def _prompts_and_inputs(
    cascade: Cascade, texts: Sequence[str], files: Sequence[Path], original: OriginalOptions
) -> tuple[list[list[int]], dict[str, object]]:
    """The prompts and the constant inputs that a command line names; what is generated of them is reported."""
    from .. import read_inputs

    asks_for_prompt, asks_for_inputs = "random" in texts, any(map(is_random, files))
    prompt, constants = _generated(cascade, original) if asks_for_prompt or asks_for_inputs else ([], {})
    if asks_for_prompt:
        say(f"prompt generated with --seed {original.seed}: {','.join(map(str, prompt))}")
    if asks_for_inputs:
        say_generated(constants, original.seed)
    reads, tensors = cascade.manifest.reads, cascade.tensors
    fed: dict[str, object] = {}
    for file in files:
        fed |= constants if is_random(file) else read_inputs(file, reads, tensors=tensors)
    return [prompt if text == "random" else token_ids("--prompt-ids", text) for text in texts], fed


def _generated(cascade: Cascade, original: OriginalOptions) -> tuple[list[int], dict[str, object]]:
    """A random prompt, and random inputs that neither are states nor follow from the tokens."""
    from .. import generate_inputs, roles_of
    from ..core.states import states_of

    tensors, roles = cascade.tensors, roles_of(cascade)
    if (ids := next((name for name, role in roles.items() if role == "ids"), None)) is None:
        raise UsageError("no input of the model is known to read tokens", hint="give token ids and input files")
    sizes = zip(tensors[ids].shape or (), (1, 8), strict=False)
    dims = [f"{dim}={size}" for dim, size in sizes if isinstance(dim, str)]
    feeds = generate_inputs(replace(original, dims=dims).load(cascade), seed=original.seed)
    past = {state.past for state in states_of(cascade, {})}
    constants = {name: value for name, value in feeds.items() if roles[name] is None and name not in past}
    return [int(token) for token in feeds[ids].ravel()], constants
