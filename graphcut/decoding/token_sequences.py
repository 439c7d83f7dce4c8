"""Sequences of tokens, and batches of sequences that are decoded together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from ..core.errors import UsageError, check_positive, wrong_type
from ..core.states import next_state
from ..running.sampling import TOKENS, LogitsChoice, Sampling, ScoredRow, TokenRules, TokenScores
from ..running.values import Value, rows_of
from ..workers.executors.protocol import KeptRow, Origin, Step
from ..workers.scheduling.requests import Request
from .decoder import Decoder
from .token_inputs import TokenChunk

MOST_ROOM: Final = 8192
"""Caches are written in place for sequences of at most so many tokens: for longer ones much would be reserved."""


class Proposals(Protocol):
    """What proposes tokens for one sequence, see `speculation`."""

    def propose(self, one: "TokenSequence", most: int) -> tuple[int, ...]:
        """At most so many tokens that may come next."""

    def judge(self, proposed: int, right: int) -> None:
        """So many of the proposed tokens were right."""


def token_ids(prompt: Iterable[int]) -> tuple[int, ...]:
    """The token ids of a prompt; a TypeError for a text, or for one number."""
    if isinstance(prompt, str) or not isinstance(prompt, Iterable):
        raise wrong_type(prompt, "the token ids of a prompt", hint="`encode(...)` of a Tokenizer makes them")
    return tuple(map(int, prompt))


class TokenSequence(msgspec.Struct):
    """The sequence that continues the prompt at `index`."""

    index: int
    unfed: tuple[int, ...]  #: the tokens that were not fed yet.
    max_tokens: int  #: the maximum number of generated tokens.
    sampling: Sampling  #: how the next token is chosen.
    draws: int  #: what is drawn depends on this number.
    fed: list[int] = []  #: the tokens before them.
    generated: int = 0  #: how many of its tokens were generated.
    prompt_length: int = 0  #: the number of tokens that were not generated.
    top: int | None = None  #: the scores of its tokens and of so many of the likeliest are wanted; None for none.
    scores: list[TokenScores] = []  #: these, of all its generated tokens.
    reused: int = 0  #: how many of its tokens were not computed, because states of a sequence before were there.
    is_alone: bool = False  #: a step that it shared failed, so it shares no other.
    first: int = 0  #: the place of its first generated token; by default that after `unfed`.
    inputs: Mapping[str, Value] = {}  #: what is fed at its first step alone, beside what all sequences are fed there.
    name: str = ""  #: how errors name its prompt; by default by its index.

    def __post_init__(self) -> None:
        check_positive(self.max_tokens, f"can't generate {self.max_tokens} tokens")
        self.prompt_length = len(self.unfed)
        self.first = self.first or self.prompt_length
        self.name = self.name or f"prompt {self.index}"

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

    def scored(self, row: int, drafts: Sequence[int], place: int, rules: TokenRules) -> ScoredRow:
        """How the token after those that were fed and `drafts` is chosen, see `ScoredRow`."""
        before, how = (*self.fed, *drafts), self.sampling
        rule = rules.at(len(before), self.first)
        return ScoredRow(row, self.draws, len(before), how.needed(before), how, self.top, place, rule)

    def outside(self, vocabulary: int | None) -> UsageError | None:
        """The error for a token that the model has no logits for: the likely cause of a failed step."""
        largest = max((*self.fed, *self.unfed))
        if vocabulary is None or largest < vocabulary:
            return None
        message = f"token id {largest} of {self.name} is outside the vocabulary ({vocabulary})"
        return UsageError(message, hint="use the tokenizer of this model")


class SequenceBatch:
    """Sequences that are decoded together.

    Those that begin together have the same number of tokens after each step, so nothing is padded and no mask is
    needed: longer prompts are still being fed while shorter ones are continued. Those that join later have other
    lengths, see `Decoder.padding`.
    """

    def __init__(
        self,
        number: int,
        sequences: Sequence[TokenSequence],
        decoder: Decoder,
        piece: int | None,
        origin: Origin | None = None,
        joined: "Sequence[SequenceBatch]" = (),
    ) -> None:
        """Begin with the first token of all `sequences`, or after those that a single one shares with its `origin`.

        Or go on with those of the batches that are `joined`, in their order. `number` tells the workers whose states
        are continued; see `TokenSequence.next_length` for `piece`.
        """
        self.number = number
        self.sequences = list(sequences)  #: in the order of the rows.
        self.chunk = TokenChunk(0, ())  #: the tokens of the last step.
        self.origin = origin  #: the sequence whose states it begins with.
        self.is_begun = bool(joined)  #: its first step is done.
        self._decoder = decoder
        self._axes = decoder.batch_axes or {}
        self._piece = piece
        self.proposals: Proposals | None = None  #: of tokens that may come next, while it is a single sequence.
        self.held = 0  #: how many tokens the states have, some of which may have been wrong.
        self._drafts: tuple[int, ...] = ()
        room = min(max(one.longest for one in self.sequences), decoder.capacity or MOST_ROOM + 1)
        in_place = bool(decoder.room_axes) and room <= MOST_ROOM
        self._sent, zero_states = decoder.begin(len(self.sequences), room if in_place else 0)
        if origin is not None and not in_place:
            zero_states = {}
        self._later = self._next = Step(sequence=number, in_place=in_place, room=room)  # what all its steps have
        self._count = len(self.sequences)  # the rows of its states
        #: the batch that has the states of each sequence, its row there, and the place of its first token.
        self.places: list[tuple[int, int, int]] = [place for batch in joined for place in batch.places]
        if joined:
            return
        self._next = replace(self._next, zero_states=zero_states, origin=origin, keeps=decoder.keeps)
        self.places = [(number, row, 0) for row in range(self._count)]
        for one in self.sequences:
            tokens, one.reused = (*one.fed, *one.unfed), origin.kept if origin else 0
            one.unfed, one.fed = tokens[one.reused :], list(tokens[: one.reused])

    def request(self) -> Request:
        """The request of the next step. Its tokens count as fed."""
        past = max(len(one.fed) for one in self.sequences)
        is_stateful = bool(self._decoder.presents)
        length = min(one.next_length(self._piece) if is_stateful else len(one.unfed) for one in self.sequences)
        length = min(length, self._decoder.most or length)
        missing = tuple(past - len(one.fed) for one in self.sequences)
        self._join(missing)
        self._drafts = self._proposed()
        rows = tuple(one.unfed[:length] for one in self.sequences)
        for one, now in zip(self.sequences, rows, strict=True):
            one.fed.extend(now)
            one.unfed = one.unfed[length:]
        if is_stateful:
            padding, missing = self._decoder.padding == "before", missing if any(missing) else ()
            self.chunk = TokenChunk(past, tuple((*row, *self._drafts) for row in rows), missing, padding)
            self.held = self.chunk.total
        else:
            self.chunk = TokenChunk(0, tuple(tuple(one.fed) for one in self.sequences))
        names = dict.fromkeys(str(one.index) for one in self.sequences)
        title = f"sequence{'s' if len(names) > 1 else ''} {', '.join(names)}"
        feeds, done = self._decoder.feeds(self.chunk, self._sent), self._decoder.once
        if not self.is_begun and self.origin is None:
            feeds, done = {**feeds, **self._decoder.constants, **self.sequences[0].inputs}, set()
        drafts, rules = self._drafts, self._decoder.says.rules
        places = range(1, len(drafts) + 2) if drafts else (0,)
        ended = [one.scored(row, drafts[:i], at, rules) for row, one in self._complete() for i, at in enumerate(places)]
        logits = self._decoder.cascade.tensors[self._decoder.logits]
        is_batch, length = self._decoder.has_batch, self.chunk.length
        self._choice = LogitsChoice(logits.name, logits.dtype, is_batch, length, tuple(ended))
        step = replace(self._next, choice=self._choice, length=length)
        self._next = self._later
        return Request(feeds, title, step, done)

    def _join(self, missing: Sequence[int]) -> None:
        """Let the states be those of the sequences, where some have ended or joined."""
        begins = missing if self._decoder.padding == "before" else [0] * len(missing)
        own = [(self.number, row) for row in range(self._count)]
        if [place[:2] for place in self.places] != own:
            rows = zip(self.places, self.sequences, begins, strict=True)
            joined = tuple(KeptRow(n, row, first, len(one.fed), begin) for (n, row, first), one, begin in rows)
            self._next = replace(self._next, rows=joined, batch_axes=self._axes)
        self._count = len(self.sequences)
        self.places = [(self.number, row, begin) for row, begin in enumerate(begins)]

    @property
    def asked(self) -> Sequence[TokenSequence]:
        """The sequences that begin again if a step fails: those that have not ended."""
        return self.sequences

    @property
    def is_generating(self) -> bool:
        """Whether it is begun, and all its sequences go on a token at a time."""
        return self.is_begun and all(len(one.fed) >= one.prompt_length for one in self.sequences)

    def step_done(self, answer: Mapping[str, Value]) -> Iterator[tuple[TokenSequence, int]]:
        """The next tokens of each sequence whose tokens are all fed: one, and those after proposed ones that are right.

        Between two tokens of a sequence it ends, or the first one is fed next.
        """
        self.is_begun = True
        after = {past: answer[self._decoder.presents[past]] for past in self._sent}
        self._sent = {past: next_state(before, after[past]) for past, before in self._sent.items()}
        found = self._choice.chosen(answer[TOKENS.name])
        if not self._drafts:
            for (_, one), (token, scores) in zip(self._complete(), found, strict=True):
                one.scores += [] if scores is None else [scores]
                yield one, token
            return
        (one,) = self.sequences
        right = 0
        for draft, (token, scores) in zip_longest(self._drafts, found):
            one.scores += [] if scores is None else [scores]
            yield one, token
            if not one.unfed or token != draft:
                break
            right += 1
            one.fed.append(token)
            one.unfed = ()
        if self.proposals is not None:
            self.proposals.judge(len(self._drafts), right)
        self._cut()

    def go_on_from(self, tokens: Sequence[int]) -> None:
        """Let the only sequence be the beginning of `tokens` that it has in common with them, the others to be fed."""
        (one,) = self.sequences
        same = next((i for i, (a, b) in enumerate(zip(one.fed, tokens, strict=False)) if a != b), len(one.fed))
        same = min(same, len(tokens) - 1)
        one.fed, one.unfed = list(tokens[:same]), tuple(tokens[same:])
        one.prompt_length = len(tokens)  # they are fed at once
        self._cut()

    def _cut(self) -> None:
        """Let the states forget the tokens that were wrong, in the next step."""
        (one,) = self.sequences
        if len(one.fed) < self.held:
            self._next = replace(self._next, cut=(self.held, len(one.fed)))

    def _proposed(self) -> tuple[int, ...]:
        """Proposed tokens, for a single sequence that has one token to be fed."""
        if self.proposals is None or len(self.sequences) > 1 or len(self.sequences[0].unfed) > 1:
            return ()
        (one,) = self.sequences
        most = min(one.longest, self._decoder.capacity or one.longest) - len(one.fed) - 1
        return self.proposals.propose(one, most) if one.generated else ()

    def _complete(self) -> list[tuple[int, TokenSequence]]:
        """The sequences whose tokens are all fed, with their rows."""
        return [(row, one) for row, one in enumerate(self.sequences) if not one.unfed]

    def drop_ended(self) -> bool:
        """Go on with the sequences that have a token to be fed. Returns whether there are any."""
        rows = [row for row, one in enumerate(self.sequences) if one.unfed]
        if rows and len(rows) < len(self.sequences):
            self._take(rows)
        return bool(rows)

    def _take(self, rows: Sequence[int]) -> None:
        """Go on with the sequences in these rows, which are not in the memory of workers before the next step."""
        self.sequences, self.places = [self.sequences[row] for row in rows], [self.places[row] for row in rows]
        axes, tensors = self._axes, self._decoder.cascade.tensors
        self._sent = {n: rows_of(v, tensors[n], axes[n], rows) if n in axes else v for n, v in self._sent.items()}
