"""A model that sees and writes, in the files of ONNX Runtime GenAI: vision, embedding, decoder."""

from __future__ import annotations

import json
from pathlib import Path

import decoders
import numpy as np
import onnx
from decoders import LAYERS, Drawing, concatenated, layer, length_of, seen_through
from onnx import TensorProto

from .layers import WIDTH, linear, returned_first
from .words import VOCABULARY, write_tokenizer

IMAGE_TOKEN, PATCHES = 3, 4

assert (decoders.WIDTH, decoders.VOCABULARY) == (WIDTH, VOCABULARY)


def write_vision_language(folder: Path) -> Path:
    """An image of 8 x 8 becomes four vectors, which take the places of the tokens `<s>` of a text."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"vision": _vision(), "embedding": _embedding(), "model": _decoder()}
    for name, at in drawn.items():
        onnx.save(at.model(), folder / f"{name}.onnx")
    caches = {f"{kind}_names": f"{kind.replace('past', 'past_key_values').replace('_', '.%d.')}" for kind in _KINDS}
    described = {
        "type": "phi3v", "bos_token_id": 4, "eos_token_id": 1, "pad_token_id": 0, "image_token_id": IMAGE_TOKEN,
        "vocab_size": VOCABULARY, "context_length": 64,
        "vision": {
            "filename": "vision.onnx",
            "inputs": {"pixel_values": "pixel_values"}, "outputs": {"image_features": "image_features"},
        },
        "embedding": {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
        "decoder": {
            "filename": "model.onnx", "head_size": WIDTH, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
            "num_attention_heads": 1, "num_key_value_heads": 1,
            "inputs": {
                "inputs_embeds": "inputs_embeds", "attention_mask": "attention_mask",
                **{name: pattern for name, pattern in caches.items() if name.startswith("past")},
            },
            "outputs": {
                "logits": "logits", **{name: pattern for name, pattern in caches.items() if name.startswith("present")},
            },
        },
    }  # fmt: skip
    content = json.dumps({"model": described, "search": {"max_length": 64, "do_sample": False}}, indent=2)
    (folder / "genai_config.json").write_text(content, encoding="utf-8")
    write_tokenizer(folder, last=None)
    return folder


_KINDS = ("past_key", "past_value", "present_key", "present_value")


def _vision() -> Drawing:
    at = Drawing()
    x = at.reads("pixel_values", TensorProto.FLOAT, "images", 3, 8, 8)
    x = at.node("Conv", x, at.weight("patches", WIDTH, 3, 4, 4, scale=0.2), kernel_shape=[4, 4], strides=[4, 4])
    x = at.node("Transpose", at.node("Reshape", x, at.number([0, WIDTH, PATCHES])), perm=[0, 2, 1])
    x = at.node("Add", at.node("Tanh", x), at.weight("patch_positions", PATCHES, WIDTH, scale=0.5))
    x = linear(at, "projection", at.node("Reshape", x, at.number([-1, WIDTH])))
    at.node("Identity", x, writes=at.returns("image_features", "image_tokens", WIDTH))
    return at


def _embedding() -> Drawing:
    """Vectors of the tokens, those of the image in their order where the image's token stands."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    seen = at.reads("image_features", TensorProto.FLOAT, "image_tokens", WIDTH)
    vectors = at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids)
    where = at.node("NonZero", at.node("Equal", ids, at.number(IMAGE_TOKEN)))
    at.node(
        "ScatterND", vectors, at.node("Transpose", where, perm=[1, 0]), seen,
        writes=at.returns("inputs_embeds", "batch", "seq", WIDTH),
    )  # fmt: skip
    return at


def _decoder() -> Drawing:
    at = Drawing()
    vectors = at.reads("inputs_embeds", TensorProto.FLOAT, "batch", "seq", WIDTH)
    mask = at.reads("attention_mask", TensorProto.INT64, "batch", "total")
    seen_through(at, mask, vectors)
    total = length_of(at, mask, 1)
    places = at.node("Range", at.node("Sub", total, length_of(at, vectors, 1)), total, at.number(1))
    x = at.node("Add", vectors, at.node("Gather", at.weight("places", 64, WIDTH, scale=0.7), places))
    for i in range(LAYERS):
        x = layer(at, i, x, concatenated("past_key_values.{i}.{kind}", "present.{i}.{kind}"))
    never = np.where(np.arange(VOCABULARY) == IMAGE_TOKEN, -1e9, 0)
    scores = at.node("MatMul", x, at.weight("head", WIDTH, VOCABULARY))
    at.node("Add", scores, at.number(never, np.float32), writes="logits")
    returned_first(at, "logits", "batch", "seq", VOCABULARY)
    return at


def image_and_text(seed: int) -> dict[str, np.ndarray]:
    """An image, and a text that has places for it."""
    rng = np.random.default_rng(seed)
    ids = np.array([[4, *[IMAGE_TOKEN] * PATCHES, *rng.integers(6, VOCABULARY, 5)]], np.int64)
    return {"input_ids": ids, "pixel_values": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
