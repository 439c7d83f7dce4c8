"""The beam search of transformers 5, one text after the other, with caches of its own for each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from decoders import Array, Feeds

from .by_hand import decoded, encoded, settings


class Text(NamedTuple):
    """A text being written: the sum of its logarithms of probabilities, its tokens, caches of all but the last."""

    score: float
    tokens: list[int]
    caches: Feeds


def best_texts(
    folder: Path, inputs: Feeds, number: int, width: int, *, length_penalty: float = 1.0
) -> list[tuple[list[int], float]]:
    """The best text of each row of an encoder-decoder, and its score: the sum divided by length ** length_penalty.

    At each step the best 2 x width continuations of all texts are taken. Of the best `width` of them those that end (by
    their token, or by the number of tokens) are finished, and the best `width` of all finished ones are kept. The best
    `width` others go on, until `width` are finished and the best that goes on would not be among them if it ended now.
    As transformers with `early_stopping=False`, its default.
    """
    heard, prompts = encoded(folder, inputs)
    rows = [{name: array[row : row + 1] for name, array in heard.items()} for row in range(len(prompts))]
    return [
        _best_text(folder, row, prompt, number, width, length_penalty)
        for row, prompt in zip(rows, prompts, strict=True)
    ]


def _best_text(
    folder: Path, heard: Feeds, prompt: Array, number: int, width: int, penalty: float
) -> tuple[list[int], float]:
    ends, running, finished = settings(folder, "generation_config")["eos_token_id"], [Text(0, [], {})], list[Text]()
    for length in range(1, number + 1):
        best = _by_score([new for text in running for new in _continued(folder, heard, prompt, text, 2 * width)])
        ended = [length == number or text.tokens[-1] == ends for text in best]
        just = [text for text, is_ended in zip(best[:width], ended, strict=False) if is_ended]
        finished += [text._replace(score=text.score / length**penalty) for text in just]
        finished = _by_score(finished)[:width]
        running = [text for text, is_ended in zip(best[: 2 * width], ended, strict=False) if not is_ended][:width]
        if len(finished) == width and (not running or running[0].score / length**penalty <= finished[-1].score):
            break
    return finished[0].tokens, finished[0].score


def _continued(folder: Path, heard: Feeds, prompt: Array, text: Text, number: int) -> list[Text]:
    """The text with each of the most probable tokens."""
    ids = np.array([text.tokens[-1:] or prompt.tolist()])
    past = len(prompt) + len(text.tokens) - 1 if text.tokens else 0
    scores, caches = decoded(folder, heard, ids, text.caches, past)
    best = np.argsort(-scores[0])[:number].tolist()
    return [Text(text.score + float(scores[0, token]), [*text.tokens, token], caches) for token in best]


def _by_score(texts: list[Text]) -> list[Text]:
    return sorted(texts, key=lambda text: text.score, reverse=True)
