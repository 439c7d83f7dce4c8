"""Sound as an input: WAV files, and the features that Whisper reads."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import Array

import graphcut
from graphcut import Tensor, UsageError
from graphcut.inputs.sound import log_mel, sound_inputs

from cases import each
from families import FAMILIES, by_hand
from families.features import RATE, features_model

MEL = {"input_features": Tensor(name="input_features", dtype="float32", shape=("batch", 80, 3000))}


def said(seconds: float, rate: int = RATE) -> Array:
    """A rising tone with noise."""
    at = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(size=len(at))
    found: Array = 0.5 * np.sin(2 * np.pi * (200 + 300 * at) * at) + 0.01 * noise
    return found


def write(path: Path, samples: Array, rate: int = RATE, channels: int = 1, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        numbers = np.repeat((samples * 2**15).astype("<i2"), channels)
        file.writeframes(numbers.tobytes() if width == 2 else bytes(width * len(numbers)))
    return path


@each("seconds", [0.4, 3.0, 31.0])
def test_features_are_those_of_the_model_that_computes_them_with_onnx(seconds: float, tmp_path: Path) -> None:
    samples = said(seconds)
    onnx.save(features_model(), tmp_path / "features.onnx")
    wanted = by_hand.run(tmp_path / "features.onnx", {"samples": samples[None].astype(np.float32)})["input_features"]
    found = log_mel(samples, MEL["input_features"])
    assert found.shape == (1, 80, 3000)
    assert np.abs(found - wanted).max() < 1e-4


@each("rate, channels", [(16000, 1), (44100, 2), (8000, 1)])
def test_a_file_of_any_rate_is_heard_at_16_khz(rate: int, channels: int, tmp_path: Path) -> None:
    slow = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    tensor = Tensor(name="audio", dtype="float32", shape=("batch", "samples"))
    found = sound_inputs(write(tmp_path / "a.wav", slow, rate, channels), {"audio": tensor})["audio"]
    assert isinstance(found, np.ndarray)
    assert found.shape == (1, RATE)
    assert np.abs(found[0] - 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).max() < 1e-3


def test_of_a_file_of_hours_what_the_model_hears_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = said(40)
    path, asked = write(tmp_path / "long.wav", samples), []
    readframes = wave.Wave_read.readframes

    def counted(file: wave.Wave_read, frames: int) -> bytes:
        asked.append(frames / RATE)
        return readframes(file, frames)

    monkeypatch.setattr(wave.Wave_read, "readframes", counted)
    tensor = Tensor(name="audio", dtype="float32", shape=(1, RATE))
    found = sound_inputs(path, {"audio": tensor})["audio"]
    assert isinstance(found, np.ndarray)
    assert np.abs(found[0] - samples[:RATE]).max() < 1e-4
    sound_inputs(path, MEL)
    assert asked == [3, 32]  # seconds


def test_what_is_no_sound_or_not_heard_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", said(0.1))
    for tensors, message in (({}, "no input of the model"), ({**MEL, "audio": MEL["input_features"]}, "would hear it")):
        with pytest.raises(UsageError, match=message):
            sound_inputs(path, {name: Tensor(name=name, dtype=t.dtype, shape=t.shape) for name, t in tensors.items()})
    with pytest.raises(UsageError, match="samples of 24 bits"):
        sound_inputs(write(tmp_path / "b.wav", said(0.1), width=3), MEL)
    (tmp_path / "c.wav").write_bytes(b"no sound")
    with pytest.raises(UsageError, match="is not a WAV file"):
        sound_inputs(tmp_path / "c.wav", MEL)


def test_a_sound_is_an_input_of_generate(tmp_path: Path) -> None:
    folder = FAMILIES["whisper, from samples"].write(tmp_path)
    model = graphcut.load(folder)
    assert model.graph.reads[0] == "samples"
    cascade = graphcut.split(model, graphcut.Into(2), tmp_path / "parts")
    path = write(tmp_path / "said.wav", said(0.1))
    inputs = graphcut.read_inputs(path, cascade.manifest.reads, tensors=cascade.tensors)
    wanted = FAMILIES["whisper, from samples"].reference(folder, inputs, 6)
    assert graphcut.generate(cascade, [[4, 5]], max_tokens=6, inputs=inputs).all() == wanted


def test_a_file_without_samples_is_refused_and_one_cut_off_is_heard_up_to_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no samples"):
        sound_inputs(write(tmp_path / "empty.wav", np.zeros(0)), MEL)
    path = write(tmp_path / "a.WAV", said(0.1), channels=2)
    path.write_bytes(path.read_bytes()[:-3])
    tensor = Tensor(name="audio", dtype="float32", shape=("batch", "samples"))
    heard = sound_inputs(path, {"audio": tensor})["audio"]
    assert isinstance(heard, np.ndarray)
    assert heard.shape == (1, round(0.1 * RATE) - 1)


def test_features_of_another_rank_are_not_heard(tmp_path: Path) -> None:
    flat = Tensor(name="input_features", dtype="float32", shape=("batch", 80))
    with pytest.raises(UsageError, match="no input of the model would hear it"):
        sound_inputs(write(tmp_path / "a.wav", said(0.1)), {"input_features": flat})
