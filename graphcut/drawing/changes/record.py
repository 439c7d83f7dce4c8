"""What can change between two divisions of a model, as frozen records."""

from typing import Literal

import msgspec

from ..scene import BoundaryTensor, BoundaryTotals, Card

ChangeKind = Literal["stays", "came", "went"]  #: there before and after; only after; only before.


class ChangeSide(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one division."""

    parts: int  #: number of parts.
    largest: int  #: index of the largest part.
    largest_bytes: int  #: how large it is.
    measure: str  #: what that counts, such as `weights and graph`; `needs` if it is everything.
    over: int  #: number of parts over their budgets.
    slowest: int | None  #: index of the slowest part; None if times are unknown.
    slowest_s: float | None  #: its time.
    balance: float  #: the largest load divided by the mean load; 1 if all are equal.
    sent: BoundaryTotals  #: the boundary tensors, each counted once.
    sequential: int  #: number of (tensor, reader) pairs from a part to the next (SDM).
    residual: int  #: number of (tensor, reader) pairs that skip a part (RDM).
    busiest: BoundaryTotals  #: the boundary with most bytes; a lower bound if any size is unknown. 0 for one part.
    dims: dict[str, str]  #: the numbers that sizes were evaluated for.


class PartPair(msgspec.Struct, frozen=True):
    """A part before and after. A part is matched with the one it shares most nodes with."""

    old: int | None  #: its index before; None for a new part.
    new: int | None  #: its index after; None for a part that is gone.
    before: Card | None  #: what it was.
    after: Card | None  #: what it is.


class NodeMove(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one part before that are in one part after."""

    old: int  #: index of their part before.
    new: int  #: index of their part after.
    nodes: tuple[str, ...]  #: their names, in topological order.
    content: str  #: their modules; empty if unknown.
    weight_bytes: int  #: the weights that they are the first to read.
    stays: bool  #: whether the two parts are matched, even if the index changed.


class CutChange(msgspec.Struct, frozen=True):
    """A boundary. It stays if the same nodes are before it."""

    node: str  #: the last node before it.
    kind: ChangeKind  #: whether it is there before, after or both.
    bytes: int  #: what crosses there; if it stays, after the change.
    is_exact: bool  #: whether all sizes are known; otherwise `bytes` is a lower bound.


class TensorChange(msgspec.Struct, frozen=True):
    """A tensor that crosses a boundary before or after."""

    tensor: str  #: its name.
    kind: ChangeKind  #: whether it crosses before, after or both.
    before: BoundaryTensor | None  #: how it crossed; None if it did not.
    after: BoundaryTensor | None  #: how it crosses; None if it does not.


class TextChange(msgspec.Struct, frozen=True):
    """A detail that differs, such as the goal, or sentences of one kind that only one side has."""

    what: str  #: its name.
    before: tuple[str, ...] = ()  #: those of the first side.
    after: tuple[str, ...] = ()  #: those of the second.


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="graphcut.changes/1"):
    """What changed between two divisions of one model."""

    model: str  #: the name of the model.
    sentence: str  #: the result in one sentence.
    before: ChangeSide  #: the numbers of the first division.
    after: ChangeSide  #: the numbers of the second.
    parts: tuple[PartPair, ...]  #: the parts of the second, then those that are gone.
    nodes: tuple[NodeMove, ...] | None  #: which nodes are where; None if unknown.
    cuts: tuple[CutChange, ...] | None  #: the boundaries, in topological order; None if unknown.
    tensors: tuple[TensorChange, ...]  #: the boundary tensors: those of the first, then the new ones.
    #: what else differs. Details of a plan are compared only if both sides have a plan.
    details: tuple[TextChange, ...] = ()
    recomputed: TextChange = TextChange("recomputed")  #: sentences about recomputation that differ.
    notes: tuple[str, ...] = ()  #: what else a reader should know, one sentence each.
