"""Models that are run one after the other: reading text in an image, making an image, a vector for a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from decoders import Drawing, length_of
from onnx import TensorProto, numpy_helper

from .layers import HEADS, SIZE, WIDTH, attended, bias_of_mask, encoder_layer, heads, linear, norm
from .words import VOCABULARY, write_tokenizer

LETTERS, REGIONS, HIGH, WIDE = 12, 3, 8, 16
CHANNELS, TIMES = 4, 50


def write_reader(folder: Path) -> Path:
    """`detector.onnx` cuts three regions out of an image, `recognizer.onnx` gives scores of letters for each region.

    No file says that `crops` of the one is `x` of the other.
    """
    at = Drawing()
    image = at.reads("image", TensorProto.FLOAT, 1, 3, 32, 48)
    score = _conv(at, "detector.score", _conv(at, "detector.stem", image, 3, 4, stride=2), 4, 1)
    flat = at.node("Reshape", score, at.number([-1]))
    at.nodes_of("TopK", flat, at.number([REGIONS]), writes=["best", "where"])
    top, left = (at.node("Mul", at.node(op, "where", at.number(24)), at.number(2)) for op in ("Div", "Mod"))
    corner = at.node("Concat", *(at.node("Unsqueeze", x, at.number([1])) for x in (left, top)), axis=1)
    corner = at.node("Cast", corner, to=TensorProto.FLOAT)
    at.node(
        "Concat", corner, at.node("Add", corner, at.number([WIDE, HIGH], np.float32)), axis=1,
        writes=at.returns("boxes", "regions", 4),
    )  # fmt: skip
    at.node(
        "RoiAlign", image, "boxes", at.number([0] * REGIONS), output_height=HIGH, output_width=WIDE, sampling_ratio=1,
        writes=at.returns("crops", "regions", 3, HIGH, WIDE),
    )  # fmt: skip
    _save(at, folder / "detector.onnx")
    at = Drawing()
    x = _conv(at, "recognizer.stem", at.reads("x", TensorProto.FLOAT, "batch", 3, HIGH, WIDE), 3, 8, stride=2)
    x = at.node("Squeeze", at.node("ReduceMean", x, axes=[2]), at.number([2]))
    x = linear(at, "recognizer.head", at.node("Transpose", x, perm=[0, 2, 1]), LETTERS, 8)
    at.node("Softmax", x, axis=-1, writes=at.returns("softmax_0", "batch", WIDE // 2, LETTERS))
    _save(at, folder / "recognizer.onnx")
    return folder


def write_diffusion(folder: Path) -> Path:
    """Folders as Optimum leaves them of Stable Diffusion, but the U-Net gives the next latents: it has the scheduler.

    `timestep` [1] counts from 0.
    """
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch_size", "sequence_length")
    x = at.node("Gather", at.weight("text.embedding", VOCABULARY, WIDTH), ids)
    norm(at, "text.norm", encoder_layer(at, "text.layers.0", x, None))
    at.nodes[-1].output[0] = at.returns("last_hidden_state", "batch_size", "sequence_length", WIDTH)
    _save(at, folder / "text_encoder" / "model.onnx")
    _save(_step_of_diffusion(), folder / "unet" / "model.onnx")
    at = Drawing()
    x = at.reads("latent_sample", TensorProto.FLOAT, "batch_size", CHANNELS, "height", "width")
    x = _doubled(at, _conv(at, "vae.first", x, CHANNELS, 8))
    x = at.node("Conv", x, at.weight("vae.last", 3, 8, 3, 3, scale=0.005), pads=[1] * 4)
    at.node("Tanh", x, writes=at.returns("sample", "batch_size", 3, "2*height", "2*width"))
    _save(at, folder / "vae_decoder" / "model.onnx")
    named = {name: ["diffusers", "OnnxRuntimeModel"] for name in ("text_encoder", "unet", "vae_decoder")}
    content = json.dumps({"_class_name": "OnnxStableDiffusionPipeline", **named}, indent=2)
    (folder / "model_index.json").write_text(content, encoding="utf-8")
    return folder


def _step_of_diffusion() -> Drawing:
    at = Drawing()
    sample = at.reads("sample", TensorProto.FLOAT, "batch_size", CHANNELS, 8, 8)
    step = at.reads("timestep", TensorProto.INT64, 1)
    said = at.reads("encoder_hidden_states", TensorProto.FLOAT, "batch_size", "sequence_length", WIDTH)
    time = at.node(
        "Reshape", at.node("Gather", at.weight("unet.times", TIMES, WIDTH), step), at.number([1, WIDTH, 1, 1])
    )
    fine = at.node("Add", _conv(at, "unet.first", sample, CHANNELS, WIDTH), time)
    x = _conv(at, "unet.down", fine, WIDTH, WIDTH, stride=2)
    rows = at.node("Transpose", at.node("Reshape", x, at.number([0, WIDTH, 16])), perm=[0, 2, 1])
    query = heads(at, "unet.attn.q", norm(at, "unet.attn.norm", rows))
    keys, values = (heads(at, f"unet.attn.{kind}", said) for kind in "kv")
    rows = at.node("Add", rows, attended(at, "unet.attn", query, keys, values, None))
    x = at.node("Reshape", at.node("Transpose", rows, perm=[0, 2, 1]), at.number([0, WIDTH, 4, 4]))
    both = at.node("Concat", _doubled(at, x), fine, axis=1)
    noise = at.node("Conv", both, at.weight("unet.last", CHANNELS, 2 * WIDTH, 3, 3, scale=0.06), pads=[1] * 4)
    for name, values_at in (("kept", np.linspace(0.95, 0.99, TIMES)), ("taken", np.linspace(0.3, 0.05, TIMES))):
        at.weights.append(numpy_helper.from_array(values_at.astype(np.float32), f"scheduler.{name}"))
    kept, taken = (at.node("Gather", f"scheduler.{name}", step) for name in ("kept", "taken"))
    moved = at.node("Sub", at.node("Mul", sample, kept), at.node("Mul", noise, taken))
    at.node("Identity", moved, writes=at.returns("out_sample", "batch_size", CHANNELS, 8, 8))
    return at


def write_sentence_encoder(folder: Path, *, pooling: str = "mean", normalized: bool = True) -> Path:
    """Like MiniLM as sentence-transformers keeps it: the model, and how its rows become one vector."""
    at = Drawing()
    shape = ("batch_size", "sequence_length")
    ids, mask, kinds = (
        at.reads(name, TensorProto.INT64, *shape) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    places = at.node("Range", at.number(0), length_of(at, ids, 1), at.number(1))
    parts = [("words", VOCABULARY, ids), ("kinds", 2, kinds), ("places", 64, places)]
    first, *more = (at.node("Gather", at.weight(name, size, WIDTH), index) for name, size, index in parts)
    x, bias = first, bias_of_mask(at, mask)
    for other in more:
        x = at.node("Add", x, other)
    for i in range(2):
        x = encoder_layer(at, f"encoder.layer.{i}", x, bias)
    norm(at, "encoder.norm", x)
    at.nodes[-1].output[0] = at.returns("last_hidden_state", *shape, WIDTH)
    _save(at, folder / "model.onnx")
    write_tokenizer(folder, first="<s>", last="</s>")
    kinds_of_pooling = {"cls": "cls_token", "mean": "mean_tokens"}
    modes = {f"pooling_mode_{name}": kind == pooling for kind, name in kinds_of_pooling.items()}
    types = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(types)
    ]
    bert = {"model_type": "bert", "hidden_size": WIDTH, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    written = {
        "config": {**bert, "attention_head_size": SIZE, "pad_token_id": 0, "max_position_embeddings": 64},
        "modules": modules,
        "1_Pooling/config": {"word_embedding_dimension": WIDTH, **modes},
        "sentence_bert_config": {"max_seq_length": 16, "do_lower_case": False},
    }
    for name, content in written.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder


def _conv(at: Drawing, name: str, x: str, inputs: int, outputs: int, stride: int = 1) -> str:
    weight = at.weight(name, outputs, inputs, 3, 3, scale=(9 * inputs) ** -0.5)
    made = at.node("Conv", x, weight, pads=[1] * 4, strides=[stride] * 2)
    return at.node("Mul", made, at.node("Sigmoid", made))


def _doubled(at: Drawing, x: str) -> str:
    return at.node("Resize", x, "", at.number([1, 1, 2, 2], np.float32), mode="nearest")


def _save(at: Drawing, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(at.model(), path)
