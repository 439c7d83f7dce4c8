"""Colours, light and dark, and the style rules of the SVG; the HTML page uses the same."""

from collections.abc import Iterator, Mapping
from typing import Final
from xml.sax.saxutils import escape

from .primitives import FACES, Panel, number, plain

SANS: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
MONO: Final = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

_MARGIN: Final = 24.0

_COLOURS: Final = {  # light and dark
    "paper": ("#ffffff", "#111418"),
    "text": ("#16181d", "#e8eaed"),
    "muted": ("#59606c", "#a3abb7"),
    "card": ("#f6f7f9", "#1a1e24"),
    "edge": ("#c9ced6", "#3c444f"),
    "track": ("#e1e5ea", "#2d343d"),
    "bar": ("#5d7590", "#8499b1"),
    "near": ("#1f5fbf", "#7fb0ff"),
    "far": ("#b04a06", "#ffa45c"),
    "over": ("#c22a22", "#ff8a80"),
    "stripe": ("#f4f5f7", "#171b20"),
    "grid": ("#e3e6ea", "#262c34"),
    "high": ("#d3dbe4", "#323b46"),
    "low": ("#5d7590", "#8499b1"),
    "even": ("#e3e9f0", "#28313c"),
    "odd": ("#f1f3f6", "#1c222a"),
    "pick": ("#7a3fc0", "#bf97f7"),
    # for the HTML page alone
    "page": ("#f6f6f5", "#0b0d10"),
    "alive": ("#a9bacd", "#51637a"),
    "on-near": ("#ffffff", "#0d1420"),
}
LIGHT: Final = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in _COLOURS.items()}


def file_style() -> str:
    """The style sheet of an SVG file. It has no variables, since not every program that reads SVG knows them."""
    dark = "\n".join(f"  {rule}" for rule in _colour_rules(DARK))
    return "\n".join([*_shape_rules(), *_colour_rules(LIGHT), "@media (prefers-color-scheme:dark){", dark, "}"])


def svg_file(title: str, description: str, panel: Panel) -> str:
    """An SVG file of a panel with a margin around it."""
    full_width, full_height = number(panel.width + 2 * _MARGIN), number(panel.height + 2 * _MARGIN)
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width} {full_height}"',
        f' width="{full_width}" height="{full_height}" role="img">',
        f"<title>{escape(plain(title))}</title>",
        f"<desc>{escape(plain(description))}</desc>",
        f"<style>\n{file_style()}\n</style>",
        f'<rect class="paper" width="{full_width}" height="{full_height}"/>',
        f'<g transform="translate({number(_MARGIN)} {number(_MARGIN)})">',
    )
    return "\n".join((*lines, *panel.marks, "</g>", "</svg>\n"))


def page_style() -> str:
    """The same rules for a page that defines each colour as a CSS variable."""
    return "\n".join([*_shape_rules(), *_colour_rules({name: f"var(--{name})" for name in LIGHT})])


def variables(colours: Mapping[str, str]) -> str:
    """Definitions of the variables that `page_style` uses."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _shape_rules() -> Iterator[str]:
    yield f"svg text{{font-family:{SANS}}}"
    yield f"svg text.code{{font-family:{MONO}}}"
    for face in FACES:
        weight = ";font-weight:600" if face.is_bold else ""
        yield f"svg text.{face.css}{{font-size:{number(face.size)}px{weight}}}"
    yield "svg .wire{fill:none}"
    yield "svg .far .wire{stroke-dasharray:6 4}"
    yield "svg .made{stroke-width:2}"
    yield "svg .card{stroke-width:1}"
    yield "svg .lane{fill:none;pointer-events:all}"
    yield "svg .tick{fill:none;stroke-width:2}"
    yield "svg .block{fill-opacity:.25;stroke-width:1.5}"
    yield "svg .exchange{fill:none;stroke-width:1;stroke-opacity:.5}"
    yield "svg .grid,svg .key,svg .cut{fill:none;stroke-width:1}"


def _colour_rules(colours: Mapping[str, str]) -> Iterator[str]:
    yield f"svg text{{fill:{colours['text']}}}"
    for name in ("muted", "near", "far", "over"):
        yield f"svg text.{name}{{fill:{colours[name]}}}"
    for name in ("paper", "track", "bar", "stripe", "high", "low", "even", "odd"):
        yield f"svg .{name}{{fill:{colours[name]}}}"
    yield f"svg .bar.over{{fill:{colours['over']}}}"
    yield f"svg .card{{fill:{colours['card']};stroke:{colours['edge']}}}"
    yield f"svg .card.over{{stroke:{colours['over']}}}"
    yield f"svg .tick,svg .key{{stroke:{colours['text']}}}"
    yield f"svg .grid{{stroke:{colours['grid']}}}"
    yield f"svg .cut{{stroke:{colours['near']}}}"
    yield f"svg .exchange{{stroke:{colours['muted']}}}"
    for name in ("near", "far", "pick"):
        yield f"svg .{name} .block{{fill:{colours[name]};stroke:{colours[name]}}}"
    for name in ("near", "far", "muted"):
        yield f"svg .{name} .wire{{stroke:{colours[name]}}}"
        yield f"svg .{name} .tip{{fill:{colours[name]}}}"
        yield f"svg .{name} .made{{fill:{colours['paper']};stroke:{colours[name]}}}"
