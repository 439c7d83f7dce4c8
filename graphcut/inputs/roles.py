"""Roles of inputs and meanings of open sizes, by their names.

The spellings are those of torch.onnx, optimum, onnxruntime-genai and tf2onnx exports.
"""

import re
import sys
from typing import Final, Literal

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

_ROLES: Final[tuple[tuple[Role, re.Pattern[str]], ...]] = (
    # The first match counts.
    ("rate", re.compile(r"^sr$|sampl\w*_?rate")),
    ("position", re.compile(r"(?<![a-z])position|pos_ids|input_pos")),
    ("type", re.compile(r"token_type|segment_id")),
    ("total", re.compile(r"total_seq|seqlens_k")),
    ("samples", re.compile(r"^samples$|audio|wav|speech|signal|pcm|input_values")),
    ("mel", re.compile(r"input_features")),
    ("past", re.compile(r"past|cache")),
    ("mask", re.compile(r"^(?!.*pixel).*mask(?!ed)")),  # `pixel_mask` belongs to an image
    ("length", re.compile(r"len(gth)?s?($|[._\d])")),
    ("extent", re.compile(r"^sizes?$|(im|image|img|orig\w*|target|input)_(sizes?|shape)|resolution|height|width")),
    ("scale", re.compile(r"scale|factor|ratio|temperature|thresh|speed|sigma")),
    ("hidden", re.compile(r"hidden|embed|encoder_output")),
    ("ids", re.compile(r"ids?$|token|^(input|text|phoneme)")),
)
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

_SYMBOLS: Final[tuple[tuple[Meaning | None, re.Pattern[str]], ...]] = (
    # Names that exporters generate tell nothing, even if they contain the name of an input. Nor do single letters.
    (None, re.compile(r"_dynamic_axes_\d+$|_dim_?\d+$|(^|/)unk__\d+|^s\d+$|^u\d+$")),
    ("batch", re.compile(r"batch|^(bs|nb)$|num_images")),
    ("other", re.compile(r"(dim|heads?|hidden(_size)?|vocab\w*|features?)$")),
    ("source", re.compile(r"(?<!d)encoder|source|src")),
    ("past", re.compile(r"past|(cache|kv|memory).*(len|seq|size)")),
    ("total", re.compile(r"total|mask")),
    ("image", re.compile(r"height|width")),
    ("channels", re.compile(r"chan")),
    ("steps", re.compile(r"^(time)?_?steps?$")),
    ("samples", re.compile(r"sample|audio|wav|signal")),
    ("frames", re.compile(r"frame|mel")),
    ("sequence", re.compile(r"seq|len|tok|time")),
)


def role_of(tensor: Tensor) -> Role:
    """The role of an input by its name, if its type and rank do not contradict."""
    name, dtype, rank = tensor.name.lower(), tensor.dtype, len(tensor.shape or ())
    for role, pattern in _ROLES:
        if dtype in _DTYPES.get(role, {dtype}) and rank in _RANKS.get(role, {rank}) and pattern.search(name):
            return role
    return "plain"


def meaning_of_symbol(symbol: str) -> Meaning | None:
    """What a symbolic dimension counts, by its name; `None` if unknown."""
    return next((meaning for meaning, pattern in _SYMBOLS if pattern.search(symbol.lower())), None)


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
