"""Cost models of decoders from their configurations (config.json of Hugging Face), without weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from ..core.errors import UsageError
from ..core.records import reading, table
from .tables import CostRow, CostTable

_NORM_FLOPS: Final = 8  #: for an element, as `costs.flops` counts RMSNormalization.


class _Family(msgspec.Struct, frozen=True):
    """What distinguishes the decoders of a `model_type`, as transformers builds them."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")  #: of a layer.
    has_bias: bool = False  #: of the projections to queries, keys and values.
    has_head_norms: bool = False  #: of queries and keys.
    is_packed: bool = False  #: one projection makes queries, keys and values, and one gate and up.
    is_tied: bool = False  #: unless the configuration says so, the embedding is the output projection.


_FAMILIES: Final = table("costs/decoder_configs.toml", dict[str, _Family])


class _Config(msgspec.Struct, frozen=True):
    """The fields of a configuration that decide the sizes, in its words."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool | None = None
    torch_dtype: str | None = None


def table_of_config(path: Path) -> CostTable:
    """The cost model of a decoder, for one token: its linear layers, norms and embedding, named as in transformers.

    Weights take 16 bits, or 32 if the configuration says float32. A multiply-add is two operations. Attention and
    activations have no weights, and no rows. A UsageError if it is of another kind of model, a RecordError if the file
    can't be read or is no such configuration.
    """
    hint = f"a config.json of Hugging Face, of one of {', '.join(_FAMILIES)}"
    with reading(path, "JSON", unread=hint, hint=hint):
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    if config.model_type not in _FAMILIES:
        raise UsageError(f"{path} is of the type {config.model_type!r}, which is not known", hint=hint)
    element_bytes = 4 if config.torch_dtype == "float32" else 2
    rows = _rows(config, _FAMILIES[config.model_type])
    found = (
        CostRow(module=name, num_params=n, num_bytes=n * element_bytes, num_flops=flops) for name, n, flops in rows
    )
    return CostTable(tuple(found))


def _rows(config: _Config, family: _Family) -> Iterator[tuple[str, int, int]]:
    """Module, parameters and FLOPs."""
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    head = config.head_dim or hidden // heads
    queries, keys = heads * head, (config.num_key_value_heads or heads) * head
    tied = family.is_tied if config.tie_word_embeddings is None else config.tie_word_embeddings
    bias, has_bias = config.attention_bias or family.has_bias, config.mlp_bias

    def linear(name: str, width: int, units: int, *, bias: bool = False) -> tuple[str, int, int]:
        return name, (width + bias) * units, (2 * width + bias) * units

    yield "model.embed_tokens", config.vocab_size * hidden, 0
    for i in range(config.num_hidden_layers):
        layer, attention, mlp = (f"model.layers.{i}{at}" for at in ("", ".self_attn", ".mlp"))
        yield from ((f"{layer}.{name}", hidden, _NORM_FLOPS * hidden) for name in family.norms)
        units = {"q": queries, "k": keys, "v": keys}
        for name, wide in ({"qkv": sum(units.values())} if family.is_packed else units).items():
            yield linear(f"{attention}.{name}_proj", hidden, wide, bias=bias)
        for name in ("q", "k") if family.has_head_norms else ():
            yield f"{attention}.{name}_norm", head, _NORM_FLOPS * units[name]
        yield linear(f"{attention}.o_proj", queries, hidden, bias=config.attention_bias)
        for name, wide in ({"gate_up": 2 * inner} if family.is_packed else {"gate": inner, "up": inner}).items():
            yield linear(f"{mlp}.{name}_proj", hidden, wide, bias=has_bias)
        yield linear(f"{mlp}.down_proj", inner, hidden, bias=has_bias)
    yield "model.norm", hidden, _NORM_FLOPS * hidden
    yield "lm_head", 0 if tied else config.vocab_size * hidden, 2 * config.vocab_size * hidden
