"""The marks an SVG is made of: text that fits its place, boxes, lines and arrow heads.

No font is at hand to measure with, and the reader's may be any: widths are taken from a wide one, so that text is
rather drawn with room to spare than over its edge. What is not plain Latin is told how wide it may be.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

Side = Literal["start", "end"]
Anchor = Literal["start", "middle", "end"]
LineDirection = Literal["right", "down"]


@dataclass(frozen=True, slots=True)
class Face:
    """How text is set.

    Attributes:
        css: its class in the style sheet.
        size: the height of its line in user units.
        is_bold: it is set in bold.
        is_mono: all its letters are equally wide.
    """

    css: str
    size: float
    is_bold: bool = False
    is_mono: bool = False


TITLE: Final = Face("title", 19, is_bold=True)
HEAD: Final = Face("head", 14, is_bold=True)
SAID: Final = Face("said", 14)
BODY: Final = Face("body", 12)
BOLD: Final = Face("bold", 12, is_bold=True)
SMALL: Final = Face("small", 11)
CODE: Final = Face("code", 11, is_mono=True)
FACES: Final = (TITLE, HEAD, SAID, BODY, BOLD, SMALL, CODE)

LINE: Final = 1.4
"""From one line of text to the next, in heights of its letters."""

_MONO: Final = 0.605
_BOLD: Final = 1.18
_KNOWN: Final = {
    **dict.fromkeys("ijl'.,", 0.34),
    **dict.fromkeys(" |/\\:;-frtI()[]!\N{MIDDLE DOT}", 0.42),
    **dict.fromkeys('sczxvykJL?"_*', 0.6),
    **dict.fromkeys("ABCEFKPRSTVXYZ", 0.72),
    **dict.fromkeys("DGHNOQUw+=<>#~^&$", 0.84),
    **dict.fromkeys("mMW@%\N{HORIZONTAL ELLIPSIS}\N{RIGHTWARDS ARROW}\N{GREATER-THAN OR EQUAL TO}", 1.01),
    **dict.fromkeys("\N{CHECK MARK}\N{BALLOT X}\N{MULTIPLICATION SIGN}\N{EN DASH}\N{MICRO SIGN}", 0.9),
}
"""Advance widths in ems of a wide sans serif (DejaVu Sans), rounded up; what is not listed is a letter or a digit."""

MORE: Final = "\N{HORIZONTAL ELLIPSIS}"


def plain(text: str) -> str:
    """`text` without what XML forbids or what acts instead of showing: control, format and half characters.

    Each stands as U+FFFD: something is there, and a reader sees that.
    """
    return "".join("\ufffd" if _is_unseen(letter) else letter for letter in text)


def _is_unseen(letter: str) -> bool:
    return unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or ord(letter) & 0xFFFE == 0xFFFE


def _ems(letter: str, face: Face) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if letter.isascii() or letter in _KNOWN:
        return _MONO if face.is_mono else _KNOWN.get(letter, 0.65) * (_BOLD if face.is_bold else 1)
    return 1.1


def width_of(text: str, face: Face) -> float:
    """How wide `text` is at most, in user units."""
    return face.size * sum(_ems(letter, face) for letter in text)


def fitted(text: str, room: float, face: Face, *, keep: Side = "start") -> str:
    """`text`, or as much of its start or end as `room` holds, with dots for the rest; empty where not even they fit."""
    if width_of(text, face) <= room:
        return text
    left = room - width_of(MORE, face)
    kept = 0
    for letter in text if keep == "start" else reversed(text):
        left -= face.size * _ems(letter, face)
        if left < 0:
            break
        kept += 1
    if left >= 0 or kept:
        return text[:kept] + MORE if keep == "start" else MORE + text[len(text) - kept :]
    return MORE if width_of(MORE, face) <= room else ""


def wrapped(text: str, room: float, face: Face) -> list[str]:
    """`text` in lines that `room` holds; a word that is wider by itself is shortened."""
    lines: list[str] = []
    for word in plain(text).split():
        if lines and width_of(f"{lines[-1]} {word}", face) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(fitted(word, room, face))
    return lines


def number(value: float) -> str:
    """A coordinate: to a hundredth, without zeros that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def words(
    x: float,
    y: float,
    text: str,
    face: Face,
    *,
    ink: str = "",
    room: float | None = None,
    anchor: Anchor = "start",
) -> str:
    """One line of text that stands on `y`.

    Args:
        x: where it starts, ends or has its middle, as `anchor` says.
        y: its base line.
        text: anything, a hostile name too.
        face: how it is set.
        ink: further classes, for its colour.
        room: how wide it may be; what is shortened shows as a whole to who points at it.
        anchor: what `x` is.
    """
    whole = plain(text)
    return _set(x, y, (whole, whole if room is None else fitted(whole, room, face)), face, ink, anchor)


def named(x: float, y: float, name: str, face: Face, *, ink: str = "", room: float, anchor: Anchor = "start") -> str:
    """The same for a name, which is told from others by its end: that stays when it is shortened."""
    whole = plain(name)
    return _set(x, y, (whole, fitted(whole, room, face, keep="end")), face, ink, anchor)


def _set(x: float, y: float, text: tuple[str, str], face: Face, ink: str, anchor: Anchor) -> str:
    """`text`, as a whole and as it is shown."""
    whole, shown = text
    if not shown:
        return ""
    css = f"{face.css} {ink}".strip()
    place = f'x="{number(x)}" y="{number(y)}"' + ("" if anchor == "start" else f' text-anchor="{anchor}"')
    if any(not letter.isascii() and letter not in _KNOWN for letter in shown):
        place += f' textLength="{number(width_of(shown, face))}" lengthAdjust="spacingAndGlyphs"'
    tip = f"<title>{escape(whole)}</title>" if shown != whole else ""
    return f"<text class={quoteattr(css)} {place}>{tip}{escape(shown)}</text>"


def box(x: float, y: float, width: float, height: float, css: str, *, radius: float = 0) -> str:
    """A rectangle."""
    corner = f' rx="{number(radius)}"' if radius else ""
    size = f'width="{number(max(width, 0))}" height="{number(height)}"'
    return f'<rect class="{css}" x="{number(x)}" y="{number(y)}" {size}{corner}/>'


def line(points: Sequence[tuple[float, float]], css: str, *, width: float | None = None) -> str:
    """Straight lines from point to point."""
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    thick = "" if width is None else f' stroke-width="{number(width)}"'
    return f'<path class="{css}" d="{path}"{thick}/>'


def head(x: float, y: float, toward: LineDirection, css: str) -> str:
    """The head of an arrow whose tip is there."""
    corners = ((-8, -4), (-8, 4)) if toward == "right" else ((-4, -8), (4, -8))
    path = f"M{number(x)} {number(y)}" + "".join(f"L{number(x + dx)} {number(y + dy)}" for dx, dy in corners)
    return f'<path class="{css}" d="{path}Z"/>'


def dot(x: float, y: float, radius: float, css: str) -> str:
    """A filled circle."""
    return f'<circle class="{css}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'
