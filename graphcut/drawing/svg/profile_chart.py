"""The cut profile as a chart: what a cut after each node would send."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import ceil, log2
from typing import Final, NamedTuple

from ...analysis.cut_points import CutPoint
from ...core.units import size
from ..profile_builder import best_options
from ..scene import CutProfile, Scene
from ..sentences import size_text
from .primitives import BODY, BOLD, CODE, SMALL, Panel, box, label, line, number, width_of

_PLOT: Final = 170.0
_TOP: Final = 30.0
_BOTTOM: Final = _TOP + _PLOT
_AXIS: Final = 76.0


def draw_profile(scene: Scene, profile: CutProfile, width: float) -> Panel:
    """Bytes alive after each node. Where several nodes share a bin, the lowest is dark and the highest is pale."""
    bins = bins_of(len(profile.nodes), 800, _AXIS, width - 8)
    highest, lowest = ([pick(profile.alive[first:stop]) for first, stop in bins.spans] for pick in (max, min))
    most = max(highest) or 1
    ticks = range(0, most + 1, 2 ** max(ceil(log2(most / 4)), 0))
    marks = [*grid(_AXIS, width - 8, ((_BOTTOM - _PLOT * value / most, size(value)) for value in ticks))]
    for values, css in ((highest, "high"), (lowest, "low")):
        marks.append(area(bins.edges, [_BOTTOM - _PLOT * value / most for value in values], css, _BOTTOM))
    if profile.keys:  # a stroke below the axis for each bin with one
        marks.append(label(_AXIS - 8, _BOTTOM + 18, "key nodes", SMALL, css="muted", anchor="end"))
    strokes = dict.fromkeys(map(bins.middle, profile.keys))
    marks += [line(((x, _BOTTOM + 9), (x, _BOTTOM + 17)), "key") for x in strokes]
    if profile.parts:
        marks += _cuts_and_parts(scene, profile, bins)
    height = _BOTTOM + (44 if profile.parts else 20)
    if not scene.cards and profile.cut_options:
        best = best_options(profile)
        marks.append(triangles((bins.middle(one.nodes_before - 1) for one in best), _BOTTOM + 1))
        marks += _best_cut_points(best, height + 22, width)
        height += 22 + 19 * (len(best) + 1)
    return Panel(width, height, tuple(marks))


class Bins(NamedTuple):
    """Successive things in the columns of a chart, which are equally wide."""

    spans: Sequence[tuple[int, int]]  #: the first of each column, and that after the last.
    edges: Sequence[float]  #: where each column begins, and where the last one ends.
    column: Mapping[int, int]  #: the column of each.

    def middle(self, i: int) -> float:
        """The middle of the column of one."""
        return sum(self.edges[self.column[i] : self.column[i] + 2]) / 2


def bins_of(number: int, most: int, left: float, right: float) -> Bins:
    """So many things in at most `most` columns between two edges."""
    columns = min(number, most)
    ends = [(number * i // (columns or 1), left + (right - left) * i / (columns or 1)) for i in range(columns + 1)]
    spans = [*pairwise(end for end, _ in ends)]
    return Bins(spans, [edge for _, edge in ends], {n: i for i, span in enumerate(spans) for n in range(*span)})


def area(edges: Sequence[float], ys: Sequence[float], css: str, base: float) -> str:
    """An area between steps and its base: from each edge to the next one height."""
    path = f"M{number(edges[0])} {number(base)}"
    bins = 0
    for y, same in groupby(ys):
        bins += len(list(same))
        path += f"V{number(y)}H{number(edges[bins])}"
    return f'<path class="{css}" d="{path}V{number(base)}Z"/>'


def triangles(xs: Iterable[float], y: float) -> str:
    """Small triangles below these points."""
    path = "".join(f"M{number(x)} {number(y)}l4 7h-8Z" for x in xs)
    return f'<g class="far"><path class="tip" d="{path}"/></g>'


def grid(left: float, right: float, rows: Iterable[tuple[float, str]]) -> Iterator[str]:
    """A line for each height, with its text before it."""
    for y, text in rows:
        yield line(((left, y), (right, y)), "grid")
        yield label(left - 8, y + 4, text, SMALL, css="muted", anchor="end")


def _cuts_and_parts(scene: Scene, profile: CutProfile, bins: Bins) -> Iterator[str]:
    """The parts below the axis, and a line at each cut with what crosses there."""
    end, cuts = bins.edges[-1], [(bins.middle(i) + bins.middle(i + 1)) / 2 for i in profile.cuts]
    for part, (left, right) in zip(dict.fromkeys(profile.parts), pairwise((_AXIS, *cuts, end)), strict=True):
        yield box(left, _BOTTOM + 24, right - left, 16, "even" if part % 2 == 0 else "odd")
        names = (scene.cards[part].short_name, str(part), "")
        fitting = next(name for name in names if width_of(name, SMALL) + 6 <= right - left or not name)
        yield label((left + right) / 2, _BOTTOM + 36, fitting, SMALL, anchor="middle")
    taken, boundaries = 0.0, scene.boundaries
    for i in scene.cuts:
        x = (bins.middle(i) + bins.middle(i + 1)) / 2
        yield line(((x, _TOP), (x, _BOTTOM + 24)), "cut")
        text = size_text(boundaries[profile.parts[i]])
        half = width_of(text, BOLD) / 2
        if x - half >= taken and x + half <= end:
            yield label(x, _TOP - 8, text, BOLD, css="near", anchor="middle")
            taken = x + half + 8


def _best_cut_points(best: Sequence[CutPoint], y: float, width: float) -> Iterator[str]:
    ends = [width - 8 - 110 * i for i in (3, 2, 1, 0)]
    yield label(0, y, "cut after", SMALL, css="muted")
    for x, title in zip(ends, ("crosses", "tensors", "weights before", "after"), strict=True):
        yield label(x, y, title, SMALL, css="muted", anchor="end")
    nodes = [one.node for one in best]
    for row, one in enumerate(best, 1):
        base = y + 19 * row
        yield label(0, base, one.node, CODE, room=ends[0] - 110, among=nodes)
        values = (size_text(one), f"{one.tensors:,}", size(one.weights_before), size(one.weights_after))
        for x, text in zip(ends, values, strict=True):
            yield label(x, base, text, BODY, anchor="end")
