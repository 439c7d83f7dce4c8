"""Attention: scores of each query against all keys, a softmax, and the values they weigh.

For S queries, T keys and H heads of width d that is 2·S·T·H·d for the scores, as much for the values, and 5·S·T·H for
the softmax. The whole rectangle counts, also where a mask hides half of it: most kernels compute it, and for those that
skip it this is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ...core.wiring import Dim
from ..formula import Formula, product
from .elements import NORM, SOFTMAX
from .operation import Operation, Rule, axis, divided, elements, rows, size

_ROTARY: Final = 3


def _attended(queries: Formula, values: Formula, scored: Formula, keys: Formula) -> Formula:
    """`queries`, `values`: elements read and written; `scored`: rows times heads; `keys`: how many each row meets."""
    return (queries * 2 + values * 2 + scored * SOFTMAX) * keys


def _all_keys(present: Dim, past: Dim, new: Dim, *, has_past: bool) -> Formula:
    """How many keys each query meets: what the present cache holds, else the past ones and the new ones."""
    if present is not None:
        return Formula.of(present)
    return Formula.of(past) + Formula.of(new) if has_past else Formula.of(new)


def _standard(operation: Operation) -> Formula:
    """ai.onnx Attention: [batch, heads, seq, width], or [batch, seq, heads*width] with the heads as attributes."""
    query, key = operation.read(0), operation.read(1)
    split = query is None or len(query) == 4
    new = axis(key, 2 if key is None or len(key) == 4 else 1)
    keys = _all_keys(axis(operation.written(1), 2), axis(operation.read(4), 2), new, has_past=operation.has(4))
    scored = rows(query) * (1 if split else operation.number("q_num_heads", 1))
    return _attended(elements(query), elements(operation.written()), scored, keys)


def _grouped(operation: Operation) -> Formula:
    """GroupQueryAttention: queries alone, or queries, keys and values side by side where no key is given.

    Queries and keys may be normalised and turned on the way.
    """
    query = operation.read(0)
    heads, kv_heads = operation.number("num_heads", 1), operation.number("kv_num_heads", 1)
    width = divided(axis(query, -1), heads if operation.has(1) else heads + 2 * kv_heads)
    tokens = rows(query)
    queries = tokens * Formula.of(width) * heads
    present = axis(operation.written(1), 2)
    keys = _all_keys(present, axis(operation.read(3), 2), axis(query, 1), has_past=operation.has(3))
    each = _ROTARY * bool(operation.number("do_rotary", 0)) + NORM * operation.has(14)
    return _attended(queries, queries, tokens * heads, keys) + tokens * Formula.of(width) * (heads + kv_heads) * each


def _multi_head(past: int, bias: int, operation: Operation) -> Formula:
    """MultiHeadAttention: [batch, seq, hidden], or packed as [batch, seq, heads, 2 or 3, width]; keys also 4-D."""
    query, heads = operation.read(0), operation.number("num_heads", 1)
    tokens = product(query[:2]) if query is not None else rows(query)
    is_packed = query is not None and len(query) == 5
    width = axis(query, 4) if is_packed else divided(axis(query, -1), heads)
    queries = tokens * Formula.of(width) * heads
    key = operation.read(1) if operation.has(1) else query
    new = axis(key, 2 if key is not None and len(key) == 4 else 1)
    keys = _all_keys(axis(operation.written(1), 2), axis(operation.read(past), 2), new, has_past=operation.has(past))
    value = operation.read(2)
    values = tokens * size(value, -1) * (heads if value is not None and len(value) == 4 else 1)
    biased = sum((elements(operation.read(i)) for i in range(3) if operation.has(i)), Formula())
    attended = _attended(queries, values if operation.has(2) else queries, tokens * heads, keys)
    return attended + biased if operation.has(bias) else attended


def _projecting(past: int, operation: Operation) -> Formula:
    """com.microsoft Attention: projects its input to queries, keys and values first, with a bias."""
    shape, weight = operation.read(0), operation.read(1)
    tokens, wide = rows(shape), size(weight, 1)
    sizes = operation.numbers("qkv_hidden_sizes")
    query, value = (sizes[0], sizes[2]) if len(sizes) == 3 else (divided(axis(weight, 1), 3),) * 2
    projected = tokens * wide * size(shape, -1) * 2 + (tokens * wide if operation.has(2) else 0)
    present, before = axis(operation.written(1), 3), axis(operation.read(past), 3)
    keys = _all_keys(present, before, axis(shape, 1), has_past=operation.has(past))
    scored = tokens * operation.number("num_heads", 1)
    return projected + _attended(tokens * Formula.of(query), tokens * Formula.of(value), scored, keys)


def _linear(operation: Operation) -> Formula:
    """LinearAttention: a state of width_k times width_v a head, which each token updates and each query reads.

    A multiply-add for each element to add a token; to forget (`gated`) one step more, to correct (`delta`) three.
    """
    state = operation.read(3) if operation.read(3) is not None else operation.written(1)
    rule = operation.text("update_rule", "gated_delta")
    update = 2 + ("gated" in rule) + 3 * ("delta" in rule)
    heads, kv_heads = operation.number("q_num_heads", 1), max(1, operation.number("kv_num_heads", 1))
    return elements(state) * size(operation.read(0), 1) * (update + 2 * heads // kv_heads)


_MS = "com.microsoft."
RULES: Final[Mapping[str, Rule]] = {
    "Attention": _standard,
    _MS + "GroupQueryAttention": _grouped,
    _MS + "MultiHeadAttention": partial(_multi_head, 6, 3),
    _MS + "DecoderMaskedMultiHeadAttention": partial(_multi_head, 5, 10),
    _MS + "Attention": partial(_projecting, 4),
    _MS + "DecoderMaskedSelfAttention": partial(_projecting, 4),
    _MS + "QAttention": partial(_projecting, 8),
    "LinearAttention": _linear,
    _MS + "LinearAttention": _linear,
}
