"""The small families of several files: what is held against them has to be right itself."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import Feeds
from onnx import numpy_helper

from cases import FUZZ, each
from families import FAMILIES, text, two_rows
from families.beams import best_texts
from families.by_hand import run, settings, tokens_of_encoder_decoder
from families.features import features_model, mel_bands
from families.merging import merge
from families.sound import samples_of

PAIRS = ("whisper", "whisper, positions given", "t5", "marian")


@each("name", FAMILIES)
def test_the_files_are_valid_and_have_the_same_weights_where_they_have_the_same_names(
    name: str, tmp_path: Path
) -> None:
    seen: dict[str, bytes] = {}
    for path in sorted(FAMILIES[name].write(tmp_path / "m").rglob("*.onnx")):
        onnx.checker.check_model(path, full_check=True)
        for tensor in onnx.load(path).graph.initializer:
            if tensor.name[1:].isdigit():  # a number in a formula
                continue
            assert seen.setdefault(tensor.name, tensor.raw_data) == tensor.raw_data
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 200_000


def without_caches(folder: Path, inputs: Feeds, number: int) -> list[int]:
    """The tokens by the decoder of the first step alone, which is fed the whole text each time."""
    says = settings(folder, "generation_config")
    ids = [says["decoder_start_token_id"], *(token for _, token in says.get("forced_decoder_ids", []))]
    heard, start = run(folder / "encoder_model.onnx", inputs)["last_hidden_state"], len(ids)
    never = {*says.get("suppress_tokens", []), *(word for words in says.get("bad_words_ids", []) for word in words)}
    while len(ids) < start + number and (len(ids) == start or ids[-1] != 1):
        feeds = {"input_ids": np.array([ids]), "encoder_hidden_states": heard, "cache_position": np.arange(len(ids))}
        feeds["encoder_attention_mask"] = inputs.get("attention_mask", np.zeros(0))
        scores = run(folder / "decoder_model.onnx", feeds)["logits"][0, -1]
        refused = never | ({*says.get("begin_suppress_tokens", [])} if len(ids) == start else set())
        ids.append(max(set(range(len(scores))) - refused, key=lambda token: scores[token]))
    return ids[start:]


@each("name", PAIRS)
def test_caches_change_no_token(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = family.write(tmp_path / "m")
    found = [tokens_of_encoder_decoder(folder, family.inputs(seed), 12)[0] for seed in range(4)]
    assert found == [without_caches(folder, family.inputs(seed), 12) for seed in range(4)]
    assert len({tuple(tokens) for tokens in found}) == 4, "what is read matters"


@each("name", PAIRS)
def test_a_merged_decoder_gives_the_same_tokens_and_has_each_weight_once(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    inputs, folder = family.inputs(0), family.write(tmp_path / "m")
    expected = tokens_of_encoder_decoder(folder, inputs, 12)
    two = [onnx.load(folder / f"decoder{part}_model.onnx") for part in ("", "_with_past")]
    model = onnx.load(merge(folder) / "decoder_model_merged.onnx")
    assert tokens_of_encoder_decoder(folder, inputs, 12) == expected
    weights = {numpy_helper.to_array(tensor).tobytes() for tensor in model.graph.initializer}
    assert len(weights) == len(model.graph.initializer)
    assert weights >= {tensor.raw_data for of in two for tensor in of.graph.initializer if len(tensor.dims) > 1}


def test_features_are_the_logarithms_of_a_fourier_transform_in_bands() -> None:
    session = ort.InferenceSession(features_model().SerializeToString(), providers=["CPUExecutionProvider"])
    seconds = np.arange(40_000) / 16_000
    samples = (np.sin(2 * np.pi * (300 + 800 * seconds) * seconds) * np.minimum(seconds, 1)).astype(np.float32)
    (found,) = session.run(None, {"samples": samples[None]})
    filled = np.pad(np.pad(samples.astype(float), (0, 440_000)), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(filled, 400)[::160][:3000]
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:400])) ** 2
    loud = np.log10(np.maximum(mel_bands(80, 201) @ power.T, 1e-10))
    np.testing.assert_allclose(found[0], (np.maximum(loud, loud.max() - 8) + 4) / 4, rtol=0, atol=1e-4)
    # Triangles of area 1, measured at frequencies that are 0.4 Hz apart.
    np.testing.assert_allclose(mel_bands(80, 20_001).sum(1) * 0.4, 1, atol=1e-3)


def test_sound_of_another_rate_is_resampled(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((2, 2, 22_050, 0, "NONE", ""))
        file.writeframes(np.repeat(np.round(tone * 20_000), 2).astype("<i2").tobytes())
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000) * 20_000 / 2**15
    np.testing.assert_allclose(samples_of(tmp_path / "tone.wav"), expected[None], atol=1e-3)


@each("name", ("t5", "marian"))
def test_padding_changes_no_token(name: str, tmp_path: Path) -> None:
    folder = FAMILIES[name].write(tmp_path / "m")
    both = text(0, (9, 5))
    alone = [{key: array[row : row + 1, :length] for key, array in both.items()} for row, length in enumerate((9, 5))]
    expected = [tokens_of_encoder_decoder(folder, inputs, 10)[0] for inputs in alone]
    assert tokens_of_encoder_decoder(folder, both, 10) == expected


@each("name", ("whisper", "t5", "marian"))
def test_beams_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """`beams.json` is what transformers said of the same files: scripts/transformers_beams.py."""
    folder = FAMILIES[name].write(tmp_path / "m")
    requests = json.loads((Path(__file__).parents[1] / "families" / "beams.json").read_text(encoding="utf-8"))
    for request in requests:
        if request["family"] == name and (request["seed"] == 0 or FUZZ):
            penalty, inputs = request["length_penalty"], two_rows(name, request["seed"])
            found = best_texts(folder, inputs, 12, request["width"], length_penalty=penalty)
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in request["rows"]], request
            expected = [score for _, score in request["rows"]]
            np.testing.assert_allclose([score for _, score in found], expected, atol=2e-5)


def test_what_is_seen_is_read_once_and_matters(tmp_path: Path) -> None:
    family = FAMILIES["vision-language"]
    folder, inputs = family.write(tmp_path / "m"), family.inputs(0)
    with_another = {**inputs, "pixel_values": family.inputs(1)["pixel_values"]}
    tokens = family.reference(folder, inputs, 8)
    assert tokens != family.reference(folder, with_another, 8)
    seen = run(folder / "vision.onnx", inputs)["image_features"]
    ids = np.array([[*inputs["input_ids"][0], *tokens[:-1]]])
    vectors = run(folder / "embedding.onnx", {"input_ids": ids, "image_features": seen})["inputs_embeds"]
    empty = {
        f"past_key_values.{i}.{kind}": np.zeros((1, 1, 0, 16), np.float32) for i in (0, 1) for kind in ("key", "value")
    }
    feeds = {"inputs_embeds": vectors, "attention_mask": np.ones(ids.shape, np.int64), **empty}
    assert run(folder / "model.onnx", feeds)["logits"][0, -8:].argmax(-1).tolist() == tokens


def test_a_picture_depends_on_what_is_said_and_on_the_number_of_steps(tmp_path: Path) -> None:
    family = FAMILIES["diffusion"]
    folder, inputs = family.write(tmp_path / "m"), family.inputs(0)
    pictures = [family.reference(folder, inputs, steps) for steps in (4, 5)]
    pictures.append(family.reference(folder, {**inputs, **text(1)}, 5))
    assert all(np.abs(a - b).max() > 1e-2 for i, a in enumerate(pictures) for b in pictures[:i])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vector_does_not_depend_on_padding(pooling: str, tmp_path: Path) -> None:
    from families.chains import write_sentence_encoder

    family = FAMILIES["sentence encoder"]
    folder = write_sentence_encoder(tmp_path / "m", pooling=pooling)
    padded = {**text(0, (9, 5)), "token_type_ids": np.zeros((2, 9), np.int64)}
    alone = {name: array[1:, :5] for name, array in padded.items()}
    found = family.reference(folder, padded)
    np.testing.assert_allclose(found[1], family.reference(folder, alone)[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_tokenizer_is_one(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    for name, expected in (("t5", ["ba", "du", "</s>"]), ("whisper", ["ba", "du"])):
        made = tokenizers.Tokenizer.from_file(str(FAMILIES[name].write(tmp_path / name) / "tokenizer.json"))
        assert made.encode("ba du").tokens == expected
        assert made.decode(made.encode("ba du").ids) == "ba du"
