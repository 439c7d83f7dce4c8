"""`divide`: which axis classes of a model are divided among ranks, and how many units each rank gets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from math import inf
from typing import Final, NamedTuple

from ...core.errors import UsageError
from ...core.product import Product
from ...costs.caches import find_caches
from ...costs.device_groups import RankMode
from ...loading.model import Model
from ...loading.operations import Operation, operations_of
from ...loading.slices import Runs
from .classes import AxisAnalysis, AxisClass, Blocker
from .factors import Factor
from .layouts import Layout
from .rules import PRODUCTS

_FULLEST: Final = 1.1  #: where a rank holds more than its share times this, classes with smaller units are tried.


@dataclass(frozen=True, eq=False)
class DividedClass:
    """An axis class, divided among ranks."""

    axes: AxisClass
    units: tuple[int, ...]  #: how many units each rank has; together those of the class.
    factors: Mapping[int, Factor]  #: the nodes that are divided along the class, each with its factor.

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have units."""
        return tuple(rank for rank, units in enumerate(self.units) if units)

    def sizes(self, layout: Layout, rank: int) -> list[int]:
        """The sizes of a rank's piece of each segment of an axis."""
        return layout.sizes(self.units[rank], self.axes.units)

    def runs(self, layout: Layout, rank: int) -> Runs:
        """The ranges of an axis that a rank has."""
        first = sum(self.units[:rank])
        return layout.runs(first, first + self.units[rank], self.axes.units)


class StageShares(NamedTuple):
    """Nodes that are divided by shares of their own."""

    nodes: AbstractSet[int]  #: flowing nodes, and constant nodes that no stage before has.
    shares: tuple[int, ...]  #: the share of each rank; 0 for those that have no part of the stage.


class Join(NamedTuple):
    """A tensor that is put together from the pieces of the ranks: an exchange between them."""

    tensor: str
    is_sum: bool  #: the pieces are added; else they are concatenated.
    divided: DividedClass  #: the class whose pieces they are.


@dataclass(frozen=True, repr=False)
class Division(Product):
    """A model's layers, divided among ranks."""

    model: Model  #: the model.
    operations: tuple[Operation, ...]  #: the operation of each node.
    mode: RankMode  #: how contracted axes are joined.
    shares: tuple[int, ...]  #: the share of each rank; 1 each where stages have shares of their own.
    classes: tuple[DividedClass, ...]  #: the classes that are divided, the one with most weights first.
    analysis: AxisAnalysis  #: the axis classes.
    state_pairs: tuple[tuple[str, str], ...]  #: the states of the model: inputs, and the outputs that become them.
    #: the nodes that multiply by a weight and are in no class that is divided, unless alone; each with the reason.
    alone: Mapping[int, Blocker]

    @cached_property
    def class_of(self) -> Mapping[int, DividedClass]:
        """The class that a node is divided along."""
        return {node: divided for divided in self.classes for node in divided.factors}

    def cut_slots(self, node: int) -> Sequence[int]:
        """The inputs of a node of which each rank reads a piece."""
        divided = self.class_of.get(node)
        return () if divided is None else tuple(dict.fromkeys(place.slot for place in divided.factors[node].reads))

    def divided_reads(self, node: int) -> Mapping[int, Layout]:
        """How each of these inputs is divided."""
        layouts, inputs = self.class_of[node].axes.layouts, self.operations[node].inputs
        return {slot: layouts[self.analysis.use(node, slot, inputs[slot])] for slot in self.cut_slots(node)}

    @cached_property
    def pieces(self) -> Mapping[str, tuple[DividedClass, Layout]]:
        """The tensors that ranks write in pieces: the class and the layout."""
        found = {}
        for node, divided in self.class_of.items():
            for place in divided.factors[node].writes:
                tensor = self.operations[node].outputs[place.slot]
                found[tensor] = divided, divided.axes.layouts[self.analysis.written(node, tensor)]
        return found

    @cached_property
    def _ways(self) -> Mapping[str, AbstractSet[tuple[DividedClass, Layout] | None]]:
        """In which pieces nodes read each tensor; None for whole. A Shape node can do with a piece."""
        found = defaultdict[str, set[tuple[DividedClass, Layout] | None]](set)
        for node, operation in enumerate(self.operations):
            divided = self.divided_reads(node) if node in self.class_of else {}
            inner = {*self.model.graph.nodes[node].reads, *self.model.graph.nodes[node].constants}
            for name in inner.difference(operation.inputs):
                found[name].add(None)  # a subgraph reads it
            for slot, name in enumerate(operation.inputs if operation.op != "Shape" else ()):
                found[name].add((self.class_of[node], divided[slot]) if slot in divided else None)
        return found

    @cached_property
    def read_whole(self) -> AbstractSet[str]:
        """The tensors in pieces that are put together: for a node or an output of the model, or to be cut otherwise."""
        outputs = set(self.model.graph.writes) - {present for _, present in self.states}
        return {name for name, piece in self.pieces.items() if name in outputs or self._ways.get(name, set()) - {piece}}

    @cached_property
    def states(self) -> tuple[tuple[str, str], ...]:
        """The states that stay inside their rank: an input, and the output that becomes it, divided alike."""
        read = ((pair, self.pieces.get(pair[1])) for pair in self.state_pairs if self.model.graph.readers.get(pair[0]))
        return tuple(pair for pair, piece in read if piece and self._ways.get(pair[0], set()) <= {piece})

    @cached_property
    def join_of(self) -> Mapping[str, Join]:
        """The join of each tensor that has one."""
        return {join.tensor: join for join in self.joins}

    @cached_property
    def joins(self) -> tuple[Join, ...]:
        """The exchanges of a run, in the order of the nodes."""
        found = list[Join]()
        for node in sorted(self.class_of):
            divided, written = self.class_of[node], filter(None, self.operations[node].outputs)
            is_sum = divided.factors[node].is_contracted
            found += [Join(tensor, is_sum, divided) for tensor in written if is_sum or tensor in self.read_whole]
        return tuple(found)

    @cached_property
    def received_bytes(self) -> tuple[int, bool]:
        """The bytes that a rank receives in a run, on average, if each rank holds all that it reads.

        The second value is False if the size of a tensor is unknown; then there are more bytes. Of a tensor that is
        concatenated a rank lacks the pieces of the others; of a sum it receives as many tensors as other ranks add.
        """
        sizes = [self.model.tensor_bytes[join.tensor] for join in self.joins]
        copies = [len(join.divided.ranks) if join.is_sum else 1 for join in self.joins]
        total = sum(size * times for (size, _), times in zip(sizes, copies, strict=True))
        return round(total * Fraction(len(self.shares) - 1, len(self.shares))), all(is_known for _, is_known in sizes)


def products_of(model: Model, operations: Sequence[Operation]) -> tuple[int, ...]:
    """The nodes that multiply by a weight: what sharding divides, where it can."""
    graph, known = model.graph, PRODUCTS | _WITHOUT_RULE
    return tuple(i for i in graph.flow if operations[i].op in known and graph.weights_of(i))


_WITHOUT_RULE = frozenset({"GRU", "LSTM", "RNN"})  #: operators that multiply by weights, but have no rule.


class Divider:
    """Divides a model by any number of shares. What does not depend on shares is found once."""

    def __init__(self, model: Model, mode: RankMode = "exact") -> None:
        self._model, self._mode, self._operations = model, mode, model.once(operations_of)
        self._states = tuple((one.past, one.present) for one in find_caches(model))
        #: the axis classes if the outputs of some nodes are detached.
        self._analysis = cache(partial(AxisAnalysis, model, self._operations, mode == "sum"))

    def divide(self, shares: Sequence[int], stages: Sequence[StageShares] = ()) -> Division:
        """Divide what can be divided among ranks.

        Of the classes that nothing blocks, those with most weights come first; a node is divided along one class only.
        Nodes that multiply by a weight and are in none of them are divided by themselves: their columns, which are
        joined at once. Each class gives a rank the whole number of units that is next to its share of `shares`, such as
        `(3, 1)`, or of those of the stages that multiply by its weights. A UsageError if there are fewer than two
        ranks, or a share is negative.
        """
        shares, model = tuple(shares), self._model
        if len(shares) < 2 or min(shares) < 0 or sum(share > 0 for share in shares) < 2:
            raise UsageError(f"the shares {':'.join(map(str, shares))} don't divide anything", hint="give two or more")
        stages = [stage for stage in stages if sum(map(bool, stage.shares)) > 1]
        stages = stages or [StageShares({*range(len(model.graph.nodes))}, shares)]
        found, balance = self._divided(shares, stages, inf)
        while balance.fullest > _FULLEST:
            finer, after = self._divided(shares, stages, balance.unit_bytes)
            if after.excess_bytes >= balance.excess_bytes or len(finer.states) < len(found.states):
                break
            found, balance = finer, after
        return found

    def _divided(
        self, shares: tuple[int, ...], stages: Sequence[StageShares], below: float
    ) -> tuple[Division, _Balance]:
        """The division along classes whose units take fewer bytes than `below`."""
        alone, model = dict[int, Blocker](), self._model
        for _ in range(2):
            analysis = self._analysis(frozenset(alone))
            chosen = [_choose(model, analysis.classes, stage, below) for stage in stages]
            classes = tuple(one for found, _ in chosen for one in found)
            if not alone:
                left = set().union(*(stage.nodes for stage in stages)).difference(*(one.factors for one in classes))
                products = products_of(model, self._operations)
                alone = _reasons(analysis.classes, [node for node in products if node in left])
        made = Division(model, self._operations, self._mode, shares, classes, analysis, self._states, alone)
        return made, max(balance for _, balance in chosen)


class _Balance(NamedTuple):
    """How evenly a stage is divided, if all of the model were divided like it."""

    fullest: float  #: the most that a rank holds, to its share of the divided weights and all others.
    excess_bytes: float  #: the most bytes that a rank holds beyond its share of all weights.
    unit_bytes: float  #: the bytes of the largest unit.


def _reasons(classes: Sequence[AxisClass], nodes: Iterable[int]) -> dict[int, Blocker]:
    """Why each of `nodes` is not divided with others."""
    found = {node: Blocker(node, "no rule for its weights, or too few columns") for node in nodes}
    for one in sorted(classes, key=lambda one: not one.blockers):  # a class that is free decides
        for node in found.keys() & set(one.products):
            found[node] = next(iter(one.blockers), Blocker(node, "too few units for these shares"))
    return found


def _choose(
    model: Model, classes: Iterable[AxisClass], stage: StageShares, below: float
) -> tuple[list[DividedClass], _Balance]:
    """The classes that are divided in a stage, as if all of the model were divided like it."""
    sizes = {name: weight.bytes for name, weight in model.graph.weights.items()}
    free = [one for one in classes if not one.blockers]

    @cache
    def is_divided(units: int, size: int) -> bool:
        return sum(map(bool, apportion(units, stage.shares, nothing, size)[0])) > 1

    nothing, taken = [Fraction(0)] * len(stage.shares), set[int]()
    chosen: list[tuple[int, AxisClass, dict[int, Factor]]] = []
    for found in sorted(free, key=lambda one: -sum(sizes[name] for name in one.weights)):
        factors = {node: factor for node, factor in found.factors.items() if node not in taken}
        cut = {use.tensor for use in found.layouts if use.node in factors}
        size = sum(sizes[name] for name in cut & sizes.keys())
        has_products = not factors.keys().isdisjoint(found.products)
        if has_products and size / found.units < below and is_divided(found.units, size):
            taken.update(factors)
            chosen.append((size, found, {node: factor for node, factor in factors.items() if node in stage.nodes}))
    # The largest units first: what rounding takes from a rank there, smaller ones give back.
    units, owed = dict[int, tuple[int, ...]](), nothing
    for i in sorted(range(len(chosen)), key=lambda i: -chosen[i][0] / chosen[i][1].units):
        size, found, _ = chosen[i]
        units[i], owed = apportion(found.units, stage.shares, owed, size, most=found.units - 1)
    divided = [DividedClass(one, units[i], own) for i, (_, one, own) in enumerate(chosen) if own.keys() & one.products]
    total = sum(size for size, *_ in chosen)
    common, all_shares = sum(sizes.values()) - total, sum(stage.shares)
    fair = [Fraction(share, all_shares) for share in stage.shares]
    room = [(total * part + common, debt) for part, debt in zip(fair, owed, strict=True)]
    return divided, _Balance(
        fullest=float(max((1 - debt / number for number, debt in room if number), default=1)),
        excess_bytes=float(max(common * (1 - part) - debt for part, debt in zip(fair, owed, strict=True))),
        unit_bytes=max((size / found.units for size, found, _ in chosen), default=0.0),
    )


def apportion(
    units: int, shares: Sequence[int], owed: Sequence[Fraction], size: int, *, most: int | None = None
) -> tuple[tuple[int, ...], list[Fraction]]:
    """Whole units for each rank by its share and what it is owed, and what each rank is owed after that.

    Of `units` units that together have `size` bytes a rank gets at most `most`, by default all. It is `owed` the bytes
    of weights that it should have had and has not.

    Example: three units for shares 2:1:1, then three more.

        >>> first, owed = apportion(3, (2, 1, 1), [Fraction(0)] * 3, 300)
        >>> first, [int(number) for number in owed]
        ((1, 1, 1), [50, -25, -25])
        >>> apportion(3, (2, 1, 1), owed, 300)[0]
        (2, 1, 0)
    """
    exact = [Fraction(units * share, sum(shares)) for share in shares]
    units_per_byte = Fraction(units, size) if size else Fraction(0)
    wanted = [max(Fraction(0), own + debt * units_per_byte) for own, debt in zip(exact, owed, strict=True)]
    most = units if most is None else most
    found = [min(most, int(number * units / sum(wanted))) for number in wanted]
    debts = [debt + size * (want - have) / units for debt, want, have in zip(owed, exact, found, strict=True)]
    for _ in range(units - sum(found)):
        rank = max((r for r, share in enumerate(shares) if share and found[r] < most), key=lambda r: debts[r])
        found[rank] += 1
        debts[rank] -= Fraction(size, units)
    return tuple(found), debts
