"""Rules of matrix products and convolutions."""

from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import Final

from ....core.records import table
from ....loading.operations import Operation, RuleTable, Shape, by_operator
from ..factors import Factor, Place, Rule, columns, fixed, moved
from .elements import aligned, broadcast


def matmul(o: Operation) -> Iterator[Factor]:
    """Batch axes, rows, columns; the inner axis is contracted."""
    a, b, out = o.read(0) or (), o.read(1) or (), o.written() or ()
    if o.given("transBatchA", 0) or o.given("transBatchB", 0):
        return
    inner_a = _from_end(a, o.given("transA", 0) + 1)
    inner_b = _from_end(b, 2 - o.given("transB", 0))
    matrices = min(len(a), 2) + min(len(b), 2) - 2
    yield from broadcast({0: a[:-2], 1: b[:-2]}, out[: len(out) - matrices])
    if len(a) > 1:
        yield from moved(a, {_other(a, inner_a): len(out) - matrices})
    if len(b) > 1:
        axis = _other(b, inner_b)
        yield Factor(columns(fixed(b[axis])), (Place(1, axis),), (Place(0, len(out) - 1),))
    if a[inner_a] == b[inner_b]:
        yield Factor(fixed(a[inner_a]), (Place(0, inner_a), Place(1, inner_b)))


def _from_end(shape: Shape, back: int) -> int:
    """The axis `back` from the end; that of a vector is its only one."""
    return len(shape) - min(back, len(shape))


def _other(shape: Shape, axis: int) -> int:
    """The other one of the last two axes."""
    return 2 * len(shape) - 3 - axis


def gemm(o: Operation) -> Iterator[Factor]:
    """Rows and columns, of the added matrix too if it has them; the inner axis is contracted."""
    b, added, out = o.read(1) or (), o.read(2) or (), o.written() or ()
    rows, width = o.given("transA", 0), 1 - o.given("transB", 0)
    for axis, own, units in ((0, Place(0, rows), fixed(out[0])), (1, Place(1, width), columns(fixed(out[1])))):
        bias = aligned(2, added, axis - 2, out[axis])
        if bias is not None:
            yield Factor(units, (own, bias) if bias else (own,), (Place(0, axis),))
    yield Factor(fixed(b[1 - width]), (Place(0, 1 - rows), Place(1, 1 - width)), once=(2,))


def product_columns(o: Operation, weight: int, others: Sequence[int]) -> Iterator[Factor]:
    """The columns of a matrix weight, and of other inputs the last axis, if it has one element for each column."""
    shape, out = o.read(weight) or (), o.written() or ()
    if len(shape) == 2:
        found = ((i, o.read(i)) for i in others)
        places = (Place(i, len(read) - 1) for i, read in found if read and read[-1] == shape[-1])
        yield Factor(columns(fixed(shape[-1])), (Place(weight, 1), *places), (Place(0, len(out) - 1),))


def matmul_integer(o: Operation) -> Iterator[Factor]:
    """The columns; the inner axis is contracted: sums of integers, so exact in any order."""
    yield from product_columns(o, 1, (3,))
    a, b = o.read(0) or (), o.read(1) or ()
    if len(b) == 2:
        yield Factor(fixed(b[0]), (Place(0, len(a) - 1), Place(1, 0)))


def matmul_n_bits(o: Operation) -> Iterator[Factor]:
    """The columns; blocks of the inner axis, if scales and zero points have an axis of blocks, are contracted."""
    last = len(o.read(0) or ()) - 1
    width, inner, block = (o.given(name, 0) for name in ("N", "K", "block_size"))
    if not block or width % 4:
        return
    by_column = tuple(Place(i, 0) for i in (1, 2, 3, 5) if o.has(i))
    yield Factor(width // 4, by_column, (Place(0, last),), ("N",))
    blocks = [i for i in (2, 3) if o.has(i)]
    shapes = [o.read(i) or () for i in blocks]
    if not o.has(4) and inner % block == 0 and all(len(shape) == 2 and fixed(shape[1]) for shape in shapes):
        units = gcd(inner // block, *(fixed(shape[1]) for shape in shapes))
        places = (Place(0, last), *(Place(i, 1) for i in (1, *blocks)))
        yield Factor(units, places, counts=("K",), once=(5,))


def convolution(o: Operation, own: int = 0) -> Iterator[Factor]:
    """The batch; the channels of the output, and those of the input are contracted; or the groups.

    `own` is the axis of the weight with the channels of the output: 0 or 1. The other one has those of the input.
    """
    x, w, out = o.read(0) or (), o.read(1) or (), o.written() or ()
    bias = (Place(2, 0),) if o.has(2) else ()
    groups = o.given("group", 1)
    yield from moved(x, {0: 0})
    if groups > 1:
        yield Factor(groups, (Place(0, 1), Place(1, 0), *bias), (Place(0, 1),), ("group",))
    else:
        yield Factor(_channels(fixed(w[own]), x if own else out), (Place(1, own), *bias), (Place(0, 1),))
        yield Factor(fixed(x[1]), (Place(0, 1), Place(1, 1 - own)), once=(2,))


def _channels(channels: int, multiplied: Shape) -> int:
    """Units of the channels that a convolution writes: two each, or three, ..., since other kernels compute one alone.

    Its weight is multiplied by a matrix with the elements of a channel of `multiplied` as columns. If that is one, ONNX
    Runtime multiplies by a vector, four rows at a time.
    """
    items = (4,) if all(size == 1 for size in multiplied[2:]) else (2, 3, 5, 7)
    return next((channels // item for item in items if channels % item == 0), 1)


def quantized_convolution(o: Operation, others: Sequence[int]) -> Iterator[Factor]:
    """The channels of the output, and of other inputs the only axis, if it has one element for each."""
    slot = 1 if o.op == "ConvInteger" else 3
    w = o.read(slot) or ()
    if o.given("group", 1) == 1:
        places = (Place(i, 0) for i in others if o.read(i) == (w[0],))
        yield Factor(fixed(w[0]) // gcd(fixed(w[0]), 2), (Place(slot, 0), *places), (Place(0, 1),))


def einsum(o: Operation) -> Iterator[Factor]:
    """Each letter: contracted if the output does not have it."""
    equation = o.given("equation", "").replace(" ", "")
    before, found, after = equation.partition("->")
    terms = before.split(",")
    if not found or any(len(set(term)) < len(term) for term in (*terms, after)):
        return
    for letter in dict.fromkeys(before.replace(",", "")):
        places = tuple(Place(i, term.index(letter)) for i, term in enumerate(terms) if letter in term)
        dims = {(o.read(place.slot) or ())[place.axis] for place in places}
        writes = (Place(0, after.index(letter)),) if letter in after else ()
        if len(dims) == 1:
            yield Factor(fixed(dims.pop()), places, writes)


def mixture_of_experts(o: Operation, scales: int) -> Iterator[Factor]:
    """The first axis; the inner width of all experts is contracted. Experts are chosen inside, so they stay together.

    The inputs are rows, routing, then for each of up to three products the weight, its scales (0 or 1), the bias.
    """
    if o.given("swiglu_fusion", 0) or len(o.inputs) > 2 + 3 * (2 + scales):
        return
    yield Factor(fixed((o.read(0) or ())[0]), (Place(0, 0), Place(1, 0)), (Place(0, 0),))
    inner = {2: 1, 4 + scales: 2, 6 + 2 * scales: 1}  # the weights: [experts, inner, x], [experts, x, inner]
    places = [Place(slot, axis) for slot, axis in inner.items() if o.has(slot)]
    for slot in (2, 6 + 2 * scales):  # what belongs to an inner element
        places += [Place(i, 1) for i in range(slot + 1, slot + 2 + scales) if o.has(i)]
    if scales and (second_scales := o.read(5 + scales)) and len(second_scales) == 3:
        places.append(Place(5 + scales, 2))
    sizes = [fixed((o.read(place.slot) or ())[place.axis]) for place in places]
    yield Factor(gcd(*sizes), tuple(places), once=(5 + 2 * scales,))


PRODUCTS: Final[Mapping[str, Rule]] = by_operator(table("sharding/axes/rules/products.toml", RuleTable), globals())
"""Operators that multiply by a weight: their weights are what sharding divides."""
