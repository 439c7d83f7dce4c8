"""Who hands which tensor to whom.

One idea serves at every scale: *units* stand in an order, each reads some tensors and writes some tensors, and
`wire` finds the links. The units are nodes or blocks of nodes while we plan, and part files once we have cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import msgspec

from .errors import GraphcutError
from .product import Product

Dim = int | str | None
"""A size: known (`3`), named (`"batch"`), or unknown (`None`)."""

BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("int2", "uint2"), 2),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    **dict.fromkeys(("bool", "int8", "uint8"), 8),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), 8),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("int32", "uint32", "float32"), 32),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 64),
    "complex128": 128,
}
"""Bits an element takes; types below 8 bits are packed (ONNX IR spec, TensorProto). Strings have no fixed size."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a tensor without its values.

    Attributes:
        name: its name in the model; kept unchanged in every part.
        dtype: numpy's word for the element type, such as `"float32"`; for what is not a plain tensor the whole type,
            such as `"sequence(float32)"` or `"map(string, float32)"`.
        shape: one `Dim` an axis; `None` when even the rank is unknown. `()` is a scalar.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def is_plain(self) -> bool:
        """Is it a tensor, and not a sequence, a map or an optional?"""
        return "(" not in self.dtype

    def bytes_for(self, dims: Mapping[str, int]) -> tuple[int, bool]:
        """Its bytes once `dims` are put in for its symbols, and whether that is all.

        A size without a number counts as one: then the bytes are a lower bound, and the second value is False.
        """
        bits = BITS.get(self.dtype)
        if bits is None or self.shape is None:
            return 0, False
        elements, is_exact = 1, True
        for dim in self.shape:
            known = dims.get(dim) if isinstance(dim, str) else dim
            is_exact = is_exact and known is not None
            elements *= 1 if known is None else known
        return (elements * bits + 7) // 8, is_exact

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[…]"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


class Unit(Protocol):
    """Anything that reads tensors and writes tensors."""

    @property
    def reads(self) -> Sequence[str]:
        """Names of the tensors it reads."""

    @property
    def writes(self) -> Sequence[str]:
        """Names of the tensors it writes."""


@dataclass(frozen=True, slots=True)
class TensorEdge:
    """One tensor, handed from one unit to another.

    Attributes:
        tensor: its name.
        source: place of the unit that writes it; `None` for an input of the model.
        target: place of the unit that reads it; `None` for an output of the model.
    """

    tensor: str
    source: int | None
    target: int | None


DependencyMap = Mapping[int, Mapping[int, tuple[str, ...]]]
"""`map[source][target]` is the tensors that unit `source` hands to unit `target`."""


@dataclass(frozen=True, repr=False)
class Wiring(Product):
    """All links of an ordered row of units, in the order of their readers."""

    edges: tuple[TensorEdge, ...]

    @cached_property
    def sequential(self) -> DependencyMap:
        """The Sequential Dependency Map: links from a unit to the next one (LinguaLinked, ACL 2024, section 3)."""
        return self._where(lambda step: step == 1)

    @cached_property
    def residual(self) -> DependencyMap:
        """The Residual Dependency Map: links that pass over one unit or more (LinguaLinked, ACL 2024, section 3)."""
        return self._where(lambda step: step > 1)

    @cached_property
    def boundary_tensors(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        """Each tensor that one unit hands to another: who writes it, and all who read it."""
        found: dict[str, tuple[int, tuple[int, ...]]] = {}
        for link in self.edges:
            if link.source is not None and link.target is not None:
                _, readers = found.get(link.tensor, (link.source, ()))
                found[link.tensor] = (link.source, (*readers, link.target))
        return found

    def _where(self, wanted: Callable[[int], bool]) -> DependencyMap:
        found: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
        for link in self.edges:
            if link.source is not None and link.target is not None and wanted(link.target - link.source):
                row = found[link.source]
                row[link.target] = (*row.get(link.target, ()), link.tensor)
        return dict(found)


def wire(units: Sequence[Unit], *, reads: Iterable[str], writes: Iterable[str]) -> Wiring:
    """Find every link between `units`, which stand in the order they run.

    Args:
        units: the units, first to run first.
        reads: tensors that come from outside (the model's inputs).
        writes: tensors that are wanted outside (the model's outputs).

    Raises:
        GraphcutError: a tensor is read before it is written, or is written twice. These are the two ways in which an
            order can be wrong. (A unit may write an input that it reads itself: it hands it on, or its default.)
    """
    writer: dict[str, int | None] = dict.fromkeys(reads)
    links: dict[TensorEdge, None] = {}
    for place, unit in enumerate(units):
        for tensor in unit.reads:
            if tensor not in writer:
                raise GraphcutError(f"part {place} reads {tensor!r} before any part writes it")
            links[TensorEdge(tensor, writer[tensor], place)] = None
        for tensor in unit.writes:
            if tensor in writer and (tensor not in unit.reads or writer[tensor] is not None):
                raise GraphcutError(f"part {place} writes {tensor!r}, which stands already")
            writer[tensor] = place
    for tensor in writes:
        if tensor not in writer:
            raise GraphcutError(f"no part writes {tensor!r}, which the model gives out")
        links[TensorEdge(tensor, writer[tensor], None)] = None
    return Wiring(tuple(links))
