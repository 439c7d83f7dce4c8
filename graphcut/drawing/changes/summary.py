"""What changed, in one sentence."""

from collections.abc import Iterable, Sequence

from ...core.units import count, size
from .record import Changes, ChangeSide, CutChange, NodeMove, TensorChange


def summary(changes: Changes) -> str:
    """The number of parts, how many cuts and nodes moved, what crosses, and whether it got faster or smaller."""
    before, after = changes.before, changes.after
    was = "as before" if before.parts == after.parts else f"before: {before.parts}"
    found = [f"{count(after.parts, 'part')} ({was})", *_cuts(changes.cuts or ()), *_nodes(changes.nodes or ())]
    if before.dims == after.dims:
        found += [*_tensors(changes.tensors), *_load(before, after)]
    return f"{'; '.join(found)}."


def relative_change(before: float, after: float) -> str:
    """The change of a number, such as `8.0 % less`; empty for the same."""
    if before <= 0 or abs(after - before) <= 1e-3 * before:
        return ""
    change = after / before - 1
    return f"{abs(change) * 100:.3g} % {'more' if change > 0 else 'less'}"


def _cuts(cuts: Sequence[CutChange]) -> Iterable[str]:
    kinds = [cut.kind for cut in cuts]
    came, went = kinds.count("came"), kinds.count("went")
    moved, more = min(came, went), abs(came - went)
    words = [f"{count(moved, 'cut')} moved"] if moved else []
    words += [f"{count(more, 'cut')} {'added' if came > went else 'removed'}"] if more else []
    if kinds:
        yield ", ".join(words) or "no cut moved"


def _nodes(moves: Sequence[NodeMove]) -> Iterable[str]:
    if moved := sum(len(move.nodes) for move in moves if not move.stays):
        yield f"{moved:,} of {count(sum(len(move.nodes) for move in moves), 'node')} moved to another part"


def _tensors(tensors: Sequence[TensorChange]) -> Iterable[str]:
    """How the total of the boundary tensors changed; nothing if a size that matters is unknown."""
    came = [one.after for one in tensors if one.kind == "came" and one.after is not None]
    went = [one.before for one in tensors if one.kind == "went" and one.before is not None]
    if not all(tensor.is_exact for tensor in (*came, *went)):
        return
    if more := sum(tensor.bytes for tensor in came) - sum(tensor.bytes for tensor in went):
        yield f"{size(abs(more))} {'more' if more > 0 else 'less'} crosses boundaries"
    elif came or went:
        yield "as many bytes cross boundaries"
    elif tensors:
        yield "the same tensors cross boundaries"


def _load(before: ChangeSide, after: ChangeSide) -> Iterable[str]:
    if before.slowest_s is not None and after.slowest_s is not None:
        change = relative_change(before.slowest_s, after.slowest_s)
        yield f"the slowest part takes {change}" if change else "the slowest part takes as long as before"
    elif before.measure == after.measure:
        change = relative_change(before.largest_bytes, after.largest_bytes)
        what = "" if after.measure == "needs" else f" of {after.measure}"
        yield f"the largest part {'has' if what else 'needs'} {change or 'as much as before'}{what}"
