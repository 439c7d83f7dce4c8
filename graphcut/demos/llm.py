"""The demo `llm`: a Llama-like decoder with a KV cache, of standard operators only.

Mask, cosine and sine are computed once and read by every layer: they are residual dependencies of every cut.
Inputs and outputs have the names of optimum and ORT GenAI exports.
"""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.arguments import FloatType
from ..core.errors import UsageError
from .drafting import Draft, Recipe, element_type

Positive = Annotated[int, msgspec.Meta(ge=1)]

# Half the range of float16: adding a score never gives -inf, so a row that is masked completely stays finite.
_MASKED = -3e4


class Llm(Recipe, frozen=True, kw_only=True):
    """The options of the demo."""

    hidden: Positive = 64  #: width of the residual stream.
    layers: Positive = 6  #: number of decoder layers.
    heads: Positive = 4  #: query heads of a layer.
    kv_heads: Positive = 2  #: key and value heads of a layer; each is shared by heads / kv_heads query heads.
    intermediate: Positive | None = None  #: width of the MLP; default 8/3 of `hidden`, rounded up to a multiple of 16.
    vocab: Positive = 256  #: vocabulary size.
    #: of weights, activations, cache and logits; norms and rotary angles are always float32.
    dtype: FloatType = "float32"
    tied: bool = False  #: the output projection is the transposed embedding.

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            message = f"hidden = {self.hidden} does not divide into {self.heads} heads of an even size"
            raise UsageError(message, hint=f"make `hidden` a multiple of {2 * self.heads}, or change `heads`")
        if self.heads % self.kv_heads:
            hint = "make `heads` a multiple of `kv_heads`; the same number gives plain multi-head attention"
            raise UsageError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly", hint=hint)

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def mlp_width(self) -> int:
        """Width of the MLP."""
        return self.intermediate or -(-self.hidden * 8 // 3 // 16) * 16

    def draw(self) -> Draft:
        """Build the decoder."""
        draft = Draft("llm", dtype=self.dtype)
        model, head = draft.inside("model"), draft.inside("lm_head")
        input_ids = draft.reads("input_ids", "int64", ["batch", "seq"])
        attention_mask = draft.reads("attention_mask", "int64", ["batch", "total"])
        position_ids = draft.reads("position_ids", "int64", ["batch", "seq"])
        embed = model.inside("embed_tokens")
        embedding = embed.weight("weight", (self.vocab, self.hidden), scale=self.hidden**-0.5)
        hidden = embed.node("Gather", embedding, input_ids)
        mask = _causal_mask(model.inside("causal_mask"), input_ids, attention_mask, np.array(_MASKED, self.dtype))
        shared = _Shared(mask, *_rotary(model.inside("rotary_emb"), position_ids, self))
        draft.returns("logits", self.dtype, ["batch", "seq", self.vocab])
        for index in range(self.layers):
            hidden = _layer(draft, index, hidden, shared, self)
        hidden = _norm(model.inside("norm"), hidden, self)
        if self.tied:
            head.node("MatMul", hidden, head.node("Transpose", embedding, perm=[1, 0]), writes="logits")
        else:
            head.linear(hidden, self.hidden, self.vocab, writes="logits")
        return draft


class _Shared(NamedTuple):
    """Tensors that every layer reads."""

    mask: str
    cosine: str
    sine: str


def _layer(draft: Draft, index: int, hidden: str, shared: _Shared, llm: Llm) -> str:
    """One decoder layer: attention and MLP, each after a norm, each added to the residual stream."""
    layer = draft.inside("model", f"layers.{index}")
    caches = [_declare_cache(draft, index, kind, llm) for kind in ("key", "value")]
    normed = _norm(layer.inside("input_layernorm"), hidden, llm)
    hidden = layer.node("Add", hidden, _attention(layer.inside("self_attn"), normed, caches, shared, llm), name="add")
    normed = _norm(layer.inside("post_attention_layernorm"), hidden, llm)
    return layer.node("Add", hidden, _mlp(layer.inside("mlp"), normed, llm), name="add")


def _declare_cache(draft: Draft, index: int, kind: str, llm: Llm) -> tuple[str, str]:
    """The input and the output of a layer with its keys or its values."""
    past, present = f"past_key_values.{index}.{kind}", f"present.{index}.{kind}"
    draft.reads(past, llm.dtype, ["batch", llm.kv_heads, "past", llm.head_size])
    draft.returns(present, llm.dtype, ["batch", llm.kv_heads, "total", llm.head_size])
    return past, present


def _attention(at: Draft, x: str, caches: list[tuple[str, str]], shared: _Shared, llm: Llm) -> str:
    """Grouped-query attention (Ainslie et al. 2023) over the cache and the new tokens."""
    query = _rotate(at, _project(at, "q_proj", x, llm.heads, llm), shared)
    key = _rotate(at, _project(at, "k_proj", x, llm.kv_heads, llm), shared)
    value = _project(at, "v_proj", x, llm.kv_heads, llm)
    keys, values = (
        _repeat(at, at.node("Concat", past, new, axis=-2, writes=present), llm)
        for new, (past, present) in zip((key, value), caches, strict=True)
    )
    scores = at.node("MatMul", query, at.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = at.node("Mul", scores, at.constant(np.array(llm.head_size**-0.5, llm.dtype)))
    attended = at.node("MatMul", at.node("Softmax", at.node("Add", scaled, shared.mask), axis=-1), values)
    rows = at.node("Transpose", attended, perm=[0, 2, 1, 3])
    joined = at.node("Reshape", rows, at.constant(np.array([0, 0, llm.hidden])))
    return at.inside("o_proj").linear(joined, llm.hidden, llm.hidden)


def _project(at: Draft, name: str, x: str, heads: int, llm: Llm) -> str:
    """Queries, keys or values, as [batch, heads, seq, head_size]."""
    flat = at.inside(name).linear(x, llm.hidden, heads * llm.head_size)
    rows = at.node("Reshape", flat, at.constant(np.array([0, 0, heads, llm.head_size])))
    return at.node("Transpose", rows, perm=[0, 2, 1, 3])


def _rotate(at: Draft, x: str, shared: _Shared) -> str:
    """Rotary position embedding (Su et al. 2021), on half vectors as in Llama."""
    first, second = at.nodes("Split", x, outputs=2, axis=-1)
    turned = at.node("Concat", at.node("Neg", second), first, axis=-1)
    return at.node("Add", at.node("Mul", x, shared.cosine), at.node("Mul", turned, shared.sine))


def _repeat(at: Draft, x: str, llm: Llm) -> str:
    """Repeat each key or value head for the query heads that share it."""
    if llm.heads == llm.kv_heads:
        return x
    apart = at.node("Unsqueeze", x, at.constant(np.array([2])))
    copies = at.node("Expand", apart, at.constant(np.array([1, 1, llm.heads // llm.kv_heads, 1, 1])))
    return at.node("Reshape", copies, at.constant(np.array([0, llm.heads, -1, llm.head_size])))


def _mlp(at: Draft, x: str, llm: Llm) -> str:
    """SwiGLU (Shazeer 2020)."""
    gate = at.inside("gate_proj").linear(x, llm.hidden, llm.mlp_width)
    act = at.inside("act_fn")
    opened = act.node("Mul", gate, act.node("Sigmoid", gate))
    product = at.node("Mul", opened, at.inside("up_proj").linear(x, llm.hidden, llm.mlp_width))
    return at.inside("down_proj").linear(product, llm.mlp_width, llm.hidden)


def _norm(at: Draft, x: str, llm: Llm) -> str:
    """RMSNorm (Zhang and Sennrich 2019): squares are summed in float32, as float16 would overflow."""
    wide = _convert(at, x, "float32", llm)
    squares = at.node("Pow", wide, at.constant(np.array(2, "float32")))
    mean = at.node("ReduceMean", squares, axes=[-1], keepdims=1)
    root = at.node("Sqrt", at.node("Add", mean, at.constant(np.array(1e-5, "float32"))))
    normed = _convert(at, at.node("Div", wide, root), llm.dtype, llm)
    return at.node("Mul", at.weight("weight", (llm.hidden,), mean=1.0, scale=0.1), normed)


def _convert(at: Draft, x: str, dtype: FloatType, llm: Llm) -> str:
    """Cast, unless the whole model is in float32."""
    return x if llm.dtype == "float32" else at.node("Cast", x, to=element_type(dtype))


def _causal_mask(at: Draft, input_ids: str, attention_mask: str, masked: NDArray[np.floating]) -> str:
    """The mask that is added to the scores, [batch, 1, seq, total]: 0 where attention is allowed, else `masked`.

    A token may attend to itself and to earlier tokens, except padding.
    """
    zero, one = at.constant(np.array(0)), at.constant(np.array(1))
    seq = at.node("Gather", at.node("Shape", input_ids), one)
    total = at.node("Gather", at.node("Shape", attention_mask), one)
    own = at.node("Range", at.node("Sub", total, seq), total, one)
    seen = at.node("Range", zero, total, one)
    causal = at.node("LessOrEqual", seen, at.node("Unsqueeze", own, at.constant(np.array([1]))))
    real = at.node("Cast", attention_mask, to=element_type("bool"))
    allowed = at.node("And", causal, at.node("Unsqueeze", real, at.constant(np.array([1, 2]))))
    return at.node("Where", allowed, at.constant(np.zeros_like(masked)), at.constant(masked))


def _rotary(at: Draft, position_ids: str, llm: Llm) -> list[str]:
    """Cosine and sine of the angles of all positions, [batch, 1, seq, head_size]."""
    exponents = np.arange(0, llm.head_size, 2) / llm.head_size
    frequencies = at.literal("inv_freq", (10_000.0**-exponents).astype(np.float32))
    positions = at.node("Cast", position_ids, to=element_type("float32"))
    half = at.node("Mul", at.node("Unsqueeze", positions, at.constant(np.array([1, 3]))), frequencies)
    angles = at.node("Concat", half, half, axis=-1)
    return [_convert(at, at.node(op, angles), llm.dtype, llm) for op in ("Cos", "Sin")]
