"""Beam search: several continuations of a prompt go on together, and the best one that has ended is what is generated.

Scores, penalties for lengths and the end of a search are those of transformers (`_beam_search`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from math import inf

from msgspec.structs import replace

from ..core.errors import RunError, UsageError, check_positive
from ..running.sampling import TokenScores
from ..running.values import Value, rows_of
from ..workers.scheduling.requests import Request
from .decoder import Decoder, DecodingSettings
from .generation_config import GenerationConfig
from .token_sequences import SequenceBatch, TokenSequence


class BeamSearch:
    """Which continuations go on, the beams, and which have ended. A score is the sum of log probabilities.

    Of one that has ended it is divided by the number of its tokens to the power of `length_penalty`.
    """

    def __init__(self, width: int, most: int, says: GenerationConfig, is_last: Callable[[int], bool]) -> None:
        """Search for the best of `width` that end with a token that `is_last`, or after `most` tokens."""
        self.ended: list[tuple[float, tuple[int, ...]]] = []  #: the best, with their scores; the best one first.
        self._beams: list[tuple[float, tuple[int, ...]]] = []  # in the order of the rows
        self._width, self._most, self._says, self._is_last = width, most, says, is_last

    def step(self, scores: Sequence[TokenScores]) -> list[tuple[int, int]]:
        """Take the likeliest next tokens of each beam.

        Returns, for each beam that goes on, the one that it continues, and its new token; none if the search has ended.
        """
        self._beams = self._beams or [(0.0, ()), *[(-inf, ())] * (len(scores) - 1)]  # rows may begin alike
        rows = zip(self._beams, scores, strict=True)
        found = [
            (score + logprob, row, (*tokens, token))
            for row, ((score, tokens), of) in enumerate(rows)
            for token, logprob in dict(of.top).items()
            if score + logprob > -inf
        ]
        if not found:
            raise RunError("no beam can go on: the logits are not finite", hint="check the cascade with `verify(...)`")
        found.sort(key=lambda one: (-one[0], one[1:]))
        length, (penalty, early) = len(found[0][2]), (self._says.length_penalty, self._says.early_stopping)
        going, before = list[tuple[float, int, tuple[int, ...]]](), [*self.ended]
        for rank, (score, row, tokens) in enumerate(found):
            if length < self._most and not self._is_last(tokens[-1]):
                going.append((score, row, tokens))
            elif rank < self._width:
                before.append((score / length**penalty, tokens))
        self.ended = sorted(before, key=lambda one: -one[0])[: self._width]
        if not going:
            return []
        if len(self.ended) == self._width:
            # The length that a beam may still get decides how good it may become.
            best = going[0][0] / (self._most if early == "never" and penalty > 0 else length) ** penalty
            if early is True or best <= self.ended[-1][0]:
                return []
        placed = _in_place(going[: self._width])
        self._beams = [(score, tokens) for score, _, tokens in placed]
        return [(row, tokens[-1]) for _, row, tokens in placed]


def _in_place(going: Sequence[tuple[float, int, tuple[int, ...]]]) -> list[tuple[float, int, tuple[int, ...]]]:
    """Each in the row that it continues, as far as it is the first there: then nothing is copied for it."""
    own = {row: one for one in reversed(going) if (row := one[1]) < len(going)}
    others = (one for one in going if own.get(one[1]) is not one)
    return [own.get(row) or next(others) for row in range(len(going))]


class BeamBatch(SequenceBatch):
    """The beams of one sequence, which is told its tokens when the search has ended."""

    def __init__(
        self, number: int, one: TokenSequence, decoder: Decoder, width: int, is_last: Callable[[int], bool]
    ) -> None:
        """Begin with the prompt of `one`, see `BeamSearch`."""
        rows = 1 if decoder.is_copyable else width
        super().__init__(number, [_like(one, one.unfed) for _ in range(rows)], decoder, None)
        self._one = one
        room = one.max_tokens if decoder.capacity is None else decoder.capacity - len(one.unfed) + 1
        self._search = BeamSearch(width, min(one.max_tokens, room), decoder.says, is_last)
        self._axes = decoder.row_axes or {}

    @property
    def asked(self) -> list[TokenSequence]:
        """The sequence whose beams these are."""
        return [self._one]

    def request(self) -> Request:
        """See `SequenceBatch.request`."""
        rows, axes, tensors = len(self.sequences), self._decoder.copy_axes, self._decoder.cascade.tensors
        self._next = replace(self._next, copies=(rows, axes))
        made = super().request()
        own = axes.keys() & made.feeds.keys() if rows > 1 else ()
        copied = {name: rows_of(made.feeds[name], tensors[name], axes[name], [0] * rows) for name in own}
        return replace(made, feeds={**made.feeds, **copied})

    def step_done(self, answer: Mapping[str, Value]) -> Iterator[tuple[TokenSequence, int]]:
        """The tokens of the sequence, if the search has ended."""
        if not [*super().step_done(answer)]:
            return  # some of the prompt is not fed yet
        if found := self._search.step([one.scores[-1] for one in self.sequences]):
            self._take([row for row, _ in found])
            self.sequences = [_like(one, (token,)) for one, (_, token) in zip(self.sequences, found, strict=True)]
            return
        self.sequences = (one,) = self.asked
        one.fed, one.unfed = [*one.unfed], ()
        for token in self._search.ended[0][1]:
            yield one, token
            one.fed.append(token)
            one.unfed = ()


def check_beams(beams: int, decoder: Decoder, settings: DecodingSettings) -> None:
    """Raise a UsageError if there can't be a beam search of this width."""
    check_positive(beams, f"can't search with {beams} beams")
    if beams > 1 and decoder.row_axes is None:
        hint = "export it with an axis of any size for the batch"
        raise UsageError("beams need a model that takes several sequences in a step", hint=hint)
    if beams > 1 and (settings.get("memory_bytes") is not None or settings.get("draft") is not None):
        raise UsageError("beams take neither a memory limit nor a draft", hint="leave out one of them")


def _like(one: TokenSequence, unfed: tuple[int, ...]) -> TokenSequence:
    """A copy of a sequence that goes on with other tokens."""
    made = copy(one)
    made.fed, made.unfed, made.scores = [*one.fed], unfed, []
    return made
