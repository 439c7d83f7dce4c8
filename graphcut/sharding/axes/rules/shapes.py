"""Rules of operators that move elements: reshape, transpose, join, cut, gather."""

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Final

from ....core.records import table
from ....core.tensors import Dim
from ....loading.operations import Operation, RuleTable, Shape, by_operator
from ..factors import Bounds, Factor, Place, Rule, ShapeInput, SplitSizes, axis_of, fixed, moved, places
from .elements import broadcast, but_axis

_MAX_SEGMENTS: Final = 16
_LARGE: Final = 1 << 64  #: symbols count as larger numbers, sizes are smaller.
_PACKED: Final = 3  #: queries, keys and values in one.


def reshape(o: Operation) -> Iterator[Factor]:
    """The runs of axes that have the same elements on both sides."""
    before, after = o.read(0) or (), o.written() or ()
    change = ShapeInput(1) if o.op == "Reshape" else None
    for own, new in _runs(_numbers(before), _numbers(after)):
        for units, read, write in _common_axes([(a, before[a]) for a in own], [(a, after[a]) for a in new]):
            yield Factor(units, (read,), (write,), change=change)


def _numbers(shape: Shape) -> list[int]:
    """The sizes; a symbol is a large number of its own, and an unknown size is 0."""
    return [_LARGE + int.from_bytes(dim.encode(), "little") if isinstance(dim, str) else dim or 0 for dim in shape]


def _runs(before: list[int], after: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of axes with equal products, from the front and from the end up to an unknown size."""
    yield from _from_front(before, after)
    if 0 in before or 0 in after:
        for own, new in _from_front(before[::-1], after[::-1]):
            last = len(before) - 1, len(after) - 1
            yield [last[0] - axis for axis in own][::-1], [last[1] - axis for axis in new][::-1]


def _from_front(before: list[int], after: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The same from the front. Axes of size 1 are in no run."""
    left = [axis for axis, size in enumerate(before) if size != 1]
    right = [axis for axis, size in enumerate(after) if size != 1]
    while left and right:
        own, new = [left.pop(0)], [right.pop(0)]
        while (a := prod(before[x] for x in own)) != (b := prod(after[x] for x in new)):
            if not a or not b or not (left if a < b else right):
                return
            (own if a < b else new).append((left if a < b else right).pop(0))
        if not a:
            return
        yield own, new


def _common_axes(own: list[tuple[int, Dim]], new: list[tuple[int, Dim]]) -> Iterator[tuple[int, Place, Place]]:
    """The first axes of a run.

    Instead of it the second one, where one axis becomes three or more and the first has size 3: queries, keys and
    values in one, of which the heads can be divided. Any choice is right.
    """
    (first, a), (second, b) = own[0], new[0]
    if len(own) == 1 and len(new) > 2 and b == _PACKED and fixed(a) and fixed(new[1][1]):
        yield fixed(new[1][1]), Place(0, first, (fixed(a) // fixed(b),) * fixed(b)), Place(0, new[1][0])
    elif len(new) == 1 and len(own) > 2 and a == _PACKED and fixed(b) and fixed(own[1][1]):
        yield fixed(own[1][1]), Place(0, own[1][0]), Place(0, second, (fixed(b) // fixed(a),) * fixed(a))
    else:
        yield gcd(fixed(a), fixed(b)), Place(0, first), Place(0, second)


def transpose(o: Operation) -> Iterator[Factor]:
    """Every axis."""
    shape = o.read(0) or ()
    order = o.given("perm", list(reversed(range(len(shape)))))
    yield from moved(shape, {axis: after for after, axis in enumerate(order)})


def concat(o: Operation) -> Iterator[Factor]:
    """The axes that are not joined; the joined one in segments."""
    out = o.written() or ()
    for units, whole, parts in _in_segments(out, o.reads, axis_of(o.given("axis", 0), out)):
        yield Factor(units, parts, (whole,))


def split(o: Operation) -> Iterator[Factor]:
    """The axes that are not cut; the cut one in segments."""
    shape = o.read(0) or ()
    found = _in_segments(shape, o.writes, axis_of(o.given("axis", 0), shape)) if all(o.outputs) else ()
    for units, whole, parts in found:
        if not whole.segments or 1 in o.values or not o.has(1):
            yield Factor(units, (whole,), parts, change=SplitSizes() if whole.segments else None)


def _in_segments(
    whole: Shape, parts: Sequence[Shape | None], own: int
) -> Iterator[tuple[int, Place, tuple[Place, ...]]]:
    """Of each axis of a tensor that is joined along `own`: the units, its place, and those of the parts."""
    for axis, dim in enumerate(whole):
        sizes, labels = tuple(fixed((shape or ())[axis]) for shape in parts), tuple(range(len(parts)))
        if axis != own and all(size == dim for size in sizes):
            yield fixed(dim), Place(0, axis), places(labels, axis)
        elif axis == own and all(sizes) and len(sizes) <= _MAX_SEGMENTS and sum(sizes) == dim:
            yield gcd(*sizes), Place(0, axis, sizes, labels), tuple(Place(i, axis, labels=(i,)) for i in labels)


def slice_(o: Operation) -> Iterator[Factor]:
    """The axes that are not cut; a cut one in up to three segments, if the bounds are constants."""
    shape = o.read(0) or ()
    starts, ends, axes = (o.values.get(i) for i in (1, 2, 3))
    is_open = any(o.has(i) and i not in o.values for i in (3, 4))
    if starts is None or ends is None or is_open:
        return
    steps = o.values.get(4, (1,) * len(starts))
    places = [axis_of(axis, shape) for axis in axes or range(len(starts))]
    for axis, dim in enumerate(shape):
        if axis not in places:
            yield from moved(shape, {axis: axis})
            continue
        element = places.index(axis)
        start, end, _ = slice(starts[element], ends[element]).indices(fixed(dim))
        if steps[element] == 1 and end - start > 1:
            sizes = {0: start, 1: end - start, 2: fixed(dim) - end}
            read = Place(0, axis, tuple(filter(None, sizes.values())), tuple(n for n in sizes if sizes[n]))
            yield Factor(gcd(*read.segments), (read,), (Place(0, axis, labels=(1,)),), change=Bounds(element))


def expand(o: Operation) -> Iterator[Factor]:
    """Every axis of the output, new ones included."""
    out = o.written() or ()
    if o.read(1) == (len(out),):
        yield from (factor._replace(change=ShapeInput(1)) for factor in broadcast({0: o.read(0) or ()}, out))


def filled(o: Operation) -> Iterator[Factor]:
    """ConstantOfShape: every axis."""
    for axis, dim in enumerate(o.written() or ()):
        yield Factor(fixed(dim), (), (Place(0, axis),), change=ShapeInput(0))


def tile(o: Operation) -> Iterator[Factor]:
    """Every axis; a repeated one in one segment for each copy."""
    for axis, (dim, times) in enumerate(zip(o.read(0) or (), o.values.get(1, ()), strict=False)):
        if 1 <= times <= _MAX_SEGMENTS:
            yield Factor(fixed(dim), (Place(0, axis),), (Place(0, axis, (fixed(dim),) * times if times > 1 else ()),))


def gather(o: Operation) -> Iterator[Factor]:
    """All axes of the data but `axis`, and all axes of the indices."""
    data, indices = o.read(0) or (), o.read(1) or ()
    own = axis_of(o.given("axis", 0), data)
    yield from moved(data, {a: a if a < own else a + len(indices) - 1 for a in range(len(data)) if a != own})
    for axis, dim in enumerate(indices):
        yield Factor(fixed(dim), (Place(1, axis),), (Place(0, own + axis),))


def along_others(o: Operation) -> Iterator[Factor]:
    """GatherElements, ScatterElements: the axes but `axis` along which all inputs have one size."""
    return but_axis(o, 0, range(len(o.inputs)))


def pad(o: Operation) -> Iterator[Factor]:
    """The axes without padding."""
    shape, pads = o.read(0) or (), o.given("pads", o.values.get(1, ()))
    if not o.has(3):
        ends = zip(pads, pads[len(shape) :], strict=False)
        yield from moved(shape, {axis: axis for axis, pair in enumerate(ends) if not any(pair)})


def first_axes(o: Operation, number: int) -> Iterator[Factor]:
    """The first `number` axes; all but the last ones if it is negative."""
    shape, out = o.read(0) or (), o.written() or ()
    if not o.writes_to(1):
        pairs = enumerate(zip(shape[:number], out, strict=False))
        yield from moved(shape, {axis: axis for axis, (before, after) in pairs if before == after})


def resize(o: Operation) -> Iterator[Factor]:
    """The batch and the channels, if all axes are listed or none of them is changed."""
    if o.given("coordinate_transformation_mode", "") != "tf_crop_and_resize" and "axes" not in o.attributes:
        change = ShapeInput(3) if o.has(3) else None
        yield from (factor._replace(change=change) for factor in first_axes(o, 2))


RULES: Final[Mapping[str, Rule]] = by_operator(table("sharding/axes/rules/shapes.toml", RuleTable), globals())
