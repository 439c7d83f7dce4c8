"""Layers of small transformers, in the operators that torch's exporter writes. A weight of one name has one value."""

from __future__ import annotations

import numpy as np
from decoders import Drawing
from onnx import TensorProto

WIDTH, HEADS = 16, 2
SIZE = WIDTH // HEADS


def linear(at: Drawing, name: str, x: str, outputs: int = WIDTH, inputs: int = WIDTH, *, gain: float = 2) -> str:
    """The gains are large, so that what is generated varies with what is read."""
    made = at.node("MatMul", x, at.weight(f"{name}.weight", inputs, outputs, scale=gain * inputs**-0.5))
    return at.node("Add", made, at.weight(f"{name}.bias", outputs, scale=0.3))


def norm(at: Drawing, name: str, x: str) -> str:
    scale, shift = at.weight(f"{name}.weight", WIDTH), at.weight(f"{name}.bias", WIDTH, scale=0.1)
    return at.node("LayerNormalization", x, scale, shift, axis=-1)


def fed_forward(at: Drawing, name: str, x: str) -> str:
    inner = linear(at, f"{name}.fc1", norm(at, f"{name}.final_layer_norm", x), 2 * WIDTH, gain=4)
    return at.node("Add", x, linear(at, f"{name}.fc2", at.node("Relu", inner), inputs=2 * WIDTH, gain=4))


def heads(at: Drawing, name: str, x: str, *, writes: str | None = None) -> str:
    """A projection of `x`, as [batch, heads, seq, size]."""
    made = at.node("Reshape", linear(at, name, x), at.number([0, 0, HEADS, SIZE]))
    return at.node("Transpose", made, perm=[0, 2, 1, 3], writes=writes)


def attended(at: Drawing, name: str, query: str, keys: str, values: str, bias: str | None) -> str:
    """What `query` [batch, heads, seq, size] takes from the values; `bias` is added to the scores."""
    scores = at.node("MatMul", query, at.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = at.node("Mul", scores, at.number(SIZE**-0.5, np.float32))
    shares = at.node("Softmax", at.node("Add", scores, bias) if bias else scores, axis=-1)
    mixed = at.node("Transpose", at.node("MatMul", shares, values), perm=[0, 2, 1, 3])
    return linear(at, f"{name}.out_proj", at.node("Reshape", mixed, at.number([0, 0, WIDTH])), gain=4)


def encoder_layer(at: Drawing, name: str, x: str, bias: str | None) -> str:
    name_of_self = f"{name}.self_attn"
    inner = norm(at, f"{name_of_self}_layer_norm", x)
    query, keys, values = (heads(at, f"{name_of_self}.{kind}_proj", inner) for kind in "qkv")
    return fed_forward(at, name, at.node("Add", x, attended(at, name_of_self, query, keys, values, bias)))


def where_allowed(at: Drawing, allowed: str) -> str:
    """0 where `allowed`, else -1e9, to be added to scores."""
    return at.node("Where", allowed, at.number(0, np.float32), at.number(-1e9, np.float32))


def bias_of_mask(at: Drawing, mask: str) -> str:
    """The bias for a mask [batch, seq] of 1 and 0, as [batch, 1, 1, seq]."""
    return where_allowed(at, at.node("Cast", at.node("Unsqueeze", mask, at.number([1, 2])), to=TensorProto.BOOL))


def column(at: Drawing, x: str) -> str:
    return at.node("Unsqueeze", x, at.number([1]))


def returned_first(at: Drawing, name: str, *shape: int | str) -> None:
    at.returns(name, *shape)
    at.outputs.insert(0, at.outputs.pop())
