"""The inputs of a decoder that depend on the tokens: recognized by their names, and computed for each step."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ..core.errors import RunError
from ..core.records import table
from ..core.tensors import Tensor
from ..running.values import Array

_TYPES: Final = {"int64", "int32", "bool", "float32", "float16", "float64"}

DecoderInputRole = Literal["ids", "mask", "positions", "past", "total", "last", "branch", "types", "keep"]
"""What an input holds: the token ids; the attention mask; the positions of the tokens; the number of earlier tokens;
the number of tokens including these; the last position; whether there is a cache; the type of each token; the number of
logits to return."""
Roles = Mapping[str, DecoderInputRole]  #: of inputs, by name.
_NAMES: Final = table("decoding/token_inputs.toml", dict[DecoderInputRole, str])


class TokenChunk(NamedTuple):
    """Tokens that are fed in one step, as many of each sequence in a batch."""

    past: int  #: the number of tokens before them: those of the longest sequence.
    rows: tuple[tuple[int, ...], ...]  #: the tokens of each sequence.
    missing: tuple[int, ...] = ()  #: how many fewer tokens each sequence has than the longest one; empty if none has.
    is_padded_before: bool = False  #: states have these unused places before the tokens of a sequence, else after them.

    @property
    def length(self) -> int:
        return len(self.rows[0])

    @property
    def total(self) -> int:
        """The number of tokens of the longest sequence up to the end of this chunk."""
        return self.past + self.length

    @property
    def pasts(self) -> Any:  # noqa: ANN401 - a number, or one for each row
        """The number of tokens of each sequence before this chunk, in a column if they differ."""
        return self.past - np.array(self.missing)[:, None] if self.missing else self.past

    @property
    def used(self) -> Array:
        """Which places of states hold a token after this step, of each sequence if they differ."""
        if not self.missing:
            return np.ones(self.total, np.int64)
        places, missing = np.arange(self.total), np.array(self.missing)[:, None]
        return np.asarray(places >= missing if self.is_padded_before else places < self.total - missing)

    @property
    def visible(self) -> Array:
        """Which of these places each token may attend to: those of its sequence up to its own."""
        own = np.arange(self.past, self.total)[:, None]
        if not self.missing:
            return np.arange(self.total) <= own
        own = own if self.is_padded_before else own - np.array(self.missing)[:, None, None]
        return np.asarray((np.arange(self.total) <= own) & self.used[:, None, :])


_VALUES: Final[Mapping[DecoderInputRole, Callable[[TokenChunk], Any]]] = {
    "ids": lambda chunk: chunk.rows,
    "mask": lambda chunk: chunk.used,
    "positions": lambda chunk: chunk.pasts + np.arange(chunk.length),
    "past": lambda chunk: chunk.pasts,
    "total": lambda chunk: chunk.pasts + chunk.length,
    "last": lambda chunk: chunk.pasts + chunk.length - 1,
    "branch": lambda chunk: chunk.past > 0,
    "types": lambda chunk: np.zeros(chunk.length, np.int64),
    "keep": lambda _: 0,  # all logits: `LogitsChoice.tokens` selects the row
}

_LENGTHS: Final[frozenset[DecoderInputRole]] = frozenset({"past", "total", "last"})


def role_of(tensor: Tensor) -> DecoderInputRole | None:
    """The role of an input; None if its name is not known or its type is not one of such inputs."""
    names = _NAMES if tensor.dtype in _TYPES else {}
    name = tensor.name.lower().rpartition("/")[2]  # without the model of a pipeline
    return next((role for role, pattern in names.items() if re.fullmatch(pattern, name)), None)


def has_axis_of_batch(role: DecoderInputRole, tensor: Tensor) -> bool:
    """Whether an input may have another value for each sequence of a batch."""
    axes = tensor.shape or ()
    least = 1 if role in _LENGTHS else 2
    return len(axes) >= least and not isinstance(axes[-2 if role == "positions" else 0], int)


def input_array(role: DecoderInputRole, tensor: Tensor, chunk: TokenChunk, *, is_rolling: bool = False) -> Array:
    """The value of an input for a chunk of tokens.

    If the model fixes a size, tokens come first and zeros fill the rest; in a mask tokens come last if caches are
    `is_rolling`. A mask with four axes says for each token which positions it may attend to: true, 1 or 0.0 if it may,
    and false, 0 or the lowest number of a float type if it may not.
    """
    dtype, batch = np.dtype(tensor.dtype), len(chunk.rows)
    found = np.asarray(_VALUES[role](chunk), dtype)
    if role in _LENGTHS:
        sizes = [size if isinstance(size, int) else batch for size in tensor.shape or ()]
        each = np.broadcast_to(found.ravel(), batch) if has_axis_of_batch(role, tensor) else found.max()
        return np.array(each if prod(sizes) > 1 else each.max()).reshape(sizes)
    axes, rest = len(tensor.shape or ()), 0.0
    if role == "ids" and axes == 1:
        found = found.ravel()
    elif role == "mask" and axes == 4:
        found = np.asarray(chunk.visible[:, None] if chunk.missing else chunk.visible, dtype)
        if dtype.kind == "f":
            rest = float(np.finfo(dtype).min)
            found = np.where(found, 0, rest).astype(dtype)
    return _filled(found, tensor, batch, rest, is_last=is_rolling and role == "mask")


def _filled(found: Array, tensor: Tensor, batch: int, rest: float = 0, *, is_last: bool = False) -> Array:
    """`found` on the last axes of the shape of `tensor`, with `rest` after it, or before, where a fixed size is larger.

    It `is_last` on the last axis alone. A RunError if a fixed size is smaller.
    """
    shape = tensor.shape if tensor.shape is not None else (batch, *found.shape[-1:])
    own = len(shape) - found.ndim
    free = (*(batch for _ in range(own)), *found.shape)
    sizes = [size if isinstance(size, int) else other for size, other in zip(shape, free, strict=False)]
    if prod(sizes) == found.size:
        return found.reshape(sizes)
    if own < 0 or 0 in sizes or any(size < needed for size, needed in zip(sizes[own:], found.shape, strict=True)):
        message = f"the model reads {tensor} {tensor.name!r}, which has no room for {list(found.shape)}"
        raise RunError(message, hint="export it with sizes that are symbols")
    whole = np.full(sizes, rest, found.dtype)
    size = found.shape[-1]
    places: Any = (..., *map(slice, found.shape[:-1]), slice(-size, None) if is_last else slice(size))
    whole[places] = found
    return whole
