"""Sound as Whisper reads it: one channel, 16,000 samples a second."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from decoders import Array

from .features import RATE


def samples_of(path: Path) -> Array:
    """The samples [1, length] of a WAV file of 16 bits, its channels averaged, at 16 kHz.

    Resampled by its spectrum: what the file has above 8 kHz is taken away. Raises ValueError for other sample sizes.
    """
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path} has samples of {8 * file.getsampwidth()} bits: make it a WAV file of 16 bits")
        taken = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        given, rate = taken.mean(1) / 2**15, file.getframerate()
    length = round(len(given) * RATE / rate)
    spectrum = np.fft.rfft(given)[: length // 2 + 1]
    samples: Array = np.fft.irfft(spectrum, length) * (length / len(given))
    return samples.astype(np.float32)[None]
