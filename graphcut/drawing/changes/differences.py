"""The changes between two scenes of one model."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from msgspec.structs import replace

from ...core.errors import UsageError
from ...core.graph import grouped
from ...core.text import printable
from ..part_labels import ModuleUse, labels
from ..scene import BoundaryTotals, Card, CutProfile, Scene, totals_of
from ..sentences import dims_text
from .record import ChangeKind as Kind
from .record import Changes, ChangeSide, CutChange, NodeMove, PartPair, TensorChange, TextChange
from .summary import summary

_Overlap = Mapping[tuple[int, int], int]  #: for a part before and a part after: the number of their common nodes.
_LOADS: Final = ("busy_s", "flops", "need_bytes")


def changes_between(old: Scene, new: Scene) -> Changes:
    """What changed from `old` to `new`: two plans, two cascades, or a plan and a cascade, of one model.

    Which nodes moved is known only if both scenes have a profile; otherwise parts are matched by index, and cuts are
    not compared. Sizes are compared as they are: a note tells if they are for different dims.
    """
    _check_comparable(old, new)
    load = next(name for name in _LOADS if all(getattr(card, name) is not None for card in (*old.cards, *new.cards)))
    successors = {index: index for index in range(min(len(old.cards), len(new.cards)))}
    nodes, cuts = None, None
    if old.profile is not None and new.profile is not None:
        old_parts, new_parts = _parts(old.profile), _parts(new.profile)
        overlap = Counter((part, new_parts[node]) for node, part in old_parts.items())
        successors = _successors(overlap)
        nodes = tuple(_moves(old.profile, new_parts, successors))
        cuts = tuple(_cuts((old, old.profile), (new, new.profile), overlap))
    found = Changes(
        model=new.title,
        sentence="",
        before=_side(old, load),
        after=_side(new, load),
        parts=tuple(_pairs(old.cards, new.cards, successors)),
        nodes=nodes,
        cuts=cuts,
        tensors=tuple(_tensors(old, new)),
        details=tuple(_details(old, new)),
        recomputed=_recomputed(old, new),
        notes=tuple(_notes(old, new)),
    )
    return replace(found, sentence=summary(found))


def _check_comparable(old: Scene, new: Scene) -> None:
    for scene in (old, new):
        if not scene.cards:
            hint = "name two plans, two cascades, or a plan and a cascade"
            raise UsageError(f"{printable(scene.title)} is not cut: there are no parts to compare", hint=hint)
    if difference := _difference(old, new):
        raise UsageError(f"the models are different: {difference}", hint="compare plans and cascades of one model")


def _difference(old: Scene, new: Scene) -> str:
    """How their models differ; empty if they do not."""
    if old.profile is None or new.profile is None:
        return "" if old.title == new.title else f"one is {printable(old.title)}, the other is {printable(new.title)}"
    ops, new_ops = (dict(zip(profile.nodes, profile.ops, strict=True)) for profile in (old.profile, new.profile))
    for found, others, which in ((ops, new_ops, "first"), (new_ops, ops, "second")):
        if alone := [node for node, op in found.items() if others.get(node) != op]:
            return f"only the {which} has the node {printable(alone[0])!r} ({printable(found[alone[0]])})"
    weights, new_weights = (profile.weights[-1:] for profile in (old.profile, new.profile))
    return "" if weights == new_weights else "their nodes have the same names, but their weights have different sizes"


def _side(scene: Scene, load: str) -> ChangeSide:
    """The numbers of a division; `load` is the attribute of a card that is to be balanced."""
    cards, boundaries = scene.cards, scene.boundaries
    most = max(boundaries, key=lambda one: one.bytes, default=BoundaryTotals(bytes=0, is_exact=True, tensors=0))
    loads = [float(getattr(card, load)) for card in cards]
    largest = max(range(len(cards)), key=lambda i: cards[i].need_bytes)
    times = [card.busy_s for card in cards if card.busy_s is not None]
    slowest = times.index(max(times)) if len(times) == len(cards) else None
    distances = [reader - tensor.source for tensor in scene.tensors for reader in tensor.readers]
    return ChangeSide(
        parts=len(cards),
        largest=largest,
        largest_bytes=cards[largest].need_bytes,
        measure=cards[largest].measure,
        over=sum(card.is_over for card in cards),
        slowest=slowest,
        slowest_s=None if slowest is None else times[slowest],
        balance=max(loads) * len(loads) / sum(loads) if any(loads) else 1.0,
        sent=totals_of(scene.tensors),
        sequential=sum(distance == 1 for distance in distances),
        residual=sum(distance > 1 for distance in distances),
        busiest=BoundaryTotals(most.bytes, all(one.is_exact for one in boundaries), most.tensors),
        dims={name: str(number) for name, number in sorted(scene.dims.items())},
    )


# Nodes and cuts


def _parts(profile: CutProfile) -> dict[str, int]:
    """For each node the index of its part, in the order of the profile."""
    return dict(zip(profile.nodes, profile.parts or (0,) * len(profile.nodes), strict=True))


def _successors(overlap: _Overlap) -> dict[int, int]:
    """For each part before its match after: pairs with most common nodes first."""
    found: dict[int, int] = {}
    for (old, new), _ in sorted(overlap.items(), key=lambda item: (-item[1], abs(item[0][0] - item[0][1]), item[0])):
        if old not in found and new not in found.values():
            found[old] = new
    return found


def _moves(profile: CutProfile, new_parts: Mapping[str, int], successors: Mapping[int, int]) -> Iterable[NodeMove]:
    """The nodes of each pair of parts."""
    rows = grouped(((part, new_parts[node]), index) for index, (node, part) in enumerate(_parts(profile).items()))
    weights = [total - before for before, total in zip((0, *profile.weights), profile.weights, strict=False)]
    uses: list[list[ModuleUse]] = [[(profile.modules[i], weights[i]) for i in row] for row in rows.values()]
    for ((old, new), row), content in zip(rows.items(), labels(uses), strict=True):
        yield NodeMove(
            old=old,
            new=new,
            nodes=tuple(profile.nodes[i] for i in row),
            content=content,
            weight_bytes=sum(weights[i] for i in row),
            stays=successors.get(old) == new,
        )


def _cuts(old: tuple[Scene, CutProfile], new: tuple[Scene, CutProfile], overlap: _Overlap) -> Iterable[CutChange]:
    """The boundaries of both, in topological order."""
    kept = dict(_kept_boundaries(len(old[0].cards), overlap))
    found: list[tuple[int, CutChange]] = []
    for is_new, (scene, profile) in enumerate((old, new)):
        for boundary, total in enumerate(scene.boundaries):
            if is_new or boundary not in kept:
                nodes = bisect_right(profile.parts, boundary)
                kind: Kind = "went" if not is_new else "stays" if boundary in kept.values() else "came"
                found.append((nodes, CutChange(profile.nodes[nodes - 1], kind, total.bytes, total.is_exact)))
    return (cut for _, cut in sorted(found, key=itemgetter(0)))


def _kept_boundaries(parts: int, overlap: _Overlap) -> Iterable[tuple[int, int]]:
    """The boundaries with the same nodes before them: their indices before and after."""
    for boundary in range(parts - 1):
        highest = max((after for before, after in overlap if before <= boundary), default=0)
        lowest = min((after for before, after in overlap if before > boundary), default=highest)
        if highest < lowest:
            yield boundary, highest


# Parts, tensors, sentences


def _pairs(old: Sequence[Card], new: Sequence[Card], successors: Mapping[int, int]) -> Iterable[PartPair]:
    origin = {after: before for before, after in successors.items()}
    rows: list[tuple[int | None, int | None]] = [(origin.get(index), index) for index in range(len(new))]
    rows += [(index, None) for index in range(len(old)) if index not in successors]
    for before, after in rows:
        yield PartPair(before, after, None if before is None else old[before], None if after is None else new[after])


def _tensors(old: Scene, new: Scene) -> Iterable[TensorChange]:
    before = {tensor.tensor: tensor for tensor in old.tensors}
    after = {tensor.tensor: tensor for tensor in new.tensors}
    for name in dict.fromkeys((*before, *after)):
        kind: Kind = "stays" if name in before and name in after else "went" if name in before else "came"
        yield TensorChange(name, kind, before.get(name), after.get(name))


def _have_plans(old: Scene, new: Scene) -> bool:
    """Whether both scenes tell of a plan; the plan of an opened cascade is unknown."""
    return all("goal" in dict(scene.details) for scene in (old, new))


def _details(old: Scene, new: Scene) -> Iterable[TextChange]:
    before, after = dict(old.details), dict(new.details)
    words = dict.fromkeys((*before, *after))
    for word in words if _have_plans(old, new) else (word for word in words if word in before and word in after):
        if before.get(word) != after.get(word):
            yield TextChange(word, *((values[word],) if word in values else () for values in (before, after)))


def _recomputed(old: Scene, new: Scene) -> TextChange:
    pairs = ((old.recomputed, new.recomputed), (new.recomputed, old.recomputed)) if _have_plans(old, new) else ()
    return TextChange("recomputed", *(tuple(one for one in found if one not in others) for found, others in pairs))


def _notes(old: Scene, new: Scene) -> Iterable[str]:
    if old.dims != new.dims:
        sides = (sorted(one.dims.items() - other.dims.items()) for one, other in ((old, new), (new, old)))
        before, after = (dims_text(dict(side)) or "none" for side in sides)
        yield f"sizes and times are for different dims: {before} before, {after} now"
    if old.profile is None or new.profile is None:
        yield f"{printable(new.title)} is not at hand, so it is unknown which nodes moved; name it with `model`"
