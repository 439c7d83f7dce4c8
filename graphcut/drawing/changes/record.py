"""What can change between two divisions of a model, as frozen records."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..scene import BoundaryTensor, Card

ChangeKind = Literal["stays", "came", "went"]
"""There before and after; only after; only before."""


class ChangeSide(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one division.

    Attributes:
        parts: number of parts.
        largest: index of the part with the largest need.
        largest_bytes: its need.
        over: number of parts over their budgets.
        slowest: index of the slowest part; None if times are unknown.
        slowest_s: its time.
        balance: the largest load divided by the mean load; 1 if all are equal.
        sent_bytes: bytes of the boundary tensors, each counted once.
        sent_exact: whether all sizes are known; otherwise `sent_bytes` is a lower bound.
        tensors: number of boundary tensors.
        sequential: number of (tensor, reader) pairs from a part to the next (SDM).
        residual: number of (tensor, reader) pairs that skip a part (RDM).
        most_bytes: bytes at the busiest boundary; 0 for one part.
        most_exact: whether all sizes are known; otherwise `most_bytes` is a lower bound.
        dims: the numbers that sizes were evaluated for.
    """

    parts: int
    largest: int
    largest_bytes: int
    over: int
    slowest: int | None
    slowest_s: float | None
    balance: float
    sent_bytes: int
    sent_exact: bool
    tensors: int
    sequential: int
    residual: int
    most_bytes: int
    most_exact: bool
    dims: dict[str, str]


class PartPair(msgspec.Struct, frozen=True):
    """A part before and after. A part is matched with the one it shares most nodes with.

    Attributes:
        old: its index before; None for a new part.
        new: its index after; None for a part that is gone.
        before: what it was.
        after: what it is.
    """

    old: int | None
    new: int | None
    before: Card | None
    after: Card | None


class NodeMove(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one part before that are in one part after.

    Attributes:
        old: index of their part before.
        new: index of their part after.
        nodes: their names, in topological order.
        content: their modules; empty if unknown.
        weight_bytes: the weights that they are the first to read.
        stays: whether the two parts are matched, even if the index changed.
    """

    old: int
    new: int
    nodes: tuple[str, ...]
    content: str
    weight_bytes: int
    stays: bool


class CutChange(msgspec.Struct, frozen=True):
    """A boundary. It stays if the same nodes are before it.

    Attributes:
        node: the last node before it.
        kind: whether it is there before, after or both.
        bytes: what crosses there; if it stays, after the change.
        is_exact: whether all sizes are known; otherwise `bytes` is a lower bound.
    """

    node: str
    kind: ChangeKind
    bytes: int
    is_exact: bool


class TensorChange(msgspec.Struct, frozen=True):
    """A tensor that crosses a boundary before or after.

    Attributes:
        tensor: its name.
        kind: whether it crosses before, after or both.
        before: how it crossed; None if it did not.
        after: how it crosses; None if it does not.
    """

    tensor: str
    kind: ChangeKind
    before: BoundaryTensor | None
    after: BoundaryTensor | None


class DetailChange(msgspec.Struct, frozen=True):
    """A detail that differs, such as the goal; a value is empty if that side does not have it."""

    what: str
    before: str
    after: str


class SentenceChange(msgspec.Struct, frozen=True):
    """Sentences that only one side has."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="graphcut.changes/1"):
    """What changed between two divisions of one model.

    Attributes:
        model: the name of the model.
        sentence: the result in one sentence.
        before: the numbers of the first division.
        after: the numbers of the second.
        parts: the parts of the second, then those that are gone.
        nodes: which nodes are where; None if unknown.
        cuts: the boundaries, in topological order; None if unknown.
        tensors: the boundary tensors: those of the first, then the new ones.
        details: what else differs. Details of a plan are compared only if both sides have a plan.
        recomputed: sentences about recomputation that differ.
        notes: what else a reader should know, one sentence each.
    """

    model: str
    sentence: str
    before: ChangeSide
    after: ChangeSide
    parts: tuple[PartPair, ...]
    nodes: tuple[NodeMove, ...] | None
    cuts: tuple[CutChange, ...] | None
    tensors: tuple[TensorChange, ...]
    details: tuple[DetailChange, ...] = ()
    recomputed: SentenceChange = SentenceChange()
    notes: tuple[str, ...] = ()
