"""The elements of an SVG: text that fits its room, boxes, lines, arrow heads, groups and panels.

The reader's font is unknown, so widths are those of a wide font (DejaVu Sans): text takes at most the room it is given.
Letters whose width is unknown are told how wide to be.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, takewhile
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from ...core.records import table
from ...core.text import shortened

Point = tuple[float, float]


class Face(NamedTuple):
    """A type face."""

    css: str  #: its class in the style sheet.
    size: float  #: font size in user units.
    is_bold: bool = False  #: whether it is bold.
    is_mono: bool = False  #: whether all letters have the same width.


TITLE: Final = Face("title", 19, is_bold=True)
HEAD: Final = Face("head", 14, is_bold=True)
LEAD: Final = Face("lead", 14)
BODY: Final = Face("body", 12)
BOLD: Final = Face("bold", 12, is_bold=True)
SMALL: Final = Face("small", 11)
CODE: Final = Face("code", 11, is_mono=True)
FACES: Final = (TITLE, HEAD, LEAD, BODY, BOLD, SMALL, CODE)

LINE_HEIGHT: Final = 1.4  #: distance of two lines of text, in font sizes.
_WIDTHS: Final = {
    letter: ems for letters, ems in table("drawing/svg/widths.toml", dict[str, float]).items() for letter in letters
}
"""Advance widths of letters in ems."""

ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


class Panel(NamedTuple):
    """A piece of a picture, drawn from its own upper left corner."""

    width: float  #: in user units.
    height: float  #: in user units.
    marks: tuple[str, ...]  #: its elements, from back to front.


def stacked(panels: Sequence[Panel], *, gap: float = 0.0) -> Panel:
    """Panels below one another."""
    y, marks = 0.0, []
    for panel in panels:
        marks.append(f'<g transform="translate(0 {number(y)})">\n' + "\n".join(filter(None, panel.marks)) + "\n</g>")
        y += panel.height + gap
    return Panel(max((panel.width for panel in panels), default=0), max(y - gap, 0), tuple(marks))


def plain(text: str) -> str:
    """`text` with U+FFFD for what XML forbids or what is invisible: control and format characters, half surrogates."""
    return "".join("\ufffd" if _is_invisible(letter) else letter for letter in text)


def _is_invisible(letter: str) -> bool:
    return unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or ord(letter) & 0xFFFE == 0xFFFE


def _ems(letter: str, face: Face) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if letter.isascii() or letter in _WIDTHS:
        return 0.605 if face.is_mono else _WIDTHS.get(letter, 0.65) * (1.18 if face.is_bold else 1)
    return 1.1


def width_of(text: str, face: Face) -> float:
    """An upper bound of the width of `text`, in user units."""
    return face.size * sum(_ems(letter, face) for letter in text)


def fitted(text: str, room: float, face: Face) -> str:
    """`text`, shortened at its end with an ellipsis so that it fits `room`; empty if not even the ellipsis fits."""
    if width_of(text, face) <= room:
        return text
    left = room - width_of(ELLIPSIS, face)
    widths = accumulate(face.size * _ems(letter, face) for letter in text)
    return "" if left < 0 else text[: sum(1 for _ in takewhile(lambda width: width <= left, widths))] + ELLIPSIS


@cache
def fitted_names(names: tuple[str, ...], room: float, face: Face) -> dict[str, str]:
    """The names that stand together, each as it fits `room`; see `shortened`."""
    room *= 1 + 1e-9  # for a name that fits exactly: sums of widths in other orders differ by less
    shown = shortened(names, room, lambda letter: face.size * _ems(letter, face), ELLIPSIS)
    return dict(zip(names, shown, strict=True))


def wrapped(text: str, room: float, face: Face) -> list[str]:
    """`text` in lines that fit `room`; a longer word is shortened."""
    lines: list[str] = []
    for word in plain(text).split():
        if lines and width_of(f"{lines[-1]} {word}", face) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(fitted(word, room, face))
    return lines


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def label(  # noqa: PLR0913 - the options of a text
    x: float,
    y: float,
    text: str,
    face: Face,
    *,
    css: str = "",
    room: float | None = None,
    anchor: Literal["start", "middle", "end"] = "start",
    among: Iterable[str] = (),
) -> str:
    """One line of text, which may be hostile; (x, y) is its start, middle or end on the base line, as `anchor` says.

    A text that is wider than `room` is shortened, and its tooltip is the whole text. A name loses its middle, so that
    it looks different from the others `among` which it stands.
    """
    whole = shown = plain(text)
    if room is not None:
        names = tuple(dict.fromkeys(map(plain, among)))
        shown = fitted_names(names, room, face)[whole] if names else fitted(whole, room, face)
    if not shown:
        return ""
    where = f'x="{number(x)}" y="{number(y)}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
    if any(not letter.isascii() and letter not in _WIDTHS for letter in shown):
        where += f' textLength="{number(width_of(shown, face))}" lengthAdjust="spacingAndGlyphs"'
    tooltip = f"<title>{escape(whole)}</title>" if shown != whole else ""
    return f"<text class={quoteattr(f'{face.css} {css}'.strip())} {where}>{tooltip}{escape(shown)}</text>"


def box(x: float, y: float, width: float, height: float, css: str, *, radius: float = 0) -> str:
    """A rectangle."""
    corner = f' rx="{number(radius)}"' if radius else ""
    size = f'width="{number(max(width, 0))}" height="{number(height)}"'
    return f'<rect class="{css}" x="{number(x)}" y="{number(y)}" {size}{corner}/>'


def line(points: Sequence[Point], css: str, *, width: float | None = None) -> str:
    """Straight lines from point to point."""
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    stroke = "" if width is None else f' stroke-width="{number(width)}"'
    return f'<path class="{css}" d="{path}"{stroke}/>'


_CORNERS: Final = {
    "right": ((-8, -4), (-8, 4)), "left": ((8, -4), (8, 4)), "down": ((-4, -8), (4, -8)), "up": ((-4, 8), (4, 8)),
}  # fmt: skip


def arrow_head(x: float, y: float, direction: Literal["right", "left", "down", "up"]) -> str:
    """The head of an arrow that ends at (x, y)."""
    corners = _CORNERS[direction]
    path = f"M{number(x)} {number(y)}" + "".join(f"L{number(x + dx)} {number(y + dy)}" for dx, dy in corners)
    return f'<path class="tip" d="{path}Z"/>'


def dot(x: float, y: float, radius: float) -> str:
    """A filled circle."""
    return f'<circle class="tip" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'


def thing(kind: str, index: int, description: str, marks: Iterable[str], css: str = "") -> str:
    """A group for one part, bus or boundary tensor; the HTML page makes it something to point at and to focus.

    The description is its tooltip and what a screen reader says.
    """
    style = f' class="{css}"' if css else ""
    inner = "".join(filter(None, marks))
    return f'<g{style} data-kind="{kind}" data-index="{index}"><title>{escape(plain(description))}</title>{inner}</g>'
