"""Roles of inputs and meanings of open sizes, by their names.

The spellings are those of torch.onnx, optimum, onnxruntime-genai and tf2onnx exports.
"""

import re
import sys
from typing import Final, Literal

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
_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
_SOURCE: Final = re.compile(r"encoder|cross|source|src|memory")


class _Patterns(msgspec.Struct):
    """Regular expressions for names, the first of which counts."""

    generated: str
    roles: dict[Role, str]
    symbols: dict[Meaning, str]


_PATTERNS: Final = table("inputs/roles.toml", _Patterns)
_DTYPES: Final[dict[Role, frozenset[str]]] = {
    # The element types that a role may have; roles not listed here may have any.
    **dict.fromkeys(("rate", "position", "type", "total", "length", "ids"), INTEGERS),
    "past": frozenset({*_FLOATS, "int8", "uint8"}),
    **dict.fromkeys(("scale", "samples", "mel", "hidden"), _FLOATS),
}

_RANKS: Final[dict[Role, range]] = {
    # The same of ranks. What is called past and has a lower one is a count.
    "past": range(3, sys.maxsize),
    **dict.fromkeys(("extent", "length", "total"), range(3)),
}


def role_of(tensor: Tensor) -> Role:
    """The role of an input by its name, if its type and rank do not contradict."""
    name, dtype, rank = tensor.name.lower(), tensor.dtype, len(tensor.shape or ())
    for role, pattern in _PATTERNS.roles.items():
        if dtype in _DTYPES.get(role, {dtype}) and rank in _RANKS.get(role, {rank}) and re.search(pattern, name):
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
    length: Meaning = "source" if _SOURCE.search(name.lower()) else "sequence"
    total: Meaning = "total" if length == "sequence" else length
    shapes: dict[Role, tuple[Meaning | None, ...]] = {
        **dict.fromkeys(("position", "type"), ("batch", length)),
        "ids": ("batch", length) if rank > 1 else ("batch",),
        "hidden": ("batch", length, "other") if rank > 2 else ("batch", "other"),
        "mask": ("batch", *(None,) * (rank - 3), *(("sequence",) if rank > 2 else ()), total),
        "past": ("batch", "other", "past" if length == "sequence" else length, "other"),
        "samples": ("batch", "samples") if rank == 2 else ("batch", "channels", "samples"),
        "mel": ("batch", "other", "mel"),
        "length": ("batch",),
    }
    axes = shapes.get(role, ())
    # Additional axes are leading ones: layers, or keys and values.
    return (*(None for _ in range(rank - len(axes))), *axes[max(0, len(axes) - rank) :])
