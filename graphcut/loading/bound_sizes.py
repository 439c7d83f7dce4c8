"""Dimensions that ONNX shape inference leaves unknown, for given numbers of the symbols.

ONNX shape inference propagates sizes through few operators (Shape, Slice, Concat, Add, ...). Where a size is computed
by others, it is evaluated (`size_evaluation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from random import Random
from typing import Final

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto
from onnx.inliner import inline_local_functions

from ..core.tensors import Dim, Dims, Tensors, by_kind
from .shape_inference import (
    FEW_NODES,
    has_unknown_dims,
    infer_values,
    own_symbols,
    tensors_of_values,
    type_proto,
    with_shape,
    without_value_info,
)
from .size_evaluation import SizeEvaluation

_FEW: Final = 12  #: for so many symbols primes are known of which no simple computation makes another one.
BATCH: Final = 500  #: evaluating so many tensors takes less time than ONNX shape inference on 5,000.


def infer_bound(model: ModelProto, dims: Dims, wanted: AbstractSet[str], known: Tensors | None = None) -> Tensors:
    """The types of `wanted` when the symbols of the inputs are the numbers `dims`. For sizes; parts keep the symbols.

    First ONNX shape inference, then evaluation of small values that depend on sizes and constants only. Of operators
    that onnx does not know ONNX Runtime is asked. `known` are the types that other sources gave. A dimension without a
    symbol, of an input or of any tensor whose size depends on values, has the number of its `Tensor.dim_names` in
    `dims`.

    Example: y has 2 * seq / 2 elements. Shape inference does not know it, because it does not propagate values through
    Mul and Range. With seq = 5, evaluation computes s = [5], n = 5, d = 10, and from these the size of Range; r itself
    is not computed unless it is small and a size depends on its values.

        >>> import onnx
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 17]>
        ...     example (float[batch, seq] x) => (int64[rows] y)
        ...     <int64 zero = {0}, int64 two = {2}> {
        ...         s = Shape <start = 1> (x)
        ...         n = Squeeze (s)
        ...         d = Mul (n, two)
        ...         r = Range (zero, d, two)
        ...         y = Identity (r)
        ...     }''')
        >>> inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        >>> [dim.dim_param for value in inferred.graph.value_info if value.name == "r"
        ...  for dim in value.type.tensor_type.shape.dim]
        ['unk__0']
        >>> found = infer_bound(model, {"batch": 1, "seq": 5}, {"d", "r", "y"})
        >>> {name: str(tensor) for name, tensor in sorted(found.items())}
        {'d': 'int64[]', 'r': 'int64[5]', 'y': 'int64[5]'}
    """
    bound = without_value_info(inline_local_functions(model) if model.functions else model)
    declared = tensors_of_values(bound.graph.input, own_symbols(tensors_of_values(bound.graph.input).values()))
    inputs = {name: tensor.with_numbers(dims) for name, tensor in declared.items() if tensor.is_plain}
    for value in bound.graph.input:
        if value.name in inputs:
            value.type.CopyFrom(type_proto(inputs[value.name]))
    for value in bound.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    is_open = by_kind(lambda tensor: has_unknown_dims(tensor.with_numbers(dims)), dims)
    given = {n: tensor.with_numbers(dims) for n, tensor in {**(known or {}), **inputs}.items() if not is_open(tensor)}
    first = _first_nodes(bound)
    evaluation, unknown = _infer(first, dims, wanted, given)
    for is_whole in (first is bound, True):
        if is_whole and len(unknown) <= BATCH:
            break
        # Most of them depend on the first ones: with these known, shape inference finds the others much faster.
        evaluation.run(unknown[:BATCH])
        found = evaluation.found.items()
        bound.graph.value_info.extend(ValueInfoProto(name=name, type=type_proto(tensor)) for name, tensor in found)
        evaluation, unknown = _infer(bound, dims, wanted, given)
    evaluation.run(unknown)
    return {name: tensor for name, tensor in {**evaluation.declared, **evaluation.found}.items() if name in wanted}


def _first_nodes(model: ModelProto) -> ModelProto:
    """The model with its first nodes alone, which give the same types as in the whole model; itself if it is small."""
    whole = model.graph
    if len(whole.node) <= FEW_NODES:
        return model
    graph = GraphProto(name=whole.name, input=whole.input, initializer=whole.initializer, node=whole.node[:FEW_NODES])
    return ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)


def _infer(model: ModelProto, dims: Dims, wanted: AbstractSet[str], given: Tensors) -> tuple[SizeEvaluation, list[str]]:
    """The result of ONNX shape inference, and those of `wanted` that it does not know, in topological order."""
    found = {**tensors_of_values(infer_values(model), set()), **given}
    is_open = by_kind(has_unknown_dims)
    unknown = {name for name in wanted if name not in found or is_open(found[name])}
    ordered = [name for node in model.graph.node for name in node.output if name in unknown] if unknown else []
    return SizeEvaluation(model, model.graph, dims, found), ordered


def name_unknown_dims(model: ModelProto, tensors: Tensors) -> Tensors:
    """`tensors` with unknown dimensions replaced by the symbols that they are equal to, where there is one.

    Shape inference loses symbols in computations (Shape, Slice, Concat, Reshape), but not numbers. So each symbol is
    bound to a different prime: a dimension that is inferred as this prime is equal to the symbol.
    """
    _, *bindings = _bindings(tensors)
    symbols: list[dict[Dim, str]] = [{number: symbol for symbol, number in binding.items()} for binding in bindings]

    def symbol_of(*dims: Dim) -> Dim:
        found = {names.get(dim) for names, dim in zip(symbols, dims, strict=True)}
        return found.pop() if len(found) == 1 else None

    return _completed(model, tensors, bindings if symbols[0] else [], symbol_of)


def number_unknown_dims(model: ModelProto, tensors: Tensors) -> Tensors:
    """`tensors` with unknown dimensions replaced by numbers where these don't depend on the symbols.

    They are those that are the same if all symbols are 1, and if each is another large prime.
    """
    return _completed(model, tensors, _bindings(tensors), lambda *dims: dims[0] if len({*dims}) == 1 else None)


def _bindings(tensors: Tensors) -> list[dict[str, int]]:
    """The symbols of tensors with 1 for each, and with a different prime for each: twice if there are many symbols."""
    symbols = sorted({dim for tensor in tensors.values() for dim in tensor.shape or () if isinstance(dim, str)})
    number = len(symbols)
    primes = [distant_primes(10_007, number)] if number <= _FEW else [random_primes(number, seed) for seed in (1, 2)]
    return [with_total(dict(zip(symbols, numbers, strict=True))) for numbers in ([1] * number, *primes)]


def _completed(model: ModelProto, tensors: Tensors, bindings: Sequence[Dims], dim_of: Callable[..., Dim]) -> Tensors:
    """`tensors` with what `dim_of` makes of an unknown dimension: it is given its size for each of the bindings."""
    unknown = {name for name, tensor in tensors.items() if tensor.shape and None in tensor.shape}
    found = [infer_bound(model, binding, unknown, tensors) for binding in bindings] if unknown else []
    made = dict(tensors)

    @cache
    def completed(shape: Sequence[Dim], *others: Sequence[Dim]) -> Sequence[Dim]:
        rows = zip(shape, *others, strict=True) if [*map(len, others)] == [len(shape)] * len(found) else ()
        return [dim_of(*dims) if own is None else own for own, *dims in rows] or shape

    for name in unknown if found else ():
        others = (types[name].shape or () for types in found if name in types)
        made[name] = with_shape(tensors[name], completed(tensors[name].shape or (), *others))
    return made


def with_total(binding: Dims) -> dict[str, int]:
    """The binding, changed so that total = past + new tokens, as decoders require."""
    totals = [symbol for symbol in binding if "total" in symbol]
    pasts = [symbol for symbol in binding if "past" in symbol and symbol not in totals]
    news = [symbol for symbol in binding if symbol.startswith("seq") and symbol not in (*totals, *pasts)]
    if len(totals) == len(pasts) == len(news) == 1:
        return {**binding, totals[0]: binding[pasts[0]] + binding[news[0]]}
    return dict(binding)


def distant_primes(start: int, number: int) -> list[int]:
    """Primes far from each other.

    For a dozen of them no sum, difference, small multiple or fraction (rounded up or down) is another one, so that no
    window, stride, padding or scale changes one into another. Tests try them all.
    """
    found: list[int] = []
    candidate = start
    while len(found) < number:
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
            candidate = candidate * 69 // 40 | 1
        candidate += 2
    return found


def random_primes(number: int, seed: int) -> list[int]:
    """Different primes from 10,007 on, below 2**21 where these suffice, so that int64 holds the product of three.

    A computation with some of them may give another one by chance, which it hardly does for two seeds.
    """
    is_prime = np.ones(max(1 << 21, 64 * number), bool)
    for divisor in range(2, math.isqrt(len(is_prime)) + 1):
        if is_prime[divisor]:
            is_prime[divisor * divisor :: divisor] = False
    return Random(seed).sample((np.flatnonzero(is_prime[10_007:]) + 10_007).tolist(), number)  # noqa: S311 - no secret
