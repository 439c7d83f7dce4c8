"""The lane chart and the cut profile: which tensors cross, and what a cut would cost at each place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import ceil, log2
from typing import Final

from ...core.units import count, size
from ..scene import CutOption, CutProfile, Lane, Scene
from ..scenes import best_places
from .card import bytes_said
from .panel import Panel
from .primitives import BODY, BOLD, CODE, SMALL, box, dot, line, named, number, width_of, words

MOST_LANES: Final = 60
"""Rows of the lane chart; of more the first are drawn."""

_ROW: Final = 21
_STEP: Final = 9.0
"""The least distance between two parts in the lane chart."""
_NAME: Final = 300.0
_TYPE: Final = 170.0
_BYTES: Final = 90.0


def least_lanes_width(scene: Scene) -> float:
    """How wide the lane chart is at least."""
    return _NAME + _TYPE + _BYTES + 40 + _STEP * len(scene.cards) if scene.lanes else 0.0


def draw_lanes(scene: Scene, width: float) -> Panel:
    """One row for each tensor that crosses: a line from the part that makes it to the last that reads it."""
    names, start, step = _columns(scene, width)
    xs = [start + step * i for i in range(len(scene.cards))]
    shown = scene.lanes[:MOST_LANES]
    marks = [*_lane_heads(names, xs, step)]
    bottom = 22 + _ROW * len(shown)
    marks += [line(((x, 22), (x, bottom)), "grid") for x in xs]
    for row, lane in enumerate(shown):
        y = 22 + _ROW * row
        if row % 2 == 0:
            marks.insert(0, box(0, y, width, _ROW, "zebra"))
        marks += _lane(lane, y + _ROW / 2, xs, min(4.0, step * 0.4))
    if hidden := len(scene.lanes) - len(shown):
        marks.append(words(0, bottom + 15, f"and {count(hidden, 'more tensor')}", SMALL, ink="muted"))
        bottom += 18
    totals = [bytes_said(crossing) for crossing in scene.crossing]
    if max((width_of(said, BOLD) for said in totals), default=step) + 6 <= step:
        bottom += 16
        marks.append(words(_NAME + _TYPE + _BYTES, bottom, "crosses in total", SMALL, ink="muted", anchor="end"))
        marks += [words(x + step / 2, bottom, said, BOLD, anchor="middle") for x, said in zip(xs, totals, strict=False)]
    return Panel(width, bottom + 4, tuple(marks))


def _columns(scene: Scene, width: float) -> tuple[list[str], float, float]:
    """What stands over each part, where the first stands, and how far it is to the next.

    Parts bear their names where these fit side by side, else their places.
    """
    between = max(len(scene.cards) - 1, 1)
    for names in ([card.name for card in scene.cards], [str(place) for place in range(len(scene.cards))]):
        half = max(width_of(name, SMALL) for name in names) / 2
        start = _NAME + _TYPE + _BYTES + half + 14
        step = (width - start - half) / between
        if 2 * half + 8 <= step:
            break
    return names, start, step


def _lane_heads(names: Sequence[str], xs: Sequence[float], step: float) -> Iterator[str]:
    yield words(0, 14, "tensor", SMALL, ink="muted")
    yield words(_NAME, 14, "type", SMALL, ink="muted")
    yield words(_NAME + _TYPE + _BYTES, 14, "bytes", SMALL, ink="muted", anchor="end")
    every = ceil((max(width_of(name, SMALL) for name in names) + 6) / step)
    for place, (x, name) in enumerate(zip(xs, names, strict=True)):
        if place % every == 0:
            yield words(x, 14, name, SMALL, anchor="middle")


def _lane(lane: Lane, y: float, xs: Sequence[float], radius: float) -> Iterator[str]:
    ink = "far" if lane.is_residual else "near"
    yield named(4, y + 4, lane.tensor, CODE, room=_NAME - 16)
    yield words(_NAME, y + 4, lane.type, CODE, ink="muted", room=_TYPE - 10)
    yield words(_NAME + _TYPE + _BYTES, y + 4, bytes_said(lane), BODY, anchor="end")
    first, last = xs[lane.source], xs[lane.readers[-1]]
    yield line(((first, y), (last, y)), f"{ink} wire", width=min(2.2, radius))
    yield box(first - radius, y - radius, 2 * radius, 2 * radius, f"{ink} made")
    for reader in lane.readers:
        yield dot(xs[reader], y, radius, f"{ink} tip")


_PLOT: Final = 170.0
_AXIS: Final = 76.0
_MOST_BINS: Final = 800


def draw_profile(scene: Scene, profile: CutProfile, width: float) -> Panel:
    """Bytes alive after each node: where several nodes share a place, the least strong and the most pale."""
    room = width - _AXIS - 8
    edges = _edges(len(profile.nodes))
    bins = list(pairwise(edges))
    xs = [_AXIS + room * i / len(bins) for i in range(len(bins) + 1)]
    lows = [min(profile.alive[a:b]) for a, b in bins]
    highs = [max(profile.alive[a:b]) for a, b in bins]
    top, bottom = 30.0, 30.0 + _PLOT
    most = max(highs) or 1
    marks = [*_ticks(most, width, bottom)]
    for values, css in ((highs, "most"), (lows, "least")):
        marks.append(_area(xs, [bottom - _PLOT * value / most for value in values], bottom, css))
    place = {n: xs[i] + (xs[i + 1] - xs[i]) / 2 for i, (a, b) in enumerate(bins) for n in range(a, b)}
    marks += _key_marks(profile, place, bottom)
    if profile.parts:
        marks += _parts(scene, profile, place, (_AXIS, xs[-1]), top, bottom)
    height = bottom + (44 if profile.parts else 20)
    if not scene.cards and profile.valleys:
        best = best_places(profile)
        marks += [f'<path class="far tip" d="{_pointer(place[v.position - 1], bottom)}"/>' for v in best]
        marks += _valleys(best, height + 22, width)
        height += 22 + 19 * (len(best) + 1)
    return Panel(width, height, tuple(marks))


def _pointer(x: float, bottom: float) -> str:
    return f"M{number(x)} {number(bottom + 1)}l4 7h-8Z"


def _edges(nodes: int) -> list[int]:
    bins = min(nodes, _MOST_BINS)
    return [nodes * i // bins for i in range(bins + 1)]


def _area(xs: Sequence[float], ys: Sequence[float], bottom: float, css: str) -> str:
    path = f"M{number(xs[0])} {number(bottom)}"
    place = 0
    for y, same in groupby(ys):
        place += len(list(same))
        path += f"V{number(y)}H{number(xs[place])}"
    return f'<path class="{css}" d="{path}V{number(bottom)}Z"/>'


def _ticks(most: int, width: float, bottom: float) -> Iterator[str]:
    step = 2 ** max(ceil(log2(most / 4)), 0)
    for value in range(0, most + 1, step):
        y = bottom - _PLOT * value / most
        yield line(((_AXIS, y), (width - 8, y)), "grid")
        yield words(_AXIS - 8, y + 4, size(value), SMALL, ink="muted", anchor="end")


def _key_marks(profile: CutProfile, place: Mapping[int, float], bottom: float) -> Iterator[str]:
    """A stroke below the axis for each key node; those that share a place are one."""
    if profile.keys:
        yield words(_AXIS - 8, bottom + 18, "key nodes", SMALL, ink="muted", anchor="end")
    for x in dict.fromkeys(place[n] for n in profile.keys):
        yield line(((x, bottom + 9), (x, bottom + 17)), "key")


def _parts(
    scene: Scene, profile: CutProfile, place: Mapping[int, float], span: tuple[float, float], top: float, bottom: float
) -> Iterator[str]:
    """Where each part stands below the axis, and a line at each cut with what it costs."""
    at = [(place[i] + place[i + 1]) / 2 for i in profile.cuts]
    firsts = [0, *(i + 1 for i in profile.cuts)]
    for i, (left, right) in enumerate(pairwise((span[0], *at, span[1]))):
        part = profile.parts[firsts[i]]
        yield box(left, bottom + 24, right - left, 16, "even" if part % 2 == 0 else "odd")
        for said in (scene.cards[part].name, str(part)):
            if width_of(said, SMALL) + 6 <= right - left:
                yield words((left + right) / 2, bottom + 36, said, SMALL, anchor="middle")
                break
    taken, crossing = 0.0, scene.crossing
    for x, i in zip(at, profile.cuts, strict=True):
        yield line(((x, top), (x, bottom + 24)), "cut")
        cost = bytes_said(crossing[profile.parts[i]])
        half = width_of(cost, BOLD) / 2
        if x - half >= taken and x + half <= span[1]:
            yield words(x, top - 8, cost, BOLD, ink="near", anchor="middle")
            taken = x + half + 8


def _valleys(best: Sequence[CutOption], y: float, width: float) -> Iterator[str]:
    stops = [width - 8 - 110 * i for i in range(4)][::-1]
    heads = ("crossing", "tensors", "weights before", "after")
    yield words(0, y, "cut after", SMALL, ink="muted")
    for x, said in zip(stops, heads, strict=True):
        yield words(x, y, said, SMALL, ink="muted", anchor="end")
    for row, valley in enumerate(best, 1):
        base = y + 19 * row
        yield named(0, base, valley.node, CODE, room=stops[0] - 110)
        values = (
            bytes_said(valley),
            f"{valley.tensors:,}",
            size(valley.weights_before),
            size(valley.weights_after),
        )
        for x, said in zip(stops, values, strict=True):
            yield words(x, base, said, BODY, anchor="end")
