"""Axis classes: axes of tensors that must be divided alike, found by union-find over the factors of all nodes."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from math import gcd, prod
from typing import Final, NamedTuple

from ...core.graph import grouped
from ...core.tensors import BITS
from ...loading.model import Model
from ...loading.opening import ModelLike, load
from ...loading.operations import Operation, constants_in, operations_of
from ...loading.shape_inference import tensor_of_initializer
from .factors import Factor, Place, fixed
from .layouts import Layout, common_layouts
from .rules import PRODUCTS, described, factors_of

_ANYWHERE: Final = -1


class Use(NamedTuple):
    """A tensor; of a constant, one use of it by a node, and of a detached node, what it writes before it is joined.

    Exporters write equal constants once (torch: all biases that are zero), and that must not tie layers together.
    """

    tensor: str
    node: int = _ANYWHERE
    slot: int = _ANYWHERE


class Blocker(NamedTuple):
    """Why a class can't be divided."""

    node: int  #: a node that needs an axis of the class whole.
    reason: str  #: its operator, or what is wrong.


class AxisClass(NamedTuple):
    """Axes of tensors that consist of the same units. If one is divided, all are."""

    units: int  #: how many units there are; 1 if it can't be divided.
    layouts: Mapping[Use, Layout]  #: each tensor, its axis and the segments of the axis.
    factors: Mapping[int, Factor]  #: each node, and its factor that belongs to the class.
    products: tuple[int, ...]  #: the nodes that multiply by a constant which has an axis in the class.
    weights: tuple[str, ...]  #: the weights that have an axis in the class.
    blockers: tuple[Blocker, ...]  #: empty if it can be divided.


_Axis = tuple[Use, int]


_Placed = Sequence[tuple[int, Place]]  #: places of a factor, each by a number of its axis, or of its tensor.


class _Member(NamedTuple):
    """A factor of a node in a class."""

    node: int
    factor: Factor
    axes: _Placed  #: its axes by their numbers.


class _Kind(NamedTuple):
    """What nodes that are described alike have in common. Inputs, then outputs, are numbered in one row."""

    factors: Sequence[tuple[Factor, _Placed]]
    whole: Sequence[tuple[int, int]]  #: tensors, and an axis of each that no factor divides.
    opaque: Sequence[int]  #: the tensors of unknown rank.


def axis_classes(model: ModelLike, *, with_blocked: bool = True) -> tuple[AxisClass, ...]:
    """The axes along which nodes multiply by weights, by what must be divided alike, and what blocks each.

    Where a node sums over an axis, its partial sums are taken for divided (`shard` with the mode `sum`).
    """
    model = load(model)
    found = AxisAnalysis(model, model.once(operations_of), contracts=True).found(with_blocked=with_blocked)
    return tuple(one for one in found if with_blocked or not one.blockers)


@dataclass(eq=False)
class AxisAnalysis:
    """The axis classes of a model with these operations.

    Contracted factors belong to classes if it `contracts`; else what they read is needed whole there. The outputs of
    `detached` nodes are joined at once, so that their classes don't depend on readers.
    """

    model: Model
    operations: Sequence[Operation]
    contracts: bool
    detached: AbstractSet[int] = frozenset()

    def __post_init__(self) -> None:
        constants = constants_in(self.model.proto).items()
        self._constants = {name: tensor_of_initializer(value).dtype for name, value in constants}
        self._kinds: dict[Hashable, _Kind] = {}
        self._numbers: dict[_Axis, int] = {}  # of the axes that factors have
        self._parent: list[int] = []
        self._members: list[_Member] = []
        self._blocked: dict[_Axis, Blocker] = {}
        self._opaque: dict[str, Blocker] = {}
        for node, operation in enumerate(self.operations):
            self._add(node, operation)
        self._axes = tuple(self._numbers)
        self._common = cache(_common)

    @cached_property
    def classes(self) -> tuple[AxisClass, ...]:
        """The classes."""
        return tuple(self.found())

    def _add(self, node: int, operation: Operation) -> None:
        graph_node = self.model.graph.nodes[node]
        uses = [self.use(node, slot, tensor) for slot, tensor in enumerate(operation.inputs)]
        uses += [self.written(node, tensor) for tensor in operation.outputs]
        kind, divided = self._kind(operation, is_stateful=graph_node.is_stateful), set[_Axis]()
        for factor, places in kind.factors:
            own = [(uses[i], place.axis) for i, place in places]
            divided.update(own)
            if self.contracts or not factor.is_contracted:
                axes = [*map(self._number, own)]
                for other in axes[1:]:
                    self._parent[self._root(other)] = self._root(axes[0])
                pairs = zip(axes, (place for _, place in places), strict=True)
                self._members.append(_Member(node, factor, [*pairs]))
        if operation.op == "Shape":
            return
        blocker = Blocker(node, graph_node.op)
        for i, axis in kind.whole:
            if (uses[i], axis) not in divided:  # it may be read twice
                self._blocked.setdefault((uses[i], axis), blocker)
        for i in kind.opaque:
            self._opaque.setdefault(uses[i].tensor, blocker)
        inner = () if operation.op else {*graph_node.reads, *graph_node.weights, *graph_node.constants}
        for tensor in inner:  # a subgraph may read it
            self._opaque.setdefault(tensor, blocker)

    def _kind(self, operation: Operation, *, is_stateful: bool) -> _Kind:
        key = is_stateful, described(operation)
        if key not in self._kinds:
            count, shapes = len(operation.inputs), (*operation.reads, *operation.writes)
            factors = [
                (factor, [*((p.slot, p) for p in factor.reads), *((count + p.slot, p) for p in factor.writes)])
                for factor in (() if is_stateful else factors_of(operation))
            ]
            divided = {(i, place.axis) for _, places in factors for i, place in places}
            dims = ((i, axis) for i, shape in enumerate(shapes) for axis, dim in enumerate(shape or ()) if fixed(dim))
            opaque = [i for i, shape in enumerate(shapes) if shape is None]
            self._kinds[key] = _Kind(factors, [one for one in dims if one not in divided], opaque)
        return self._kinds[key]

    def use(self, node: int, slot: int, tensor: str) -> Use:
        """What a node reads."""
        return Use(tensor, node, slot) if tensor in self._constants else Use(tensor)

    def written(self, node: int, tensor: str) -> Use:
        """What a node writes."""
        return Use(tensor, node) if node in self.detached else Use(tensor)

    def _number(self, axis: _Axis) -> int:
        number = self._numbers.setdefault(axis, len(self._parent))
        if number == len(self._parent):
            self._parent.append(number)
        return number

    def _root(self, number: int) -> int:
        while (parent := self._parent[number]) != number:
            self._parent[number] = self._parent[parent]
            number = parent
        return number

    def found(self, *, with_blocked: bool = True) -> Iterator[AxisClass]:
        """The classes, without most of the blocked ones if these are not asked for."""
        members = grouped((self._root(member.axes[0][0]), member) for member in self._members)
        blocked = ((self._numbers[axis], blocker) for axis, blocker in self._blocked.items() if axis in self._numbers)
        blockers = grouped((self._root(number), blocker) for number, blocker in blocked)
        for root, found in members.items():
            products = tuple(dict.fromkeys(m.node for m in found if self._is_product(m)))
            if products:
                stopping = [*blockers.get(root, []), *self._conflicts(found)]
                if with_blocked or not stopping:
                    yield self._class(found, products, stopping)

    def _is_product(self, member: _Member) -> bool:
        """Whether it divides a constant that the node multiplies by."""
        operation, constant = self.operations[member.node], self.model.graph.nodes[member.node]
        if operation.op not in PRODUCTS:
            return False
        names = {*constant.weights, *constant.constants}
        slots = [place.slot for place in member.factor.reads if len(operation.reads[place.slot] or ()) > 1]
        return any(operation.inputs[slot] in names for slot in slots)

    def _class(self, members: list[_Member], products: tuple[int, ...], blockers: list[Blocker]) -> AxisClass:
        index = dict[int, int]()
        places = tuple(
            (m.factor.units, tuple((index.setdefault(number, len(index)), place) for number, place in m.axes))
            for m in members
        )
        axes = [self._axes[number] for number in index]
        segments, units = self._common(tuple(self._size(*axis) for axis in axes), places)
        layouts = dict(zip(axes, segments, strict=False))
        units = gcd(units, *self._whole_bytes(layouts))
        uses = {use: Layout(axis, own) for (use, axis), own in layouts.items()}
        if units < 2 and not blockers:
            blockers = [Blocker(members[0].node, "one unit")]
        return AxisClass(
            units=units,
            layouts=uses,
            factors={member.node: member.factor for member in members},
            products=products,
            weights=tuple(dict.fromkeys(use.tensor for use in uses if use.tensor in self.model.graph.weights)),
            blockers=tuple(dict.fromkeys(blockers)),
        )

    def _conflicts(self, members: Iterable[_Member]) -> Iterator[Blocker]:
        """Nodes and tensors with two axes in the class, and tensors that a subgraph reads or whose rank is unknown."""
        nodes: set[int] = set()
        axes: dict[Use, int] = {}
        for member in members:
            if member.node in nodes:
                yield Blocker(member.node, "two axes of one node")
            nodes.add(member.node)
            for use, axis in (self._axes[number] for number, _ in member.axes):
                if axes.setdefault(use, axis) != axis:
                    yield Blocker(member.node, f"two axes of {use.tensor!r}")
                if use.tensor in self._opaque:
                    yield self._opaque[use.tensor]

    def _size(self, use: Use, axis: int) -> int:
        tensor = self.operations[0].tensors.get(use.tensor)  # all operations have the same
        return fixed(tensor.shape[axis]) if tensor is not None and tensor.shape else 0

    def _whole_bytes(self, layouts: Mapping[_Axis, tuple[int, ...]]) -> Iterator[int]:
        """For constants of less than 8 bits an element: how many pieces of whole bytes their segments are."""
        for (use, axis), segments in layouts.items():
            bits = BITS.get(self._constants.get(use.tensor, ""), 8)
            if bits < 8:
                inner = prod(fixed(dim) or 1 for dim in (self.operations[use.node].read(use.slot) or ())[axis + 1 :])
                yield from (size * inner * bits // 8 if size * inner * bits % 8 == 0 else 1 for size in segments)


def _common(sizes: tuple[int, ...], places: tuple[tuple[int, _Placed], ...]) -> tuple[Sequence[tuple[int, ...]], int]:
    """The segments of axes of these sizes, and how many units they consist of; without segments 1.

    `places` are the units of each factor, and its places by the axes that they are.
    """
    found = common_layouts(dict(enumerate(sizes)), [axes for _, axes in places]) if all(sizes) else None
    if not found:
        return (), 1
    pieces = (_units(found[axis], place, units) for units, axes in places for axis, place in axes)
    return [*found.values()], gcd(*pieces)


def _units(segments: Sequence[int], place: Place, units: int) -> int:
    """How many equal runs each of `segments` can be divided into for a factor with `units`, whose items stay whole."""
    found, own = 0, place.segments or (sum(segments),)
    ends = [*accumulate(own)]
    for size, end in zip(segments, accumulate(segments), strict=True):
        whole = own[bisect_left(ends, end)]
        # Elements of segments with labels are only moved, so each may go anywhere.
        item = 1 if place.labels else whole // units
        if (item * units < whole and not place.labels) or size % item:
            return 1
        found = gcd(found, size // item)
    return found
