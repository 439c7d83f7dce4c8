"""Tensor edges between units: which unit reads the tensors that another writes.

A unit is anything that reads and writes tensors by name: a node, a block of nodes, or a part of a cascade. Units are
in the order in which they run.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from .errors import GraphcutError, check_names
from .product import Product

#: over Ray, a tensor of at most this size travels in the messages from and to the driver, which is faster than Ray's
#: object store; a larger one goes straight from the machine that made it. Plans and simulations count it so.
MESSAGE_BYTES: Final = 100_000


class Unit(Protocol):
    """Anything that reads and writes tensors."""

    @property
    def reads(self) -> Sequence[str]:
        """Names of the tensors it reads."""

    @property
    def writes(self) -> Sequence[str]:
        """Names of the tensors it writes."""


@dataclass(frozen=True, slots=True)
class TensorEdge:
    """A tensor that one unit writes and another reads."""

    tensor: str  #: its name.
    source: int | None  #: index of the unit that writes it; None for an input of the model.
    target: int | None  #: index of the unit that reads it; None for an output of the model.


DependencyMap = Mapping[int, Mapping[int, tuple[str, ...]]]
"""`map[source][target]` is the tensors that unit `source` writes and unit `target` reads."""


@dataclass(frozen=True, repr=False)
class Wiring(Product):
    """The tensor edges between units, sorted by the unit that reads."""

    edges: tuple[TensorEdge, ...]

    @cached_property
    def sequential(self) -> DependencyMap:
        """Sequential Dependency Map: edges from a unit to the next (LinguaLinked, ACL 2024, section 3)."""
        return self._dependencies(lambda distance: distance == 1)

    @cached_property
    def residual(self) -> DependencyMap:
        """Residual Dependency Map: edges that skip at least one unit (LinguaLinked, ACL 2024, section 3)."""
        return self._dependencies(lambda distance: distance > 1)

    @cached_property
    def boundary_tensors(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        """The tensors that one unit writes and others read: the index of the writer, and those of the readers."""
        found: dict[str, tuple[int, tuple[int, ...]]] = {}
        for edge in self.edges:
            if edge.source is not None and edge.target is not None:
                _, readers = found.get(edge.tensor, (edge.source, ()))
                found[edge.tensor] = (edge.source, (*readers, edge.target))
        return found

    def depths(self, units: int) -> list[int]:
        """For each of so many units the number of tensor edges on the longest path to it."""
        found = [0] * units
        for source, readers in sorted(self.boundary_tensors.values()):
            for reader in readers:
                found[reader] = max(found[reader], found[source] + 1)
        return found

    def _dependencies(self, is_wanted: Callable[[int], bool]) -> DependencyMap:
        found: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
        for edge in self.edges:
            if edge.source is not None and edge.target is not None and is_wanted(edge.target - edge.source):
                targets = found[edge.source]
                targets[edge.target] = (*targets.get(edge.target, ()), edge.tensor)
        return dict(found)


def wire(units: Sequence[Unit], *, reads: Iterable[str], writes: Iterable[str], kind: str = "unit") -> Wiring:
    """The tensor edges between `units`, which are in the order in which they run.

    `reads` and `writes` are the model's inputs and outputs; `kind` is what a unit is, for messages. A GraphcutError if
    a tensor is read before it is written, or written twice. (A unit may write an input of the model that it reads
    itself, so that the input or its default becomes an output.)
    """
    writer: dict[str, int | None] = dict.fromkeys(reads)
    edges: dict[TensorEdge, None] = {}
    for index, unit in enumerate(units):
        for tensor in unit.reads:
            if tensor not in writer:
                raise GraphcutError(f"{kind} {index} reads {tensor!r} before any {kind} writes it")
            edges[TensorEdge(tensor, writer[tensor], index)] = None
        for tensor in unit.writes:
            if tensor in writer and (tensor not in unit.reads or writer[tensor] is not None):
                raise GraphcutError(f"{kind} {index} writes {tensor!r}, which is already written")
            writer[tensor] = index
    for tensor in writes:
        if tensor not in writer:
            raise GraphcutError(f"no {kind} writes {tensor!r}, an output of the model")
        edges[TensorEdge(tensor, writer[tensor], None)] = None
    return Wiring(tuple(edges))


def asked_for(outputs: Sequence[str], names: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs of a model that are asked for: those called `names`, or all. A UsageError if one is not there."""
    check_names(names or (), outputs, "the model has no output", "its outputs are")
    return tuple(name for name in outputs if names is None or name in names)


def run_phases(
    units: Sequence[Unit], stepwise: Iterable[str], presents: Iterable[str], *, has_end: bool
) -> tuple[int, ...]:
    """For each unit of a pipeline of models when it runs: 0 once, 1 at each step, 2 after the last one.

    What nothing leads to that is fed at each step (`stepwise`) runs once. If the steps have an end, what leads to no
    state that a step leaves to the next one (`presents`) comes after it.
    """
    changing, wanted, found = {*stepwise}, {*presents}, list[int]()
    for unit in units:
        found.append(int(not changing.isdisjoint(unit.reads)))
        changing.update(unit.writes if found[-1] else ())
    for i in reversed(range(len(found) if has_end else 0)):
        if not wanted.isdisjoint(units[i].writes):
            wanted.update(units[i].reads)
        elif found[i]:
            found[i] = 2
    return tuple(found)
