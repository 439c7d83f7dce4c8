"""What changed, in a sentence that a person can quote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ...core.units import count, size
from .record import ChangeSide, CutChange, Flow, Sent

_SAME: Final = 1e-3
"""A share by which a figure may differ and yet be said to be the same."""


def sentence(
    before: ChangeSide,
    after: ChangeSide,
    flows: Sequence[Flow] | None,
    cuts: Sequence[CutChange] | None,
    sent: Sequence[Sent],
) -> str:
    """How many parts there are, how many cuts and nodes moved, what crosses, and whether it got faster or smaller."""
    found = [_parts(before, after), *_cuts(cuts), *_nodes(flows)]
    if before.dims == after.dims:
        found += [*_crossing(sent), *_load(before, after)]
    return f"{'; '.join(found)}."


def share(before: float, after: float) -> str:
    """By how much a figure changed, as a share: `8.0 % less`, `twice as much` is `100 % more`; empty for the same."""
    if before <= 0 or abs(after - before) <= _SAME * before:
        return ""
    change = after / before - 1
    return f"{abs(change) * 100:.3g} % {'more' if change > 0 else 'less'}"


def _parts(before: ChangeSide, after: ChangeSide) -> str:
    now = f"Now {count(after.parts, 'part')}"
    return f"{now}, as before" if before.parts == after.parts else f"{now} instead of {before.parts}"


def _cuts(cuts: Sequence[CutChange] | None) -> Iterable[str]:
    if not cuts:
        return
    kinds = [cut.kind for cut in cuts]
    came, went = kinds.count("came"), kinds.count("went")
    if not came and not went:
        yield "no cut moved"
        return
    moved = min(came, went)
    more = max(came, went) - moved
    words = (
        f"{count(moved, 'cut')} moved" if moved else "",
        f"{count(more, 'cut')} {'came' if came > went else 'went'}" if more else "",
    )
    yield ", ".join(filter(None, words))


def _nodes(flows: Sequence[Flow] | None) -> Iterable[str]:
    if flows is None:
        return
    moved = sum(len(flow.nodes) for flow in flows if not flow.stays)
    if moved:
        every = sum(len(flow.nodes) for flow in flows)
        yield f"{moved:,} of {count(every, 'node')} {'stands' if moved == 1 else 'stand'} in another part"


def _crossing(sent: Sequence[Sent]) -> Iterable[str]:
    """By how much what crosses changed; nothing where a size that makes the difference is not known."""
    came = [one.after for one in sent if one.kind == "came" and one.after is not None]
    went = [one.before for one in sent if one.kind == "went" and one.before is not None]
    if not all(lane.is_exact for lane in (*came, *went)):
        return
    more = sum(lane.bytes for lane in came) - sum(lane.bytes for lane in went)
    if more:
        yield f"{size(abs(more))} {'more' if more > 0 else 'fewer'} cross"
    elif came or went:
        yield "as many bytes cross"
    elif sent:
        yield "the same tensors cross"


def _load(before: ChangeSide, after: ChangeSide) -> Iterable[str]:
    if before.slowest_s is not None and after.slowest_s is not None:
        change = share(before.slowest_s, after.slowest_s)
        yield f"the slowest part takes {change}" if change else "the slowest part takes as long"
    else:
        change = share(before.largest_bytes, after.largest_bytes)
        yield f"the largest part needs {change}" if change else "the largest part needs as much"
