"""What the inputs of a decoder are for, by their names, and what they are fed for a stretch of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ...core.wiring import Tensor

DecoderInputRole = Literal["ids", "mask", "positions", "past", "total", "last", "branch", "types", "keep"]
"""What an input tells: the tokens; which places of the sequence are filled; where the tokens stand; how many came
before; how many there are with these; the last place; whether there is a cache; the kind of each token; how many logits
are wanted."""

_ROLES: Final[tuple[tuple[DecoderInputRole, re.Pattern[str]], ...]] = (
    # The names that torch.onnx, optimum, onnxruntime-genai and transformers.js give.
    ("ids", re.compile(r"^(decoder_)?(input_ids|tokens|input_tokens|token_ids)$")),
    ("mask", re.compile(r"^(decoder_)?(attention_mask|attn_mask|causal_mask)$")),
    ("positions", re.compile(r"^(decoder_)?(position_ids|cache_positions?|input_pos|pos_ids|positions)$")),
    ("past", re.compile(r"^(past_(sequence_length|seq_len|length|len)|start_pos|write_indices)$")),
    ("total", re.compile(r"^(total_(sequence_length|seq_len|length|len)|nonpad_kv_seqlen)$")),
    ("last", re.compile(r"^seqlens_k$")),
    ("branch", re.compile(r"^use_cache(_branch)?$")),
    ("types", re.compile(r"^token_type_ids$")),
    ("keep", re.compile(r"^(num_)?logits_to_keep$")),
)


_TYPES: Final = frozenset({"int64", "int32", "bool", "float32", "float16", "float64"})


class Stretch(NamedTuple):
    """Tokens of a sequence that are fed together.

    Attributes:
        past: how many were fed before.
        tokens: these.
    """

    past: int
    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many there are once these are fed."""
        return self.past + len(self.tokens)


_FOUND: Final[Mapping[DecoderInputRole, Callable[[Stretch], Any]]] = {
    "ids": lambda at: at.tokens,
    "mask": lambda at: np.ones(at.total),
    "positions": lambda at: np.arange(at.past, at.total),
    "past": lambda at: at.past,
    "total": lambda at: at.total,
    "last": lambda at: at.total - 1,
    "branch": lambda at: at.past > 0,
    "types": lambda at: np.zeros(len(at.tokens)),
    "keep": lambda _: 0,  # all of them: which one is read is for us to know
}


def role_of(tensor: Tensor) -> DecoderInputRole | None:
    """What an input is for; None where its name does not tell, or its type is none of such inputs."""
    name = tensor.name.lower()
    return next((role for role, pattern in _ROLES if pattern.match(name) and tensor.dtype in _TYPES), None)


def fed(role: DecoderInputRole, tensor: Tensor, at: Stretch, batch: int) -> np.ndarray[Any, Any]:
    """What an input is fed for a stretch.

    All rows of a batch are alike. A size that the model fixes is filled up: tokens stand first, zeros after them. A
    mask of four axes says of each token which places it may see: true, 1, or 0.0 where it may, and the least number of
    a float type where it may not.

    Args:
        role: what the input is for.
        tensor: its type.
        at: the tokens.
        batch: how many rows.
    """
    dtype = np.dtype(tensor.dtype)
    if role == "mask" and tensor.shape is not None and len(tensor.shape) == 4:
        seen = np.arange(at.total) <= np.arange(at.past, at.total)[:, None]
        if dtype.kind != "f":
            return _filled(seen.astype(dtype), tensor, batch)
        return _filled(np.where(seen, 0, np.finfo(dtype).min).astype(dtype), tensor, batch, np.finfo(dtype).min)
    return _filled(np.asarray(_FOUND[role](at)).astype(dtype), tensor, batch)


def _filled(found: np.ndarray[Any, Any], tensor: Tensor, batch: int, rest: float = 0) -> np.ndarray[Any, Any]:
    """`found` on the last axes of the shape of `tensor`, what is left of a fixed size filled with `rest`."""
    shape = tensor.shape if tensor.shape is not None else (batch, *found.shape)
    sizes = [size if isinstance(size, int) else batch for size in shape]
    own = len(sizes) - found.ndim
    for axis, size in enumerate(found.shape):
        if not isinstance(shape[own + axis], int):
            sizes[own + axis] = size
    whole = np.full(sizes[own:], rest, found.dtype)
    whole[tuple(slice(size) for size in found.shape)] = found
    return np.ascontiguousarray(np.broadcast_to(whole, sizes)).reshape(sizes)  # numpy makes one axis of none
