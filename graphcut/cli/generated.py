"""What `generate` prints: token ids or texts as they come, the answers of a conversation, and how fast they came."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..core.errors import GraphcutError, UsageError
from ..core.text import escaped
from ..core.units import count, duration
from .memory_options import say_after, say_before
from .output import say, settings, workers_notes

if TYPE_CHECKING:
    from .. import DecodingSettings, FinishReason, Generation, RunLog, Sampling, Tokenizer
    from ..core.manifest import Cascade

_CONTROLS: Final = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")


class Output:
    """Sequences as token ids, or as texts if there is a tokenizer, and when their tokens came."""

    def __init__(
        self, prompts: list[list[int]], stop_ids: Collection[int], tokenizer: Tokenizer | None, stop: Sequence[str]
    ) -> None:
        """Sequences end at token ids, those of the tokenizer included, and before texts."""
        self.prompts = prompts
        self.is_text = tokenizer is not None
        self.tokens: list[list[int]] = [[] for _ in prompts]  #: of each sequence.
        self.texts = [""] * len(prompts)  #: what is printed of each.
        self.began_s = self.loaded_s = perf_counter()
        self.times = list[float]()  #: when each token came.
        self._streams = [tokenizer.stream(prompt, stop) for prompt in prompts] if tokenizer else []
        self.stop_ids = frozenset((*stop_ids, *(tokenizer.stop if tokenizer else ())))
        self.new = ""  #: what to print of the last token.
        self.is_searched = False  #: its tokens come when a beam search has ended, and `ends` was not asked about them.

    def ends(self, sequence: int, token: int) -> bool:
        """Whether a token ends its sequence: it is a stop token, or completes a stop text."""
        is_last = token in self.stop_ids
        if not self.is_text:
            self.new = f"{' ' if self.tokens[sequence] else ''}{token}"
            return is_last
        self.new = "" if is_last else self._streams[sequence].add(token)
        return is_last or self._streams[sequence].is_stopped

    def take(self, sequence: int, token: int, tokens: Generation) -> None:
        """Add the token that `ends` was asked about last."""
        if self.is_searched:
            self.ends(sequence, token)
        self.times.append(perf_counter())
        self.loaded_s = max(self.began_s, tokens.log.first_s or 0)
        self.tokens[sequence].append(token)
        self.texts[sequence] += self.new

    def rest(self, sequence: int) -> str:
        """What to print when a sequence has ended: the text that was held back."""
        text = self._streams[sequence].end() if self.is_text else ""
        self.texts[sequence] += text
        return text

    def line(self, sequence: int, token: int) -> str:
        """The last token as a line of JSON."""
        from ..drawing.json_records import dumps

        record = {"sequence": sequence, "token": token, "text": self.new if self.is_text else None}
        return f"{dumps(record, indent=0)}\n"

    def document(self, cascade: Cascade, tokens: Generation, reused: int, ends: Mapping[int, FinishReason]) -> str:
        """The record of all sequences, as a line of JSON."""
        from ..drawing.json_records import dumps
        from ..drawing.run_records import DeathRecord, GenerationRecord, PartRunRecord, SequenceRecord

        texts = self.texts if self.is_text else [None] * len(self.prompts)
        rows, errors = zip(self.prompts, self.tokens, texts, strict=True), tokens.errors
        found = [SequenceRecord(*r, ends[i], str(errors[i]) if i in errors else None) for i, r in enumerate(rows)]
        log = tokens.log
        steps = ((part.file, log.total_of(i), log.waited_s[i]) for i, part in enumerate(cascade.parts))
        parts = (PartRunRecord(file, total.runs, total.seconds, waited_s) for file, total, waited_s in steps)
        deaths = (DeathRecord(tokens.workers[worker], why) for worker, why, _ in log.deaths)
        record = GenerationRecord(tuple(found), *self.rates, reused, tuple(parts), tuple(deaths))
        return f"{dumps(record, indent=0)}\n"

    @property
    def rates(self) -> tuple[float | None, float | None, float | None]:
        """Seconds until the first token; tokens a second of a single prompt, once parts were loaded; and later ones."""
        times = self.times
        if not times or self.is_searched:  # what beams found comes at once
            return times[0] - self.began_s if times else None, None, None
        prompt_rate = len(self.prompts[0]) / (times[0] - self.loaded_s) if len(self.prompts) == 1 else None
        rate = (len(times) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else None
        return times[0] - self.began_s, prompt_rate, rate

    def sentence(self, log: RunLog, reused: int) -> str:
        """How many tokens, how fast, and how long a step took in each part; `reused` tokens were not computed."""
        first_s, prompt_rate, rate = self.rates
        which = "all" if self.is_searched else "the first"
        said = f"{count(len(self.times), 'token')}, {which} after {duration(first_s or 0)}"
        if (waited_s := self.loaded_s - self.began_s) > 0:
            said += f", {duration(waited_s)} of these before parts could run"
        said += f", then {rate:,.1f} a second" if rate else ""
        if prompt_rate:
            said += f"; the prompt of {count(len(self.prompts[0]), 'token')} at {prompt_rate:,.1f} a second"
            said += f", {reused:,} of them reused" if reused else ""
        totals = [log.total_of(part) for part in range(len(log.waited_s))]
        each = " + ".join(duration(total.seconds / total.runs) for total in totals if total.runs)
        return f"{said}; a step took {each} in the parts, on average, the first included." if each else f"{said}."


def converse(
    cascade: Cascade,
    settings: DecodingSettings,
    tokenizer: Tokenizer,
    output_of: Callable[[list[list[int]]], Output],
    *,
    max_tokens: int,
    sampling: Sampling,
    as_json: bool,
) -> None:
    """Answer each line of the standard input, as it comes. Ctrl-C ends an answer."""
    from .. import DecodingService

    messages: list[dict[str, str]] = []
    with DecodingService(cascade.path, most=1, **settings) as service:
        generation = service.generation
        say_before(generation.limited, exact=settings["exact"])
        generation.log.notify = workers_notes()
        while (line := _line()) is not None:
            messages.append({"role": "user", "content": line})
            output = output_of([tokenizer.chat(messages)])
            stream = service.stream(output.prompts[0], max_tokens=max_tokens, sampling=sampling)
            with closing(stream) as tokens, suppress(KeyboardInterrupt):
                for token in tokens:
                    is_last = output.ends(0, token)
                    output.take(0, token, generation)
                    put(output.line(len(messages) // 2, token) if as_json else output.new)
                    if is_last:
                        break
            rest, reused = output.rest(0), stream.sequence.reused
            messages.append({"role": "assistant", "content": output.texts[0]})
            if as_json:
                put(output.document(cascade, generation, reused, {0: stream.end or "stop"}))
            else:
                put(f"{rest}\n")
                say(output.sentence(generation.log, reused))
    say_after(generation.limited, cascade.parts)


def _line() -> str | None:
    """The next message; None at the end of the input."""
    try:
        while not (line := input("> " if sys.stdin.isatty() else "").strip()):
            pass
    except EOFError:
        return None
    except UnicodeDecodeError:
        raise UsageError("the standard input can't be read: it is not UTF-8", hint="send text in UTF-8") from None
    return line


def print_as_it_comes(tokens: Generation, output: Output, *, as_json: bool) -> bool:
    """Print what is generated. Returns whether Ctrl-C ended that.

    A single sequence is printed as it comes, or else a line for each sequence, in the order of the prompts, when it and
    all before it have ended. As JSON each token is a line.
    """
    sequences, printed, was_interrupted = len(output.prompts), 0, False
    output.began_s = perf_counter()
    try:
        for sequence, token in tokens:
            output.take(sequence, token, tokens)
            if as_json:
                put(output.line(sequence, token))
            elif sequences == 1:
                put(output.new)
            while not as_json and sequences > 1 and printed in tokens.ends:
                put(f"{output.texts[printed]}{output.rest(printed)}\n")
                printed += 1
    except KeyboardInterrupt:
        tokens.close()
        was_interrupted = True
    except GraphcutError:
        if settings.is_in_line and not as_json:
            put("\n")
        raise
    for sequence in range(printed, sequences):  # the only one, and those that failed later or were interrupted
        text, rest = output.texts[sequence], output.rest(sequence)
        if not as_json:
            put(f"{rest if sequences == 1 else text + rest}\n")
    return was_interrupted


def put(text: str) -> None:
    """Print text at once; on a terminal with escapes for control characters other than line ends and tabs."""
    sys.stdout.write(_CONTROLS.sub(lambda found: escaped(found[0]), text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
    if text:
        settings.is_in_line = not text.endswith("\n")
