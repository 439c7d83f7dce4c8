"""The SVG file, and the SVG elements of the page of a comparison."""

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import quoteattr

from ..dependency_matrix import matrix_legend, matrix_of
from ..scene import KINDS, LEGENDS, Scene
from . import primitives
from .bus_lines import CSS
from .chain_map import draw_chain, is_short_chain
from .lane_chart import draw_lanes
from .matrix_chart import MAX_ROWS, draw_matrix
from .primitives import (
    BODY,
    HEAD,
    LEAD,
    LINE_HEIGHT,
    SMALL,
    TITLE,
    Face,
    Panel,
    label,
    number,
    stacked,
    width_of,
    wrapped,
)
from .profile_chart import draw_profile
from .rank_map import draw_ranks
from .row_map import draw_rows
from .schedule_chart import draw_schedule
from .style import svg_file

WIDE: Final = 880.0  #: the width of a file, in user units; wider if the parts need more.
NARROW: Final = 340.0  #: the width for a phone, in that page.
_SAMPLE: Final = 34.0
_MAX_SENTENCES: Final = 8  #: sentences of one kind that are written out.


def svg_of(scene: Scene) -> str:
    """`scene` as an SVG file: the map, the lane chart, the cut profile, and the sentences.

    Up to 4 parts in a chain are side by side; other parts are in rows, with a gutter for residual tensors. Units are
    pixels; the picture scales. Shortened text has its whole as a tooltip; what is left out is counted in the picture.
    """
    pictures = _map_and_lanes(scene)
    width = max((panel.width for panel in pictures.values()), default=WIDE)
    panels = [titled(title, panel) for title, panel in pictures.items()]
    if (matrix := matrix_of(scene, MAX_ROWS)).cells:
        drawn = stacked([small_text(matrix_legend(scene), width), draw_matrix(matrix, width)])
        panels.append(titled("Dependency maps", drawn))
    if scene.profile is not None and scene.profile.nodes:
        alive = "bytes alive" if all(scene.profile.exact) else "lower bound of the bytes alive"
        legend = "A cut sends this many bytes. Where several nodes share a bin: dark is the lowest, pale the highest."
        legend += " Strokes are key nodes." if scene.profile.keys else ""
        legend += "" if scene.cards else " Triangles are the cut points below."
        profile = stacked([small_text(legend, width), draw_profile(scene, scene.profile, width)])
        panels.append(titled(f"Cut profile: {alive} after each node", profile))
    panels += [titled(title, panel) for title, panel in _schedule_panel(scene, width).items()]
    whole = stacked([_header(scene, width), *panels, *_sentences(scene, width)], gap=26.0)
    return svg_file(scene.title, scene.sentence, whole._replace(width=width))


def _map_and_lanes(scene: Scene) -> dict[str, Panel]:
    """The dependency map and the lane chart by title; both have one width."""
    found, width = {}, WIDE
    if scene.cards:
        draw = draw_ranks if scene.is_ranked else draw_chain if is_short_chain(scene) else draw_rows
        cards = draw(scene, width)
        width = max(width, cards.width)
        found["Parts and tensors between them"] = stacked([_legend(scene, width), cards])
    if scene.tensors:
        ranks = " Blue: exchanged between ranks; grey: kept by a rank." if scene.is_ranked else ""
        found["Boundary tensors"] = stacked([small_text(LEGENDS["lanes"] + ranks, width), draw_lanes(scene, width)])
    return found


def _schedule_panel(scene: Scene, width: float) -> dict[str, Panel]:
    """The schedules of a plan below one another, by title."""
    panels, first = [small_text(LEGENDS["schedule"], width)], 0
    for schedule in scene.schedules():
        panels += [small_text(schedule.title, width), draw_schedule(schedule, width, first)]
        first += len(schedule.runs)
    return {"Schedule": stacked(panels, gap=4)} if first else {}


def inline_svg(panel: Panel, title: str, css: str) -> str:
    """A panel as an element of an HTML page, without colours; the margin keeps the borders of cards inside."""
    view, size = (number(value) for value in (panel.width + 4, panel.height + 2))
    start = f'<svg class="{css}" viewBox="-2 0 {view} {size}" width="{view}" height="{size}" role="group"'
    return f"{start} aria-label={quoteattr(title)}>\n" + "\n".join(panel.marks) + "\n</svg>"


def _header(scene: Scene, width: float) -> Panel:
    title = label(0, 18, scene.title, TITLE, room=width)
    facts, y = _lines(" \N{MIDDLE DOT} ".join(scene.fact_texts), width, BODY, 18.0, "muted", gap=3)
    answer, y = _lines(scene.sentence, width, LEAD, y + 8)
    return Panel(width, y + 6, (title, *facts, *answer))


def _lines(text: str, width: float, face: Face, y: float, css: str = "", *, gap: float = 0) -> tuple[list[str], float]:
    """A text in lines below `y`, and where the last one is."""
    marks = []
    for one in wrapped(text, width, face):
        y += face.size * LINE_HEIGHT + gap
        marks.append(label(0, y, one, face, css=css))
    return marks, y


def titled(title: str, panel: Panel) -> Panel:
    """A panel below its title."""
    return stacked([Panel(panel.width, 20, (label(0, 12, title, HEAD),)), panel])


def small_text(text: str, width: float) -> Panel:
    """A small text in lines."""
    marks, y = _lines(text, width, SMALL, -3, "muted", gap=15 - SMALL.size * LINE_HEIGHT)
    return Panel(width, y + 10, tuple(marks))


def _legend(scene: Scene, width: float) -> Panel:
    """Samples of lines and what they mean, in as many rows as they need."""
    drawn = {bus.kind for bus in scene.buses} - {"kept"}
    entries = [(CSS[kind], text) for kind, text in KINDS.items() if kind in drawn]
    entries += [("", "width: bytes (log scale)")] if scene.buses else []
    entries += [("tick", "memory budget")] if any(card.budget_bytes is not None for card in scene.cards) else []
    entries += [("", "bars: share of the largest")] if scene.cards else []
    x, y, marks = 0.0, 8.0, []
    for css, text in entries:
        if x and x + _SAMPLE + width_of(text, SMALL) > width:
            x, y = 0.0, y + 17
        marks.append(_sample(css, x, y))
        x += {"": 0, "tick": 10}.get(css, _SAMPLE)
        marks.append(label(x, y + 4, text, SMALL, css="muted", room=width - x))
        x += width_of(text, SMALL) + 16
    return Panel(width, y + 14 if marks else 0, tuple(marks))


def _sample(css: str, x: float, y: float) -> str:
    if css == "tick":
        return primitives.line(((x + 2, y - 6), (x + 2, y + 6)), "tick")
    sample = primitives.line(((x, y), (x + 22, y)), "wire", width=3) + primitives.arrow_head(x + 28, y, "right")
    return f'<g class="{css}">{sample}</g>' if css else ""


def _sentences(scene: Scene, width: float) -> Iterator[Panel]:
    for title, texts in (
        ("Recomputed instead of sent", scene.recomputed),
        # The alternatives to a cut are for a screen, where one can try them.
        ("Why the cuts are where they are", [": ".join(reason.split("\n")[:2]) for reason in scene.reasons()]),
        ("Notes", scene.notes),
    ):
        if texts:
            yield paragraphs(title, texts, width)


def paragraphs(title: str, sentences: Sequence[str], width: float) -> Panel:
    """A title and sentences below it, at most 8."""
    marks, y = [label(0, 12, title, HEAD)], 16.0
    more = [(f"and {len(sentences) - _MAX_SENTENCES} more", "muted")] if len(sentences) > _MAX_SENTENCES else []
    for text, css in [*((text, "") for text in sentences[:_MAX_SENTENCES]), *more]:
        lines, y = _lines(text, width, BODY, y, css)
        marks += lines
    return Panel(width, y + 4, tuple(marks))
