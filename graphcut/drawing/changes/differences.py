"""From two scenes of one model to what changed between them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from ...core.errors import UsageError
from ..part_labels import Look, spoken
from ..scene import Card, CutProfile, Scene
from ..wording import printable
from .record import Changes, ChangeSide, CutChange, Flow, PartPair, ProductKind, Sent
from .words import sentence

_Overlap = Mapping[tuple[int, int], int]
"""How many nodes stood in the one part and stand in the other, for each pair of parts that has any."""

_LOADS: Final = ("busy_s", "flops", "need_bytes")


def changes_between(old: Scene, new: Scene) -> Changes:
    """What changed from `old` to `new`: two plans, two cascades, or a plan and a cascade, of one model.

    Which nodes moved is known where both scenes have a profile; else parts are told by their place, and of cuts
    nothing is said. Sizes are compared as they stand: a note says where they are for other dims.

    Raises:
        UsageError: the scenes are of different models, or one is not cut.
    """
    _check_alike(old, new)
    load = next(name for name in _LOADS if all(getattr(card, name) is not None for card in (*old.cards, *new.cards)))
    before, after = _side(old, load), _side(new, load)
    heirs = {place: place for place in range(min(len(old.cards), len(new.cards)))}
    flows, cuts = None, None
    if old.profile is not None and new.profile is not None:
        home, moved_to = _homes(old.profile), _homes(new.profile)
        overlap = Counter((part, moved_to[node]) for node, part in home.items())
        heirs = _heirs(overlap)
        flows = tuple(_flows(old.profile, home, moved_to, heirs))
        kept = dict(_kept(len(old.cards), overlap))
        went = _placed(old, old.profile, {place: "went" for place in range(len(old.cards) - 1) if place not in kept})
        stays = frozenset(kept.values())
        there = _placed(new, new.profile, {i: "stays" if i in stays else "came" for i in range(len(new.cards) - 1)})
        cuts = tuple(cut for _, cut in sorted((*went, *there), key=itemgetter(0)))
    sent = tuple(_sent(old, new))
    return Changes(
        title=new.title,
        sentence=sentence(before, after, flows, cuts, sent),
        before=before,
        after=after,
        pairs=tuple(_pairs(old.cards, new.cards, heirs)),
        flows=flows,
        cuts=cuts,
        sent=sent,
        details=tuple(_details(old, new)),
        recomputed=_recomputed(old, new),
        notes=tuple(_notes(old, new)),
    )


# The same model


def _check_alike(old: Scene, new: Scene) -> None:
    for scene in (old, new):
        if not scene.cards:
            raise UsageError(
                f"{printable(scene.title)} is not cut: there are no parts to compare",
                hint="name two plans, two cascades, or a plan and a cascade",
            )
    if difference := _difference(old, new):
        raise UsageError(
            f"these two are not of the same model: {difference}", hint="compare plans and cascades of one model"
        )


def _difference(old: Scene, new: Scene) -> str:
    """What tells their models apart, in words; empty where nothing does."""
    if old.profile is None or new.profile is None:
        same = old.title == new.title
        return "" if same else f"one is of {printable(old.title)}, the other of {printable(new.title)}"
    ops, new_ops = (dict(zip(profile.nodes, profile.ops, strict=True)) for profile in (old.profile, new.profile))
    for found, others, whose in ((ops, new_ops, "first"), (new_ops, ops, "second")):
        if alone := [node for node, op in found.items() if others.get(node) != op]:
            return f"node {printable(alone[0])!r} ({printable(found[alone[0]])}) stands in that of the {whose} alone"
    weights, new_weights = (profile.weights[-1:] for profile in (old.profile, new.profile))
    return "" if weights == new_weights else "their nodes bear the same names, and read weights of other sizes"


# One side


def _side(scene: Scene, load: str) -> ChangeSide:
    """One division in figures; its balance is that of what `load` names: seconds, else operations, else bytes."""
    cards, lanes, crossing = scene.cards, scene.lanes, scene.crossing
    loads = [float(getattr(card, load)) for card in cards]
    largest = max(range(len(cards)), key=lambda i: cards[i].need_bytes)
    times = [card.busy_s for card in cards if card.busy_s is not None]
    slowest = times.index(max(times)) if len(times) == len(cards) else None
    links = [reader - lane.source for lane in lanes for reader in lane.readers]
    return ChangeSide(
        parts=len(cards),
        largest=largest,
        largest_bytes=cards[largest].need_bytes,
        over=sum(card.is_over for card in cards),
        slowest=slowest,
        slowest_s=None if slowest is None else times[slowest],
        balance=max(loads) * len(loads) / sum(loads) if any(loads) else 1.0,
        sent_bytes=sum(lane.bytes for lane in lanes),
        sent_exact=all(lane.is_exact for lane in lanes),
        tensors=len(lanes),
        sequential=sum(step == 1 for step in links),
        residual=sum(step > 1 for step in links),
        most_bytes=max((place.bytes for place in crossing), default=0),
        most_exact=all(place.is_exact for place in crossing),
        dims=_dims(scene),
    )


def _dims(scene: Scene) -> Mapping[str, str]:
    said = dict(scene.facts).get("dims", "")
    pairs = (pair.rpartition("=") for pair in said.split(", ") if pair)
    return {name: number for name, _, number in sorted(pairs)}


# Nodes and cuts


def _homes(profile: CutProfile) -> dict[str, int]:
    """For each node, along the profile, the place of the part that is its home."""
    return dict(zip(profile.nodes, profile.parts or (0,) * len(profile.nodes), strict=True))


def _heirs(overlap: _Overlap) -> dict[int, int]:
    """For each part before the part after that it became: those with most nodes in common find each other first."""
    found: dict[int, int] = {}
    for (old, new), _ in sorted(overlap.items(), key=lambda item: (-item[1], abs(item[0][0] - item[0][1]), item[0])):
        if old not in found and new not in found.values():
            found[old] = new
    return found


def _flows(
    profile: CutProfile, home: Mapping[str, int], moved_to: Mapping[str, int], heirs: Mapping[int, int]
) -> Iterable[Flow]:
    """The nodes of each pair of parts; what they are is said with the words of the whole model."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, node in enumerate(profile.nodes):
        places.setdefault((home[node], moved_to[node]), []).append(place)
    weights = [total - before for before, total in zip((0, *profile.weights), profile.weights, strict=False)]
    rows: list[list[Look]] = [[(profile.modules[i], weights[i]) for i in row] for row in places.values()]
    for ((old, new), row), content in zip(places.items(), spoken(rows), strict=True):
        yield Flow(
            old=old,
            new=new,
            nodes=tuple(profile.nodes[i] for i in row),
            content=content,
            weight_bytes=sum(weights[i] for i in row),
            stays=heirs.get(old) == new,
        )


def _kept(parts: int, overlap: _Overlap) -> Iterable[tuple[int, int]]:
    """The boundaries that the same nodes stand before: the place of each before, and after."""
    for boundary in range(parts - 1):
        highest = max((after for before, after in overlap if before <= boundary), default=0)
        lowest = min((after for before, after in overlap if before > boundary), default=highest)
        if highest < lowest:
            yield boundary, highest


def _placed(scene: Scene, profile: CutProfile, kinds: Mapping[int, ProductKind]) -> Iterable[tuple[int, CutChange]]:
    """Some boundaries of a scene, and how many nodes stand before each."""
    for boundary, kind in kinds.items():
        crossing = scene.crossing[boundary]
        nodes = bisect_right(profile.parts, boundary)
        yield nodes, CutChange(profile.nodes[nodes - 1], kind, crossing.bytes, crossing.is_exact)


# Parts, tensors, words


def _pairs(old: Sequence[Card], new: Sequence[Card], heirs: Mapping[int, int]) -> Iterable[PartPair]:
    origin = {after: before for before, after in heirs.items()}
    for place, card in enumerate(new):
        before = origin.get(place)
        yield PartPair(before, place, None if before is None else old[before], card)
    for place, card in enumerate(old):
        if place not in heirs:
            yield PartPair(place, None, card, None)


def _sent(old: Scene, new: Scene) -> Iterable[Sent]:
    before = {lane.tensor: lane for lane in old.lanes}
    after = {lane.tensor: lane for lane in new.lanes}
    for tensor in dict.fromkeys((*before, *after)):
        yield Sent(tensor, before.get(tensor), after.get(tensor))


def _tell_plans(old: Scene, new: Scene) -> bool:
    """Do both say what a plan says? Of a cascade whose plan is not at hand, its silence tells nothing."""
    return all("goal" in dict(scene.details) for scene in (old, new))


def _details(old: Scene, new: Scene) -> Iterable[tuple[str, str, str]]:
    before, after = dict(old.details), dict(new.details)
    words = dict.fromkeys((*before, *after))
    for word in words if _tell_plans(old, new) else (word for word in words if word in before and word in after):
        if before.get(word) != after.get(word):
            yield word, before.get(word, ""), after.get(word, "")


def _recomputed(old: Scene, new: Scene) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sentences that no longer hold, and the new ones."""
    if not _tell_plans(old, new):
        return (), ()
    return _only(old.recomputed, new.recomputed), _only(new.recomputed, old.recomputed)


def _only(sentences: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(sentence for sentence in sentences if sentence not in others)


def _notes(old: Scene, new: Scene) -> Iterable[str]:
    if _dims(old) != _dims(new):
        said = [", ".join(f"{name}={number}" for name, number in _dims(scene).items()) for scene in (old, new)]
        yield f"sizes and times are for other dims: {said[0] or 'none'} before, {said[1] or 'none'} now"
    if old.profile is None or new.profile is None:
        yield f"{printable(new.title)} is not at hand, so which nodes moved is not known; name it with --model FILE"
