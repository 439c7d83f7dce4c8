"""Axis classes: axes of tensors that must be divided alike, found by union-find over the factors of all nodes."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import gcd, prod
from typing import Final, NamedTuple

from ...core.graph import grouped
from ...core.tensors import BITS
from ...loading.model import Model
from ...loading.opening import ModelLike, load
from ...loading.operations import Operation, operations_of
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
_Alike = tuple[Sequence[Factor], Sequence[tuple[int, int]]]
"""What nodes of repeated layers have in common: factors, and axes of fixed sizes; outputs are counted after inputs."""


class _Member(NamedTuple):
    """A factor of a node in a class."""

    node: int
    factor: Factor
    axes: Sequence[tuple[_Axis, Place]]


def axis_classes(model: ModelLike, *, with_blocked: bool = True) -> tuple[AxisClass, ...]:
    """The axes along which nodes multiply by weights, by what must be divided alike, and what blocks each.

    Without `with_blocked` most of the blocked ones are left out. Where a node sums over an axis, its partial sums are
    taken for divided (`shard` with the mode `sum`).
    """
    model = load(model)
    return AxisAnalysis(model, model.once(operations_of), contracts=True, with_blocked=with_blocked).classes


@dataclass(eq=False)
class AxisAnalysis:
    """The axis classes of a model with these operations.

    Contracted factors belong to classes if it `contracts`; else what they read is needed whole there. The outputs of
    `detached` nodes are joined at once, so that their classes don't depend on readers. Without
    `with_blocked` most of the blocked classes are left out, whose layouts take longest.
    """

    model: Model
    operations: Sequence[Operation]
    contracts: bool
    detached: AbstractSet[int] = frozenset()
    with_blocked: bool = True

    def __post_init__(self) -> None:
        # All operations have the same tensors and the same constants, those of the model.
        self._constants = {name: one.tensors[name].dtype for one in self.operations[:1] for name in one.constants}
        self._known: dict[Hashable, _Alike] = {}
        self._parent: dict[_Axis, _Axis] = {}
        self._members: list[_Member] = []
        self._blocked: dict[_Axis, Blocker] = {}
        for node, operation in enumerate(self.operations):
            self._add(node, operation)
        self._common = cache(_common)
        self.classes = tuple(self._classes())

    def _add(self, node: int, operation: Operation) -> None:
        graph_node, (factors, fixed_axes) = self.model.graph.nodes[node], self._alike(node, operation)
        reads = [self.use(node, slot, tensor) for slot, tensor in enumerate(operation.inputs)]
        writes = [self.written(node, tensor) for tensor in operation.outputs]
        divided: set[_Axis] = set()
        for factor in factors:
            axes = [((reads[place.slot], place.axis), place) for place in factor.reads]
            axes += [((writes[place.slot], place.axis), place) for place in factor.writes]
            divided.update(axis for axis, _ in axes)
            if self.contracts or not factor.is_contracted:
                self._members.append(_Member(node, factor, axes))
                root = self._root(axes[0][0])
                for joined, _ in axes[1:]:
                    self._parent[self._root(joined)] = root
        if operation.op == "Shape":
            return
        blocker, uses = Blocker(node, graph_node.op), (*reads, *writes)
        for i, axis in fixed_axes:
            if (uses[i], axis) not in divided:
                self._blocked.setdefault((uses[i], axis), blocker)
        inner = map(operation.tensors.get, {*graph_node.reads}.difference(operation.inputs))
        for tensor in filter(None, inner):  # a subgraph reads it
            for axis in range(len(tensor.shape or ())):
                self._blocked.setdefault((Use(tensor.name), axis), blocker)

    def _alike(self, node: int, operation: Operation) -> _Alike:
        key = described(operation), self.model.graph.nodes[node].is_stateful
        if key not in self._known:
            factors, shapes = () if key[1] else factors_of(operation), (*operation.reads, *operation.writes)
            axes = [(i, axis) for i, shape in enumerate(shapes) for axis, dim in enumerate(shape or ()) if fixed(dim)]
            self._known[key] = factors, axes
        return self._known[key]

    def use(self, node: int, slot: int, tensor: str) -> Use:
        """What a node reads."""
        return Use(tensor, node, slot) if tensor in self._constants else Use(tensor)

    def written(self, node: int, tensor: str) -> Use:
        """What a node writes."""
        return Use(tensor, node) if node in self.detached else Use(tensor)

    def _root(self, axis: _Axis) -> _Axis:
        while (parent := self._parent.setdefault(axis, axis)) != axis:
            self._parent[axis] = self._parent[parent]
            axis = parent
        return axis

    def _classes(self) -> Iterator[AxisClass]:
        members = grouped((self._root(member.axes[0][0]), member) for member in self._members)
        blockers = grouped((self._root(axis), blocker) for axis, blocker in self._blocked.items())
        for root, found in members.items():
            multiplying = (m for m in found if self.operations[m.node].op in PRODUCTS)
            products = tuple(dict.fromkeys(m.node for m in multiplying if self._is_product(m)))
            if products:
                stopping = [*blockers.get(root, []), *self._conflicts(found)]
                if self.with_blocked or not stopping:
                    yield self._class(found, products, stopping)

    def _is_product(self, member: _Member) -> bool:
        """Whether it divides a constant that the node multiplies by."""
        operation, constant = self.operations[member.node], self.model.graph.nodes[member.node]
        names = {*constant.weights, *constant.constants}
        slots = [place.slot for place in member.factor.reads if len(operation.reads[place.slot] or ()) > 1]
        return any(operation.inputs[slot] in names for slot in slots)

    def _class(self, members: list[_Member], products: tuple[int, ...], blockers: list[Blocker]) -> AxisClass:
        index = dict[_Axis, int]()
        places = tuple(
            (m.factor.units, tuple((index.setdefault(axis, len(index)), place) for axis, place in m.axes))
            for m in members
        )
        segments, units = self._common(tuple(self._size(*axis) for axis in index), places)
        layouts = dict(zip(index, segments, strict=False))
        units = gcd(units, *self._whole_bytes(layouts))
        uses = {use: Layout(axis, segments) for (use, axis), segments in layouts.items()}
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
        """Nodes and tensors with two axes in the class."""
        nodes: set[int] = set()
        axes: dict[Use, int] = {}
        for member in members:
            if member.node in nodes:
                yield Blocker(member.node, "two axes of one node")
            nodes.add(member.node)
            for (use, axis), _ in member.axes:
                if axes.setdefault(use, axis) != axis:
                    yield Blocker(member.node, f"two axes of {use.tensor!r}")

    def _size(self, use: Use, axis: int) -> int:
        return fixed((self.operations[0].tensors[use.tensor].shape or ())[axis])  # all operations have the same

    def _whole_bytes(self, layouts: Mapping[_Axis, tuple[int, ...]]) -> Iterator[int]:
        """For constants of less than 8 bits an element: how many pieces of whole bytes their segments are."""
        for (use, axis), segments in layouts.items():
            bits = BITS.get(self._constants.get(use.tensor, ""), 8)
            if bits < 8:
                inner = prod(fixed(dim) or 1 for dim in (self.operations[use.node].read(use.slot) or ())[axis + 1 :])
                yield from (size * inner * bits // 8 if size * inner * bits % 8 == 0 else 1 for size in segments)


def _common(
    sizes: tuple[int, ...], places: Sequence[tuple[int, Sequence[tuple[int, Place]]]]
) -> tuple[list[tuple[int, ...]], int]:
    """The segments of axes of these sizes, and how many units they consist of; without segments 1.

    `places` are the units of each factor, and its places by the axes that they are. Repeated layers have the same.
    """
    found = common_layouts(dict(enumerate(sizes)), [axes for _, axes in places]) if all(sizes) else None
    pieces = (_units(found[axis], place, units) for units, axes in places for axis, place in axes if found)
    return [*(found or {}).values()], gcd(*pieces) or 1


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
