"""What can have changed between two divisions of a model, as frozen records; and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..scene import Card, Lane

ProductKind = Literal["stays", "came", "went"]


@dataclass(frozen=True, slots=True)
class ChangeSide:
    """One of the two divisions, in figures.

    Attributes:
        parts: how many there are.
        largest: the place of the part that needs most.
        largest_bytes: what it needs.
        over: how many parts need more than they may.
        slowest: the place of the part that keeps its device busy longest; None where times are not known.
        slowest_s: seconds that it does.
        balance: the largest load over the mean of all; 1 where all carry the same.
        sent_bytes: what crosses in one run, each tensor once.
        sent_exact: that is all; else it is "at least".
        tensors: how many tensors cross.
        sequential: links from a part to the next (the SDM): one for each tensor and reader.
        residual: links that pass over a part (the RDM), counted alike.
        most_bytes: what is alive at the busiest boundary; 0 where there is one part.
        most_exact: that is all; else it is "at least".
        dims: the numbers that sizes are for.
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
    dims: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartPair:
    """A part before and after. A part is the one before with which it has most nodes in common.

    Attributes:
        old: its place before; None where it is new.
        new: its place after; None where it is gone.
        before: what it was.
        after: what it is.
    """

    old: int | None
    new: int | None
    before: Card | None
    after: Card | None


@dataclass(frozen=True, slots=True)
class Flow:
    """The nodes that stood in one part before, and stand in one part after.

    Attributes:
        old: the place of the part that was their home.
        new: the place of the part that is.
        nodes: their names, in the order they run.
        content: what they are, in a few words; empty where nothing tells.
        weight_bytes: the weights that they read first.
        stays: the part that they are in is the one they were in, though its place may be another.
    """

    old: int
    new: int
    nodes: tuple[str, ...]
    content: str
    weight_bytes: int
    stays: bool


@dataclass(frozen=True, slots=True)
class CutChange:
    """A boundary: the same one where the same nodes stand before it.

    Attributes:
        node: the last node before it.
        kind: whether it is there before and after, only after, or only before.
        bytes: what is alive there; after, where it stays.
        is_exact: that is all; else it is "at least".
    """

    node: str
    kind: ProductKind
    bytes: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor that crosses before or after.

    Attributes:
        tensor: its name.
        before: how it crossed; None where it did not.
        after: how it crosses; None where it does not.
    """

    tensor: str
    before: Lane | None
    after: Lane | None

    @property
    def kind(self) -> ProductKind:
        """Does it cross before and after, only after, or only before?"""
        return "came" if self.before is None else "went" if self.after is None else "stays"


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two divisions of one model.

    Attributes:
        title: the name of the model.
        sentence: the answer, in a sentence that a person can quote.
        before: the one, in figures.
        after: the other.
        pairs: the parts: those there are, then those that are gone.
        flows: which nodes went where; None where that is not known.
        cuts: the boundaries, along the nodes; None where they are not known.
        sent: the tensors that cross: those before, then those that came.
        details: what else differs, as a word and its values before and after; empty where nothing was said. A cascade
            whose plan is not known says nothing of a plan, and is not compared in that.
        recomputed: sentences on what parts compute instead of receiving it: those that no longer hold, and the new
            ones.
        notes: what a person should know besides, one sentence each.
    """

    title: str
    sentence: str
    before: ChangeSide
    after: ChangeSide
    pairs: tuple[PartPair, ...]
    flows: tuple[Flow, ...] | None
    cuts: tuple[CutChange, ...] | None
    sent: tuple[Sent, ...]
    details: tuple[tuple[str, str, str], ...] = ()
    recomputed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    notes: tuple[str, ...] = ()


def changes_record(changes: Changes) -> dict[str, Any]:
    """`graphcut.changes/1`: both sides in figures, parts, nodes that moved, cuts and tensors."""
    went, came = changes.recomputed
    return {
        "schema": "graphcut.changes/1",
        "model": changes.title,
        "sentence": changes.sentence,
        "before": asdict(changes.before),
        "after": asdict(changes.after),
        "parts": [
            {"before": _part(pair.old, pair.before), "after": _part(pair.new, pair.after)} for pair in changes.pairs
        ],
        "nodes": None if changes.flows is None else [asdict(flow) for flow in changes.flows],
        "cuts": None if changes.cuts is None else [asdict(cut) for cut in changes.cuts],
        "tensors": [
            {"tensor": sent.tensor, "kind": sent.kind, "before": _lane(sent.before), "after": _lane(sent.after)}
            for sent in changes.sent
        ],
        "details": [{"what": word, "before": before, "after": after} for word, before, after in changes.details],
        "recomputed": {"before": list(went), "after": list(came)},
        "notes": list(changes.notes),
    }


def _part(place: int | None, card: Card | None) -> dict[str, Any] | None:
    return None if card is None else {"place": place, **asdict(card)}


def _lane(lane: Lane | None) -> dict[str, Any] | None:
    if lane is None:
        return None
    return {"bytes": lane.bytes, "is_exact": lane.is_exact, "source": lane.source, "readers": list(lane.readers)}
