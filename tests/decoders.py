"""Decoders of two layers in the styles of several exporters, and what a whole one says: the same loop, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

WIDTH, VOCABULARY, LAYERS, ROOM = 16, 61, 2, 24
Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Attribute = int | str | Sequence[int] | GraphProto
Keep = Callable[["Drawing", int, str, str], tuple[str, str]]


class Drawing:
    """A model that is being drawn: nodes, weights, and the names of what they make."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def node(self, op: str, *reads: str, writes: str | None = None, domain: str = "", **attributes: Attribute) -> str:
        name = writes or f"{self.prefix}{op.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, reads, [name], f"{self.prefix}n{len(self.nodes)}", "", domain, None, **attributes)
        )
        return name

    def nodes_of(self, op: str, *reads: str, writes: Sequence[str], domain: str = "", **attributes: Attribute) -> None:
        self.nodes.append(
            helper.make_node(op, reads, writes, f"{self.prefix}n{len(self.nodes)}", "", domain, None, **attributes)
        )

    def weight(self, name: str, *shape: int, scale: float = 1.0) -> str:
        """The same name has the same values wherever it stands."""
        values = np.random.default_rng(crc32(name.encode())).normal(0, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, self.prefix + name))
        return self.prefix + name

    def number(self, value: object, dtype: type[np.generic] = np.int64) -> str:
        name = f"{self.prefix}c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def reads(self, name: str, dtype: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def returns(self, name: str, *shape: int | str) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def body(self, outputs: Sequence[str]) -> GraphProto:
        """A branch that gives out `outputs`."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        return helper.make_graph(self.nodes, f"{self.prefix}branch", [], values, self.weights)

    def model(self, opset: int = 17) -> ModelProto:
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def embedded(at: Drawing, ids: str, positions: str) -> str:
    """Tokens and positions as vectors."""
    tokens = at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids)
    return at.node("Add", tokens, at.node("Gather", at.weight("places", 64, WIDTH, scale=0.7), positions))


def layer(at: Drawing, i: int, x: str, keep: Keep) -> str:
    """Attention of one head; `keep` adds what is new to what was kept and gives the whole back."""
    key, value = (
        at.node("Unsqueeze", at.node("MatMul", x, at.weight(f"w{kind}{i}", WIDTH, WIDTH, scale=0.25)), at.number([1]))
        for kind in "kv"
    )
    keys, values = keep(at, i, key, value)
    query = at.node("Unsqueeze", at.node("MatMul", x, at.weight(f"wq{i}", WIDTH, WIDTH, scale=0.25)), at.number([1]))
    scores = at.node("MatMul", query, at.node("Transpose", keys, perm=[0, 1, 3, 2]))
    weights = at.node("Softmax", at.node("Add", scores, "seen"), axis=-1)
    attended = at.node("Squeeze", at.node("MatMul", weights, values), at.number([1]))
    return at.node("Add", x, at.node("MatMul", attended, at.weight(f"wo{i}", WIDTH, WIDTH, scale=0.25)))


def seen_from(at: Drawing, positions: str, total: str) -> str:
    """0 for the places that a token may look at, which are none after its own; else -1e4: [batch, 1, seq, total]."""
    places = at.node("Range", at.number(0), total, at.number(1))
    allowed = at.node("LessOrEqual", places, at.node("Unsqueeze", positions, at.number([1, 3])))
    return at.node("Where", allowed, at.number(0, np.float32), at.number(-1e4, np.float32), writes="seen")


def seen_through(at: Drawing, mask: str, ids: str) -> str:
    """The same for places that the mask names, too: as exports of transformers have it, whose padding comes first."""
    total, length = length_of(at, mask, 1), length_of(at, ids, 1)
    places = at.node("Range", at.number(0), total, at.number(1))
    own = at.node("Unsqueeze", at.node("Range", at.node("Sub", total, length), total, at.number(1)), at.number([1]))
    named = at.node("Cast", at.node("Unsqueeze", mask, at.number([1, 2])), to=TensorProto.BOOL)
    allowed = at.node("And", at.node("LessOrEqual", places, own), named)
    return at.node("Where", allowed, at.number(0, np.float32), at.number(-1e4, np.float32), writes="seen")


def length_of(at: Drawing, tensor: str, axis: int) -> str:
    """One size, as a scalar."""
    return at.node("Gather", at.node("Shape", tensor), at.number(axis))


def logits(at: Drawing, x: str, *, seq: int | str = "seq") -> None:
    at.node("MatMul", x, at.weight("head", WIDTH, VOCABULARY), writes="logits")
    at.returns("logits", "batch", seq, VOCABULARY)


def concatenated(past: str, present: str) -> Keep:
    """Keys and values apart, each grown by a Concat; `past` and `present` are patterns of names."""

    def keep(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
        made = []
        for kind, new in (("key", key), ("value", value)):
            before = at.reads(past.format(i=i, kind=kind), TensorProto.FLOAT, "batch", 1, "past", WIDTH)
            after = at.node("Concat", before, new, axis=2, writes=present.format(i=i, kind=kind))
            made.append(at.returns(after, "batch", 1, "total", WIDTH))
        return made[0], made[1]

    return keep


def combined(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
    """`past_0`: keys and values in one."""
    before = at.reads(f"past_{i}", TensorProto.FLOAT, 2, "batch", 1, "past", WIDTH)
    both = (at.node("Unsqueeze", new, at.number([0])) for new in (key, value))
    after = at.node("Concat", before, at.node("Concat", *both, axis=0), axis=3, writes=f"present_{i}")
    at.returns(after, 2, "batch", 1, "total", WIDTH)
    return at.node("Gather", after, at.number(0)), at.node("Gather", after, at.number(1))


def scattered(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
    """A buffer with room for 24 tokens, into which what is new is written at its position."""
    made = []
    where = at.node("Expand", at.node("Unsqueeze", "position_ids", at.number([1, 3])), at.number([1, 1, 1, WIDTH]))
    for kind, new in (("key", key), ("value", value)):
        before = at.reads(f"past_{kind}_{i}", TensorProto.FLOAT, 1, 1, ROOM, WIDTH)
        after = at.node("ScatterElements", before, where, new, axis=2, writes=f"present_{kind}_{i}")
        made.append(at.returns(after, 1, 1, ROOM, WIDTH))
    return made[0], made[1]


def tensor_scattered(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
    """The same with TensorScatter, and names that say nothing."""
    made = []
    for kind, new in (("k", key), ("v", value)):
        before = at.reads(f"{kind}{i}_a", TensorProto.FLOAT, 1, 1, ROOM, WIDTH)
        after = at.node("TensorScatter", before, new, "write_indices", axis=2, writes=f"{kind}{i}_b")
        made.append(at.returns(after, 1, 1, ROOM, WIDTH))
    return made[0], made[1]


def with_concat(
    past: str = "past_key_values.{i}.{kind}",
    present: str = "present.{i}.{kind}",
    *,
    says_pieces: bool = False,
    masked: bool = False,
    last: bool = False,
) -> ModelProto:
    """Ids, mask and positions, and caches that grow.

    Of the mask only the length is read, unless it is `masked`. `says_pieces`: what it says depends on how many come at
    once. `last`: it scores the last token alone.
    """
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    mask = at.reads("attention_mask", TensorProto.INT64, "batch", "total")
    positions = at.reads("position_ids", TensorProto.INT64, "batch", "seq")
    if masked:
        seen_through(at, mask, ids)
    else:
        seen_from(at, positions, length_of(at, mask, 1))
    x = embedded(at, ids, positions)
    if says_pieces:
        length = at.node("Cast", length_of(at, ids, 1), to=TensorProto.FLOAT)
        x = at.node("Add", x, at.node("Mul", length, at.weight("pieces", WIDTH, scale=0.5)))
    for i in range(LAYERS):
        x = layer(at, i, x, concatenated(past, present))
    if last:
        x = at.node("Slice", x, at.number([-1]), at.number([2**31 - 1]), at.number([1]))
    logits(at, x, seq=1 if last else "seq")
    return at.model()


def without_caches(length: int | str = "seq") -> ModelProto:
    """The same decoder as `with_concat`, fed the whole sequence at each step; `length` is how much it reads."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", length)
    positions = at.reads("position_ids", TensorProto.INT64, "batch", length)
    seen_from(at, positions, length_of(at, ids, 1))
    x = embedded(at, ids, positions)
    for i in range(LAYERS):
        x = layer(at, i, x, lambda _at, _i, key, value: (key, value))
    logits(at, x, seq=length)
    return at.model()


def with_encoder(decoder: ModelProto) -> ModelProto:
    """The decoder, which attends to what an encoder of two layers made of `sound`, before it scores.

    The encoder's second layer, `heard_1`, makes the keys, and both layers the values. `asked` lies between.
    """
    at, last = Drawing("ear/"), decoder.graph.node[-1]
    heard = at.reads("sound", TensorProto.FLOAT, "batch", "frames", WIDTH)
    for i in range(2):
        heard = at.node("MatMul", heard, at.weight(f"ear{i}", WIDTH, WIDTH, scale=0.5))
        heard = at.node("Tanh", heard, writes=f"heard_{i}")
    encoder, at.nodes = at.nodes, []
    asked = at.node("MatMul", last.input[0], at.node("Transpose", "heard_1", perm=[0, 2, 1]), writes="asked")
    shares = at.node("Softmax", asked, axis=-1)
    told = [at.node("MatMul", shares, heard) for heard in ("heard_0", "heard_1")]
    last.input[0] = at.node("Sum", last.input[0], *told)
    nodes = [*encoder, *decoder.graph.node[:-1], *at.nodes, last]
    for number, node in enumerate(nodes):
        node.name = f"n{number}"
    del decoder.graph.node[:]
    decoder.graph.node.extend(nodes)
    decoder.graph.input.extend(at.inputs)
    decoder.graph.initializer.extend(at.weights)
    return decoder


def with_a_state_of_its_own() -> ModelProto:
    """A cell that is no operator: nothing but the user tells that `h` becomes `g`."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch")
    before = at.reads("h", TensorProto.FLOAT, "batch", WIDTH)
    new = at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids)
    mixed = at.node("MatMul", before, at.weight("w", WIDTH, WIDTH, scale=2))
    at.returns(at.node("Tanh", at.node("Add", mixed, new), writes="g"), "batch", WIDTH)
    at.node("MatMul", "g", at.weight("head", WIDTH, VOCABULARY), writes="logits")
    at.returns("logits", "batch", VOCABULARY)
    return at.model()


def with_combined() -> ModelProto:
    """GPT-2 of ONNX Runtime's converters: keys and values in one, positions from the mask."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT32, "batch", "seq")
    positions = at.node("Cast", at.reads("position_ids", TensorProto.INT32, "batch", "seq"), to=TensorProto.INT64)
    mask = at.reads("attention_mask", TensorProto.FLOAT, "batch", "total")
    seen_from(at, positions, length_of(at, mask, 1))
    x = embedded(at, ids, positions)
    for i in range(LAYERS):
        x = layer(at, i, x, combined)
    logits(at, x)
    return at.model()


def of_one_size(keep: Keep) -> ModelProto:
    """A mask and caches of one size; the mask says which places are filled. One token at a time."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, 1, 1)
    mask = at.reads("attention_mask", TensorProto.INT64, 1, ROOM)
    positions = at.reads("position_ids", TensorProto.INT64, 1, 1)
    filled = at.node("Cast", at.node("Unsqueeze", mask, at.number([1, 2])), to=TensorProto.BOOL)
    at.node("Where", filled, at.number(0, np.float32), at.number(-1e4, np.float32), writes="seen")
    x = embedded(at, ids, positions)
    for i in range(LAYERS):
        x = layer(at, i, x, keep)
    logits(at, x, seq=1)
    return at.model()


def with_buffer() -> ModelProto:
    """Caches whose first places fill up."""
    return of_one_size(scattered)


def with_static() -> ModelProto:
    """transformers' StaticCache: caches of one size, written at `cache_position`, which has no axis for a batch."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, 1, "seq")
    places = at.reads("cache_position", TensorProto.INT64, "seq")
    positions = at.node("Unsqueeze", places, at.number([0]))
    seen_from(at, positions, at.number(ROOM))
    x = embedded(at, ids, positions)
    index = at.node("Unsqueeze", places, at.number([0, 1, 3]))

    def keep(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
        made = []
        for kind, new in (("key", key), ("value", value)):
            before = at.reads(f"{kind}_cache_{i}", TensorProto.FLOAT, 1, 1, ROOM, WIDTH)
            where = at.node("Expand", index, at.node("Shape", new))
            after = at.node("ScatterElements", before, where, new, axis=2, writes=f"index_put_{i}_{kind}")
            made.append(at.returns(after, 1, 1, ROOM, WIDTH))
        return made[0], made[1]

    for i in range(LAYERS):
        x = layer(at, i, x, keep)
    logits(at, x)
    return at.model()


def with_rolling(*, cropped_first: bool = False) -> ModelProto:
    """Caches as on NPUs: what is new comes last, and the oldest leaves."""
    return of_one_size(rolled(cropped_first=cropped_first))


def rolled(*, cropped_first: bool) -> Keep:
    """A buffer with room for 24 tokens: `Concat(past, new)[1:]`, or `Concat(past[1:], new)`."""

    def keep(at: Drawing, i: int, key: str, value: str) -> tuple[str, str]:
        made = []
        bounds = at.number([1]), at.number([ROOM + 1]), at.number([2])
        for kind, new in (("key", key), ("value", value)):
            before, name = at.reads(f"past_{kind}_{i}", TensorProto.FLOAT, 1, 1, ROOM, WIDTH), f"present_{kind}_{i}"
            if cropped_first:
                after = at.node("Concat", at.node("Slice", before, *bounds), new, axis=2, writes=name)
            else:
                after = at.node("Slice", at.node("Concat", before, new, axis=2), *bounds, writes=name)
            made.append(at.returns(after, 1, 1, ROOM, WIDTH))
        return made[0], made[1]

    return keep


def with_tensor_scatter() -> ModelProto:
    """Buffers written by TensorScatter, whose index is an input; the mask follows from the position."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, 1, "seq")
    positions = at.reads("position_ids", TensorProto.INT64, 1, "seq")
    at.reads("write_indices", TensorProto.INT64, 1)
    seen_from(at, positions, at.number(ROOM))
    x = embedded(at, ids, positions)
    for i in range(LAYERS):
        x = layer(at, i, x, tensor_scattered)
    logits(at, x)
    return at.model(opset=24)


def with_group_query_attention() -> ModelProto:
    """onnxruntime-genai: lengths worked out once from the mask, and read by the attention of every layer."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    mask = at.reads("attention_mask", TensorProto.INT64, "batch", "total")
    summed = at.node("ReduceSum", mask, at.number([1]), keepdims=0)
    last = at.node("Cast", at.node("Sub", summed, at.number([1])), to=TensorProto.INT32)
    total = at.node("Cast", length_of(at, mask, 1), to=TensorProto.INT32)
    x = at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids)
    for i in range(LAYERS):
        pasts = [
            at.reads(f"past_key_values.{i}.{kind}", TensorProto.FLOAT, "batch", 1, "past", "kv_cache_dim")
            for kind in ("key", "value")
        ]
        presents = [at.returns(f"present.{i}.{kind}", "batch", 1, "total", "kv_cache_dim") for kind in ("key", "value")]
        rows = [at.node("MatMul", x, at.weight(f"w{kind}{i}", WIDTH, WIDTH, scale=0.4)) for kind in "qkv"]
        attended = f"attended_{i}"
        at.nodes_of(
            "GroupQueryAttention", *rows, *pasts, last, total, "cosine", "sine",
            writes=[attended, *presents], domain="com.microsoft", num_heads=1, kv_num_heads=1, do_rotary=1,
        )  # fmt: skip
        x = at.node("Add", x, at.node("MatMul", attended, at.weight(f"wo{i}", WIDTH, WIDTH)))
    angles = np.arange(64)[:, None] / 10.0 ** np.arange(WIDTH // 2)[None]
    at.weights.append(numpy_helper.from_array(np.cos(angles).astype(np.float32), "cosine"))
    at.weights.append(numpy_helper.from_array(np.sin(angles).astype(np.float32), "sine"))
    logits(at, x)
    return at.model()


def with_attention(names: str = "past") -> ModelProto:
    """ai.onnx Attention of opset 23, which keeps keys and values itself; names that say nothing unless asked."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    positions = at.reads("position_ids", TensorProto.INT64, "batch", "seq")
    x = embedded(at, ids, positions)
    for i in range(LAYERS):
        pasts = [at.reads(f"{kind}{i}_a", TensorProto.FLOAT, "batch", 1, names, WIDTH) for kind in "kv"]
        presents = [at.returns(f"{kind}{i}_b", "batch", 1, f"{names}_and_seq", WIDTH) for kind in "kv"]
        rows = [at.node("MatMul", x, at.weight(f"w{kind}{i}", WIDTH, WIDTH, scale=0.4)) for kind in "qkv"]
        attended = f"attended_{i}"
        at.nodes_of(
            "Attention", *rows, "", *pasts, writes=[attended, *presents],
            q_num_heads=1, kv_num_heads=1, is_causal=1,
        )  # fmt: skip
        x = at.node("Add", x, at.node("MatMul", attended, at.weight(f"wo{i}", WIDTH, WIDTH)))
    logits(at, x)
    return at.model(opset=23)


def with_lstm() -> ModelProto:
    """A recurrent language model: hidden and cell states of both layers, put together in one tensor each."""
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    hidden = at.reads("h0", TensorProto.FLOAT, LAYERS, "batch", WIDTH)
    cell = at.reads("c0", TensorProto.FLOAT, LAYERS, "batch", WIDTH)
    x = at.node("Transpose", at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids), perm=[1, 0, 2])
    for i in range(LAYERS):
        first, last = at.number([i]), at.number([i + 1])
        states = [at.node("Slice", state, first, last, at.number([0])) for state in (hidden, cell)]
        weights = [at.weight(f"{kind}{i}", 1, 4 * WIDTH, WIDTH, scale=3) for kind in "wr"]
        at.nodes_of(
            "LSTM", x, *weights, "", "", *states, writes=[f"y{i}", f"h{i}_out", f"c{i}_out"], hidden_size=WIDTH,
        )  # fmt: skip
        x = at.node("Squeeze", f"y{i}", at.number([1]))
    for kind in "hc":
        at.node("Concat", *(f"{kind}{i}_out" for i in range(LAYERS)), axis=0, writes=f"{kind}n")
        at.returns(f"{kind}n", LAYERS, "batch", WIDTH)
    logits(at, at.node("Transpose", x, perm=[1, 0, 2]))
    return at.model()


def with_branches() -> ModelProto:
    """What optimum merges: a branch that fills caches from an encoder and the prompt, and one that goes on with them.

    The branch with caches gives out none of the encoder's: these have no rows then.
    """
    at = Drawing()
    ids = at.reads("input_ids", TensorProto.INT64, "batch", "seq")
    at.reads("encoder_hidden_states", TensorProto.FLOAT, "batch", "source", WIDTH)
    flag = at.reads("use_cache_branch", TensorProto.BOOL, 1)
    kinds = [
        f"{i}.{side}.{kind}" for i in range(LAYERS) for side in ("decoder", "encoder") for kind in ("key", "value")
    ]
    for name in kinds:
        at.reads(f"past_key_values.{name}", TensorProto.FLOAT, "batch", 1, f"past_{name.split('.')[1]}", WIDTH)
    at.node("Gather", at.weight("embedding", VOCABULARY, WIDTH), ids, writes="x")
    inner = [_branch(Drawing(prefix), kinds, is_first=prefix == "first/") for prefix in ("first/", "later/")]
    presents = [f"present.{name}" for name in kinds]
    at.nodes_of("If", flag, writes=["decoded", *presents], then_branch=inner[1], else_branch=inner[0])
    for name in presents:
        at.returns(name, "some", 1, f"total_{name.split('.')[2]}", WIDTH)
    logits(at, at.node("Sin", "decoded"))
    return at.model()


def _branch(at: Drawing, kinds: Sequence[str], *, is_first: bool) -> GraphProto:
    made: dict[str, str] = {}
    x = "x"
    for i in range(LAYERS):
        for side in ("decoder", "encoder"):
            held = []
            for kind in ("key", "value"):
                name = f"{i}.{side}.{kind}"
                weight = at.weight(f"w{name}", WIDTH, WIDTH)
                source = "encoder_hidden_states" if side == "encoder" else x
                new = at.node("Unsqueeze", at.node("MatMul", source, weight), at.number([1]))
                past = f"past_key_values.{name}"
                if is_first:
                    held.append(new)
                elif side == "decoder":
                    held.append(at.node("Concat", past, new, axis=2))
                else:
                    held.append(past)
                made[name] = at.node("Identity", held[-1])
                if side == "encoder" and not is_first:
                    made[name] = at.node("Slice", past, at.number([0]), at.number([0]), at.number([0]))
            x = _attended(at, x, held[0], held[1], f"q{i}{side}", is_causal=side == "decoder")
    return at.body([x, *(made[name] for name in kinds)])


def _attended(at: Drawing, x: str, keys: str, values: str, name: str, *, is_causal: bool) -> str:
    query = at.node("Unsqueeze", at.node("MatMul", x, at.weight(name, WIDTH, WIDTH, scale=0.5)), at.number([1]))
    scores = at.node("MatMul", query, at.node("Transpose", keys, perm=[0, 1, 3, 2]))
    if is_causal:
        total = length_of(at, keys, 2)
        own = at.node("Range", at.node("Sub", total, length_of(at, x, 1)), total, at.number(1))
        places = at.node("Range", at.number(0), total, at.number(1))
        allowed = at.node("LessOrEqual", places, at.node("Unsqueeze", own, at.number([1])))
        seen = at.node("Where", allowed, at.number(0, np.float32), at.number(-1e4, np.float32))
        scores = at.node("Add", scores, seen)
    attended = at.node("MatMul", at.node("Softmax", scores, axis=-1), values)
    return at.node("Add", x, at.node("Squeeze", attended, at.number([1])))


def whole_tokens(
    path: Path,
    prompt: Sequence[int],
    number: int,
    step: Callable[[int, Sequence[int]], Feeds],
    begins: Mapping[str, Array],
    becomes: Mapping[str, str],
    *,
    at_once: bool = True,
) -> list[int]:
    """What the whole model says, in one session, with its caches fed back by hand.

    Args:
        path: the model.
        prompt: tokens to begin with.
        number: how many tokens follow.
        step: what is fed besides states, by how many tokens were fed before and which come now.
        begins: the states at first.
        becomes: the outputs that become them.
        at_once: the prompt is fed whole, not token by token.
    """
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    states, past, made = dict(begins), 0, list[int]()
    waiting = [list(prompt)] if at_once else [[token] for token in prompt]
    while len(made) < number:
        now = waiting.pop(0) if waiting else [made[-1]]
        found = dict(zip(names, session.run(names, {**step(past, now), **states}), strict=True))
        # What comes back without rows stays as it was: an encoder's caches, in a merged decoder.
        states = {name: found[becomes[name]] if len(found[becomes[name]]) else states[name] for name in states}
        past += len(now)
        if not waiting:
            made.append(int(np.argmax(np.atleast_2d(found["logits"][0])[-1])))
    return made


def cross_attention(width: int, layers: int = 4, heads: int = 8) -> ModelProto:
    """Layers of attention to the same float16 values: ONNX Runtime computes all keys and values before the rest."""
    draw, random, queries = Drawing(), np.random.default_rng(3), "x"
    text = """MatMul a e,W; Add c a,b; Reshape d c,split; Transpose k d; MatMul i e,U; Add f i,b; Reshape g f,split;
        Transpose v g; Reshape h Q,split; Transpose j h; MatMul s j,k; Softmax p s; MatMul o p,v; Transpose l o;
        Reshape m l,whole; Add Y Q,m"""
    values = {f"{name}{i}": random.normal(size=(width, width)) for name in "WU" for i in range(layers)}
    for name, value in {**values, "b": random.normal(size=width)}.items():
        draw.weights.append(numpy_helper.from_array(value.astype(np.float16), name))
    for name, sizes in (("split", [-1, heads, width // heads]), ("whole", [-1, width])):
        draw.weights.append(numpy_helper.from_array(np.array(sizes), name))
    for i in range(layers):
        given = {"Q": queries, "Y": "y" if i == layers - 1 else f"q{i}", **dict.fromkeys(("e", "b", "split", "whole"))}
        names = {name: value or name for name, value in given.items()}
        for op, writes, reads in map(str.split, text.split(";")):
            first, *others = (names.get(name, f"{name}{i}") for name in (writes, *reads.split(",")))
            draw.node(op, *others, writes=first)
            if op == "Transpose":
                draw.nodes[-1].attribute.append(
                    helper.make_attribute("perm", [1, 2, 0] if writes == "k" else [1, 0, 2])
                )
        queries = names["Y"]
    shapes = {"e": (2 * width, width), "x": (16, width), "y": (16, width)}
    *ins, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, size) for name, size in shapes.items())
    graph = helper.make_graph(draw.nodes, "cross", ins, [out], draw.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
