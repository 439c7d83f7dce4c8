"""The comparison of two models as a chart: the error of each tensor in the order of the graph, and histograms."""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from math import log1p
from string import ascii_letters
from typing import Final
from xml.sax.saxutils import escape

from ...verifying.histograms import BINS, Histogram
from ...verifying.two_models import ModelComparison, own_text, ratio
from ..scene import LEGENDS
from .document import WIDE, paragraphs, small_text, titled
from .primitives import BOLD, SMALL, Panel, box, dot, label, line, plain, stacked, width_of
from .profile_chart import Bins, area, bins_of, grid, triangles
from .style import svg_file

NO_ERROR_DB: Final = 140.0  #: an error as small as this is drawn as none.
_TOP: Final = 26.0
_PLOT: Final = 170.0
_BOTTOM: Final = _TOP + _PLOT
_AXIS: Final = 52.0


def columns_of(found: ModelComparison, width: float) -> tuple[Bins, list[int]]:
    """The tensors in the columns of a chart that is `width` wide, and the one of each column that is shown.

    That is a culprit, or else the one of the largest error.
    """
    errors, culprits = found.errors, {one.error.tensor for one in found.culprits}
    bins = bins_of(len(errors), int(width - _AXIS) // 3, _AXIS, width - 8)  # a column is 3 wide at least
    badness = [(error.tensor not in culprits, error.db, error.own_db) for error in errors]
    return bins, [min(range(*span), key=badness.__getitem__) for span in bins.spans]


def module_runs(found: ModelComparison) -> list[tuple[str, range]]:
    """Successive tensors by module: by the steps of its path up to the first that is numbered, or as many as fit."""
    paths, runs = [tuple(filter(None, error.module.split("/"))) for error in found.errors], list[tuple[str, range]]()
    for depth in range(1, 1 + max(map(len, paths), default=0)):
        same = ([*run] for _, run in groupby(range(len(paths)), key=lambda i: paths[i][:depth]))
        made = [("/".join(paths[run[0]][:depth]), range(run[0], run[-1] + 1)) for run in same]
        runs = made if not runs or len(made) <= 100 else runs
        if any(re.search(r"\d", step) for path in paths for step in path[depth - 1 : depth]):
            break
    return runs


def draw_errors(found: ModelComparison, width: float, links: Mapping[str, str]) -> Panel:
    """The errors along the graph. `links` has for tensors the address of what is said of them."""
    errors, (bins, worst) = found.errors, columns_of(found, width)
    shown = [(errors[i], *ends) for i, ends in zip(worst, pairwise(bins.edges), strict=True)]
    ticks = ((_y(db), f"{db} dB" if db < NO_ERROR_DB else "none") for db in range(0, int(NO_ERROR_DB) + 1, 20))
    marks = [*grid(_AXIS, width - 8, ticks)]
    for pick, css in (("db", "high"), ("own_db", "low")):
        ys = [_y(min(getattr(errors[i], pick) for i in range(*span))) for span in bins.spans]
        marks.append(area(bins.edges, ys, css, _BOTTOM))
    steps = [(x, _y(error.expected_db)) for error, *ends in shown for x in ends]
    marks += [line(steps, "key"), *_modules(found, bins)]
    touched = {change.node for change in found.changes if not change.is_rounding}
    tips = dict.fromkeys(bins.middle(i) for i, error in enumerate(errors) if error.node in touched)
    marks.append(triangles(tips, _BOTTOM + 2))
    for rank, one in enumerate(found.culprits, 1):
        i = next(i for i, error in enumerate(errors) if error.tensor == one.error.tensor)
        x, y = bins.middle(i), _y(one.error.own_db)
        marks.append(f'<g class="far">{dot(x, y, 4)}</g>{label(x, y - 7, str(rank), BOLD, css="far", anchor="middle")}')
    for error, left, right in shown:
        if link := links.get(error.tensor):
            tip = f"<title>{escape(plain(f'{error.tensor}: {ratio(error.db)}; {own_text(error)}'))}</title>"
            cell = box(left, _TOP - 20, right - left, _PLOT + 20, "lane")
            marks.append(f'<a href="{link}" tabindex="-1">{tip}{cell}</a>')
    return Panel(width, _BOTTOM + 46, tuple(marks))


def draw_histogram(one: Histogram, width: float, height: float) -> Panel:
    """The first model's numbers as an area, the second's as a line, both by the logarithm of how many there are."""
    most, step = log1p(max(map(max, one.counts))) or 1.0, width / BINS
    heights = [[height - (height - 4) * log1p(number) / most for number in side] for side in one.counts]
    outline = [(step * (i + after), y) for i, y in enumerate(heights[1]) for after in (0, 1)]
    marks = [
        f'<g class="near">{area([step * i for i in range(BINS + 1)], heights[0], "block", height)}</g>',
        f'<g class="far">{line(outline, "wire", width=2)}</g>',
        line(((0, height), (width, height)), "grid"),
        label(0, height + 14, f"{one.low:.4g}", SMALL, css="muted"),
        label(width, height + 14, f"{one.high:.4g}", SMALL, css="muted", anchor="end"),
    ]
    return Panel(width, height + 18, tuple(marks))


def histogram_note(one: Histogram) -> str:
    """What the picture of a histogram does not say."""
    others = f" Not in it: {one.others[0]:,} and {one.others[1]:,} masks or numbers that are not finite."
    step = f" One of {one.step} numbers is counted." if one.step > 1 else ""
    return f"Area: A, dashes: B, by the logarithm of how many numbers.{others * any(one.others)}{step}"


def comparison_svg(found: ModelComparison, title: str) -> str:
    """A comparison as an SVG file: the chart, what was found, and the histogram of the first culprit."""
    panels = [small_text(LEGENDS["errors"], WIDE), draw_errors(found, WIDE, {})] if found.errors else []
    panels += [paragraphs("What was found", found.lines, WIDE)]
    for one in found.culprits[:1]:
        if one.error.histogram is not None:
            name = f"Numbers of {one.error.tensor} in both models"
            panels.append(titled(name, draw_histogram(one.error.histogram, WIDE / 2, 120)))
    whole = titled(f"{title}: {found.answer}", stacked(panels, gap=14))
    return svg_file(title, found.answer, whole._replace(width=WIDE))


def _y(db: float) -> float:
    return _TOP + _PLOT * min(max(db, 0.0), NO_ERROR_DB) / NO_ERROR_DB


def _modules(found: ModelComparison, bins: Bins) -> Iterator[str]:
    """The modules below the axis: their names, or numbers if these do not fit, or every second number, ..."""
    taken, end = _AXIS, bins.edges[-1]
    for n, (name, run) in enumerate(module_runs(found)):
        left, right = (bins.edges[bins.column.get(i, -1)] for i in (run.start, run.stop))
        yield box(left, _BOTTOM + 14, right - left, 16, "even" if n % 2 == 0 else "odd")
        last = name.rpartition("/")[2]
        shown = last if width_of(last, SMALL) <= right - left else last.strip(ascii_letters + "._")
        middle, half = (left + right) / 2, width_of(shown, SMALL) / 2
        if shown and middle - half >= taken and middle + half <= end:
            yield label(middle, _BOTTOM + 26, shown, SMALL, anchor="middle")
            taken = middle + half + 4
