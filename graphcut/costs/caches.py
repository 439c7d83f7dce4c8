"""KV caches of decoders: which input becomes which output, and what the symbols of a decoder count.

A decoder reads what it cached of the tokens before (`past_key_values.0.key`) and writes it with the new tokens added
(`present.0.key`). Names of optimum, torch.onnx, ONNX Runtime's converters, onnxruntime-genai and NeMo are known.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, Literal, NamedTuple

from ..core.errors import UsageError, check_word
from ..core.graph import Graph, grouped
from ..core.states import Cache
from ..core.tensors import UNDEFINED, Dim, Tensor
from ..loading.expressions import evaluate
from ..loading.model import Model
from .state_slots import routes_from

DecoderProfile = Literal["prefill", "decode"]

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_PHRASES: Final = re.compile(
    r"(past|present|new|updated)_key_values?(?=[._]|$)|(past|present)_kv(?=[._]|$)|kv_?caches?|key_value_cache"
)
_BEFORE: Final = frozenset({"past", "cache", "caches"})
_AFTER: Final = frozenset({"present", "out", "output", "new", "next", "updated", "update", "cache", "caches"})
_AFTER_ALONE: Final = frozenset({"present", "past", "cache", "caches", "kv"})  # names that are no more than this
_SIDES: Final = _BEFORE | _AFTER | {"in", "input", "old", "prev", "previous", "kv"}
_SHORT: Final = {"k": "key", "keys": "key", "v": "value", "values": "value"}
_RECURRENT_RANK: Final = 3  # layers, batch, width
_TOKENS: Final = re.compile(r"^(decoder_)?(input_ids|inputs_embeds|position_ids|tokens|input_tokens)$")
_MASK: Final = re.compile(r"^(decoder_)?attention_mask$")


class DecoderSizes(NamedTuple):
    """The sizes of a decoder's inputs: symbols, or numbers where a size is fixed; `None` if unknown."""

    batch: Dim  #: sequences in a batch.
    seq: Dim  #: new tokens of each.
    past: Dim  #: tokens in the cache before the step. For a buffer of past and present, its size.
    present: Dim  #: tokens in the cache after the step.
    total: Dim  #: past and new tokens together, as the attention mask has it.


def find_caches(model: Model) -> tuple[Cache, ...]:
    """The inputs that become outputs, in the order of the inputs: keys or values of attention, or recurrent states.

    1. Those that the user named (`Model.states`).
    2. By name: an input and an output whose names are equal without the words for before and after, if no other input
       or output has that name. Both must be plain tensors of one dtype, of the same rank of at least three, and of the
       same size along all axes but at most one, along which they grow.
    3. By structure: the input that becomes an output of the same kind through operators that keep states
       (`state_slots`), if no other does.
    """
    return model.once(_found_caches)


def _found_caches(model: Model) -> tuple[Cache, ...]:
    pairs = [*model.states.items()]
    pairs += _pairs_by_name(model, {name for pair in pairs for name in pair})
    pairs += _pairs_by_structure(model, {name for pair in pairs for name in pair})
    pairs.sort(key=lambda pair: model.graph.input_index[pair[0]])
    layers = (next((int(word) for word in _key(past) if word.isdigit()), None) for past, _ in pairs)
    return tuple(Cache(past, present, layer) for (past, present), layer in zip(pairs, layers, strict=True))


def _pairs_by_name(model: Model, taken: Collection[str]) -> list[tuple[str, str]]:
    tensors, known = model.tensors, model.symbols
    before = _by_key(model, (name for name in model.graph.reads if name not in taken), _BEFORE, _BEFORE)
    # An output with no more than the name `output` is no cache; one with the name `present` may be.
    after = _by_key(model, (name for name in model.graph.writes if name not in taken), _AFTER, _AFTER_ALONE)
    pairs = [(past[0], after[key][0]) for key, past in before.items() if len(past) == len(after.get(key, ())) == 1]
    return [(past, present) for past, present in pairs if _comes_back(tensors[past], tensors[present], known)]


def _pairs_by_structure(model: Model, taken: Collection[str]) -> list[tuple[str, str]]:
    """Each input that becomes exactly one output, which no other input becomes."""
    tensors, known = model.tensors, model.symbols
    pasts = [name for name in model.graph.reads if name not in taken and name not in model.graph.weights]
    routes = ((past, name) for past in pasts for name in routes_from(model, past) if name not in taken)
    same = grouped((a, b) for a, b in routes if _comes_back(tensors[a], tensors[b], known, may_grow=False))
    found = grouped((outputs[0], past) for past, outputs in same.items() if len(outputs) == 1)
    return [(own[0], present) for present, own in found.items() if len(own) == 1]


def nodes_touching(graph: Graph, cache: Cache) -> tuple[int, ...]:
    """The flowing nodes that read a cache or write its next value."""
    writer = graph.producer.get(cache.present)
    writers = () if writer is None or graph.nodes[writer].is_constant else (writer,)
    return tuple(sorted({*graph.readers.get(cache.past, ()), *writers}))


def decoder_sizes(model: Model) -> DecoderSizes | None:
    """The sizes of a decoder, given its `find_caches`; `None` for a model without caches of tokens.

    The axis along which caches grow gives past and present; inputs with names of token ids, embeddings or positions
    give batch and seq; an attention mask gives the total.
    """
    caches = [cache for cache in find_caches(model) if _holds_tokens(model, cache)]
    if not caches:
        return None
    growths = [_growth(model.tensors[cache.past], model.tensors[cache.present]) for cache in caches]
    # The keys of an encoder stay as they are, so caches that grow are preferred.
    past, present = min(growths, key=lambda growth: (growth == (None, None), growth[0] == growth[1]))
    batch, seq = _first_sizes(model, _TOKENS)
    mask_batch, total = _first_sizes(model, _MASK)
    first = model.tensors[caches[0].past].shape or (None,)
    return DecoderSizes(batch or mask_batch or first[0], seq, past, present, total)


def _holds_tokens(model: Model, cache: Cache) -> bool:
    """Whether its size depends on the number of tokens, unlike that of a recurrent state."""
    past, present = model.tensors[cache.past], model.tensors[cache.present]
    return _growth(past, present) != (None, None) or past.shape is None or len(past.shape) > _RECURRENT_RANK


def profile_dims(model: Model, profile: DecoderProfile, length: int) -> dict[str, int]:
    """Numbers for the symbols of a decoder; those in `model.dims` take precedence. A UsageError for other models.

    Of one sequence `prefill` reads `length` tokens with an empty cache, `decode` one token with `length` in the cache.
    """
    check_word(profile, DecoderProfile, "profile")
    sizes = decoder_sizes(model)
    if sizes is None:
        message = f"{model.title} is not a decoder: none of its inputs is a cache that becomes an output"
        hint = "prefill and decode are for decoders with past and present tensors; for others give `dims`"
        raise UsageError(message, hint=hint)
    if not 1 <= length < 1 << 31:
        raise UsageError(f"the length of a profile can't be {length}", hint="it is 1 or more, and below 2**31")
    seq, past = (length, 0) if profile == "prefill" else (1, length)
    seq, past = _number(sizes.seq, model.dims, seq), _number(sizes.past, model.dims, past)
    # A buffer for past and present tokens has one symbol for both, and must hold them all: later entries win.
    order = (sizes.batch, sizes.seq, sizes.past, sizes.total, sizes.present)
    numbers = zip(order, (1, seq, past, past + seq, past + seq), strict=True)
    return {**{dim: number for dim, number in numbers if isinstance(dim, str)}, **model.dims}


def sized_dims(
    model: Model, profile: DecoderProfile | None = None, tokens: int | None = None, default: DecoderProfile = "prefill"
) -> dict[str, int]:
    """The numbers that sizes are computed for: those of the model, and what follows from them (`bound_dims`).

    For a decoder besides those of a profile, by default of 512 tokens. A UsageError where a profile or a number of
    tokens is given and the model is not a decoder.
    """
    if profile is None and tokens is None and decoder_sizes(model) is None:
        return bound_dims(model, model.dims)
    return bound_dims(model, profile_dims(model, profile or default, 512 if tokens is None else tokens))


def tokens_per_step(model: Model, dims: Mapping[str, int]) -> int:
    """The tokens of a sequence that a step of a decoder feeds, for these sizes; 1 if the model does not say it."""
    sizes = decoder_sizes(model)
    return 1 if sizes is None else _number(sizes.seq, dims, 1)


def bound_dims(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """`dims`, and the numbers that follow from them, given the model's `find_caches`.

    * the total of a decoder, if past and new tokens are bound: their sum;
    * the width of a cache, which onnxruntime-genai calls `kv_cache_dim`: that of a head of the attention that reads it;
    * symbols that are expressions of others, as torch's exporter writes them (`past + seq`).
    """
    bound = {**head_sizes(model), **dims}
    sizes = decoder_sizes(model)
    if sizes is not None and all(isinstance(dim, int) or dim in bound for dim in (sizes.past, sizes.seq)):
        total = _number(sizes.past, bound, 0) + _number(sizes.seq, bound, 0)
        open_dims = (dim for dim in (sizes.total, sizes.present) if isinstance(dim, str) and dim not in bound)
        bound |= dict.fromkeys(open_dims, total)
    for dim in dict.fromkeys(dim for tensor in model.tensors.values() for dim in tensor.shape or ()):
        if isinstance(dim, str) and dim not in bound and (number := evaluate(dim, bound)) is not None:
            bound[dim] = number
    return bound


def _number(dim: Dim, dims: Mapping[str, int], default: int) -> int:
    return dim if isinstance(dim, int) else dims.get(dim, default) if isinstance(dim, str) else default


def head_sizes(model: Model) -> dict[str, int]:
    """The widths of caches that are symbols, from the attention nodes that read the caches."""
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


def _by_key(model: Model, names: Iterable[str], words: Set[str], alone: Set[str]) -> dict[tuple[str, ...], list[str]]:
    """The plain tensors of rank 3 or more with one of `words` in their names, by their names without such words.

    A name that consists of such words has one of `alone`.
    """
    tensors = (model.tensors[name] for name in names)
    states = ((_key(t.name), t.name) for t in tensors if t.is_plain and (t.shape is None or len(t.shape) >= 3))
    return grouped((key, name) for key, name in states if not (words if key else alone).isdisjoint(_words(name)))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _key(name: str) -> tuple[str, ...]:
    """`("3", "key")` for `past_key_values.3.key` and for `present_key_3`: sorted, since the order differs."""
    return tuple(sorted(_SHORT.get(word, word) for word in _words(_PHRASES.sub("", name)) if word not in _SIDES))


def _comes_back(past: Tensor, present: Tensor, known: Collection[str], *, may_grow: bool = True) -> bool:
    """Whether the output `present` can be the input `past` of the next step.

    `known` are the symbols of inputs: another one, such as torch's `Concatpresent_dim_2`, may be any size. A fixed size
    may become a larger one if it `may_grow`.
    """
    if past.dtype != present.dtype or past.dtype == UNDEFINED:
        return False
    if past.shape is None or present.shape is None:
        return True
    if len(past.shape) != len(present.shape):
        return False
    pairs = [pair for pair in zip(past.shape, present.shape, strict=True) if pair[0] != pair[1] and None not in pair]
    differing = [(a, b) for a, b in pairs if isinstance(b, int) or b in known]
    fixed = [(a, b) for a, b in differing if isinstance(a, int) and isinstance(b, int)]
    return len(differing) <= 1 and all(may_grow and a < b for a, b in fixed)


def token_axis(model: Model, cache: Cache) -> int | None:
    """The axis of a cache along which its tokens are; `None` if it has none, or it is unknown.

    By the sizes before and after, which differ there; by the operator that keeps it; for a buffer of fixed size by an
    attention mask of the same size.
    """
    past, present = model.tensors[cache.past], model.tensors[cache.present]
    shape, growth = past.shape or (), _growth(past, present)
    if growth[0] != growth[1]:
        return [*zip(shape, present.shape or (), strict=False)].index(growth)
    route = routes_from(model, cache.past).get(cache.present)
    if shape and route is not None and route.axis is not None:
        return route.axis % len(shape)
    _, total = _first_sizes(model, _MASK)
    axes = [axis for axis, dim in enumerate(shape) if isinstance(dim, int) and dim == total]
    return axes[0] if len(axes) == 1 else None


def is_rolling(model: Model, cache: Cache) -> bool:
    """Whether new tokens are added at the end, and the oldest leave: `Concat(past, new)[1:]`, always of one size."""
    past, present = model.tensors[cache.past], model.tensors[cache.present]
    route = routes_from(model, cache.past).get(cache.present)
    return route is not None and route.is_appended and route.is_cropped and past.shape == present.shape is not None


def can_share_buffer(model: Model, cache: Cache) -> bool:
    """Whether `past` and `present` may be the same memory, with room for more tokens than there are.

    True if GroupQueryAttention alone reads and writes them. Another input tells it the number of tokens, and by its
    schema `past_key` has room for more if it is the same tensor as `present_key`.
    """
    graph, nodes = model.graph, model.proto.graph.node
    readers = [nodes[i] for i in graph.readers.get(cache.past, ())]
    if [(node.domain, node.op_type) for node in readers] != [("com.microsoft", "GroupQueryAttention")]:
        return False
    reads, writes = list(readers[0].input), list(readers[0].output)
    is_alone = reads.count(cache.past) == 1 and cache.past not in graph.outputs and cache.present not in graph.readers
    return is_alone and (cache.past, cache.present) in zip(reads[3:5], writes[1:3], strict=False)


def _growth(past: Tensor, present: Tensor) -> tuple[Dim, Dim]:
    """The sizes before and after along the axis where a cache grows; `None` if unknown."""
    pairs = [pair for pair in zip(past.shape or (), present.shape or (), strict=False) if isinstance(pair[0], str)]
    grown = [pair for pair in pairs if pair[0] != pair[1] and not isinstance(pair[1], int)]
    named = [pair for pair in pairs if re.search("past|cache|len|seq|total", str(pair[0]))]
    return next(iter([pair for pair in grown if pair in named] or grown or named), (None, None))


def _first_sizes(model: Model, pattern: re.Pattern[str]) -> Sequence[Dim]:
    """The first two sizes of the first input whose name matches; a single axis is the second."""
    for name in model.graph.reads:
        shape = model.tensors[name].shape
        if pattern.match(name) and shape:
            return shape[:2] if len(shape) > 1 else (None, shape[0])
    return None, None
