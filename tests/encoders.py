"""Small networks in the styles of public exports: two text models, a speech encoder and decoder, a detector."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from decoders import Drawing, length_of
from onnx import TensorProto, helper, numpy_helper

from conftest import FIXTURES

HIDDEN, HEADS, WORDS, CHANNELS = 64, 4, 100, 16


def save_sentence_encoder(path: Path) -> None:
    """Like MiniLM as torch exports it: attention, masks and Gelu in small operators."""
    at = Drawing()
    ids, given = (at.reads(name, TensorProto.INT64, "batch", "seq") for name in ("input_ids", "attention_mask"))
    mask = at.node("Unsqueeze", at.node("Unsqueeze", given, at.number([1])), at.number([2]))
    mask = at.node("Cast", mask, to=TensorProto.FLOAT)
    mask = at.node("Mul", at.node("Sub", at.number(1, np.float32), mask), at.number(-10000, np.float32))
    hidden = _norm(at, at.node("Gather", at.weight("words", WORDS, HIDDEN), ids))
    for i in range(2):
        hidden = _layer(at, f"layer.{i}", hidden, mask)
    at.nodes[-1].output[0] = at.returns("last_hidden_state", "batch", "seq", HIDDEN)
    _save(at, path)


def save_qwen(path: Path) -> None:
    """Like Qwen2 as GenAI's model builder exports it: the small Llama, whose queries, keys and values get biases."""
    model = onnx.load(FIXTURES / "tiny-llama-fp32" / "model.onnx")
    shutil.copy(FIXTURES / "tiny-llama-fp32" / "genai_config.json", path.parent)
    nodes, rng = list(model.graph.node), np.random.default_rng(0)
    for node in filter(lambda node: node.name.endswith("qkv_proj/MatMul"), model.graph.node):
        made, name = f"{node.output[0]}/biased", node.name.replace("MatMul", "Add")
        reader = next(other for other in nodes if node.output[0] in other.input)
        reader.input[0] = made
        bias = numpy_helper.from_array(rng.normal(0, 0.1, 128).astype(np.float32), f"{name}.bias")
        model.graph.initializer.append(bias)
        nodes.insert(nodes.index(reader), helper.make_node("Add", [node.output[0], bias.name], [made], name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def save_speech_encoder(path: Path) -> None:
    """Like the encoder of Whisper: two convolutions over a spectrogram, then layers."""
    at = Drawing()
    x = at.reads("input_features", TensorProto.FLOAT, "batch", 80, 64)
    for i, (width, stride) in enumerate(((80, 1), (HIDDEN, 2))):
        weight = at.weight(f"conv{i}", HIDDEN, width, 3, scale=0.05)
        x = _gelu(at, at.node("Conv", x, weight, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    hidden = at.node("Add", at.node("Transpose", x, perm=[0, 2, 1]), at.weight("positions", 32, HIDDEN))
    for i in range(2):
        hidden = _layer(at, f"layer.{i}", hidden, None)
    at.nodes[-1].output[0] = at.returns("last_hidden_state", "batch", 32, HIDDEN)
    _save(at, path)


def save_speech_decoder(path: Path) -> None:
    """Like the decoder of Whisper: each layer attends to earlier tokens, in caches, and to what the encoder made."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    heard = at.reads("encoder_hidden_states", TensorProto.FLOAT, "batch", "frames", HIDDEN)
    past = length_of(at, "past_key_values.0.decoder.key", 2)
    total = at.node("Add", past, length_of(at, ids, 1))
    places = at.node("Range", past, total, at.number(1))
    tokens = at.node("Gather", at.weight("tokens", WORDS, HIDDEN), at.node("Reshape", ids, at.number([0, -1])))
    hidden = at.node("Add", tokens, at.node("Gather", at.weight("places", 448, HIDDEN), places))
    seen = at.node("LessOrEqual", at.node("Range", at.number(0), total, at.number(1)), _column(at, places))
    mask = at.node("Where", seen, at.number(0, np.float32), at.number(-10000, np.float32))
    for i in range(2):
        hidden = _attending(at, f"layer.{i}.self", hidden, hidden, mask, f"{i}.decoder")
        hidden = _attending(at, f"layer.{i}.cross", hidden, heard, None, "")
        hidden = _fed_forward(at, f"layer.{i}", hidden)
    at.node("MatMul", hidden, at.weight("out", HIDDEN, WORDS), writes=at.returns("logits", "batch", "seq", WORDS))
    _save(at, path)


def save_detector(path: Path) -> None:
    """Like YOLO: SiLU, a skip connection to an upsampled level, boxes and scores of two levels in one output."""
    at = Drawing()

    def conv(name: str, x: str, width: int, stride: int = 1) -> str:
        made = at.node("Conv", x, at.weight(name, CHANNELS, width, 3, 3, scale=0.1), pads=[1] * 4, strides=[stride] * 2)
        return at.node("Mul", made, at.node("Sigmoid", made))

    fine = conv("fine", conv("stem", at.reads("images", TensorProto.FLOAT, 1, 3, 64, 64), 3, 2), CHANNELS, 2)
    coarse = conv("coarse", fine, CHANNELS, 2)
    raised = at.node("Resize", coarse, "", at.number([1, 1, 2, 2], np.float32), mode="nearest")
    levels = [conv("neck", at.node("Concat", raised, fine, axis=1), 2 * CHANNELS), coarse]
    flat = [
        at.node("Reshape", conv(f"head{i}", x, CHANNELS), at.number([1, CHANNELS, -1])) for i, x in enumerate(levels)
    ]
    both = at.node("Concat", *flat, axis=2)
    at.nodes_of("Split", both, at.number([4, CHANNELS - 4]), writes=["boxes", "classes"], axis=1)
    at.node("Concat", "boxes", at.node("Sigmoid", "classes"), writes=at.returns("output0", 1, CHANNELS, 320), axis=1)
    _save(at, path)


def _linear(at: Drawing, name: str, x: str, width: int, units: int) -> str:
    made = at.node("MatMul", x, at.weight(f"{name}.weight", width, units, scale=width**-0.5))
    return at.node("Add", at.weight(f"{name}.bias", units), made)


def _norm(at: Drawing, x: str) -> str:
    scale, shift = at.number(np.ones(HIDDEN), np.float32), at.number(np.zeros(HIDDEN), np.float32)
    return at.node("LayerNormalization", x, scale, shift, axis=-1)


def _gelu(at: Drawing, x: str) -> str:
    erf = at.node("Erf", at.node("Div", x, at.number(2**0.5, np.float32)))
    inner = at.node("Mul", x, at.node("Add", erf, at.number(1, np.float32)))
    return at.node("Mul", inner, at.number(0.5, np.float32))


def _layer(at: Drawing, name: str, x: str, mask: str | None) -> str:
    def heads(kind: str, *perm: int) -> str:
        made = _linear(at, f"{name}.{kind}", x, HIDDEN, HIDDEN)
        return at.node("Transpose", at.node("Reshape", made, split), perm=perm)

    split, joined = at.number([0, 0, HEADS, HIDDEN // HEADS]), at.number([0, 0, HIDDEN])
    scores = at.node("MatMul", heads("query", 0, 2, 1, 3), heads("key", 0, 2, 3, 1))
    scores = at.node("Div", scores, at.number((HIDDEN / HEADS) ** 0.5, np.float32))
    shares = at.node("Softmax", scores if mask is None else at.node("Add", scores, mask), axis=-1)
    mixed = at.node("Transpose", at.node("MatMul", shares, heads("value", 0, 2, 1, 3)), perm=[0, 2, 1, 3])
    x = _norm(at, at.node("Add", _linear(at, f"{name}.out", at.node("Reshape", mixed, joined), HIDDEN, HIDDEN), x))
    return _fed_forward(at, name, x)


def _fed_forward(at: Drawing, name: str, x: str) -> str:
    inner = _gelu(at, _linear(at, f"{name}.inner", x, HIDDEN, 4 * HIDDEN))
    return _norm(at, at.node("Add", _linear(at, f"{name}.outer", inner, 4 * HIDDEN, HIDDEN), x))


def _column(at: Drawing, x: str) -> str:
    return at.node("Unsqueeze", x, at.number([1]))


def _attending(at: Drawing, name: str, x: str, memory: str, mask: str | None, cache: str) -> str:
    """Attention of `x` to `memory`, and to what the cache has, if it has a name."""
    shape = at.number([0, -1, HEADS, HIDDEN // HEADS])

    def heads(kind: str, of: str) -> str:
        made = at.node("Reshape", _linear(at, f"{name}.{kind}", of, HIDDEN, HIDDEN), shape)
        made = at.node("Transpose", made, perm=[0, 2, 1, 3])
        if not cache or kind == "query":
            return made
        past = at.reads(f"past_key_values.{cache}.{kind}", TensorProto.FLOAT, *_cache("past"))
        return at.node("Concat", past, made, axis=2, writes=at.returns(f"present.{cache}.{kind}", *_cache("total")))

    scores = at.node("MatMul", heads("query", x), at.node("Transpose", heads("key", memory), perm=[0, 1, 3, 2]))
    scores = at.node("Div", scores, at.number((HIDDEN / HEADS) ** 0.5, np.float32))
    shares = at.node("Softmax", scores if mask is None else at.node("Add", scores, mask), axis=-1)
    mixed = at.node("Transpose", at.node("MatMul", shares, heads("value", memory)), perm=[0, 2, 1, 3])
    joined = at.node("Reshape", mixed, at.number([0, -1, HIDDEN]))
    return _norm(at, at.node("Add", _linear(at, f"{name}.out", joined, HIDDEN, HIDDEN), x))


def _cache(length: str) -> tuple[int | str, ...]:
    return "batch", HEADS, length, HIDDEN // HEADS


def _save(at: Drawing, path: Path) -> None:
    graph = helper.make_graph(at.nodes, "encoder", at.inputs, at.outputs, at.weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
