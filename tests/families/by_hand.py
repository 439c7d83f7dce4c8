"""The loops by which people run these families: ONNX Runtime, numpy, and names written out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from decoders import Array, Feeds

from .merging import MERGED


@lru_cache(16)
def session_of(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(path: Path, feeds: Mapping[str, Array]) -> Feeds:
    """All outputs by name. What the model does not read is not fed."""
    session = session_of(path)
    read = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, {name: array for name, array in feeds.items() if name in read})
    return dict(zip(names, found, strict=True))


def settings(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def tokens_of_encoder_decoder(folder: Path, inputs: Feeds, number: int) -> list[list[int]]:
    """What follows the first tokens, of each row: at most `number`, the one that ends it included.

    The encoder runs once. Caches of what it made come from the first step and stay.
    """
    ends = settings(folder, "generation_config")["eos_token_id"]
    heard, ids = encoded(folder, inputs)
    caches, past = Feeds(), 0
    made: list[list[int]] = [[] for _ in ids]
    while len(max(made, key=len)) < number and not all(row and row[-1] == ends for row in made):
        scores, caches = decoded(folder, heard, ids, caches, past)
        past += ids.shape[1]
        ids = scores.argmax(-1)[:, None]
        for row, token in zip(made, ids[:, 0].tolist(), strict=True):
            if not row or row[-1] != ends:
                row.append(token)
    return made


def encoded(folder: Path, inputs: Feeds) -> tuple[Feeds, Array]:
    """What the decoder reads at each step besides tokens and caches, and the tokens that each row begins with."""
    says = settings(folder, "generation_config")
    inputs = run(folder / "features.onnx", inputs) if "samples" in inputs else inputs
    heard = {"encoder_hidden_states": run(folder / "encoder_model.onnx", inputs)["last_hidden_state"]}
    if "attention_mask" in inputs:
        heard["encoder_attention_mask"] = inputs["attention_mask"]
    prompt = [says["decoder_start_token_id"], *(token for _, token in says.get("forced_decoder_ids", []))]
    return heard, np.tile(np.array(prompt, np.int64), (len(heard["encoder_hidden_states"]), 1))


def decoded(folder: Path, heard: Feeds, ids: Array, caches: Feeds, past: int) -> tuple[Array, Feeds]:
    """Logarithms of the next token's probabilities, and the new caches; `past` tokens are in the old.

    What must not come has -inf; it is counted among the probabilities, as transformers does.
    """
    feeds = {**heard, **caches, "input_ids": ids, "cache_position": np.arange(past, past + ids.shape[1])}
    found = _decoded(folder, feeds, is_first=not past)
    logits = found.pop("logits")[:, -1].astype(float)
    shifted = logits - logits.max(-1, keepdims=True)
    scores = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    scores = _allowed(scores, settings(folder, "generation_config"), is_first=not past)
    return scores, caches | {name.replace("present", "past_key_values"): new for name, new in found.items() if len(new)}


def _decoded(folder: Path, feeds: Feeds, *, is_first: bool) -> Feeds:
    merged = folder / MERGED
    if not merged.exists():
        return run(folder / ("decoder_model.onnx" if is_first else "decoder_with_past_model.onnx"), feeds)
    if is_first:  # what it reads of caches does not matter then
        empty = {
            value.name: np.zeros((len(feeds["input_ids"]), value.shape[1], 1, value.shape[3]), np.float32)
            for value in session_of(merged).get_inputs()
            if value.name.startswith("past_key_values")
        }
        feeds |= empty
    return run(merged, {**feeds, "use_cache_branch": np.array([not is_first])})


def _allowed(scores: Array, says: Mapping[str, Any], *, is_first: bool) -> Array:
    never = [*says.get("suppress_tokens", []), *(word[0] for word in says.get("bad_words_ids", []))]
    scores[:, [*never, *(says.get("begin_suppress_tokens", []) if is_first else [])]] = -np.inf
    return scores


def tokens_of_vision_language(folder: Path, inputs: Feeds, number: int) -> list[int]:
    """As ONNX Runtime GenAI runs them: the image once, then words into vectors and a decoder, for each token.

    `input_ids` [1, seq] has a place for each vector of the image; without `pixel_values` there is no image.
    """
    says = settings(folder, "genai_config")["model"]
    seen = np.zeros((0, says["decoder"]["hidden_size"]), np.float32)
    if "pixel_values" in inputs:
        seen = run(folder / "vision.onnx", {"pixel_values": inputs["pixel_values"]})["image_features"]
    ids, made = inputs["input_ids"], list[int]()
    caches = {
        f"past_key_values.{i}.{kind}": np.zeros((1, 1, 0, says["decoder"]["head_size"]), np.float32)
        for i in range(says["decoder"]["num_hidden_layers"])
        for kind in ("key", "value")
    }
    past = 0
    while len(made) < number and (not made or made[-1] != says["eos_token_id"]):
        embedded = run(folder / "embedding.onnx", {"input_ids": ids, "image_features": seen})["inputs_embeds"]
        past += ids.shape[1]
        mask = np.ones((1, past), np.int64)
        found = run(folder / "model.onnx", {"inputs_embeds": embedded, "attention_mask": mask, **caches})
        made.append(int(found.pop("logits")[0, -1].argmax()))
        caches = {name.replace("present", "past_key_values"): new for name, new in found.items()}
        ids, seen = np.array([[made[-1]]]), seen[:0]
    return made


def read_text(folder: Path, inputs: Feeds) -> Feeds:
    """The outputs of detector and recognizer: what the one cuts out is what the other reads."""
    found = run(folder / "detector.onnx", inputs)
    return found | run(folder / "recognizer.onnx", {"x": found["crops"]})


def picture(folder: Path, inputs: Feeds, steps: int) -> Array:
    """The image after `steps` steps: `input_ids` say what, `sample` is the noise to begin with."""
    said = run(folder / "text_encoder" / "model.onnx", {"input_ids": inputs["input_ids"]})["last_hidden_state"]
    latents = inputs["sample"]
    for step in range(steps):
        feeds = {"sample": latents, "timestep": np.array([step]), "encoder_hidden_states": said}
        latents = run(folder / "unet" / "model.onnx", feeds)["out_sample"]
    return run(folder / "vae_decoder" / "model.onnx", {"latent_sample": latents})["sample"]


def vector(folder: Path, inputs: Feeds) -> Array:
    """One vector for each row, pooled and made of length 1 as the files of sentence-transformers say."""
    hidden = run(folder / "model.onnx", inputs)["last_hidden_state"]
    weights = inputs["attention_mask"][..., None].astype(np.float32)
    if settings(folder, "1_Pooling/config")["pooling_mode_cls_token"]:
        made = hidden[:, 0]
    else:
        made = (hidden * weights).sum(1) / np.maximum(weights.sum(1), 1e-9)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    if any(module["type"].endswith("Normalize") for module in modules):
        made /= np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    return np.asarray(made)


def rows_of_ids(rows: Sequence[Sequence[int]], pad: int = 0) -> Feeds:
    """Tokens of several texts as `input_ids` and `attention_mask`, padded at the end."""
    length = max(map(len, rows))
    ids = np.array([[*row, *[pad] * (length - len(row))] for row in rows], np.int64)
    return {"input_ids": ids, "attention_mask": np.array([[i < len(row) for i in range(length)] for row in rows]) * 1}
