"""The whole sheet: what it says at its head, its pieces below one another, and its style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from ..scene import Check, Scene
from .charts import draw_lanes, draw_profile, least_lanes_width
from .columns import MOST_BUSES, MOST_CARDS, draw_columns
from .panel import Panel
from .primitives import BODY, FACES, HEAD, LINE, SAID, SMALL, TITLE, head, line, number, plain, width_of, words, wrapped
from .rows import draw_rows

_MARGIN: Final = 24.0
_LEAST_WIDTH: Final = 912.0
_BETWEEN: Final = 26.0
_MOST_SAID: Final = 8
"""Sentences of one kind that are written out."""

SANS: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
MONO: Final = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

_LIGHT: Final = {
    "sheet": "#ffffff",
    "text": "#16181d",
    "muted": "#59606c",
    "card": "#f6f7f9",
    "edge": "#c9ced6",
    "track": "#e1e5ea",
    "bar": "#5d7590",
    "near": "#1f5fbf",
    "far": "#b04a06",
    "over": "#c22a22",
    "good": "#17713a",
    "zebra": "#f4f5f7",
    "grid": "#e3e6ea",
    "most": "#d3dbe4",
    "least": "#5d7590",
    "even": "#e3e9f0",
    "odd": "#f1f3f6",
}
_DARK: Final = {
    "sheet": "#111418",
    "text": "#e8eaed",
    "muted": "#a3abb7",
    "card": "#1a1e24",
    "edge": "#3c444f",
    "track": "#2d343d",
    "bar": "#8499b1",
    "near": "#7fb0ff",
    "far": "#ffa45c",
    "over": "#ff8a80",
    "good": "#6fd08c",
    "zebra": "#171b20",
    "grid": "#262c34",
    "most": "#323b46",
    "least": "#8499b1",
    "even": "#28313c",
    "odd": "#1c222a",
}


def svg_of(scene: Scene) -> str:
    """`scene` as an SVG file: the map, the lanes, and the cut profile where the model was at hand.

    Up to 4 parts with 6 buses stand side by side, more stand in rows with what skips over them at their left. Widths
    and heights are user units, one to a pixel; the picture scales. What does not fit is shortened, and shows as a
    whole to who points at it; what is too much is left out, and the picture says so.
    """
    width = max(_LEAST_WIDTH, least_lanes_width(scene))
    panels: list[Panel] = []
    if scene.cards:
        is_small = len(scene.cards) <= MOST_CARDS and len(scene.buses) <= MOST_BUSES
        drawn = draw_columns(scene, width) if is_small else draw_rows(scene, width)
        width = max(width, drawn.width)
        panels.append(_entitled("Parts and what flows between them", drawn, _legend(scene)))
    if scene.lanes:
        panels.append(_entitled("Tensors that cross", draw_lanes(scene, width), _lanes_legend()))
    if scene.profile is not None and scene.profile.nodes:
        alive = "bytes alive" if all(scene.profile.exact) else "at least these bytes are alive"
        title = f"Cut profile: {alive} after each node"
        panels.append(_entitled(title, draw_profile(scene, scene.profile, width), _profile_legend()))
    panels = [_head(scene, width), *panels, *_said(scene, width)]
    return _document(scene, panels, width)


def _head(scene: Scene, width: float) -> Panel:
    marks = [words(0, 18, scene.title, TITLE, room=width)]
    y = 18.0
    facts = " \N{MIDDLE DOT} ".join(value if word == "dims" else f"{value} {word}" for word, value in scene.facts)
    for said in wrapped(facts, width, BODY):
        y += BODY.size * LINE + 3
        marks.append(words(0, y, said, BODY, ink="muted"))
    y += 8
    for said in wrapped(scene.sentence, width, SAID):
        y += SAID.size * LINE
        marks.append(words(0, y, said, SAID))
    return Panel(width, y + 6, tuple(marks))


def _entitled(title: str, panel: Panel, legend: tuple[str, ...]) -> Panel:
    marks = (words(0, 12, title, HEAD), *legend, f'<g transform="translate(0 42)">{"".join(panel.marks)}</g>')
    return Panel(panel.width, panel.height + 42, marks)


def _legend(scene: Scene) -> tuple[str, ...]:
    marks = []
    x = 0.0
    if scene.buses:
        for ink, said in (
            ("near", "sequential: read by the next part alone"),
            ("far", "residual: a later part reads it"),
        ):
            marks += [line(((x, 28), (x + 22, 28)), f"{ink} wire", width=3), head(x + 28, 28, "right", f"{ink} tip")]
            marks.append(words(x + 34, 32, said, SMALL, ink="muted"))
            x += 34 + width_of(said, SMALL) + 16
    if any(card.budget_bytes is not None for card in scene.cards):
        marks += [
            line(((x + 2, 22), (x + 2, 34)), "tick"),
            words(x + 10, 32, "what a part may need", SMALL, ink="muted"),
        ]
    return tuple(marks)


def _lanes_legend() -> tuple[str, ...]:
    said = "A line starts where the tensor is made and ends at its last reader; a dot marks every part that reads it."
    return (words(0, 32, said, SMALL, ink="muted"),)


def _profile_legend() -> tuple[str, ...]:
    said = (
        "Cutting at a place sends this much. Where several nodes share a place, the least is strong and the most pale."
    )
    return (words(0, 32, said, SMALL, ink="muted"),)


def _said(scene: Scene, width: float) -> Iterator[Panel]:
    if scene.recomputed:
        yield _sentences("Recomputed instead of sent", [(said, "") for said in scene.recomputed], width)
    if scene.checks:
        yield _sentences("Verification", [_checked(check) for check in scene.checks], width)
    if scene.reasons:
        # The next best places are for a screen, where one can try them.
        whys = [": ".join(reason.split("\n")[:2]) for reason in scene.reasons]
        yield _sentences("Why the cuts are where they are", [(why, "") for why in whys], width)
    if scene.notes:
        yield _sentences("Notes", [(note, "") for note in scene.notes], width)


def _checked(check: Check) -> tuple[str, str]:
    sign = {True: "\N{CHECK MARK} ", False: "\N{BALLOT X} ", None: ""}[check.is_good]
    ink = {True: "good", False: "over", None: "muted"}[check.is_good]
    return f"{sign}{check.what}: {check.result}", ink


def _sentences(title: str, said: list[tuple[str, str]], width: float) -> Panel:
    marks = [words(0, 12, title, HEAD)]
    y = 16.0
    more = len(said) - _MOST_SAID
    for text, ink in [*said[:_MOST_SAID], *([(f"and {more} more", "muted")] if more > 0 else [])]:
        for part in wrapped(text, width, BODY):
            y += BODY.size * LINE
            marks.append(words(0, y, part, BODY, ink=ink))
    return Panel(width, y + 4, tuple(marks))


def _document(scene: Scene, panels: list[Panel], width: float) -> str:
    y = _MARGIN
    body = []
    for panel in panels:
        marks = "\n".join(mark for mark in panel.marks if mark)
        body.append(f'<g transform="translate({number(_MARGIN)} {number(y)})">\n{marks}\n</g>')
        y += panel.height + _BETWEEN
    wide, high = number(width + 2 * _MARGIN), number(y - _BETWEEN + _MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"',
            f' width="{wide}" height="{high}" role="img">',
            f"<title>{escape(plain(scene.title))}</title>",
            f"<desc>{escape(plain(scene.sentence))}</desc>",
            f"<style>\n{_style()}\n</style>",
            f'<rect class="sheet" width="{wide}" height="{high}"/>',
            *body,
            "</svg>\n",
        ]
    )


def _style() -> str:
    dark = "\n".join(f"  {rule}" for rule in _colours(_DARK))
    fonts = [f"text{{font-family:{SANS}}}", f"text.code{{font-family:{MONO}}}"]
    fonts += [
        f"text.{face.css}{{font-size:{number(face.size)}px{';font-weight:600' * face.is_bold}}}" for face in FACES
    ]
    lines = [".wire{fill:none}", ".wire.far{stroke-dasharray:6 4}", ".made{stroke-width:2}"]
    lines += [".card{stroke-width:1}", ".tick{fill:none;stroke-width:2}", ".grid,.key,.cut{fill:none;stroke-width:1}"]
    return "\n".join([*fonts, *lines, *_colours(_LIGHT), "@media (prefers-color-scheme:dark){", dark, "}"])


def _colours(of: dict[str, str]) -> list[str]:
    """The rules that are all that light and dark differ in."""
    inks = ("muted", "near", "far", "over", "good")
    return [
        f"text{{fill:{of['text']}}}",
        *(f"text.{ink}{{fill:{of[ink]}}}" for ink in inks),
        *(f".{name}{{fill:{of[name]}}}" for name in ("sheet", "track", "bar", "zebra", "most", "least", "even", "odd")),
        f".bar.over{{fill:{of['over']}}}",
        f".card{{fill:{of['card']};stroke:{of['edge']}}}",
        f".card.over{{stroke:{of['over']}}}",
        f".tick,.key{{stroke:{of['text']}}}",
        f".grid{{stroke:{of['grid']}}}",
        f".cut{{stroke:{of['near']}}}",
        *(f".{ink}.wire{{stroke:{of[ink]}}}" for ink in ("near", "far")),
        *(f".{ink}.tip{{fill:{of[ink]}}}" for ink in ("near", "far")),
        *(f".{ink}.made{{fill:{of['sheet']};stroke:{of[ink]}}}" for ink in ("near", "far")),
    ]
