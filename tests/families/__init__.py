"""Small random models of families that come as several files, written as exporters leave them.

Each has a loop that runs the files by hand. The same weights are in every file that has their names. A folder is some
10 to 100 kB and takes milliseconds to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from decoders import Feeds

from . import by_hand
from .chains import write_diffusion, write_reader, write_sentence_encoder
from .encoder_decoders import FRAMES, MELS, write_marian, write_t5, write_whisper
from .merging import merge
from .vision_language import image_and_text, write_vision_language
from .words import VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    Attributes:
        write: writes its folder, and returns it.
        inputs: inputs of a request, by a seed.
        reference: what the files give, run by hand: tokens for the folder, inputs and at most so many tokens; an image
            for folder, inputs and steps; outputs for folder and inputs.
        loops: the reference takes a number of steps.
    """

    write: Callable[[Path], Path]
    inputs: Callable[[int], Feeds]
    reference: Callable[..., Any]
    loops: bool = True


def spectrogram(seed: int, rows: int = 1) -> Feeds:
    return {"input_features": np.random.default_rng(seed).normal(size=(rows, MELS, FRAMES)).astype(np.float32)}


def sound(seed: int) -> Feeds:
    return {"samples": np.random.default_rng(seed).normal(size=(1, 150)).astype(np.float32)}


def text(seed: int, lengths: tuple[int, ...] = (7,)) -> Feeds:
    """Rows of words, each with `</s>` at its end."""
    rng = np.random.default_rng(seed)
    return by_hand.rows_of_ids([[*rng.integers(6, VOCABULARY, length - 1).tolist(), 1] for length in lengths])


def two_rows(name: str, seed: int) -> Feeds:
    """Inputs of an encoder-decoder: two rows, of text one of them padded."""
    return text(seed, (9, 5)) if FAMILIES[name].inputs is text else spectrogram(seed, 2)


def prompt_and_noise(seed: int) -> Feeds:
    noise = np.random.default_rng(seed).normal(size=(1, 4, 8, 8)).astype(np.float32)
    return {"input_ids": text(seed)["input_ids"], "sample": noise}


def image(seed: int) -> Feeds:
    return {"image": np.random.default_rng(seed).normal(size=(1, 3, 32, 48)).astype(np.float32)}


def text_of_one_kind(seed: int, lengths: tuple[int, ...] = (7,)) -> Feeds:
    found = text(seed, lengths)
    return {**found, "token_type_ids": np.zeros_like(found["input_ids"])}


_SPEECH = partial(Family, inputs=spectrogram, reference=by_hand.tokens_of_encoder_decoder)
_TEXT = partial(Family, inputs=text, reference=by_hand.tokens_of_encoder_decoder)

FAMILIES: Mapping[str, Family] = {
    "whisper": _SPEECH(write=write_whisper),
    "whisper, positions given": _SPEECH(write=partial(write_whisper, cache_position=True)),
    "whisper, from samples": Family(
        write=partial(write_whisper, from_samples=True), inputs=sound, reference=by_hand.tokens_of_encoder_decoder
    ),
    "whisper, merged": _SPEECH(write=lambda folder: merge(write_whisper(folder))),
    "t5": _TEXT(write=write_t5),
    "t5, merged": _TEXT(write=lambda folder: merge(write_t5(folder))),
    "marian": _TEXT(write=write_marian),
    "marian, merged": _TEXT(write=lambda folder: merge(write_marian(folder))),
    "vision-language": Family(
        write=write_vision_language, inputs=image_and_text, reference=by_hand.tokens_of_vision_language
    ),
    "reader": Family(write=write_reader, inputs=image, reference=by_hand.read_text, loops=False),
    "diffusion": Family(write=write_diffusion, inputs=prompt_and_noise, reference=by_hand.picture),
    "sentence encoder": Family(
        write=write_sentence_encoder, inputs=text_of_one_kind, reference=by_hand.vector, loops=False
    ),
}
