"""Colours, light and dark, and the style rules of the SVG, from the files here; the HTML page uses the same."""

import re
from collections.abc import Mapping
from importlib import resources
from typing import Final
from xml.sax.saxutils import escape

from ...core.records import table
from .primitives import FACES, Panel, number, plain

SANS: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
MONO: Final = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

_MARGIN: Final = 24.0

_COLOURS: Final = table("drawing/svg/colours.toml", dict[str, dict[str, str]])
LIGHT: Final = {name: colour["light"] for name, colour in _COLOURS.items()}
DARK: Final = {name: colour["dark"] for name, colour in _COLOURS.items()}


def file_style() -> str:
    """The style sheet of an SVG file. It has no variables, since not every program that reads SVG knows them."""
    dark = "\n".join(f"  {rule}" for rule in _colour_rules(DARK))
    return "\n".join([_shape_rules(), *_colour_rules(LIGHT), "@media (prefers-color-scheme:dark){", dark, "}"])


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
    return "\n".join([_shape_rules(), *_colour_rules({name: f"var(--{name})" for name in LIGHT})])


def variables(colours: Mapping[str, str]) -> str:
    """Definitions of the variables that `page_style` uses."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _shape_rules() -> str:
    faces = ((face, ";font-weight:600" if face.is_bold else "") for face in FACES)
    sizes = "\n".join(f"svg text.{face.css}{{font-size:{number(face.size)}px{weight}}}" for face, weight in faces)
    rules = resources.files(__package__).joinpath("shapes.css").read_text(encoding="utf-8").rstrip("\n")
    return filled(rules, {"sans": SANS, "mono": MONO, "faces": sizes})


def _colour_rules(values: Mapping[str, str]) -> list[str]:
    """What each colour fills and strokes."""
    uses = [(name, use, colour.get(use, "")) for name, colour in _COLOURS.items() for use in ("fill", "stroke")]
    return [f"svg {marks.replace(', ', ',svg ')}{{{use}:{values[name]}}}" for name, use, marks in uses if marks]


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with known placeholders replaced, in one pass: a name that looks like a placeholder is not replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values.get(match[1], match[0]), text)
