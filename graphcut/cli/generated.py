"""What `generate` prints: token ids or texts as they come, the answers of a conversation, and how fast they came."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..core.errors import UsageError
from ..core.text import escaped
from ..core.units import count, duration
from .output import say

if TYPE_CHECKING:
    from ..running.decoding.generation import Generation
    from ..running.text.tokenizer import Tokenizer

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
        self._stop_ids = frozenset((*stop_ids, *(tokenizer.stop if tokenizer else ())))
        self._new = ""

    def ends(self, sequence: int, token: int) -> bool:
        """Whether a token ends its sequence: it is a stop token, or completes a stop text."""
        is_last = token in self._stop_ids
        if not self.is_text:
            self._new = f"{' ' if self.tokens[sequence] else ''}{token}"
            return is_last
        self._new = "" if is_last else self._streams[sequence].add(token)
        return is_last or self._streams[sequence].is_stopped

    def take(self, sequence: int, token: int, tokens: Generation) -> str:
        """What to print of the token that `ends` was asked about last."""
        self.times.append(perf_counter())
        self.loaded_s = max(self.began_s, tokens.log.first_s or 0)
        self.tokens[sequence].append(token)
        self.texts[sequence] += self._new
        return self._new

    def rest(self, sequence: int) -> str:
        """What to print when a sequence has ended: the text that was held back."""
        text = self._streams[sequence].end() if self.is_text else ""
        self.texts[sequence] += text
        return text

    @property
    def rates(self) -> tuple[float | None, float | None, float | None]:
        """Seconds until the first token; tokens a second of a single prompt, once parts were loaded; and later ones."""
        times = self.times
        if not times:
            return None, None, None
        prompt_rate = len(self.prompts[0]) / (times[0] - self.loaded_s) if len(self.prompts) == 1 else None
        rate = (len(times) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else None
        return times[0] - self.began_s, prompt_rate, rate

    def sentence(self) -> str:
        """How many tokens, and how fast."""
        first_s, prompt_rate, rate = self.rates
        said = f"{count(len(self.times), 'token')}, the first after {duration(first_s or 0)}"
        said += f", then {rate:,.1f} a second" if rate else ""
        if prompt_rate:
            said += f"; the prompt of {count(len(self.prompts[0]), 'token')} at {prompt_rate:,.1f} a second"
        return f"{said}."


class Chat:
    """A conversation: each line of the standard input is a message, and is answered."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Collection[int], stop: Sequence[str]) -> None:
        """Nothing is read yet."""
        self._settings = stop_ids, tokenizer, stop
        self._output = Output([], *self._settings)
        self._is_interrupted = False

    def ends(self, _sequence: int, token: int) -> bool:
        """Whether a token ends the answer, or Ctrl-C did."""
        return self._output.ends(0, token) or self._is_interrupted

    def prompts(self) -> Iterator[list[int]]:
        """The conversation up to each new message. The answer to one is complete when the next is asked for."""
        messages: list[dict[str, str]] = []
        while (line := _line()) is not None:
            messages.append({"role": "user", "content": line})
            prompt = self._settings[1].chat(messages)
            self._output, self._is_interrupted = Output([prompt], *self._settings), False
            before = signal.signal(signal.SIGINT, self._interrupt)
            try:
                yield prompt
            finally:
                signal.signal(signal.SIGINT, before)
                put(f"{self._output.rest(0)}\n")
            messages.append({"role": "assistant", "content": self._output.texts[0]})
            say(self._output.sentence())

    def converse(self, tokens: Generation) -> None:
        """Print the answers as they come."""
        with closing(tokens):
            for _, token in tokens:
                put(self._output.take(0, token, tokens))

    def _interrupt(self, *_: object) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True


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


def print_as_it_comes(tokens: Generation, output: Output, *, is_silent: bool) -> bool:
    """Print what is generated, unless `is_silent`. Returns whether Ctrl-C ended that.

    A single sequence is printed as it comes, or else a line for each sequence, in the order of the prompts, when it and
    all before it have ended.
    """
    show = (lambda _: None) if is_silent else put
    sequences, printed, was_interrupted = len(output.prompts), 0, False
    output.began_s = perf_counter()
    try:
        for sequence, token in tokens:
            piece = output.take(sequence, token, tokens)
            if sequences == 1:
                show(piece)
            while sequences > 1 and printed in tokens.ends:
                output.rest(printed)
                show(f"{output.texts[printed]}\n")
                printed += 1
    except KeyboardInterrupt:
        tokens.close()
        was_interrupted = True
    for sequence in range(printed, sequences):  # the only one, and those that failed later or were interrupted
        rest = output.rest(sequence)
        show(f"{rest if sequences == 1 else output.texts[sequence]}\n")
    return was_interrupted


def put(text: str) -> None:
    """Print text at once; on a terminal with escapes for control characters other than line ends and tabs."""
    sys.stdout.write(_CONTROLS.sub(lambda found: escaped(found[0]), text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
