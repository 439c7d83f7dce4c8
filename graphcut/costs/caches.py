"""KV caches: which input of a decoder comes back as which output, and what its symbols count.

A decoder reads what it kept of the tokens before (`past_key_values.0.key`) and writes that with the new ones added
(`present.0.key`). The spellings are those of optimum, torch.onnx, ONNX Runtime's converters, onnxruntime-genai and
NeMo.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ..core.errors import UsageError
from ..core.graph import Graph
from ..core.wiring import Dim, Tensor
from ..loading.model import Model
from .state_slots import routes_from

DecoderProfile = Literal["prefill", "decode"]

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_PHRASES: Final = re.compile(
    r"(past|present|new|updated)_key_values?(?=[._]|$)|(past|present)_kv(?=[._]|$)|kv_?caches?|key_value_cache"
)
_BEFORE: Final = frozenset({"past", "cache", "caches"})
_AFTER: Final = frozenset({"present", "out", "output", "new", "next", "updated", "update", "cache", "caches"})
_KEPT: Final = frozenset({"present", "past", "cache", "caches", "kv"})
_SIDES: Final = _BEFORE | _AFTER | {"in", "input", "old", "prev", "previous", "kv"}
_SHORT: Final = {"k": "key", "keys": "key", "v": "value", "values": "value"}

_RECURRENT_RANK: Final = 3
"""Layers, batch, width."""

_TOKENS: Final = re.compile(r"^(decoder_)?(input_ids|inputs_embeds|position_ids|tokens|input_tokens)$")
_MASK: Final = re.compile(r"^(decoder_)?attention_mask$")


@dataclass(frozen=True, slots=True)
class Cache:
    """A tensor that a decoder gets back with its next step.

    Attributes:
        past: the input of the model.
        present: the output that becomes that input.
        layer: the number in its name; `None` where it has none.
    """

    past: str
    present: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class DecoderSymbols:
    """The symbols that count tokens; `None` where the size has no symbol of its own, or is fixed.

    Attributes:
        batch: sequences that run side by side.
        seq: new tokens of each.
        past: tokens in the cache.
        total: past and new tokens together.
    """

    batch: str | None
    seq: str | None
    past: str | None
    total: str | None


def find_caches(model: Model) -> tuple[Cache, ...]:
    """The inputs that come back as outputs, in the order of the inputs: a cache of keys or values, a recurrent state.

    1. Those that the user named with the model (`Model.states`).
    2. By name: an input and an output pair up when their names are the same but for the words that tell before from
       after, and are so for no other; both must be plain tensors of one dtype and of one rank of three or more, and of
       one size along every axis but, at most, one along which it grows.
    3. By structure: following an input through operators that keep a state (`state_slots`) leads to an output of the
       same kind, and to no other.
    """
    named = [(past, present) for past, present in model.states.items()]
    named += _pairs_by_name(model, {name for pair in named for name in pair})
    named += _pairs_by_structure(model, {name for pair in named for name in pair})
    return tuple(
        Cache(past, present, _layer(past))
        for past, present in sorted(named, key=lambda pair: model.graph.input_index[pair[0]])
    )


def _layer(past: str) -> int | None:
    return next((int(word) for word in _key(past) if word.isdigit()), None)


def _pairs_by_name(model: Model, taken: Collection[str]) -> list[tuple[str, str]]:
    graph, tensors = model.graph, model.tensors
    before = _by_key((name for name in graph.reads if _words(name) & _BEFORE and name not in taken), tensors)
    # An output that is called `output` and no more is none; one called `present` and no more may be.
    outputs = [name for name in graph.writes if name not in taken]
    after = _by_key((n for n in outputs if _words(n) & (_AFTER if _key(n) else _KEPT)), tensors)
    known = _known_symbols(model)
    return [
        (past[0], present[0])
        for key, past in before.items()
        if len(past) == len(present := after.get(key, [])) == 1
        and past[0] != present[0]
        and _comes_back(tensors[past[0]], tensors[present[0]], known)
    ]


def _pairs_by_structure(model: Model, taken: Collection[str]) -> list[tuple[str, str]]:
    """Each input that becomes one output alone, which no other becomes."""
    tensors, known = model.tensors, _known_symbols(model)
    found: dict[str, list[str]] = {}
    for past in model.graph.reads:
        if past not in taken and past not in model.graph.weights:
            ends = [name for name in routes_from(model, past) if name not in taken]
            alike = [name for name in ends if _is_fed_back(tensors[past], tensors[name], known)]
            if len(alike) == 1:
                found.setdefault(alike[0], []).append(past)
    return [(pasts[0], present) for present, pasts in found.items() if len(pasts) == 1]


def _is_fed_back(past: Tensor, present: Tensor, known: set[str]) -> bool:
    """As for names; but what is put together from pieces of fixed sizes would not fit at the next step."""
    return _comes_back(past, present, known) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(past.shape or (), present.shape or (), strict=False)
    )


def _known_symbols(model: Model) -> set[str]:
    return {dim for name in model.graph.reads for dim in model.tensors[name].shape or () if isinstance(dim, str)}


def nodes_touching(graph: Graph, cache: Cache) -> tuple[int, ...]:
    """The flowing nodes that read a cache or write what it becomes: where it lives, they live."""
    writer = graph.producer.get(cache.present)
    writers = () if writer is None or graph.nodes[writer].is_constant else (writer,)
    return tuple(sorted({*graph.readers.get(cache.past, ()), *writers}))


def decoder_symbols(model: Model) -> DecoderSymbols | None:
    """What the symbols of a decoder count; `None` when the model has no caches that pair up.

    The axis that grows tells past and total, inputs called as token ids, embeddings or positions tell batch and seq, an
    attention mask tells the total. A cache that is one buffer for past and present has one symbol for both: `past`.
    """
    sizes = _sizes(model)
    if sizes is None:
        return None
    return DecoderSymbols(
        batch=_symbol(sizes.batch),
        seq=_symbol(sizes.seq),
        past=_symbol(sizes.past),
        total=_symbol(sizes.total) or _symbol(sizes.present),
    )


def profile_dims(model: Model, profile: DecoderProfile, length: int, batch: int = 1) -> dict[str, int]:
    """Numbers for the symbols of a decoder, on top of those the user gave with the model, which win.

    Args:
        model: a decoder with caches.
        profile: `prefill` reads `length` tokens with an empty cache, `decode` reads one with `length` in the cache.
        length: how many tokens.
        batch: how many sequences side by side.

    Raises:
        UsageError: the model is no decoder, or `length` or `batch` is not 1 or more.
    """
    sizes = _sizes(model)
    if sizes is None:
        raise UsageError(
            f"{model.path.name} is no decoder: none of its inputs is a cache that comes back as an output",
            hint="prefill and decode are for decoders with past and present tensors; for others give --dim NAME=NUMBER",
        )
    for name, number in (("length", length), ("batch", batch)):
        if number < 1:
            raise UsageError(f"the {name} of a profile can't be {number}", hint="it is 1 or more")
    seq, past = (length, 0) if profile == "prefill" else (1, length)
    seq, past = _number(sizes.seq, model.dims, seq), _number(sizes.past, model.dims, past)
    # A buffer that past and present share stands last: it holds them all.
    row = (
        (sizes.batch, batch),
        (sizes.seq, seq),
        (sizes.past, past),
        (sizes.total, past + seq),
        (sizes.present, past + seq),
    )
    return {**{dim: number for dim, number in row if isinstance(dim, str)}, **model.dims}


def bound_dims(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """`dims`, and the numbers that follow from them.

    * the total of a decoder, where past and new tokens are bound: their sum;
    * the width of a cache that onnxruntime-genai calls `kv_cache_dim`: that of a head of the attention that reads it;
    * symbols that are sums and products of others, as torch's exporter writes them (`past + seq`).
    """
    bound = {**head_sizes(model), **dims}
    sizes = _sizes(model)
    if sizes is not None and all(isinstance(dim, int) or dim in bound for dim in (sizes.past, sizes.seq)):
        total = _number(sizes.past, bound, 0) + _number(sizes.seq, bound, 0)
        for dim in (sizes.total, sizes.present):
            if isinstance(dim, str):
                bound.setdefault(dim, total)
    for dim in dict.fromkeys(dim for tensor in model.boundary_types.values() for dim in tensor.shape or ()):
        if isinstance(dim, str) and dim not in bound and (number := _evaluated(dim, bound)) is not None:
            bound[dim] = number
    return bound


class _DecoderSizes(NamedTuple):
    """What a decoder's inputs say: symbols, or numbers where a size is fixed; `None` where nothing tells."""

    batch: Dim
    seq: Dim
    past: Dim
    present: Dim
    total: Dim


def _sizes(model: Model) -> _DecoderSizes | None:
    caches = [cache for cache in find_caches(model) if _holds_tokens(model, cache)]
    if not caches:
        return None
    grown = [_growth(model.tensors[cache.past], model.tensors[cache.present]) for cache in caches]
    # Caches of an encoder's keys stay as they are; those that grow tell more.
    past, present = min(grown, key=lambda pair: (pair == (None, None), pair[0] == pair[1]))
    batch, seq = _first_sizes(model, _TOKENS)
    masked, total = _first_sizes(model, _MASK)
    first = model.tensors[caches[0].past].shape or (None,)
    return _DecoderSizes(batch or masked or first[0], seq, past, present, total)


def _holds_tokens(model: Model, cache: Cache) -> bool:
    """Is it no recurrent state, whose size has nothing to do with how many tokens there are?"""
    past, present = model.tensors[cache.past], model.tensors[cache.present]
    return _growth(past, present) != (None, None) or past.shape is None or len(past.shape) > _RECURRENT_RANK


def _number(dim: Dim, dims: Mapping[str, int], otherwise: int) -> int:
    """What a size is: fixed, bound by the user, or `otherwise`."""
    return dim if isinstance(dim, int) else dims.get(dim, otherwise) if isinstance(dim, str) else otherwise


def head_sizes(model: Model) -> dict[str, int]:
    """The widths of caches that have a symbol, from the attention nodes that read them."""
    found: dict[str, int] = {}
    for cache in find_caches(model):
        width = (model.tensors[cache.past].shape or (None,))[-1]
        if not isinstance(width, str) or width in found:
            continue
        for i in model.graph.readers.get(cache.past, ()):
            node = model.proto.graph.node[i]
            heads = next((attribute.i for attribute in node.attribute if attribute.name == "num_heads"), 0)
            written = model.tensors[node.output[0]].shape if heads else None
            if node.domain == "com.microsoft" and written and isinstance(written[-1], int):
                found[width] = written[-1] // heads
    return found


def _evaluated(text: str, dims: Mapping[str, int]) -> int | None:
    """The value of a sum of products of symbols and numbers; `None` for anything else."""
    total = 0
    for term in text.split("+"):
        value = 1
        for factor in (factor.strip() for factor in term.split("*")):
            number = int(factor) if factor.isdecimal() else dims.get(factor)
            if number is None:
                return None
            value *= number
        total += value
    return total


def _by_key(names: Iterable[str], tensors: Mapping[str, Tensor]) -> dict[tuple[str, ...], list[str]]:
    """Names by what is left of them without the words that tell before from after; those of one rank of 3 or more."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        shape = tensors[name].shape
        if tensors[name].is_plain and (shape is None or len(shape) >= 3):
            found.setdefault(_key(name), []).append(name)
    return found


def _split(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _words(name: str) -> set[str]:
    return set(_split(name))


def _key(name: str) -> tuple[str, ...]:
    """`past_key_values.3.key` and `present_key_3` both come to `("3", "key")`: sorted, since exporters differ in it."""
    words = _split(_PHRASES.sub("", name))
    return tuple(sorted(_SHORT.get(word, word) for word in words if word not in _SIDES))


def _comes_back(past: Tensor, present: Tensor, known: set[str]) -> bool:
    if past.dtype != present.dtype or past.dtype == "undefined":
        return False
    if past.shape is None or present.shape is None:
        return True
    if len(past.shape) != len(present.shape):
        return False
    # A symbol that no input has, such as torch's `Concatpresent_dim_2`, may be any size.
    differing = [
        (before, after)
        for before, after in zip(past.shape, present.shape, strict=True)
        if before != after and before is not None and after is not None and (isinstance(after, int) or after in known)
    ]
    return len(differing) <= 1 and all(
        not (isinstance(before, int) and isinstance(after, int)) or before < after for before, after in differing
    )


def token_axis(model: Model, cache: Cache) -> int | None:
    """The axis of a cache along which its tokens stand; None where it has none, or nothing tells.

    By its sizes, which differ there from what it was before; by the operator that keeps it; for a buffer of a fixed
    size by a mask of the same size.
    """
    past, present = model.tensors[cache.past], model.tensors[cache.present]
    grown = _growth(past, present)
    if past.shape is None:
        return None
    if present.shape is not None and grown[0] != grown[1]:
        return list(zip(past.shape, present.shape, strict=True)).index(grown)
    told = routes_from(model, cache.past).get(cache.present)
    if told is not None and told.axis is not None:
        return told.axis % len(past.shape)
    _, total = _first_sizes(model, _MASK)
    places = [place for place, size in enumerate(past.shape) if isinstance(size, int) and size == total]
    return places[0] if len(places) == 1 else None


def _growth(past: Tensor, present: Tensor) -> tuple[Dim, Dim]:
    """The sizes, before and after, of the axis along which a cache grows; `None` where nothing tells."""
    if past.shape is None or present.shape is None:
        return None, None
    axes = [pair for pair in zip(past.shape, present.shape, strict=True) if isinstance(pair[0], str)]
    grown = [pair for pair in axes if pair[0] != pair[1] and not isinstance(pair[1], int)]
    named = [pair for pair in axes if re.search("past|cache|len|seq|total", str(pair[0]))]
    return next(iter([pair for pair in grown if pair in named] or grown or named), (None, None))


def _first_sizes(model: Model, pattern: re.Pattern[str]) -> Sequence[Dim]:
    """The first two sizes of the first input called so; one that has a single axis has no batch."""
    for name in model.graph.reads:
        shape = model.tensors[name].shape
        if pattern.match(name) and shape:
            return shape[:2] if len(shape) > 1 else (None, shape[0])
    return None, None


def _symbol(dim: Dim) -> str | None:
    return dim if isinstance(dim, str) else None
