"""Sequences of tokens, and batches of sequences that are decoded together."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from ..core.errors import UsageError
from ..core.states import next_state
from ..running.sampling import TOKENS, LogitsChoice, Sampling, ScoredRow, TokenScores
from ..running.values import Value, rows_of
from ..workers.executors.protocol import Origin, Step
from ..workers.scheduling.requests import Request
from .decoder import Decoder
from .token_inputs import TokenChunk

MOST_ROOM: Final = 8192
"""Caches are written in place for sequences of at most so many tokens: for longer ones much would be reserved."""


class TokenSequence(msgspec.Struct):
    """The sequence that continues the prompt at `index`."""

    index: int
    unfed: tuple[int, ...]  #: the tokens that were not fed yet.
    max_tokens: int  #: the maximum number of generated tokens.
    sampling: Sampling  #: how the next token is chosen; the same in a batch.
    draws: int  #: what is drawn depends on this number.
    fed: list[int] = []  #: the tokens before them.
    generated: int = 0  #: how many of its tokens were generated.
    prompt_length: int = 0  #: the number of tokens that were not generated.
    top: int | None = None  #: the scores of its tokens and of so many of the likeliest are wanted; None for none.
    scores: list[TokenScores] = []  #: these, of all its generated tokens.
    reused: int = 0  #: how many of its tokens were not computed, because states of a sequence before were there.

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"can't generate {self.max_tokens} tokens", hint="ask for 1 or more")
        self.prompt_length = len(self.unfed)

    def next_length(self, piece: int | None) -> int:
        """The number of tokens of its next step, if it is alone: a `piece` of the prompt, or what was generated.

        The pieces are the same when it begins with states that were kept, and when it begins again.
        """
        past, prompt = len(self.fed), self.prompt_length
        return 1 if past >= prompt else min(prompt - past, piece - past % piece if piece else prompt)

    @property
    def longest(self) -> int:
        """The largest number of its tokens that may be fed: all but the last."""
        return len(self.fed) + len(self.unfed) + self.max_tokens - self.generated - 1

    def outside(self, vocabulary: int | None) -> UsageError | None:
        """The error for a token that the model has no logits for: the likely cause of a failed step."""
        largest = max((*self.fed, *self.unfed))
        if vocabulary is None or largest < vocabulary:
            return None
        message = f"token id {largest} of prompt {self.index} is outside the vocabulary ({vocabulary})"
        return UsageError(message, hint="use the tokenizer of this model")


class SequenceBatch:
    """Sequences that are decoded together.

    All have the same number of tokens after each step, so nothing is padded and no mask is needed. Where prompts are of
    unequal length, longer ones are still being fed while shorter ones are continued.
    """

    def __init__(
        self,
        number: int,
        sequences: Sequence[TokenSequence],
        decoder: Decoder,
        piece: int | None,
        origin: Origin | None = None,
    ) -> None:
        """Begin with the first token of all `sequences`, or after those that a single one shares with its `origin`.

        `number` tells the workers whose states are continued; see `TokenSequence.next_length` for `piece`.
        """
        self.number = number
        self.sequences = list(sequences)  #: in the order of the rows.
        self.chunk = TokenChunk(0, ())  #: the tokens of the last step.
        self.origin = origin  #: the sequence whose states it begins with.
        self.is_begun = False  #: its first step is done.
        self._decoder = decoder
        self._piece = piece
        room = min(max(one.longest for one in self.sequences), decoder.capacity or MOST_ROOM + 1)
        in_place = bool(decoder.room_axes) and room <= MOST_ROOM
        self._sent, zero_states = decoder.begin(len(self.sequences), room if in_place else 0)
        if origin is not None and not in_place:
            zero_states = {}
        self._next = Step(sequence=number, zero_states=zero_states, origin=origin, in_place=in_place)
        for one in self.sequences:
            tokens, one.reused = (*one.fed, *one.unfed), origin.kept if origin else 0
            one.unfed, one.fed = tokens[one.reused :], list(tokens[: one.reused])

    def request(self) -> Request:
        """The request of the next step. Its tokens count as fed."""
        past = len(self.sequences[0].fed)
        length = min(len(one.unfed) for one in self.sequences)
        if len(self.sequences) == 1 and self._decoder.presents:
            length = self.sequences[0].next_length(self._piece)
        length = min(length, self._decoder.most or length)
        rows = tuple(one.unfed[:length] for one in self.sequences)
        for one, now in zip(self.sequences, rows, strict=True):
            one.fed.extend(now)
            one.unfed = one.unfed[length:]
        if self._decoder.presents:
            self.chunk = TokenChunk(past, rows)
        else:
            self.chunk = TokenChunk(0, tuple(tuple(one.fed) for one in self.sequences))
        names = ", ".join(str(one.index) for one in self.sequences)
        title = f"sequence{'s' if len(self.sequences) > 1 else ''} {names}"
        feeds = self._decoder.feeds(self.chunk, self._sent)
        sampling = self.sequences[0].sampling
        ended = [
            ScoredRow(row, one.draws, len(one.fed), sampling.needed(one.fed), one.top) for row, one in self._complete()
        ]
        logits = self._decoder.cascade.tensors[self._decoder.logits]
        is_batch, length = self._decoder.has_batch, self.chunk.length
        self._choice = LogitsChoice(logits.name, logits.dtype, is_batch, length, sampling, tuple(ended))
        step = replace(self._next, choice=self._choice)
        self._next = Step(sequence=self.number, in_place=step.in_place)
        return Request(feeds, title, step)

    def step_done(self, answer: Mapping[str, Value]) -> list[tuple[TokenSequence, int]]:
        """The next token of each sequence whose tokens are all fed."""
        self.is_begun = True
        after = {past: answer[self._decoder.presents[past]] for past in self._sent}
        self._sent = {past: next_state(before, after[past]) for past, before in self._sent.items()}
        found = list[tuple[TokenSequence, int]]()
        for (_, one), (token, scores) in zip(self._complete(), self._choice.chosen(answer[TOKENS.name]), strict=True):
            one.scores += [] if scores is None else [scores]
            found.append((one, token))
        return found

    def _complete(self) -> list[tuple[int, TokenSequence]]:
        """The sequences whose tokens are all fed, with their rows."""
        return [(row, one) for row, one in enumerate(self.sequences) if not one.unfed]

    def drop_ended(self) -> bool:
        """Go on with the sequences that have a token to be fed. Returns whether there are any."""
        rows = [row for row, one in enumerate(self.sequences) if one.unfed]
        if rows and len(rows) < len(self.sequences):
            self.sequences = [self.sequences[row] for row in rows]
            axes = self._decoder.batch_axes or {}
            self._next = replace(self._next, rows={name: (axis, tuple(rows)) for name, axis in axes.items()})
            tensors = self._decoder.cascade.tensors
            self._sent = {n: rows_of(v, tensors[n], axes[n], rows) if n in axes else v for n, v in self._sent.items()}
        return bool(rows)
