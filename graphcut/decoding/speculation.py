"""Speculation: several tokens are proposed, and one step of the decoder tells which of them it would have chosen.

Each token is chosen from the scores of the decoder as without proposals, with the same random number for its place. So
the tokens are the same, drawn or not, up to the rounding of a step of several tokens. A proposed token is right as
often as rejection sampling of a certain proposal has it (Leviathan et al. 2023).
"""

from itertools import cycle, islice
from math import inf
from typing import Final

from ..core.errors import RunError, UsageError
from ..core.manifest import CascadeLike, open_cascade
from ..running.stage import SessionConfig, Stage
from ..workers.executors.worker import Worker
from .decoder import Decoder
from .token_sequences import SequenceBatch, TokenSequence

_LONGEST: Final = 8  #: the maximum number of proposed tokens.
_WORDS: Final = 3  #: tokens that must have been there before for those after them to be proposed; at least two of them.
_LONGEST_PAUSE: Final = 64


class Lookup:
    """Proposes what came after the last tokens where these were there before (prompt lookup; Saxena 2023)."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # by tokens, the place after their last occurrence but the newest
        self._tokens = list[int]()

    def propose(self, one: TokenSequence, most: int) -> tuple[int, ...]:
        """See `Proposals`."""
        tokens, known = self._tokens, len(self._tokens)
        tokens += (*one.fed[known:], *one.unfed)
        for place in range(known, len(tokens)):  # the newest are looked up before they are noted
            for words in range(2, min(_WORDS, place) + 1):
                self._ends[tuple(tokens[place - words : place])] = place
        places = (self._ends.get(tuple(tokens[-words:])) for words in range(_WORDS, 1, -1))
        place = next((place for place in places if place is not None), len(tokens))
        return tuple(islice(cycle(tokens[place:]), most))  # what repeats goes on with what came before it


class DraftDecoder:
    """A smaller decoder of the same tokenizer, which proposes what it would say itself. It runs in this process."""

    def __init__(self, draft: CascadeLike, decoder: Decoder, config: SessionConfig) -> None:
        """Load it, for sequences of `decoder`.

        Raises:
            UsageError: it has other tokens, or its states can't be cut.
        """
        cascade = open_cascade(draft)
        self.decoder = Decoder(cascade, {})
        if None not in (own := (self.decoder.vocabulary, decoder.vocabulary)) and len({*own}) > 1:
            message = f"{cascade.path} has {own[0]} tokens, and the model has {own[1]}"
            raise UsageError(message, hint="propose tokens with a decoder of the same tokenizer")
        if not self.decoder.is_cuttable:
            message = f"{cascade.path} can't propose tokens: its states can't be cut where a token was wrong"
            raise UsageError(message, hint="take a decoder with a KV cache")
        self.worker = Worker(cascade, self.decoder.kept, lambda i: Stage(cascade, cascade.parts[i], config=config))
        self.worker.hold(frozenset(range(len(cascade.parts))))


class DraftProposer:
    """Proposes for one sequence what a smaller decoder says, which draws with the same random numbers."""

    def __init__(self, draft: DraftDecoder, one: TokenSequence, number: int) -> None:
        """`number` is that of the sequence's batch."""
        self._draft = draft
        left = one.max_tokens - one.generated + 1
        own = TokenSequence(one.index, (*one.fed, *one.unfed), left, one.sampling, one.draws, first=one.first)
        self._batch = SequenceBatch(number, [own], draft.decoder, None)
        self._parts = tuple(range(len(draft.decoder.cascade.parts)))
        self._outputs = tuple(draft.decoder.routing().outputs)
        self._has_failed = False

    def propose(self, one: TokenSequence, most: int) -> tuple[int, ...]:
        """See `Proposals`. A draft that fails, for example since it takes no text that long, proposes no more."""
        if self._has_failed:
            return ()
        self._batch.go_on_from([*one.fed, *one.unfed])
        (own,), found = self._batch.sequences, list[int]()
        try:
            self._extend(own, found, most)
        except RunError:
            self._has_failed = True
        return tuple(found)

    def _extend(self, own: TokenSequence, found: list[int], most: int) -> None:
        while len(found) < most and len(own.fed) + len(own.unfed) <= (self._draft.decoder.capacity or inf):
            request = self._batch.request()
            step = request.step(0, self._parts, self._outputs)
            for _, token in self._batch.step_done(self._draft.worker.run(step, request.feeds)[0]):
                own.unfed = (token,)
                found.append(token)


class Speculation:
    """How many tokens of a sequence are proposed: more where they are right, none for a while where they are not.

    To look tokens up costs next to nothing, so they are proposed only after one that was looked up, and not proposed,
    was right: where text does not repeat, no step has more than its own token.
    """

    def __init__(self, proposer: Lookup | DraftProposer) -> None:
        self._proposer = proposer
        self._most = 2
        self._pause = self._waits = 0
        self._is_trusted = not isinstance(proposer, Lookup)
        self._guess: int | None = None  # the next token, as far as it was looked up and not proposed

    def propose(self, one: TokenSequence, most: int) -> tuple[int, ...]:
        """See `Proposals`."""
        self._waits -= 1
        if most <= 0 or (self._waits >= 0 and self._is_trusted):
            return ()
        self._is_trusted = self._is_trusted or one.unfed[:1] == (self._guess,)
        found = self._proposer.propose(one, min(most, self._most))
        if self._is_trusted and self._waits < 0:
            return found
        self._guess = found[0] if found else None
        return ()

    def judge(self, proposed: int, right: int) -> None:
        """See `Proposals`."""
        if right == proposed:
            self._most = min(2 * self._most, _LONGEST)
        elif 2 * right < proposed:
            self._most = max(2, self._most // 2)
        self._pause = 0 if right else min(2 * self._pause + 1, _LONGEST_PAUSE)
        self._waits = self._pause
        self._is_trusted = bool(right) or not isinstance(self._proposer, Lookup)
        self._guess = None
