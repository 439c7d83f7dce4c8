"""Which sequences share a step: all that generate, whatever their lengths, once a trial has shown that they may."""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf
from typing import Final

from msgspec.structs import replace

from ..running.sampling import GREEDY, TokenScores
from ..running.values import Value
from .decoder import Decoder
from .token_sequences import SequenceBatch, TokenSequence

_LENGTHS: Final = (9, 1)  #: the tokens of the prompts that are tried together: most of the shorter one is padding.
_TOP: Final = 5  #: so many of the likeliest tokens are compared.
_ROUNDING: Final = 1e-3  #: log probabilities may differ by so much, for those of size 1,
_HALF_ROUNDING: Final = 5e-2  #: and of models that keep 16 bits.


class SharedSteps:
    """Whether sequences of different lengths share steps.

    Their inputs and states say that they may, see `Decoder.padding`, and a trial whether the right thing is computed:
    two short sequences are decoded alone and together, and the scores must be equal up to rounding.
    """

    def __init__(self, decoder: Decoder, numbers: Iterator[int], *, may: bool) -> None:
        """`numbers` are those of batches. Without `may` there is no trial: each batch is decoded apart."""
        is_possible = may and decoder.padding is not None and (decoder.capacity or inf) >= sum(_LENGTHS) + 1
        #: whether they may; None as long as it is not known.
        self.verdict: bool | None = None if is_possible else False
        self.used: list[int] = []  #: the numbers of the trial's batches.
        self._decoder, self._numbers = decoder, numbers
        self._trial: Iterator[SequenceBatch] | None = None
        self._next: SequenceBatch | None = None

    def begin(self) -> None:
        """Begin the trial if it is needed, and was not begun."""
        if self.verdict is None and self._trial is None:
            self._trial = self._steps()
            self._next = next(self._trial)

    def next_batch(self) -> SequenceBatch | None:
        """The batch of the trial whose step comes next, once."""
        found, self._next = self._next, None
        return found

    def step_done(self, batch: SequenceBatch, answer: Mapping[str, Value]) -> None:
        """A step of the trial is done."""
        for one, token in batch.step_done(answer):
            one.generated += 1
            one.unfed = (token,)
        if self._trial is not None:
            self._next = next(self._trial, None)

    def failed(self, *, is_lost: bool) -> None:
        """A step of the trial failed. It begins again if only states were lost."""
        self._trial, self.verdict = None, None if is_lost else False

    def join(self, batches: list[SequenceBatch], piece: int | None) -> SequenceBatch:
        """One batch of the sequences of several."""
        sequences = list(chain.from_iterable(batch.sequences for batch in batches))
        return SequenceBatch(next(self._numbers), sequences, self._decoder, piece, joined=batches)

    def _steps(self) -> Iterator[SequenceBatch]:
        """The batches of the trial, each for one step. At the end the verdict is whether the scores are equal."""
        size = self._decoder.vocabulary or 16
        prompts = [tuple(i % size for i in range(1, length + 1)) for length in _LENGTHS]
        own = [TokenSequence(-1, prompt, 2, GREEDY, 0, top=_TOP, is_alone=True) for prompt in prompts]
        alone = [SequenceBatch(next(self._numbers), [one], self._decoder, None) for one in own]
        self.used = [batch.number for batch in alone]
        for batch in alone:
            while not batch.sequences[0].generated:
                yield batch
        together = self.join(alone, None)
        together.sequences = [replace(one, fed=[*one.fed], scores=[]) for one in own]
        self.used.append(together.number)
        yield together
        yield from alone
        rounding = _ROUNDING if self._decoder.is_precise else _HALF_ROUNDING
        pairs = zip(together.sequences, own, strict=True)
        self.verdict = all(_are_close(one.scores[-1], other.scores[-1], rounding) for one, other in pairs)


def _are_close(one: TokenScores, other: TokenScores, rounding: float) -> bool:
    """Whether the log probabilities of two steps are equal up to rounding. Tokens that are as likely may be swapped."""
    pairs = zip(*([own.logprob, *(logprob for _, logprob in own.top)] for own in (one, other)), strict=True)
    return all(abs(a - b) <= rounding * (1 + abs(b)) for a, b in pairs)
