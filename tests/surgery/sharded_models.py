"""Small models in the styles of several exporters, of which sharding divides most weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from decoders import Drawing
from onnx import ModelProto, TensorProto

WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 24, 6, 3, 4, 40, 30


def linear(at: Drawing, x: str, name: str, before: int, after: int, *, bias: bool = False) -> str:
    product = at.node("MatMul", x, at.weight(name, before, after, scale=before**-0.5))
    return at.node("Add", product, at.weight(f"{name}.bias", after)) if bias else product


def norm(at: Drawing, x: str, name: str) -> str:
    return at.node("LayerNormalization", x, at.weight(name, WIDTH), at.weight(f"{name}.bias", WIDTH))


def heads_of(at: Drawing, x: str, heads: int) -> str:
    """[batch, seq, heads * HEAD] → [batch, heads, seq, HEAD]."""
    return at.node("Transpose", at.node("Reshape", x, at.number([0, 0, heads, HEAD])), perm=[0, 2, 1, 3])


def attended(at: Drawing, query: str, key: str, value: str) -> str:
    scores = at.node("MatMul", query, at.node("Transpose", key, perm=[0, 1, 3, 2]))
    rows = at.node("MatMul", at.node("Softmax", scores, axis=-1), value)
    return at.node("Reshape", at.node("Transpose", rows, perm=[0, 2, 1, 3]), at.number([0, 0, -1]))


def repeated(at: Drawing, x: str) -> str:
    """Each head of keys or values for the query heads that share it, with a shape that is computed."""
    batch, seq = (at.node("Gather", at.node("Shape", x), at.number([axis])) for axis in (0, 2))
    size = at.node("Concat", batch, at.number([KV_HEADS, HEADS // KV_HEADS]), seq, at.number([HEAD]), axis=0)
    copies = at.node("Expand", at.node("Unsqueeze", x, at.number([2])), size)
    return at.node("Reshape", copies, at.node("Concat", batch, at.number([HEADS]), seq, at.number([-1]), axis=0))


def model_with(at: Drawing, x: str) -> ModelProto:
    at.node("Identity", x, writes="y")
    at.returns("y", 2, "seq", WIDTH)
    return at.model(opset=20)


def phi_like() -> ModelProto:
    """Queries, keys and values in one weight, cut by Slices; gate and up in one weight, cut by Split; no biases."""
    at = Drawing()
    x = at.reads("x", TensorProto.FLOAT, 2, "seq", WIDTH)
    for i in range(2):
        packed = linear(at, norm(at, x, f"n{i}"), f"qkv{i}", WIDTH, (HEADS + 2 * KV_HEADS) * HEAD)
        ends = [0, HEADS * HEAD, (HEADS + KV_HEADS) * HEAD, 2**62]
        rows = [
            at.node("Slice", packed, at.number([begin]), at.number([end]), at.number([2]))
            for begin, end in pairwise(ends)
        ]
        query, key, value = (heads_of(at, r, n) for r, n in zip(rows, (HEADS, KV_HEADS, KV_HEADS), strict=True))
        made = attended(at, query, repeated(at, key), repeated(at, value))
        x = at.node("Add", x, linear(at, made, f"o{i}", HEADS * HEAD, WIDTH))
        gate, up = f"gate{i}", f"up{i}"
        at.nodes_of("Split", linear(at, x, f"gu{i}", WIDTH, 2 * INNER), writes=[gate, up], axis=-1, num_outputs=2)
        inner = at.node("Mul", at.node("Mul", gate, at.node("Sigmoid", gate)), up)
        x = at.node("Add", x, linear(at, inner, f"d{i}", INNER, WIDTH))
    return model_with(at, x)


def qwen_like() -> ModelProto:
    """Biases on queries, keys and values, and shapes that are computed at run time."""
    at = Drawing()
    x = at.reads("x", TensorProto.FLOAT, 2, "seq", WIDTH)
    for i in range(2):
        normed = norm(at, x, f"n{i}")
        query, key, value = (
            heads_of(at, linear(at, normed, f"{kind}{i}", WIDTH, heads * HEAD, bias=True), heads)
            for kind, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        made = attended(at, query, repeated(at, key), repeated(at, value))
        x = at.node("Add", x, linear(at, made, f"o{i}", HEADS * HEAD, WIDTH))
        gate = linear(at, x, f"g{i}", WIDTH, INNER)
        inner = at.node("Mul", at.node("Mul", gate, at.node("Sigmoid", gate)), linear(at, x, f"u{i}", WIDTH, INNER))
        x = at.node("Add", x, linear(at, inner, f"d{i}", INNER, WIDTH))
    return model_with(at, x)


def vit_like() -> ModelProto:
    """An image cut into patches by a Conv; queries, keys and values in one weight, cut by Reshape and Gather."""
    at = Drawing()
    image = at.reads("image", TensorProto.FLOAT, 1, 3, 8, 8)
    patches = at.node("Conv", image, at.weight("patch", WIDTH, 3, 4, 4), strides=[4, 4], kernel_shape=[4, 4])
    flat = at.node("Transpose", at.node("Reshape", patches, at.number([1, WIDTH, 4])), perm=[0, 2, 1])
    x = at.node("Add", flat, at.weight("positions", 1, 4, WIDTH))
    for i in range(2):
        packed = linear(at, norm(at, x, f"n{i}"), f"qkv{i}", WIDTH, 3 * HEADS * HEAD, bias=True)
        apart = at.node("Reshape", packed, at.number([1, 4, 3, HEADS, HEAD]))
        stacked = at.node("Transpose", apart, perm=[2, 0, 3, 1, 4])
        made = attended(at, *(at.node("Gather", stacked, at.number(which), axis=0) for which in range(3)))
        x = at.node("Add", x, linear(at, made, f"o{i}", HEADS * HEAD, WIDTH, bias=True))
        inner = at.node("Gelu", linear(at, norm(at, x, f"m{i}"), f"u{i}", WIDTH, INNER, bias=True))
        x = at.node("Add", x, linear(at, inner, f"d{i}", INNER, WIDTH, bias=True))
    at.node(
        "Gemm", at.node("ReduceMean", x, at.number([1]), keepdims=0), at.weight("head", 10, WIDTH), transB=1, writes="y"
    )
    at.returns("y", 1, 10)
    return at.model(opset=20)


def bert_like() -> ModelProto:
    """Token embeddings, norms after each block, MultiHeadAttention with a bias of queries, keys and values."""
    at = Drawing()
    ids = at.reads("ids", TensorProto.INT64, 1, "seq")
    x = norm(at, at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids), "first")
    for i in range(2):
        rows = [linear(at, x, f"{kind}{i}", WIDTH, WIDTH) for kind in "qkv"]
        bias = at.weight(f"bias{i}", 3 * WIDTH)
        made = at.node("MultiHeadAttention", *rows, bias, domain="com.microsoft", num_heads=HEADS)
        x = norm(at, at.node("Add", x, linear(at, made, f"o{i}", WIDTH, WIDTH, bias=True)), f"n{i}")
        inner = at.node(
            "FastGelu", linear(at, x, f"u{i}", WIDTH, INNER), at.weight(f"ub{i}", INNER), domain="com.microsoft"
        )
        x = norm(at, at.node("Add", x, linear(at, inner, f"d{i}", INNER, WIDTH, bias=True)), f"m{i}")
    return model_with_ids(at, x)


def model_with_ids(at: Drawing, x: str) -> ModelProto:
    at.node("Identity", x, writes="y")
    at.returns("y", 1, "seq", WIDTH)
    return at.model(opset=20)


def gemma_like() -> ModelProto:
    """One head of keys and values, norms of queries and keys, a soft cap, and the embedding as output projection."""
    at = Drawing()
    ids = at.reads("ids", TensorProto.INT64, 1, "seq")
    table = at.weight("embedding", VOCABULARY, WIDTH, scale=0.2)
    x = at.node("Mul", at.node("Gather", table, ids), at.number(WIDTH**0.5, np.float32))
    for i in range(2):
        query = heads_of(at, linear(at, x, f"q{i}", WIDTH, HEADS * HEAD), HEADS)
        query = at.node("LayerNormalization", query, at.weight(f"qn{i}", HEAD))
        key, value = (heads_of(at, linear(at, x, f"{kind}{i}", WIDTH, HEAD), 1) for kind in "kv")
        made = attended(at, query, key, value)
        x = at.node("Add", x, norm(at, linear(at, made, f"o{i}", HEADS * HEAD, WIDTH), f"n{i}"))
        gate = at.node("Gelu", linear(at, x, f"g{i}", WIDTH, INNER), approximate="tanh")
        x = at.node(
            "Add", x, linear(at, at.node("Mul", gate, linear(at, x, f"u{i}", WIDTH, INNER)), f"d{i}", INNER, WIDTH)
        )
    logits = at.node("MatMul", x, at.node("Transpose", table, perm=[1, 0]))
    at.node("Tanh", logits, writes="logits")
    at.returns("logits", 1, "seq", VOCABULARY)
    return at.model(opset=20)


def convolutions() -> ModelProto:
    """Residual convolutions with groups, norms by channel, a transposed one, and channels that are joined."""
    at = Drawing()
    image = at.reads("image", TensorProto.FLOAT, 1, 3, 8, 8)
    x = at.node("Conv", image, at.weight("stem", 8, 3, 3, 3), at.weight("stem.bias", 8), pads=[1, 1, 1, 1])
    for i in range(2):
        inner = at.node("Relu", at.node("Conv", x, at.weight(f"a{i}", 16, 8, 1, 1)))
        inner = at.node("Conv", inner, at.weight(f"depth{i}", 16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
        scale = [at.weight(f"{kind}{i}", 16) for kind in ("scale", "shift", "mean")]
        inner = at.node("BatchNormalization", inner, *scale, at.number([1.0] * 16, np.float32))
        x = at.node("Add", x, at.node("Conv", inner, at.weight(f"b{i}", 8, 16, 1, 1), at.weight(f"b{i}.bias", 8)))
    small = at.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    large = at.node("ConvTranspose", small, at.weight("up", 8, 8, 2, 2), strides=[2, 2])
    at.node("Conv", at.node("Concat", large, x, axis=1), at.weight("last", 4, 16, 1, 1), writes="y")
    at.returns("y", 1, 4, 8, 8)
    return at.model(opset=20)


def moe_like() -> ModelProto:
    """Mixtures of experts, which choose the experts of a row inside the operator."""
    at, experts = Drawing(), 4
    x = at.reads("x", TensorProto.FLOAT, 5, WIDTH)
    for i in range(2):
        up, down = at.weight(f"e{i}", experts, INNER, WIDTH, scale=0.2), at.weight(f"f{i}", experts, WIDTH, INNER)
        biases = at.weight(f"eb{i}", experts, INNER), at.weight(f"fb{i}", experts, WIDTH)
        normed = norm(at, x, f"n{i}")
        routes = linear(at, normed, f"r{i}", WIDTH, experts)
        # Without normalized weights ONNX Runtime before 1.32 is wrong (docs/explanation/moe_in_place.py).
        weights = normed, routes, up, biases[0], down, biases[1]
        made = at.node("MoE", *weights, domain="com.microsoft", k=2, normalize_routing_weights=1)
        x = at.node("Add", x, linear(at, made, f"o{i}", WIDTH, WIDTH))
    at.node("Identity", x, writes="y")
    at.returns("y", 5, WIDTH)
    return at.model(opset=20)


def attention_of(at: Drawing, x: str, memory: str, name: str) -> str:
    """Queries of `x`, keys without a bias and values of `memory`, with biases as in Whisper."""
    normed = norm(at, x, f"{name}.norm")
    rows = [
        linear(at, read, f"{name}.{kind}", WIDTH, WIDTH, bias=kind != "k")
        for kind, read in (("q", normed), ("k", memory), ("v", memory))
    ]
    made = attended(at, *(heads_of(at, row, HEADS) for row in rows))
    return at.node("Add", x, linear(at, made, f"{name}.o", WIDTH, WIDTH, bias=True))


def whisper_like() -> ModelProto:
    """Convolutions over time, an encoder, and a decoder with cross attention that shares its embedding with the end."""
    at = Drawing()
    x = at.reads("mel", TensorProto.FLOAT, 1, 8, 16)
    for i, (before, step) in enumerate(((8, 1), (WIDTH, 2))):
        kernel = at.weight(f"c{i}", WIDTH, before, 3, scale=0.3), at.weight(f"c{i}.bias", WIDTH)
        x = at.node("Gelu", at.node("Conv", x, *kernel, kernel_shape=[3], strides=[step], pads=[1, 1]))
    x = at.node("Add", at.node("Transpose", x, perm=[0, 2, 1]), at.weight("positions", 8, WIDTH))
    table = at.weight("embedding", VOCABULARY, WIDTH, scale=0.2)
    y = at.node("Gather", table, at.reads("ids", TensorProto.INT64, 1, "seq"))
    memory = attention_of(at, x, norm(at, x, "first"), "encoder")
    for name, read in (("self", y), ("cross", memory)):
        y = attention_of(at, y, read, name)
    inner = at.node("Gelu", linear(at, norm(at, y, "m"), "up", WIDTH, INNER, bias=True))
    y = at.node("Add", y, linear(at, inner, "down", INNER, WIDTH, bias=True))
    at.node("MatMul", y, at.node("Transpose", table, perm=[1, 0]), writes="logits")
    at.returns("logits", 1, "seq", VOCABULARY)
    return at.model(opset=20)


STYLES = {
    "phi": phi_like,
    "qwen": qwen_like,
    "gemma": gemma_like,
    "vit": vit_like,
    "bert": bert_like,
    "whisper": whisper_like,
    "convolutions": convolutions,
    "moe": moe_like,
}


def dense_experts() -> ModelProto:
    """Four experts as one batch of products, all of which a router mixes."""
    at, experts = Drawing(), 4
    x = at.reads("x", TensorProto.FLOAT, 5, WIDTH)
    for i in range(2):
        normed = norm(at, x, f"n{i}")
        route = at.node("Softmax", linear(at, normed, f"r{i}", WIDTH, experts), axis=-1)
        up = at.weight(f"up{i}", experts, WIDTH, INNER, scale=0.2)
        inner = at.node("Relu", at.node("MatMul", at.node("Unsqueeze", normed, at.number([0])), up))
        made = at.node("MatMul", inner, at.weight(f"down{i}", experts, INNER, WIDTH, scale=0.2))
        mixed = at.node("Mul", made, at.node("Unsqueeze", at.node("Transpose", route, perm=[1, 0]), at.number([2])))
        x = at.node("Add", x, at.node("ReduceSum", mixed, at.number([0]), keepdims=0))
    at.node("Identity", x, writes="y")
    at.returns("y", 5, WIDTH)
    return at.model(opset=20)


def squeeze_excite() -> ModelProto:
    """Convolutions whose channels are weighed by their means, and a product with ten columns that has most weights."""
    at = Drawing()
    x = at.reads("image", TensorProto.FLOAT, 1, 8, 8, 8)
    for i in range(2):
        inner = at.node("Conv", x, at.weight(f"e{i}", 32, 8, 1, 1), at.weight(f"eb{i}", 32))
        inner = at.node("Conv", inner, at.weight(f"dw{i}", 32, 1, 3, 3), group=32, pads=[1, 1, 1, 1])
        means = at.node("GlobalAveragePool", inner)
        few = at.node("Relu", at.node("Conv", means, at.weight(f"s1{i}", 4, 32, 1, 1), at.weight(f"s1b{i}", 4)))
        scale = at.node("Sigmoid", at.node("Conv", few, at.weight(f"s2{i}", 32, 4, 1, 1), at.weight(f"s2b{i}", 32)))
        x = at.node("Add", x, at.node("Conv", at.node("Mul", inner, scale), at.weight(f"p{i}", 8, 32, 1, 1)))
    at.node("Gemm", at.node("Flatten", x), at.weight("fc", 10, 512, scale=0.1), transB=1, writes="y")
    at.returns("y", 1, 10)
    return at.model(opset=20)


def quantized_products() -> ModelProto:
    """Products with 8-bit weights, each column with a scale, and no norm between the layers."""
    at, rng = Drawing(), np.random.default_rng(1)
    x = at.reads("x", TensorProto.FLOAT, 4, WIDTH)

    def product(x: str, before: int, after: int) -> str:
        weight = at.number(rng.integers(-127, 127, (before, after)), np.int8)
        scale, zero = at.number(rng.random(after) * 0.01, np.float32), at.number(np.zeros(after), np.int8)
        return at.node("MatMul", x, at.node("DequantizeLinear", weight, scale, zero, axis=1))

    for _ in range(2):
        x = at.node("Add", x, product(at.node("Relu", product(x, WIDTH, INNER)), INNER, WIDTH))
    at.node("Identity", x, writes="y")
    at.returns("y", 4, WIDTH)
    return at.model(opset=20)


FEW_UNITS = {make.__name__: make for make in (dense_experts, squeeze_excite, quantized_products)}
"""Models whose heaviest classes have so few units that some rank would have more than 1.1 times its share."""
