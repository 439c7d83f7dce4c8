"""The cut profile as a chart: what a cut after each node would send."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import ceil, log2
from typing import Final

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
    room = width - _AXIS - 8
    nodes, bins = len(profile.nodes), min(len(profile.nodes), 800)
    ranges = list(pairwise(nodes * i // bins for i in range(bins + 1)))
    edges = [_AXIS + room * i / bins for i in range(bins + 1)]
    middle = {n: edges[i] + room / bins / 2 for i, (first, stop) in enumerate(ranges) for n in range(first, stop)}
    highest = [max(profile.alive[first:stop]) for first, stop in ranges]
    lowest = [min(profile.alive[first:stop]) for first, stop in ranges]
    most = max(highest) or 1
    ticks = range(0, most + 1, 2 ** max(ceil(log2(most / 4)), 0))
    marks = [*grid(_AXIS, width - 8, ((_BOTTOM - _PLOT * value / most, size(value)) for value in ticks))]
    for values, css in ((highest, "high"), (lowest, "low")):
        marks.append(area(edges, [_BOTTOM - _PLOT * value / most for value in values], css, _BOTTOM))
    marks += _key_nodes(profile, middle)
    if profile.parts:
        marks += _cuts_and_parts(scene, profile, middle, edges[-1])
    height = _BOTTOM + (44 if profile.parts else 20)
    if not scene.cards and profile.cut_options:
        best = best_options(profile)
        pointers = "".join(f"M{number(middle[one.nodes_before - 1])} {number(_BOTTOM + 1)}l4 7h-8Z" for one in best)
        marks.append(f'<g class="far"><path class="tip" d="{pointers}"/></g>')
        marks += _best_cut_points(best, height + 22, width)
        height += 22 + 19 * (len(best) + 1)
    return Panel(width, height, tuple(marks))


def area(edges: Sequence[float], ys: Sequence[float], css: str, base: float) -> str:
    """An area between steps and its base: from each edge to the next one height."""
    path = f"M{number(edges[0])} {number(base)}"
    bins = 0
    for y, same in groupby(ys):
        bins += len(list(same))
        path += f"V{number(y)}H{number(edges[bins])}"
    return f'<path class="{css}" d="{path}V{number(base)}Z"/>'


def grid(left: float, right: float, rows: Iterable[tuple[float, str]]) -> Iterator[str]:
    """A line for each height, with its text before it."""
    for y, text in rows:
        yield line(((left, y), (right, y)), "grid")
        yield label(left - 8, y + 4, text, SMALL, css="muted", anchor="end")


def _key_nodes(profile: CutProfile, middle: Mapping[int, float]) -> Iterator[str]:
    """A stroke below the axis for each bin with a key node."""
    if profile.keys:
        yield label(_AXIS - 8, _BOTTOM + 18, "key nodes", SMALL, css="muted", anchor="end")
    for x in dict.fromkeys(middle[n] for n in profile.keys):
        yield line(((x, _BOTTOM + 9), (x, _BOTTOM + 17)), "key")


def _cuts_and_parts(scene: Scene, profile: CutProfile, middle: Mapping[int, float], end: float) -> Iterator[str]:
    """The parts below the axis, and a line at each cut with what crosses there."""
    cuts = [(middle[i] + middle[i + 1]) / 2 for i in profile.cuts]
    firsts = [0, *(i + 1 for i in profile.cuts)]
    for first, (left, right) in zip(firsts, pairwise((_AXIS, *cuts, end)), strict=True):
        part = profile.parts[first]
        yield box(left, _BOTTOM + 24, right - left, 16, "even" if part % 2 == 0 else "odd")
        names = (scene.cards[part].short_name, str(part), "")
        fitting = next(name for name in names if width_of(name, SMALL) + 6 <= right - left or not name)
        yield label((left + right) / 2, _BOTTOM + 36, fitting, SMALL, anchor="middle")
    taken, boundaries = 0.0, scene.boundaries
    for i in scene.cuts:
        x = (middle[i] + middle[i + 1]) / 2
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
