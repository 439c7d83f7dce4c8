"""Small models like Whisper, T5 and Marian, as Optimum writes them: encoder, decoder, decoder with caches, settings.

All three have the same layers. They differ in what the encoder reads, in how positions are told, and in what else is
said of tokens:

    Whisper   spectrograms; learned positions, from the length of the caches or `cache_position`; forced tokens
    T5        text with a mask; a bias by distance; the table of words is the head as well
    Marian    text with a mask; sines; a bias on the scores, and a token that must not come: the padding, which begins
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from decoders import Drawing, length_of
from onnx import TensorProto, numpy_helper

from .features import features_model
from .layers import (
    HEADS,
    SIZE,
    WIDTH,
    attended,
    bias_of_mask,
    column,
    encoder_layer,
    fed_forward,
    heads,
    norm,
    returned_first,
    where_allowed,
)
from .words import VOCABULARY, write_tokenizer

LAYERS, MELS, FRAMES, ROOM, DISTANCES = 2, 8, 12, 64, 8
TEXT = ("batch_size", "encoder_sequence_length")


def write_whisper(folder: Path, *, cache_position: bool = False, from_samples: bool = False) -> Path:
    """A folder of Whisper.

    Args:
        folder: where to.
        cache_position: positions are an input of the decoders, as in exports of 2025 and later.
        from_samples: with `features.onnx`, which makes spectrograms of 192 samples.
    """
    at = Drawing()
    x = at.reads("input_features", TensorProto.FLOAT, "batch_size", MELS, FRAMES)
    for i, (width, stride) in enumerate(((MELS, 1), (WIDTH, 2))):
        weight = at.weight(f"encoder.conv{i + 1}.weight", WIDTH, width, 3, scale=0.3)
        x = at.node("Tanh", at.node("Conv", x, weight, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    x = at.node("Transpose", x, perm=[0, 2, 1])
    x = at.node("Add", x, at.weight("encoder.embed_positions.weight", FRAMES // 2, WIDTH, scale=0.5))
    _save_encoder(at, x, None, FRAMES // 2, folder)
    for with_past in (False, True):
        _save(_whisper_decoder(with_past=with_past, cache_position=cache_position), with_past=with_past, to=folder)
    if from_samples:
        onnx.save(features_model(mels=MELS, samples=16 * FRAMES, window=32, hop=16), folder / "features.onnx")
    sizes = {"num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "max_target_positions": ROOM}
    begins = {"decoder_start_token_id": 4, "forced_decoder_ids": [[1, 5]]}
    never = {"suppress_tokens": [2, 10, 11, 12], "begin_suppress_tokens": [1, 20, 21]}
    features = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "sampling_rate": 16000}
    (folder / "preprocessor_config.json").write_text(json.dumps(features), encoding="utf-8")
    return _with_settings(folder, "whisper", sizes, begins | never)


def write_t5(folder: Path) -> Path:
    at = Drawing()
    ids, mask = (at.reads(name, TensorProto.INT64, *TEXT) for name in ("input_ids", "attention_mask"))
    length = length_of(at, ids, 1)
    places = at.node("Range", at.number(0), length, at.number(1))
    distances = at.node("Abs", at.node("Sub", column(at, places), places))
    bias = at.node("Add", _bias_by_distance(at, "encoder", distances), bias_of_mask(at, mask))
    _save_encoder(
        at, at.node("Gather", at.weight("shared.weight", VOCABULARY, WIDTH, scale=0.3), ids), bias, TEXT[1], folder
    )
    for with_past in (False, True):
        _save(_t5_decoder(with_past=with_past), with_past=with_past, to=folder)
    return _with_settings(folder, "t5", {"tie_word_embeddings": True}, {"decoder_start_token_id": 0})


def write_marian(folder: Path) -> Path:
    at = Drawing()
    ids, mask = (at.reads(name, TensorProto.INT64, *TEXT) for name in ("input_ids", "attention_mask"))
    places = at.node("Range", at.number(0), length_of(at, ids, 1), at.number(1))
    _save_encoder(at, _with_sines(at, ids, places), bias_of_mask(at, mask), TEXT[1], folder)
    for with_past in (False, True):
        _save(_marian_decoder(with_past=with_past), with_past=with_past, to=folder)
    begins = {"decoder_start_token_id": 0, "bad_words_ids": [[0]]}
    return _with_settings(folder, "marian", {"static_position_embeddings": True, "scale_embedding": True}, begins)


def _whisper_decoder(*, with_past: bool, cache_position: bool) -> Drawing:
    at = Drawing()
    ids, heard, _ = _decoder_inputs(at, FRAMES // 2, with_past=with_past, masked=False)
    if cache_position:
        places = at.reads("cache_position", TensorProto.INT64, "decoder_sequence_length")
    else:
        places = _places(at, ids, with_past=with_past)
    words = at.weight("decoder.embed_tokens.weight", VOCABULARY, WIDTH, scale=0.3)
    learned = at.node("Gather", at.weight("decoder.embed_positions.weight", ROOM, WIDTH), places)
    bias = None if with_past else _causal(at, places)
    x = _decoder_layers(at, at.node("Add", at.node("Gather", words, ids), learned), heard, bias, None)
    at.node("MatMul", x, at.node("Transpose", words, perm=[1, 0]), writes="logits")
    returned_first(at, "logits", "batch_size", "decoder_sequence_length", VOCABULARY)
    return at


def _t5_decoder(*, with_past: bool) -> Drawing:
    at = Drawing()
    ids, heard, mask = _decoder_inputs(at, TEXT[1], with_past=with_past, masked=True)
    places = _places(at, ids, with_past=with_past)
    total = at.node("Add", at.node("ReduceMax", places, keepdims=0), at.number(1))
    distances = at.node("Sub", column(at, places), at.node("Range", at.number(0), total, at.number(1)))
    bias = _bias_by_distance(at, "decoder", distances)
    bias = bias if with_past else at.node("Add", bias, _causal(at, places))
    words = at.weight("shared.weight", VOCABULARY, WIDTH, scale=0.3)
    x = _decoder_layers(at, at.node("Gather", words, ids), heard, bias, mask)
    x = at.node("Mul", x, at.number(WIDTH**-0.5, np.float32))
    at.node("MatMul", x, at.node("Transpose", words, perm=[1, 0]), writes="logits")
    returned_first(at, "logits", "batch_size", "decoder_sequence_length", VOCABULARY)
    return at


def _marian_decoder(*, with_past: bool) -> Drawing:
    at = Drawing()
    ids, heard, mask = _decoder_inputs(at, TEXT[1], with_past=with_past, masked=True)
    places = _places(at, ids, with_past=with_past)
    x = _decoder_layers(at, _with_sines(at, ids, places), heard, None if with_past else _causal(at, places), mask)
    scores = at.node("MatMul", x, at.weight("lm_head.weight", WIDTH, VOCABULARY))
    at.node("Add", scores, at.weight("final_logits_bias", 1, VOCABULARY, scale=0.5), writes="logits")
    returned_first(at, "logits", "batch_size", "decoder_sequence_length", VOCABULARY)
    return at


def _decoder_inputs(
    at: Drawing, source: int | str, *, with_past: bool, masked: bool
) -> tuple[str, str | None, str | None]:
    """Ids; the encoder's states, unless its caches are there; the bias of the encoder's mask, if there is one."""
    mask = at.reads("encoder_attention_mask", TensorProto.INT64, *TEXT) if masked else None
    ids = at.reads("input_ids", TensorProto.INT64, "batch_size", "decoder_sequence_length")
    if not with_past:
        heard = at.reads("encoder_hidden_states", TensorProto.FLOAT, "batch_size", source, WIDTH)
        return ids, heard, mask and bias_of_mask(at, mask)
    for i in range(LAYERS):
        for side, length in (("decoder", "past_decoder_sequence_length"), ("encoder", "encoder_sequence_length_out")):
            for kind in ("key", "value"):
                name = f"past_key_values.{i}.{side}.{kind}"
                at.reads(name, TensorProto.FLOAT, "batch_size", HEADS, length, SIZE)
    return ids, None, mask and bias_of_mask(at, mask)


def _places(at: Drawing, ids: str, *, with_past: bool) -> str:
    past = length_of(at, "past_key_values.0.decoder.key", 2) if with_past else at.number(0)
    return at.node("Range", past, at.node("Add", past, length_of(at, ids, 1)), at.number(1))


def _causal(at: Drawing, places: str) -> str:
    return where_allowed(at, at.node("LessOrEqual", places, column(at, places)))


def _bias_by_distance(at: Drawing, side: str, distances: str) -> str:
    """[heads, queries, keys], by distances that are cut off at 0 and 7."""
    bucket = at.node("Clip", distances, at.number(0), at.number(DISTANCES - 1))
    table = at.weight(f"{side}.block.0.relative_attention_bias.weight", DISTANCES, HEADS)
    return at.node("Transpose", at.node("Gather", table, bucket), perm=[2, 0, 1])


def _with_sines(at: Drawing, ids: str, places: str) -> str:
    angles = np.arange(ROOM)[:, None] / 100.0 ** (np.arange(WIDTH // 2) * 2 / WIDTH)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    at.weights.append(numpy_helper.from_array(table, "embed_positions.weight"))
    words = at.node("Gather", at.weight("shared.weight", VOCABULARY, WIDTH, scale=0.5), ids)
    scaled = at.node("Mul", words, at.number(WIDTH**0.5, np.float32))
    return at.node("Add", scaled, at.node("Gather", "embed_positions.weight", places))


def _decoder_layers(at: Drawing, x: str, heard: str | None, bias: str | None, bias_of_source: str | None) -> str:
    for i in range(LAYERS):
        name = f"decoder.layers.{i}"
        inner = norm(at, f"{name}.self_attn_layer_norm", x)
        kept = [_grown(at, f"{name}.self_attn", i, kind, inner, with_past=heard is None) for kind in ("key", "value")]
        query = heads(at, f"{name}.self_attn.q_proj", inner)
        x = at.node("Add", x, attended(at, f"{name}.self_attn", query, kept[0], kept[1], bias))
        query = heads(at, f"{name}.encoder_attn.q_proj", norm(at, f"{name}.encoder_attn_layer_norm", x))
        kept = [_of_source(at, f"{name}.encoder_attn", i, kind, heard) for kind in ("key", "value")]
        x = at.node("Add", x, attended(at, f"{name}.encoder_attn", query, kept[0], kept[1], bias_of_source))
        x = fed_forward(at, name, x)
    return norm(at, "decoder.layer_norm", x)


def _grown(at: Drawing, name: str, i: int, kind: str, x: str, *, with_past: bool) -> str:
    """Keys or values of the tokens so far."""
    present, ends = f"present.{i}.decoder.{kind}", "past_decoder_sequence_length + 1"
    new = heads(at, f"{name}.{kind[0]}_proj", x, writes=None if with_past else present)
    if with_past:
        at.node("Concat", f"past_key_values.{i}.decoder.{kind}", new, axis=2, writes=present)
    return at.returns(present, "batch_size", HEADS, ends if with_past else "decoder_sequence_length", SIZE)


def _of_source(at: Drawing, name: str, i: int, kind: str, heard: str | None) -> str:
    """Keys or values of what the encoder made: computed once, then kept."""
    if heard is None:
        return f"past_key_values.{i}.encoder.{kind}"
    made = heads(at, f"{name}.{kind[0]}_proj", heard, writes=f"present.{i}.encoder.{kind}")
    return at.returns(made, "batch_size", HEADS, "encoder_sequence_length_out", SIZE)


def _save_encoder(at: Drawing, x: str, bias: str | None, length: int | str, folder: Path) -> None:
    for i in range(LAYERS):
        x = encoder_layer(at, f"encoder.layers.{i}", x, bias)
    norm(at, "encoder.layer_norm", x)
    at.nodes[-1].output[0] = at.returns("last_hidden_state", "batch_size", length, WIDTH)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(at.model(), folder / "encoder_model.onnx")


def _save(at: Drawing, *, with_past: bool, to: Path) -> None:
    onnx.save(at.model(), to / ("decoder_with_past_model.onnx" if with_past else "decoder_model.onnx"))


def _with_settings(folder: Path, kind: str, more: Mapping[str, Any], begins: Mapping[str, Any]) -> Path:
    sizes = {"d_model": WIDTH, "decoder_layers": LAYERS, "decoder_attention_heads": HEADS, "vocab_size": VOCABULARY}
    t5 = {"d_model": WIDTH, "num_decoder_layers": LAYERS, "num_heads": HEADS, "d_kv": SIZE, "vocab_size": VOCABULARY}
    ends = {"eos_token_id": 1, "pad_token_id": 0}
    start = {"decoder_start_token_id": begins["decoder_start_token_id"], **ends}
    config = {"model_type": kind, "is_encoder_decoder": True, **(t5 if kind == "t5" else sizes), **more, **start}
    generation = {**begins, **ends, "max_length": ROOM}
    for name, content in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    write_tokenizer(folder, last="</s>" if kind != "whisper" else None)
    return folder
