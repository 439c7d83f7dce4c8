"""Choosing the next token: the most likely one, or one drawn at random. Workers do it, since they have the logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np

from ..core.errors import RunError, UsageError
from ..core.tensors import Tensor
from .values import Array, Value, from_array, view_of

TOKENS: Final = Tensor(name="the tokens chosen", dtype="int64", shape=(None,))
"""The tensor in which a worker returns the tokens that it chose. No part of a cascade writes it."""


_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen from the scores (logits) of all tokens.

    The fields apply in this order, as in Hugging Face's generation and ONNX Runtime GenAI: `repetition_penalty`,
    `temperature`, `top_k`, `top_p`. What is drawn depends on `seed`, a number of the sequence (the index of its prompt)
    and the number of tokens before, and not on batches, workers or restarts.

    Raises:
        UsageError: a number is out of its range.
    """

    #: above 0. A token that is in the sequence already, prompt included, has its score divided by it (Keskar et al.
    #: 2019, CTRL, section 4.1), or multiplied if it is negative.
    repetition_penalty: float = 1.0
    temperature: float = 0.0  #: scores are divided by it. 0: the most likely token, of equally likely ones the first.
    top_k: int = 0  #: draw from so many of the most likely tokens, and from those that equal the last one; 0 for all.
    #: above 0, at most 1: draw from the fewest most likely tokens whose probabilities sum up to this or more.
    top_p: float = 1.0
    seed: int = 0  #: the random seed.

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("repetition_penalty", 0 < self.repetition_penalty <= _LARGEST, "above 0, in the range of float32"),
            ("temperature", 0 <= self.temperature <= _LARGEST, "0 or more, in the range of float32"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0, at most 1"),
            ("seed", 0 <= self.seed < 2**64, "0 or more, less than 2**64"),
        ):
            if not is_right:
                raise UsageError(f"{name} can't be {getattr(self, name)}", hint=f"`{name}` is {expected}")

    def choose(self, scores: Array, before: Sequence[int], sequence: int) -> int:
        """The next token of the sequence with the number `sequence`, which has the tokens `before`.

        Raises:
            RunError: nothing can be drawn, because scores are not numbers.
        """
        if self.repetition_penalty != 1:
            scores = self._penalized(scores, before)
        if not self.temperature:
            return int(scores.argmax())
        tokens, weights = self._candidates(scores.astype(np.float64))
        sums = np.cumsum(weights)
        if not sums[-1] < np.inf:
            hint = "check the cascade with `verify(...)`"
            raise RunError("no token can be drawn: the logits are not finite", hint=hint)
        drawn = np.random.default_rng((self.seed, sequence, len(before))).random() * sums[-1]
        return int(tokens[min(int(np.searchsorted(sums, drawn, side="right")), len(tokens) - 1)])

    def needed(self, before: Sequence[int]) -> tuple[int, ...]:
        """The tokens before, if `choose` needs more of them than their number: with a penalty; else none."""
        return tuple(before) if self.repetition_penalty != 1 else ()

    def _penalized(self, scores: Array, before: Sequence[int]) -> Array:
        scores, seen = scores.astype(np.float32), np.unique(before)
        seen = seen[seen < len(scores)]
        old, penalty = scores[seen], np.float32(self.repetition_penalty)
        scores[seen] = np.where(old < 0, old * penalty, old / penalty)
        return scores

    def _candidates(self, scores: Array) -> tuple[Array, Array]:
        """The tokens to draw from, and their probabilities up to a factor."""
        tokens = np.arange(len(scores))
        if 0 < self.top_k < len(scores):
            tokens = np.flatnonzero(scores >= np.partition(scores, -self.top_k)[-self.top_k])
        weights = np.exp((scores[tokens] - scores[tokens].max()) / self.temperature)
        if self.top_p < 1:
            total = weights.sum()
            # All tokens below this together are less than what is left out, so the others need not be sorted.
            likely = np.flatnonzero(weights * len(weights) >= (1 - self.top_p) * total)
            order = likely[np.argsort(-weights[likely], kind="stable")]
            kept = order[: int(np.searchsorted(np.cumsum(weights[order]), self.top_p * total)) + 1]
            tokens, weights = tokens[kept], weights[kept]
        return tokens, weights


GREEDY: Final = Sampling()  #: the most likely token.


class TokenRule(NamedTuple):
    """What holds for the token in one place of a sequence, whatever its score."""

    never: tuple[int, ...] = ()  #: the tokens that it can't be.
    forced: int | None = None  #: the token that it is.

    def allowed(self, scores: Array) -> Array:
        """The scores, with minus infinity for all tokens that it can't be."""
        if self.forced is not None:
            return np.where(np.arange(len(scores)) == self.forced, 0, scores.dtype.type(-np.inf))
        if not self.never:
            return scores
        allowed, never = scores.copy(), np.array(self.never)
        allowed[never[(never >= 0) & (never < len(scores))]] = -np.inf
        return allowed


class TokenRules(NamedTuple):
    """What holds for the tokens that are generated, as `generation_config.json` says."""

    never: tuple[int, ...] = ()  #: tokens that are never generated.
    never_first: tuple[int, ...] = ()  #: those that are not the first one that is generated, or the one after `second`.
    second: int | None = None  #: the second token of a sequence, which follows a prompt of one token.

    def at(self, place: int, prompt_length: int) -> TokenRule:
        """The rule for the token that follows so many others, of which the first ones are the prompt."""
        if place == 1 and self.second is not None:
            return TokenRule(forced=self.second)
        first = 2 if prompt_length == 1 and self.second is not None else prompt_length
        return TokenRule((*self.never, *self.never_first) if place == first else self.never)


class TokenScores(NamedTuple):
    """The log probability of a token by the scores of the model, before penalty and temperature, and the likeliest.

    A token that a rule forbids has probability 0, one that it forces 1; those of others stay as they are.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]  #: the most likely tokens, with theirs.


class ScoredRow(NamedTuple):
    """A row of a batch whose next token is chosen."""

    row: int  #: its index.
    sequence: int  #: the number of its sequence, for `Sampling.choose`.
    length: int  #: the number of tokens before.
    before: tuple[int, ...]  #: these tokens, if they are needed.
    sampling: Sampling  #: how its next token is chosen.
    top: int | None = None  #: the scores of the token and of so many of the likeliest are returned.
    place: int = 0  #: how many of the fed tokens are before the next one; 0 for all.
    rule: TokenRule = TokenRule()  #: what holds for the next token.


class LogitsChoice(msgspec.Struct, frozen=True):
    """How the next tokens of a batch are chosen from its logits."""

    logits: str  #: their name: [batch, tokens, vocabulary] or [batch, vocabulary], without a batch one axis less.
    dtype: str  #: and their type.
    has_batch: bool  #: there is an axis for the batch.
    length: int  #: the number of tokens that were fed of each sequence.
    rows: tuple[ScoredRow, ...]  #: the rows whose next token is chosen.

    def tokens(self, logits: Value) -> Value:
        """The token of each of `rows`, from its last scores; after a token its scores, if asked for, as their bits."""
        *axes, vocabulary = logits.shape()
        given = axes[-1] if axes and len(axes) == 1 + self.has_batch else 1
        scores = view_of(logits, self.dtype).reshape(-1, given, vocabulary)
        numbers, scored = list[int](), min(given, self.length)
        if scored < self.length and any(row.place for row in self.rows):
            raise RunError("the model scores the last token alone, and so no proposed tokens", hint="leave out `draft`")
        for row, sequence, length, before, sampling, top, place, rule in self.rows:
            found = scores[row, (place or scored) - 1]
            if self.dtype == "bfloat16":
                found = np.left_shift(found, 16, dtype=np.uint32).view(np.float32)  # it is the upper half of a float32
            numbers.append(sampling.choose(rule.allowed(found), before or range(length), sequence))
            numbers += [] if top is None else _scores(found, numbers[-1], top, rule)
        return from_array(np.array(numbers, np.int64), TOKENS)

    def chosen(self, numbers: Value) -> list[tuple[int, TokenScores | None]]:
        """What `tokens` returned: the token of each of `rows`, and its scores if asked for."""
        found, place, array = list[tuple[int, TokenScores | None]](), 0, numbers.numpy()
        for row in self.rows:
            token, place = int(array[place]), place + 1
            scores = None
            if row.top is not None:
                logprob, *logprobs = array[place : place + 1 + row.top].view(np.float64).tolist()
                ids = array[place + 1 + row.top : place + 1 + 2 * row.top].tolist()
                scores = TokenScores(logprob, tuple(zip(ids, logprobs, strict=True)))
                place += 1 + 2 * row.top
            found.append((token, scores))
        return found


def _scores(scores: Array, token: int, top: int, rule: TokenRule) -> list[int]:
    """The log probability of a token and of the `top` likeliest, as their bits; and the latter tokens."""
    exact = scores.astype(np.float64)
    logs = exact - exact.max()
    logs = rule.allowed(logs - np.log(np.exp(logs).sum()))
    least = -np.partition(-logs, min(top, len(logs)) - 1)[min(top, len(logs)) - 1] if top else np.inf
    tokens = np.flatnonzero(logs >= least)
    likely = np.resize(tokens[np.argsort(-logs[tokens], kind="stable")][:top], top)  # a vocabulary may be smaller
    return [*logs[[token, *likely]].view(np.int64).tolist(), *likely.tolist()]
