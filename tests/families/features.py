"""Whisper's features of sound as a model of their own: samples at 16 kHz in, logarithms of mel bands out.

As transformers' WhisperFeatureExtractor has them: cut off or filled with silence to 30 s, mirrored at both ends,
windowed (Hann), power of 201 frequencies each 10 ms, summed into bands (Slaney), logarithm, at most 8 decades below the
loudest. The Fourier transform is a Conv with the window times sines and cosines. ONNX's STFT in float32 is off by 3e-3
(ONNX Runtime 1.32), in float64 it takes seven times as long.
"""

from __future__ import annotations

import numpy as np
from decoders import Array, Drawing
from onnx import ModelProto, TensorProto, numpy_helper

RATE, SECONDS, MELS, WINDOW, HOP = 16000, 30, 80, 400, 160


def features_model(
    *, mels: int = MELS, samples: int = RATE * SECONDS, window: int = WINDOW, hop: int = HOP
) -> ModelProto:
    """`samples` [batch, samples] becomes `input_features` [batch, mels, samples / hop]: 480,000 become 3,000."""
    at = Drawing()
    x, frames, bins = at.reads("samples", TensorProto.FLOAT, "batch", "samples"), samples // hop, window // 2 + 1
    x = at.node("Slice", x, at.number([0]), at.number([samples]), at.number([1]))
    lacking = at.node("Sub", at.number([samples]), at.node("Shape", x, start=1))
    x = at.node("Pad", x, at.node("Concat", at.number([0, 0, 0]), lacking, axis=0))
    x = at.node("Pad", x, at.number([0, window // 2, 0, window // 2]), mode="reflect")
    x = at.node("Conv", at.node("Unsqueeze", x, at.number([1])), _given(at, "waves", waves(window)), strides=[hop])
    x = at.node("Slice", x, at.number([0]), at.number([frames]), at.number([2]))
    squares = at.node("Mul", x, x)
    ends = [at.number([n * bins]) for n in range(3)]
    real, imaginary = (at.node("Slice", squares, *pair, at.number([1])) for pair in (ends[:2], ends[1:]))
    bands = at.node("MatMul", _given(at, "bands", mel_bands(mels, bins)), at.node("Add", real, imaginary))
    loud = at.node("Log", at.node("Clip", bands, at.number(1e-10, np.float32)))
    loud = at.node("Mul", loud, at.number(1 / np.log(10), np.float32))
    highest = at.node("ReduceMax", loud, axes=[1, 2], keepdims=1)
    loud = at.node("Max", loud, at.node("Sub", highest, at.number(8, np.float32)))
    scaled = at.node("Mul", at.node("Add", loud, at.number(4, np.float32)), at.number(0.25, np.float32))
    at.node("Identity", scaled, writes=at.returns("input_features", "batch", mels, frames))
    return at.model()


def waves(window: int) -> Array:
    """The window times cosines and sines of each frequency, as weights of a Conv: [2 x frequencies, 1, window]."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    angles = 2 * np.pi * np.outer(np.arange(window // 2 + 1), np.arange(window)) / window
    return np.concatenate([np.cos(angles) * hann, np.sin(angles) * hann])[:, None]


def mel_bands(mels: int, bins: int) -> Array:
    """The weight of each frequency in each band: [mels, bins].

    Triangles of area 1 whose corners are equally far apart on Slaney's scale: linear up to 1 kHz, logarithmic above.
    """
    step = np.log(6.4) / 27
    corners = np.linspace(0, 15 + np.log(RATE / 2000) / step, mels + 2)
    corners = np.where(corners < 15, 200 / 3 * corners, 1000 * np.exp(step * (corners - 15)))
    low, middle, high = (corners[i : mels + i, None] for i in range(3))
    frequencies = np.linspace(0, RATE / 2, bins)
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    made: Array = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return made


def _given(at: Drawing, name: str, values: Array) -> str:
    at.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
    return name
