"""Sound from a WAV file: as samples, or as the spectrogram that Whisper reads."""

import wave
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..core.errors import UsageError
from ..core.tensors import Tensor, Tensors
from .roles import role_of

RATE: Final = 16_000  #: samples a second of the models that hear.
_WINDOW: Final = 400
_HOP: Final = 160
_Array = np.ndarray[Any, Any]


def sound_inputs(path: Path, tensors: Tensors) -> dict[str, object]:
    """The one input among `tensors` that hears, from a WAV file of 16 bits: its channels averaged, at 16 kHz.

    A model that reads `input_features` [batch, bands, frames] gets those of Whisper, see `log_mel`; one that reads
    samples [batch, samples] gets these.

    Raises:
        UsageError: it is no such file, or not one input hears.
        OSError: it can't be read.
    """
    roles = {name: role_of(tensor) for name, tensor in tensors.items()}
    features = {name for name, tensor in tensors.items() if tensor.shape is None or len(tensor.shape) == 3}
    hearing = {n: role for n, role in roles.items() if role == "samples" or (role == "mel" and n in features)}
    if len(hearing) != 1:
        what = f"{path} is a sound, and {' and '.join(hearing) or 'no input of the model'} would hear it"
        raise UsageError(what, hint="give arrays instead: a .npz file with the names of the inputs")
    ((name, role),) = hearing.items()
    tensor = tensors[name]
    length = _size(tensor, -1) if role == "samples" else _size(tensor, 2, 3000) * _HOP
    samples = _samples(path, length)
    return {name: _samples_for(tensor, samples) if role == "samples" else log_mel(samples, tensor)}


def _size(tensor: Tensor, axis: int, usual: int = 0) -> int:
    """The size of an axis, or `usual` where the model does not fix it."""
    size = tensor.shape[axis] if tensor.shape else None
    return size if isinstance(size, int) else usual


def _samples(path: Path, length: int) -> _Array:
    """At least the first `length` samples at 16 kHz, all if 0; a second more, since resampling blurs the end."""
    try:
        with wave.open(str(path)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            read = file.readframes((length // RATE + 2) * rate if length else file.getnframes())
    except (wave.Error, EOFError) as error:
        raise UsageError(f"{path} is not a WAV file: {error}", hint=_HINT) from None
    if width != 2:
        raise UsageError(f"{path} has samples of {8 * width} bits, not of 16", hint=_HINT)
    whole = len(read) // (2 * channels) * 2 * channels  # a file that was cut off may end within a sample
    if not whole or not rate:
        raise UsageError(f"{path} holds no samples", hint=_HINT)
    given = np.frombuffer(read[:whole], "<i2").reshape(-1, channels).mean(1) / 2**15
    length = round(len(given) * RATE / rate)
    # Resampled by its spectrum, without what is above half of either rate.
    return np.asarray(np.fft.irfft(np.fft.rfft(given)[: length // 2 + 1], length) * (length / len(given)))


_HINT: Final = "make a WAV file of 16 bits of it, without compression"


def _samples_for(tensor: Tensor, samples: _Array) -> _Array:
    row = _cut_or_filled(samples, _size(tensor, -1, len(samples))).astype(tensor.dtype)
    return row.reshape([1] * (len(tensor.shape or (1, 1)) - 1) + [-1])


def _cut_or_filled(samples: _Array, length: int) -> _Array:
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def log_mel(samples: _Array, tensor: Tensor) -> _Array:
    """Whisper's features, [1, bands, frames]: as many bands and frames as the input has, 80 and 3,000 if unknown.

    As `WhisperFeatureExtractor` of transformers computes them: samples at 16 kHz cut off or filled with silence,
    mirrored at both ends, windows of 400 (Hann) each 160, the power of 201 frequencies summed into bands (Slaney), the
    logarithm, at most 8 below the largest, then (x + 4) / 4.
    """
    bands, frames = _size(tensor, 1, 80), _size(tensor, 2, 3000)
    mirrored = np.pad(_cut_or_filled(samples, frames * _HOP), _WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(mirrored, _WINDOW)[::_HOP][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.abs(np.fft.rfft(windows * hann)) ** 2
    loud = np.log10(np.maximum(power @ _bands(bands).T, 1e-10)).T
    loud = np.maximum(loud, loud.max() - 8)
    return np.asarray((loud + 4) / 4, tensor.dtype)[None]


def _bands(number: int) -> _Array:
    """The weight of each frequency in each band, [bands, frequencies].

    Triangles of area 1 whose corners are equally far apart on Slaney's scale: linear up to 1 kHz, logarithmic above.
    """
    step = np.log(6.4) / 27
    corners = np.linspace(0, 15 + np.log(RATE / 2000) / step, number + 2)
    corners = np.where(corners < 15, 200 / 3 * corners, 1000 * np.exp(step * (corners - 15)))
    low, middle, high = (corners[i : number + i, None] for i in range(3))
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low))
