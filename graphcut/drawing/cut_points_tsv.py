"""Cut points as tab-separated lines, for other programs."""

from collections.abc import Iterable, Sequence

from ..analysis.cut_points import CutPoint
from ..core.text import escaped


def cut_points_tsv(points: Sequence[CutPoint]) -> Iterable[str]:
    """A line of titles, then a line for each cut point, with escapes for what doesn't print in names."""
    yield "node\tbytes\texact\ttensors\tweights_before\tweights_after\tkey\tmodule"
    for p in points:
        boundary = (p.bytes, "yes" if p.is_exact else "at least", ",".join(p.boundary_tensors))
        values = (p.node, *boundary, p.weights_before, p.weights_after, "yes" if p.is_key else "no", p.module)
        yield "\t".join(escaped(str(value)) for value in values)


def cheapest(points: Sequence[CutPoint], number: int) -> list[CutPoint]:
    """The `number` cheapest cut points, in order; of equal ones, those with the most balanced weights."""
    ranked = sorted(points, key=lambda p: (p.bytes, abs(p.weights_before - p.weights_after), p.nodes_before))
    return sorted(ranked[:number], key=lambda p: p.nodes_before)
