"""Rules of operators that work element by element, reduce, or normalize."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import gcd, lcm, prod
from typing import Final

from ....core.records import table
from ....loading.operations import Operation, RuleTable, Shape, by_operator
from ..factors import Factor, Place, Rule, axis_of, fixed, moved, places


def elementwise(o: Operation, most: int | None = None) -> Iterator[Factor]:
    """Each axis of the output; inputs that are broadcast along it are read whole.

    Of inputs from index `most` on only the type is read.
    """
    shapes = {slot: o.read(slot) or () for slot in range(len(o.inputs))[:most] if o.has(slot)}
    return broadcast(shapes, o.written() or (), _written(o))


def packed(o: Operation) -> Iterator[Factor]:
    """Each axis, in pieces of whole packets: ONNX Runtime computes what is left at the end by other functions."""
    return (by_packets(factor, o.read(0) or ()) for factor in elementwise(o) if factor.reads)


def by_packets(factor: Factor, shape: Shape, least: int = 1) -> Factor:
    """The factor with units of at least `least` each that begin and end with a packet of the first input.

    Kernels compute packets of four elements at once, as many as are aligned in memory, and others one by one. Then an
    element has other bits where it is in a packet in the whole tensor and alone in a slice, or a sum of others.
    """
    inner = prod(dim if isinstance(dim, int) else 1 for dim in shape[factor.reads[0].axis + 1 :])
    item = lcm(least, _PACKET // gcd(inner, _PACKET))
    return factor._replace(units=0 if factor.units % item else factor.units // item)


def broadcast(shapes: Mapping[int, Shape], out: Shape, writes: Sequence[int] = (0,)) -> Iterator[Factor]:
    """The first axes of outputs, of the sizes `out`, and of the inputs that are broadcast to these."""
    for axis, dim in enumerate(out):
        reads = [aligned(slot, shape, axis - len(out), dim) for slot, shape in shapes.items()]
        if None not in reads:
            yield Factor(fixed(dim), tuple(place for place in reads if place), places(writes, axis))


def _written(o: Operation) -> list[int]:
    return [i for i, name in enumerate(o.outputs) if name]


def aligned(slot: int, shape: Shape, axis: int, dim: object) -> Place | tuple[()] | None:
    """The place of an input that is broadcast to an output whose axis `axis` (from the end) has the size `dim`.

    Empty if the input is repeated along the axis; None if that is unknown.
    """
    if -axis > len(shape) or shape[axis] == 1:
        return ()
    return Place(slot, axis + len(shape)) if shape[axis] == dim else None


def leading(o: Operation, alike: Sequence[int] = (0,), default: int = -1) -> Iterator[Factor]:
    """The axes before `axis`, which is normalized. The inputs `alike` are added."""
    shape = o.read(0) or ()
    own = axis_of(o.given("axis", default), shape)
    found = broadcast({i: o.read(i) or () for i in alike}, shape, _written(o))
    return (factor for factor in found if factor.writes[0].axis < own)


def but_axis(o: Operation, default: int = -1, reads: Sequence[int] = (0,)) -> Iterator[Factor]:
    """All axes but `axis`, along which elements depend on one another."""
    shape, writes = o.read(0) or (), _written(o)
    own = axis_of(o.given("axis", default), shape)
    for axis, dim in enumerate(shape):
        shapes = (*(o.read(i) for i in reads), *(o.written(i) for i in writes))
        if axis != own and all((one or ())[axis : axis + 1] == (dim,) for one in shapes):
            yield Factor(fixed(dim), places(reads, axis), places(writes, axis))


def softmax(o: Operation) -> Iterator[Factor]:
    """All axes but `axis`; before version 13, those before it."""
    return but_axis(o) if o.version >= 13 else leading(o, default=1)


def cumulative(o: Operation) -> Iterator[Factor]:
    """All axes but that of the second input."""
    shape, axes = o.read(0) or (), o.values.get(1)
    if axes:
        own = axis_of(axes[0], shape)
        yield from moved(shape, {axis: axis for axis in range(len(shape)) if axis != own})


def reduction(o: Operation) -> Iterator[Factor]:
    """The axes that stay; the axis that a sum is taken over is contracted."""
    shape, axes = o.read(0) or (), o.given("axes", o.values.get(1))
    gone = {axis_of(axis, shape) for axis in axes or ()}
    if not gone and not o.given("noop_with_empty_axes", 0):
        gone = set(range(len(shape)))
    if axes is not None or not o.has(1):
        yield from _reduced(o, shape, gone)


def arg_reduction(o: Operation) -> Iterator[Factor]:
    """All axes but `axis`."""
    shape = o.read(0) or ()
    yield from _reduced(o, shape, {axis_of(o.given("axis", 0), shape)})


def _reduced(o: Operation, shape: Shape, gone: AbstractSet[int]) -> Iterator[Factor]:
    keeps = o.given("keepdims", 1)
    for axis, dim in enumerate(shape):
        if axis not in gone:
            place = axis if keeps else axis - sum(one < axis for one in gone)
            least = 1 if gone == {*range(min(gone, default=0), len(shape))} else 2
            is_packed = o.op in _ADDING and max(gone, default=0) > axis
            yield from (by_packets(f, shape, least) if is_packed else f for f in moved(shape, {axis: place}))
        elif o.op in _SUMS:
            yield Factor(fixed(dim), (Place(0, axis),))


def channels(o: Operation) -> Iterator[Factor]:
    """The batch and the channels of a normalization whose other inputs have one value for each channel."""
    shape = o.read(0) or ()
    if len(shape) < 2 or len(o.outputs) > 1:
        return
    others = tuple(Place(i, 0) for i in range(1, len(o.inputs)))
    own = Factor(fixed(shape[1]), (Place(0, 1), *others), (Place(0, 1),))
    found = [*moved(shape, {0: 0}), own]
    yield from found if o.op == "BatchNormalization" else (by_packets(factor, shape) for factor in found)


def group_normalization(o: Operation) -> Iterator[Factor]:
    """The batch and the groups of channels."""
    shape, groups = o.read(0) or (), o.given("num_groups", 0)
    own = Factor(groups, (Place(0, 1), Place(1, 0), Place(2, 0)), (Place(0, 1),), ("num_groups",))
    width = fixed(shape[1]) // groups if groups and len(shape) > 1 else 1
    yield from (by_packets(factor, shape) for factor in moved(shape, {0: 0}))
    yield by_packets(own, (*shape[:2], width, *shape[2:]))


def quantized(o: Operation) -> Iterator[Factor]:
    """QuantizeLinear and DequantizeLinear: one scale for the tensor, for each slice along `axis`, or for each block."""
    shape, scale = o.read(0) or (), o.read(1) or ()
    own, block = axis_of(o.given("axis", 1), shape), o.given("block_size", 0)
    others = [i for i in (1, 2) if o.has(i)]
    for axis, dim in enumerate(shape):
        follows = len(scale) > 0 and (bool(block) or axis == own) and scale != (1,)
        item = block if block and axis == own else 1
        if fixed(dim) % item == 0:
            reads = tuple(Place(i, axis if block else 0) for i in others) if follows else ()
            yield Factor(fixed(dim) // item, (Place(0, axis), *reads), (Place(0, axis),))


_PACKET: Final = 4  #: elements; 16 bytes of float32.
_ADDING = frozenset({"ReduceMean", "ReduceSum"})  #: sums whose order depends on where a row is in memory.
_SUMS = frozenset({"ReduceL1", "ReduceSum", "ReduceSumSquare"})

RULES: Final[Mapping[str, Rule]] = by_operator(table("sharding/axes/rules/elements.toml", RuleTable), globals())
