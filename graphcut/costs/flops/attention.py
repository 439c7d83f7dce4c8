"""Attention: the scores of each query with all keys, a softmax, and the sum of the values with these weights.

For S queries, T keys and H heads of width d: 2·S·T·H·d for the scores, as much for the values, and 5·S·T·H for the
softmax. All scores count, also where a mask hides half of them: most kernels compute them, and for those that don't the
result is an upper bound.
"""

from collections.abc import Mapping
from typing import Final

from ...core.records import table
from ...core.tensors import Dim
from ...loading.operations import Operation, RuleTable, by_operator
from ..formula import Formula, Rule, axis, divided, elements, product, rows, size
from .elements import NORM, SOFTMAX

_ROTARY: Final = 3


def _attention(queries: Formula, values: Formula, scores: Formula, keys: Formula) -> Formula:
    """For `keys` keys: `queries` elements read, `values` elements written, and `scores` scores with each key."""
    return (queries * 2 + values * 2 + scores * SOFTMAX) * keys


def _keys(operation: Operation, past: int, new: Dim, along: int = 2) -> Formula:
    """The number of keys `along` an axis: of the present cache, or of the past one (input `past`) and the new ones."""
    if (present := axis(operation.written(1), along)) is not None:
        return Formula.of(present)
    return Formula.of(new) + (size(operation.read(past), along) if operation.has(past) else 0)


def _standard(operation: Operation) -> Formula:
    """ai.onnx Attention: [batch, heads, seq, width], or [batch, seq, heads*width] with the heads as attributes."""
    query, key = operation.read(0), operation.read(1)
    is_4d = query is None or len(query) == 4
    keys = _keys(operation, 4, axis(key, 2 if key is None or len(key) == 4 else 1))
    scores = rows(query) * (1 if is_4d else operation.given("q_num_heads", 1))
    return _attention(elements(query), elements(operation.written()), scores, keys)


def _grouped(operation: Operation) -> Formula:
    """GroupQueryAttention: queries, or without keys the packed queries, keys and values.

    Queries and keys may be normalized and rotated first.
    """
    query = operation.read(0)
    heads, kv_heads = operation.given("num_heads", 1), operation.given("kv_num_heads", 1)
    width = Formula.of(divided(axis(query, -1), heads if operation.has(1) else heads + 2 * kv_heads))
    tokens = rows(query)
    keys = _keys(operation, 3, axis(query, 1))
    queries = tokens * width * heads
    before = _ROTARY * bool(operation.given("do_rotary", 0)) + NORM * operation.has(14)
    return _attention(queries, queries, tokens * heads, keys) + tokens * width * (heads + kv_heads) * before


def _multi_head(operation: Operation, past: int, bias: int) -> Formula:
    """MultiHeadAttention: [batch, seq, hidden], or packed [batch, seq, heads, 2 or 3, width]; keys also 4-D."""
    query, heads = operation.read(0), operation.given("num_heads", 1)
    tokens = product(query[:2]) if query is not None else rows(query)
    is_packed = query is not None and len(query) == 5
    queries = tokens * Formula.of(axis(query, 4) if is_packed else divided(axis(query, -1), heads)) * heads
    key, value = operation.read(1) if operation.has(1) else query, operation.read(2)
    keys = _keys(operation, past, axis(key, 2 if key is not None and len(key) == 4 else 1))
    values = tokens * size(value, -1) * (heads if value is not None and len(value) == 4 else 1)
    attention = _attention(queries, values if operation.has(2) else queries, tokens * heads, keys)
    biased = [elements(operation.read(i)) for i in range(3) if operation.has(i)] if operation.has(bias) else []
    return sum(biased, attention)


def _projecting(operation: Operation, past: int) -> Formula:
    """com.microsoft Attention: first projects its input to queries, keys and values, with a bias."""
    shape, weight = operation.read(0), operation.read(1)
    tokens, width = rows(shape), size(weight, 1)
    sizes = operation.given("qkv_hidden_sizes", ())
    query, value = (sizes[0], sizes[2]) if len(sizes) == 3 else (divided(axis(weight, 1), 3),) * 2
    projection = tokens * width * (size(shape, -1) * 2 + operation.has(2))
    keys = _keys(operation, past, axis(shape, 1), along=3)
    scores = tokens * operation.given("num_heads", 1)
    return projection + _attention(tokens * Formula.of(query), tokens * Formula.of(value), scores, keys)


def _linear(operation: Operation) -> Formula:
    """LinearAttention: each token updates a state of width_k times width_v for each head, and each query reads it.

    For each element a multiply-add to add a token; 1 more to forget (`gated`), 3 more to correct (`delta`).
    """
    state = operation.read(3) if operation.read(3) is not None else operation.written(1)
    rule = operation.given("update_rule", "gated_delta")
    update = 2 + ("gated" in rule) + 3 * ("delta" in rule)
    heads, kv_heads = operation.given("q_num_heads", 1), max(1, operation.given("kv_num_heads", 1))
    return elements(state) * size(operation.read(0), 1) * (update + 2 * heads // kv_heads)


RULES: Final[Mapping[str, Rule]] = by_operator(table("costs/flops/attention.toml", RuleTable), globals())
