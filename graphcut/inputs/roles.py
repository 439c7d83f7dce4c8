"""Roles of inputs and meanings of open sizes, by their names.

The spellings are those of torch.onnx, optimum, onnxruntime-genai and tf2onnx exports.
"""

import re
from typing import Final, Literal, cast

import msgspec

from ..core.records import table
from ..core.tensors import Tensor

Role = Literal[
    "position", "type", "mask", "past", "rate", "total", "length", "extent", "scale", "samples", "mel", "ids", "hidden",
    "plain",
]  # fmt: skip
"""What an input is for; `"plain"` if its name does not tell."""

Meaning = Literal[
    "batch", "sequence", "past", "total", "source", "image", "latent", "volume", "frames", "samples", "window", "mel",
    "channels", "steps", "other",
]  # fmt: skip
"""What a size counts; `"other"` if unknown."""

INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64))
_SOURCE: Final = re.compile(r"encoder|cross|source|src|memory")


class _Patterns(msgspec.Struct):
    """Regular expressions for names, the first of which counts; and for roles the types and ranks that they may have.

    Roles that are not listed there may have any. For roles also what axes count, by rank.
    """

    generated: str
    roles: dict[Role, str]
    types: dict[Role, str]
    ranks: dict[Role, tuple[int, int]]
    symbols: dict[Meaning, str]
    axes: dict[Role, tuple[tuple[Meaning | Literal["length", ""], ...], ...]]


_PATTERNS: Final = table("inputs/roles.toml", _Patterns)


def role_of(tensor: Tensor) -> Role:
    """The role of an input by its name, if its type and rank do not contradict."""
    name, rank = tensor.name.lower(), len(tensor.shape or ())
    for role, pattern in _PATTERNS.roles.items():
        least, most = _PATTERNS.ranks.get(role, (rank, rank))
        has_type = re.fullmatch(_PATTERNS.types.get(role, ".*"), tensor.dtype)
        if has_type and least <= rank <= most and re.search(pattern, name):
            return role
    return "plain"


def meaning_of_symbol(symbol: str) -> Meaning | None:
    """What a symbolic dimension counts, by its name; `None` if unknown."""
    name = symbol.lower()
    if re.search(_PATTERNS.generated, name):
        return None
    return next((meaning for meaning, pattern in _PATTERNS.symbols.items() if re.search(pattern, name)), None)


def meanings_of_axes(name: str, role: Role, rank: int) -> tuple[Meaning | None, ...]:
    """The meanings of the axes of an input with that role, as far as the role determines them."""
    is_source, rows = _SOURCE.search(name.lower()), _PATTERNS.axes.get(role, ((),))
    meant = dict.fromkeys(("length", "total", "past"), "source") if is_source else {"length": "sequence"}
    axes = [cast(Meaning | None, meant.get(axis, axis) or None) for axis in rows[min(rank, len(rows)) - 1]]
    # Additional axes are leading ones: layers, or keys and values.
    return (*(None for _ in range(rank - len(axes))), *axes[max(0, len(axes) - rank) :])
