"""The inputs of a decoder that depend on the tokens: recognized by their names, and computed for each step."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ..core.tensors import Tensor

_TYPES: Final = {"int64", "int32", "bool", "float32", "float16", "float64"}
DecoderInputRole = Literal["ids", "mask", "positions", "past", "total", "last", "branch", "types", "keep"]
"""What an input holds: the token ids; the attention mask; the positions of the tokens; the number of earlier tokens;
the number of tokens including these; the last position; whether there is a cache; the type of each token; the number of
logits to return."""


class TokenChunk(NamedTuple):
    """Tokens that are fed in one step: as many of each sequence in a batch, after as many before them."""

    past: int  #: the number of tokens before them.
    rows: tuple[tuple[int, ...], ...]  #: the tokens of each sequence.

    @property
    def length(self) -> int:
        return len(self.rows[0])

    @property
    def total(self) -> int:
        """The number of tokens of a sequence up to the end of this chunk."""
        return self.past + self.length


_ROLES: Final[Mapping[DecoderInputRole, tuple[str, Callable[[TokenChunk], Any]]]] = {
    # The names that torch.onnx, optimum, onnxruntime-genai and transformers.js give, and the values.
    "ids": (r"(decoder_)?(input_ids|tokens|input_tokens|token_ids)", lambda chunk: chunk.rows),
    "mask": (r"(decoder_)?(attention_mask|attn_mask|causal_mask)", lambda chunk: np.ones(chunk.total, np.int64)),
    "positions": (
        r"(decoder_)?(position_ids|cache_positions?|input_pos|pos_ids|positions)",
        lambda chunk: np.arange(chunk.past, chunk.total),
    ),
    "past": (r"past_(sequence_length|seq_len|length|len)|start_pos|write_indices", lambda chunk: chunk.past),
    "total": (r"total_(sequence_length|seq_len|length|len)|nonpad_kv_seqlen", lambda chunk: chunk.total),
    "last": (r"seqlens_k", lambda chunk: chunk.total - 1),
    "branch": (r"use_cache(_branch)?", lambda chunk: chunk.past > 0),
    "types": (r"token_type_ids", lambda chunk: np.zeros(chunk.length, np.int64)),
    "keep": (r"(num_)?logits_to_keep", lambda _: 0),  # all logits: `LogitsChoice.tokens` selects the row
}


def role_of(tensor: Tensor) -> DecoderInputRole | None:
    """The role of an input; None if its name is not known or its type is not one of such inputs."""
    names = {role: pattern for role, (pattern, _) in _ROLES.items() if tensor.dtype in _TYPES}
    return next((role for role, pattern in names.items() if re.fullmatch(pattern, tensor.name.lower())), None)


def input_array(
    role: DecoderInputRole, tensor: Tensor, chunk: TokenChunk, *, is_rolling: bool = False
) -> np.ndarray[Any, Any]:
    """The value of an input for a chunk of tokens.

    If the model fixes a size, tokens come first and zeros fill the rest; in a mask tokens come last if caches are
    `is_rolling`. A mask with four axes says for each token which positions it may attend to: true, 1 or 0.0 if it may,
    and false, 0 or the lowest number of a float type if it may not.
    """
    dtype, batch = np.dtype(tensor.dtype), len(chunk.rows)
    found = np.asarray(_ROLES[role][1](chunk), dtype)
    is_last = is_rolling and role == "mask"
    if role == "ids" and tensor.shape is not None and len(tensor.shape) == 1:
        return _filled(found.ravel(), tensor, batch)
    if role == "mask" and tensor.shape is not None and len(tensor.shape) == 4:
        visible = np.arange(chunk.total) <= np.arange(chunk.past, chunk.total)[:, None]
        if dtype.kind != "f":
            return _filled(visible.astype(dtype), tensor, batch, is_last=is_last)
        lowest = float(np.finfo(dtype).min)
        return _filled(np.where(visible, 0, lowest).astype(dtype), tensor, batch, lowest, is_last=is_last)
    return _filled(found, tensor, batch, is_last=is_last)


def _filled(
    found: np.ndarray[Any, Any], tensor: Tensor, batch: int, rest: float = 0, *, is_last: bool = False
) -> np.ndarray[Any, Any]:
    """`found` on the last axes of the shape of `tensor`, with `rest` after it, or before, where a fixed size is larger.

    It `is_last` on the last axis alone.
    """
    shape = tensor.shape if tensor.shape is not None else (batch, *found.shape[-1:])
    own = len(shape) - found.ndim
    free = (*(batch for _ in range(own)), *found.shape)
    sizes = [size if isinstance(size, int) else other for size, other in zip(shape, free, strict=True)]
    if prod(sizes) == found.size:
        return found.reshape(sizes)
    whole = np.full(sizes, rest, found.dtype)
    size = found.shape[-1]
    places: Any = (..., *map(slice, found.shape[:-1]), slice(-size, None) if is_last else slice(size))
    whole[places] = found
    return whole
